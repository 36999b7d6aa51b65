"""What libraries compute behind a product: an activation of each element, rounded with it once.

A nest is known by what it computes, however it is written: factors and terms in any order, and with
roundings between them that the library leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Final

import torch

from litz.dataclass import dataclass
from litz.index import ONE, ZERO, product
from litz.index import Const as Size
from litz.ir.body import Const, Load, Node, Op, const, cost, load, loads, op
from litz.ir.dtype import F32
from litz.ir.program import Contraction, Extern, Loops, Program, ProgramNode, TensorRef
from litz.passes.uses import Uses
from litz.runtime.products import product as product_call

aten = torch.ops.aten
KIND: Final = "cuda"  # of the devices whose libraries have them
WHOLE: Final = 8  # elements that sizes are multiples of where libraries are at their best
REASON: Final = "a matrix product and what is behind it: ATen's libraries compute both"
MEASURED: Final = "a matrix product: the library that is measured to be the quickest computes it"
PRODUCT: Final = "litz.runtime.products.product"
DIGITS: Final = 6  # of constants, as float32 holds them
MOST: Final = 100  # cost of an activation, however it is written

Form = str | tuple[object, ...]


@dataclass(frozen=True)
class Fused:
    """A nest that a library computes with a product.  name: of the activation."""

    nest: Loops
    name: str

    def out(self, program: Program, c: Contraction) -> TensorRef:
        """The result, where the nest stores it."""
        own = program.buffers[c.out]
        (store,) = self.nest.stores
        return TensorRef(store.buffer, own.dtype, own.shape, own.strides, ZERO)


def fused(uses: Uses, c: Contraction) -> Fused | None:
    """The nest behind a product that a library would compute with it, if it is alone there."""
    program = uses.program
    if not c.device.startswith(KIND) or not _has_row(c):
        return None
    sizes = c.axes.values()
    if not all(isinstance(s, Size) and s.value % WHOLE == 0 for s in sizes):
        return None
    own, readers = program.buffers[c.out], [*uses.readers.get(c.out, {}).values()]
    apart = own.kind == "temp" and own.alias is None and c.out not in uses.shown
    (nest,) = readers if len(readers) == 1 else (None,)
    if not apart or not isinstance(nest, Loops) or nest.reduce_axes or len(nest.stores) != 1:
        return None
    (store,), read = nest.stores, loads((nest.stores[0].value,))
    target = program.buffers[store.buffer]
    plain = store.mode == "set" and store.mask is None and not store.indirect
    plain &= target.kind == "temp" and target.alias is None and target.dtype is own.dtype
    whole = product(s for s in own.shape) is product(s for s in target.shape)
    if not plain or not whole or uses.maker(store.buffer) is not nest or len(read) != 1:
        return None
    same = read[0].buffer == c.out and read[0].index is store.index and not read[0].indirect
    name = activation(store.value, read[0])
    return Fused(nest, name) if same and name else None


def _has_row(c: Contraction) -> bool:
    """Whether a row is added to all, and nothing is scaled."""
    row = c.bias is not None and c.bias.shape == (c.axes["n"],) and c.bias.strides == (ONE,)
    return row and "b" not in c.axes and (c.alpha, c.beta) == (1, 1)


@dataclass(frozen=True)
class TakeEpilogues:
    """Products and activations behind them become one call of the library that has both.

    measured: kinds of devices on which all libraries are measured, and tried on what is not
    finite, when the call first runs.  plain: activations that ATen's own call of both keeps such
    as they are: of which that is known without.
    """

    measured: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    name: ClassVar[str] = "take epilogues"

    def __call__(self, program: Program) -> Program:
        some = any(isinstance(n, Contraction) and _has_row(n) for n in program.nodes)
        if not some or not (self.measured or self.plain):
            return program
        uses = Uses(program)
        found = {
            n.name: (n, made)
            for n in program.nodes
            if isinstance(n, Contraction) and (made := self.takes(uses, n)) is not None
        }
        return self._replaced(program, found) if found else program

    def takes(self, uses: Uses, c: Contraction) -> Fused | None:
        """The nest that becomes part of a product's call."""
        made = fused(uses, c)
        known = made is not None and (self._measures(c) or made.name in self.plain)
        return made if known else None

    def _measures(self, c: Contraction) -> bool:
        return c.device.partition(":")[0] in self.measured

    def _replaced(self, p: Program, found: Mapping[str, tuple[Contraction, Fused]]) -> Program:
        behind = {made.nest.name: c.name for c, made in found.values()}
        lost = {c.out for c, _ in found.values()}

        def nodes() -> Iterator[ProgramNode]:
            for n in p.nodes:
                if n.name in found:
                    yield self._call(p, *found[n.name])
                elif n.name not in behind:
                    yield n

        bindings = tuple(
            replace(b, behind=behind.get(b.behind or "", b.behind))
            for b in p.bindings
            if b.ref.buffer not in lost
        )
        buffers = {name: b for name, b in p.buffers.items() if name not in lost}
        return replace(p, nodes=tuple(nodes()), buffers=buffers, bindings=bindings)

    def _call(self, p: Program, c: Contraction, made: Fused) -> Extern:
        out, (row, left, right) = made.out(p, c), c.refs()
        target: object = aten._addmm_activation.out
        text, given, reason = str(target), (row, left, right), REASON
        named: tuple[str, object] = ("use_gelu", made.name == "gelu")
        if self._measures(c):
            target, text, given, reason = product_call, PRODUCT, (left, right, row), MEASURED
            named = ("epilogue", made.name)
        reason = f"{reason}; {c.reason}" if c.reason else reason
        return Extern(
            c.name, target, text, given, (named, ("out", out)), (out.buffer,), c.device, reason,
            out_variant=True, origins=(*c.origins, *made.nest.origins),
        )  # fmt: skip


# --- forms ----------------------------------------------------------------------------------------


def activation(value: Node, of: Load) -> str:
    """The name of an activation of what is loaded; "" for what has none here."""
    return _known().get(form(value, of), "") if cost(value) <= MOST else ""


@lru_cache(maxsize=1)
def _known() -> Mapping[Form, str]:
    x = load(F32, "x", ZERO)
    cube = x * x * x
    gelu = 0.5 * x * (1.0 + op("tanh", 0.7978845608028654 * (x + 0.044715 * cube)))
    return {
        form(gelu, x): "gelu",
        form(op("maximum", x, const(F32, 0.0)), x): "relu",
    }


def form(n: Node, x: Load, known: dict[Node, Form] | None = None) -> Form:
    """What a node computes from ``x``, in float32: equal for equal sums and products."""
    known = {} if known is None else known
    if n not in known:
        known[n] = _form(n, x, known)
    return known[n]


def _form(n: Node, x: Load, known: dict[Node, Form]) -> Form:
    if n is x:
        return "x"
    if isinstance(n, Const):
        return ("number", _rounded(float(n.value)))
    if not isinstance(n, Op):
        return ("other", id(n))
    parts = [form(a, x, known) for a in n.args]
    if n.name in ("cast", "round_to") and n.dtype.is_float and n.args[0].dtype.is_float:
        return parts[0]
    if n.name in ("mul", "add"):
        return _joined(n.name, parts)
    return (n.name, *(sorted(parts, key=repr) if n.name == "maximum" else parts))


def _joined(name: str, parts: list[Form]) -> Form:
    """A product or a sum: one number, and what is multiplied or added, in order."""
    number, rest = 1.0 if name == "mul" else 0.0, []
    todo = parts
    while todo:
        p = todo.pop()
        if p[0] == name and isinstance(p, tuple):
            todo += [("number", p[1]), *p[2:]]  # type: ignore[list-item]
        elif p[0] == "number" and isinstance(p, tuple):
            number = number * p[1] if name == "mul" else number + p[1]  # type: ignore[operator]
        else:
            rest.append(p)
    return (name, _rounded(number), *sorted(rest, key=repr))


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
