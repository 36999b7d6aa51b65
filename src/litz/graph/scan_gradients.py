"""Gradients of ``associative_scan`` and ``cumprod`` as scans in reverse, in place of PyTorch's.

PyTorch's (2.13) leave out what a part of a state has from another part's gradient, without a word,
and take memory of the length squared.  Of states y[t] = f(y[t-1], x[t]), with f's derivatives J by
y and K by x at t, and gradients g of what is returned:

    l[t] = g[t] + J[t+1]' l[t+1],    the gradient of x[t] is K[t]' l[t], of x[0] it is l[0].

J and K are pointwise.  A scan over pairs (J', g) gives l: of each set of parts that depend on each
other one scan, its matrices without what is zero whatever the numbers are.

``cumprod``'s, y[t] = y[t-1] x[t], is that with J = x: y[t-1] l[t], zeros included.  PyTorch's,
traced, has several calls for each element of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import statically_known_true

from litz.graph.values import same_dims
from litz.runtime.torch_private import in_transform

SCAN: Any = torch.ops.higher_order.associative_scan
Matrix = dict[tuple[int, int], Tensor]
Places = tuple[tuple[int, int], ...]


def differentiate_scans(gm: GraphModule) -> None:
    """Give scans of Dynamo's graph gradients of their own, before AOTAutograd differentiates."""
    changed = _differentiate_products(gm)
    for n in gm.graph.find_nodes(op="call_function", target=SCAN):
        values = [a.meta.get("example_value") for a in n.args[1]]
        if n.args[2] or not all(isinstance(v, Tensor) and not v.is_complex() for v in values):
            continue
        if any(v.requires_grad for v in values):
            n.target = _scan
            changed = True
    if changed:
        gm.recompile()


def _differentiate_products(gm: GraphModule) -> bool:
    changed = False
    for n in gm.graph.nodes:
        if n.op == "placeholder" or n.target not in (torch.cumprod, "cumprod") or "out" in n.kwargs:
            continue
        value = n.args[0].meta.get("example_value") if n.args else None
        if not isinstance(value, Tensor) or not value.requires_grad or value.is_complex():
            continue
        if value.ndim and (len(n.args) > 1 or "dim" in n.kwargs):
            n.op, n.target, changed = "call_function", _cumprod, True
    return changed


def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    # Names, what functorch differentiates, and no elements are PyTorch's.
    if isinstance(dim, str) or in_transform() or any(same_dims((n,), (0,)) for n in x.shape):
        return torch.cumprod(x, dim, dtype=dtype)
    return _Cumprod.apply(x if dtype is None else x.to(dtype), dim)  # type: ignore[no-untyped-call]


class _Cumprod(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        y = torch.cumprod(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        wide = torch.promote_types(grad.dtype, torch.float32)
        x, y, g = (t.movedim(ctx.dim, 0).to(wide) for t in (*ctx.saved_tensors, grad))
        count = x.shape[0]
        if not statically_known_true(count > 0):  # no scan is of nothing: one more that is zero
            x, g = _padded(x, behind=1), _padded(g, behind=1)
        (behind,) = _linear({(0, 0): x[1:]}, [g])
        found = _padded(y, before=1, value=1)[:count] * behind[:count]
        return found.movedim(0, ctx.dim).to(grad.dtype), None


def _scan(function: Callable[..., Any], xs: Sequence[Tensor], _captured: Any) -> Any:
    return _Scan.apply(function, *xs)  # type: ignore[no-untyped-call]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *xs: Tensor) -> tuple[Tensor, ...]:
        ys = tuple(SCAN(function, xs, ()))
        ctx.function = function
        ctx.save_for_backward(*xs, *ys)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(y for y in ys if not y.is_floating_point()))
        return ys

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        count = len(grads)
        saved = ctx.saved_tensors
        return None, *_gradients(ctx.function, saved[:count], saved[count:], grads)


def _gradients(
    function: Callable[..., Any],
    xs: Sequence[Tensor],
    ys: Sequence[Tensor],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradient of each part; None of one that has none."""
    known = dict(enumerate(grads))
    given = [g for g in grads if g is not None]
    if not given:
        return [None] * len(xs)
    earlier, later = [y[:-1] for y in ys], [x[1:] for x in xs]
    by_state, by_element = _derivatives(function, earlier, later, given[0])
    for part in _sets(by_state, [i for i, g in known.items() if g is not None]):
        last = [known[i] if known[i] is not None else torch.zeros_like(ys[i]) for i in part]
        inner = {(part.index(j), part.index(i)): d for (i, j), d in by_state.items() if i in part}
        known.update(zip(part, _linear(inner, last), strict=True))  # type: ignore[arg-type]
    out: list[Tensor | None] = []
    for j in range(len(xs)):
        behind = ((d, known[i]) for (i, k), d in by_element.items() if k == j)
        terms = [_padded(d * g[1:], before=1) for d, g in behind if g is not None]
        first = known[j]
        if first is not None:
            terms.append(_padded(first[:1], behind=len(first) - 1))
        out.append(_sum(terms))
    return out


def _padded(x: Tensor, before: int = 0, behind: int = 0, value: int = 0) -> Tensor:
    """With zeros, or another number, along the first dimension, which fuse as no ``cat`` does."""
    around = (*(0 for _ in range(2 * x.ndim - 2)), before, behind)
    return torch.constant_pad_nd(x, around, value)


def _sum(terms: Sequence[Tensor]) -> Tensor | None:
    return reduce(torch.add, terms) if terms else None


def _derivatives(
    function: Callable[..., Any],
    earlier: Sequence[Tensor],
    later: Sequence[Tensor],
    like: Tensor,
) -> tuple[Matrix, Matrix]:
    """By (i, j): of result i by part j of the earlier state, and of the later one.

    like: a gradient: what is made like it belongs to the backward graph.
    """
    count = len(earlier)
    with torch.enable_grad():
        given = [x.detach().requires_grad_(x.is_floating_point()) for x in (*earlier, *later)]
        own = [(k, x) for k, x in enumerate(given) if x.requires_grad]
        results = function(*given)
        found: tuple[Matrix, Matrix] = ({}, {})
        for i, y in enumerate(results):
            if not y.requires_grad:
                continue
            one = like.new_ones((), dtype=y.dtype).expand_as(y)
            slopes = torch.autograd.grad(
                y, [x for _, x in own], one, retain_graph=True, allow_unused=True
            )
            for (k, _), slope in zip(own, slopes, strict=True):
                if slope is not None:
                    found[k // count][i, k % count] = slope.detach()
    return found


def _sets(by_state: Matrix, wanted: Sequence[int]) -> list[list[int]]:
    """Parts with a gradient of a state before, in sets that depend on each other."""
    reached = set(wanted)
    while more := {j for i, j in by_state if i in reached} - reached:
        reached |= more
    sets = [{i} for i in reached]
    for i, j in by_state:
        if i in reached:
            one, other = (next(s for s in sets if k in s) for k in (i, j))
            if one is not other:
                sets.remove(other)
                one |= other
    inner = {i for i, _ in by_state}
    return [sorted(s) for s in sorted(sets, key=min) if s & inner]


def _linear(matrix: Matrix, given: Sequence[Tensor]) -> list[Tensor]:
    """l[t] = g[t] + M[t+1] l[t+1], from the end."""
    count = len(given)
    places = set(matrix)
    while more := {(i, k) for i, j in places for n, k in places if n == j} - places:
        places |= more
    order = tuple(sorted(places))
    rows = [
        _padded(matrix[p], behind=1) if p in matrix else torch.zeros_like(given[0]) for p in order
    ]
    elements = tuple(x.flip(0) for x in (*rows, *given))
    combine = partial(_behind, order, count)
    found = SCAN(combine, elements, ())
    return [x.flip(0) for x in found[len(order) :]]


def _behind(order: Places, count: int, *given: Tensor) -> tuple[Tensor, ...]:
    """Two maps l -> M l + v one behind the other."""
    size = len(order)
    first, later = given[: size + count], given[size + count :]
    m, n = (dict(zip(order, some, strict=False)) for some in (first, later))
    v, w = first[size:], later[size:]
    products = [
        _sum([n[i, k] * m[k, j] for k in range(count) if (i, k) in n and (k, j) in m])
        for i, j in order
    ]
    moved = [
        _sum([w[i], *(n[i, j] * v[j] for j in range(count) if (i, j) in n)]) for i in range(count)
    ]
    zeros = (torch.zeros_like(v[0]) if p is None else p for p in products)  # sums of no products
    return (*zeros, *moved)  # type: ignore[arg-type]
