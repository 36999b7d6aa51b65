"""The random ops: Philox itself against its published vectors, then what is made of it."""

from __future__ import annotations

import math

import numpy as np
import torch
from ops_harness import build, call, source, symbol

from litz.ir import dtype as dt
from litz.ir.ops import OPS

NAMES = ("rand", "randn", "randint")
TEXT = source([(OPS[n], dt.I64, None) for n in NAMES])
WORDS = """
#include <litz/random.h>
using namespace litz;
extern "C" void words(long n, const i64* seed, const i64* offset, i64* c) {
  for (long i = 0; i < n; i += 8)
    store(c + i, cast<i64>(philox::words(load<8>(seed + i), load<8>(offset + i)).own));
}
"""


def philox(key: int, counter: int) -> list[int]:
    """Philox4x32-10 in Python's integers."""
    low = 0xFFFFFFFF
    c, k = [counter >> (32 * i) & low for i in range(4)], [key & low, key >> 32 & low]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & low, p0 >> 32 ^ c[3] ^ k[1], p0 & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c


def test_the_python_reference_is_philox() -> None:
    # Known answers of the Random123 distribution.
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = philox(2**64 - 1, 2**128 - 1)
    assert ones == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def draw(name: str, seed: torch.Tensor, offset: torch.Tensor, *bounds: torch.Tensor, form: str):  # type: ignore[no-untyped-def]
    out = torch.empty(len(offset), dtype=torch.int64 if name == "randint" else torch.float32)
    call(build(TEXT), f"{symbol(OPS[name], dt.I64, None)}_{form}", seed, offset, *bounds, out)
    return out


def bounds(n: int, low: int, high: int) -> list[torch.Tensor]:
    return [torch.full((n,), low), torch.full((n,), high)]


def test_words_are_philox_words() -> None:
    start = torch.tensor([0, 8, 2, 1 << 33, (1 << 34) - 4, 5, 1 << 60, 100])
    offset = (start[:, None] + torch.arange(8)).flatten()
    seed = torch.tensor([0, 1, -1, 1 << 40, 77, -(1 << 63), 3, 12345]).repeat_interleave(8)
    out = torch.empty_like(offset)
    call(build(WORDS), "words", seed, offset, out)
    for s, o, got in zip(seed.tolist(), offset.tolist(), out.tolist(), strict=True):
        assert got == philox(s % 2**64, o >> 2)[o & 3], (s, o)


def test_forms_agree_and_order_does_not_matter() -> None:
    n = 4096
    generator = torch.Generator().manual_seed(0)
    scattered = torch.randint(0, 1 << 40, (n,), generator=generator)
    for offset in (torch.arange(n), torch.arange(n) + 3, scattered, torch.arange(n).flip(0)):
        offset = offset.contiguous()
        seed = torch.full((n,), 42)
        for name in NAMES:
            more = bounds(n, -10, 1000) if name == "randint" else []
            by_form = [draw(name, seed, offset, *more, form=f) for f in ("v16", "v8", "s")]
            assert torch.equal(by_form[0], by_form[1])
            assert torch.equal(by_form[0], by_form[2])
    forward = draw("randn", torch.full((n,), 42), torch.arange(n), form="v16")
    backward = draw("randn", torch.full((n,), 42), torch.arange(n).flip(0).contiguous(), form="v16")
    assert torch.equal(forward, backward.flip(0))


def test_uniform() -> None:
    n = 1 << 20
    x = draw("rand", torch.full((n,), 7), torch.arange(n), form="v16").double()
    assert 0 <= x.min() and x.max() < 1
    assert abs(x.mean() - 0.5) < 5 / math.sqrt(12 * n)
    counts = torch.histc(x, 256, 0, 1).numpy()
    chi2 = ((counts - n / 256) ** 2 / (n / 256)).sum()
    assert 150 < chi2 < 380  # 255 degrees of freedom, far beyond five sigma
    word = philox(7, 3)[1]
    assert x[13].item() == (word >> 8) / 2**24


def test_normal() -> None:
    n = 1 << 20
    x = draw("randn", torch.full((n,), -3), torch.arange(n), form="v16").double()
    assert abs(x.mean()) < 5 / math.sqrt(n)
    assert abs(x.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((x**4).mean() - 3) < 5 * math.sqrt(96 / n)
    pairs = x.view(-1, 2)
    assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < 5 / math.sqrt(n / 2)
    # Kolmogorov-Smirnov against the normal distribution.
    ordered = x.sort().values
    cdf = torch.special.ndtr(ordered)
    steps = torch.arange(1, n + 1) / n
    assert (cdf - steps).abs().max() < 2.2 / math.sqrt(n)
    assert x.abs().max() < 7


def test_integers() -> None:
    n = 1 << 18
    seed, offset = torch.full((n,), 11), torch.arange(n)
    x = draw("randint", seed, offset, *bounds(n, -3, 7), form="v16")
    counts = np.bincount((x + 3).numpy(), minlength=10)
    assert len(counts) == 10 and ((counts - n / 10) ** 2 / (n / 10)).sum() < 40
    assert x[9].item() == -3 + (philox(11, 2)[1] * 10 >> 32)
    low, high = -(1 << 62), 1 << 62
    wide = draw("randint", seed, offset, *bounds(n, low, high), form="v16")
    assert low <= wide.min() and wide.max() < high and wide.unique().numel() == n
    word, partner = philox(11, 2)[1], philox(11, 2)[0]
    assert wide[9].item() == low + (word << 32 | partner) % (high - low)
    whole = draw("randint", seed, offset, *bounds(n, 0, 1 << 32), form="v16")
    assert whole[9].item() == word
