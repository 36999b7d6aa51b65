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

from litz.graph.aliasing import HIDDEN, is_view_op, leaves, viewed
from litz.graph.calls import argument, in_place_form, takes_objects
from litz.graph.values import add_call, give_value, same_dims, same_value

aten = torch.ops.aten

# A new value that differs in a part: the view that is this part.
PARTS: Final[dict[Any, torch._ops.OpOverload]] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
# A new value that differs at positions, which the in-place form writes into the old one.
AT_POSITIONS: Final = frozenset({
    aten.index_put.default, aten.scatter.src, aten.scatter.value, aten.scatter_add.default,
    aten.scatter_reduce.two, aten.index_add.default, aten.index_copy.default,
    aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.index_reduce.default,
    aten.scatter.reduce, aten.scatter.value_reduce, aten.put.default,
})  # fmt: skip
# Of these, those that only set elements.
SETS: Final = frozenset({
    aten.scatter.src, aten.scatter.value, aten.index_copy.default, aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
})  # fmt: skip
# Of these, those that set elements unless they are told to add.
PUTS: Final = frozenset({aten.index_put.default, aten.put.default})
EXACT_SUMS: Final = frozenset({
    torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
})  # fmt: skip
# Of these one undoes another where the shape is that of before.
RESHAPES: Final = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default})
COPY: Final = aten.copy_.default


def _copies(gm: GraphModule) -> Iterator[tuple[Node, Node, Node]]:
    """Calls that copy a new value into an argument, with the argument and the value."""
    for n in gm.graph.find_nodes(op="call_function", target=COPY):
        target, value = n.args[0], n.args[1]
        if isinstance(target, Node) and isinstance(value, Node) and target.op == "placeholder":
            yield n, target, value


def read_what_was_written(gm: GraphModule) -> bool:
    """Behind the copy into an argument, read the argument and not the new value.

    PyTorch takes the offset and strides of returned views of the new value for those of views of
    the argument, so that they have to be just that.  It makes most of them behind the copy.
    """
    order = {n: k for k, n in enumerate(gm.graph.nodes)}
    changed = False
    for n, target, value in _copies(gm):
        if not same_value(target.meta.get("val"), value.meta.get("val"), idle=False):
            continue
        for u in list(value.users):
            if order[u] > order[n]:
                u.replace_input_with(value, target)
                _look_again(u)
                changed = True
        changed |= _return_views(gm, target, value)
    return changed


def _look_again(n: Node) -> None:
    """Compute the value of a view, and of views of it, anew: what it views has been replaced."""
    if _viewed(n) is not None:
        give_value(n)
        for u in n.users:
            _look_again(u)


def _return_views(gm: GraphModule, target: Node, value: Node) -> bool:
    """Views of a new value that are returned, though made before the copy: likewise."""
    if all(_viewed(u) is None for u in value.users):
        return False
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    changed = False
    for r in output.all_input_nodes:
        steps: list[Node] = []
        n = r
        while n is not value and (source := _viewed(n)) is not None:
            steps.append(n)
            n = source
        if n is not value or not steps:
            continue
        with gm.graph.inserting_before(output):
            made = target
            for step in reversed(steps):
                made = add_call(step, step.target, (made, *step.args[1:]), step.kwargs)
        output.replace_input_with(r, made)
        changed = True
    return changed


def _viewed(n: Node) -> Node | None:
    """What is viewed, by the schemas: by those PyTorch knows the views among the results."""
    return None if n.target is HIDDEN else viewed(n)


def write_in_place(gm: GraphModule) -> bool:
    """Undo functionalisation for arguments whose new value differs from the old one in a part."""
    changed = False
    for n, target, value in _copies(gm):
        first, chain = _chain(target, value)
        if not chain:
            continue
        order = {n: k for k, n in enumerate(gm.graph.nodes)}
        if _allowed(target, n, chain, order):
            _rewrite(target, n, first, chain)
            changed = True
    if changed:
        _sweep(gm)
    return changed


def _sweep(gm: GraphModule) -> None:
    """Erase what only the updates read that are gone."""
    for n in reversed(gm.graph.nodes):
        if isinstance(n.target, torch._ops.OpOverload) and not n.users:
            if not (n.is_impure() or takes_objects(n.target)):
                gm.graph.erase_node(n)


def _chain(target: Node, value: Node) -> tuple[Node, list[Node]]:
    """What ``value`` is made from by partial updates, and these in order (perhaps none).

    That is ``target``, or a value that is worth a copy into ``target`` before updates at positions,
    which need memory to update.
    """
    found: list[Node] = []
    while value is not target and _alike(value, target):
        base = _base(value)
        if base is None:
            break
        found.append(value)
        value = base
    found.reverse()
    while value is not target and found and not _at_positions(found[0]):
        value = found.pop(0)
    return (value, found) if _alike(value, target) else (target, [])


def _at_positions(n: Node) -> bool:
    """Whether an update is one at positions, as it is or through a view."""
    return _in_place(n) or any(_in_place(m) for m in _inside(n))


def _base(value: Node) -> Node | None:
    """What ``value`` is a partial update of."""
    if value.op != "call_function" or not value.args:
        return None
    inside = _inside(value)
    base = inside[0].args[0] if inside else value.args[0]
    known = inside or value.target in PARTS or _in_place(value)
    return base if known and isinstance(base, Node) else None


def _inside(value: Node) -> list[Node]:
    """Of ``value`` that undoes a view: that view, and the updates of it, in order; else nothing.

    Writes through ``x.t()`` update ``t(x)``, of which ``t`` is the new ``x``.
    """
    undone = value.args[0]
    found: list[Node] = []
    while isinstance(undone, Node) and undone.op == "call_function":
        found.append(undone)
        if undone.target not in PARTS and not _in_place(undone):
            inverse = len(found) > 1 and _is_inverse(value, undone)
            return found[::-1] if inverse else []
        if len(undone.users) > 1:
            return []
        undone = undone.args[0]
    return []


def _is_inverse(a: Node, b: Node) -> bool:
    """Whether ``a`` gives the elements that ``b`` views the shape they had."""
    if a.target in RESHAPES and b.target in RESHAPES:
        return True
    if a.target is aten.t.default or a.target is aten.transpose.int:
        return b.target is a.target and b.args[1:] == a.args[1:]
    if a.target is aten.permute.default and b.target is a.target:
        old, new = b.args[1], a.args[1]
        rank = len(new)  # type: ignore[arg-type]
        back = [old[d % rank] % rank for d in new]  # type: ignore
        return back == list(range(rank))
    pair = {aten.squeeze.dim, aten.unsqueeze.default}
    return {a.target, b.target} == pair and a.args[1] == b.args[1]


def _in_place(n: Node) -> bool:
    """Whether the operator's in-place form is as good: where it is lowered, and as exact."""
    if n.target not in AT_POSITIONS or "mean" in n.args:
        return False
    val = n.meta["val"]
    if n.target is aten.index_put.default:
        indices = [i for i in n.args[1] if isinstance(i, Node)]  # type: ignore[union-attr]
        if any(i.meta["val"].dtype in (torch.bool, torch.uint8) for i in indices):
            return False  # a mask is an elementwise choice
    sums = n.target not in SETS and not (n.target in PUTS and not _adds(n))
    # Sums of 16-bit floats gather in wider memory; those of others ATen has to make.
    return not sums or val.dtype in EXACT_SUMS


def _adds(n: Node) -> bool:
    return bool(argument(n, 3, "accumulate", False))


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
            if order[u] > order[copy] and (old is target or new is copy):
                continue  # it reads the last value
            if u.op == "output" or order[u] > order[new]:
                return False
            if u.target is COPY and u.args[0] is target:
                return False
    return True


def _rewrite(target: Node, copy: Node, first: Node, chain: list[Node]) -> None:
    # Asked of the functional graph, in which equal reads are reads of one value.
    nested = frozenset(m for n in chain for m in _nested(n))
    copy.replace_all_uses_with(target)
    copy.graph.erase_node(copy)
    if first is not target:
        with first.graph.inserting_before(chain[0]):
            add_call(chain[0], COPY, (target, first), {})
    for n in chain:
        with n.graph.inserting_before(n):
            inside = _inside(n)
            if inside:
                opened, *updates = inside
                for update in updates:
                    # A view for each: to the lowering one made before a write shows what was then.
                    view = add_call(n, opened.target, (target, *opened.args[1:]), opened.kwargs)
                    _write(view, update, nested)
            else:
                _write(target, n, nested)
        n.replace_all_uses_with(target)
        n.graph.erase_node(n)


def _nested(n: Node) -> Iterator[Node]:
    """What ``n`` writes into a part, where that is itself an update of this part's old value."""
    for update in _inside(n)[1:] or [n]:
        while update.target in PARTS:
            src = update.args[1]
            assert isinstance(src, Node)
            known = src.target in PARTS or _in_place(src)
            if not known or len(src.users) > 1 or not _is_part(src.args[0], update):
                break
            yield src
            update = src


def _write(target: Node, n: Node, nested: frozenset[Node]) -> None:
    """Update ``target`` in place as ``n`` updates its first argument."""
    if n.target not in PARTS:
        assert isinstance(n.target, torch._ops.OpOverload)
        add_call(n, in_place_form(n.target), (target, *n.args[1:]), n.kwargs)
        return
    src = n.args[1]
    part = add_call(n, PARTS[n.target], (target, *n.args[2:]), n.kwargs)
    assert isinstance(src, Node)
    if src in nested and _alike(src, part):
        _write(part, src, nested)
    else:
        add_call(n, COPY, (part, src), {})


def _is_part(old: object, n: Node) -> bool:
    """Whether ``old`` is the part of the first argument of ``n`` that ``n`` replaces."""
    return (
        isinstance(old, Node)
        and old.target is PARTS[n.target]
        and _equal(old.args[0], n.args[0])
        and list(_arguments(old, 1)) == list(_arguments(n, 2))
    )


def _equal(a: object, b: object) -> bool:
    """Whether two nodes are one value, or equal views of one."""
    while a is not b:
        if not (isinstance(a, Node) and isinstance(b, Node) and a.target is b.target):
            return False
        if not is_view_op(a.target) or list(_arguments(a, 1)) != list(_arguments(b, 1)):
            return False
        a, b = a.args[0], b.args[0]
    return True


def _arguments(n: Node, first: int) -> Iterator[object]:
    """All arguments from a position on, with the defaults of those that are not given."""
    assert isinstance(n.target, torch._ops.OpOverload)
    for k, p in enumerate(n.target._schema.arguments[first:], first):
        given = argument(n, k, p.name, p.default_value)
        yield (type(given), given)
