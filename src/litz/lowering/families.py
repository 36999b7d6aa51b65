"""All lowering families; importing them fills the registry."""

from __future__ import annotations

import importlib

NAMES = (
    "pointwise", "activations", "special", "bessel", "polygamma", "products", "distances", "views",
    "creation", "joins", "parts", "storage", "view_gradients", "reductions", "scans", "sorts",
    "softmax", "norms", "batch_norm", "losses", "indexing", "scatters", "pooling", "unpooling",
    "resampling", "grid_sample", "random", "foreach", "mutation",
)  # fmt: skip


def load() -> None:
    """Import every family module (idempotent)."""
    for name in NAMES:
        importlib.import_module(f"litz.lowering.{name}")
