"""Small integers as 16-bit floats, and their products, several at once in one register.

Imports Triton alone; ``litz.runtime.triton.interpreted`` takes the place of these functions where
kernels are interpreted.
"""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors
# ruff: noqa: I001

import triton
import triton.language as tl


@triton.constexpr_function
def _small_text(shift, mask, flip, minus, bf16):
    """A byte below 128 is the end of a float's digits: of 128 (of f16: 1024) and itself."""
    high, less = (0x43, 0xC300 + minus) if bf16 else (0x64, 0xE400 + minus)
    minus_whole = "fma.rn.bf16x2 {}, {}, one, less;" if bf16 else "add.f16x2 {}, {}, less;"
    lines = [
        ".reg .b32 t, a, b, less, one;",
        f"mov.b32 less, {less * 0x10001};",
        f"mov.b32 one, {0x3F803F80};",
        f"shr.b32 t, $2, {shift};" if shift else "mov.b32 t, $2;",
        f"and.b32 t, t, {mask * 0x1010101};",
        f"xor.b32 t, t, {flip * 0x1010101};" if flip else "",
        f"prmt.b32 a, t, {high * 0x1010101}, {0x4140};",
        f"prmt.b32 b, t, {high * 0x1010101}, {0x4342};",
        minus_whole.format("$0", "a"),
        minus_whole.format("$1", "b"),
    ]
    return "{ " + " ".join(lines) + " }"


@triton.jit
def small_float(
    x, shift: tl.constexpr, mask: tl.constexpr, flip: tl.constexpr, minus: tl.constexpr,
    to: tl.constexpr,
):  # fmt: skip
    """``(((x >> shift) & mask) ^ flip) - minus`` of bytes as a 16-bit float."""
    text: tl.constexpr = _small_text(shift, mask, flip, minus, to == tl.bfloat16)
    if to == tl.bfloat16:
        return tl.inline_asm_elementwise(text, "=r,=r,r", [x], tl.bfloat16, True, 4)
    else:
        return tl.inline_asm_elementwise(text, "=r,=r,r", [x], tl.float16, True, 4)


@triton.constexpr_function
def _word_text(shift, mask, flip, minus, bf16):
    """The same of two words of 16 bits: they become floats where they are."""
    high, less = (0x4300, 0xC300 + minus) if bf16 else (0x6400, 0xE400 + minus)
    minus_whole = "fma.rn.bf16x2 $0, t, one, less;" if bf16 else "add.f16x2 $0, t, less;"
    lines = [
        ".reg .b32 t, less, one;",
        f"mov.b32 less, {less * 0x10001};",
        f"mov.b32 one, {0x3F803F80};",
        f"shr.b32 t, $1, {shift};" if shift else "mov.b32 t, $1;",
        f"lop3.b32 t, t, {mask * 0x10001}, {(high | flip) * 0x10001}, 0x6a;",  # (t & mask) ^ ..
        minus_whole,
    ]
    return "{ " + " ".join(lines) + " }"


@triton.jit
def small_word(
    x, shift: tl.constexpr, mask: tl.constexpr, flip: tl.constexpr, minus: tl.constexpr,
    to: tl.constexpr,
):  # fmt: skip
    """``small_float`` of words of 16 bits, as ``word`` reads them."""
    text: tl.constexpr = _word_text(shift, mask, flip, minus, to == tl.bfloat16)
    if to == tl.bfloat16:
        return tl.inline_asm_elementwise(text, "=r,r", [x], tl.bfloat16, True, 2)
    else:
        return tl.inline_asm_elementwise(text, "=r,r", [x], tl.float16, True, 2)


@triton.jit
def word(p, at, mask, ALIGNED: tl.constexpr):
    """Two neighbouring bytes, the first lower; at: of the pair.  ALIGNED: whether ``p`` is even."""
    if ALIGNED:
        words = p.to(tl.pointer_type(tl.uint16)) + at
        return tl.load(words) if mask is None else tl.load(words, mask, other=0)
    else:
        low = tl.load(p + 2 * at, mask).to(tl.uint8, bitcast=True)
        high = tl.load(p + 2 * at + 1, mask).to(tl.uint8, bitcast=True)
        return low.to(tl.uint16) | high.to(tl.uint16) << 8


@triton.jit
def of_sums(scale):
    """A scale of products for their sum: one that is not finite makes nan of some products."""
    scale = scale.to(tl.float32)
    return tl.where(scale - scale == 0, scale, float("nan"))


@triton.jit
def times16(a, b):
    """The product of 16-bit floats of one type, rounded once."""
    if a.dtype == tl.bfloat16:
        text: tl.constexpr = "{ .reg .b32 c; mov.b32 c, 0x80008000; fma.rn.bf16x2 $0, $1, $2, c; }"
        return tl.inline_asm_elementwise(text, "=r,r,r", [a, b], tl.bfloat16, True, 2)
    else:
        return a * b
