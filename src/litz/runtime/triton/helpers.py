"""Device functions that generated kernels call as ``litz.NAME``; imports Triton alone.

Under Triton's interpreter the functions that come from CUDA's math library have no meaning: there
``litz.runtime.triton.interpreted`` takes their place, on NumPy arrays.
"""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra import libdevice

INTERPRETED = bool(knobs.runtime.interpret)


# --- shapes -------------------------------------------------------------------------------------


@triton.jit
def i64(x):
    return tl.cast(x, tl.int64)


@triton.jit
def check_divisor(valid):
    """Stop where an integer is divided by zero."""
    tl.device_assert(valid, "ZeroDivisionError")


@triton.jit
def check(inside):
    """Stop where an index is out of range (kernels that check are compiled to do so)."""
    tl.device_assert(inside, "index out of range")


@triton.jit
def like(x, other):
    """``x`` at the shape that it has together with ``other``."""
    return x + tl.zeros(other.shape, tl.int32)


@triton.jit
def invert(x):
    if x.dtype == tl.int1:
        return x == 0
    elif x.dtype.is_int_unsigned():
        return x ^ tl.full([], (1 << x.dtype.primitive_bitwidth) - 1, x.dtype)
    else:
        return ~x


@triton.jit
def neg(x):
    if x.dtype.is_floating():
        return x * -1.0  # a difference to zero would lose the sign of zero
    else:
        return -x


@triton.jit
def to_bf16(x):
    return x.to(tl.bfloat16)


@triton.jit
def cast(x, to: tl.constexpr):
    if to == tl.int1:
        return x != 0
    elif to == tl.bfloat16:
        return to_bf16(x.to(tl.float32))
    elif to == tl.float16:
        return x.to(tl.float32).to(tl.float16)  # as eager: by way of f32
    else:
        return x.to(to)


# --- floats -------------------------------------------------------------------------------------


@triton.jit
def div(a, b):
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def reciprocal(x):
    return div(tl.full([], 1, x.dtype), x)


@triton.jit
def sqrt(x):
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@triton.jit
def maximum(a, b):
    if a.dtype.is_floating():
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif a.dtype == tl.int1:
        return a | b
    else:
        return tl.maximum(a, b)


@triton.jit
def minimum(a, b):
    if a.dtype.is_floating():
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif a.dtype == tl.int1:
        return a & b
    else:
        return tl.minimum(a, b)


@triton.jit
def fmax(a, b):
    if a.dtype.is_floating():
        return tl.where(a != a, b, tl.where(b != b, a, tl.maximum(a, b)))
    else:
        return tl.maximum(a, b)


@triton.jit
def fmin(a, b):
    if a.dtype.is_floating():
        return tl.where(a != a, b, tl.where(b != b, a, tl.minimum(a, b)))
    else:
        return tl.minimum(a, b)


@triton.jit
def signbit(x):
    if x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) < 0
    else:
        return x.to(tl.int64, bitcast=True) < 0


@triton.jit
def sign(x):
    if x.dtype.is_int_unsigned():
        return (x > 0).to(x.dtype)
    else:
        return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def sigmoid(x):
    return reciprocal(1 + exp(neg(x)))


# --- division with remainder --------------------------------------------------------------------


@triton.jit
def _divisor(b):
    return tl.where(b == 0, tl.full([], 1, b.dtype), b)


@triton.jit
def _quotient(a, b):
    """Towards zero; the lowest number over -1 wraps, anything over zero is itself."""
    if a.dtype.is_int_unsigned():
        return a // _divisor(b)
    else:
        one = tl.full([], 1, b.dtype)
        return tl.where(b == -1, -a, a // tl.where((b == 0) | (b == -1), one, b))


@triton.jit
def _wrong_sign(r, b):
    return (r != 0) & ((r < 0) != (b < 0))


@triton.jit
def truncdiv(a, b):
    if a.dtype.is_floating():
        return trunc(div(a, b))
    else:
        return _quotient(a, b)


@triton.jit
def fmod(a, b):
    if a.dtype.is_floating():
        return _fmod(a, b)
    else:
        return a - _quotient(a, b) * _divisor(b)


@triton.jit
def mod(a, b):
    r = fmod(a, b)
    if a.dtype.is_int_unsigned():
        return r
    else:
        return tl.where(_wrong_sign(r, b), r + b, r)


@triton.jit
def floordiv(a, b):
    if a.dtype.is_floating():
        r = fmod(a, b)
        q = div(a - r, b)
        q = tl.where(_wrong_sign(r, b), q - 1, q)
        f = tl.floor(q)
        f = tl.where(q - f > 0.5, f + 1, f)
        f = tl.where(q == 0, copysign(tl.zeros_like(q), div(a, b)), f)
        return tl.where(b == 0, div(a, b), f)
    elif a.dtype.is_int_unsigned():
        return truncdiv(a, b)
    else:
        d = _divisor(b)
        q = _quotient(a, d)
        return tl.where(_wrong_sign(a - q * d, d), q - 1, q)


@triton.jit
def floordiv_index(a, b):
    """Division of index values, which may be Python integers, rounded down."""
    return floordiv(tl.cast(a, tl.int64), tl.cast(b, tl.int64))


@triton.jit
def floormod_index(a, b):
    return mod(tl.cast(a, tl.int64), tl.cast(b, tl.int64))


@triton.jit
def shl(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, tl.zeros_like(b)), tl.zeros_like(a))


@triton.jit
def shr(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    # Shifted by all but one bit, the sign is left, as it is of numbers shifted further.
    last = tl.full([], bits - 1, b.dtype)
    shifted = a >> tl.where(inside, b, last)
    if a.dtype.is_int_unsigned():
        return tl.where(inside, shifted, tl.zeros_like(a))
    else:
        return shifted


@triton.jit
def ipow(a, n):
    one = tl.full([], 1, a.dtype)
    # A loop over the bits of the largest exponent that changes anything but ones: 2**6 > 63.
    result = tl.zeros_like(a + n) + one
    base = tl.zeros_like(result) + a
    e = tl.zeros_like(result) + tl.where(n < 0, tl.zeros_like(n), n)
    for _ in tl.static_range(a.dtype.primitive_bitwidth):
        result = tl.where((e & 1) == 1, result * base, result)
        base = base * base
        e = e >> 1
    if a.dtype.is_int_signed():
        odd = (n & 1) == 1
        minus = tl.where(odd, -one, one)
        small = tl.where(a == 1, one, tl.where(a == -1, minus, tl.zeros_like(one)))
        return tl.where(n < 0, small, result)
    else:
        return result


# --- comparisons of truth values ----------------------------------------------------------------


@triton.jit
def lt(a, b):
    if a.dtype == tl.int1:
        return (a == 0) & b
    else:
        return a < b


@triton.jit
def le(a, b):
    if a.dtype == tl.int1:
        return (a == 0) | b
    else:
        return a <= b


@triton.jit
def gt(a, b):
    return lt(b, a)


@triton.jit
def ge(a, b):
    return le(b, a)


# --- reductions ---------------------------------------------------------------------------------


@triton.jit
def _times(a, b):
    return a * b


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _both(a, b):
    return a & b


@triton.jit
def sum(x, axis: tl.constexpr):
    return tl.sum(x, axis, keep_dims=True).to(x.dtype)


@triton.jit
def prod(x, axis: tl.constexpr):
    return tl.reduce(x, axis, _times, keep_dims=True)


@triton.jit
def max(x, axis: tl.constexpr):
    return tl.reduce(x, axis, maximum, keep_dims=True)


@triton.jit
def min(x, axis: tl.constexpr):
    return tl.reduce(x, axis, minimum, keep_dims=True)


@triton.jit
def any(x, axis: tl.constexpr):
    return tl.reduce(x.to(tl.int32), axis, _either, keep_dims=True) != 0


@triton.jit
def all(x, axis: tl.constexpr):
    return tl.reduce(x.to(tl.int32), axis, _both, keep_dims=True) != 0


@triton.jit
def better(a, b, largest: tl.constexpr):
    """Whether ``a`` comes before ``b`` in a search for the largest (smallest): nan before all."""
    ahead = gt(a, b) if largest else lt(a, b)
    if a.dtype.is_floating():
        return ahead | ((a != a) & (b == b))
    else:
        return ahead


@triton.jit
def position(value, at, axis: tl.constexpr, largest: tl.constexpr):
    """The least ``at`` whose ``value`` is the best along ``axis``."""
    best = max(value, axis) if largest else min(value, axis)
    hit = value == best
    if value.dtype.is_floating():
        hit = hit | ((value != value) & (best != best))
    return min(tl.where(hit, at, 0x7FFFFFFFFFFFFFFF), axis)


# --- random numbers: the same as the C++ target's (see its random.h) ------------------------------


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
    return sqrt(log(u) * -2.0) * _random_sin(angle, odd == 0)


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


# --- CUDA's math library ------------------------------------------------------------------------


@triton.jit
def exp(x):
    return libdevice.exp(x)


@triton.jit
def exp2(x):
    return libdevice.exp2(x)


@triton.jit
def expm1(x):
    return libdevice.expm1(x)


@triton.jit
def log(x):
    return libdevice.log(x)


@triton.jit
def log2(x):
    return libdevice.log2(x)


@triton.jit
def log10(x):
    return libdevice.log10(x)


@triton.jit
def log1p(x):
    return libdevice.log1p(x)


@triton.jit
def sin(x):
    return libdevice.sin(x)


@triton.jit
def cos(x):
    return libdevice.cos(x)


@triton.jit
def tan(x):
    return libdevice.tan(x)


@triton.jit
def asin(x):
    return libdevice.asin(x)


@triton.jit
def acos(x):
    return libdevice.acos(x)


@triton.jit
def atan(x):
    return libdevice.atan(x)


@triton.jit
def atan2(a, b):
    return libdevice.atan2(a, b)


@triton.jit
def sinh(x):
    return libdevice.sinh(x)


@triton.jit
def cosh(x):
    return libdevice.cosh(x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)


@triton.jit
def asinh(x):
    return libdevice.asinh(x)


@triton.jit
def acosh(x):
    return libdevice.acosh(x)


@triton.jit
def atanh(x):
    return libdevice.atanh(x)


@triton.jit
def erf(x):
    return libdevice.erf(x)


@triton.jit
def erfc(x):
    return libdevice.erfc(x)


@triton.jit
def erfinv(x):
    return libdevice.erfinv(x)


@triton.jit
def lgamma(x):
    return libdevice.lgamma(x)


@triton.jit
def digamma(x):
    """Recurrence up to 10, an asymptotic series there, reflection for negative arguments."""
    pi = 3.141592653589793
    reflected = x <= 0
    y = tl.where(reflected, 1 - x, x).to(tl.float64)
    low = tl.zeros_like(y)
    for _ in tl.static_range(10):
        small = y < 10
        low = tl.where(small, low - 1 / y, low)
        y = tl.where(small, y + 1, y)
    z = 1 / (y * y)
    tail = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132)))))
    value = log(y) - 0.5 / y - tail + low
    frac = x.to(tl.float64) - tl.floor(x.to(tl.float64))
    value = tl.where(reflected, value - pi / tan(pi * frac), value)
    value = tl.where(reflected & (frac == 0), float("nan"), value)
    value = tl.where(x == 0, tl.where(signbit(x), float("inf"), float("-inf")), value)
    value = tl.where(x == float("inf"), float("inf"), value)
    return tl.where(x == float("-inf"), float("nan"), value).to(x.dtype)


@triton.jit
def hypot(a, b):
    return libdevice.hypot(a, b)


@triton.jit
def pow(a, b):
    return libdevice.pow(a, b)


@triton.jit
def rsqrt(x):
    return libdevice.rsqrt(x)


@triton.jit
def trunc(x):
    return libdevice.trunc(x)


@triton.jit
def round(x):
    return libdevice.rint(x)


@triton.jit
def copysign(a, b):
    return libdevice.copysign(a, b)


@triton.jit
def nextafter(a, b):
    return libdevice.nextafter(a, b)


@triton.jit
def fma(a, b, c):
    return libdevice.fma(a, b, c)


@triton.jit
def _fmod(a, b):
    return libdevice.fmod(a, b)


if INTERPRETED:
    from litz.runtime.triton.interpreted import FUNCTIONS

    globals().update(FUNCTIONS)
