"""Linear indices as mixed-radix numbers, and their inversion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from litz.dataclass import dataclass
from litz.index.arith import CACHE, add, factors, mul, parts, scale, sub
from litz.index.division import floordiv, mod
from litz.index.expr import ONE, ZERO, Expr, Var
from litz.index.prove import provably_le, provably_lt
from litz.index.query import size_hint, split_linear, substitute


@dataclass(frozen=True)
class RadixTerm:
    """One digit: ``stride * var`` with 0 <= var < extent."""

    var: Var
    stride: Expr
    extent: Expr


@dataclass(frozen=True)
class MixedRadix:
    """A linear index ``offset + sum(stride * var)``, terms by falling absolute stride."""

    terms: tuple[RadixTerm, ...]
    offset: Expr
    injective: bool
    """Different values of the variables provably give different indices."""
    dense: bool
    """The indices are provably offset, offset + 1, ... without a gap, each taken once."""

    @property
    def size(self) -> Expr:
        """The number of values of the variables."""
        out: Expr = ONE
        for t in self.terms:
            out = mul(out, t.extent)
        return out


def linear(index: Sequence[Expr], strides: Sequence[Expr], offset: Expr = ZERO) -> Expr:
    """Where the element at ``index`` lies, in elements from the start of its memory."""
    total = offset
    for i, s in zip(index, strides, strict=True):
        if i is not ZERO:
            total = total + i * s
    return total


@lru_cache(maxsize=1024)
def contiguous_strides(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Row-major strides, in elements, as torch makes them (a zero-sized dim counts as one)."""
    strides: list[Expr] = []
    step: Expr = ONE
    for s in reversed(shape):
        strides.append(step)
        if s is not ZERO:
            step = mul(step, s)
    return tuple(reversed(strides))


def mixed_radix(e: Expr, vars: Sequence[Var]) -> MixedRadix | None:
    """Decompose an index that is linear in ``vars``; None where it is not.

    Variables of extent one may have any stride. Strides that cannot be ordered with certainty are
    ordered by their hints, and then nothing is claimed about the index.
    """
    return _mixed_radix(e, tuple(vars))


@lru_cache(maxsize=CACHE)
def _mixed_radix(e: Expr, vars: tuple[Var, ...]) -> MixedRadix | None:
    split = split_linear(e, vars)
    if split is None:
        return None
    coefs, offset = split
    terms = [RadixTerm(v, coefs[v], v.extent) for v in vars]
    terms.sort(key=_digit_order)
    injective = dense = True
    span: Expr = ZERO  # greatest difference that the digits so far can make
    for t in reversed(terms):
        if t.extent is ONE:
            continue
        stride = t.stride
        if stride.hi is not None and stride.hi < 0:
            stride, dense = scale(stride, -1), False
        injective = injective and provably_lt(span, stride)
        dense = dense and stride is add(span, ONE)
        span = add(span, mul(stride, sub(t.extent, ONE)))
    return MixedRadix(tuple(terms), offset, injective, injective and dense)


def _digit_order(t: RadixTerm) -> tuple[object, ...]:
    # Hints may tie (sizes that happen to be 1); then a stride of more factors counts as greater.
    degree = max((len(factors(m)) for m, _ in parts(t.stride)[1]), default=0)
    return (-abs(size_hint(t.stride)), -degree, -size_hint(t.extent), t.var.key)


def invert(e_store: Expr, vars: Sequence[Var], target: Expr) -> dict[Var, Expr] | None:
    """Solve ``e_store(vars) == target`` for the variables; None where that is not provable.

    For a dense index every target in its image has exactly one solution, and target is taken to
    lie there. For an injective index with gaps the solution must prove itself.
    """
    radix = mixed_radix(e_store, vars)
    if radix is None or not radix.injective:
        return None
    if any(t.extent is not ONE and not provably_le(ZERO, t.stride) for t in radix.terms):
        return None
    rest = sub(target, radix.offset)
    solution: dict[Var, Expr] = {}
    above: RadixTerm | None = None
    for t in radix.terms:
        if t.extent is ONE:
            solution[t.var] = ZERO
            continue
        if above is not None:
            # In a dense index all strides above are multiples of the one just above; in general
            # the digits found so far are taken off one by one.
            if radix.dense:
                rest = mod(rest, above.stride)
            else:
                rest = sub(rest, mul(above.stride, solution[above.var]))
        solution[t.var] = floordiv(rest, t.stride)
        above = t
    if not radix.dense and not _proves(e_store, target, solution):
        return None
    return {v: solution[v] for v in vars}


def _proves(e_store: Expr, target: Expr, solution: dict[Var, Expr]) -> bool:
    if substitute(e_store, solution) is not target:
        return False
    return all(provably_le(ZERO, x) and provably_lt(x, v.extent) for v, x in solution.items())
