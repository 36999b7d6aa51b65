"""``_foreach_*``: lists of tensors, element by element through the single-tensor lowerings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from litz.ir import body
from litz.lowering.context import RECOMPUTE_COST, Unsupported
from litz.lowering.joins import result_strides
from litz.lowering.registry import Call, find, lower
from litz.lowering.values import TensorValue

aten = torch.ops.aten
Single = Callable[..., Any]
Tensors = Sequence[TensorValue]

UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 "
    "neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
).split()
# name: (overload for tensors, overload for numbers)
BINARY = {
    "add": (aten.add.Tensor, aten.add.Scalar),
    "sub": (aten.sub.Tensor, aten.sub.Scalar),
    "mul": (aten.mul.Tensor, aten.mul.Scalar),
    "div": (aten.div.Tensor, aten.div.Scalar),
    "pow": (aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar),
    # Eager's lists clamp: maximum with a number is the same arithmetic.
    "maximum": (aten.maximum.default, aten.clamp_min.default),
    "minimum": (aten.minimum.default, aten.clamp_max.default),
    "clamp_min": (aten.maximum.default, aten.clamp_min.default),
    "clamp_max": (aten.minimum.default, aten.clamp_max.default),
}


def single(target: torch._ops.OpOverload) -> Single:
    fn = find(target)
    if fn is None:
        raise Unsupported(f"no lowering of {target} for the elements")
    return fn


def each(ctx: Call, fn: Single, *lists: Sequence[Any], **kwargs: Any) -> tuple[TensorValue, ...]:
    """``fn`` of the k-th elements of ``lists``, with the k-th result's metadata, for every k."""
    out = []
    for k, args in enumerate(zip(*lists, strict=True)):
        result = ctx.results[k]
        if result is None:
            raise Unsupported("a list with other than tensors")
        mine = replace(ctx, results=(result,), n_users=1, used=frozenset())
        value = fn(mine, *args, **kwargs)
        assert isinstance(value, TensorValue)
        out.append(_settled(ctx, value, k))
    return tuple(out)


def _settled(ctx: Call, v: TensorValue, k: int) -> TensorValue:
    """Store an element that is read several times, as a single tensor's result would be."""
    if v.lazy is None:
        return v
    reads = sum(
        len(u.users) for u in ctx.node.users if u.target is operator.getitem and u.args[1] == k
    )
    if reads > 1 and (body.cost(v.lazy) > RECOMPUTE_COST or len(body.loads((v.lazy,))) > 1):
        result = ctx.results[k]
        assert result is not None
        return ctx.b.realize(v, result_strides(result))
    return v


def _repeat(value: Any, xs: Sequence[Any]) -> list[Any]:
    return [value] * len(xs)


# --- one operand and two -------------------------------------------------------------------------


def _unary(packet: Any) -> Single:
    def fn(ctx: Call, xs: Tensors) -> tuple[TensorValue, ...]:
        return each(ctx, single(packet.default), xs)

    return fn


for _name in UNARY:
    lower(getattr(aten, f"_foreach_{_name}").default)(_unary(getattr(aten, _name)))


def _lists(target: torch._ops.OpOverload) -> Single:
    def fn(ctx: Call, xs: Tensors, ys: Tensors, **kw: Any) -> tuple[TensorValue, ...]:
        return each(ctx, single(target), xs, ys, **kw)

    return fn


def _number(target: torch._ops.OpOverload) -> Single:
    def fn(ctx: Call, xs: Tensors, y: Any, **kw: Any) -> tuple[TensorValue, ...]:
        return each(ctx, single(target), xs, _repeat(y, xs), **kw)

    return fn


for _name, (_tensor, _scalar) in BINARY.items():
    _packet = getattr(aten, f"_foreach_{_name}")
    lower(_packet.List)(_lists(_tensor))
    lower(_packet.Scalar)(_number(_scalar))
    lower(_packet.ScalarList)(_lists(_scalar))
    if "Tensor" in _packet.overloads():
        lower(_packet.Tensor)(_number(_tensor))


@lower(aten._foreach_pow.ScalarAndTensor)
def pow_scalar(ctx: Call, x: Any, exponents: Tensors) -> tuple[TensorValue, ...]:
    return each(ctx, single(aten.pow.Scalar), _repeat(x, exponents), exponents)


# --- three operands ------------------------------------------------------------------------------


def _fused(packet: Any) -> Single:
    """addcmul / addcdiv, whose number is a keyword of the single-tensor form."""

    def fn(ctx: Call, x: TensorValue, a: TensorValue, c: TensorValue, value: Any) -> Any:
        return single(packet.default)(ctx, x, a, c, value=value)

    return fn


def _by_number(fused: Single) -> Single:
    def fn(ctx: Call, xs: Tensors, a: Tensors, c: Tensors, value: Any = 1) -> Any:
        return each(ctx, fused, xs, a, c, _repeat(value, xs))

    return fn


def _by_list(fused: Single) -> Single:
    def fn(ctx: Call, xs: Tensors, a: Tensors, c: Tensors, scalars: Sequence[Any]) -> Any:
        return each(ctx, fused, xs, a, c, scalars)

    return fn


for _name in ("addcmul", "addcdiv"):
    _packet = getattr(aten, f"_foreach_{_name}")
    lower(_packet.Scalar)(_by_number(_fused(getattr(aten, _name))))
    lower(_packet.ScalarList)(_by_list(_fused(getattr(aten, _name))))


@lower(aten._foreach_lerp.Scalar)
def lerp_scalar(ctx: Call, xs: Tensors, ys: Tensors, weight: Any) -> tuple[TensorValue, ...]:
    return each(ctx, single(aten.lerp.Scalar), xs, ys, _repeat(weight, xs))


@lower(aten._foreach_lerp.List)
def lerp_list(ctx: Call, xs: Tensors, ys: Tensors, ws: Tensors) -> tuple[TensorValue, ...]:
    return each(ctx, single(aten.lerp.Tensor), xs, ys, ws)


@lower(aten._foreach_lerp.ScalarList)
def lerp_numbers(ctx: Call, xs: Tensors, ys: Tensors, ws: Sequence[Any]) -> Any:
    return each(ctx, single(aten.lerp.Scalar), xs, ys, ws)


# --- others --------------------------------------------------------------------------------------


# PyTorch has it since 2.12.
@lower(*([aten._foreach_clone.default] if hasattr(aten, "_foreach_clone") else []))
def clone(ctx: Call, xs: Tensors, *, memory_format: Any = None) -> tuple[TensorValue, ...]:
    return each(ctx, single(aten.clone.default), xs)


@lower(aten._foreach_norm.Scalar)
def norm(ctx: Call, xs: Tensors, ord: Any = 2, dtype: Any = None) -> tuple[TensorValue, ...]:
    fn = single(aten.linalg_vector_norm.default)

    def one(mine: Call, x: TensorValue) -> Any:
        return fn(mine, x, ord, None, False, **({} if dtype is None else {"dtype": dtype}))

    return each(ctx, one, xs)
