"""The nodes of the index algebra: immutable, interned integer expressions.

Nodes are made by the constructor functions (``arith``, ``division``, ``logic``), which bring their
arguments to canonical form first; a node class called directly trusts its arguments. Interning
makes equality identity: two expressions are equal if and only if they are the same object.

The files of this room, each of which imports those before it alone: ``interning`` and ``interval``,
the nodes here, sums and products (``arith``), proofs (``prove``), divisions (``division``), sums of
quotients and remainders (``recombine``), comparisons (``logic``), text, questions (``query``),
layouts, and the border to sympy. What leads back up goes through the table ``Rules``.

Bounds, sort key and free leaves are computed when they are first asked for and then kept in their
slots, because most intermediate expressions are never asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from litz.index import interval as _interval
from litz.index.interning import find, interned, publish

_E = TypeVar("_E", bound="Expr")
_Bounds = tuple["int | None", "int | None"]


class Rules:
    """What operators on nodes do, and how sums recombine: functions of the files above.

    A sum may need a division (``d*(x//d) + x%d`` is ``x``), a division a proof of ranges, and a
    proof sums: that recursion is in the nature of the form. It is closed in this one place, which
    ``litz.index`` fills when it is imported.
    """

    add: Callable[[Expr, Expr], Expr]
    sub: Callable[[Expr, Expr], Expr]
    mul: Callable[[Expr, Expr], Expr]
    scale: Callable[[Expr, int], Expr]
    floordiv: Callable[[Expr | int, Expr | int], Expr]
    mod: Callable[[Expr | int, Expr | int], Expr]
    recombine: Callable[[int, dict[Expr, int]], tuple[int, dict[Expr, int]]]
    to_text: Callable[[Expr], str]


class Expr:
    """An integer-valued expression. ``lo``/``hi`` are proven inclusive bounds (None: unbounded)."""

    __slots__ = ("__weakref__", "free", "hi", "key", "lo")

    lo: int | None
    hi: int | None
    key: tuple[Any, ...]
    """Deterministic sort key: depends on structure alone."""
    free: tuple[Expr, ...]
    """The distinct Symbol and Var leaves, sorted by ``key``."""

    _fields: ClassVar[tuple[str, ...]]
    """What the constructor takes."""
    is_const: ClassVar[bool] = False
    is_bool: bool = False
    """True for expressions that are truth values (0 or 1) by construction."""
    has_div: bool = False
    """True for monomials with a FloorDiv factor, which sums try to recombine."""

    if not TYPE_CHECKING:
        # Reached only while a slot is still empty, so that later reads cost a plain slot access.
        def __getattr__(self, name: str) -> Any:
            if name == "lo" or name == "hi":
                self.lo, self.hi = self._bounds()
                return self.lo if name == "lo" else self.hi
            if name == "key":
                self.key = value = self._key()
            elif name == "free":
                self.free = value = self._free()
            elif name == "has_div":
                self.has_div = value = any(c.has_div for c in self.children())
            else:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return value

    def children(self) -> tuple[Expr, ...]:
        """Direct subexpressions, in order (a Var's extent is not one)."""
        return ()

    def _bounds(self) -> _Bounds:
        raise NotImplementedError

    def _key(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def _args(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._fields])

    def _free(self) -> tuple[Expr, ...]:
        return _union_free(self.children())

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self._args())

    def __copy__(self: _E) -> _E:
        return self

    def __deepcopy__(self: _E, memo: object) -> _E:
        return self

    def __str__(self) -> str:
        return Rules.to_text(self)

    def __repr__(self) -> str:
        return Rules.to_text(self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth value of {self} is not known; use eq, lt, provably_lt, ...")

    def __add__(self, other: Expr | int) -> Expr:
        return Rules.add(self, other if isinstance(other, Expr) else as_expr(other))

    def __radd__(self, other: Expr | int) -> Expr:
        return Rules.add(as_expr(other), self)

    def __sub__(self, other: Expr | int) -> Expr:
        return Rules.sub(self, other if isinstance(other, Expr) else as_expr(other))

    def __rsub__(self, other: Expr | int) -> Expr:
        return Rules.sub(as_expr(other), self)

    def __mul__(self, other: Expr | int) -> Expr:
        return Rules.mul(self, other if isinstance(other, Expr) else as_expr(other))

    def __rmul__(self, other: Expr | int) -> Expr:
        return Rules.mul(as_expr(other), self)

    def __neg__(self) -> Expr:
        return Rules.scale(self, -1)

    def __pos__(self) -> Expr:
        return self

    def __floordiv__(self, other: Expr | int) -> Expr:
        return Rules.floordiv(self, other)

    def __rfloordiv__(self, other: Expr | int) -> Expr:
        return Rules.floordiv(other, self)

    def __mod__(self, other: Expr | int) -> Expr:
        return Rules.mod(self, other)

    def __rmod__(self, other: Expr | int) -> Expr:
        return Rules.mod(other, self)


def _union_free(exprs: Iterable[Expr]) -> tuple[Expr, ...]:
    sets = list(dict.fromkeys(e.free for e in exprs if e.free))
    if not sets:
        return ()
    if len(sets) == 1:
        return sets[0]
    leaves = dict.fromkeys(leaf for free in sets for leaf in free)
    return tuple(sorted(leaves, key=sort_key))


def sort_key(e: Expr) -> tuple[Any, ...]:
    """``e.key``, as a function for ``sorted``."""
    return e.key


class Const(Expr):
    """An integer constant."""

    __slots__ = ("value",)
    _fields = ("value",)
    value: int
    is_const = True

    def __new__(cls, value: int) -> Const:
        entry = (Const, value)
        node: Const | None = find(entry)
        if node is None:
            node = object.__new__(cls)
            node.value = node.lo = node.hi = value
            node.key = (0, value)
            node.free = ()
            node = publish(entry, node)
        return node

    def __bool__(self) -> bool:
        return self.value != 0

    def __int__(self) -> int:
        return self.value

    def __index__(self) -> int:
        return self.value


_DIGITS = re.compile(r"(\d+)")


def _name_key(name: str) -> tuple[Any, ...]:
    """Natural order, so that i10 comes after i2; the text itself breaks ties such as i1 and i01."""
    parts = _DIGITS.split(name)
    return (tuple(int(p) if i % 2 else p for i, p in enumerate(parts)), name)


def _none_key(value: int | None) -> tuple[int, int]:
    return (0, 0) if value is None else (1, value)


class Symbol(Expr):
    """A size or another runtime scalar, with its range; ``hint`` is None when it is unbacked."""

    __slots__ = ("hint", "is_bool", "name")
    _fields = ("name", "lo", "hi", "hint")
    name: str
    hint: int | None

    def __new__(
        cls, name: str, lo: int | None = 0, hi: int | None = None, hint: int | None = None
    ) -> Symbol:
        entry = (Symbol, name, lo, hi, hint)
        node: Symbol | None = find(entry)
        if node is None:
            if lo is not None and hi is not None and lo > hi:
                raise ValueError(f"symbol {name}: empty range [{lo}, {hi}]")
            node = object.__new__(cls)
            node.name, node.lo, node.hi, node.hint = name, lo, hi, hint
            node.is_bool = lo is not None and hi is not None and lo >= 0 and hi <= 1
            node.key = (1, _name_key(name), _none_key(lo), _none_key(hi), _none_key(hint))
            node.free = (node,)
            node = publish(entry, node)
        return node


class Var(Expr):
    """A loop variable, 0 <= v < extent.

    An expression with a Var is only ever evaluated inside its loop, so its extent is at least one
    there. An extent that may be zero is fine: nothing is evaluated then. A variable of extent one
    is always 0, but stands as itself in sums and products; divisions and comparisons use its range.
    """

    __slots__ = ("extent", "name")
    _fields = ("name", "extent")
    name: str
    extent: Expr

    def __new__(cls, name: str, extent: Expr | int) -> Var:
        size = as_expr(extent)
        entry = (Var, name, size)
        node: Var | None = find(entry)
        if node is None:
            node = object.__new__(cls)
            node.name, node.extent = name, size
            node.lo = 0
            node.hi = None if size.hi is None else max(size.hi - 1, 0)
            node.key = (2, _name_key(name), size.key)
            node.free = (node,)
            node = publish(entry, node)
        return node


class Product(Expr):
    """A monomial: two or more factors, sorted, powers repeated; coefficients live in Sum."""

    __slots__ = ("factors", "has_div")
    _fields = ("factors",)
    factors: tuple[Expr, ...]

    def __new__(cls, factors: tuple[Expr, ...]) -> Product:
        return interned(Product, factors)

    def children(self) -> tuple[Expr, ...]:
        return self.factors

    def _key(self) -> tuple[Any, ...]:
        return (3, tuple(f.key for f in self.factors))

    def _bounds(self) -> _Bounds:
        return _interval.product([(f, f.lo, f.hi) for f in self.factors])


class Sum(Expr):
    """``const + sum(coef * term)``: terms are sorted monomials, coefficients are non-zero."""

    __slots__ = ("const", "terms")
    _fields = ("const", "terms")
    const: int
    terms: tuple[tuple[Expr, int], ...]

    def __new__(cls, const: int, terms: tuple[tuple[Expr, int], ...]) -> Sum:
        return interned(Sum, const, terms)

    def children(self) -> tuple[Expr, ...]:
        return tuple(t for t, _ in self.terms)

    def _key(self) -> tuple[Any, ...]:
        return (4, tuple((t.key, c) for t, c in self.terms), self.const)

    def _bounds(self) -> _Bounds:
        return _interval.weighted_sum(self.const, self.terms)


class _Division(Expr):
    __slots__ = ("den", "num")
    _fields = ("num", "den")
    num: Expr
    den: Expr
    _rank: ClassVar[int]

    def __new__(cls: type[_E], num: Expr, den: Expr) -> _E:
        return interned(cls, num, den)

    def children(self) -> tuple[Expr, ...]:
        return (self.num, self.den)

    def _key(self) -> tuple[Any, ...]:
        return (self._rank, self.num.key, self.den.key)


class FloorDiv(_Division):
    """``num // den`` rounding towards minus infinity, as Python's."""

    __slots__ = ()
    _rank = 5
    has_div = True

    def _bounds(self) -> _Bounds:
        return _interval.floordiv(self.num.lo, self.num.hi, self.den.lo, self.den.hi)


class Mod(_Division):
    """``num % den`` with the sign of the divisor, as Python's."""

    __slots__ = ()
    _rank = 6

    def _bounds(self) -> _Bounds:
        return _interval.mod(self.num.lo, self.num.hi, self.den.lo, self.den.hi)


class _Nary(Expr):
    __slots__ = ("args",)
    _fields = ("args",)
    args: tuple[Expr, ...]
    _rank: ClassVar[int]

    def __new__(cls: type[_E], args: tuple[Expr, ...]) -> _E:
        return interned(cls, args)

    def children(self) -> tuple[Expr, ...]:
        return self.args

    def _key(self) -> tuple[Any, ...]:
        return (self._rank, tuple(a.key for a in self.args))

    def _bounds(self) -> _Bounds:
        return (0, 1)


class Min(_Nary):
    """The least of two or more sorted arguments."""

    __slots__ = ()
    _rank = 7

    def _bounds(self) -> _Bounds:
        return _interval.minimum([(a.lo, a.hi) for a in self.args])


class Max(_Nary):
    """The greatest of two or more sorted arguments."""

    __slots__ = ()
    _rank = 8

    def _bounds(self) -> _Bounds:
        return _interval.maximum([(a.lo, a.hi) for a in self.args])


class Cmp(Expr):
    """A comparison with value 0 or 1; ``op`` is one of eq, ne, lt, le."""

    __slots__ = ("a", "b", "op")
    _fields = ("op", "a", "b")
    op: str
    a: Expr
    b: Expr
    is_bool = True

    def __new__(cls, op: str, a: Expr, b: Expr) -> Cmp:
        return interned(Cmp, op, a, b)

    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)

    def _bounds(self) -> _Bounds:
        return (0, 1)

    def _key(self) -> tuple[Any, ...]:
        return (9, self.op, self.a.key, self.b.key)


class And(_Nary):
    """Conjunction of two or more sorted truth values."""

    __slots__ = ()
    _rank = 10
    is_bool = True


class Or(_Nary):
    """Disjunction of two or more sorted truth values."""

    __slots__ = ()
    _rank = 11
    is_bool = True


class Not(Expr):
    """Negation of a truth value that no comparison can express."""

    __slots__ = ("arg",)
    _fields = ("arg",)
    arg: Expr
    is_bool = True

    def __new__(cls, arg: Expr) -> Not:
        return interned(Not, arg)

    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def _bounds(self) -> _Bounds:
        return (0, 1)

    def _key(self) -> tuple[Any, ...]:
        return (12, self.arg.key)


@lru_cache(maxsize=4096)
def const(value: int) -> Const:
    """The constant ``value``."""
    return Const(int(value))


def as_expr(x: Expr | int) -> Expr:
    """``x`` itself, or the constant for an int; other types are refused (a SymInt would guard)."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, int):
        return const(x)
    raise TypeError(f"not an index expression or an int: {x!r} ({type(x).__name__})")


def symbol(name: str, lo: int | None = 0, hi: int | None = None, hint: int | None = None) -> Symbol:
    """A runtime scalar with inclusive range [lo, hi] and a hint (None: unbacked)."""
    return Symbol(name, lo, hi, hint)


def var(name: str, extent: Expr | int) -> Var:
    """A loop variable over range(extent)."""
    return Var(name, extent)


ZERO = const(0)
ONE = const(1)
