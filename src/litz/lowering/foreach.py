"""``_foreach_*``: lists of tensors, element by element through the single-tensor lowerings."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from litz.ir import body
from litz.lowering.context import RECOMPUTE_COST, Unsupported
from litz.lowering.registry import Call, find, lower, lower_rows
from litz.lowering.strides import result_strides
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


def each(ctx: Call, target: torch._ops.OpOverload, *given: Any, alpha: Any = 1) -> Tensors:
    """``target`` of the k-th elements of the lists that are given, for the k-th result.

    Other tensors and numbers, ``alpha`` among them, are every element's.
    """
    fn, count = single(target), len(ctx.results)
    lists = [v if isinstance(v, list | tuple) else [v] * count for v in given]
    out = []
    reads = Counter[int]()
    for u in ctx.node.users:
        if u.target is operator.getitem:
            reads[u.args[1]] += len(u.users)  # type: ignore[index]
    for k, (result, *args) in enumerate(zip(ctx.results, *lists, strict=True)):
        if result is None:
            raise Unsupported("a list with other than tensors")
        mine = replace(ctx, results=(result,), n_users=1, used=frozenset())
        value = fn(mine, *args, alpha=alpha)
        assert isinstance(value, TensorValue)
        out.append(_settled(ctx, value, k, reads[k]))
    return tuple(out)


def _settled(ctx: Call, v: TensorValue, k: int, reads: int) -> TensorValue:
    """Store the k-th element if it is read several times, as a single tensor's result would be."""
    if v.lazy is None:
        return v
    if reads > 1 and (len(body.loads((v.lazy,))) > 1 or body.cost(v.lazy) > RECOMPUTE_COST):
        return ctx.b.realize(v, result_strides(ctx.nth_result(k)))
    return v


def _rows() -> Iterator[tuple[torch._ops.OpOverload, torch._ops.OpOverload]]:
    """The overloads for lists, and what each does to the elements."""

    def of_lists(name: str) -> Any:
        return getattr(aten, f"_foreach_{name}")

    for name in UNARY:
        yield of_lists(name).default, getattr(aten, name).default
    for name, (tensor, number) in BINARY.items():
        packet = of_lists(name)
        yield from ((packet.List, tensor), (packet.Scalar, number), (packet.ScalarList, number))
        if "Tensor" in packet.overloads():
            yield packet.Tensor, tensor
    for name in ("addcmul", "addcdiv"):
        packet = of_lists(name)
        yield from ((o, getattr(aten, name).default) for o in (packet.Scalar, packet.ScalarList))
    yield aten._foreach_pow.ScalarAndTensor, aten.pow.Scalar
    yield aten._foreach_copy.default, aten.copy.default
    yield aten._foreach_lerp.Scalar, aten.lerp.Scalar
    yield aten._foreach_lerp.List, aten.lerp.Tensor
    yield aten._foreach_lerp.ScalarList, aten.lerp.Scalar
    if hasattr(aten, "_foreach_clone"):  # PyTorch has it since 2.12
        yield aten._foreach_clone.default, aten.clone.default


lower_rows(*_rows())(each)


@lower(aten._foreach_norm.Scalar)
def norm(ctx: Call, xs: Tensors, order: Any) -> Tensors:
    return each(ctx, aten.linalg_vector_norm.default, xs, order)
