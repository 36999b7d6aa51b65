"""What operators of ATen are handed, beside what the graph's metadata says of it.

For the check of a host program's calls (``litz.host.checks``): a kernel of ATen that is handed
another layout than PyTorch traced may refuse it, or compute something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node as FxNode

from litz.ir.program import TensorRef
from litz.ir.text import is_whole
from litz.lowering.bindings import ALIGNED, Handed, Stated
from litz.lowering.layouts import CONTRACTIONS, stated_by
from litz.lowering.state import GraphLowering


def handed(
    low: GraphLowering,
    n: FxNode,
    args: tuple[object, ...],
    kwargs: tuple[tuple[str, object], ...],
) -> Handed:
    """What the call that graph node ``n`` stands for is handed that Litz laid out.

    What it takes as another operator left it, or as it came, is between these two.
    """
    pairs = [*zip(n.args, args, strict=True)]
    pairs += [(n.kwargs[k], v) for k, v in kwargs if k in n.kwargs]
    found = (_stated(low, n, a, ref) for p in pairs for a, ref in _tensors(*p))
    tensors = tuple(x for x in found if x is not None)
    return Handed(tensors, (n.meta.get("stack_trace") or "").rstrip())


def _tensors(value: Any, passed: object) -> Iterator[tuple[FxNode, TensorRef]]:
    if isinstance(passed, TensorRef):
        if isinstance(value, FxNode):
            yield value, passed
    elif isinstance(passed, tuple) and isinstance(value, list | tuple):
        for v, p in zip(value, passed, strict=True):
            yield from _tensors(v, p)


def _stated(low: GraphLowering, n: FxNode, a: FxNode, ref: TensorRef) -> Stated | None:
    val: Any = stated_by(a, n)
    any_strides = n.target in CONTRACTIONS
    stated = low.result(val) if isinstance(val, torch.Tensor) else None
    root = low.b.buffers[low.b.root(ref.buffer)]
    own = root.kind == "temp"
    if stated is None or not own and is_whole(ref, low.b.buffers):
        return None
    known = {s for e in (*ref.shape, *ref.strides, ref.offset) for s in e.free}
    strides = tuple(
        None if any_strides or not known.issuperset(stride.free) else stride
        for stride in stated.strides
    )
    offset = val.storage_offset()
    aligned = own and isinstance(offset, int) and offset * val.element_size() % ALIGNED == 0
    return Stated(a.name, ref, val.dtype, stated.device, strides, aligned and not any_strides)
