"""Reductions: sums, extremes and where they are, norms, moments.

16-bit floats accumulate in f32 and are rounded once.  Reductions that share their input are stored
by one loop nest (``reduce_many``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from litz.index import Const, Expr, coefficient, contiguous_strides, min_, provably_le, var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Load, Node, Store, op
from litz.ir.dtype import DType
from litz.ir.ops import op as op_row
from litz.ir.reductions import reduction, result_of
from litz.lowering import values
from litz.lowering.context import Builder, Unsupported
from litz.lowering.formulas import k, num, truth
from litz.lowering.reasons import MATRIX_PRODUCT
from litz.lowering.registry import Call, lower, lower_rows
from litz.lowering.values import ONE, ZERO, Shape, TensorValue, axes

aten = torch.ops.aten

Dims = int | Sequence[int] | None
Nodes = tuple[Node, ...]
Exprs = tuple[Expr, ...]
# (elements, reduced variables, variables of the result) -> results
OneFn = Callable[[Node, Exprs], Node]
ReduceFn = Callable[[Nodes, Exprs, Exprs], Nodes]

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


def fold(kind: str, over: Exprs, node: Node) -> Node:
    """``node`` reduced over the variables ``over``, of which there may be none.

    Along those that it does not depend on (of expanded tensors) nothing is gone through.
    """
    if (repeated := result_of(kind).repeated) and not all(v in node.vars for v in over):
        others = {v: v.extent for v in over if v not in node.vars}  # type: ignore[attr-defined]
        if all(provably_le(ONE, n) for n in others.values()):
            once = fold(kind, tuple(v for v in over if v not in others), node)
            times = number(once.dtype, values.product([*others.values()]))
            return once if repeated == "same" else once * times
    if over:
        return body.reduce(kind, over, node)
    if reduction(kind).positional:
        return body.const(d.I64, 0)
    if result_of(kind).part == "m2":
        diff = node - node  # inf and nan spread as through (x - mean)**2
        return diff * diff
    if kind == "sum" and node.dtype.is_float:
        return node + 0  # a sum of -0.0 alone is 0.0
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
    return v.at([own[k] for k in dims])


def reduce_many(
    b: Builder,
    tensors: Sequence[TensorValue],
    dims: Sequence[int],
    fn: ReduceFn,
    *,
    keepdim: bool = False,
) -> tuple[TensorValue, ...]:
    """Several reductions of tensors of one shape over ``dims``, stored by one loop nest.

    None is stored where nothing is gone through: results are lazy values then.  Those that go
    through fewer dims than others, of what is expanded along the rest, have a nest of their own.
    """
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
    through = [_through(n) for n in nodes]
    if not any(through):
        lazy = (TensorValue(n.dtype, shape, first.device, lazy=n) for n in nodes)
        places = [axes(out_shape)[i] for i in kept]
        return tuple(values.viewed(v, out_shape, places) if keepdim else v for v in lazy)
    stores: dict[frozenset[Expr], list[Store]] = {}
    results = []
    for node, loops in zip(nodes, through, strict=True):
        out = b.allocate(node.dtype, shape, first.device)
        stores.setdefault(loops or max(through, key=len), []).append(out.memory.store(own, node))
        if keepdim:
            out = values.strided(out, out_shape, contiguous_strides(out_shape), ZERO)
        results.append(out)
    for loops, some in stores.items():
        b.add_loops(own, tuple(v for v in over if v in loops), tuple(some), first.device)
    return tuple(results)


def _through(node: Node) -> frozenset[Expr]:
    """The dims that its reductions go through."""
    return frozenset(a for n in body.walk((node,)) if isinstance(n, body.Reduce) for a in n.axes)


def reduce_one(
    b: Builder, v: TensorValue, dims: Sequence[int], fn: OneFn, keepdim: bool = False
) -> TensorValue:
    """One reduction: ``fn`` of the element and the reduced variables."""
    return reduce_many(b, [v], dims, lambda n, over, _: (fn(n[0], over),), keepdim=keepdim)[0]


# --- sums ----------------------------------------------------------------------------------------


def _into(b: Builder, node: Node, dtype: DType) -> Node:
    """An element as ATen converts it to a sum's dtype, in the type that accumulates."""
    return b.opmath(b.user_cast(node, dtype))


def sum_of(n: Node, over: Exprs) -> Node:
    return fold("any" if n.dtype is d.BOOL else "sum", over, n)


def _nansum(n: Node, over: Exprs) -> Node:
    return sum_of(op("where", op("isnan", n), k(n, 0), n) if n.dtype.is_float else n, over)


def _product(n: Node, over: Exprs) -> Node:
    return fold("all" if n.dtype is d.BOOL else "prod", over, n)


@lower_rows(
    (aten.sum.default, sum_of),
    (aten.sum.dim_IntList, sum_of),
    (aten.nansum.default, _nansum),
    (aten.prod.default, _product),
    (aten.prod.dim_int, _product),
)
def reduced(
    ctx: Call, fn: OneFn, x: TensorValue, *, dim: Dims = None, keepdim: bool = False
) -> TensorValue:
    """``fn`` of the elements, which are converted to the result's type first."""

    def full(node: Node, over: Exprs) -> Node:
        return body.cast(fn(_into(ctx.b, node, ctx.dtype), over), ctx.dtype)

    return reduce_one(ctx.b, x, dims_of(x, dim), full, keepdim)


@lower(aten.trace.default)
def trace(ctx: Call, x: TensorValue) -> TensorValue:
    rows, columns = x.shape
    size = min_(rows, columns)
    i = axes((size,))[0]
    return reduced(ctx, sum_of, values.viewed(x, (size,), [i, i]))


@lower(aten.mean.default, aten.mean.dim)
def mean(ctx: Call, x: TensorValue, *, dim: Dims = None, keepdim: bool = False) -> TensorValue:
    size = count(x, dims_of(x, dim))

    def fn(n: Node, over: Exprs) -> Node:
        return fold("sum", over, n) / number(n.dtype, size)

    return reduced(ctx, fn, x, dim=dim, keepdim=keepdim)


# --- truth ---------------------------------------------------------------------------------------


@lower_rows(
    (aten.any.default, "any"),
    (aten.any.dim, "any"),
    (aten.any.dims, "any"),
    (aten.all.default, "all"),
    (aten.all.dim, "all"),
    (aten.all.dims, "all"),
)
def truths(
    ctx: Call, kind: str, x: TensorValue, dim: Dims = None, keepdim: bool = False
) -> TensorValue:
    if isinstance(dim, Sequence) and not dim:  # over no dimensions
        return x.with_node(body.cast(truth(wide(ctx.b, x).node), ctx.dtype))

    return folded(ctx, lambda over, n: fold(kind, over, truth(n)), x, dim, keepdim)


def _nonzero(over: Exprs, n: Node) -> Node:
    return fold("sum", over, body.cast(truth(n), d.I64))


# --- extremes ------------------------------------------------------------------------------------


def _largest(kind: str, over: Exprs, n: Node) -> Node:
    """The maximum or minimum; of bools it's a question of any or all."""
    if n.dtype is d.BOOL:
        return fold("any" if kind == "max" else "all", over, n)
    return fold(kind, over, n)


@lower_rows(
    (aten.amax.default, partial(_largest, "max")),
    (aten.max.default, partial(_largest, "max")),
    (aten.amin.default, partial(_largest, "min")),
    (aten.min.default, partial(_largest, "min")),
    (aten.argmax.default, partial(fold, "argmax")),
    (aten.argmin.default, partial(fold, "argmin")),
    (aten.count_nonzero.default, _nonzero),
    (aten.count_nonzero.dim_IntList, _nonzero),
)
def folded(
    ctx: Call,
    of: Callable[[Exprs, Node], Node],
    x: TensorValue,
    dim: Dims = None,
    keepdim: bool = False,
) -> TensorValue:
    """``of`` the elements as they are."""

    def fn(n: Node, over: Exprs) -> Node:
        return body.cast(of(over, n), ctx.dtype)

    return reduce_one(ctx.b, wide(ctx.b, x), dims_of(x, dim), fn, keepdim)


@lower(aten.aminmax.default)
def aminmax(
    ctx: Call, x: TensorValue, *, dim: int | None, keepdim: bool
) -> tuple[TensorValue, ...]:
    def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
        return tuple(body.cast(_largest(kind, over, n[0]), ctx.dtype) for kind in ("min", "max"))

    return reduce_many(ctx.b, [wide(ctx.b, x)], dims_of(x, dim), fn, keepdim=keepdim)


@lower_rows((aten.max.dim, "max", "argmax"), (aten.min.dim, "min", "argmin"))
def extreme_with_index(
    ctx: Call, kind: str, where: str, x: TensorValue, dim: int, keepdim: bool
) -> tuple[TensorValue, ...]:
    def fn(n: Nodes, over: Exprs, _: Any) -> Nodes:
        ranked = body.cast(n[0], d.U8) if n[0].dtype is d.BOOL else n[0]
        return body.cast(_largest(kind, over, n[0]), ctx.dtype), fold(where, over, ranked)

    return reduce_many(ctx.b, [wide(ctx.b, x)], dims_of(x, dim), fn, keepdim=keepdim)


# --- norms ---------------------------------------------------------------------------------------


def norm_of(ord_: float, a: Node, over: Exprs) -> Node:
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
        return op("sqrt", fold("sum", over, a * a))
    power = size * size * size if ord_ == 3 else op("pow", size, k(a, ord_))
    return op("pow", fold("sum", over, power), k(a, 1 / ord_))


@lower(
    aten.linalg_vector_norm.default,
    aten.norm.Scalar,
    aten.norm.ScalarOpt_dim,
    aten.norm.ScalarOpt_dtype,
    aten.norm.ScalarOpt_dim_dtype,
)
def norm(
    ctx: Call, x: TensorValue, ord_: Any, dim: Dims = None, keepdim: bool = False
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
    return reduced(ctx, lambda n, over: norm_of(order, n, over), x, dim=dim, keepdim=keepdim)


def _order(order: float, sizes: Sequence[Expr]) -> float:
    """The order as eager takes it: one element's norm is its size, whose powers may not exist."""
    return math.inf if order != 0 and all(s is ONE for s in sizes) else order


@lower(aten.renorm.default)
def renorm(ctx: Call, x: TensorValue, p: Any, dim: int, maxnorm: Any) -> TensorValue:
    """Slices along ``dim`` whose norm is larger than ``maxnorm`` shrink to it."""
    if isinstance(p, Expr) or isinstance(maxnorm, Expr) or not x.dtype.is_float:
        raise Unsupported("a norm of symbolic order")
    x = shared(ctx.b, x)
    dims = [i for i in range(x.ndim) if i != dim % x.ndim]
    order = _order(float(p), [x.shape[i] for i in dims])
    norms = reduce_one(ctx.b, wide(ctx.b, x), dims, lambda n, over: norm_of(order, n, over), True)
    shape, (value, size) = ctx.b.broadcast([wide(ctx.b, x), norms])
    small = maxnorm / (size + 1e-7)
    factor = op("where", size > maxnorm, small, k(size, 1))
    return x.with_node(body.cast(value * factor, ctx.dtype), shape)


@lower(aten.dot.default, aten.vdot.default)
def dot(ctx: Call, x: TensorValue, y: TensorValue) -> TensorValue:
    """A sum of products, which accumulates without rounding them to a 16-bit type."""

    def fn(n: Nodes, over: Exprs, _: Any) -> Nodes:
        return (body.cast(sum_of(op("mul", *n), over), ctx.dtype),)

    return reduce_many(ctx.b, [wide(ctx.b, x), wide(ctx.b, y)], [0], fn)[0]


@lower(aten.mv.default)
def mv(ctx: Call, matrix: TensorValue, vector: TensorValue) -> TensorValue:
    return addmv(ctx, None, matrix, vector, beta=0, alpha=1)


@lower(aten.addmv.default)
def addmv(
    ctx: Call,
    start: TensorValue | None,
    matrix: TensorValue,
    vector: TensorValue,
    *,
    beta: Any,
    alpha: Any,
) -> TensorValue:
    if not reads_rows(ctx.b, matrix) or not counts(alpha, beta):
        raise Unsupported(MATRIX_PRODUCT)
    return times_vector(ctx.b, matrix, vector, start, beta, alpha)


def reads_rows(b: Builder, matrix: TensorValue) -> bool:
    """Whether a kernel multiplies a matrix with a vector in the time that reading it takes.

    On GPUs, where elements of rows lie one behind the other: sums of others go across programs.
    """
    *_, along = axes(matrix.shape)
    found = (n for n in body.walk((matrix.node,)) if isinstance(n, Load) and along in n.index.free)
    steps = (coefficient(n.index, along) for n in found)
    in_rows = all(c is None or c is ONE for c in steps)
    return b.settings.on_gpu(matrix.device) and matrix.dtype.is_float and in_rows


def counts(alpha: object, beta: object) -> bool:
    """Whether the factors of a product and of what is added are known, and the product's is not 0.

    Libraries do not look at a product that counts for nothing, nor at what is not finite in it.
    """
    return {type(alpha), type(beta)} <= {int, float} and alpha != 0


def times_vector(
    b: Builder,
    matrix: TensorValue,
    vector: TensorValue,
    start: TensorValue | None,
    beta: Any,
    alpha: Any,
) -> TensorValue:
    """``beta * start + alpha * (matrix @ vector)``, which is rounded once."""
    # Every row reads the vector.
    vector = vector if body.cost(vector.node) <= 1 else b.realize(vector)
    row = values.expand(values.insert_dim(vector, 0), matrix.shape)

    def fn(n: Nodes, over: Exprs, own: Exprs) -> Nodes:
        total = sum_of(op("mul", *n), over)
        total = total if alpha == 1 else total * num(total, alpha)
        if start is not None and beta != 0:  # else not even a nan of what it starts from counts
            first = body.cast(values.expand(start, matrix.shape[:1]).at(own), total.dtype)
            total = total + (first if beta == 1 else first * num(total, beta))
        return (body.cast(total, matrix.dtype),)

    return reduce_many(b, [wide(b, matrix), wide(b, row)], [1], fn)[0]


# --- moments -------------------------------------------------------------------------------------


def variance_of(m2: Node, size: Expr, correction: float | int) -> Node:
    """A sum of squared deviations over max(size - correction, 0)."""
    n = number(m2.dtype, size)
    if correction:
        n = op("maximum", n - correction, k(m2, 0))
        if isinstance(size, Const):
            n = k(m2, max(size.value - correction, 0))
    return m2 / n


@lower_rows(
    (aten.var.correction, False, False),
    (aten.std.correction, True, False),
    (aten.var_mean.correction, False, True),
    (aten.std_mean.correction, True, True),
)
def moments(
    ctx: Call, root: bool, means: bool, x: TensorValue, *, dim: Dims, correction: Any, keepdim: bool
) -> TensorValue | tuple[TensorValue, ...]:
    if isinstance(correction, Expr):
        raise Unsupported("a symbolic correction")
    dims = dims_of(x, dim)
    size = count(x, dims)
    if size is ZERO:
        nothing = ctx.full(math.nan)
        return (nothing, nothing) if means else nothing
    less = 1 if correction is None else correction

    # As eager's on CPUs: squares of a float neither overflow nor vanish in a double.
    accumulated = d.F64 if ctx.eager.double_moments else x.dtype.opmath

    def fn(n: Nodes, over: Exprs, _: Exprs) -> Nodes:
        terms = body.cast(n[0], accumulated)
        var_ = variance_of(fold("welford_m2", over, terms), size, less)
        spread_ = body.cast(op("sqrt", var_) if root else var_, ctx.dtype)
        if not means:
            return (spread_,)
        return spread_, body.cast(fold("welford_mean", over, terms), ctx.dtype)

    out = reduce_many(ctx.b, [wide(ctx.b, x)], dims, fn, keepdim=keepdim)
    return out if means else out[0]


# --- logsumexp -----------------------------------------------------------------------------------


@lower(aten.logsumexp.default)
def logsumexp(ctx: Call, x: TensorValue, dim: Dims, keepdim: bool) -> TensorValue:
    if not x.dtype.is_float:
        x = ctx.cast(x)
    dims = dims_of(x, dim)
    v = wide(ctx.b, shared(ctx.b, x))

    def largest(n: Node, over: Exprs) -> Node:
        # A shift of inf would make nan of what is an exact inf.
        m = fold("max", over, n)
        return op("where", op("isinf", m), k(m, 0), m)

    m = reduce_one(ctx.b, v, dims, largest)
    kept = [i for i in range(v.ndim) if i not in dims]
    shifted = v.with_node(v.node - spread(m, v.shape, kept))

    def total(n: Nodes, over: Exprs, own: Exprs) -> Nodes:
        sum_ = fold("sum", over, op("exp", n[0]))
        return (body.cast(op("log", sum_) + m.at(own), ctx.dtype),)

    return reduce_many(ctx.b, [shifted], dims, total, keepdim=keepdim)[0]
