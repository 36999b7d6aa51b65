"""Device functions that generated kernels call as ``litz.NAME``; imports Triton alone.

Under Triton's interpreter the functions that come from CUDA's math library have no meaning: there
``litz.runtime.triton.interpreted`` takes their place, on NumPy arrays.
"""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors
# ruff: noqa: F401, I001

import triton
import triton.language as tl

from litz.runtime.triton.atomics import (
    atomic_add, atomic_best, atomic_max, atomic_min, atomic_mul,
)  # fmt: skip
from litz.runtime.triton.mathlib import (
    INTERPRETED, acos, acosh, asin, asinh, atan, atan2, atanh, copysign, cos, cosh, erf, erfc,
    erfinv, exp, exp2, expm1, flush_exp, flush_exp2, fma, lgamma, log, log1p, log2, log10,
    narrow_asinh, narrow_div, narrow_erf_plus_one, narrow_exp, narrow_exp_plus_one, narrow_sigmoid,
    narrow_sinh, narrow_tanh, narrow_tanh_plus_one, nextafter, round, rsqrt, sin, sinh, tan, tanh,
    trunc,
)  # fmt: skip
from litz.runtime.triton.divide import (
    div, floordiv, floordiv_index, floormod_index, fmod, mod, some, truncdiv,
)  # fmt: skip
from litz.runtime.triton.packed import of_sums, small_float, small_word, times16, word
from litz.runtime.triton.power import pow
from litz.runtime.triton.random import rand, randint, randn
from litz.runtime.triton.runs import before_runs, element, end_of_runs, in_runs, last, of_runs, runs
from litz.runtime.triton.sorts import sort
from litz.runtime.triton.table import cell, later_row, pointer, scalar
from litz.runtime.triton.words import follow, lead, leave, look, peek, ticket

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
def is_position(at, wanted):
    """Whether a position, less than 2^31, is the 64-bit one that is wanted."""
    return at == tl.where((wanted >= 0) & (wanted < 0x80000000), wanted, -1).to(tl.int32)


@triton.jit
def like(x, other):
    """``x`` at the shape that it has together with ``other``."""
    return x + tl.zeros(other.shape, tl.int32)


@triton.jit
def load_pair(at, mask=None):
    """What lies at pointers, and behind each of them."""
    at = tl.expand_dims(at, -1) + tl.arange(0, 2)
    if mask is None:
        both = tl.load(at)
    else:
        both = tl.load(at, tl.expand_dims(mask, -1), other=0)
    return tl.split(both)


@triton.jit
def store_pair(at, first, second, mask=None):
    """Two values to each pointer, one behind the other."""
    kind = at.dtype.element_ty
    first = tl.broadcast_to(first.to(kind), at.shape)
    both = tl.join(first, tl.broadcast_to(second.to(kind), at.shape))
    at = tl.expand_dims(at, -1) + tl.arange(0, 2)
    if mask is None:
        tl.store(at, both)
    else:
        tl.store(at, both, tl.expand_dims(mask, -1))


@triton.jit
def opaque(x):
    """``x``, of 32 or 64 bits, where Triton's passes do not see where it comes from."""
    if x.dtype.primitive_bitwidth == 32:
        bits = x.to(tl.int32, bitcast=True)
        bits = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [bits], tl.int32, True, 1)
        return bits.to(x.dtype, bitcast=True)
    elif x.dtype.primitive_bitwidth == 64:
        bits = x.to(tl.int64, bitcast=True)
        bits = tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [bits], tl.int64, True, 1)
        return bits.to(x.dtype, bitcast=True)
    else:
        return x


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
    if x.dtype == tl.bfloat16 and to != tl.bfloat16:
        # By bits: LLVM takes bf16 for part of f16, and would round a product of both there.
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32)
        return cast((bits << 16).to(tl.float32, bitcast=True), to)
    elif to == tl.int1:
        return x != 0
    elif to == tl.bfloat16:
        return to_bf16(x.to(tl.float32))
    elif to == tl.float16:
        return x.to(tl.float32).to(tl.float16)  # as eager: by way of f32
    elif to == tl.uint8 and x.dtype.is_floating():
        return x.to(tl.int64).to(tl.uint8)  # as eager: negative numbers wrap around
    else:
        return x.to(to)


# --- floats -------------------------------------------------------------------------------------


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


# --- integers -----------------------------------------------------------------------------------


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
    most = tl.full([], bits - 1, b.dtype)
    shifted = a >> tl.where(inside, b, most)
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
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    for _ in tl.static_range(bits):
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
def either(a, b):
    return a | b


@triton.jit
def both(a, b):
    return a & b


@triton.jit
def dot(a, b, acc=None):
    """``acc``, of float32 (of bytes: int32), and the product of two blocks, without tf32."""
    if a.dtype.is_int():
        return tl.dot(a, b, acc, out_dtype=tl.int32)
    elif a.dtype.primitive_bitwidth == 8:
        # Sums of 8-bit floats are of few bits until they are added to others.
        return tl.dot(a, b, acc, max_num_imprecise_acc=64 if a.shape[1] > 64 else a.shape[1])
    else:
        return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def rows_of_group(ends, step, at, count: tl.constexpr, BLOCK: tl.constexpr):
    """Of blocks of rows that begin with each group: the ``at``-th one's group, its first row, and
    the row behind the group's last; rows 0 to 0 beyond all blocks.

    ends: where the row behind each of ``count`` groups' last is, ``step`` elements apart.
    """
    PAD: tl.constexpr = triton.next_power_of_2(count)
    which = tl.arange(0, PAD)
    end = tl.load(ends + which * step, which < count, other=0)
    begin = tl.load(ends + (which - 1) * step, (which > 0) & (which < count), other=0)
    blocks = tl.where(end > begin, (end - begin + (BLOCK - 1)) // BLOCK, 0)
    upto = tl.cumsum(blocks, 0)
    group = tl.sum((upto <= at).to(tl.int32), 0)
    first = begin + (at - (upto - blocks)).to(tl.int32) * BLOCK
    own = which == group
    rows = tl.sum(tl.where(own, first, 0), 0), tl.sum(tl.where(own, end, 0), 0)
    return tl.minimum(group, count - 1), rows[0], rows[1]


@triton.jit
def sum(x, axis: tl.constexpr):
    return tl.sum(x, axis, keep_dims=True).to(x.dtype)


@triton.jit
def former(a, b):
    return a


@triton.jit
def alone(x):
    """The element of a block of one, as a scalar: it has no layout."""
    return tl.reduce(x, None, former)


@triton.jit
def prod(x, axis: tl.constexpr):
    return tl.reduce(x, axis, times, keep_dims=True)


@triton.jit
def max(x, axis: tl.constexpr):
    return tl.reduce(x, axis, maximum, keep_dims=True)


@triton.jit
def min(x, axis: tl.constexpr):
    return tl.reduce(x, axis, minimum, keep_dims=True)


@triton.jit
def any(x, axis: tl.constexpr):
    return tl.reduce(x.to(tl.int32), axis, either, keep_dims=True) != 0


@triton.jit
def all(x, axis: tl.constexpr):
    return tl.reduce(x.to(tl.int32), axis, both, keep_dims=True) != 0


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


# --- scans --------------------------------------------------------------------------------------


@tl.core.builtin
def scan(x, axis, combine, reverse=False, _semantic=None, _generator=None):
    """States combined along ``axis``.  x: their parts; combine: a function of two states."""
    return tl.associative_scan(
        x, axis, combine, reverse, _semantic=_semantic, _generator=_generator
    )


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def log_add_exp(a, b):
    """The logarithm of the sum of two exponentials."""
    top, low = maximum(a, b), minimum(a, b)
    return tl.where(tl.abs(top) == float("inf"), top, top + log1p(exp(low - top)))


@triton.jit
def latest_max(a, a_at, b, b_at):
    """The larger value and where it is: nan before all, of equal ones the later."""
    take = (b >= a) | (b != b)
    return tl.where(take, b, a), tl.where(take, b_at, a_at)


@triton.jit
def latest_min(a, a_at, b, b_at):
    take = (b <= a) | (b != b)
    return tl.where(take, b, a), tl.where(take, b_at, a_at)


# --- functions of several steps -----------------------------------------------------------------


@triton.jit
def digamma(x):
    """Recurrence up to 10 (f32: 5), an asymptotic series, reflection for negative arguments."""
    reflected = x <= 0
    y = tl.where(reflected, 1 - x, x)
    steps: tl.constexpr = 10 if x.dtype == tl.float64 else 5
    # The first term is most of the value near zero; the sum of further 1 / (y + k) is a fraction.
    first = tl.where(y < steps, reciprocal(y), 0)
    y = tl.where(y < steps, y + 1, y)
    above, below = tl.zeros_like(y), tl.zeros_like(y) + 1
    for _ in tl.static_range(steps - 1):
        small = y < steps
        above = tl.where(small, fma(above, y, below), above)
        below = tl.where(small, below * y, below)
        y = tl.where(small, y + 1, y)
    inverse = 1 / y
    z = inverse * inverse
    tail = z * 0.007575757575757576
    if x.dtype == tl.float64:
        tail = z * (1 / 132 - z * (691 / 32760 - z * (1 / 12 - z * (3617 / 8160))))
    tail = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - tail))))
    value = (log(y) - above / below) - (0.5 * inverse + tail) - first
    # From the nearest integer: of a tiny argument nothing may be lost; and no more than a quarter.
    off = x - round(x)
    size = tl.abs(off)
    far = size > 0.25
    # A name for pi would stand for its f32.
    turn = tan(3.141592653589793 * tl.where(far, 0.5 - size, size))
    turn = copysign(3.141592653589793 * tl.where(far, turn, 1 / turn), off)
    value = tl.where(reflected, value - turn, value)
    value = tl.where(reflected & (off == 0), float("nan"), value)
    value = tl.where(x == 0, tl.where(signbit(x), float("inf"), float("-inf")), value)
    value = tl.where(x == float("inf"), float("inf"), value)
    return tl.where(x == float("-inf"), float("nan"), value)


@triton.jit
def hypot(a, b):
    if a.dtype == tl.float32:
        u, v = a.to(tl.float64), b.to(tl.float64)
        length = tl.sqrt(u * u + v * v).to(tl.float32)
    else:
        u, v = tl.abs(a), tl.abs(b)
        long = tl.maximum(u, v)
        ratio = tl.where(long == 0, long, tl.minimum(u, v) / long)
        length = long * tl.sqrt(1 + ratio * ratio)
    infinite = (tl.abs(a) == float("inf")) | (tl.abs(b) == float("inf"))
    length = tl.where((a != a) | (b != b), float("nan"), length)
    return tl.where(infinite, float("inf"), length)


if INTERPRETED:
    from litz.runtime.triton.interpreted import FUNCTIONS

    globals().update(FUNCTIONS)
