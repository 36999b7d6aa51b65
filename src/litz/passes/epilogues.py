"""What libraries compute behind a product: an activation of each element, rounded with it once.

In training that keeps its input as well, and a product of gradients is multiplied by its slope.
A nest is known by what it computes, however it is written: factors and terms in any order, and with
roundings between them that the library leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import ClassVar, Final

import torch

from litz.dataclass import dataclass
from litz.index import ONE, ZERO, product
from litz.index import Const as Size
from litz.ir.body import Const, Load, Node, Op, const, cost, load, loads, op
from litz.ir.dtype import F32
from litz.ir.program import Contraction, Extern, Loops, Program, ProgramNode, TensorRef
from litz.passes.rivals import Behind, part
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
ROOT, CUBE = 0.7978845608028654, 0.044715  # of GELU in its form by tanh

Form = str | tuple[object, ...]


@dataclass(frozen=True)
class Fused:
    """A nest that a library computes with a product.

    name: of the epilogue.  aux: what it keeps of the product, or is given: see ``Problem``.
    """

    nest: Loops
    name: str
    aux: TensorRef | None = None

    def out(self, program: Program, c: Contraction) -> TensorRef:
        """The result, where the nest stores it."""
        own = program.buffers[c.out]
        (store,) = self.nest.stores
        return TensorRef(store.buffer, own.dtype, own.shape, own.strides, ZERO)


def fused(uses: Uses, c: Contraction) -> Fused | None:
    """The nest behind a product that a library would compute with it.

    An activation alone, or one of a product that others read too; or an activation's gradient.
    """
    if not c.device.startswith(KIND) or "b" in c.axes or (c.alpha, c.beta) != (1, 1):
        return None
    sizes, own = c.axes.values(), uses.program.buffers[c.out]
    whole = all(isinstance(s, Size) and s.value % WHOLE == 0 < s.value for s in sizes)
    if not whole or own.kind != "temp" or own.alias is not None:
        return None
    readers = [*uses.readers.get(c.out, {}).values()]
    kept = len(readers) > 1 or c.out in uses.shown
    made = (_behind(uses, c, n, kept) for n in readers if isinstance(n, Loops))
    return next((f for f in made if f is not None), None)


def _behind(uses: Uses, c: Contraction, nest: Loops, kept: bool) -> Fused | None:
    """What a nest is behind a product.  kept: whether somebody else wants that too."""
    program = uses.program
    if nest.reduce_axes or len(nest.stores) != 1:
        return None
    (store,), own = nest.stores, program.buffers[c.out]
    target, read = program.buffers[store.buffer], loads((store.value,))
    plain = store.mode == "set" and store.mask is None and not store.indirect
    plain &= target.kind == "temp" and target.alias is None and target.dtype is own.dtype
    plain &= product(own.shape) is product(target.shape) and uses.maker(store.buffer) is nest
    same = all(x.index is store.index and not x.indirect and x.dtype is own.dtype for x in read)
    of = next((x for x in read if x.buffer == c.out), None)
    if not plain or not same or of is None or cost(store.value) > MOST:
        return None
    if len(read) == 1:
        name = activation(store.value, of)
        if kept:
            return Fused(nest, name, own.whole) if name == "gelu" and _is_plain(c, True) else None
        return Fused(nest, name) if name and _is_plain(c) else None
    x = next(x for x in read if x is not of)
    given = TensorRef(x.buffer, own.dtype, own.shape, own.strides, ZERO)
    there = all(
        uses.places[n] < uses.places[c.name] for n in uses.makers.get(program.root(x.buffer), ())
    )
    if kept or len(read) > 2 or not there or c.bias is not None:
        return None
    known = form(store.value, x, {of: "g"}) == _slope()
    return Fused(nest, "gelu_backward", given) if known else None


def _is_plain(c: Contraction, bare: bool = False) -> bool:
    """Whether a row is added to all, or, if ``bare``, nothing."""
    if c.bias is None:
        return bare
    return c.bias.shape == (c.axes["n"],) and c.bias.strides == (ONE,)


@dataclass(frozen=True)
class TakeEpilogues:
    """Products and activations behind them become one call of the library that has both.

    measured: kinds of devices on which all libraries are measured, and tried on what is not
    finite, when the call first runs.  plain: activations that ATen's own call of both keeps such
    as they are: of which that is known without.  rivals: measures both ways where somebody can.
    """

    measured: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    rivals: Behind | None = field(default=None, repr=False)
    name: ClassVar[str] = "take epilogues"

    def __call__(self, program: Program) -> Program:
        products = [n for n in program.nodes if isinstance(n, Contraction)]
        if not products or not (self.measured or self.plain):
            return program
        uses = Uses(program)
        found = {
            c.name: (c, made)
            for c in products
            if (made := self.takes(uses, c)) is not None and self._pays(uses, c, made)
        }
        return self._replaced(program, found) if found else program

    def _pays(self, uses: Uses, c: Contraction, made: Fused) -> bool:
        """Whether one call is as quick as a product and a kernel behind it."""
        if self.rivals is None or (apart := part(uses, (c, made.nest))) is None:
            return True
        tried = self.rivals(self._replaced(apart, {c.name: (c, made)}), apart)
        return tried is None or tried.index == 0

    def takes(self, uses: Uses, c: Contraction) -> Fused | None:
        """The nest that becomes part of a product's call."""
        made = fused(uses, c)
        plain = made is not None and made.name in self.plain and made.aux is None
        return made if plain or self._measures(c) else None

    def _measures(self, c: Contraction) -> bool:
        return c.device.partition(":")[0] in self.measured

    def _replaced(self, p: Program, found: Mapping[str, tuple[Contraction, Fused]]) -> Program:
        behind = {made.nest.name: c.name for c, made in found.values()}
        lost = {c.out for c, made in found.values() if made.aux is None or made.aux.buffer != c.out}

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
        out, (*row, left, right) = made.out(p, c), c.refs()
        target: object = aten._addmm_activation.out
        text, given, reason = str(target), (*row, left, right), REASON
        named: tuple[tuple[str, object], ...] = (("use_gelu", made.name == "gelu"),)
        if self._measures(c):
            target, text, given, reason = product_call, PRODUCT, (left, right, *row), MEASURED
            aux = () if made.aux is None else (("aux", made.aux),)
            named = (("epilogue", made.name), *aux)
        reason = f"{reason}; {c.reason}" if c.reason else reason
        kept = made.aux is not None and made.aux.buffer == c.out
        outputs = (out.buffer, c.out) if kept else (out.buffer,)
        return Extern(
            c.name, target, text, given, (*named, ("out", out)), outputs, c.device, reason,
            single=not kept, out_variant=True, origins=(*c.origins, *made.nest.origins),
        )  # fmt: skip


# --- forms ----------------------------------------------------------------------------------------


def activation(value: Node, of: Load) -> str:
    """The name of an activation of what is loaded; "" for what has none here."""
    return _known().get(form(value, of), "") if cost(value) <= MOST else ""


@lru_cache(maxsize=1)
def _known() -> Mapping[Form, str]:
    x = load(F32, "x", ZERO)
    return {
        form(0.5 * x * (1.0 + _tanh(x)), x): "gelu",
        form(op("maximum", x, const(F32, 0.0)), x): "relu",
    }


def _tanh(x: Node) -> Node:
    return op("tanh", ROOT * (x + CUBE * (x * x * x)))


@lru_cache(maxsize=1)
def _slope() -> Form:
    """The gradient of GELU in its form by tanh, as it is lowered."""
    x, g = load(F32, "x", ZERO), load(F32, "g", ZERO)
    t, slope = _tanh(x), ROOT * (1.0 + 3 * CUBE * (x * x))
    return form(g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope), x, {g: "g"})


def form(n: Node, x: Load, known: dict[Node, Form] | None = None) -> Form:
    """What a node computes from ``x``, in float32: equal for equal sums and products.

    Roundings to the type of ``x`` are none; those to others are part of it.
    """
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
    if n.name in ("cast", "round_to") and n.args[0].dtype.is_float:
        if (n.param or n.dtype) in (F32, x.dtype):
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
