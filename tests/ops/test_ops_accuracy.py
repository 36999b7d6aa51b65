"""The error bounds of the float functions: a million arguments each, and (slow) all 2^32."""

from __future__ import annotations

import ops_reference as ref
import pytest
import torch
from ops_harness import build, call, source, symbol
from ops_sweep import binary_rows, exhaustive, sampled, unary_rows

from litz.ir import dtype as dt
from litz.ir.ops import OPS, OpRow

ROWS = [pytest.param(r, id=r.name) for r in (*unary_rows(), *binary_rows())]


@pytest.mark.parametrize("row", ROWS)
def test_a_million_arguments(row: OpRow) -> None:
    seen = sampled(row, dt.F32, 1_000_000)
    assert row.ulp is not None
    assert seen.worst <= row.ulp, f"{seen.worst} ulp at {seen.at!r}"


def test_powers_of_double_near_the_ends_of_the_exponents() -> None:
    """Where an error of the logarithm counts a thousandfold; of bases near 1 too."""
    generator = torch.Generator().manual_seed(0)
    like = {"generator": generator, "dtype": torch.float64}
    near = torch.rand(1 << 14, **like) / 8
    x = torch.cat([torch.rand(1 << 14, **like) * 4 + 0.05, 1 - near / 4, 1 + near / 2])
    y = (torch.rand(len(x), **like) * 2040 - 1020) / x.log2()
    out, row = torch.empty_like(x), OPS["pow"]
    call(build(source([(row, dt.F64, None)])), f"{symbol(row, dt.F64, None)}_v16", x, y, out)
    assert float(ref.ulp_error(out, ref.truth(row, [x, y])).max()) < 1.6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS)
def test_every_argument(row: OpRow) -> None:
    if row.arity != 1:
        pytest.skip("two arguments are too many to try all")
    seen = exhaustive(row)
    assert row.ulp is not None
    assert seen.worst <= row.ulp, f"{seen.worst} ulp at {seen.at!r}"
