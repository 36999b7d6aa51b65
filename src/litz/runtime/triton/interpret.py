"""Kernels under Triton's interpreter, on the CPU's memory: results without a GPU.

Slow, and exact about what a kernel reads and writes.  The environment must hold
``TRITON_INTERPRET=1`` before anything imports Triton, because Triton decides at import what its
own library functions are.
"""

from __future__ import annotations

import ctypes
import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from litz.errors import ToolchainError

TYPES = {
    "*i1": torch.bool,
    "*u8": torch.uint8,
    "*u16": torch.uint16,
    "*u32": torch.uint32,
    "*u64": torch.uint64,
    "*i8": torch.int8,
    "*i16": torch.int16,
    "*i32": torch.int32,
    "*i64": torch.int64,
    "*fp16": torch.float16,
    "*bf16": torch.bfloat16,
    "*fp32": torch.float32,
    "*fp64": torch.float64,
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
    Raises IndexError where the kernel's own check of an index fails.
    """
    require_interpreter()
    module: dict[str, Any] = {"__name__": f"litz_kernel_{name}"}
    filename = f"<litz kernel {name}>"
    # The interpreter reads the function's source by way of its file.
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), module)
    kernel = module[name]
    types = [TYPES[p] for p in pointers]

    def run(x: int, y: int, z: int, *args: int) -> None:
        tensors = [_tensor(a, t) for a, t in zip(args, types, strict=False)]
        try:
            kernel[x, y, z](*tensors, *args[len(types) :], **blocks)
        except Exception as error:
            if "index out of range" in _causes(error):
                raise IndexError("index out of range in a compiled kernel") from None
            raise

    return run


def _tensor(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor at an address, of which the interpreter takes no more than that."""
    if address == 0:
        return torch.empty(0, dtype=dtype)
    room = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(room, dtype=dtype)


def _causes(error: BaseException) -> str:
    text, at = "", error
    while at is not None:
        text += f"{at}\n"
        at = at.__cause__ or at.__context__  # type: ignore[assignment]
    return text
