"""Special values through compiled graphs, op by op as eager: nan, infinities, signed zeros,
subnormal numbers, integer extremes, shifts out of range, casts between types."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Fn = Callable[..., Any]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIGNED = [torch.int64, torch.int32, torch.int16, torch.int8]
# Relative error allowed where a function is approximated, on top of eager's own few ulp.
RTOL = {torch.float32: 4e-6, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def special_floats(dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    positive = [
        0.0, info.smallest_normal, info.smallest_normal / 4, info.eps, 0.3, 0.5, 1 - info.eps, 1.0,
        1.5, 2.0, 2.5, 3.0, 10.0, 80.0, 1 / info.eps, info.max, math.inf,
    ]  # fmt: skip
    values = [*positive, *(-v for v in positive), math.nan]
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def special_ints(dtype: torch.dtype) -> Tensor:
    info = torch.iinfo(dtype)
    values = {info.min, info.min + 1, -64, -31, -3, -2, -1, 0, 1, 2, 3, 7, 31, 63, info.max}
    return torch.tensor(sorted(v for v in values if info.min <= v <= info.max), dtype=dtype)


def whole_vectors(x: Tensor) -> Tensor:
    """Repeated to a length that ATen's vector kernels take without a tail."""
    count = -(-x.numel() // 64) * 64
    return x.repeat(-(-count // x.numel()))[:count].clone()


def pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cartesian_prod(values, values)
    return whole_vectors(both[:, 0]), whole_vectors(both[:, 1])


def differences(actual: Tensor, eager: Tensor, rtol: float) -> Tensor:
    """Elements that differ: any special value or sign of zero, finite ones beyond ``rtol``.

    Where rtol is given, results below the normal numbers may be zero: eager's functions flush some.
    """
    if not eager.dtype.is_floating_point:
        return actual != eager
    a, e = actual.double(), eager.double()
    same = (a == e) & (torch.signbit(a) == torch.signbit(e)) | (torch.isnan(a) & torch.isnan(e))
    finite = torch.isfinite(a) & torch.isfinite(e)
    if not rtol:
        return ~same
    tiny = 4 * torch.finfo(eager.dtype).smallest_normal
    close = finite & ((a - e).abs() <= rtol * e.abs() + tiny)
    return ~(same | (close & (torch.signbit(a) == torch.signbit(e))))


def rounded_root(x: Tensor) -> Tensor:
    """Rounded once, which eager's of MKL is not on each processor; half the digits round alike."""
    root = [math.sqrt(v) if v >= 0 else math.nan for v in x.double().tolist()]
    return torch.tensor(root, dtype=torch.float64).to(x.dtype)


def check_all(fns: Mapping[str, Fn], *args: Tensor, rtol: float = 0.0) -> None:
    """Every function in one compiled graph; differences are named by function and operands."""
    torch._dynamo.reset()
    names = list(fns)

    def every(*xs: Tensor) -> list[Any]:
        return [fns[n](*xs) for n in names]

    compiled = torch.compile(every, backend="litz", options={"check_ir": True}, fullgraph=True)
    problems = []
    for name, a, eager in zip(names, compiled(*args), every(*args), strict=True):
        e = rounded_root(*args) if name == "sqrt" and not rtol else eager
        assert a.dtype == e.dtype and a.shape == e.shape, name
        wrong = differences(a, e, rtol)
        if wrong.any():
            k = int(wrong.flatten().nonzero()[0])
            at = [x.flatten()[k].item() for x in args] if e.shape == args[0].shape else k
            got, want = a.flatten()[k].item(), e.flatten()[k].item()
            problems.append(f"{name} of {at}: {got} instead of {want}")
    assert not problems, "\n".join(problems)


EXACT_UNARY: dict[str, Fn] = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "sgn": torch.sgn, "sqrt": torch.sqrt,
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round,
    "frac": torch.frac, "reciprocal": torch.reciprocal, "square": torch.square,
    "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite,
    "isposinf": torch.isposinf, "isneginf": torch.isneginf, "signbit": torch.signbit,
    "nan_to_num": torch.nan_to_num, "relu": torch.relu, "relu6": F.relu6,
    "hardtanh": F.hardtanh, "logical_not": torch.logical_not, "angle": torch.angle,
    "clamp": lambda x: torch.clamp(x, -1.5, 2.5), "clamp_min": lambda x: x.clamp_min(0.0),
    "leaky_relu": F.leaky_relu, "threshold": lambda x: F.threshold(x, 0.5, -0.0),
    "pow 2": lambda x: x**2, "pow 3": lambda x: x**3, "pow 0": lambda x: x**0,
    "pow 1": lambda x: x**1, "frexp mantissa": lambda x: torch.frexp(x.float())[0],
    "frexp exponent": lambda x: torch.frexp(x.double())[1],
    "heaviside": lambda x: torch.heaviside(x, x),
}  # fmt: skip
ACTIVATIONS: dict[str, Fn] = {
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "mish": F.mish, "softplus": F.softplus, "elu": F.elu, "selu": F.selu, "celu": F.celu,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "logsigmoid": F.logsigmoid,
    "softsign": F.softsign, "tanhshrink": F.tanhshrink, "softshrink": lambda x: F.softshrink(x) + 0,
    "hardshrink": F.hardshrink, "logit": torch.logit, "sinc": torch.sinc,
    "entr": torch.special.entr, "pow half": lambda x: x**0.5, "pow -1": lambda x: x**-1,
    "pow -2": lambda x: x**-2, "pow 2.5": lambda x: x**2.5, "deg2rad": torch.deg2rad,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_unary(dtype: torch.dtype) -> None:
    check_all(EXACT_UNARY, whole_vectors(special_floats(dtype)))


FUNCTIONS = (
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid reciprocal"
).split()


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions(dtype: torch.dtype) -> None:
    fns: dict[str, Fn] = {name: getattr(torch.ops.aten, name) for name in FUNCTIONS}
    values = special_floats(dtype)
    check_all({**fns, **ACTIVATIONS}, whole_vectors(values), rtol=RTOL[dtype])
    # Eager's GELU multiplies the largest numbers beyond the range before it halves them.
    finite = values[values.abs() < torch.finfo(dtype).max]
    # Its zeros, and what it flushes to zero, have a sign on some processors alone.
    tiny = 4 * torch.finfo(dtype).smallest_normal
    gelu = {"gelu": lambda x: (y := F.gelu(x)).masked_fill(y.abs() < tiny, 0)}
    check_all(gelu, whole_vectors(finite), rtol=max(RTOL[dtype], 1e-3))


EXACT_BINARY: dict[str, Fn] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum,
    # C leaves the sign of a zero open here, and eager's differs from type to type.
    "fmax": lambda x, y: torch.fmax(x, y) + 0, "fmin": lambda x, y: torch.fmin(x, y) + 0,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "copysign": torch.copysign, "nextafter": lambda x, y: torch.nextafter(x.float(), y.float()),
    "logical_and": torch.logical_and, "logical_xor": torch.logical_xor,
    "where": lambda x, y: torch.where(x > y, x, y), "heaviside": torch.heaviside,
    "clamp": lambda x, y: torch.clamp(x, y, y + 1), "isclose": torch.isclose,
}  # fmt: skip
BINARY: dict[str, Fn] = {
    "pow": torch.pow, "atan2": torch.atan2, "hypot": torch.hypot, "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_binary(dtype: torch.dtype) -> None:
    x, y = pairs(special_floats(dtype))
    check_all(EXACT_BINARY, x, y)
    # Eager's vector kernel makes nan of a remainder whose quotient overflows: Litz does not.
    held = ((x / y).abs() < torch.finfo(dtype).max) | (y == 0) | ~x.isfinite()
    check_all(DIVISIONS, x[held], y[held])


@pytest.mark.parametrize("dtype", FLOATS)
def test_binary_functions(dtype: torch.dtype) -> None:
    check_all(BINARY, *pairs(special_floats(dtype)), rtol=RTOL[dtype])
    # Sums that may cancel: to the precision of what is added up.
    sums = {n: (lambda x, y, f=f: f(x, y) + 16) for n, f in SUMS.items()}
    check_all(sums, *pairs(special_floats(dtype)), rtol=RTOL[dtype])


SUMS: dict[str, Fn] = {"logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2}
INT_UNARY: dict[str, Fn] = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "square": torch.square,
    "bitwise_not": torch.bitwise_not, "signbit": torch.signbit, "relu": torch.relu,
    "float": lambda x: x.float(), "double": lambda x: x.double(), "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(), "bool": lambda x: x.bool(), "int8": lambda x: x.char(),
    "int16": lambda x: x.short(), "int32": lambda x: x.int(), "int64": lambda x: x.long(),
    "uint8": lambda x: x.byte(), "true_divide": lambda x: x / 3, "clamp": lambda x: x.clamp(-2, 5),
    "plus a number": lambda x: x + 1, "times a number": lambda x: x * 3,
}  # fmt: skip
INT_BINARY: dict[str, Fn] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum,
    "minimum": torch.minimum, "and": torch.bitwise_and, "or": torch.bitwise_or,
    "xor": torch.bitwise_xor, "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
    "eq": torch.eq, "lt": torch.lt, "ge": torch.ge, "true_divide": torch.true_divide,
    "logical_or": torch.logical_or, "gcd of signs": lambda x, y: torch.sign(x) * torch.sign(y),
}  # fmt: skip
DIVISIONS: dict[str, Fn] = {
    "floor_divide": torch.floor_divide, "remainder": torch.remainder, "fmod": torch.fmod,
    "trunc_divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [*SIGNED, torch.uint8])
def test_integers(dtype: torch.dtype) -> None:
    values = special_ints(dtype)
    check_all(INT_UNARY, whole_vectors(values))
    x, y = pairs(values)
    check_all(INT_BINARY, x, y)
    lowest = torch.iinfo(dtype).min
    defined = (y != 0) & ~((x == lowest) & (y == -1))
    check_all(DIVISIONS, x[defined], y[defined])
    powers = (y >= 0) & (y < 70)
    check_all({"pow": torch.pow}, x[powers], y[powers])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "trunc_divide"])
def test_division_by_zero_is_an_error(dtype: torch.dtype, name: str) -> None:
    x, y = torch.arange(1, 9, dtype=dtype), torch.ones(8, dtype=dtype)
    y[5] = 0
    fn = DIVISIONS[name]
    with pytest.raises(RuntimeError):
        fn(x, y)
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", options={"check_ir": True})
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(x, y)
    y[5] = 2
    assert torch.equal(compiled(x, y), fn(x, y))


BOOLS: dict[str, Fn] = {
    "and": torch.logical_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "add": torch.add,
    "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum, "eq": torch.eq,
    "lt": torch.lt, "ge": torch.ge, "float sum": lambda x, y: x.float() + y,
    "int sum": lambda x, y: x + y.long(), "where": lambda x, y: torch.where(x, y, ~y),
    "true_divide": torch.true_divide, "int": lambda x, y: (x & ~y).int(),
}  # fmt: skip


def test_bools() -> None:
    check_all(BOOLS, *pairs(torch.tensor([True, False])))


TYPES = [*FLOATS, *SIGNED, torch.uint8, torch.bool]


@pytest.mark.parametrize("source", FLOATS)
def test_casts_from_floats(source: torch.dtype) -> None:
    """In range of every target: beyond it C++ leaves the result open, and so does eager."""
    values = torch.tensor([0.0, -0.0, 0.5, 0.999, 1.0, 1.5, 2.5, 3.75, 100.25, 127.0])
    x = whole_vectors(values.to(source))
    check_all({str(t): lambda x, t=t: x.to(t) for t in TYPES}, x)
    floats: dict[str, Fn] = {str(t): lambda x, t=t: x.to(t) for t in [*FLOATS, torch.bool]}
    check_all(floats, whole_vectors(special_floats(source)))
    signed: dict[str, Fn] = {str(t): lambda x, t=t: x.to(t) for t in SIGNED}
    check_all(signed, -x)


ROWS: dict[str, Fn] = {
    "sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(-1), "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1), "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "max": lambda x: x.max(-1).values, "any": lambda x: x.any(-1), "all": lambda x: x.all(-1),
    "prod": lambda x: x.prod(-1), "nansum": lambda x: x.nansum(-1),
    "logsumexp": lambda x: x.logsumexp(-1) + 1, "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1) + 1, "var": lambda x: x.var(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "inf norm": lambda x: torch.linalg.vector_norm(x, math.inf, dim=-1),
    "norm 0": lambda x: torch.linalg.vector_norm(x, 0, dim=-1),
    "count_nonzero": lambda x: torch.count_nonzero(x, -1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions(dtype: torch.dtype) -> None:
    parts = [0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan]
    rows = list(itertools.product(parts, repeat=3))
    x = torch.tensor(rows, dtype=dtype)
    # A zero's sign is whichever element or partial sum came first.
    unsigned = {n: (lambda x, f=f: f(x) + 0) for n, f in ROWS.items()}
    rtol = {torch.float16: 1e-2, torch.bfloat16: 4e-2}.get(dtype, 1e-5)
    check_all(unsigned, x, rtol=rtol)
    longer = torch.cat([torch.ones(len(rows), 33, dtype=dtype), x], 1)
    check_all(unsigned, longer, rtol=rtol)


@pytest.mark.parametrize("order", [2, 3, 0.5, 1, 0, -1, -2, float("inf")])
def test_norms_of_one_element(order: float) -> None:
    """Of one element it is the size, whose powers may not exist."""
    x = torch.tensor([3e38, 1e-25, -2.0, 1e20, float("nan"), -0.0, float("inf")])
    for fn, arg in (
        (lambda x: torch.linalg.vector_norm(x, order, 1), x[:, None]),
        (lambda x: torch.linalg.vector_norm(x, order, (0, 2)), x[None, :, None]),
        (lambda x: torch._foreach_norm([x], order)[0], x[1]),
    ):
        torch._dynamo.reset()
        actual = torch.compile(fn, backend="litz", fullgraph=True)(arg)
        assert torch.equal(actual.nan_to_num(-7.0), fn(arg).nan_to_num(-7.0)), order
