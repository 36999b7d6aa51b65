"""Reductions: sums, extremes and where they are, norms, moments.

16-bit floats accumulate in f32 and are rounded once.  Reductions that share their input are stored
by one loop nest (``reduce_many``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.index import Const, Expr, min_, var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Store, op
from litz.ir.dtype import DType
from litz.ir.ops import op as op_row
from litz.ir.reductions import reduction, result_of
from litz.lowering import values
from litz.lowering.context import Builder, Unsupported
from litz.lowering.pointwise import k, to_dtype, truth
from litz.lowering.registry import Call, lower
from litz.lowering.torch_types import from_torch
from litz.lowering.values import ONE, ZERO, Shape, TensorValue, axes, contiguous_strides, linear

aten = torch.ops.aten

Dims = int | Sequence[int] | None
# (elements, reduced variables, variables of the result) -> results
ReduceFn = Callable[[tuple[Node, ...], tuple[Expr, ...], tuple[Expr, ...]], tuple[Node, ...]]

# A lazy input of a lowering that reads it in several passes is stored if an element costs more than
# this many additions, or more than SHARED_LOADS loads.
SHARED_COST = 10
SHARED_LOADS = 3


# --- what the families of multi-pass lowerings share ---------------------------------------------


def dims_of(v: TensorValue, dim: Dims) -> list[int]:
    """Reduced dimensions in ascending order; None and an empty list mean all."""
    if dim is None:
        return list(range(v.ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted({x % v.ndim for x in dims}) if dims and v.ndim else list(range(v.ndim))


def fold(kind: str, over: tuple[Expr, ...], node: Node) -> Node:
    """``node`` reduced over the variables ``over``, of which there may be none."""
    if over:
        return body.reduce(kind, over, node)
    if reduction(kind).positional:
        return body.const(d.I64, 0)
    if result_of(kind).part == "m2":
        diff = op("sub", node, node)  # inf and nan spread as through (x - mean)**2
        return op("mul", diff, diff)
    if kind == "sum" and node.dtype.is_float:
        return op("add", node, body.const(node.dtype, 0))  # a sum of -0.0 alone is 0.0
    return node


def number(dtype: DType, value: Expr | int) -> Node:
    """A count as a node of ``dtype``."""
    if isinstance(value, Const):
        value = value.value
    if isinstance(value, Expr):
        return body.cast(body.index(value), dtype)
    return body.const(dtype, value)


def count(v: TensorValue, dims: Sequence[int]) -> Expr:
    """How many elements a reduction over ``dims`` combines."""
    return values.product([v.shape[k] for k in dims])


def wide(b: Builder, v: TensorValue) -> TensorValue:
    """The tensor in the type that arithmetic runs in."""
    return v if v.dtype.opmath is v.dtype else v.with_node(b.opmath(v.node))


def shared(b: Builder, v: TensorValue) -> TensorValue:
    """The tensor, stored if it would be costly to compute in each pass over it.

    Only what varies along every dimension counts: the rest is computed once a row, or column.
    """
    if v.lazy is None:
        return v
    own = [a for a in axes(v.shape) if a is not ZERO]
    cost = loads = 0
    for n in body.walk((v.lazy,)):
        if all(a in n.vars for a in own):
            cost += op_row(n.name).cost if isinstance(n, body.Op) else 0
            loads += isinstance(n, body.Load)
    return b.keep(v) if cost > SHARED_COST or loads > SHARED_LOADS else v


def narrow(v: TensorValue, dtype: DType) -> TensorValue:
    """A computed value in the type of a result."""
    return v if v.dtype is dtype else v.with_node(body.cast(v.node, dtype))


def spread(v: TensorValue, shape: Shape, dims: Sequence[int]) -> Node:
    """``v``, whose dimensions are ``dims`` of ``shape``, as an element over ``axes(shape)``."""
    own = axes(shape)
    return v.at([ZERO if s is ONE else own[k] for k, s in zip(dims, v.shape, strict=True)])


def reduce_many(
    b: Builder,
    tensors: Sequence[TensorValue],
    dims: Sequence[int],
    fn: ReduceFn,
    *,
    keepdim: bool = False,
) -> tuple[TensorValue, ...]:
    """Several reductions of tensors of one shape over ``dims``, all stored by one loop nest."""
    first = tensors[0]
    kept = [i for i in range(first.ndim) if i not in dims]
    shape = tuple(first.shape[i] for i in kept)
    own = axes(shape)
    index = values.at_dims(first.ndim, kept, own)
    over: list[Expr] = []
    for old in dims:
        if first.shape[old] is not ONE:
            index[old] = var(f"r{len(over)}", first.shape[old])
            over.append(index[old])
    nodes = fn(tuple(t.at(index) for t in tensors), tuple(over), own)
    out_shape = tuple(ONE if i in dims else s for i, s in enumerate(first.shape))
    stores, results = [], []
    for node in nodes:
        buf = b.new_buffer(node.dtype, shape, contiguous_strides(shape), first.device)
        stores.append(Store(buf.name, linear(own, buf.strides), node))
        out = b.of_buffer(buf)
        if keepdim:
            out = values.strided(out, out_shape, contiguous_strides(out_shape), ZERO)
        results.append(out)
    b.add_loops(own, tuple(over), tuple(stores), first.device)
    return tuple(results)


def reduce_one(
    b: Builder,
    v: TensorValue,
    dims: Sequence[int],
    fn: Callable[[Node, tuple[Expr, ...]], Node],
    keepdim: bool = False,
) -> TensorValue:
    """One stored reduction: ``fn`` of the element and the reduced variables."""
    return reduce_many(b, [v], dims, lambda n, over, _: (fn(n[0], over),), keepdim=keepdim)[0]


# --- sums ----------------------------------------------------------------------------------------


def _into(b: Builder, node: Node, dtype: DType) -> Node:
    """An element as ATen converts it to a sum's dtype, in the type that accumulates."""
    return b.opmath(b.user_cast(node, dtype))


def _wanted(ctx: Call, dtype: torch.dtype | None) -> DType:
    if dtype is None:
        return ctx.dtype
    found = from_torch(dtype)
    if found is None:
        raise Unsupported(f"a sum in {dtype}")
    return found


def _reduction(
    ctx: Call,
    x: TensorValue,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
    fn: Callable[[Node, tuple[Expr, ...]], Node],
) -> TensorValue:
    to = _wanted(ctx, dtype)

    def full(node: Node, over: tuple[Expr, ...]) -> Node:
        return body.cast(fn(_into(ctx.b, node, to), over), ctx.dtype)

    return reduce_one(ctx.b, x, dims_of(x, dim), full, keepdim)


@lower(aten.sum.default, aten.sum.dim_IntList)
def sum_(
    ctx: Call, x: TensorValue, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    return _reduction(ctx, x, dim, keepdim, dtype, lambda n, over: _sum(over, n))


def _sum(over: tuple[Expr, ...], n: Node) -> Node:
    return fold("any" if n.dtype is d.BOOL else "sum", over, n)


@lower(aten.trace.default)
def trace(ctx: Call, x: TensorValue) -> TensorValue:
    rows, columns = x.shape
    size = min_(rows, columns)
    i = axes((size,))[0]
    at = [ZERO if s is ONE else i for s in x.shape]
    return sum_(ctx, values.viewed(x, (size,), at))


@lower(aten.nansum.default)
def nansum(
    ctx: Call, x: TensorValue, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    def fn(n: Node, over: tuple[Expr, ...]) -> Node:
        known = op("where", op("isnan", n), k(n, 0), n) if n.dtype.is_float else n
        return _sum(over, known)

    return _reduction(ctx, x, dim, keepdim, dtype, fn)


@lower(aten.mean.default, aten.mean.dim)
def mean(
    ctx: Call, x: TensorValue, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    size = count(x, dims_of(x, dim))

    def fn(n: Node, over: tuple[Expr, ...]) -> Node:
        return op("div", fold("sum", over, n), number(n.dtype, size))

    return _reduction(ctx, x, dim, keepdim, dtype, fn)


@lower(aten.prod.default, aten.prod.dim_int)
def prod(
    ctx: Call, x: TensorValue, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    return _reduction(ctx, x, dim, keepdim, dtype, lambda n, over: _product(over, n))


def _product(over: tuple[Expr, ...], n: Node) -> Node:
    return fold("all" if n.dtype is d.BOOL else "prod", over, n)


# --- truth ---------------------------------------------------------------------------------------


def _truths(kind: str) -> Callable[..., TensorValue]:
    def lowered(ctx: Call, x: TensorValue, dim: Dims = None, keepdim: bool = False) -> TensorValue:
        if isinstance(dim, Sequence) and not dim:  # over no dimensions
            elements = wide(ctx.b, x)
            return x.with_node(body.cast(truth(elements.node), ctx.dtype))

        def fn(n: Node, over: tuple[Expr, ...]) -> Node:
            return body.cast(fold(kind, over, truth(n)), ctx.dtype)

        return reduce_one(ctx.b, wide(ctx.b, x), dims_of(x, dim), fn, keepdim)

    return lowered


lower(aten.any.default, aten.any.dim, aten.any.dims)(_truths("any"))
lower(aten.all.default, aten.all.dim, aten.all.dims)(_truths("all"))


@lower(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(ctx: Call, x: TensorValue, dim: Dims = None) -> TensorValue:
    def fn(n: Node, over: tuple[Expr, ...]) -> Node:
        return fold("sum", over, body.cast(truth(n), d.I64))

    return reduce_one(ctx.b, wide(ctx.b, x), dims_of(x, dim), fn)


# --- extremes ------------------------------------------------------------------------------------


def _largest(kind: str, over: tuple[Expr, ...], n: Node) -> Node:
    """The maximum or minimum; of bools it's a question of any or all."""
    if n.dtype is d.BOOL:
        return fold("any" if kind == "max" else "all", over, n)
    return fold(kind, over, n)


def _extreme(kind: str) -> Callable[..., TensorValue]:
    def lowered(ctx: Call, x: TensorValue, dim: Dims = None, keepdim: bool = False) -> TensorValue:
        def fn(n: Node, over: tuple[Expr, ...]) -> Node:
            return body.cast(_largest(kind, over, n), ctx.dtype)

        return reduce_one(ctx.b, wide(ctx.b, x), dims_of(x, dim), fn, keepdim)

    return lowered


lower(aten.amax.default, aten.max.default)(_extreme("max"))
lower(aten.amin.default, aten.min.default)(_extreme("min"))


@lower(aten.aminmax.default)
def aminmax(
    ctx: Call, x: TensorValue, *, dim: int | None = None, keepdim: bool = False
) -> tuple[TensorValue, ...]:
    def fn(n: tuple[Node, ...], over: tuple[Expr, ...], _: tuple[Expr, ...]) -> tuple[Node, ...]:
        return tuple(body.cast(_largest(kind, over, n[0]), ctx.dtype) for kind in ("min", "max"))

    return reduce_many(ctx.b, [wide(ctx.b, x)], dims_of(x, dim), fn, keepdim=keepdim)


def _extreme_with_index(kind: str, where: str) -> Callable[..., Any]:
    def lowered(
        ctx: Call, x: TensorValue, dim: int, keepdim: bool = False
    ) -> tuple[TensorValue, ...]:
        def fn(n: tuple[Node, ...], over: tuple[Expr, ...], _: Any) -> tuple[Node, ...]:
            ranked = body.cast(n[0], d.U8) if n[0].dtype is d.BOOL else n[0]
            return body.cast(_largest(kind, over, n[0]), ctx.dtype), fold(where, over, ranked)

        return reduce_many(ctx.b, [wide(ctx.b, x)], dims_of(x, dim), fn, keepdim=keepdim)

    return lowered


lower(aten.max.dim)(_extreme_with_index("max", "argmax"))
lower(aten.min.dim)(_extreme_with_index("min", "argmin"))


def _position(kind: str) -> Callable[..., TensorValue]:
    def lowered(
        ctx: Call, x: TensorValue, dim: int | None = None, keepdim: bool = False
    ) -> TensorValue:
        return reduce_one(
            ctx.b, wide(ctx.b, x), dims_of(x, dim), lambda n, over: fold(kind, over, n), keepdim
        )

    return lowered


lower(aten.argmax.default)(_position("argmax"))
lower(aten.argmin.default)(_position("argmin"))


# --- norms ---------------------------------------------------------------------------------------


def norm_of(ord_: float, a: Node, over: tuple[Expr, ...]) -> Node:
    """The vector norm of elements ``a`` (floats)."""
    size = op("abs", a)
    if ord_ == math.inf:
        return fold("max", over, size)
    if ord_ == -math.inf:
        return fold("min", over, size)
    if ord_ == 0:
        return fold("sum", over, body.cast(op("ne", a, k(a, 0)), a.dtype))
    if ord_ == 1:
        return fold("sum", over, size)
    if ord_ == 2:
        return op("sqrt", fold("sum", over, op("mul", a, a)))
    power = op("mul", op("mul", size, size), size) if ord_ == 3 else op("pow", size, k(a, ord_))
    return op("pow", fold("sum", over, power), k(a, 1 / ord_))


def of_norm(
    ctx: Call, x: TensorValue, ord_: Any, dim: Dims, keepdim: bool, dtype: torch.dtype | None
) -> TensorValue:
    if isinstance(ord_, Expr):
        raise Unsupported("a norm of symbolic order")
    if not x.dtype.is_float:
        raise Unsupported(f"a norm of {x.dtype}")
    order = 2.0 if ord_ is None else float(ord_)
    sizes = [x.shape[i] for i in dims_of(x, dim)]
    if any(s.lo is None or s.lo < 1 for s in sizes) and order < 0:
        raise Unsupported("a norm of negative order of what may be empty")
    order = _order(order, sizes)
    return _reduction(ctx, x, dim, keepdim, dtype, lambda n, over: norm_of(order, n, over))


def _order(order: float, sizes: Sequence[Expr]) -> float:
    """The order as eager takes it: one element's norm is its size, whose powers may not exist."""
    return math.inf if order != 0 and all(s is ONE for s in sizes) else order


@lower(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    ctx: Call,
    x: TensorValue,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> TensorValue:
    return of_norm(ctx, x, ord, dim, keepdim, dtype)


@lower(aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def norm(
    ctx: Call, x: TensorValue, p: Any = 2, dim: Dims = None, keepdim: bool = False
) -> TensorValue:
    return of_norm(ctx, x, p, dim, keepdim, None)


@lower(aten.norm.ScalarOpt_dtype, aten.norm.ScalarOpt_dim_dtype)
def norm_dtype(
    ctx: Call, x: TensorValue, p: Any, dim: Dims = None, keepdim: bool = False, *, dtype: Any
) -> TensorValue:
    return of_norm(ctx, x, p, dim, keepdim, dtype)


@lower(aten.renorm.default)
def renorm(ctx: Call, x: TensorValue, p: Any, dim: int, maxnorm: Any) -> TensorValue:
    """Slices along ``dim`` whose norm is larger than ``maxnorm`` shrink to it."""
    if isinstance(p, Expr) or isinstance(maxnorm, Expr) or not x.dtype.is_float:
        raise Unsupported("a norm of symbolic order")
    x = shared(ctx.b, x)
    dims = [i for i in range(x.ndim) if i != dim % x.ndim]
    order = _order(float(p), [x.shape[i] for i in dims])
    norm = reduce_one(ctx.b, wide(ctx.b, x), dims, lambda n, over: norm_of(order, n, over), True)
    shape, (value, size) = ctx.b.broadcast([wide(ctx.b, x), norm])
    small = op("div", k(size, maxnorm), op("add", size, k(size, 1e-7)))
    factor = op("where", op("gt", size, k(size, maxnorm)), small, k(size, 1))
    return TensorValue(
        x.dtype, shape, x.device, lazy=body.cast(op("mul", value, factor), ctx.dtype)
    )


@lower(aten.dot.default, aten.vdot.default)
def dot(ctx: Call, x: TensorValue, y: TensorValue) -> TensorValue:
    """A sum of products, which accumulates without rounding them to a 16-bit type."""

    def fn(n: tuple[Node, ...], over: tuple[Expr, ...], _: Any) -> tuple[Node, ...]:
        return (body.cast(_sum(over, op("mul", *n)), ctx.dtype),)

    return reduce_many(ctx.b, [wide(ctx.b, x), wide(ctx.b, y)], [0], fn)[0]


# --- moments -------------------------------------------------------------------------------------


def variance_of(m2: Node, size: Expr, correction: float | int) -> Node:
    """A sum of squared deviations over max(size - correction, 0)."""
    n = number(m2.dtype, size)
    if correction:
        n = op("maximum", op("sub", n, k(m2, correction)), k(m2, 0))
        if isinstance(size, Const):
            n = k(m2, max(size.value - correction, 0))
    return op("div", m2, n)


def _moments(
    ctx: Call, x: TensorValue, dim: Dims, correction: Any, keepdim: bool, root: bool, means: bool
) -> tuple[TensorValue, ...]:
    if isinstance(correction, Expr):
        raise Unsupported("a symbolic correction")
    dims = dims_of(x, dim)
    size = count(x, dims)
    if size is ZERO:
        nothing = ctx.b.full(ctx.shape, math.nan, ctx.dtype, x.device)
        return (nothing,) * (2 if means else 1)
    less = 1 if correction is None else correction

    # As eager's on CPUs: squares of a float neither overflow nor vanish in a double.
    accumulated = d.F64 if x.device.startswith("cpu") else x.dtype.opmath

    def fn(n: tuple[Node, ...], over: tuple[Expr, ...], _: tuple[Expr, ...]) -> tuple[Node, ...]:
        terms = body.cast(n[0], accumulated)
        var_ = variance_of(fold("welford_m2", over, terms), size, less)
        spread_ = body.cast(op("sqrt", var_) if root else var_, ctx.dtype)
        if not means:
            return (spread_,)
        return spread_, body.cast(fold("welford_mean", over, terms), ctx.dtype)

    return reduce_many(ctx.b, [wide(ctx.b, x)], dims, fn, keepdim=keepdim)


def _moment_lowering(root: bool, means: bool) -> Callable[..., Any]:
    def lowered(
        ctx: Call,
        x: TensorValue,
        dim: Dims = None,
        *,
        correction: Any = None,
        keepdim: bool = False,
    ) -> Any:
        out = _moments(ctx, x, dim, correction, keepdim, root, means)
        return out if means else out[0]

    return lowered


lower(aten.var.correction)(_moment_lowering(False, False))
lower(aten.std.correction)(_moment_lowering(True, False))
lower(aten.var_mean.correction)(_moment_lowering(False, True))
lower(aten.std_mean.correction)(_moment_lowering(True, True))


# --- logsumexp -----------------------------------------------------------------------------------


@lower(aten.logsumexp.default)
def logsumexp(ctx: Call, x: TensorValue, dim: Dims, keepdim: bool = False) -> TensorValue:
    if not x.dtype.is_float:
        x = to_dtype(ctx, x, ctx.dtype)
    dims = dims_of(x, dim)
    v = wide(ctx.b, shared(ctx.b, x))

    def largest(n: Node, over: tuple[Expr, ...]) -> Node:
        # A shift of inf would make nan of what is an exact inf.
        m = fold("max", over, n)
        return op("where", op("isinf", m), k(m, 0), m)

    m = reduce_one(ctx.b, v, dims, largest)
    kept = [i for i in range(v.ndim) if i not in dims]
    shifted = v.with_node(op("sub", v.node, spread(m, v.shape, kept)))

    def total(
        n: tuple[Node, ...], over: tuple[Expr, ...], own: tuple[Expr, ...]
    ) -> tuple[Node, ...]:
        sum_ = fold("sum", over, op("exp", n[0]))
        return (body.cast(op("add", op("log", sum_), m.at(own)), ctx.dtype),)

    return reduce_many(ctx.b, [shifted], dims, total, keepdim=keepdim)[0]
