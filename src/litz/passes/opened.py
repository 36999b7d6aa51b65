"""Calls of operators as what they compute: nests, one product, and a nest behind it.

Such calls stay calls unless a template takes the product: in between lies what only a kernel of
its own need not store.  Of an operator's call a row of ``OPENERS`` knows the parts, or gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from litz.dataclass import dataclass
from litz.index import ONE, ZERO, Const, Expr, product, var
from litz.ir.body import Load, Node, cast
from litz.ir.dtype import F32, I8, I32, STORED, DType
from litz.ir.program import Buffer, Contraction, Extern, Loops, Program, ProgramNode, TensorRef

aten = torch.ops.aten


@dataclass(frozen=True)
class Opened:
    """program: the one in which the parts stand in the place of the call.

    nodes: these, in order; the last has the call's name, and fills its result.
    product: the contraction among them.  own: names of the nests that are part of the call.
    units: whether the library computes the product by matrix units.
    groups: of rows with right matrices of their own, of which the contraction names the first.
    """

    program: Program
    call: Extern
    buffers: Mapping[str, Buffer]
    nodes: tuple[ProgramNode, ...]
    product: Contraction
    own: frozenset[str]
    units: bool = True
    groups: Groups | None = None


@dataclass(frozen=True)
class Groups:
    """ends: the row behind each group's last, in order.  step: from a right matrix to the next."""

    ends: TensorRef
    step: Expr


def opened(program: Program, call: Extern) -> Opened | None:
    """What a call computes; None where it is none of these, or a case that only ATen has."""
    opener = OPENERS.get(call.target)
    (out, *more) = call.outputs or (None,)
    if opener is None or out is None or more or call.mutates or call.sizes or call.checks:
        return None
    b = program.buffers[out]
    if b.alias is not None or any(x.alias == out for x in program.buffers.values()):
        return None
    given = arguments(call)
    if not all(r.device == call.device for r in _buffers(program, given)):
        return None
    return opener(_Opening(program, call, replace(b, kind="temp")), given)


def arguments(call: Extern) -> dict[str, Any]:
    """The arguments of a call by the schema's names, defaults included."""
    schema = call.target._schema.arguments  # type: ignore[attr-defined]
    found = {a.name: a.default_value for a in schema if a.has_default_value()}
    found |= dict(zip((a.name for a in schema), call.args, strict=False))
    return found | dict(call.kwargs)


def _buffers(program: Program, given: Mapping[str, Any]) -> list[Buffer]:
    return [program.buffers[v.buffer] for v in given.values() if isinstance(v, TensorRef)]


@dataclass
class _Opening:
    """A call that is being opened.  out: the buffer of its result, which the program allocates."""

    program: Program
    call: Extern
    out: Buffer

    def temp(self, name: str, dtype: DType, shape: tuple[Expr, ...]) -> Buffer:
        strides = tuple(product(shape[k + 1 :]) for k in range(len(shape)))
        return Buffer(f"{self.call.name}_{name}", dtype, shape, strides, self.call.device)

    def nest(self, name: str, to: Buffer, value: Callable[..., Node]) -> Loops:
        """What stores at each place of a buffer what ``value`` says of that place."""
        at = tuple(ZERO if s is ONE else var(f"i{k}", s) for k, s in enumerate(to.shape))
        store = to.whole.store(at, value(*at))
        axes = tuple(v for v in at if v is not ZERO)
        name = f"{self.call.name}_{name}"
        return Loops(name, axes, (), (store,), self.call.device, self.call.origins)

    def product(
        self, left: TensorRef, right: TensorRef, out: str, accumulate: DType, bias: Any = None
    ) -> Contraction:
        c = self.call
        return Contraction(c.name, left, right, bias, out, accumulate, c.device, origins=c.origins)

    def made(self, nodes: tuple[ProgramNode, ...], *temps: Buffer, **more: Any) -> Opened:
        p, name, last = self.program, self.call.name, len(nodes) - 1
        nodes = tuple(
            replace(n, name=name) if k == last
            else replace(n, name=f"{name}_product") if isinstance(n, Contraction) else n
            for k, n in enumerate(nodes)
        )  # fmt: skip
        (own,) = (n for n in nodes if isinstance(n, Contraction))
        whole = tuple(x for n in p.nodes for x in (nodes if n is self.call else (n,)))
        buffers = {b.name: b for b in (self.out, *temps)}
        inside = replace(p, nodes=whole, buffers={**p.buffers, **buffers})
        names = frozenset(n.name for n in nodes if n is not own)
        return Opened(inside, self.call, buffers, nodes, own, names, **more)


def element(ref: TensorRef, *places: Expr) -> Load:
    """An element, broadcast along dimensions of one."""
    moving = tuple(ZERO if s is ONE else i for s, i in zip(ref.shape, places, strict=True))
    return ref.load(moving)


# --- the operators --------------------------------------------------------------------------------


def _int_mm(o: _Opening, given: Mapping[str, Any]) -> Opened | None:
    left, right = given["self"], given["mat2"]
    if not left.dtype is right.dtype is I8 or o.out.dtype is not I32:
        return None
    return o.made((o.product(left, right, o.out.name, I32),))


def _weight_int8pack_mm(o: _Opening, given: Mapping[str, Any]) -> Opened | None:
    """A row of weights for each column of the result, and its scale.  ATen has no matrix units."""
    left, right, scales = given["self"], given["mat2"], given["scales"]
    if right.dtype is not I8 or left.dtype.bits != 16 or not left.dtype.is_float:
        return None
    wide = o.temp("wide", left.dtype, right.shape)
    sums = o.temp("sums", F32, o.out.shape)
    before = o.nest("widen", wide, lambda n, k: cast(element(right, n, k), left.dtype))
    turned = wide.whole
    turned = replace(turned, shape=turned.shape[::-1], strides=turned.strides[::-1])

    def scaled(m: Expr, n: Expr) -> Node:
        return element(sums.whole, m, n) * cast(element(scales, n), F32)

    nodes = before, o.product(left, turned, sums.name, F32), o.nest("scale", o.out, scaled)
    return o.made(nodes, wide, sums, units=False)


def _scaled_mm(o: _Opening, given: Mapping[str, Any]) -> Opened | None:
    """8-bit floats with a scale for each matrix, or for each row and each column of the result."""
    left, right, bias = given["self"], given["mat2"], given["bias"]
    scales = given["scale_a"], given["scale_b"]
    eight = {left.dtype, right.dtype} <= {*STORED} and left.dtype is right.dtype
    if not eight or o.out.dtype in STORED or given["scale_result"] is not None:
        return None
    m, n = o.out.shape
    for s, size in zip(scales, ((m, ONE), (ONE, n)), strict=True):
        one = all(x is ONE for x in s.shape)
        if s.dtype is not F32 or not (one or s.shape == size):
            return None  # scales of blocks
    sums = o.temp("sums", F32, o.out.shape)

    def scaled(i: Expr, j: Expr) -> Node:
        a, b = (element(s, *(i, j)[2 - len(s.shape) :]) for s in scales)
        value = element(sums.whole, i, j) * a * b
        return value if bias is None else value + cast(element(bias, j), F32)

    nodes = o.product(left, right, sums.name, F32), o.nest("scale", o.out, scaled)
    return o.made(nodes, sums)


def _grouped_mm(o: _Opening, given: Mapping[str, Any]) -> Opened | None:
    """Matrices in pairs, or rows in groups that a matrix each is for."""
    left, right, ends = given["self"], given["mat2"], given["offs"]
    alike = left.dtype is right.dtype is o.out.dtype and left.dtype.bits == 16
    if not alike or given["bias"] is not None or len(right.shape) != 3:
        return None
    if ends is None and len(left.shape) == 3:
        return o.made((o.product(left, right, o.out.name, F32),))
    if ends is None or len(left.shape) != 2 or not isinstance(ends.shape[0], Const):
        return None
    (step, *steps), (_, *shape) = right.strides, right.shape
    one = replace(right, shape=tuple(shape), strides=tuple(steps))
    nodes = (o.product(left, one, o.out.name, F32),)
    return o.made(nodes, groups=Groups(ends, step))


def _convolution(o: _Opening, given: Mapping[str, Any]) -> Opened | None:
    """With a kernel of one element over images whose channels lie side by side."""
    x, weight, bias = given["input"], given["weight"], given["bias"]
    plain = {*given["padding"]} <= {0, ZERO} and {*given["stride"]} <= {1, ONE}
    plain &= given["groups"] == 1
    if given["transposed"] or not plain or not all(s is ONE for s in weight.shape[2:]):
        return None
    if x.dtype.bits != 16 or not (
        is_rows(x.shape, x.strides) and is_rows(o.out.shape, o.out.strides)
    ):
        return None
    (inner, outer), images = weight.shape[1::-1], (x.shape[0], *x.shape[2:])
    sums = o.temp("sums", F32, (product(images), outer))
    left = TensorRef(x.buffer, x.dtype, (sums.shape[0], inner), (inner, ONE), x.offset)
    steps = weight.strides[1::-1]
    right = TensorRef(weight.buffer, weight.dtype, (inner, outer), steps, weight.offset)

    def added(i: Expr, j: Expr) -> Node:
        value = element(sums.whole, i, j)
        return value if bias is None else value + cast(element(bias, j), F32)

    flat = replace(o.out, shape=sums.shape, strides=sums.strides)
    return o.made((o.product(left, right, sums.name, F32), o.nest("put", flat, added)), sums)


def is_rows(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> bool:
    """Whether all channels of a place lie together, and the places of all images in order."""
    step = shape[1]
    if strides[1] is not ONE:
        return False
    for s, stride in zip((*shape[:1:-1], shape[0]), (*strides[:1:-1], strides[0]), strict=True):
        if s is not ONE and stride is not step:
            return False
        step = step * s
    return True


OPENERS: Final[Mapping[object, Callable[[_Opening, Mapping[str, Any]], Opened | None]]] = {
    aten._int_mm.default: _int_mm,
    aten._scaled_mm.default: _scaled_mm,
    aten._grouped_mm.default: _grouped_mm,
    aten.convolution.default: _convolution,
    aten._weight_int8pack_mm.default: _weight_int8pack_mm,
}
