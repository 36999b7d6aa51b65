"""Text of expressions: readable canonical text, its parser, and printing in a target's dialect."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from litz.dataclass import dataclass
from litz.index import logic
from litz.index.expr import (
    ZERO,
    And,
    Cmp,
    Const,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Not,
    Or,
    Product,
    Sum,
    Symbol,
    Var,
    const,
)
from litz.index.prove import provably_le

_SUM, _MUL, _ATOM = range(3)
_OPS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}


@dataclass(frozen=True)
class Dialect:
    """How a target spells expressions. Templates take their operands by position.

    ``div``/``mod`` serve operands that are proven non-negative, ``floordiv``/``floormod`` all
    others; their operands are atoms or stand in parentheses, a helper call's operands stand bare.
    """

    div: str = "{0} // {1}"
    mod: str = "{0} % {1}"
    floordiv: str = "{0} // {1}"
    floormod: str = "{0} % {1}"
    min: str = "min({0}, {1})"
    max: str = "max({0}, {1})"
    and_: str = "({0} and {1})"
    or_: str = "({0} or {1})"
    not_: str = "(not {0})"
    as_int: str = "{0}"
    """Wraps a truth value that is used as a number."""
    wide: str = "{0}"
    """Wraps the digits of a constant beyond 32 bits."""
    bits: int | None = None
    """Width of the integer type; constants beyond it are refused."""
    nary: bool = False
    """Whether min and max take any number of arguments."""


PYTHON = Dialect(nary=True)
_TEXT = Dialect(div="{0}//{1}", mod="{0}%{1}", floordiv="{0}//{1}", floormod="{0}%{1}", nary=True)
CPP = Dialect(
    div="{0} / {1}",
    floordiv="litz::floordiv({0}, {1})",
    floormod="litz::floormod({0}, {1})",
    min="litz::imin({0}, {1})",
    max="litz::imax({0}, {1})",
    and_="({0} && {1})",
    or_="({0} || {1})",
    not_="(!{0})",
    as_int="int64_t{0}",
    wide="{0}LL",
    bits=64,
)
TRITON = Dialect(
    floordiv="litz.floordiv_index({0}, {1})",
    floormod="litz.floormod_index({0}, {1})",
    min="tl.minimum({0}, {1})",
    max="tl.maximum({0}, {1})",
    and_="({0} & {1})",
    or_="({0} | {1})",
    not_="({0} == 0)",
    as_int="tl.where({0}, 1, 0)",
    bits=64,
)


def to_text(e: Expr) -> str:
    """The canonical text, which is what ``str`` gives; `parse` reads it back."""
    if isinstance(e, Const):
        return str(e.value)
    return _Printer(_TEXT, None).print(e)


def render(e: Expr, dialect: Dialect, names: Mapping[str, str] | None = None) -> str:
    """``e`` in a target's spelling. ``names`` renames leaves; those it lacks keep their names.

    Raises ValueError for a constant that the target's integers cannot hold.
    """
    return _Printer(dialect, names).print(e)


def _paren(text: str) -> str:
    return f"({text})"


class _Printer:
    """One printing: each method returns text and how tightly it binds."""

    def __init__(self, dialect: Dialect, names: Mapping[str, str] | None) -> None:
        self._d = dialect
        self._names = names or {}

    def print(self, e: Expr) -> str:
        return self._any(e)[0]

    def _any(self, e: Expr) -> tuple[str, int]:
        if isinstance(e, (Symbol, Var)):
            return self._names.get(e.name, e.name), _ATOM
        if isinstance(e, Const):
            return self._const(e.value)
        if isinstance(e, Sum):
            return self._sum(e)
        if isinstance(e, Product):
            return "*".join(self._number(f, _ATOM) for f in e.factors), _MUL
        if isinstance(e, FloorDiv):
            return self._division(e, self._d.div, self._d.floordiv)
        if isinstance(e, Mod):
            return self._division(e, self._d.mod, self._d.floormod)
        if isinstance(e, (Min, Max)):
            return self._extremum(e), _ATOM
        if isinstance(e, Cmp):
            return f"({self._number(e.a)} {_OPS[e.op]} {self._number(e.b)})", _ATOM
        return self._logic(e), _ATOM

    def _number(self, e: Expr, tight: int = _SUM) -> str:
        """``e`` as a number, in parentheses unless it binds at least as tightly."""
        text, binds = self._any(e)
        if isinstance(e, (Cmp, And, Or, Not)):
            return self._d.as_int.format(text)
        return text if binds >= tight else _paren(text)

    def _const(self, value: int) -> tuple[str, int]:
        bits = self._d.bits
        if bits is not None:
            if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
                raise ValueError(f"constant {value} does not fit in {bits} bits")
            if value == -(1 << (bits - 1)) and self._d.wide != "{0}":
                # C has no negative literals: the digits alone would overflow.
                return f"({self._const(value + 1)[0]} - 1)", _ATOM
        text = str(value)
        if not -(1 << 31) < value < 1 << 31:
            text = self._d.wide.format(text)
        return text, _SUM if value < 0 else _ATOM

    def _sum(self, e: Sum) -> tuple[str, int]:
        terms = [tc for tc in e.terms if tc[1] > 0]
        leading = bool(terms) or e.const <= 0
        terms += [tc for tc in e.terms if tc[1] < 0]
        pieces = [(self._term(t, abs(c)), c < 0) for t, c in terms]
        if terms[0][1] == -1 and isinstance(terms[0][0], (FloorDiv, Mod)):
            # A leading minus binds tighter than a division.
            pieces[0] = (self._number(terms[0][0], _ATOM), True)
        if e.const:
            at = len(pieces) if leading else 0
            # The least integer's digits alone do not fit.
            negative = e.const < 0 and not (self._d.bits and e.const == -(1 << (self._d.bits - 1)))
            shown = -e.const if negative else e.const
            pieces.insert(at, (self._const(shown)[0], negative))
        if len(pieces) == 1 and not pieces[0][1]:
            return pieces[0][0], _MUL
        first, negative = pieces[0]
        text = "-" + first if negative else first
        for piece, negative in pieces[1:]:
            text += (" - " if negative else " + ") + piece
        return text, _SUM

    def _term(self, t: Expr, c: int) -> str:
        if c == 1:
            return self._number(t, _MUL)
        if isinstance(t, Product):
            return f"{self._const(c)[0]}*{self._any(t)[0]}"
        return f"{self._const(c)[0]}*{self._number(t, _ATOM)}"

    def _division(self, e: FloorDiv | Mod, plain: str, general: str) -> tuple[str, int]:
        template = plain if provably_le(ZERO, e.num) and provably_le(ZERO, e.den) else general
        if template.endswith(")"):
            return template.format(self._number(e.num), self._number(e.den)), _ATOM
        return template.format(self._number(e.num, _ATOM), self._number(e.den, _ATOM)), _MUL

    def _extremum(self, e: Min | Max) -> str:
        template = self._d.min if isinstance(e, Min) else self._d.max
        args = [self._number(a) for a in e.args]
        if self._d.nary:
            return template.format(args[0], ", ".join(args[1:]))
        text = args[0]
        for a in args[1:]:
            text = template.format(text, a)
        return text

    def _logic(self, e: Expr) -> str:
        if isinstance(e, Not):
            return self._d.not_.format(self._any(e.arg)[0])
        assert isinstance(e, (And, Or))
        template = self._d.and_ if isinstance(e, And) else self._d.or_
        text = self._any(e.args[0])[0]
        for a in e.args[1:]:
            text = template.format(text, self._any(a)[0])
        return text


def parse(text: str, scope: Mapping[str, Expr]) -> Expr:
    """The expression that ``text`` spells, names taken from ``scope``; the inverse of ``str``.

    Raises ValueError for text that is no index expression, KeyError for an unknown name.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as e:
        raise ValueError(f"not an index expression: {text!r}") from e
    return _Reader(text, scope).read(tree.body)


_BINARY: dict[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Expr, Expr], Expr]] = {
    ast.Eq: logic.eq,
    ast.NotEq: logic.ne,
    ast.Lt: logic.lt,
    ast.LtE: logic.le,
    ast.Gt: logic.gt,
    ast.GtE: logic.ge,
}
_CALLS: dict[str, Callable[..., Expr]] = {"min": logic.min_, "max": logic.max_}


class _Reader:
    def __init__(self, text: str, scope: Mapping[str, Expr]) -> None:
        self._text = text
        self._scope = scope

    def read(self, n: ast.expr) -> Expr:
        if isinstance(n, ast.Name):
            return self._scope[n.id]
        if isinstance(n, ast.Constant) and type(n.value) is int:
            return const(n.value)
        if isinstance(n, ast.BinOp) and type(n.op) in _BINARY:
            return _BINARY[type(n.op)](self.read(n.left), self.read(n.right))
        if isinstance(n, ast.UnaryOp):
            return self._unary(n)
        if isinstance(n, ast.Compare) and len(n.ops) == 1 and type(n.ops[0]) in _COMPARE:
            return _COMPARE[type(n.ops[0])](self.read(n.left), self.read(n.comparators[0]))
        if isinstance(n, ast.BoolOp):
            join = logic.and_ if isinstance(n.op, ast.And) else logic.or_
            return join(*(self.read(v) for v in n.values))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and not n.keywords:
            call = _CALLS.get(n.func.id)
            if call is not None and n.args:
                return call(*(self.read(a) for a in n.args))
        raise self._error(n)

    def _unary(self, n: ast.UnaryOp) -> Expr:
        if isinstance(n.op, ast.USub):
            return -self.read(n.operand)
        if isinstance(n.op, ast.Not):
            return logic.not_(self.read(n.operand))
        raise self._error(n)

    def _error(self, n: ast.expr) -> ValueError:
        piece = ast.get_source_segment(self._text.strip(), n)
        return ValueError(f"not an index expression: {piece!r} in {self._text!r}")
