"""The error bounds of the float functions: a million arguments each, and (slow) all 2^32."""

from __future__ import annotations

import pytest
from ops_sweep import binary_rows, exhaustive, sampled, unary_rows

from litz.ir import dtype as dt
from litz.ir.ops import OpRow

ROWS = [pytest.param(r, id=r.name) for r in (*unary_rows(), *binary_rows())]


@pytest.mark.parametrize("row", ROWS)
def test_a_million_arguments(row: OpRow) -> None:
    seen = sampled(row, dt.F32, 1_000_000)
    assert row.ulp is not None
    assert seen.worst <= row.ulp, f"{seen.worst} ulp at {seen.at!r}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS)
def test_every_argument(row: OpRow) -> None:
    if row.arity != 1:
        pytest.skip("two arguments are too many to try all")
    seen = exhaustive(row)
    assert row.ulp is not None
    assert seen.worst <= row.ulp, f"{seen.worst} ulp at {seen.at!r}"
