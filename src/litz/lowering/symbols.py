"""Sizes at the border: torch's ``SymInt`` to an index expression, and where each symbol's value
comes from.

A size that index algebra holds exactly becomes an expression over the shape environment's symbols.
A part that it cannot hold (``int(1.7 * s)``) becomes a symbol of its own: a *part*.  Every symbol
is given its value once: by an input, by the result of a call, or by the host's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from math import lcm
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from litz.dataclass import dataclass
from litz.index import Const, Expr, Symbol, const, size_hint, split_linear, symbol
from litz.index.border import NotRepresentable, from_sympy
from litz.ir.program import HostFloat
from litz.lowering.context import GraphUnsupported

# Above this a bound means "unbounded" (ShapeEnv uses sys.maxsize - 1 and friends).
UNBOUNDED = 1 << 48


def _bound(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return number if -UNBOUNDED < number < UNBOUNDED else None


@dataclass
class Symbols:
    """The symbols of one graph.

    scope: by the shape environment's names.  parts: the symbols of integers outside of index
    algebra, by their sympy expression.  given: names of what has a value at this point of the
    program.  data: names of what has its value from tensors' elements.  floats: by the shape
    environment's names.  inputs: (symbol, argument, dimension) as ``Program.symbols`` has them.
    ones: whether sizes that were 1 in the run that was traced are 1 in all.  units: the computed
    ones among them, by their sympy expression: strides are products of them too.
    """

    scope: dict[str, Expr] = field(default_factory=dict)
    parts: dict[Any, Symbol] = field(default_factory=dict)
    meanings: dict[str, Any] = field(default_factory=dict)
    given: dict[str, None] = field(default_factory=dict)
    data: dict[str, None] = field(default_factory=dict)
    floats: dict[str, HostFloat] = field(default_factory=dict)
    inputs: list[tuple[Expr, int, int | None]] = field(default_factory=list)
    unsolved: list[tuple[Expr, int, int | None]] = field(default_factory=list)
    env: Any = None
    ones: dict[Expr, bool] = field(default_factory=dict)
    units: dict[Any, Any] = field(default_factory=dict)
    count: int = 0
    taken: set[str] = field(default_factory=set)

    # --- conversion -------------------------------------------------------------------------

    def convert(self, value: Any) -> Expr:
        """An int or SymInt as an expression, whose symbols may have no value yet (``missing``)."""
        if isinstance(value, int):
            return const(int(value))
        if not isinstance(value, torch.SymInt):
            raise GraphUnsupported(f"a size of type {type(value).__name__}")
        if value.node.is_nested_int():
            raise GraphUnsupported("a ragged tensor")
        self.env = value.node.shape_env
        expr = value.node.expr
        found = self.from_sympy(expr.xreplace(self.units) if self.units else expr)
        if not self.is_one(value, found):
            return found
        if not expr.is_Symbol:
            self.units[expr] = expr**0
        return const(1)

    def settle_ones(self, sizes: Iterable[Any]) -> None:
        """Write 1 for symbols of a call's results that are 1, wherever they occur from here on.

        The sizes of results are checked, so that nothing has to give such a symbol a value.
        """
        for value in sizes:
            if isinstance(value, torch.SymInt) and self.convert(value) == const(1):
                name = str(value.node.expr)
                if isinstance(self.scope.get(name), Symbol) and name not in self.given:
                    self.scope[name] = const(1)

    def as_written(self, value: Any) -> Expr:
        """A size in its own symbols, though it may be known to be 1: what gives them a value."""
        if not isinstance(value, torch.SymInt):
            return self.convert(value)
        self.convert(value)
        return self.from_sympy(value.node.expr)

    def is_one(self, value: torch.SymInt, e: Expr) -> bool:
        """Whether a guard or a check makes a size 1: what it is broadcast to may be longer."""
        if not e.free or (e.lo is not None and e.lo > 1):
            return False
        backed = all(not isinstance(s, Symbol) or s.hint is not None for s in e.free)
        if backed and size_hint(e) != 1:
            return False
        if e not in self.ones:
            self.ones[e] = bool(statically_known_true(value == 1))
        return self.ones[e]

    def from_sympy(self, expr: Any) -> Expr:
        """An integer expression or a truth value."""
        for sym in sorted(expr.free_symbols, key=str):
            self._declare(sym)
        try:
            return from_sympy(expr, self.scope, self.part)
        except NotRepresentable as e:
            raise GraphUnsupported(f"size {expr} is no arithmetic that Litz knows: {e}") from e

    def _declare(self, sym: Any) -> None:
        name = str(sym)
        if name in self.scope or not getattr(sym, "is_integer", False):
            return
        ranges = self.env.bound_sympy(sym)
        known = getattr(self.env, "backed_var_to_val", {})
        lo, hi, hint = map(_bound, (ranges.lower, ranges.upper, known.get(sym)))
        step = self._step(sym)
        if step == 1:
            self.scope[name] = symbol(name, lo, hi, hint)
            return
        # Of a size that a guard has found divisible, the quotient is the symbol.
        lo, hi = None if lo is None else -(-lo // step), None if hi is None else hi // step
        part = symbol(self.fresh(f"{name}_by"), lo, hi, None if hint is None else hint // step)
        self.scope[name] = part * step

    def _step(self, sym: Any) -> int:
        """A number that divides the size, by what the shape environment has guarded."""
        step = 1
        for e in getattr(self.env, "divisible", ()):
            if len(e.args) == 2 and e.args[0] == sym and getattr(e.args[1], "is_Integer", False):
                step = lcm(step, int(e.args[1]))
        return step

    def part(self, expr: Any) -> Symbol:
        """The symbol of an integer expression that index algebra does not hold."""
        found = self.parts.get(expr)
        if found is None:
            ranges = self.env.bound_sympy(expr)
            known = getattr(self.env, "backed_var_to_val", {})
            hint = _bound(expr.xreplace(known)) if known else None
            name = self.fresh("part")
            found = symbol(name, _bound(ranges.lower), _bound(ranges.upper), hint)
            self.parts[expr] = found
            self.meanings[name] = expr
        return found

    def fresh(self, prefix: str) -> str:
        """A name for another number; none of the graph's has it."""
        self.count += 1
        while f"{prefix}_{self.count}" in self.taken:
            self.count += 1
        return f"{prefix}_{self.count}"

    # --- values -----------------------------------------------------------------------------

    def missing(self, exprs: Iterable[Expr]) -> tuple[Symbol, ...]:
        """The symbols of ``exprs`` that nothing has given a value yet, each once."""
        free = {s: None for e in exprs for s in e.free if isinstance(s, Symbol)}
        return tuple(s for s in free if str(s) not in self.given)

    def knows(self, e: Any) -> bool:
        """Whether all symbols of a sympy expression have a value."""
        names = [str(s) for s in e.free_symbols]
        if not all(n in self.scope or n in self.floats for n in names):
            return False
        return not self.missing(self.scope[n] for n in names if n in self.scope)

    def give(self, number: Expr | HostFloat, *, data: bool = False) -> None:
        name = number.name if isinstance(number, HostFloat) else str(number)
        self.given[name] = None
        if data:
            self.data[name] = None

    def from_data(self, numbers: Iterable[object]) -> bool:
        """Whether a number depends on the elements of tensors."""
        for x in numbers:
            names = [x.name] if isinstance(x, HostFloat) else []
            names = [str(s) for s in x.free] if isinstance(x, Expr) else names
            if any(name in self.data for name in names):
                return True
        return False

    def input(self, e: Expr, position: int, dim: int | None) -> None:
        """An input gives ``e`` its value."""
        if isinstance(e, Symbol):
            self.inputs.append((e, position, dim))
            self.give(e)
        elif not e.is_const:
            self.unsolved.append((e, position, dim))


@dataclass(frozen=True)
class Solution:
    """``unknown = (e - rest) // coefficient``, for an ``e`` whose value is known."""

    unknown: Symbol
    rest: Expr
    coefficient: int


def solve(e: Expr, missing: tuple[Symbol, ...]) -> Solution | None:
    """``e`` solved for its only symbol without a value, if it is linear in it."""
    if len(missing) != 1:
        return None
    split = split_linear(e, missing)
    if split is None:
        return None
    coefficient = split[0][missing[0]]
    if not isinstance(coefficient, Const) or coefficient.value == 0:
        return None
    return Solution(missing[0], split[1], coefficient.value)
