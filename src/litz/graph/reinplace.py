"""Writes into arguments go back in place.

Functionalisation turns ``x[1].add_(1)`` into a new ``x`` that differs in one row, and a copy of all
of it into ``x`` at the end; ``x.index_put_(..)`` likewise.  Where nothing else needs the old value,
the new one is made in the argument's memory: by a copy into the part that differs, or by the
operator's own in-place form.  The lowering copies what still reads the old value, of itself or
through views, so that only reads of the argument itself stand in the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from litz.graph.aliasing import leaves
from litz.graph.values import give_value, same_dims

aten = torch.ops.aten

# A new value that differs in a part: the view that is this part.
PARTS: Final[dict[Any, torch._ops.OpOverload]] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
# A new value that differs at positions: the form that writes them into the old one.
IN_PLACE: Final[dict[Any, torch._ops.OpOverload]] = {
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
}
# Of these, those that only set elements.
SETS: Final = frozenset(
    {
        aten.scatter.src,
        aten.scatter.value,
        aten.index_copy.default,
        aten.index_fill.int_Scalar,
        aten.index_fill.int_Tensor,
    }
)
EXACT_SUMS: Final = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    }
)
COPY: Final = aten.copy_.default


def write_in_place(gm: GraphModule) -> bool:
    """Undo functionalisation for arguments whose new value differs from the old one in a part."""
    order = {n: k for k, n in enumerate(gm.graph.nodes)}
    changed = False
    for n in list(gm.graph.nodes):
        if n.op != "call_function" or n.target is not COPY or n.users:
            continue
        target, value = n.args[0], n.args[1]
        if isinstance(target, Node) and isinstance(value, Node) and target.op == "placeholder":
            chain = _chain(target, value)
            if chain and _allowed(target, n, chain, order):
                _rewrite(target, n, chain)
                changed = True
    return changed


def _chain(target: Node, value: Node) -> list[Node]:
    """The partial updates, in order, that make ``value`` from ``target``; none if it has others."""
    found: list[Node] = []
    while value is not target:
        base = value.args[0] if value.op == "call_function" and value.args else None
        known = value.target in PARTS or _in_place(value)
        if not known or not isinstance(base, Node) or not _alike(value, target):
            return []
        found.append(value)
        value = base
    return found[::-1]


def _in_place(n: Node) -> bool:
    """Whether the operator's in-place form is as good: where it is lowered, and as exact."""
    if n.target not in IN_PLACE or "mean" in n.args:
        return False
    val = n.meta["val"]
    if n.target is aten.index_put.default:
        indices = [i for i in n.args[1] if isinstance(i, Node)]  # type: ignore[union-attr]
        if any(i.meta["val"].dtype in (torch.bool, torch.uint8) for i in indices):
            return False  # a mask is an elementwise choice
    sums = n.target not in SETS and not (n.target is aten.index_put.default and not _adds(n))
    # Sums of 16-bit floats gather in wider memory; those of others ATen has to make.
    return not sums or val.dtype in EXACT_SUMS


def _adds(n: Node) -> bool:
    return bool(n.kwargs.get("accumulate", n.args[3] if len(n.args) > 3 else False))


def _alike(a: Node, b: Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        return False
    return x.dtype is y.dtype and x.device == y.device and same_dims(x.shape, y.shape)


def _allowed(target: Node, copy: Node, chain: list[Node], order: dict[Node, int]) -> bool:
    """Whether each value has been read for the last time when the next one takes its memory."""
    if any(leaves(n) for n in chain):
        return False
    for old, new in zip((target, *chain), (*chain, copy), strict=True):
        for u in old.users:
            if u is new or u is copy:
                continue
            if u.op == "output" or order[u] > order[new]:
                return False
            if u.target is COPY and u.args[0] is target:
                return False
    return True


def _rewrite(target: Node, copy: Node, chain: list[Node]) -> None:
    copy.graph.erase_node(copy)
    for n in chain:
        with n.graph.inserting_before(n):
            if n.target in PARTS:
                _write(target, n)
            else:
                _add(n, IN_PLACE[n.target], (target, *n.args[1:]), n.kwargs)
        n.replace_all_uses_with(target)
        _erase(n)


def _erase(n: Node) -> None:
    """Erase a call that nobody reads, and what only it has read."""
    read = n.all_input_nodes
    n.graph.erase_node(n)
    for a in read:
        if a.op == "call_function" and not a.users and not a.is_impure():
            _erase(a)


def _write(target: Node, n: Node) -> None:
    """Write what ``n`` puts into a part of its first argument into that part of ``target``.

    What is written may itself be that part of the old value with a part replaced.
    """
    src = n.args[1]
    part = _add(n, PARTS[n.target], (target, *n.args[2:]), n.kwargs)
    assert isinstance(src, Node)
    inner = src.target in PARTS and set(src.users) == {n} and _is_part(src.args[0], n)
    if inner and _alike(src, part):
        _write(part, src)
    else:
        _add(n, COPY, (part, src), {})


def _is_part(old: object, n: Node) -> bool:
    """Whether ``old`` is the part of the first argument of ``n`` that ``n`` replaces."""
    return (
        isinstance(old, Node)
        and old.target is PARTS[n.target]
        and old.args[0] is n.args[0]
        and list(_arguments(old, 1)) == list(_arguments(n, 2))
    )


def _arguments(n: Node, first: int) -> Iterator[object]:
    """All arguments from a position on, with the defaults of those that are not given."""
    assert isinstance(n.target, torch._ops.OpOverload)
    for k, p in enumerate(n.target._schema.arguments[first:], first):
        given = n.args[k] if k < len(n.args) else n.kwargs.get(p.name, p.default_value)
        yield (type(given), given)


def _add(at: Node, target: torch._ops.OpOverload, args: Any, kwargs: Any) -> Node:
    made = at.graph.call_function(target, tuple(args), dict(kwargs))
    made.meta["stack_trace"] = at.meta.get("stack_trace")
    give_value(made)
    return made
