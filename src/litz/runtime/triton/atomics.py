"""Updates of places in memory that several programs may make at once."""

# mypy: ignore-errors

import triton
import triton.language as tl

from litz.runtime.triton.words import own


@triton.jit
def _is_nan(bits):
    if bits.dtype == tl.int32:
        return (bits & 0x7FFFFFFF) > 0x7F800000
    else:
        return (bits & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000


@triton.jit
def atomic_add(at, value, mask=None):
    tl.atomic_add(at, own(value, at), mask, sem="relaxed")


@triton.jit
def atomic_max(at, value, mask=None):
    tl.atomic_max(at, own(value, at), mask, sem="relaxed")


@triton.jit
def atomic_min(at, value, mask=None):
    tl.atomic_min(at, own(value, at), mask, sem="relaxed")


@triton.jit
def atomic_best(at, value, mask, largest: tl.constexpr):
    """The maximum (minimum) of floats and what lies in memory, where nan is: nan.

    As signed integers, floats without a sign are in order; as unsigned ones, those with it are in
    the opposite order.  Of nan, one bit pattern lies at the end of both: that is written, and it is
    put back where another, which has the other sign perhaps, has been replaced.
    """
    signed: tl.constexpr = tl.int32 if value.dtype == tl.float32 else tl.int64
    unsigned: tl.constexpr = tl.uint32 if value.dtype == tl.float32 else tl.uint64
    ones: tl.constexpr = 0x7FFFFFFF if value.dtype == tl.float32 else 0x7FFFFFFFFFFFFFFF
    nan = own(tl.full([], ones if largest else -1, signed), at)
    bits = own(value, at).to(signed, bitcast=True)
    bits = tl.where(_is_nan(bits), nan, bits)
    up, down = (bits >= 0) & mask, (bits < 0) & mask
    at_signed = at.to(tl.pointer_type(signed), bitcast=True)
    at_unsigned = at.to(tl.pointer_type(unsigned), bitcast=True)
    opposite = bits.to(unsigned, bitcast=True)
    if largest:
        old = tl.atomic_max(at_signed, bits, up, sem="relaxed")
        other = tl.atomic_min(at_unsigned, opposite, down, sem="relaxed")
    else:
        old = tl.atomic_min(at_signed, bits, up, sem="relaxed")
        other = tl.atomic_max(at_unsigned, opposite, down, sem="relaxed")
    lost = (up & _is_nan(old)) | (down & _is_nan(other.to(signed, bitcast=True)))
    if largest:
        tl.atomic_max(at_signed, nan, lost, sem="relaxed")
    else:
        tl.atomic_max(at_unsigned, nan.to(unsigned, bitcast=True), lost, sem="relaxed")


@triton.jit
def atomic_mul(at, value, mask, spare):
    """Multiply what lies at pointers, which no instruction does: tries, until nothing came between.

    spare: a pointer to what is there, for places that the mask leaves out.
    """
    kind: tl.constexpr = at.dtype.element_ty
    bits: tl.constexpr = tl.int32 if kind.primitive_bitwidth == 32 else tl.int64
    left = (tl.zeros(at.shape, tl.int32) == 0) & mask
    words = tl.where(left, at, spare).to(tl.pointer_type(bits), bitcast=True)
    old = tl.load(words)
    while tl.max(left.to(tl.int32)) > 0:
        product = old.to(kind, bitcast=True) * value.to(kind)
        new = tl.where(left, product.to(bits, bitcast=True), old)
        found = tl.atomic_cas(words, old, new, sem="relaxed")
        left = left & (found != old)
        old = found
