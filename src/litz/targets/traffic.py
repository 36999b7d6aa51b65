"""What kernels and calls move and compute at least, at the hints of open sizes.

Bytes: each element of each buffer counts once for reading and once for writing, however often a
kernel touches it.  Operations: one for each primitive op and reduced element, at each point of the
loops that it depends on; a product's multiplication and addition are two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node as FxNode
from torch.utils import _pytree as pytree

from litz.graph.aliasing import is_view_op
from litz.host.lines import CallKernel
from litz.index import Expr, Var, size_hint
from litz.ir.body import Load, Op, Reduce, Scan, Store, walk
from litz.ir.flops import call_ops
from litz.ir.program import Buffer, Extern, TensorRef
from litz.kernel.nodes import extent, roots
from litz.kernel.plan import KernelPlan
from litz.targets.kernels import Kernel

Buffers = Mapping[str, Buffer]


def kernel_bytes(kernel: Kernel, call: CallKernel, buffers: Buffers) -> int:
    """What one call of a kernel reads and writes."""
    names = [b for b in call.buffers if b in buffers]  # others are the kernel's own
    total = 0
    for plan in kernel.members or (kernel.plan,):
        own, names = names[: len(plan.params)], names[len(plan.params) :]
        total += _plan_bytes(plan, own, buffers)
    return total


def _plan_bytes(plan: KernelPlan, names: Sequence[str], buffers: Buffers) -> int:
    loads = (n for n in walk(roots(plan.stores)) if isinstance(n, Load))
    ways = (_accessed(loads), _accessed(plan.stores))
    return sum(
        param.dtype.bytes * min(points[param.name], _elements(buffers[name]))
        for param, name in zip(plan.params, names, strict=True)
        for points in ways
    )


def _accessed(accesses: Iterable[Load | Store]) -> Counter[str]:
    """Points of each buffer; those of equal accesses count once."""
    found: Counter[str] = Counter()
    for buffer, index in {(x.buffer, x.index) for x in accesses}:
        found[buffer] += _points(index.free)
    return found


def _points(loops: Iterable[Expr]) -> int:
    """The points of the loops among some variables; what data chooses is left out."""
    return math.prod(max(1, size_hint(extent(v))) for v in loops if isinstance(v, Var))


def _elements(of: Any) -> int:
    return math.prod(max(0, size_hint(size)) for size in of.shape)


def call_bytes(call: Extern, buffers: Buffers) -> int:
    """What a call of ATen is handed and returns."""
    values = pytree.tree_leaves([call.args, dict(call.kwargs)])
    total = sum(v.dtype.bytes * _elements(v) for v in values if isinstance(v, TensorRef))
    names = call.outputs if call.part is None else ()
    results = (buffers[name] for name in names if name is not None)
    return total + sum(b.dtype.bytes * _elements(b) for b in results)


def kernel_ops(kernel: Kernel) -> int:
    """The operations of one call of a kernel; open sizes count by their hints."""
    return sum(_plan_ops(plan) for plan in kernel.members or (kernel.plan,))


def _plan_ops(plan: KernelPlan) -> int:
    total = 0
    for n in walk(roots(plan.stores)):
        if isinstance(n, Op):
            total += _points(n.vars)
        elif isinstance(n, Reduce):
            total += _points((*n.vars, *n.axes))
        elif isinstance(n, Scan):
            total += _points({*n.vars, n.axis})
    return total


def node_bytes(n: FxNode) -> int:
    """What ATen moves for one graph node run by itself: what it reads and returns.

    A view none; nor what takes a result to where it was to be written at once.
    """
    if n.op != "call_function" or is_view_op(n.target):
        return 0
    if n.target is torch.ops.aten.copy_.default and _is_call(n.args[1]):
        return 0
    read = (a.meta.get("val") for a in n.all_input_nodes)
    tensors = pytree.tree_leaves([list(read), n.meta.get("val")])
    return sum(_tensor_bytes(t) for t in tensors if isinstance(t, torch.Tensor))


def _is_call(x: object) -> bool:
    return isinstance(x, FxNode) and x.op == "call_function"


def _tensor_bytes(t: torch.Tensor) -> int:
    return t.element_size() * math.prod(_hint(s) for s in t.shape)


def _hint(size: Any) -> int:
    """A size of a tensor; of an open one what PyTorch saw, else 64."""
    if isinstance(size, int):
        return size
    known = getattr(size.node, "hint", None)
    return known if isinstance(known, int) else 64


def node_ops(n: FxNode) -> int:
    """The same of a graph node that ATen computes."""
    args, kwargs = (pytree.tree_map(_meta, x) for x in (n.args, n.kwargs))
    return call_ops(n.target, args, kwargs, n.meta.get("val"))


def _meta(x: Any) -> Any:
    return x.meta.get("val") if isinstance(x, FxNode) else x
