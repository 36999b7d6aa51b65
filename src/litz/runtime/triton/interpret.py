"""Kernels under Triton's interpreter, on the CPU's memory: results without a GPU.

Slow, and exact about what a kernel reads and writes.  The environment must hold
``TRITON_INTERPRET=1`` before anything imports Triton, because Triton decides at import what its
own library functions are.
"""

from __future__ import annotations

import ctypes
import linecache
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from litz.errors import OutOfRangeError, ToolchainError
from litz.runtime.cache import content_key

INDEX_FAULT = "index out of range"  # what a kernel's check says
# The interpreter keeps the number of the running program in a global of its own.
_ONE_AT_A_TIME = threading.RLock()

TYPES = {
    "*i1": torch.bool,
    **{f"*u{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"*i{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"*fp{bits}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    "*bf16": torch.bfloat16,
}


def require_interpreter() -> None:
    """Raise ToolchainError unless Triton was imported to interpret."""
    try:
        from triton import knobs
    except ImportError as error:
        raise ToolchainError(
            "the Triton target needs the package triton: pip install triton"
        ) from error
    if not knobs.runtime.interpret:
        raise ToolchainError(
            "Triton kernels run on the CPU under Triton's interpreter alone: set the environment "
            "variable TRITON_INTERPRET=1 before the program starts"
        )


def interpreted(
    source: str, name: str, pointers: Sequence[str], blocks: Mapping[str, int]
) -> Callable[..., None]:
    """A function (grid x, y, z, addresses, integers) that runs a kernel.

    source: a module that defines the kernel ``name``.  pointers: types of the leading arguments.
    blocks: the kernel's constexprs.
    Raises OutOfRangeError where the kernel's own check of an index fails.
    """
    require_interpreter()
    module: dict[str, Any] = {"__name__": f"litz_kernel_{name}"}
    # The interpreter reads the function's source by way of its file, as late as the first run.
    filename = f"<litz kernel {name} {content_key(source)[:12]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), module)
    kernel = module[name]
    types = [TYPES[p] for p in pointers]
    import numpy  # the interpreter needs it, nothing else does

    def run(x: int, y: int, z: int, *args: int) -> None:
        tensors = [_tensor(a, t) for a, t in zip(args, types, strict=False)]
        try:
            with _ONE_AT_A_TIME, numpy.errstate(all="ignore"):
                kernel[x, y, z](*tensors, *args[len(types) :], **blocks)
        except Exception as error:
            if _is_index_fault(error):
                raise OutOfRangeError("index out of range in a compiled kernel") from None
            raise

    return run


def _tensor(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor at an address, of which the interpreter takes no more than that."""
    if address == 0:
        return torch.empty(0, dtype=dtype, device="cpu")
    room = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(room, dtype=dtype)


def _is_index_fault(error: BaseException) -> bool:
    """Whether the kernel's own check failed, and not the interpreter."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, (AssertionError, IndexError)) and str(at) == INDEX_FAULT:
            return True
        at = at.__cause__ or at.__context__
    return False
