"""Every row of the op table, on every type it takes, in C++: vectors of 16 and 8 and scalars."""

from __future__ import annotations

from functools import cache

import numpy as np
import ops_reference as ref
import pytest
import torch
from ops_harness import ARCHS, TORCH, WITHOUT_FMA, build, call, same_bits, source, symbol
from ops_samples import operands

from litz.ir import dtype as dt
from litz.ir.dtype import DType
from litz.ir.ops import CHECKS, OPS, OpRow, result_dtype

# Conversions and random numbers have test files of their own; generators print check_index.
ELSEWHERE = ("cast", "random", "generator")
FORMS = ("v16", "v8", "s")
DTYPES = (*(d for d in dt.ALL if d.is_int or d.kind == "bool"), dt.F32, dt.F64)


def takes(row: OpRow, dtype: DType) -> bool:
    args = [dt.BOOL if k == "b*" else dtype for k in row.kinds]
    try:
        result_dtype(row.name, args)
    except TypeError:
        return False
    return True


@cache
def rows(dtype: DType) -> tuple[OpRow, ...]:
    plain = [r for r in OPS.values() if not r.takes_dtype and r.samples not in ELSEWHERE]
    return tuple(r for r in plain if takes(r, dtype))


def test_every_row_is_tested_somewhere() -> None:
    here = {r.name for d in DTYPES for r in rows(d)}
    rest = {r.name for r in OPS.values() if r.takes_dtype or r.samples in ELSEWHERE}
    assert here | rest == set(OPS)
    assert rest == {"cast", "bitcast", "round_to", "rand", "randn", "randint"} | CHECKS


def results(row: OpRow, dtype: DType, arch: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The operands, and what each form makes of them."""
    library = build(source([(r, dtype, None) for r in rows(dtype)]), arch)
    args = operands(row, dtype)
    kinds = [dt.BOOL if k == "b*" else dtype for k in row.kinds]
    out_type = TORCH[result_dtype(row.name, kinds)]
    outs = []
    for form in FORMS:
        out = torch.empty(len(args[0]), dtype=out_type)
        call(library, f"{symbol(row, dtype, None)}_{form}", *args, out)
        outs.append(out)
    return args, outs


def show(row: OpRow, args: list[torch.Tensor], got: torch.Tensor, want: object, i: int) -> str:
    values = ", ".join(repr(a[i].item()) for a in args)
    return f"{row.name}({values}) = {got[i].item()!r}, not {want!r}"


def check_exact(
    row: OpRow, args: list[torch.Tensor], got: torch.Tensor, want: torch.Tensor
) -> None:
    ok = same_bits(got, want)
    if row.name in ("maximum", "minimum", "fmax", "fmin"):
        ok |= got == want  # of two zeros either is the larger
    bad = (~ok).nonzero().flatten().tolist()
    assert not bad, f"{len(bad)}: " + show(row, args, got, want[bad[0]].item(), bad[0])


def eager_defined(row: OpRow, dtype: DType, args: list[torch.Tensor]) -> torch.Tensor:
    """Where eager neither raises nor traps."""
    if row.samples != "divisor" or dtype.is_float:
        return torch.ones(len(args[0]), dtype=torch.bool)
    lowest = torch.iinfo(args[0].dtype).min
    return (args[1] != 0) & ~((args[0] == lowest) & (args[1].long() == -1))


CASES = [pytest.param(r, d, id=f"{r.name}-{d}") for d in DTYPES for r in rows(d)]


@pytest.mark.parametrize(("row", "dtype"), CASES)
def test_row(row: OpRow, dtype: DType, arch: str = "native") -> None:
    args, outs = results(row, dtype, arch)
    check_exact(row, args, outs[1], outs[0])
    check_exact(row, args, outs[2], outs[0])
    if not dtype.is_float:
        check_python(row, dtype, args, outs[0])
    claim = row.ulp64 if dtype == dt.F64 else row.ulp
    if claim and arch == "baseline":
        claim *= WITHOUT_FMA
    if not dtype.is_float or not claim:
        check_eager(row, dtype, args, outs[0], rtol=1e-9 if claim is None else 0)
    elif dtype.is_float:
        check_ulp(row, args, outs[0], claim)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [a for a in ARCHS if a != "native"])
@pytest.mark.parametrize(("row", "dtype"), CASES)
def test_row_on_other_instruction_sets(row: OpRow, dtype: DType, arch: str) -> None:
    test_row(row, dtype, arch)


def check_python(row: OpRow, dtype: DType, args: list[torch.Tensor], got: torch.Tensor) -> None:
    values = got.tolist()
    for i, want in enumerate(ref.by_python(row, dtype, args)):
        if want is not None:
            assert values[i] == want, show(row, args, got, want, i)


def check_eager(
    row: OpRow, dtype: DType, args: list[torch.Tensor], got: torch.Tensor, rtol: float
) -> None:
    function = ref.torch_function(row)
    assert function is not None, f"no reference for {row.name}"
    defined = eager_defined(row, dtype, args)
    args, got = [a[defined] for a in args], got[defined]
    try:
        want = function(*args)
    except (RuntimeError, NotImplementedError) as error:
        assert dtype.name in ("u16", "u32", "u64"), error  # eager has few ops on these
        return
    if rtol:
        # A sum is as exact as its larger part.
        atol = 2 * torch.finfo(got.dtype).eps if row.name == "erf_plus_one" else 0.0
        torch.testing.assert_close(got, want.to(got.dtype), rtol=rtol, atol=atol, equal_nan=True)
        return
    check_exact(row, args, got, want.to(got.dtype))


def check_ulp(row: OpRow, args: list[torch.Tensor], got: torch.Tensor, claim: float) -> None:
    exact = ref.truth(row, args)
    error = ref.ulp_error(got, exact)
    i = int(error.argmax())
    assert error[i] <= claim, f"{error[i]} ulp: " + show(row, args, got, exact[i], i)
    # The sign of zero is part of the value.
    zero = torch.from_numpy(exact == 0) & (got == 0)
    assert torch.equal(got[zero].signbit(), torch.from_numpy(exact < 0)[zero] | signs(exact)[zero])


def signs(values: object) -> torch.Tensor:
    return torch.from_numpy(np.signbit(np.asarray(values)))
