"""Powers of f32 values, by pairs of f32 values that add up to more digits than one has.

CUDA's library has become more exact with version 13; what comes with Triton is up to 1.9 units in
the last place off, which ``1 - beta ** step`` of an optimizer multiplies by a thousand.  This one
is at most 0.7 units off, and takes no 64-bit arithmetic, which is rare on most GPUs.
"""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl

from litz.runtime.triton.mathlib import fma, pow64, round, trunc


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
    power = b * high
    rest = fma(b, high, -power) + b * low
    value = _exp2(power, rest)

    # What is left of IEEE 754's list, the last word last.
    value = tl.where(size == 1, 1.0, value)
    value = tl.where(size == 0, tl.where(b > 0, 0.0, float("inf")), value)
    value = tl.where(size == float("inf"), tl.where(b > 0, float("inf"), 0.0), value)
    whole = trunc(b) == b
    odd = whole & (trunc(0.5 * b) != 0.5 * b)
    negative = a.to(tl.int32, bitcast=True) < 0
    value = tl.where(negative & odd, -1.0 * value, value)
    undefined = (a < 0) & (size != float("inf")) & (whole == 0)
    value = tl.where(undefined | (a != a) | (b != b), float("nan"), value)
    return tl.where((b == 0) | (a == 1), 1.0, value)


@triton.jit
def _log2(x):
    """The logarithm of a positive x, as a pair, with about 40 right bits."""
    tiny = x < 1.1754943508222875e-38
    bits = tl.where(tiny, x * 8388608.0, x).to(tl.int32, bitcast=True)
    # x is m * 2^e, m from the root of a half to the root of 2.
    e = (bits - 0x3F3504F3) >> 23
    m = (bits - (e << 23)).to(tl.float32, bitcast=True)
    whole = tl.where(tiny, e - 23, e).to(tl.float32)

    # s = (m - 1) / (m + 1), of which the logarithm is 2 s + 2/3 s^3 + 2/5 s^5 + ...
    f = m - 1.0
    g = 2.0 + f
    g_low = f - (g - 2.0)
    s = f / g
    s_low = fma(-s, g_low, fma(-s, g, f)) / g
    z = s * s
    z_low = fma(2.0 * s, s_low, fma(s, s, -z))
    q = fma(z, 0.15384615384615385, 0.18181818181818182)
    q = fma(z, q, 0.2222222222222222)
    q = fma(z, q, 0.2857142857142857)
    q = z * fma(z, q, 0.4)
    c = 0.6666666865348816 + q
    c_low = (0.6666666865348816 - c) + q - 1.9868214915e-08
    w = s * z
    w_low = fma(s, z, -w) + s * z_low + s_low * z
    v = w * c
    v_low = fma(w, c, -v) + w * c_low + w_low * c
    n = 2.0 * s + v
    n_low = (2.0 * s - n) + v + (v_low + 2.0 * s_low)

    # To the base 2.
    k = n * 1.4426950216293335
    k_low = fma(n, 1.4426950216293335, -k) + n * 1.925963033500e-08 + n_low * 1.4426950216293335
    high = whole + k
    return high, (whole - high) + k + k_low


@triton.jit
def _exp2(x, low):
    """2 to the power of ``x + low``."""
    low = tl.where(tl.abs(x) < 256, low, 0.0)
    x = tl.minimum(tl.maximum(x, -252.0), 254.0)
    n = round(x)
    f = x - n
    q = fma(f, 1.5252733804059841e-05, 0.00015403530393381608)
    q = fma(f, q, 0.0013333558146428441)
    q = fma(f, q, 0.009618129107628477)
    q = fma(f, q, 0.05550410866482158)
    q = fma(f, q, 0.24022650695910072)
    # The linear term apart: it is what rounding shows of.
    u = f * 0.6931471824645996
    u_low = fma(f, 0.6931471824645996, -u) - f * 1.904654323148e-09
    y = 1.0 + u
    y_low = (1.0 - y) + u
    v = f * f * q
    u_low += low * (0.6931471824645996 * (y + v))
    value = y + (v + (y_low + u_low))
    # In two steps: the smallest numbers are below what one power of 2 reaches.
    n = n.to(tl.int32)
    first = n >> 1
    value = value * ((first + 127) << 23).to(tl.float32, bitcast=True)
    return value * ((n - first + 127) << 23).to(tl.float32, bitcast=True)
