"""The op table as Python sees it: types, spellings, meaning, errors."""

from __future__ import annotations

import math

import ops_reference as ref
import pytest
import torch
from ops_harness import INCLUDE, TORCH
from ops_python import EVALUATE, fold
from ops_samples import moderate, specials

from litz.ir import dtype as dt
from litz.ir.ops import (
    CHECKS,
    OPS,
    cpp_header,
    cpp_text,
    op,
    result_dtype,
    triton_text,
)


def test_unknown_names_say_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean 'sigmoid'"):
        op("sigmoidd")
    with pytest.raises(KeyError, match="unknown op"):
        op("zzz")


def test_rows_stand_under_their_names() -> None:
    assert all(name == row.name for name, row in OPS.items())
    assert all(row.cost >= 0 and row.arity >= 1 for row in OPS.values())


@pytest.mark.parametrize(
    ("name", "args", "to", "result"),
    [
        ("add", (dt.I8, dt.I8), None, dt.I8),
        ("lt", (dt.F32, dt.F32), None, dt.BOOL),
        ("where", (dt.BOOL, dt.BF16, dt.BF16), None, dt.BF16),
        ("where", (dt.BOOL, dt.BOOL, dt.BOOL), None, dt.BOOL),
        ("cast", (dt.F16,), dt.I64, dt.I64),
        ("round_to", (dt.F32,), dt.F16, dt.F32),
        ("bitcast", (dt.F32,), dt.I32, dt.I32),
        ("rand", (dt.I64, dt.I64), None, dt.F32),
        ("randint", (dt.I64,) * 4, None, dt.I64),
        ("isnan", (dt.F64,), None, dt.BOOL),
    ],
)
def test_result_types(name, args, to, result) -> None:  # type: ignore[no-untyped-def]
    assert result_dtype(name, args, to) == result


@pytest.mark.parametrize(
    ("name", "args", "to", "message"),
    [
        ("add", (dt.F32, dt.F64), None, "differ"),
        ("add", (dt.F32,), None, "takes 2 operands"),
        ("add", (dt.BOOL, dt.BOOL), None, "does not take bool"),
        ("exp", (dt.BF16,), None, "does not take bf16"),
        ("exp", (dt.I32,), None, "does not take i32"),
        ("where", (dt.F32, dt.F32, dt.F32), None, "does not take f32"),
        ("cast", (dt.F32,), None, "needs a dtype"),
        ("exp", (dt.F32,), dt.F32, "takes no dtype"),
        ("bitcast", (dt.F32,), dt.I64, "has no i64 form"),
        ("round_to", (dt.F32,), dt.F64, "not a float type narrower"),
        ("round_to", (dt.F32,), dt.I16, "not a float type narrower"),
        ("rand", (dt.I32, dt.I64), None, "does not take i32"),
    ],
)
def test_wrong_types_are_errors(name, args, to, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError, match=message):
        result_dtype(name, args, to)


def test_cpp_spellings() -> None:
    assert cpp_text("add", ["x", "y"], dt.F32) == "(x + y)"
    assert cpp_text("add", ["x", "y"], dt.I8) == "litz::add(x, y)"
    assert cpp_text("xor", ["x", "y"], dt.I8) == "litz::xor_(x, y)"
    assert cpp_text("cast", ["x"], dt.F32, dt.BF16) == "litz::cast<litz::bf16>(x)"
    assert cpp_text("round_to", ["x"], dt.F32, dt.F16) == "litz::round_to<litz::f16>(x)"
    assert cpp_text("exp", ["x"], dt.F64) == "litz::exp(x)"


def test_every_header_exists() -> None:
    for row in OPS.values():
        for dtype in (dt.F32, dt.F64):
            assert (INCLUDE / cpp_header(row.name, dtype)).is_file()


def test_triton_spellings_take_all_operands() -> None:
    for row in OPS.values():
        if row.name not in CHECKS:
            names = [f"operand{i}" for i in range(row.arity)]
            text = triton_text(row.name, names, dt.F16 if row.takes_dtype else None)
            assert all(n in text for n in names), text


FOLDED = [row for row in OPS.values() if row.name in EVALUATE and not row.takes_dtype]


@pytest.mark.parametrize("row", FOLDED, ids=lambda r: r.name)
def test_python_is_what_eager_computes(row) -> None:  # type: ignore[no-untyped-def]
    kinds = [k for k in row.kinds if k != "b*"]
    dtype = dt.F64 if "f" in kinds[0] else dt.I64
    own = torch.cat([specials(dtype), moderate(dtype, 64)])
    if dtype.is_float:
        own = own[(own == 0) | ~(own.abs() < 1e-300)]  # eager flushes some small results
    else:
        own = own[own.abs() < 1000] if row.samples == "exponent" else own[own != own.min()]
    args = [own, own.roll(5), own.roll(11)][: len(kinds)]
    function = ref.torch_function(row)
    assert function is not None
    if row.samples == "divisor" and not dtype.is_float:
        args = [a[args[1] != 0] for a in args]
    condition = [own > 1] if len(kinds) < row.arity else []
    want = function(*condition, *args).to(TORCH[dtype] if row.result == "same" else torch.bool)
    folded = 0
    for i, values in enumerate(zip(*(a.tolist() for a in (*condition, *args)), strict=True)):
        got = fold(row.name, values, dtype)
        if got is None:
            continue
        folded += 1
        expected = want[i].item()
        if isinstance(expected, float) and math.isnan(expected):
            assert math.isnan(got), (values, got)
        else:
            rel = 0 if row.ulp == 0 else 1e-13
            assert got == pytest.approx(expected, rel=rel, abs=0), (values, got, expected)
    assert folded >= 5


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_wrap_is_a_conversion(dtype: dt.DType) -> None:
    if dtype.is_float:
        values = specials(dt.F64)
        want = values.to(torch.float32).to(TORCH[dtype]) if dtype.bits < 32 else values
        want = want.to(TORCH[dtype])
    else:
        values = specials(dt.I64)
        want = values.to(TORCH[dtype])
    for value, expected in zip(values.tolist(), want.tolist(), strict=True):
        got = dt.wrap(value, dtype)
        assert got == expected or (got != got and expected != expected), (value, got, expected)
