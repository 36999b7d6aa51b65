"""Quotients and remainders as device functions."""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl

from litz.runtime.triton.mathlib import INTERPRETED, _fmod, copysign, flush_inverse, fma, trunc


@triton.jit
def some(cond):
    """Whether a condition holds anywhere in a block, or of a scalar."""
    return tl.max(cond.to(tl.int32), None) != 0 if cond.type.is_block() else cond


@triton.jit
def div(a, b):
    if a.dtype != tl.float32:
        return a / b
    elif _is_shared(a.type, b.type):
        return _by_inverse(a, b)
    else:
        return tl.div_rn(a, b)


@triton.constexpr_function
def _is_shared(of, by):
    """Whether several numbers in a block have one divisor."""
    if INTERPRETED or not (of.is_block() and by.is_block()):
        return False
    return of.numel >= 4 * by.numel


@triton.constexpr_function
def _by_inverse_text():
    """Four quotients q = a / b, by the inverse r of b: what is left of a by the first, a times r,
    is exact, and so the second is the nearest (Markstein, 1990).

    That holds where nothing is subnormal or too large on the way, and of a positive b that is not
    far from 1 (else r is nan): otherwise a quotient is nan, or an ``a`` but zero below 2^-100.
    """
    lines = [".reg .pred odd;", ".reg .f32 e, m, s;", ".reg .b32 u, low;"]
    for k in range(4):
        q, a, b, r = (f"${k + 4 * i}" for i in range(4))
        lines += [f"mul.rn.f32 {q}, {a}, {r};", f"neg.f32 m, {a};"]
        lines += [f"fma.rn.f32 e, {q}, {b}, m;", f"neg.f32 m, {r};"]
        lines += [f"fma.rn.f32 {q}, e, m, {q};"]
        lines += [f"mov.b32 u, {a};", "shl.b32 u, u, 1;", "sub.u32 u, u, 1;"]
        lines += ["min.u32 low, low, u;" if k else "mov.b32 low, u;"]
        lines += [f"add.f32 s, s, {q};" if k else f"mov.f32 s, {q};"]
    lines += ["setp.lt.u32 odd, low, 0x1affffff;", "setp.nan.or.f32 odd, s, s, odd;"]
    rare = [f"div.rn.f32 ${k}, ${k + 4}, ${k + 8};" for k in range(4)]
    # A condition on each would be a choice behind it: all would be divided.
    return " ".join(["{", *lines, "@!odd bra divided;", *rare, "divided:", "}"])


@triton.jit
def _by_inverse(a, b):
    inverse = tl.inline_asm_elementwise("rcp.rn.f32 $0, $1;", "=f,f", [b], tl.float32, True, 1)
    near = (b >= 8.673617379884035e-19) & (b <= 1048576.0)
    inverse = tl.where(near, inverse, float("nan"))
    text: tl.constexpr = _by_inverse_text()
    to: tl.constexpr = "=&f,=&f,=&f,=&f,f,f,f,f,f,f,f,f,f,f,f,f"
    return tl.inline_asm_elementwise(text, to, [a, b, inverse], tl.float32, True, 4)


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
    if r.dtype.is_floating():
        return (r != 0) & ((r < 0) != (b < 0))
    else:
        # ptxas takes an absolute value for no less than 0: the lowest number's is itself.
        return (r != 0) & ((r ^ b) < 0)


@triton.jit
def truncdiv(a, b):
    if a.dtype.is_floating():
        return trunc(div(a, b))
    else:
        return _quotient(a, b)


@triton.jit
def fmod(a, b):
    if a.dtype == tl.float32:
        return _fmod32(a, b)
    elif a.dtype.is_floating():
        return _fmod(a, b)
    else:
        return a - _quotient(a, b) * _divisor(b)


@triton.jit
def _fmod32(a, b):
    """Exact where the quotient has few digits: what is left is at most one ``b`` too little."""
    size, by = tl.broadcast(tl.abs(a), tl.abs(b))
    quotient = size * flush_inverse(by)
    r = fma(12582912.0 - (quotient + 12582912.0), by, size)
    r = copysign(tl.where(r < 0, r + by, r), a)
    quick = (quotient < 1048576.0) & (by >= 1.1754943508222875e-38) & (by < 8.507059173023462e37)
    if some(quick == 0):
        r = tl.where(quick, r, _fmod(a, b))
    return r


@triton.jit
def mod(a, b):
    r = fmod(a, b)
    if a.dtype.is_int_unsigned():
        return r
    else:
        return tl.where(_wrong_sign(r, b), r + b, r)


@triton.jit
def floordiv(a, b):
    if a.dtype == tl.float32:
        return _floordiv32(a, b)
    elif a.dtype.is_floating():
        return _through_fmod(a, b)
    elif a.dtype.is_int_unsigned():
        return truncdiv(a, b)
    else:
        d = _divisor(b)
        q = _quotient(a, d)
        return tl.where(_wrong_sign(a - q * d, d), q - 1, q)


@triton.jit
def _floordiv32(a, b):
    """Exact where the quotient has few digits: rounding can only have reached the next integer."""
    quotient = div(a, b)
    whole = tl.floor(quotient)
    r = fma(whole * -1.0, b, a)
    quick = (tl.abs(quotient) < 2097152.0) & (r == r)
    whole = tl.where(_wrong_sign(r, b), whole - 1.0, whole)
    if some(quick == 0):
        whole = tl.where(quick, whole, _through_fmod(a, b))
    return whole


@triton.jit
def _through_fmod(a, b):
    r = _fmod(a, b)
    q = div(a - r, b)
    q = tl.where(_wrong_sign(r, b), q - 1, q)
    f = tl.floor(q)
    f = tl.where(q - f > 0.5, f + 1, f)
    f = tl.where(q == 0, copysign(tl.zeros_like(q), div(a, b)), f)
    return tl.where(b == 0, div(a, b), f)


@triton.jit
def floordiv_index(a, b):
    """Division of index values, which may be Python integers, rounded down."""
    return floordiv(tl.cast(a, tl.int64), tl.cast(b, tl.int64))


@triton.jit
def floormod_index(a, b):
    return mod(tl.cast(a, tl.int64), tl.cast(b, tl.int64))
