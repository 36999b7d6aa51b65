"""Products and the transfers beside them, in pieces: one piece travels while others are computed.

Tensor parallelism alternates products with transfers that each need all of the other: rows are
gathered and multiplied, or multiplied and their sums reduced, in all processes or scattered over
them.  Cut along the rows that a process sends, piece k is multiplied while piece k + 1 comes, or
reduced while piece k + 1 is multiplied.  A row's product is the same in any piece.

Whether it pays all processes have to decide alike: by sizes, and by rates that are theirs in
common.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.calls import op_name
from litz.graph.values import add_call
from litz.ir.flops import Rates, call_ops
from litz.runtime.collectives import group_name, is_start, is_wait

aten = torch.ops.aten
functional = "_c10d_functional"
VIEWS: Final = (aten.view.default, aten._unsafe_view.default)
PRODUCTS: Final[Mapping[Any, int]] = {aten.mm.default: 0, aten.addmm.default: 1}
"""Operators of products, with the place of the operand whose rows are those of the result."""
COUNTS: Final = (2, 4, 8)
GAIN: Final = 0.95  # of the time of one piece that several may take at most


@dataclass(frozen=True, eq=False)
class Site:
    """A transfer whose rows are made, or read, by products.

    shape: of all rows, as they lie before they are scattered or once they are gathered, dimension
    ``dim`` in equal parts of ``world`` processes.  value: what products read, or what a reduction
    is of.  others: whether something else reads what is gathered.
    """

    start: Node
    wait: Node
    products: tuple[Node, ...]
    shape: tuple[int, ...]
    dim: int
    world: int
    value: Node
    others: bool = False

    @property
    def gathers(self) -> bool:
        return op_name(self.start.target) == "all_gather_into_tensor"

    @property
    def rows(self) -> int:
        """Along ``dim``, of a process."""
        return self.shape[self.dim] // self.world


def pipeline_products(
    gm: GraphModule, rates: Mapping[str, Rates], limits: Mapping[str, int]
) -> list[str]:
    """Cut products with their transfers where it saves time, by estimate; what was decided, a line
    for each transfer between products.

    rates, limits: of each group of processes, the latter the bytes up to which transfers share a
    call, as no two pieces shall (``litz.graph.communicate``).
    """
    said = []
    for n in [n for n in gm.graph.nodes if is_start(n.target)]:
        name = group_name(n.target, n.args, n.kwargs)
        if name in rates and (site := site_of(n)) is not None:
            count, why = _choice(site, rates[name], limits[name])
            said.append(f"{n.name}: {why}")
            if count > 1:
                _gathered(site, count) if site.gathers else _reduced(site, count)
    return said


# --- what is there --------------------------------------------------------------------------


def site_of(start: Node) -> Site | None:
    """What a transfer could be cut with, if it can be."""
    users = [*start.users]
    site = SITES.get(op_name(start.target))
    if site is None or len(users) != 1 or not is_wait(users[0].target) or start.kwargs:
        return None
    known = all(type(s) is int for n in (start, start.args[0]) for s in _value(n).shape)
    return site(start, users[0]) if known and _value(start).numel() else None


def _value(n: Any) -> torch.Tensor:
    value: torch.Tensor = n.meta["val"]
    return value


def _gathering(start: Node, wait: Node) -> Site | None:
    world, shape = int(start.args[1]), [*_value(wait).shape]  # type: ignore[arg-type]
    value, dim = wait, 0
    if len(wait.users) == 1 and (joined := _joined(next(iter(wait.users)), 0, world)) is not None:
        value, dim = joined, joined.args[1] if len(joined.args) > 1 else 0  # type: ignore[assignment]
        shape = [*_value(value).shape]
    dim %= len(shape)
    if len(shape) < 2 or dim == len(shape) - 1:
        return None
    products, others = _readers(value)
    if not products:
        return None
    return Site(start, wait, tuple(products), tuple(shape), dim, world, value, others)


def _reducing(start: Node, wait: Node) -> Site | None:
    value: Any = start.args[0]
    shape = _value(value).shape
    world, dim = 1, 0
    if op_name(start.target) != "all_reduce":
        world = int(start.args[2])  # type: ignore[arg-type]
        if value.target is aten.cat.default and _alone(value):
            parts: Any = value.args[0]
            call = parts[0].args[0] if parts and parts[0].target is operator.getitem else None
            if (
                call is None
                or len(call.args) < 3
                or _joined(call, call.args[2], world) is not value
            ):
                return None
            value, dim = call.args[0], call.args[2]
            shape = _value(value).shape
    n: Any = value
    while n.target in VIEWS and _keeps_rows(n) and _alone(n):
        n = n.args[0]
    if n.target not in PRODUCTS or not _alone(n) or not _cuts(n):
        return None
    if world > 1 and not _value(_left(n)).is_contiguous():
        return None
    rows = tuple(shape) if world > 1 else tuple(_value(n).shape)
    dim %= len(rows)
    if dim == len(rows) - 1 or rows[-1] != _value(n).shape[-1]:
        return None
    return Site(start, wait, (n,), rows, dim, world, value)


SITES: Final = {
    "all_gather_into_tensor": _gathering,
    "all_reduce": _reducing,
    "reduce_scatter_tensor": _reducing,
}


def _joined(call: Node, dim: Any, world: int) -> Node | None:
    """The concatenation of all parts of a split along ``dim`` into ``world`` parts, in order."""
    if call.target is not aten.split.Tensor or len(call.users) != world:
        return None
    size, along = call.args[1], call.args[2] if len(call.args) > 2 else 0
    parts = sorted(call.users, key=lambda p: int(p.args[1]))  # type: ignore[arg-type]
    whole = _value(call.args[0]).shape[along] == size * world  # type: ignore[index, operator]
    readers = {user for p in parts for user in p.users}
    if along != dim or not whole or not all(map(_alone, parts)) or len(readers) != 1:
        return None
    (cat,) = readers
    return cat if cat.target is aten.cat.default and cat.args[0] == parts else None


def _readers(value: Node) -> tuple[list[Node], bool]:
    """The products of a value's rows, in order, and whether something else reads it."""
    products, others, left = [], False, [value]
    for n in left:
        for user in n.users:
            if user.target in VIEWS and _keeps_rows(user):
                left.append(user)
            elif user.target in PRODUCTS and _cuts(user) and _left(user) is n and _once(user, n):
                products.append(user)
            else:
                others = True
    return sorted(products), others


def _keeps_rows(view: Node) -> bool:
    return _value(view).shape[-1:] == _value(view.args[0]).shape[-1:]


def _alone(n: Node) -> bool:
    return len(n.users) == 1


def _once(n: Node, of: Node) -> bool:
    return sum(a is of for a in n.args) == 1


def _left(product: Node) -> Any:
    return product.args[PRODUCTS[product.target]]


def _cuts(product: Node) -> bool:
    """Whether rows of a product need those of its left operand alone."""
    plain = {"alpha", "beta"}.issuperset(product.kwargs)
    return plain and (len(product.args) == 2 or _value(product.args[0]).dim() == 1)


# --- what pays ------------------------------------------------------------------------------


def _seconds(n: Node, rates: Rates) -> float:
    """Of a product, a convolution or attention; 0 of what moves data alone."""

    def shape(n: Node) -> Any:
        return getattr(n.meta.get("val"), "shape", None)

    args, kwargs = torch.fx.map_arg((n.args, n.kwargs), shape)
    return call_ops(n.target, args, kwargs, shape(n)) / rates.operations


def _hidden(start: Node, rates: Rates) -> float:
    """Seconds of what runs beside a transfer as it is, between those before and behind it.

    That is what the transfer does not need, and what does not need it.
    """
    near = [start]
    while (n := near[0].prev).op == "call_function" and not is_start(n.target):
        near.insert(0, n)
    while (n := near[-1].next).op == "call_function" and not is_start(n.target):
        near.append(n)
    needed, made = {start}, {start}
    for n in reversed(near):
        if n in needed:
            needed.update(n.all_input_nodes)
    for n in near:
        if not made.isdisjoint(n.all_input_nodes):
            made.add(n)
    return sum(_seconds(n, rates) for n in near if n not in needed and n not in made)


def _choice(site: Site, rates: Rates, limit: int) -> tuple[int, str]:
    """In how many pieces a transfer and its products take the least time, and why."""
    sizes = [v.numel() * v.element_size() for v in (_value(site.start.args[0]), _value(site.wait))]
    sent = max(sizes) * (2 if op_name(site.start.target) == "all_reduce" else 1)
    compute, beside = sum(_seconds(p, rates) for p in site.products), _hidden(site.start, rates)

    def transfer(count: int) -> float:
        return rates.latency + sent / count / rates.bandwidth

    copied = _copied(site)
    whole = compute + max(0.0, transfer(1) - beside)
    times = {}
    for count in COUNTS:
        if site.rows % count or 2 * max(sizes) <= count * limit:
            continue
        c = compute / count + rates.launch * len(site.products)
        t = transfer(count)
        copies = 2 * copied / rates.memory + count * rates.launch
        times[count] = c + (count - 1) * max(c, t) + max(0.0, t - beside) + copies
    best = min(times, key=times.__getitem__, default=1)
    estimate = f"{1e6 * compute:.0f} us of products, {1e6 * transfer(1):.0f} us of transfer"
    if beside:
        estimate += f" beside {1e6 * beside:.0f} us of others"
    if not times:
        return 1, f"in one piece: {estimate}, too small to cut"
    saved = f"{1e6 * whole:.0f} -> {1e6 * times[best]:.0f} us"
    if times[best] > GAIN * whole:
        return 1, f"in one piece: {estimate}, {saved} in {best} pieces"
    return best, f"in {best} pieces: {estimate}, {saved}"


def _copied(site: Site) -> int:
    """Bytes of what is put together of pieces, and of what is cut out for them."""
    moved = [] if site.dim == 0 and (site.gathers or site.world == 1) else [_sent(site)]
    if site.gathers:
        moved += [*site.products, *[site.wait] * site.others]
    else:
        moved.append(site.wait)
    return sum(_value(n).numel() * _value(n).element_size() for n in moved)


def _sent(site: Site) -> Node:
    """What pieces are cut out of."""
    found: Node = site.start.args[0] if site.gathers else _left(site.products[0])  # type: ignore[assignment]
    return found


# --- cutting --------------------------------------------------------------------------------


def _pieces(site: Site, count: int, rows: Node, dim: int, first: int) -> list[Node]:
    """Equal slices along a dimension, each with its dimension ``first`` at the front, row-major."""
    size, found = site.rows // count, []
    for k in range(count):
        piece = add_call(site.start, aten.slice.Tensor, (rows, dim, k * size, (k + 1) * size), {})
        if first:
            order = [first, *(d for d in range(_value(piece).dim()) if d != first)]
            piece = add_call(site.start, aten.permute.default, (piece, order), {})
        if site.world > 1 and not _value(piece).is_contiguous():
            form = {"memory_format": torch.contiguous_format}
            piece = add_call(site.start, aten.clone.default, (piece,), form)
        found.append(piece)
    return found


def _again(product: Node, rows: Node) -> Node:
    """A product of other rows."""
    args = [*product.args]
    args[PRODUCTS[product.target]] = rows
    return add_call(product, product.target, args, product.kwargs)


def _view(at: Node, value: Node, shape: Iterable[int]) -> Node:
    return add_call(at, aten.view.default, (value, [*shape]), {})


def _reduced(site: Site, count: int) -> None:
    """Products whose sums go to one process, or to all."""
    graph, (product,) = site.start.graph, site.products
    *outer, width = site.shape
    d, world, size = site.dim, site.world, site.rows // count
    started = []
    with graph.inserting_before(site.start):
        rows, depth = _left(product), _value(_left(product)).shape[-1]
        if world > 1:
            rows = _view(site.start, rows, (*outer[:d], world, site.rows, *outer[d + 1 :], depth))
            rows_of = _pieces(site, count, rows, d + 1, d)
        else:
            rows_of = _pieces(site, count, rows, 0, 0)
        inner = [*outer[:d], size, *outer[d + 1 :], width]
        inner[0] *= world
        for piece in rows_of:
            flat = _view(site.start, piece, (prod(inner[:-1]), depth)) if world > 1 else piece
            sums = _view(site.start, _again(product, flat), inner)
            args = (sums, *site.start.args[1:])
            started.append(add_call(site.start, site.start.target, args, {}))
    with graph.inserting_before(site.wait):
        waited = [add_call(site.wait, site.wait.target, (n,), {}) for n in started]
        whole = add_call(site.wait, aten.cat.default, (waited, d), {})
        whole = _view(site.wait, whole, _value(site.wait).shape)
    site.wait.replace_all_uses_with(whole)
    _erase(site.wait)


def _gathered(site: Site, count: int) -> None:
    """Products of what comes from all processes."""
    graph, d, world = site.start.graph, site.dim, site.world
    *outer, _ = site.shape
    size = site.rows // count
    with graph.inserting_before(site.start):
        parts = _pieces(site, count, _sent(site), d, 0)
        started = [
            add_call(site.start, site.start.target, (p, *site.start.args[1:]), {}) for p in parts
        ]
    waited: list[Node] = []

    def piece(k: int, at: Node) -> Node:
        if k == len(waited):
            waited.append(add_call(at, site.wait.target, (started[k],), {}))
        return waited[k]

    def whole(at: Node, of: Callable[[Node], Node], shape: Sequence[int]) -> Node:
        """What is made of the pieces' rows, in the order of the whole."""
        inner = [world, *outer[:d], size, *outer[d + 1 :], shape[-1]]
        order = [*range(1, d + 1), 0, *range(d + 1, len(inner))]
        found = []
        for k in range(count):
            apart = _view(at, of(piece(k, at)), inner)
            found.append(add_call(at, aten.permute.default, (apart, order), {}) if d else apart)
        return _view(at, add_call(at, aten.cat.default, (found, d + 1), {}), shape)

    first = site.value.next
    if site.others:  # what else reads it may come before the products
        with graph.inserting_before(first):
            value = whole(site.value, lambda rows: rows, site.shape)
    for product in site.products:
        depth, shape = _value(_left(product)).shape[-1], _value(product).shape

        def multiplied(rows: Node, product: Node = product, depth: int = depth) -> Node:
            flat = _view(product, rows, (_value(rows).numel() // depth, depth))
            return _again(product, flat)

        with graph.inserting_before(product):
            product.replace_all_uses_with(whole(product, multiplied, shape))
        _erase(product)
    if site.others:
        site.value.replace_all_uses_with(value)
        _erase(site.value)


def _erase(n: Node) -> None:
    """Erase a call that nothing reads any more, and what alone it read of a site."""
    left = [n]
    while left:
        n = left.pop()
        part = n.target in (*VIEWS, *PRODUCTS, aten.cat.default, aten.split.Tensor)
        ours = (
            part or n.target is operator.getitem or getattr(n.target, "namespace", "") == functional
        )
        if ours and not n.users and n.op == "call_function":
            left += n.all_input_nodes
            n.graph.erase_node(n)
