"""CUDA's math library as device functions, and cheaper ones for values that end in 16 bits.

Under Triton's interpreter the functions have no meaning: there those of
``litz.runtime.triton.interpreted`` take their place, on NumPy arrays.
"""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors
# ruff: noqa: F401, I001

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import libdevice
from triton.language.extra.cuda.libdevice import (
    acos, acosh, asin, asinh, atan2, atanh, copysign, cos, cosh, erf, erfc, erfinv, exp, exp2,
    expm1, fma, log, log1p, log2, log10, nextafter, rsqrt, sin, sinh, tan, trunc,
)  # fmt: skip
from triton.language.extra.cuda.libdevice import fmod as _fmod
from triton.language.extra.cuda.libdevice import atan as atan64
from triton.language.extra.cuda.libdevice import pow as pow64
from triton.language.extra.cuda.libdevice import rint as round

INTERPRETED = bool(knobs.runtime.interpret)


@triton.jit
def lgamma(x):
    # That of f32 is off where it crosses zero.
    return libdevice.lgamma(x)


@triton.jit
def atan(x):
    return _atan32(x) if x.dtype == tl.float32 else atan64(x)


@triton.jit
def _atan32(x):
    """t + t^3 q(t^2) (fitted on [0, 1]) of x, or of its inverse, which is taken from pi / 2: at
    most 2 units in the last place off."""
    size = tl.abs(x)
    far = size > 1
    t = tl.where(far, flush_inverse(size), size)
    z = t * t
    q = fma(z, 0.002841484034433961, -0.016049757599830627)
    q = fma(q, z, 0.04269272834062576)
    q = fma(q, z, -0.07508143037557602)
    q = fma(q, z, 0.10645326226949692)
    q = fma(q, z, -0.14205820858478546)
    q = fma(q, z, 0.19993135333061218)
    q = fma(q, z, -0.33333125710487366)
    t = tl.where(far, t * -1.0, t)
    high = tl.where(far, 1.5707963705062866, 0.0) + t
    low = tl.where(far, (1.5707963705062866 - high) + t - 4.371139e-08, t - high)
    return copysign(high + fma(t * z, q, low), x)


@triton.jit
def tanh(x):
    return _tanh32(x) if x.dtype == tl.float32 else libdevice.tanh(x)


@triton.jit
def _tanh32(x):
    """Without branches, at most 2 units in the last place off: x + x^3 q(x^2) (fitted on
    [0, 0.65]), beyond 1 - 2 / (e^2x + 1)."""
    t = x * x
    q = tl.fma(t, -0.0055151632986962795, 0.02046941965818405)
    q = tl.fma(q, t, -0.05368802323937416)
    q = tl.fma(q, t, 0.1333083063364029)
    q = tl.fma(q, t, -0.3333325982093811)
    far = tl.fma(flush_inverse(flush_exp2(tl.abs(x) * 2.8853900817779268) + 1.0), -2.0, 1.0)
    return tl.where(t < 0.4225, tl.fma(q * t, x, x), libdevice.copysign(far, x))


# --- for values that are rounded to 16 bits: relative errors below 2^-17 -------------------------


@triton.jit
def narrow_exp(x):
    return tl.exp(x)


@triton.jit
def narrow_div(a, b):
    return a / b


@triton.jit
def narrow_sinh(x):
    """x + x^3 q(x^2) (fitted on [0, 1]), beyond half the difference of two exponentials."""
    size = tl.abs(x)
    z = x * x
    q = fma(fma(z, 0.00020372832659631968, 0.008330274373292923), z, 0.1666671633720398)
    half = flush_exp2(fma(size, 1.4426950408889634, -1.0))
    far = copysign(fma(flush_inverse(half), -0.25, half), x)
    return tl.where(size < 1, fma(z * x, q, x), far)


@triton.jit
def narrow_asinh(x):
    """x + x^3 q(x^2) (fitted on [0, 0.5]), beyond the logarithm of twice a mean."""
    size = tl.abs(x)
    z = x * x
    q = fma(fma(z, -0.032974906265735626, 0.07342474162578583), z, -0.16660329699516296)
    mean = tl.where(size > 1e9, size, 0.5 * (size + tl.sqrt(z + 1.0)))
    far = fma(flush_log2(mean), 0.6931471805599453, 0.6931471805599453)
    return copysign(tl.where(size < 0.5, fma(z * size, q, size), far), x)


@triton.jit
def narrow_tanh(x):
    """x - x^3 / 3 (fitted on [0, 0.1]), beyond 1 - 2 / (e^2x + 1)."""
    z = x * x
    far = fma(flush_inverse(flush_exp2(x * 2.8853900817779268) + 1.0), -2.0, 1.0)
    return tl.where(z < 0.01, x * fma(z, -0.33223, 1.0), far)


@triton.jit
def flush_log2(x):
    """The logarithm to the base 2, less than 2^-21 off; of subnormals minus infinity."""
    asm: tl.constexpr = "lg2.approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(asm, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def flush_exp2(x):
    """2^x; zero where that would be subnormal."""
    asm: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(asm, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def flush_inverse(x):
    """1 / x, one unit in the last place off; of subnormals an infinity, zero for a subnormal."""
    asm: tl.constexpr = "rcp.approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(asm, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def flush_exp(x):
    """e^x; zero where that would be subnormal."""
    return flush_exp2(x * 1.4426950408889634)


@triton.jit
def narrow_exp_plus_one(x):
    return 1.0 + flush_exp(x)


@triton.jit
def narrow_tanh_plus_one(x):
    return 2.0 / (1.0 + flush_exp2(x * -2.8853900817779268))


@triton.jit
def narrow_sigmoid(x):
    return 1.0 / (1.0 + flush_exp(x * -1.0))


@triton.jit
def narrow_erf_plus_one(x):
    """1 + erf(x) = erfc(-x), where erfc(t) = 2^-q(t) for a polynomial q (fitted on [0, 4.25])."""
    t = tl.abs(x)
    q = tl.fma(t, -2.0298264644225128e-05, 0.0004858588508795947)
    q = tl.fma(q, t, -0.005222566891461611)
    q = tl.fma(q, t, 0.033907949924468994)
    q = tl.fma(q, t, -0.15242724120616913)
    q = tl.fma(q, t, -0.9170828461647034)
    q = tl.fma(q, t, -1.6280630826950073)
    tail = tl.where(t > 4.25, 0.0, flush_exp2(q * t))
    return tl.where(x < 0, tail, 2.0 - tail)


if INTERPRETED:
    from litz.runtime.triton.interpreted import FUNCTIONS

    globals().update({name: f for name, f in FUNCTIONS.items() if name in globals()})
