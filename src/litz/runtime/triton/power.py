"""Powers of f32 values, by a logarithm as a pair of f32 values.

CUDA's library has become more exact with version 13; what comes with Triton is up to 1.9 units in
the last place off, which ``1 - beta ** step`` of an optimizer multiplies by a thousand.  This one
is at most 1.1 units off.  It takes no 64-bit arithmetic, which is rare on most GPUs, and but for
one reciprocal nothing of what they do at an eighth of their speed: roundings and conversions are
sums with 1.5 * 2^23, whose last digits are integers.
"""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl

from litz.runtime.triton.mathlib import flush_inverse, fma, pow64


@triton.jit
def pow(a, b):
    if a.dtype == tl.float64:
        value = pow64(a, b)
    else:
        value = _pow32(a, b)
    return value


@triton.jit
def _pow32(a, b):
    a, b = tl.broadcast(a, b)
    size = tl.abs(a)
    high, low = _log2(size)
    high = tl.where(size == 0, float("-inf"), tl.where(size < float("inf"), high, size))
    power = b * high
    value = _exp2(power, fma(b, low, fma(b, high, -power)))

    # What is left of IEEE 754's list, the last word last.
    to = tl.abs(b)
    large = to >= 8388608.0  # whole, and from 2^24 on even
    rounded = to + 8388608.0
    whole = large | (rounded - 8388608.0 == to)
    odd = tl.where(large, to, rounded).to(tl.int32, bitcast=True) << 31
    odd = tl.where(to < 16777216.0, odd, 0) & a.to(tl.int32, bitcast=True)
    value = (value.to(tl.int32, bitcast=True) ^ odd).to(tl.float32, bitcast=True)
    undefined = (a < 0) & (size != float("inf")) & (whole == 0)
    value = tl.where(undefined | (power != power), float("nan"), value)
    one = (b == 0) | (a == 1) | ((a == -1) & (to == float("inf")))
    return tl.where(one, 1.0, value)


@triton.jit
def _log2(x):
    """The logarithm of a positive x, as a pair; relative error about 2^-30."""
    tiny = x < 1.1754943508222875e-38
    bits = tl.where(tiny, x * 8388608.0, x).to(tl.int32, bitcast=True)
    # x is m * 2^e, m from the root of a half to the root of 2.
    e = (bits - 0x3F3504F3) >> 23
    m = (bits - (e << 23)).to(tl.float32, bitcast=True)
    whole = (e + 0x4B400000).to(tl.float32, bitcast=True)
    whole = whole - tl.where(tiny, 12582935.0, 12582912.0)

    # s = (m - 1) / (m + 1), of which the logarithm is (2 s + 2/3 s^3 + 2/5 s^5 + ...) / log(2).
    f = m - 1.0
    g = 2.0 + f
    inverse = flush_inverse(g)
    s = f * inverse
    s_low = fma(-s, f - (g - 2.0), fma(-s, g, f)) * inverse
    z = s * s
    q = fma(z, 0.22195308321368667, 0.2623081892525388)
    q = fma(z, q, 0.3205988979753252)
    q = fma(z, q, 0.41219858311113244)
    q = fma(z, q, 0.5770780163555854)
    q = fma(z, q, 0.9617966939259756)
    k = s * 2.885390043258667
    rest = fma(s, 3.8519260e-08, fma(s, 2.885390043258667, -k))
    rest = fma(s * z, q, fma(s_low, 2.885390043258667, rest))
    n = k + rest
    high = whole + n
    return high, ((whole - high) + n) + ((k - n) + rest)


@triton.jit
def _exp2(x, low):
    """2 to the power of ``x + low``; anything where ``x`` is nan."""
    low = tl.where(tl.abs(x) < 256, low, 0.0)
    x = tl.minimum(tl.maximum(x, -252.0), 254.0)
    rounded = x + 12582912.0
    f = x - (rounded - 12582912.0) + low
    q = fma(f, 1.5252733804059841e-05, 0.00015403530393381608)
    q = fma(f, q, 0.0013333558146428441)
    q = fma(f, q, 0.009618129107628477)
    q = fma(f, q, 0.05550410866482158)
    q = fma(f, q, 0.24022650695910072)
    q = fma(f, q, 0.6931471824645996)
    value = fma(f, q, 1.0)
    # In two steps: the smallest numbers are below what one power of 2 reaches.
    n = rounded.to(tl.int32, bitcast=True) - 0x4B400000
    first = n >> 1
    value = value * ((first << 23) + 0x3F800000).to(tl.float32, bitcast=True)
    return value * (((n - first) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
