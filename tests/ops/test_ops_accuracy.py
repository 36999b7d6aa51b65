"""The error bounds of the float functions: a million arguments each, and (slow) all 2^32."""

from __future__ import annotations

import math

import ops_reference as ref
import pytest
import torch
from ops_harness import WITHOUT_FMA, build, call, source, symbol
from ops_sweep import binary_rows, exhaustive, sampled, unary_rows

from litz.ir import dtype as dt
from litz.ir.ops import OPS, OpRow

ROWS = [pytest.param(r, id=r.name) for r in (*unary_rows(), *binary_rows())]


@pytest.mark.parametrize("row", ROWS)
def test_a_million_arguments(row: OpRow) -> None:
    seen = sampled(row, dt.F32, 1_000_000)
    assert row.ulp is not None
    assert seen.worst <= row.ulp, f"{seen.worst} ulp at {seen.at!r}"


@pytest.mark.parametrize("row", ROWS)
def test_without_fused_multiply_add(row: OpRow) -> None:
    seen = sampled(row, dt.F32, 1 << 17, arch="baseline")
    assert row.ulp is not None
    assert seen.worst <= row.ulp * WITHOUT_FMA, f"{seen.worst} ulp at {seen.at!r}"


def test_powers_of_double_near_the_ends_of_the_exponents() -> None:
    """Where an error of the logarithm counts a thousandfold; of bases near 1 too."""
    generator = torch.Generator().manual_seed(0)
    like = {"generator": generator, "dtype": torch.float64}
    near = torch.rand(1 << 14, **like) / 8
    x = torch.cat([torch.rand(1 << 14, **like) * 4 + 0.05, 1 - near / 4, 1 + near / 2])
    y = (torch.rand(len(x), **like) * 2040 - 1020) / x.log2()
    assert worst64("pow", x, y) < 1.6


@pytest.mark.parametrize(
    "arch", ["native", *(pytest.param(a, marks=pytest.mark.slow) for a in ("avx2", "baseline"))]
)
def test_turns_of_double(arch: str) -> None:
    """Near multiples of pi/2, where sines or cosines cancel, and at the ends of the reduction."""
    generator = torch.Generator().manual_seed(0)
    n = torch.cat([torch.arange(1 << 12), torch.randint(1 << 30, (1 << 12,), generator=generator)])
    x = n.double() * (math.pi / 2)
    shift = torch.tensor([0.0, 1e-15, 1e-8, math.pi / 4], dtype=torch.float64)
    x = (x[:, None] * (1 - shift)).flatten()
    for name in ("sin", "cos", "tan"):
        assert worst64(name, x, arch=arch) < (2 if arch == "baseline" else 1)


def test_angles_of_double() -> None:
    """All quarters and slopes; sizes that are beyond the vectors' reach in one lane of many."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 1 << 14, generator=generator, dtype=torch.float64)
    scale = torch.tensor([1.0] * 13 + [2.0**1020, 2.0**-1040, 0.0], dtype=torch.float64)
    x, y = x * scale.repeat(1 << 10), y * scale.repeat(1 << 10).roll(3) * scale.repeat(1 << 10)
    assert worst64("atan2", y, x) < 1
    assert worst64("hypot", y, x) < 0.6


def test_hyperbolic_functions_of_double() -> None:
    """To where they are infinite; of small numbers too."""
    generator = torch.Generator().manual_seed(0)
    part = torch.rand(1 << 13, generator=generator, dtype=torch.float64) * 2 - 1
    x = torch.cat([part, part * 4, part * 2.0**-30, part * 710.4758600739439])
    assert worst64("sinh", x) < 0.9
    assert worst64("cosh", x) < 1
    assert worst64("atanh", x.clamp(-1, 1)) < 2


def worst64(name: str, *args: torch.Tensor, arch: str = "native") -> float:
    """The largest error (ulp) of an op on these arguments of double."""
    out, row = torch.empty_like(args[0]), OPS[name]
    call(build(source([(row, dt.F64, None)]), arch), f"{symbol(row, dt.F64, None)}_v16", *args, out)
    return float(ref.ulp_error(out, ref.truth(row, list(args))).max())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", ROWS)
def test_every_argument(row: OpRow) -> None:
    if row.arity != 1:
        pytest.skip("two arguments are too many to try all")
    seen = exhaustive(row)
    assert row.ulp is not None
    assert seen.worst <= row.ulp, f"{seen.worst} ulp at {seen.at!r}"
