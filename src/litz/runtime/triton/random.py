"""Random numbers as device functions: the same as the C++ target's (see its random.h)."""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl

from litz.runtime.triton.mathlib import log


@triton.jit
def _four(seed, at):
    """The four words of each counter."""
    c0 = (at & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((at >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = tl.zeros_like(c0)
    return tl.philox(seed, c0, c1, zero, zero)


@triton.jit
def _one_of_four(offset, turned: tl.constexpr):
    """The counter of every four offsets, which run on by one from a multiple of four.

    turned: along the first axis of two.
    """
    if turned:
        offset = tl.trans(offset)
    even, _ = tl.split(tl.reshape(offset, [offset.numel // 4, 2, 2]))
    first, _ = tl.split(even)
    return first >> 2


@triton.jit
def _in_turn(a, b, c, d, offset, turned: tl.constexpr):
    """One block of four: an element of each in turn."""
    four = tl.join(tl.join(a, c), tl.join(b, d))
    if turned:
        drawn = tl.trans(tl.reshape(four, [offset.shape[1], offset.shape[0]]))
    else:
        drawn = tl.reshape(four, offset.shape)
    return drawn


@triton.jit
def _words(seed, offset, block: tl.constexpr, turned: tl.constexpr):
    """The Philox word of each offset, and the word that shares its pair."""
    if block % 4 == 0:
        a, b, c, d = _four(seed, _one_of_four(offset, turned))
        own = _in_turn(a, b, c, d, offset, turned)
        partner = _in_turn(b, a, d, c, offset, turned)
    else:
        w0, w1, w2, w3 = _four(seed, offset >> 2)
        odd = (offset & 1) == 1
        upper = (offset & 2) == 2
        even_word = tl.where(upper, w2, w0)
        odd_word = tl.where(upper, w3, w1)
        own = tl.where(odd, odd_word, even_word)
        partner = tl.where(odd, even_word, odd_word)
    return own, partner


@triton.jit
def rand(seed, offset, block: tl.constexpr = 1, turned: tl.constexpr = False):
    own, _ = _words(seed, offset, block, turned)
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
def _radius(word):
    u = word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    return tl.sqrt_rn(log(u) * -2.0)


@triton.jit
def _normal_pair(radius, angle):
    r, yes = _radius(radius), tl.full(angle.shape, 1, tl.int1)
    return r * _random_sin(angle, yes), r * _random_sin(angle, yes == 0)


@triton.jit
def randn(seed, offset, block: tl.constexpr = 1, turned: tl.constexpr = False):
    if block % 4 == 0:
        w0, w1, w2, w3 = _four(seed, _one_of_four(offset, turned))
        a, b = _normal_pair(w0, w1)
        c, d = _normal_pair(w2, w3)
        drawn = _in_turn(a, b, c, d, offset, turned)
    else:
        own, partner = _words(seed, offset, block, turned)
        odd = (offset & 1) == 1
        radius, angle = tl.where(odd, partner, own), tl.where(odd, own, partner)
        drawn = _radius(radius) * _random_sin(angle, odd == 0)
    return drawn


@triton.jit
def randint(seed, offset, lo, hi, block: tl.constexpr = 1, turned: tl.constexpr = False):
    own, partner = _words(seed, offset, block, turned)
    span = (hi - lo).to(tl.uint64)
    word = own.to(tl.uint64)
    small = (word * span) >> 32
    wide = (word << 32) | partner.to(tl.uint64)
    limit = tl.full([], 1 << 32, tl.uint64)
    r = tl.where(span <= limit, small, wide % tl.where(span == 0, limit, span))
    return lo + r.to(tl.int64)
