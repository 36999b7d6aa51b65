"""cast, round_to and bitcast between every two types, against eager's conversions."""

from __future__ import annotations

import pytest
import torch
from ops_harness import ARCHS, LANES, TORCH, build, call, same_bits, source, symbol
from ops_samples import moderate, random_bits, specials

from litz.ir import dtype as dt
from litz.ir.dtype import DType
from litz.ir.ops import OPS, result_dtype

FORMS = (*(f"v{n}" for n in LANES), "s")
CAST, ROUND, BITCAST = OPS["cast"], OPS["round_to"], OPS["bitcast"]


def arguments(dtype: DType) -> torch.Tensor:
    x = torch.cat([specials(dtype), random_bits(dtype, 4096), moderate(dtype, 1024)])
    if dtype.is_float and dtype.bits > 16:
        # Around the limits of the integers, and where rounding to 16 bits is a tie.
        powers = torch.cat([2.0 ** torch.arange(-30, 66), -(2.0 ** torch.arange(-30, 66))])
        near = [powers * f for f in (1, 1 - 2**-8, 1 + 2**-8, 1 + 2**-11, 1 + 2**-9 + 2**-22)]
        x = torch.cat([x, *(p.to(x.dtype) for p in near)])
    return torch.cat([x, x[: -len(x) % 16]]).contiguous()


def run(name: str, args: torch.Tensor, to: DType, text: str, arch: str) -> list[torch.Tensor]:
    outs = []
    for form in FORMS:
        out = torch.empty(len(args), dtype=TORCH[to])
        call(build(text, arch), f"{name}_{form}", args, out)
        outs.append(out)
    return outs


def fits(x: torch.Tensor, to: DType) -> torch.Tensor:
    """Where eager's conversion does not depend on how it was vectorised."""
    if to != dt.U32 or not x.dtype.is_floating_point:
        return torch.ones(len(x), dtype=torch.bool)
    return (x > -(2.0**31)) & (x < 2.0**32)


def compare(args: torch.Tensor, got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    bad = (~same_bits(got, want)).nonzero().flatten().tolist()
    if bad:
        i = bad[0]
        text = f"{what} of {args[i].item()!r} = {got[i].item()!r}, not {want[i].item()!r}"
        raise AssertionError(f"{len(bad)}: {text}")


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_cast(dtype: DType, arch: str = "native") -> None:
    text = source([(CAST, dtype, to) for to in dt.ALL])
    args = arguments(dtype)
    for to in dt.ALL:
        outs = run(symbol(CAST, dtype, to), args, to, text, arch)
        keep = fits(args, to)
        for form, got in zip(FORMS, outs, strict=True):
            compare(args[keep], got[keep], args.to(TORCH[to])[keep], f"{form}: cast to {to}")


@pytest.mark.parametrize("dtype", (dt.F32, dt.F64), ids=str)
def test_round_to(dtype: DType, arch: str = "native") -> None:
    types = [d for d in (dt.BF16, dt.F16, dt.F32, dt.F64) if d.bits <= dtype.bits]
    text = source([(ROUND, dtype, to) for to in types])
    args = arguments(dtype)
    for to in types:
        want = args.to(TORCH[to]).to(TORCH[dtype])
        for got in run(symbol(ROUND, dtype, to), args, dtype, text, arch):
            compare(args, got, want, f"round_to {to}")


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d.kind != "bool"], ids=str)
def test_bitcast(dtype: DType, arch: str = "native") -> None:
    types = [d for d in dt.ALL if d.bits == dtype.bits and d.kind != "bool"]
    assert all(result_dtype("bitcast", [dtype], to) == to for to in types)
    text = source([(BITCAST, dtype, to) for to in types])
    args = random_bits(dtype, 4096)
    for to in types:
        for got in run(symbol(BITCAST, dtype, to), args, to, text, arch):
            assert torch.equal(got.view(torch.uint8), args.view(torch.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("arch", [a for a in ARCHS if a != "native"])
@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_casts_on_other_instruction_sets(dtype: DType, arch: str) -> None:
    test_cast(dtype, arch)
    if dtype in (dt.F32, dt.F64):
        test_round_to(dtype, arch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("to", (dt.BF16, dt.F16), ids=str)
def test_every_float_rounds_to_16_bits_as_eager(to: DType, arch: str) -> None:
    library = build(source([(CAST, dt.F32, to)], lanes=(16,)), arch)
    for block in range(256):
        bits = torch.arange(block << 24, (block + 1) << 24, dtype=torch.int64)
        x = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
        out = torch.empty(len(x), dtype=TORCH[to])
        call(library, f"{symbol(CAST, dt.F32, to)}_v16", x, out)
        want = x.to(TORCH[to])
        nan = x.isnan()
        assert torch.equal(out.view(torch.int16)[~nan], want.view(torch.int16)[~nan])
        assert bool(out[nan].isnan().all())
