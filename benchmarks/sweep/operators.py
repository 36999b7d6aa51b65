"""Cases of PyTorch's operator database: ufuncs and reductions in sizes, others as sampled."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import types
import unittest
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.sweep.tensors import Job, Place

# What is neither arithmetic nor data: values of no two runs, other devices, other containers.
LEFT_OUT = ("jiterator", "empty", "new_empty", "to_sparse", "sparse.", "resize", "item", "allclose")
SAMPLES = 64


@cache
def database() -> dict[str, Any]:
    """Entries by name."""
    os.environ.setdefault("PYTORCH_JIT", "0")
    try:
        importlib.import_module("expecttest")
    except ImportError:  # PyTorch's own tests build on its class, the database does not
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    module = importlib.import_module("torch.testing._internal.common_methods_invocations")
    # A seed in every call, which the database sets, is no part of an operator.
    module.__dict__["wrapper_set_seed"] = lambda op, *args, **kwargs: op(*args, **kwargs)
    found = {}
    for op in module.op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if not name.startswith(LEFT_OUT):
            found[name] = op
    return found


def kind(name: str) -> str:
    """Which of "unary", "binary", "reduction" and "sample" an entry is."""
    found = type(database()[name]).__name__
    kinds = {"UnaryUfuncInfo": "unary", "BinaryUfuncInfo": "binary", "ReductionOpInfo": "reduction"}
    return kinds.get(found, "sample")


def type_of(name: str, wanted: torch.dtype, device: str) -> torch.dtype | None:
    """The wanted type where the operator takes it; in place of float32 the first that it takes."""
    taken = database()[name].supported_dtypes(device)
    if wanted in taken:
        return wanted
    others = (torch.int64, torch.bool, torch.complex64)
    return next((t for t in others if t in taken), None) if wanted is torch.float32 else None


def build(name: str, p: Place) -> Job:
    """Raises ValueError where the database has no sample of the type."""
    op = database()[name]
    builders: dict[str, Callable[[Any, Place], Job]] = {
        "unary": unary,
        "binary": binary,
        "reduction": reduction,
    }
    return builders.get(kind(name), sample)(op, p)


def between(op: Any, p: Place) -> tuple[float, float]:
    low, high = getattr(op, "domain", None) or (None, None)
    edge = 0.0 if p.dtype in (torch.bool, torch.uint8) else 1e-2 if p.dtype.is_floating_point else 0
    low = -3.0 if low is None else low + edge
    return low, max(low + 3.0, 3.0) if high is None else high - edge


def unary(op: Any, p: Place) -> Job:
    x = p.matrix(*between(op, p))
    kwargs, _ = op.sample_kwargs(p.device, p.dtype, x)
    extra: tuple[Any, ...] = ()
    if op.name in ("nn.functional.prelu", "fill", "nn.functional.threshold") and not kwargs:
        extra = sample(op, p).args[1:]
    return Job(op.op, (x, *extra), kwargs)


def binary(op: Any, p: Place) -> Job:
    """The second operand is a row where the layout is "broadcast"."""
    if p.layout == "broadcast":
        rows, columns = p.sides()
        x, y = p.make(rows, columns, low=0.5), p.make(columns, low=0.5)
    else:
        x, y = p.matrix(1.0), p.matrix(1.0)
    wants = p.dtype
    if wants is torch.float32 and op.name == "ldexp":
        y = y.to(torch.int32)
    return Job(op.op, (x, y), dict(sample(op, p).kwargs))


def reduction(op: Any, p: Place) -> Job:
    """Of rows; of "transposed" ones, whose elements lie apart, as well."""
    kwargs = {} if op.name == "hash_tensor" else {"dim": -1}
    if op.name == "masked.norm":
        kwargs["ord"] = 2
    elif op.name == "count_nonzero":
        kwargs = {"dim": -1}
    elif op.variant_test_name == "unbiased":
        kwargs["unbiased"] = True
    # Of numbers near 1, so that no product overflows or vanishes in one order alone.
    x = p.matrix(0.9, 1.1) if op.name.endswith("prod") else p.matrix()
    return Job(op.op, (x,), kwargs)


def sample(op: Any, p: Place) -> Job:
    """The largest of the first samples."""
    torch.manual_seed(0)
    found = list(itertools.islice(iter(op.sample_inputs(p.device, p.dtype)), SAMPLES))
    if not found:
        raise ValueError("no samples")

    def elements(one: Any) -> int:
        leaves = torch.utils._pytree.tree_leaves((one.input, one.args, one.kwargs))
        return sum(t.numel() for t in leaves if isinstance(t, Tensor))

    most = max(found, key=elements)
    return Job(op.op, (most.input, *most.args), dict(most.kwargs))
