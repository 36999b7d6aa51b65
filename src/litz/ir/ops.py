"""The table of primitive ops: one row each, and nothing about an op is written elsewhere.

A row holds the op's arity, the kinds it accepts, the rule for its result type, its cost, its
spelling on each target, its evaluation on Python scalars and what tests need to check it.  All
operands of an op have one dtype, except where a row's ``kinds`` says otherwise.  16-bit floats only
move (``where``, ``cast``, ``bitcast``): arithmetic on them runs in f32 between casts.
"""

from __future__ import annotations

import difflib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from litz.ir.dtype import BOOL, F32, I64, DType

Scalar = bool | int | float
Evaluate = Callable[..., Scalar]

CPP_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool": "bool",
        "f32": "float",
        "f64": "double",
        **{n: f"litz::{n}" for n in ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64")},
        "f16": "litz::f16",
        "bf16": "litz::bf16",
    }
)
TRITON_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool": "tl.int1",
        **{f"u{b}": f"tl.uint{b}" for b in (8, 16, 32, 64)},
        **{f"i{b}": f"tl.int{b}" for b in (8, 16, 32, 64)},
        "f16": "tl.float16",
        "bf16": "tl.bfloat16",
        "f32": "tl.float32",
        "f64": "tl.float64",
    }
)


@dataclass(frozen=True, slots=True)
class OpRow:
    """One primitive op.

    kinds: per operand, the accepted kinds as letters: ``b`` bool, ``i`` integers, ``f`` f32 and
    f64, ``h`` the 16-bit floats, ``l`` i64 only; one with ``*`` besides has its own dtype.
    result: ``same`` (the last operand's dtype), ``bool``, ``to`` (the parameter), or a dtype's
    name.
    cost: rough arithmetic cost, in additions.
    header: the C++ header, less ``litz/`` and ``.h``, that f32 and integers need; header64: f64.
    cpp: C++ template; ``{args}`` are all operands, ``{to}`` the parameter's C++ type.  The same
    text serves scalars and vectors.  infix: C++ template for float operands, where readable.
    triton: Triton template of the same form.
    reference: the function below ``torch`` that means the same (``""``: of the op's own name);
    where none does, tests hold one under the op's name.
    evaluate: the op on Python scalars before wrapping to the dtype, or None.
    samples: which operands a test draws: ``any`` bits, or a named domain that avoids the undefined.
    ulp, ulp64: largest error against the true value, in ulp of the result; 0 is exactly rounded;
    None: no claim in ulp, the test compares with a tolerance of its own.
    """

    name: str
    kinds: tuple[str, ...]
    result: str = "same"
    cost: int = 1
    header: str = "vec"
    header64: str = ""
    cpp: str = ""
    infix: str = ""
    triton: str = ""
    reference: str = ""
    evaluate: Evaluate | None = None
    samples: str = "any"
    ulp: float | None = 0
    ulp64: float | None = 0

    @property
    def arity(self) -> int:
        return len(self.kinds)

    @property
    def takes_dtype(self) -> bool:
        """Whether the op has a dtype parameter."""
        return self.name in ("cast", "bitcast", "round_to")


# --- evaluation on Python scalars ------------------------------------------------------------


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


# --- rows -------------------------------------------------------------------------------------

_NUM, _ANY, _FLOAT = "if", "bifh", "f"


def _math(
    name: str,
    cost: int,
    evaluate: Evaluate | None,
    *,
    header: str = "math",
    header64: str = "math64",
    samples: str = "any",
    arity: int = 1,
    ulp: float | None = 1,
    ulp64: float | None = 2,
    triton: str = "",
) -> OpRow:
    """A float function that is approximated."""
    return OpRow(
        name,
        (_FLOAT,) * arity,
        cost=cost,
        header=header,
        header64=header64,
        triton=triton or f"litz.{name}({{args}})",
        evaluate=evaluate,
        samples=samples,
        ulp=ulp,
        ulp64=ulp64,
    )


def _infix(
    name: str, kinds: str, sign: str, evaluate: Evaluate, result: str = "same", **more: str
) -> OpRow:
    text = f"({{0}} {sign} {{1}})"
    return OpRow(
        name,
        (kinds, kinds),
        result,
        infix=text,
        triton=text,
        evaluate=evaluate,
        **more,  # type: ignore[arg-type]
    )


_ARITHMETIC: Final = (
    _infix("add", _NUM, "+", lambda a, b: a + b),
    _infix("sub", _NUM, "-", lambda a, b: a - b),
    _infix("mul", _NUM, "*", lambda a, b: a * b),
    OpRow(
        "div", ("f", "f"), cost=5, infix="({0} / {1})", triton="litz.div({0}, {1})", evaluate=_div
    ),
    OpRow(
        "floordiv",
        (_NUM, _NUM),
        header="divide",
        cost=8,
        triton="litz.floordiv({0}, {1})",
        evaluate=lambda a, b: a // b,
        samples="divisor",
    ),
    OpRow(
        "truncdiv",
        (_NUM, _NUM),
        header="divide",
        cost=6,
        triton="litz.truncdiv({0}, {1})",
        evaluate=_truncdiv,
        samples="divisor",
    ),
    OpRow(
        "mod",
        (_NUM, _NUM),
        header="divide",
        cost=8,
        triton="litz.mod({0}, {1})",
        evaluate=lambda a, b: a % b,
        samples="divisor",
    ),
    OpRow(
        "fmod",
        (_NUM, _NUM),
        header="divide",
        cost=20,
        triton="litz.fmod({0}, {1})",
        evaluate=_fmod,
        samples="divisor",
    ),
    OpRow("neg", (_NUM,), infix="(-{0})", triton="litz.neg({0})", evaluate=lambda a: -a),
    OpRow("abs", (_NUM,), triton="tl.abs({0})", evaluate=abs),
    OpRow(
        "sign",
        (_NUM,),
        cost=2,
        triton="litz.sign({0})",
        evaluate=lambda a: (a > 0) - (a < 0) if a == a else 0.0,
    ),
    OpRow(
        "reciprocal", ("f",), cost=5, triton="litz.reciprocal({0})", evaluate=lambda a: _div(1.0, a)
    ),
    OpRow("sqrt", ("f",), cost=6, triton="litz.sqrt({0})", evaluate=math.sqrt),
    OpRow(
        "rsqrt",
        ("f",),
        cost=11,
        triton="litz.rsqrt({0})",
        evaluate=lambda a: _div(1.0, math.sqrt(a)),
        ulp=1.5,
        ulp64=1.5,
    ),
    OpRow(
        "maximum",
        ("bif",) * 2,
        cost=2,
        triton="litz.maximum({0}, {1})",
        evaluate=lambda a, b: _extreme(a, b, True, True),
    ),
    OpRow(
        "minimum",
        ("bif",) * 2,
        cost=2,
        triton="litz.minimum({0}, {1})",
        evaluate=lambda a, b: _extreme(a, b, False, True),
    ),
    OpRow(
        "fmax",
        (_NUM, _NUM),
        cost=2,
        triton="litz.fmax({0}, {1})",
        evaluate=lambda a, b: _extreme(a, b, True, False),
    ),
    OpRow(
        "fmin",
        (_NUM, _NUM),
        cost=2,
        triton="litz.fmin({0}, {1})",
        evaluate=lambda a, b: _extreme(a, b, False, False),
    ),
    _math("pow", 40, None, arity=2, header="wide", header64="rare"),
    OpRow(
        "ipow",
        ("i", "i"),
        cost=30,
        header="divide",
        triton="litz.ipow({0}, {1})",
        evaluate=_ipow,
        samples="exponent",
    ),
    OpRow("fma", ("f", "f", "f"), triton="litz.fma({0}, {1}, {2})"),
)

_LOGIC: Final = (
    OpRow("and_", ("bi", "bi"), triton="({0} & {1})", evaluate=lambda a, b: a & b),
    OpRow("or_", ("bi", "bi"), triton="({0} | {1})", evaluate=lambda a, b: a | b),
    OpRow(
        "xor",
        ("bi", "bi"),
        cpp="litz::xor_({args})",
        triton="({0} ^ {1})",
        evaluate=lambda a, b: a ^ b,
    ),
    OpRow("not_", ("bi",), triton="litz.invert({0})", evaluate=_not),
    OpRow(
        "shl",
        ("i", "i"),
        header="divide",
        cost=2,
        triton="litz.shl({0}, {1})",
        evaluate=lambda a, b: _shift(a, b, True),
        samples="shift",
    ),
    OpRow(
        "shr",
        ("i", "i"),
        header="divide",
        cost=2,
        triton="litz.shr({0}, {1})",
        evaluate=lambda a, b: _shift(a, b, False),
        samples="shift",
    ),
    _infix("eq", "bif", "==", lambda a, b: a == b, "bool"),
    _infix("ne", "bif", "!=", lambda a, b: a != b, "bool"),
    _infix("lt", "bif", "<", lambda a, b: a < b, "bool"),
    _infix("le", "bif", "<=", lambda a, b: a <= b, "bool"),
    _infix("gt", "bif", ">", lambda a, b: a > b, "bool"),
    _infix("ge", "bif", ">=", lambda a, b: a >= b, "bool"),
    OpRow(
        "where",
        ("b*", _ANY, _ANY),
        triton="tl.where({args})",
        evaluate=lambda m, a, b: a if m else b,
    ),
    OpRow("isnan", ("f",), "bool", triton="({0} != {0})", evaluate=lambda a: a != a),
    OpRow(
        "isinf", ("f",), "bool", cost=2, triton="(tl.abs({0}) == float('inf'))", evaluate=math.isinf
    ),
    OpRow(
        "signbit",
        ("f",),
        "bool",
        cost=2,
        triton="litz.signbit({0})",
        evaluate=lambda a: math.copysign(1.0, a) < 0,
    ),
)

_ROUNDING: Final = (
    OpRow("floor", ("f",), triton="tl.floor({0})", evaluate=_integral(math.floor)),
    OpRow("ceil", ("f",), triton="tl.ceil({0})", evaluate=_integral(math.ceil)),
    OpRow("trunc", ("f",), triton="litz.trunc({0})", evaluate=_integral(math.trunc)),
    OpRow("round", ("f",), triton="litz.round({0})", evaluate=_integral(round)),
    OpRow("copysign", ("f", "f"), cost=2, triton="litz.copysign({args})", evaluate=math.copysign),
    _math("nextafter", 10, None, arity=2, header="rare", header64="rare", ulp=0, ulp64=0),
)

_TRANSCENDENTAL: Final = (
    _math("exp", 12, math.exp, triton="litz.exp({0})"),
    _math("exp2", 11, None, triton="litz.exp2({0})"),
    _math("expm1", 14, math.expm1),
    _math("log", 14, math.log, triton="litz.log({0})"),
    _math("log2", 14, math.log2, triton="litz.log2({0})"),
    _math("log10", 14, math.log10),
    _math("log1p", 16, math.log1p),
    _math("sin", 16, math.sin, header="wide", header64="rare", triton="litz.sin({0})"),
    _math("cos", 16, math.cos, header="wide", header64="rare", triton="litz.cos({0})"),
    _math("tan", 30, math.tan, header="wide", header64="rare"),
    _math("asin", 20, math.asin, header="wide", header64="rare"),
    _math("acos", 20, math.acos, header="wide", header64="rare"),
    _math("atan", 18, math.atan, header="wide", header64="rare"),
    _math("atan2", 24, math.atan2, arity=2, header="wide", header64="rare"),
    _math("sinh", 20, math.sinh, header="wide", header64="rare"),
    _math("cosh", 18, math.cosh, header="wide", header64="rare"),
    _math("tanh", 20, math.tanh),
    _math("asinh", 24, math.asinh, header="wide", header64="rare"),
    _math("acosh", 24, math.acosh, header="wide", header64="rare"),
    _math("atanh", 24, math.atanh, header="wide", header64="rare"),
    _math("erf", 22, math.erf, header64="rare", triton="litz.erf({0})"),
    _math("erfc", 40, math.erfc, header="special", header64="rare", ulp64=3),
    _math("erfinv", 60, None, header="special", header64="rare"),
    _math("lgamma", 80, None, header="rare", header64="rare", ulp64=None),
    _math("digamma", 80, None, header="rare", header64="rare", ulp64=None),
    _math("sigmoid", 16, _sigmoid, triton="litz.sigmoid({0})"),
    _math("hypot", 12, math.hypot, arity=2, header="wide", header64="rare"),
)

_CONVERSION: Final = (
    OpRow(
        "cast",
        (_ANY,),
        "to",
        cpp="litz::cast<{to}>({0})",
        triton="litz.cast({0}, {to})",
        samples="cast",
    ),
    OpRow(
        "round_to",
        ("f",),
        cost=3,
        cpp="litz::round_to<{to}>({0})",
        triton="litz.cast({0}, {to}).to({0}.dtype)",
    ),
    OpRow(
        "bitcast",
        ("ifh",),
        "to",
        cost=0,
        cpp="litz::bitcast<{to}>({0})",
        triton="{0}.to({to}, bitcast=True)",
    ),
)

_RANDOM: Final = (
    OpRow("rand", ("l", "l"), "f32", 30, "random", triton="litz.rand({args})", samples="random"),
    OpRow(
        "randn",
        ("l", "l"),
        "f32",
        60,
        "random",
        triton="litz.randn({args})",
        samples="random",
        ulp=None,
    ),
    OpRow(
        "randint", ("l",) * 4, "i64", 40, "random", triton="litz.randint({args})", samples="random"
    ),
)

_CHECKS: Final = (
    # The index where 0 <= index < size, else 0 and a fault of the kernel: a generator prints it.
    OpRow(
        "check_index",
        ("l", "l"),
        cost=2,
        header="loops",
        samples="generator",
    ),
    # An integer divisor as it is, and a fault of the kernel where it is 0.
    OpRow("check_divisor", ("i",), cost=2, header="loops", samples="generator"),
)
CHECKS: Final = frozenset(row.name for row in _CHECKS)

_ROWS: Final = (
    *_ARITHMETIC,
    *_LOGIC,
    *_ROUNDING,
    *_TRANSCENDENTAL,
    *_CONVERSION,
    *_RANDOM,
    *_CHECKS,
)
OPS: Final[Mapping[str, OpRow]] = MappingProxyType({row.name: row for row in _ROWS})


def op(name: str) -> OpRow:
    """The row of an op; an unknown name is a ``KeyError`` that names the nearest known one."""
    row = OPS.get(name)
    if row is None:
        near = difflib.get_close_matches(name, OPS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise KeyError(f"unknown op {name!r}{hint}")
    return row


# --- types ------------------------------------------------------------------------------------


def accepts(kinds: str, dtype: DType) -> bool:
    """Whether a type is of one of the kinds."""
    if dtype.kind == "bool":
        return "b" in kinds
    if dtype.is_float:
        return ("f" if dtype.bits >= 32 else "h") in kinds
    return "i" in kinds or ("l" in kinds and dtype == I64)


def result_dtype(name: str, arg_dtypes: Sequence[DType], to: DType | None = None) -> DType:
    """The type that the op gives for operands of these types; ``TypeError`` if it takes no such."""
    row = op(name)
    if len(arg_dtypes) != row.arity:
        raise TypeError(f"{name} takes {row.arity} operands, not {len(arg_dtypes)}")
    if row.takes_dtype != (to is not None):
        raise TypeError(f"{name} {'needs a' if row.takes_dtype else 'takes no'} dtype parameter")
    shared: DType | None = None
    for kinds, dtype in zip(row.kinds, arg_dtypes, strict=True):
        if not accepts(kinds, dtype):
            raise TypeError(f"{name} does not take {dtype}")
        if "*" not in kinds:
            if shared is not None and dtype != shared:
                raise TypeError(f"{name}: operands differ in type, {shared} and {dtype}")
            shared = dtype
    assert shared is not None
    if to is not None:
        _check_parameter(name, shared, to)
    if row.result == "same":
        return shared
    if row.result == "to":
        assert to is not None
        return to
    return {"bool": BOOL, "f32": F32, "i64": I64}[row.result]


def _check_parameter(name: str, dtype: DType, to: DType) -> None:
    if name == "bitcast" and (to.bits != dtype.bits or to.kind == "bool"):
        raise TypeError(f"bitcast: {dtype} has no {to} form")
    if name == "round_to" and not (to.is_float and to.bits <= dtype.bits):
        raise TypeError(f"round_to: {to} is not a float type narrower than {dtype}")


# --- spelling ---------------------------------------------------------------------------------


def cpp_text(name: str, args: Sequence[str], dtype: DType, to: DType | None = None) -> str:
    """The C++ expression of the op on operands of ``dtype``, scalars or vectors alike."""
    row = op(name)
    # Integers go through functions: C++ would promote narrow ones, and their overflow must wrap.
    template = row.infix if row.infix and dtype.is_float else row.cpp or f"litz::{name}({{args}})"
    return _fill(template, args, CPP_TYPES[to.name] if to else "")


def triton_text(name: str, args: Sequence[str], to: DType | None = None) -> str:
    """The Triton expression of the op."""
    return _fill(op(name).triton, args, TRITON_TYPES[to.name] if to else "")


def _fill(template: str, args: Sequence[str], to: str) -> str:
    return template.format(*args, args=", ".join(args), to=to)


def cpp_header(name: str, dtype: DType) -> str:
    """Which header, as ``litz/vec.h``, the op's C++ form on operands of ``dtype`` needs."""
    row = op(name)
    return f"litz/{row.header64 if row.header64 and dtype.bits == 64 else row.header}.h"


# --- folding ----------------------------------------------------------------------------------


def wrap(value: Scalar, dtype: DType) -> Scalar:
    """``value`` as an element of ``dtype``: integers wrap around, f32 and f16 round."""
    if dtype.kind == "bool":
        return bool(value)
    if dtype.is_int:
        low = int(value) & ((1 << dtype.bits) - 1)
        return low - (1 << dtype.bits) if dtype.kind == "int" and low >> (dtype.bits - 1) else low
    value = float(value)
    if dtype.bits == 64 or not math.isfinite(value):
        return value
    if dtype.name == "bf16":
        return _round_bf16(value)
    code = "<e" if dtype.name == "f16" else "<f"
    try:
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _round_bf16(value: float) -> float:
    try:
        bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def fold(name: str, args: Sequence[Scalar], dtype: DType) -> Scalar | None:
    """The op on constants of ``dtype`` (``where``: of its values), or None: it stays code."""
    row = op(name)
    if row.evaluate is None:
        return None
    try:
        value = row.evaluate(*args)
    except (ArithmeticError, ValueError):
        return None
    return wrap(value, BOOL if row.result == "bool" else dtype)
