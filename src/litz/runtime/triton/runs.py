"""Elements of blocks along an axis, and blocks of columns in runs."""

# Triton reads these functions' sources: annotations would be taken for types of its own.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def last(x, axis: tl.constexpr):
    """The last element along ``axis``, the last of the block's, which stays."""
    size: tl.constexpr = x.shape[axis]
    return element(x, axis, size - 1)


@triton.jit
def element(x, axis: tl.constexpr, at):
    """The element at a place along ``axis``, the last of the block's, which stays; bit by bit."""
    size: tl.constexpr = x.shape[axis]
    wide: tl.constexpr = tl.int64 if x.dtype.primitive_bitwidth == 64 else tl.int32
    here = tl.arange(0, size) == at
    if x.dtype.is_floating():
        bits = tl.where(here, x.to(wide, bitcast=True), 0)
        return tl.sum(bits, axis, keep_dims=True).to(x.dtype, bitcast=True)
    else:
        return tl.sum(tl.where(here, x.to(wide), 0), axis, keep_dims=True).to(x.dtype)


# A block of columns in runs has element ``k`` of run ``q`` at place ``k * runs + q``: neighbours in
# a run are as far apart as a thread's own elements, and to scan them takes no other thread.


@triton.jit
def in_runs(size: tl.constexpr, run: tl.constexpr):
    """The elements of a column in that order."""
    at = tl.arange(0, size)
    return at % (size // run) * run + at // (size // run)


@triton.jit
def runs(x, run: tl.constexpr):
    """``[columns, elements]`` in that order as ``[columns, runs, elements of a run]``."""
    parts = tl.reshape(x, [x.shape[0], run, x.shape[1] // run])
    return tl.permute(parts, [0, 2, 1])


@triton.jit
def end_of_runs(x):
    """The last element of each run: ``[columns, runs]``."""
    return tl.reshape(last(x, 2), [x.shape[0], x.shape[1]])


@triton.jit
def before_runs(x, run: tl.constexpr):
    """The element of the run before each, as ``[columns, runs, elements of a run]``."""
    at = tl.broadcast_to(tl.arange(0, x.shape[1])[None, :], x.shape)
    before = tl.gather(x, tl.maximum(at - 1, 0), 1)
    return tl.broadcast_to(before[:, :, None], [x.shape[0], x.shape[1], run])


@triton.jit
def of_runs(x, own):
    """Runs with what comes before them, the first without, as ``[columns, elements]`` again."""
    first = tl.arange(0, x.shape[1])[None, :, None] == 0
    parts = tl.permute(tl.where(first, own, x), [0, 2, 1])
    return tl.reshape(parts, [x.shape[0], x.shape[1] * x.shape[2]])
