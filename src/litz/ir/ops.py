"""The table of primitive ops: one row each, and nothing about an op is written elsewhere.

A row holds the op's arity, the kinds it accepts, the rule for its result type, its cost, its
spelling on each target and what tests need to check it.  All operands of an op have one dtype,
except where a row's ``kinds`` says otherwise.  16-bit floats only move (``where``, ``cast``,
``bitcast``): arithmetic on them runs in f32 between casts.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from litz.dataclass import dataclass
from litz.ir.dtype import BOOL, F32, I64, STORED, DType

CPP_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool": "bool",
        "f32": "float",
        "f64": "double",
        **{n: f"litz::{n}" for n in ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64")},
        "f16": "litz::f16",
        "bf16": "litz::bf16",
        **{t.name: "litz::u8" for t in STORED},
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
        **{t.name: "tl.uint8" for t in STORED},
    }
)


@dataclass(frozen=True, slots=True)
class OpRow:
    """One primitive op.

    kinds: per operand, the accepted kinds as letters: ``b`` bool, ``i`` integers, ``f`` f32 and
    f64, ``h`` the 16-bit floats, ``e`` those of 8 bits, ``l`` i64 only; one with ``*`` besides has
    its own dtype.
    result: ``same`` (the last operand's dtype), ``bool``, ``to`` (the parameter), or a dtype's
    name.
    cost: rough arithmetic cost, in additions.
    header: the C++ header, less ``litz/`` and ``.h``, that f32 and integers need; header64: f64.
    cpp: C++ template; ``{args}`` are all operands, ``{to}`` the parameter's C++ type.  The same
    text serves scalars and vectors.  infix: C++ template for float operands, where readable.
    triton: Triton template of the same form; by default a call of ``litz``'s function of that name.
    reference: the function below ``torch`` that means the same (``""``: of the op's own name);
    where none does, tests hold one under the op's name.
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


# --- rows -------------------------------------------------------------------------------------

_NUM, _ANY, _FLOAT = "if", "bifh", "f"


def _math(
    name: str,
    cost: int,
    header: str = "math",
    header64: str = "math64",
    *,
    arity: int = 1,
    ulp: float | None = 1,
    ulp64: float | None = 2,
    triton: str = "",
) -> OpRow:
    """A float function that is approximated."""
    kinds = (_FLOAT,) * arity
    return OpRow(
        name,
        kinds,
        cost=cost,
        header=header,
        header64=header64,
        triton=triton,
        ulp=ulp,
        ulp64=ulp64,
    )


def _infix(name: str, kinds: str, sign: str, result: str = "same") -> OpRow:
    text = f"({{0}} {sign} {{1}})"
    return OpRow(name, (kinds, kinds), result, infix=text, triton=text)


def _divides(name: str, cost: int) -> OpRow:
    return OpRow(name, (_NUM, _NUM), cost=cost, header="divide", samples="divisor")


_ARITHMETIC: Final = (
    _infix("add", _NUM, "+"),
    _infix("sub", _NUM, "-"),
    _infix("mul", _NUM, "*"),
    OpRow("div", ("f", "f"), cost=5, infix="({0} / {1})"),
    _divides("floordiv", 8),
    _divides("truncdiv", 6),
    _divides("mod", 8),
    _divides("fmod", 20),
    OpRow("neg", (_NUM,), infix="(-{0})"),
    OpRow("abs", (_NUM,), triton="tl.abs({0})"),
    OpRow("sign", (_NUM,), cost=2),
    OpRow("reciprocal", ("f",), cost=5),
    OpRow("sqrt", ("f",), cost=6),
    OpRow("rsqrt", ("f",), cost=11, ulp=1.5, ulp64=1.5),
    OpRow("maximum", ("bif", "bif"), cost=2),
    OpRow("minimum", ("bif", "bif"), cost=2),
    OpRow("fmax", (_NUM, _NUM), cost=2),
    OpRow("fmin", (_NUM, _NUM), cost=2),
    _math("pow", 40, "wide", "powers", arity=2),
    OpRow("ipow", ("i", "i"), cost=30, header="divide", samples="exponent"),
    OpRow("fma", ("f", "f", "f")),
)

_LOGIC: Final = (
    OpRow("and_", ("bi", "bi"), triton="({0} & {1})"),
    OpRow("or_", ("bi", "bi"), triton="({0} | {1})"),
    OpRow("xor", ("bi", "bi"), cpp="litz::xor_({args})", triton="({0} ^ {1})"),
    OpRow("not_", ("bi",), triton="litz.invert({0})"),
    OpRow("shl", ("i", "i"), cost=2, header="divide", samples="shift"),
    OpRow("shr", ("i", "i"), cost=2, header="divide", samples="shift"),
    _infix("eq", "bif", "==", "bool"),
    _infix("ne", "bif", "!=", "bool"),
    _infix("lt", "bif", "<", "bool"),
    _infix("le", "bif", "<=", "bool"),
    _infix("gt", "bif", ">", "bool"),
    _infix("ge", "bif", ">=", "bool"),
    OpRow("where", ("b*", _ANY, _ANY), triton="tl.where({args})"),
    # ``where``, whose condition nearly always holds: GPUs compute the last operand alone in blocks
    # with an element that takes it.
    OpRow(
        "mostly",
        ("b*", _ANY, _ANY),
        cpp="litz::where({args})",
        triton="tl.where({args})",
        reference="where",
    ),
    OpRow("isnan", ("f",), "bool", triton="({0} != {0})"),
    OpRow("isinf", ("f",), "bool", cost=2, triton="(tl.abs({0}) == float('inf'))"),
    OpRow("signbit", ("f",), "bool", cost=2),
)

_ROUNDING: Final = (
    OpRow("floor", ("f",), triton="tl.floor({0})"),
    OpRow("ceil", ("f",), triton="tl.ceil({0})"),
    OpRow("trunc", ("f",)),
    OpRow("round", ("f",)),
    OpRow("copysign", ("f", "f"), cost=2),
    _math("nextafter", 10, "rare", "rare", arity=2, ulp=0, ulp64=0),
)

_TRANSCENDENTAL: Final = (
    _math("exp", 12),
    _math("exp2", 11),
    _math("expm1", 14),
    _math("log", 14),
    _math("log2", 14),
    _math("log10", 14),
    _math("log1p", 16),
    _math("sin", 16, "trig", "trig64"),
    _math("cos", 16, "trig", "trig64"),
    _math("tan", 30, "trig", "trig64"),
    _math("asin", 20, "trig", "trig64"),
    _math("acos", 20, "trig", "trig64"),
    _math("atan", 18, "trig", "trig64"),
    _math("atan2", 24, "trig", "trig64", arity=2),
    _math("sinh", 20, "wide", "hyper64"),
    _math("cosh", 18, "wide", "hyper64"),
    _math("tanh", 14, "pieces"),
    _math("asinh", 24, "wide", "rare"),
    _math("acosh", 24, "wide", "rare"),
    _math("atanh", 24, "wide", "hyper64"),
    _math("erf", 14, "pieces", "erf64", ulp=1.25),
    _math(
        "erf_plus_one", 14, "pieces", "erf64", triton="(1 + litz.erf({0}))", ulp=None, ulp64=None
    ),
    _math("erfc", 40, "special", "erf64", ulp=1.5),
    _math("erfinv", 60, "special", "special"),
    _math("lgamma", 80, "special", "rare", ulp64=None),
    _math("digamma", 80, "special", "rare", ulp64=None),
    _math("sigmoid", 16, ulp=2.5),
    _math("hypot", 12, "wide", "hyper64", arity=2),
)

_CONVERSION: Final = (
    OpRow(
        "cast", ("e" + _ANY,), "to", cpp="litz::cast<{to}>({0})", triton="litz.cast({0}, {to})",
        samples="cast",
    ),
    OpRow(
        "round_to", ("f",), cost=3, cpp="litz::round_to<{to}>({0})",
        triton="litz.cast({0}, {to}).to({0}.dtype)",
    ),
    OpRow(
        "bitcast", ("eifh",), "to", cost=0, cpp="litz::bitcast<{to}>({0})",
        triton="{0}.to({to}, bitcast=True)",
    ),
)  # fmt: skip

_RANDOM: Final = (
    OpRow("rand", ("l",) * 2, "f32", 30, "random", samples="random"),
    OpRow("randn", ("l",) * 2, "f32", 60, "random", samples="random", ulp=None),
    OpRow("randint", ("l",) * 4, "i64", 40, "random", samples="random"),
)

_CHECKS: Final = (
    # The index where 0 <= index < size, else 0 and a fault of the kernel: a generator prints it.
    OpRow("check_index", ("l", "l"), cost=2, header="loops", samples="generator"),
    # An integer divisor as it is, and a fault of the kernel where it is 0.
    OpRow("check_divisor", ("i",), cost=2, header="loops", samples="generator"),
)
CHECKS: Final = frozenset(row.name for row in _CHECKS)
RANDOM: Final = frozenset(row.name for row in _RANDOM)

_ROWS: Final = _ARITHMETIC + _LOGIC + _ROUNDING + _TRANSCENDENTAL + _CONVERSION + _RANDOM + _CHECKS
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
        return ("f" if dtype.bits >= 32 else "h" if dtype.bits == 16 else "e") in kinds
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
    if name == "cast" and (to in STORED or (dtype in STORED and to is not F32)):
        raise TypeError(f"cast: {dtype} becomes {to} by its bits")
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
    template = op(name).triton or f"litz.{name}({{args}})"
    return _fill(template, args, TRITON_TYPES[to.name] if to else "")


def _fill(template: str, args: Sequence[str], to: str) -> str:
    return template.format(*args, args=", ".join(args), to=to)


def cpp_header(name: str, dtype: DType) -> str:
    """Which header, as ``litz/vec.h``, the op's C++ form on operands of ``dtype`` needs."""
    row = op(name)
    return f"litz/{row.header64 if row.header64 and dtype.bits == 64 else row.header}.h"
