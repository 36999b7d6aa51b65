"""Backends by name, Litz from a checkout that is not installed included."""

from __future__ import annotations

import torch


def backend_called(name: str) -> None:
    """See to it that ``torch.compile(backend=name)`` finds Litz; other names are PyTorch's own."""
    if name != "litz" or name in torch._dynamo.list_backends(exclude_tags=()):
        return
    from litz.entry import litz

    torch._dynamo.register_backend(litz, name="litz")
