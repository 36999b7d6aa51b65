"""Convolutions and what is behind them as one call of the library that computes both.

Behind a convolution stand its bias, a batch norm that is not in training (a factor and a summand
for each channel), what a residual network adds, and relu.  A nest is taken apart into these,
without the roundings between them; what of it only channels decide becomes a nest of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, ClassVar, Final

import torch

from litz.dataclass import dataclass
from litz.index import ONE, ZERO, Expr, Var
from litz.ir.body import Const, Load, Node, Op, Store, cast, const, loads, walk
from litz.ir.dtype import F32, DType
from litz.ir.program import Buffer, Extern, Loops, Program, ProgramNode, TensorRef
from litz.passes.opened import arguments, is_rows
from litz.passes.rivals import Behind, part
from litz.passes.uses import Uses
from litz.runtime.convolutions import convolution

CALL: Final = "litz.runtime.convolutions.convolution"
REASON: Final = "a convolution and what is behind it: cuDNN computes both"
TARGET: Final = torch.ops.aten.convolution.default
ONCE: Final = const(F32, 1.0)


@dataclass(frozen=True)
class Sum:
    """``scale * value + row + whole``, each None where it is not there.

    scale, row: of the channel alone.  whole: of every place.
    """

    scale: Node | None = None
    row: Node | None = None
    whole: Node | None = None


@dataclass(frozen=True)
class Fused:
    """A nest that a library computes with a convolution.

    channel: the nest's variable of channels.  result: the convolution's.
    epilogue: what follows the sum: relu, or "".
    """

    nest: Loops
    sum: Sum
    channel: Var
    result: Buffer
    epilogue: str

    @property
    def added(self) -> TensorRef | None:
        """What is added at every place, if that is a tensor like the result."""
        n, (store,) = self.sum.whole, self.nest.stores
        n = n and _unrounded(n, self.result.dtype)
        if not isinstance(n, Load) or n.indirect or n.index is not store.index:
            return None
        return replace(self.result.whole, buffer=n.buffer) if n.dtype is self.result.dtype else None

    @property
    def bias(self) -> TensorRef | None:
        """What is added for each channel, if that is all, and a row like the result."""
        n, size = self.sum.row, self.channel.extent
        n = n and _unrounded(n, self.result.dtype)
        if not isinstance(n, Load) or n.indirect or self.sum.scale is not ONCE:
            return None
        plain = n.index is self.channel and n.dtype is self.result.dtype
        return TensorRef(n.buffer, n.dtype, (size,), (ONE,), ZERO) if plain else None


@dataclass(frozen=True)
class TakeConvolutions:
    """Convolutions become one call with the nest behind them.

    on: kinds of devices whose library has that.  built: whether such forms are taken too for which
    the library compiles a kernel, in seconds: all without a bias as it is, or with factors.
    rivals: measures both ways where somebody can.
    """

    on: tuple[str, ...] = ()
    built: bool = False
    rivals: Behind | None = field(default=None, repr=False)
    name: ClassVar[str] = "take convolutions"

    def __call__(self, program: Program) -> Program:
        calls = [n for n in program.nodes if isinstance(n, Extern) and self._may_be(n)]
        uses = Uses(program) if calls else None
        found = {
            made.nest.name: (c, made)
            for c in calls
            if uses and (made := self.takes(uses, c)) and self._pays(uses, c, made)
        }
        # What a call adds may be a nest behind another convolution by then.
        return self(_replaced(program, found)) if found else program

    def takes(self, uses: Uses, c: Extern) -> Fused | None:
        """The nest that becomes part of a convolution's call."""
        made = fused(uses, c) if self._may_be(c) else None
        ready = made is not None and made.bias is not None and arguments(c)["groups"] == 1
        return made if ready or self.built else None

    def _may_be(self, n: Extern) -> bool:
        return n.target is TARGET and n.device.partition(":")[0] in self.on

    def _pays(self, uses: Uses, c: Extern, made: Fused) -> bool:
        """Whether one call is as quick as a convolution and a kernel behind it."""
        if self.rivals is None or (apart := part(uses, (c, made.nest))) is None:
            return True
        tried = self.rivals(_replaced(apart, {made.nest.name: (c, made)}), apart)
        return tried is None or tried.index == 0


def fused(uses: Uses, c: Extern) -> Fused | None:
    """The one nest behind a convolution, if it is a sum that cuDNN computes with it."""
    p, given, (out, *more) = uses.program, arguments(c), c.outputs
    plain = given["bias"] is None and not given["transposed"] and not c.sizes and not c.checks
    if out is None or more or not plain:
        return None
    own, readers = p.buffers[out], [*uses.readers.get(out, {}).values()]
    if len(readers) != 1 or out in uses.shown or not _is_taken(own, given):
        return None
    (nest,) = readers
    if not isinstance(nest, Loops) or nest.reduce_axes or len(nest.stores) != 1:
        return None
    (store,), at = nest.stores, _places(own, nest)
    target = p.buffers[store.buffer]
    plain = store.mode == "set" and store.mask is None and not store.indirect
    plain &= target.kind == "temp" and target.alias is None and uses.maker(target.name) is nest
    alike = (target.dtype, target.shape, target.strides) == (own.dtype, own.shape, own.strides)
    if not at or not plain or not alike or store.index is not own.whole.place(at):
        return None
    if _is_written(uses, c, nest):
        return None
    value, epilogue = _activated(store.value, own.dtype)
    channel, y = at[1], own.whole.load(at)
    try:
        total = _Sums(y, channel).of(value)
    except _NotASum:
        return None
    if not isinstance(channel, Var) or Sum(ONCE) == total and not epilogue:
        return None
    made = Fused(nest, total, channel, own, epilogue)
    there = total.whole is None or made.added is not None or _is_another(uses, total.whole, own)
    return made if there else None


def _is_taken(own: Buffer, given: Mapping[str, Any]) -> bool:
    """Whether it is of 16 bits, and all channels of a place lie together, as cuDNN has it."""
    sides = [own.whole, given["input"], given["weight"]]
    alike = all(isinstance(x, TensorRef) and x.dtype is own.dtype for x in sides)
    small = own.dtype.is_float and own.dtype.bits == 16 and len(own.shape) in (4, 5)
    plain = alike and small and own.alias is None
    return plain and all(is_rows(x.shape, x.strides) for x in sides)


def _places(own: Buffer, nest: Loops) -> tuple[Expr, ...]:
    """Where in a tensor a nest that runs over all of it stands; nothing if it does not."""
    left = iter(nest.axes)
    at = tuple(ZERO if s is ONE else next(left, ZERO) for s in own.shape)
    sizes = tuple(v.extent if isinstance(v, Var) else ONE for v in at)
    return at if next(left, None) is None and sizes == own.shape else ()


def _is_written(uses: Uses, c: Extern, nest: Loops) -> bool:
    """Whether somebody between writes what a convolution reads: the call will stand behind that."""
    first, last, root = uses.places[c.name], uses.places[nest.name], uses.program.root
    makers = (n for b in uses.reads[c.name] for n in uses.makers.get(root(b), ()))
    return any(first < uses.places[n] < last for n in makers)


def _activated(value: Node, of: DType) -> tuple[Node, str]:
    """What a nest stores without the last rounding, and without relu, if that is there."""
    value = _unrounded(value, of)
    if isinstance(value, Op) and value.name == "maximum":
        inner = [a for a in value.args if not (isinstance(a, Const) and a.value == 0)]
        if len(inner) == 1:
            return inner[0], "relu"
    return value, ""


def _unrounded(n: Node, of: DType) -> Node:
    return _unrounded(n.args[0], of) if _is_rounding(n, of) else n


def _is_rounding(n: Node, of: DType) -> bool:
    """Whether a node is another as a value of a type, or as float32."""
    if not isinstance(n, Op) or n.name not in ("cast", "round_to"):
        return False
    return (n.param or n.dtype) in (of, F32) and n.args[0].dtype in (of, F32)


def _is_another(uses: Uses, n: Node, own: Buffer) -> bool:
    """Whether what is added is computed from another convolution, and rounded as a result is.

    Stored, it is that one's result, and the nest that stores it may be part of its call.
    """
    made = (uses.maker(x.buffer) for x in loads((n,)))
    rounded = isinstance(n, Op) and n.name == "round_to" and n.param is own.dtype
    return rounded and any(isinstance(m, Extern) and m.target is TARGET for m in made)


class _NotASum(Exception):
    """A nest computes something else of a convolution."""


@dataclass(frozen=True)
class _Sums:
    """Takes values apart.  y: the convolution's element; channel: the variable of its channel."""

    y: Load
    channel: Expr

    def of(self, n: Node) -> Sum:
        if n is self.y:
            return Sum(ONCE)
        if self.y not in walk((n,)):
            rows = {*n.vars} <= {self.channel} and not n.folds
            return Sum(row=n) if rows else Sum(whole=n)
        if _is_rounding(n, self.y.dtype):
            return self.of(n.args[0])
        if not isinstance(n, Op) or n.dtype is not F32 or n.name not in ("add", "sub", "mul"):
            raise _NotASum
        left, right = map(self.of, n.args)
        if n.name != "mul":
            return _plus(left, _times(right, const(F32, -1.0)) if n.name == "sub" else right)
        left, right = (left, right) if left.scale else (right, left)
        if right.scale or right.whole or right.row is None:
            raise _NotASum
        return _times(left, right.row)


def _plus(a: Sum, b: Sum) -> Sum:
    if (a.scale and b.scale) or (a.whole and b.whole):
        raise _NotASum
    row = a.row + b.row if a.row and b.row else a.row or b.row
    return Sum(a.scale or b.scale, row, a.whole or b.whole)


def _times(a: Sum, factor: Node) -> Sum:
    if a.whole:
        raise _NotASum
    scale = factor if a.scale is ONCE else a.scale and a.scale * factor
    return Sum(scale, a.row and a.row * factor)


# --- the call -------------------------------------------------------------------------------------


def _replaced(p: Program, found: Mapping[str, tuple[Extern, Fused]]) -> Program:
    """The program in which calls stand in the places of nests.  found: by the nests' names."""
    calls = {c.name for c, _ in found.values()}
    lost = {o for c, _ in found.values() for o in c.outputs}
    buffers = {name: b for name, b in p.buffers.items() if name not in lost}
    nodes: list[ProgramNode] = []
    for n in p.nodes:
        if n.name in found:
            made, rows = _call(*found[n.name])
            nodes += made
            buffers |= {b.name: b for b in rows}
        elif n.name not in calls:
            nodes.append(n)
    names = {name: c.name for name, (c, _) in found.items()}
    bindings = tuple(
        replace(b, behind=names.get(b.behind or "", b.behind))
        for b in p.bindings
        if b.ref.buffer not in lost
    )
    return replace(p, nodes=tuple(nodes), buffers=buffers, bindings=bindings)


def _call(c: Extern, made: Fused) -> tuple[list[ProgramNode], list[Buffer]]:
    """The call, behind nests that compute what it needs; and the buffers that these fill."""
    given, total, own, origins = arguments(c), made.sum, made.result, made.nest.origins
    named: dict[str, object] = {"bias": made.bias, "added": made.added}
    wanted = {"scale": None if total.scale is ONCE else total.scale, "bias": total.row}
    rows = {k: v for k, v in wanted.items() if v is not None and made.bias is None}
    nodes: list[ProgramNode] = []
    buffers = []

    def stored(name: str, value: Node, like: Buffer, index: Expr) -> Store:
        b = replace(like, name=f"{c.name}_{name}", kind="temp")
        buffers.append(b)
        named[name] = b.whole
        return Store(b.name, index, cast(value, b.dtype), "set")

    if rows:
        row = Buffer("", F32, (made.channel.extent,), (ONE,), c.device)
        stores = tuple(stored(k, v, row, made.channel) for k, v in rows.items())
        nodes.append(Loops(f"{c.name}_rows", (made.channel,), (), stores, c.device, origins))
    if total.whole is not None and made.added is None:
        one = stored("added", total.whole, own, made.nest.stores[0].index)
        nodes.append(Loops(f"{c.name}_sum", made.nest.axes, (), (one,), c.device, origins))
    named |= {k: given[k] for k in ("stride", "padding", "dilation", "groups")}
    named["epilogue"] = made.epilogue
    call = Extern(
        c.name, convolution, CALL, (given["input"], given["weight"]),
        tuple((k, v) for k, v in named.items() if v is not None),
        made.nest.write_buffers(), c.device, REASON, out_variant=True,
        origins=tuple(dict.fromkeys((*c.origins, *origins))),
    )  # fmt: skip
    return [*nodes, call], buffers
