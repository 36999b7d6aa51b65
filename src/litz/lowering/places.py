"""Integers that are computed from where an element lies, as index expressions.

Reads at such places need no tables, no checks and no gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from litz.index import Const, Expr, FloorDiv, Mod, Var, const, divisions, floordiv, max_, min_, mod
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node

_EXPRESSIONS: Final[Mapping[str, Callable[[Expr, Expr], Expr]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "minimum": min_,
    "maximum": max_,
    "floordiv": floordiv,
    "mod": mod,
}
_SMALL: Final = 1 << 62


@lru_cache(maxsize=4096)
def place_of(n: Node) -> Expr | None:
    """The expression that an i64 node is, if its values are known to be small; else None."""
    if isinstance(n, body.Index):
        return n.expr
    if isinstance(n, body.Const):
        return const(int(n.value)) if n.dtype is d.I64 else None
    if not isinstance(n, body.Op) or n.dtype is not d.I64 or n.name not in _EXPRESSIONS:
        return None
    a, b = map(place_of, n.args)
    if a is None or b is None:
        return None
    divides = n.name in ("floordiv", "mod")
    if divides and not (isinstance(b, Const) and b.value > 0):
        return None
    if n.name == "mul" and not (a.is_const or b.is_const):
        return None
    e = _EXPRESSIONS[n.name](a, b)
    # Expressions do not wrap around.
    return e if e.lo is not None and e.hi is not None and -_SMALL < e.lo <= e.hi < _SMALL else None


def is_quick(e: Expr, on_gpu: bool) -> bool:
    """Whether it pays to read at a place rather than at a number from a table.

    On CPUs lanes have to lie as vectors do: side by side, which those of a half do once odd and
    even places are told apart, or each element in two or four of them.
    """
    return on_gpu or all(map(_is_quick, divisions((e,))))


def _is_quick(part: FloorDiv | Mod) -> bool:
    by = part.den.value if isinstance(part.den, Const) else 0
    sizes = [getattr(v, "extent", None) for v in part.free]
    whole = by > 0 and all(isinstance(s, Const) and s.value % by == 0 for s in sizes)
    repeats = by == 4 and isinstance(part, FloorDiv) and isinstance(part.num, Var)
    return whole and (by == 2 or repeats)
