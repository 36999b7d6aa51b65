"""What programs leave for others that look back; see ``litz.kernel.blocks.lookback``."""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from litz.runtime.triton.mathlib import INTERPRETED

THREADS = tl.constexpr(1024)  # of a program, at most


@triton.jit
def own(value, at):
    """A value for the places ``at``; the interpreter wants it in memory of its own."""
    return value


@triton.jit
def ticket(words):
    """The number of a program in the order in which they begin.  words: cleared before."""
    return tl.atomic_add(words, 1, sem="relaxed").to(tl.int32)


@triton.jit
def lead(early: tl.constexpr):
    """Lets the kernel behind this one begin as soon as all programs of this one have."""
    if early:
        gdc_launch_dependents()


@triton.jit
def follow(early: tl.constexpr):
    """Waits for what the kernel in front of this one leaves, where this one may begin before that
    has ended."""
    if early:
        gdc_wait()


@triton.jit
def leave(at, value, step, mask):
    """Leaves a value for other programs; see ``look``.  The upper half of 64 bits lies ``step``
    words behind the lower."""
    wide: tl.constexpr = value.dtype.primitive_bitwidth == 64
    if value.dtype.is_floating():
        bits = value.to(tl.int64 if wide else tl.int32, bitcast=True).to(tl.int64)
    else:
        bits = value.to(tl.int64)
    _leave(at, bits, mask)
    if wide:
        _leave(at + step, bits >> 32, mask)


@triton.jit
def _leave(at, bits, mask):
    """32 bits, and a flag above them: both are there at once."""
    word = own((bits & 0xFFFFFFFF) | 0x100000000, at)
    tl.atomic_xchg(at, word, mask, sem="relaxed")


@triton.jit
def peek(at, step, mask, kind: tl.constexpr):
    """The words of values of a type, perhaps before other programs have left them."""
    low = _peek(at, mask)
    if kind.primitive_bitwidth == 64:
        return low, _peek(at + step, mask)
    else:
        return low, low


@triton.jit
def _peek(at, mask):
    return tl.load(at, mask, other=0x100000000, volatile=True)


@triton.jit
def look(low, high, at, step, mask, kind: tl.constexpr):
    """What other programs leave, as soon as all is there; zero where ``mask`` is not.

    low, high: what ``peek`` has seen.
    """
    low = _look(low, at, mask)
    if kind.primitive_bitwidth == 64:
        bits = (low & 0xFFFFFFFF) | (_look(high, at + step, mask) << 32)
    else:
        bits = low.to(tl.int32)
    return bits.to(kind, bitcast=kind.is_floating())


@triton.jit
def _look(word, at, mask):
    while tl.min(tl.min((word >> 32).to(tl.int32), 1), 0) == 0:
        word = _peek(at, mask)
    # Of threads that hold the same word those that others wait for have perhaps seen it first.
    if word.numel < THREADS:
        word |= _peek(at, mask)
    return word


if INTERPRETED:
    from litz.runtime.triton.interpreted import own
