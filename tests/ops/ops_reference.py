"""What each op means, said by something else: torch's eager ops, Python's integers, float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from mpmath import mp
from ops_harness import TORCH
from ops_python import fold

from litz.ir.dtype import DType, wrap
from litz.ir.ops import OpRow

Reference = Callable[..., torch.Tensor]


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Rounded once, from exact fractions."""
    values = [_fma1(*v) for v in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    if a.dtype == torch.float64:
        return torch.tensor([float(v) for v in values], dtype=torch.float64)
    return torch.tensor([_to_single(v) for v in values], dtype=torch.float32)


def _fma1(x: float, y: float, z: float) -> float | Fraction:
    if not (math.isfinite(x) and math.isfinite(y)):
        return x * y + z
    if not math.isfinite(z):
        return z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return x * y + z
    try:
        float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
    return exact


def _to_single(value: float | Fraction) -> float:
    """Nearest float32 of an exact value, without rounding to float64 first."""
    near = np.float32(float(value))
    if isinstance(value, float) or not np.isfinite(near):
        return float(near)
    around = [np.nextafter(near, np.float32(d), dtype=np.float32) for d in (-np.inf, np.inf)]
    finite = [f for f in (near, *around) if np.isfinite(f)]
    return float(min(finite, key=lambda f: (abs(Fraction(float(f)) - value), f.view("u4") & 1)))


def _numpy(f: Callable[..., np.ndarray]) -> Reference:
    def apply(*args: torch.Tensor) -> torch.Tensor:
        with np.errstate(all="ignore"):
            return torch.from_numpy(f(*(a.numpy() for a in args)))

    return apply


def _fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """C's: eager's own vectors give nan for small divisors."""
    return _numpy(np.fmod)(a, b) if a.dtype.is_floating_point else torch.fmod(a, b)


def _mod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not a.dtype.is_floating_point:
        return torch.remainder(a, b)
    r = _fmod(a, b)
    return torch.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


# Ops that are no function of torch, or one of another name.
SPECIAL: dict[str, Reference] = {
    "floordiv": torch.floor_divide,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": _mod,
    "fmod": _fmod,
    "sqrt": _numpy(np.sqrt),  # eager's is not always rounded right
    "reciprocal": lambda a: 1 / a,
    "rsqrt": lambda a: 1 / torch.sqrt(a),
    "ipow": torch.pow,
    "fma": _fma,
    "erf_plus_one": lambda x: 1 + torch.erf(x),
    "and_": torch.bitwise_and,
    "or_": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not_": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
}


def torch_function(row: OpRow) -> Reference | None:
    """The eager op of a row."""
    return SPECIAL.get(row.name) or getattr(torch, row.reference or row.name, None)


def by_python(row: OpRow, dtype: DType, args: list[torch.Tensor]) -> list[object]:
    """The op in Python, element by element; None where that makes no claim."""
    columns = [a.tolist() for a in args]
    if row.name in ("shl", "shr"):
        pairs = zip(columns[0], columns[1], strict=True)
        return [_shift(row.name, a, b, dtype) for a, b in pairs]
    return [fold(row.name, values, dtype) for values in zip(*columns, strict=True)]


def _shift(name: str, a: int, b: int, dtype: DType) -> object:
    if name == "shl":
        return wrap(a << b, dtype) if 0 <= b < dtype.bits else 0
    return a >> (b if 0 <= b < dtype.bits else dtype.bits)


# --- true values of approximated functions ------------------------------------------------------


def _mp(f: Callable[..., object]) -> Callable[..., np.ndarray]:
    def apply(*columns: np.ndarray) -> np.ndarray:
        out = []
        with mp.workprec(120):
            for values in zip(*columns, strict=True):
                try:
                    out.append(np.longdouble(mp.nstr(f(*map(_to_mp, values)), 25)))
                except (ValueError, ZeroDivisionError, TypeError):
                    out.append(np.longdouble("nan"))
        return np.array(out, dtype=np.longdouble)

    return apply


def _to_mp(x: np.longdouble) -> object:
    return mp.mpf(float(x))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.copysign(_mp(mp.erf)(np.clip(x, -10, 10)), x)


def _erfc(x: np.ndarray) -> np.ndarray:
    return _mp(mp.erfc)(np.clip(x, -40, 40))


def _erfinv(x: np.ndarray) -> np.ndarray:
    r = _mp(mp.erfinv)(x)
    return np.where(np.abs(x) == 1, x * np.inf, np.copysign(r, x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# In extended precision (64 bits of mantissa), for judging double.
EXTENDED: dict[str, Callable[..., np.ndarray]] = {
    "sigmoid": _sigmoid,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "pow": np.power,
    "erf": _erf,
    "erfc": _erfc,
    "erfinv": _erfinv,
}


def truth(row: OpRow, args: list[torch.Tensor]) -> np.ndarray:
    """The value before rounding, far closer than the operands' type can tell."""
    if args[0].dtype == torch.float32:
        function = torch_function(row)
        assert function is not None, row.name
        return np.asarray(function(*(a.double() for a in args)).numpy())
    function64 = EXTENDED.get(row.name) or getattr(np, row.name)
    with np.errstate(all="ignore"):
        return np.asarray(function64(*(a.numpy().astype(np.longdouble) for a in args)))


def ulp_error(got: torch.Tensor, exact: np.ndarray) -> np.ndarray:
    """|got - exact| in units of the last place of ``exact`` in ``got``'s type.

    A result past the largest finite number is right as that number or as infinity.
    """
    single = got.dtype == torch.float32
    digits, least = (24, -149) if single else (53, -1074)
    value = got.numpy().astype(exact.dtype)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.abs(exact))
        ulp = np.ldexp(np.ones_like(exact), np.maximum(exponent - digits, least))
        error = np.abs(value - exact) / ulp
    alike = (value == exact) | (np.isnan(value) & np.isnan(exact))
    largest = torch.finfo(got.dtype).max
    over = (np.abs(exact) > largest) & np.isinf(value) & (np.sign(value) == np.sign(exact))
    error = np.where(alike | over, 0, error)
    return np.where(np.isnan(error), np.inf, error).astype(np.float64)


def to_tensor(values: list[object], dtype: DType) -> torch.Tensor:
    return torch.tensor(values, dtype=TORCH[dtype])
