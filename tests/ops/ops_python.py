"""Ops and reductions in Python: what a row means, element by element."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

from litz.ir.dtype import BOOL, DType, wrap
from litz.ir.ops import op
from litz.ir.reductions import Reduction, State, result_dtype, result_of
from litz.ir.reductions import reduction as reduction_of

Scalar = bool | int | float


def _div(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a) or math.isnan(b):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _truncdiv(a: float, b: float) -> Scalar:
    if isinstance(a, int) and isinstance(b, int):
        q = abs(a) // abs(b)
        return q if (a < 0) == (b < 0) else -q
    return math.trunc(_div(a, b))


def _fmod(a: float, b: float) -> Scalar:
    if isinstance(a, int) and isinstance(b, int):
        return a - b * int(_truncdiv(a, b))
    return math.fmod(a, b)


def _extreme(a: float, b: float, largest: bool, nan_wins: bool) -> float:
    if a != a or b != b:
        one_nan, other = (a, b) if a != a else (b, a)
        return one_nan if nan_wins else other
    return max(a, b) if largest else min(a, b)


def _not(a: int) -> int:
    return (not a) if isinstance(a, bool) else ~a


def _ipow(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64)
    return 1 if a == 1 else (-1 if b % 2 else 1) if a == -1 else 0


def _shift(a: int, b: int, left: bool) -> int:
    if not 0 <= b < 8:  # narrow and wide types differ from here on: left to the target
        raise ValueError
    return a << b if left else a >> b


def _sigmoid(x: float) -> float:
    return 0.0 if x < -700 else 1 / (1 + math.exp(-x))


def _integral(f: Callable[[float], int]) -> Callable[[float], float]:
    def apply(x: float) -> float:
        return math.copysign(float(f(x)), x) if math.isfinite(x) else x

    return apply


# Before wrapping to the type.  Ops that are not here make no claim.
EVALUATE: Mapping[str, Callable[..., Scalar]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _div,
    "floordiv": operator.floordiv,
    "truncdiv": _truncdiv,
    "mod": operator.mod,
    "fmod": _fmod,
    "neg": operator.neg,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0) if a == a else 0.0,
    "reciprocal": lambda a: _div(1.0, a),
    "sqrt": math.sqrt,
    "rsqrt": lambda a: _div(1.0, math.sqrt(a)),
    "maximum": lambda a, b: _extreme(a, b, True, True),
    "minimum": lambda a, b: _extreme(a, b, False, True),
    "fmax": lambda a, b: _extreme(a, b, True, False),
    "fmin": lambda a, b: _extreme(a, b, False, False),
    "ipow": _ipow,
    "and_": operator.and_,
    "or_": operator.or_,
    "xor": operator.xor,
    "not_": _not,
    "shl": lambda a, b: _shift(a, b, True),
    "shr": lambda a, b: _shift(a, b, False),
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "where": lambda m, a, b: a if m else b,
    "mostly": lambda m, a, b: a if m else b,
    "isnan": lambda a: a != a,
    "isinf": math.isinf,
    "signbit": lambda a: math.copysign(1.0, a) < 0,
    "floor": _integral(math.floor),
    "ceil": _integral(math.ceil),
    "trunc": _integral(math.trunc),
    "round": _integral(round),
    "copysign": math.copysign,
    "sigmoid": _sigmoid,
    "erf_plus_one": lambda x: 1 + math.erf(x),
    **{name: getattr(math, name) for name in "exp expm1 log log2 log10 log1p sin cos tan".split()},
    **{name: getattr(math, name) for name in "asin acos atan atan2 sinh cosh tanh".split()},
    **{name: getattr(math, name) for name in "asinh acosh atanh erf erfc hypot".split()},
}


def fold(name: str, args: Sequence[Scalar], dtype: DType) -> Scalar | None:
    """The op on constants of ``dtype`` (``where``: of its values), or None: no claim."""
    try:
        value = EVALUATE[name](*args)
    except (KeyError, ArithmeticError, ValueError):
        return None
    return wrap(value, BOOL if op(name).result == "bool" else dtype)


def combined(row: Reduction, a: State, b: State) -> State:
    """Two states as one."""
    return row.combine(a, b) if row.combine is not None else (EVALUATE[row.op](a[0], b[0]),)


def evaluate(kind: str, dtype: DType, values: Sequence[Scalar]) -> Scalar:
    """A reduction: floats in 64 bits, integers wrapped to their type."""
    row, found = reduction_of(kind), result_of(kind)
    if not values:
        return found.empty
    state: State = tuple(p.identity(dtype) for p in row.state)
    for at, value in enumerate(values):
        state = combined(row, state, row.lift(value, at))
    if found.finish is not None:
        return found.finish(state)
    value = state[row.state.index(row.part(found.part))]
    result = result_dtype(kind, dtype)
    return value if result.is_float else wrap(value, result)
