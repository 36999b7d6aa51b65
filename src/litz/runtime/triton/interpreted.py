"""Device functions under Triton's interpreter, where CUDA's math library is not: on NumPy arrays.

The interpreter knows no external functions, and it reduces with a function of the user element by
element in Python.  Kernels call these like any others.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle


def _tensor(data, dtype):
    data = np.asarray(data)
    kind = tl.block_type(dtype, list(data.shape)) if data.ndim else dtype
    return tl.core.tensor(TensorHandle(data, dtype), kind)


def _array(x):
    return np.asarray(x.handle.data)


def _like(x, data):
    """``data`` as a tensor of the type of ``x``; scalars stay scalars."""
    data = np.asarray(data).astype(_array(x).dtype)
    if not x.type.is_block():
        return tl.core.tensor(TensorHandle(data, x.dtype), x.dtype)
    return _tensor(data, x.dtype)


def _common(*xs):
    """The operands, tensors and numbers, as arrays of one shape; and a tensor like the result."""
    tensors = [x for x in xs if isinstance(x, tl.core.tensor)]
    kind = _array(tensors[0]).dtype
    arrays = (_array(x) if isinstance(x, tl.core.tensor) else np.asarray(x, kind) for x in xs)
    block = next((x for x in tensors if x.type.is_block()), tensors[0])
    return np.broadcast_arrays(*arrays), block


def _numpy(function):
    def apply(*xs):
        arrays, like = _common(*xs)
        with np.errstate(all="ignore"):
            return _like(like, function(*arrays))

    return apply


def _torch(function):
    def apply(*xs):
        arrays, like = _common(*xs)
        return _like(like, function(*(torch.from_numpy(np.array(a)) for a in arrays)).numpy())

    return apply


@_numpy
def flush_exp2(x):
    found = np.exp2(x)
    return np.where(found < np.finfo(np.float32).tiny, np.float32(0), found)


@_numpy
def fma(a, b, c):
    # Exact in the wider type but for its own rounding at the end.
    wide = np.float64 if a.dtype == np.float32 else np.longdouble
    return a.astype(wide) * b.astype(wide) + c.astype(wide)


def _reduction(function):
    def apply(x, axis):
        axis = getattr(axis, "value", axis)
        with np.errstate(all="ignore"):
            return _tensor(function(_array(x), axis).astype(_array(x).dtype), x.dtype)

    return apply


def to_bf16(x):
    """To the nearest, ties to even: the interpreter's own cast cuts off."""
    wide = torch.from_numpy(np.array(_array(x))).to(torch.float32)
    return _tensor_like(x, wide.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16))


def _tensor_like(x, data):
    kind = tl.block_type(tl.bfloat16, list(data.shape)) if x.type.is_block() else tl.bfloat16
    return tl.core.tensor(TensorHandle(data, tl.bfloat16), kind)


SMALL = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


def _widened(x):
    bits = _array(x)
    if (small := SMALL.get(x.dtype.name)) is not None:
        return torch.from_numpy(bits.astype(np.uint8)).view(small).float().numpy()
    return (bits.astype(np.uint32) << 16).view(np.float32) if x.dtype == tl.bfloat16 else bits


def dot(a, b, acc=None):
    """The interpreter multiplies the bits of bfloat16."""
    whole = a.dtype.is_int()
    found = np.matmul(_widened(a), _widened(b), dtype=np.int32 if whole else np.float32)
    found = found if acc is None else found + _array(acc)
    return _tensor(found, tl.int32 if whole else tl.float32)


def small_float(x, shift, mask, flip, minus, to):
    shift, mask, flip, minus, to = (getattr(c, "value", c) for c in (shift, mask, flip, minus, to))
    found = (_array(x).astype(np.int32) >> shift & mask ^ flip) - minus
    return _rounded(found.astype(np.float32), to)


def times16(a, b):
    return _rounded(_widened(a).astype(np.float32) * _widened(b).astype(np.float32), a.dtype)


def _rounded(data, to):
    """float32 numbers as a 16-bit type, to the nearest."""
    wide = _tensor(data, tl.float32)
    return to_bf16(wide) if to == tl.bfloat16 else _tensor(data.astype(np.float16), to)


def check(inside):
    if not np.all(_array(inside)):
        raise IndexError("index out of range")


def check_divisor(valid):
    if not np.all(_array(valid)):
        raise RuntimeError("ZeroDivisionError in a compiled kernel")


def _truth(function):
    # The interpreter spreads a single truth value as a number.
    def apply(x, axis):
        axis = getattr(axis, "value", axis)
        return _tensor(function(_array(x) != 0, axis=axis, keepdims=True), tl.int1)

    return apply


def _logic(function):
    return lambda a, b: _tensor(function(_array(a) != 0, _array(b) != 0), tl.int1)


def own(value, at):
    # The interpreter takes a value that it has spread over a block for one in memory of its own.
    return _tensor(np.array(np.broadcast_to(_array(value), _array(at).shape)), value.dtype)


def scan(x, axis, combine, reverse=False):
    """One step of all rows at a time: the interpreter's own goes from element to element."""
    combine, axis = getattr(combine, "fn", combine), getattr(axis, "value", axis)
    turn = slice(None, None, -1 if getattr(reverse, "value", reverse) else None)
    parts = [np.moveaxis(_array(p), axis, -1)[..., turn] for p in x]
    done = [np.array(p) for p in parts]

    def at(arrays, i):
        return [_tensor(np.array(a[..., i]), p.dtype) for a, p in zip(arrays, x, strict=True)]

    for i in range(1, parts[0].shape[-1]):
        now = combine(*at(done, i - 1), *at(parts, i))
        now = now if isinstance(now, (tuple, tl.tuple)) else (now,)
        for d, v in zip(done, now, strict=True):
            d[..., i] = _array(v)
    moved = [np.ascontiguousarray(np.moveaxis(d[..., turn], -1, axis)) for d in done]
    return tuple(_tensor(d, p.dtype) for d, p in zip(moved, x, strict=True))


def partner(x):
    return _tensor(np.ascontiguousarray(np.flip(_array(x), 1)), x.dtype)


_FUNCTIONS = """
    exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh copysign nextafter trunc
    arcsin:asin arccos:acos arctan:atan64 arctan2:atan2 arcsinh:asinh arccosh:acosh arctanh:atanh
    fmod:_fmod rint:round
"""
FUNCTIONS = {
    **{(n := f.split(":"))[-1]: _numpy(getattr(np, n[0])) for f in _FUNCTIONS.split()},
    **{name: _torch(getattr(torch, name)) for name in ("erf", "erfc", "erfinv", "lgamma")},
    "pow64": _torch(torch.pow),
    "rsqrt": _numpy(lambda x: 1 / np.sqrt(x)),
    "flush_exp2": flush_exp2,
    "flush_log2": _numpy(np.log2),
    "flush_inverse": _numpy(lambda x: 1 / x),
    "fma": fma,
    "dot": dot,
    "small_float": small_float,
    "small_word": small_float,
    "times16": times16,
    "prod": _reduction(lambda a, axis: np.prod(a, axis=axis, keepdims=True, dtype=a.dtype)),
    "max": _reduction(lambda a, axis: np.max(a, axis=axis, keepdims=True)),
    "min": _reduction(lambda a, axis: np.min(a, axis=axis, keepdims=True)),
    "any": _truth(np.any),
    "all": _truth(np.all),
    "either": _logic(np.logical_or),
    "both": _logic(np.logical_and),
    "to_bf16": to_bf16,
    "check": check,
    "check_divisor": check_divisor,
    "own": own,
    "scan": scan,
}
"""What takes the place of the functions of ``litz.runtime.triton.helpers``, by name."""
