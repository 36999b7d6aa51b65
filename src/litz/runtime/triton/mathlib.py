"""CUDA's math library as device functions, and cheaper ones for values that end in 16 bits.

Under Triton's interpreter the functions have no meaning: there those of
``litz.runtime.triton.interpreted`` take their place, on NumPy arrays.
"""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra import libdevice

INTERPRETED = bool(knobs.runtime.interpret)


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
    return libdevice.lgamma(x.to(tl.float64)).to(
        x.dtype
    )  # that of f32 is off where it crosses zero


@triton.jit
def pow64(a, b):
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


# --- for values that are rounded to 16 bits: relative errors below 2^-17 -------------------------


@triton.jit
def narrow_exp(x):
    return tl.exp(x)


@triton.jit
def narrow_div(a, b):
    return a / b


@triton.jit
def flush_exp2(x):
    """2^x; zero where that would be subnormal."""
    asm: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(asm, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def flush_exp(x):
    """e^x; zero where that would be subnormal."""
    return flush_exp2(x * 1.4426950408889634)


@triton.jit
def narrow_exp_plus_one(x):
    return 1.0 + flush_exp(x)


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
