"""Plans' instructions as they are written: words, and registers of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from litz.index import Expr, as_expr
from litz.index import expr as ix
from litz.runtime.plan import NUMBER_OF

_BITS: Final = 63


class Unplanned(Exception):
    """What has no instruction; the message says which line or value that is."""


class Words:
    """Instructions and the number registers that they use, each expression in one of its own."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.numbers: list[int | None] = []
        self.number_of: dict[Expr, int] = {}
        self.dims_of: dict[tuple[Expr, ...], list[int]] = {}

    def symbol(self, name: str) -> int:
        """The register of a symbol."""
        raise Unplanned(f"the number {name}")

    def emit(self, op: str, *operands: int | list[int]) -> None:
        self.words.append(NUMBER_OF[op])
        for o in operands:
            self.words += o if isinstance(o, list) else (o,)

    def number(self, e: Expr) -> int:
        """The register with the value of an expression, which is computed once."""
        found = self.number_of.get(e)
        if found is None:
            found = self._computed(e)
            self.number_of[e] = found
        return found

    def _constant(self, value: int) -> int:
        if value.bit_length() > _BITS:
            raise Unplanned(f"the number {value}")
        self.numbers.append(value)
        return len(self.numbers) - 1

    def register(self) -> int:
        """A register for a number that an instruction makes."""
        self.numbers.append(None)
        return len(self.numbers) - 1

    def _computed(self, e: Expr) -> int:
        match e:
            case ix.Const():
                return self._constant(e.value)
            case ix.Symbol():
                return self.symbol(e.name)
            case ix.Sum():
                terms: list[Expr] = [t * c for t, c in e.terms] if len(e.terms) > 1 else []
                if not terms:
                    ((term, factor),) = e.terms
                    if not e.const:
                        return self._folded("mul", (term, as_expr(factor)))
                    terms = [term * factor]
                return self._folded("add", (*terms, *([as_expr(e.const)] if e.const else [])))
            case ix.Product():
                return self._folded("mul", e.factors)
            case ix.FloorDiv():
                return self._folded("floordiv", (e.num, e.den))
            case ix.Mod():
                return self._folded("mod", (e.num, e.den))
            case ix.Min() | ix.Max() | ix.And() | ix.Or():
                return self._folded(type(e).__name__.lower(), e.args)
            case ix.Cmp():
                return self._folded(e.op, (e.a, e.b))
            case ix.Not():
                out = self.register()
                self.emit("not", out, self.number(e.arg))
                return out
        raise Unplanned(f"the number {e}")

    def _folded(self, op: str, args: Iterable[Expr]) -> int:
        first, *rest = [self.number(a) for a in args]
        for other in rest:
            out = self.register()
            self.emit(op, out, first, other)
            first = out
        return first

    def dims(self, exprs: Iterable[Expr]) -> list[int]:
        key = tuple(exprs)
        if (known := self.dims_of.get(key)) is None:
            self.dims_of[key] = known = [len(key), *(self.number(e) for e in key)]
        return known
