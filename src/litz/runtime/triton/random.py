"""Random numbers as device functions: the same as the C++ target's (see its random.h)."""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl

from litz.runtime.triton.mathlib import log


@triton.jit
def _words(seed, offset):
    """The Philox word of each offset, and the word that shares its pair."""
    at = offset >> 2
    c0 = (at & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((at >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = tl.zeros_like(c0)
    w0, w1, w2, w3 = tl.philox(seed, c0, c1, zero, zero)
    odd = (offset & 1) == 1
    upper = (offset & 2) == 2
    even_word = tl.where(upper, w2, w0)
    odd_word = tl.where(upper, w3, w1)
    return tl.where(odd, odd_word, even_word), tl.where(odd, even_word, odd_word)


@triton.jit
def rand(seed, offset):
    own, _ = _words(seed, offset)
    return (own >> 8).to(tl.int32).to(tl.float32) * 5.960464477539063e-08


@triton.jit
def _random_sin(w, as_cos):
    q = (w >> 30) + as_cos.to(tl.uint32)
    f = (w & 0x3FFFFFFF).to(tl.int32).to(tl.float32) * 9.313225746154785e-10 - 0.5
    r = f * 1.5707963705062866
    z = r * r
    s = ((-0.00019515295571181923 * z + 0.008333234116435051) * z - 0.1666666567325592) * z
    c = ((2.437589682813268e-05 * z - 0.0013887127861380577) * z + 0.04166664928197861) * z - 0.5
    c = c * z
    v = tl.where((q & 1) == 1, c + 1.0, s * r + r)
    return tl.where((q & 2) == 2, -v, v)


@triton.jit
def randn(seed, offset):
    own, partner = _words(seed, offset)
    odd = (offset & 1) == 1
    radius = tl.where(odd, partner, own)
    angle = tl.where(odd, own, partner)
    u = radius.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    return tl.sqrt_rn(log(u) * -2.0) * _random_sin(angle, odd == 0)


@triton.jit
def randint(seed, offset, lo, hi):
    own, partner = _words(seed, offset)
    span = (hi - lo).to(tl.uint64)
    word = own.to(tl.uint64)
    small = (word * span) >> 32
    wide = (word << 32) | partner.to(tl.uint64)
    limit = tl.full([], 1 << 32, tl.uint64)
    r = tl.where(span <= limit, small, wide % tl.where(span == 0, limit, span))
    return lo + r.to(tl.int64)
