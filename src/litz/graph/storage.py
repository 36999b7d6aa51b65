"""``as_strided`` and its kind: what reads an argument's memory becomes what reads its values.

These operators address the storage below their argument, as eager lays it out.  Litz lays computed
values out as it likes, so here such an argument becomes the flat tensor of its storage's elements
in order: then an offset and strides are an index into values, wherever they lie.  Calls that stand
on such a tensor carry ``FLAT``.  Inputs and constants have the storage that eager gave them: on
those the operators are called as they are, without views between.  Where such a call has no offset,
it begins where its argument does, and no two calls of a program need agree on where that is in the
storage: of views that begin elsewhere than the input it stays a call, which carries ``ANCHORED``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from litz.graph.aliasing import is_returned, offset_of, owner
from litz.graph.values import add_call, same_dims

aten = torch.ops.aten
FLAT = "litz_flat"
ANCHORED = "litz_anchored"

READS = (aten.as_strided.default, aten.as_strided_copy.default)
SCATTER = aten.as_strided_scatter.default


def is_flat(n: Node) -> bool:
    """Whether the call's first argument is the flat tensor of a whole storage."""
    return bool(n.meta.get(FLAT))


def make_storage_explicit(gm: GraphModule) -> bool:
    """Let calls that address storage stand on flat tensors (or on inputs); whether any did not."""
    changed = False
    for n in list(gm.graph.nodes):
        if n.op == "call_function" and n.target in READS and not is_flat(n):
            changed |= _read(n)
        elif n.op == "call_function" and n.target is SCATTER and not is_flat(n):
            changed |= _scatter(n)
    return changed


def _read(n: Node) -> bool:
    x, size, stride, offset = _given(n)
    base = owner(x, copies=True)
    absolute = offset is not None and not _is_computed(base)
    offset = offset_of(x) if offset is None else offset
    same = not absolute and _same_view(x.meta["val"], size, stride, offset)
    if n.target is READS[0] and same and not is_returned(n):
        n.replace_all_uses_with(x)
        n.graph.erase_node(n)
        return True
    if not _is_computed(base):
        if absolute:
            n.args, n.kwargs = (base, size, stride, offset), {}
        elif _equal(offset_of(x), offset_of(base)):
            n.args, n.kwargs = (base, size, stride), {}
        else:
            n.meta[ANCHORED] = True
            return False
        return base is not x
    with n.graph.inserting_before(n):
        flat = _flat(base)
    if flat is None:
        return False
    n.args, n.kwargs, n.meta[FLAT] = (flat, size, stride, offset), {}, True
    return True


def _scatter(n: Node) -> bool:
    x, source, size, stride, offset = _given(n)
    offset = offset_of(x) if offset is None else offset
    base = owner(x, copies=True)
    if not _is_computed(base):
        return False
    val = x.meta["val"]
    with n.graph.inserting_before(n):
        flat = _flat(base)
        if flat is None:
            return False
        order = _order(size, stride)
        if order is not None and _is_zero(offset) and _equal(_numel(size), _numel(flat)):
            written = _call(aten.permute.default, source, order)
            written = _call(aten.reshape.default, written, [-1])
        else:
            written = _call(SCATTER, flat, source, size, stride, offset)
            written.meta[FLAT] = True
        own = (list(val.shape), list(val.stride()), offset_of(x))
        result = _call(READS[0], written, *(_numbers(n, v) for v in own))
        result.meta[FLAT] = True
    n.replace_all_uses_with(result)
    n.graph.erase_node(n)
    return True


def _given(n: Node) -> tuple[Any, ...]:
    """The arguments in order, None for those that are left out."""
    assert isinstance(n.target, torch._ops.OpOverload)
    names = [a.name for a in n.target._schema.arguments]
    given: dict[str, Any] = {**dict(zip(names, n.args, strict=False)), **n.kwargs}
    return tuple(given.get(name) for name in names)


def _is_computed(base: Node) -> bool:
    return base.op not in ("placeholder", "get_attr")


def _flat(base: Node) -> Node | None:
    """The elements of a computed value's storage in order; None where they leave gaps."""
    val = base.meta.get("val")
    if not isinstance(val, torch.Tensor) or not _is_zero(offset_of(base)):
        return None
    # The results of a higher-order operator may be views of what it takes.
    call = base.args[0] if base.target is operator.getitem else base
    if isinstance(call, Node) and isinstance(call.target, torch._ops.HigherOrderOperator):
        return None
    order = _order(list(val.shape), list(val.stride()))
    if order is None:
        return None
    flat = base
    if order != list(range(val.dim())):
        flat = _call(aten.permute.default, flat, order)
    return flat if val.dim() == 1 else _call(aten.reshape.default, flat, [-1])


def _order(size: Sequence[Any], stride: Sequence[Any]) -> list[int] | None:
    """The dimensions from outside in, if they fill memory without gaps; None if they do not."""
    dims = list(range(len(size)))
    if all(type(s) is int for s in (*size, *stride)):
        dims.sort(key=lambda d: (-stride[d] if size[d] != 1 else 0, d))
    step: Any = 1
    for d in reversed(dims):
        if not _equal(size[d], 1):
            if not _equal(stride[d], step):
                return None
            step = step * _value(size[d])
    return dims


def _same_view(val: torch.Tensor, size: Any, stride: Any, offset: Any) -> bool:
    if not same_dims([_value(s) for s in size], val.shape):
        return False
    strides = zip(stride, val.stride(), val.shape, strict=True)
    same = all(_equal(a, b) or _equal(s, 1) for a, b, s in strides)
    return same and _equal(offset, val.storage_offset())


def _numel(what: Any) -> Any:
    if isinstance(what, Node):
        return what.meta["val"].numel()
    total: Any = 1
    for s in what:
        total = total * _value(s)
    return total


def _value(s: Any) -> Any:
    return s.meta["val"] if isinstance(s, Node) else s


def _equal(a: Any, b: Any) -> bool:
    return same_dims((_value(a),), (_value(b),))


def _is_zero(offset: Any) -> bool:
    return _equal(offset, 0)


def _numbers(n: Node, value: Any) -> Any:
    """Sizes as a call's arguments; a symbolic one needs a node of its own, which it may lack."""
    if isinstance(value, list):
        return [_numbers(n, v) for v in value]
    if not isinstance(value, torch.SymInt):
        return value
    for m in n.graph.nodes:
        if m is n:
            break
        if isinstance(m.meta.get("val"), torch.SymInt) and _equal(m, value):
            return m
    return value


def _call(target: torch._ops.OpOverload, *args: Any) -> Node:
    return add_call(args[0], target, args, {})
