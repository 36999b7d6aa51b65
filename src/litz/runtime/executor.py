"""The native executor: a plan becomes a callable that runs it without Python in between.

It is C++ without headers (``native/plan.h``, ``csrc/litz_executor.cpp``), in the library that comes
with the package (``litz.runtime.shipped``).  Of PyTorch it takes the C functions that exist for
compiled models, and how Python's tensors hold theirs, which is found out by looking; where this
PyTorch has others, an ``Executor`` cannot be made, and the printed Python serves.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from litz.errors import ToolchainError
from litz.runtime.arguments import BoxedCall
from litz.runtime.launchers import cell_of, in_python
from litz.runtime.memory import default_allocator, in_memory
from litz.runtime.native import Runtime, Segment
from litz.runtime.plan import DIRECT, Plan
from litz.runtime.torch_private import (
    device_code,
    dtype_code,
    native_functions,
    tensor_offset,
)

FUNCTIONS: Final = (
    "wrap",
    "torch_exception_get_what_without_backtrace",
    "torch_get_num_threads",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dim",
    "aoti_torch_get_size",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "aoti_torch_empty_strided",
    "aoti_torch__reinterpret_tensor",
    "aoti_torch__alloc_from_pool",
    "aoti_torch_cpu_view_dtype",
    "aoti_torch_copy_",
    "torch_new_stable_ivalue",
    "aoti_torch_new_tensor_handle",
    "aoti_torch_new_uninitialized_tensor",
    "torch_new_list_reserve_size",
    "torch_list_push_back",
    "torch_call_dispatcher",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_get_current_cuda_stream",
    "aoti_torch_create_cuda_guard",
    "aoti_torch_delete_cuda_guard",
    "watched",
    "aoti_record_function_start",
    "aoti_record_function_end",
    "aoti_torch_dtype_element_size",
    *(f"aoti_torch_{d}_{name.split('.')[1]}_out" for name in DIRECT for d in ("cpu", "cuda")),
)
"""In the order of the struct ``Torch``."""
_YOUNG: Final = (
    "torch_exception_get_what_without_backtrace",
    "torch_new_stable_ivalue",
    "watched",
    "aoti_record_function_start",
    "aoti_record_function_end",
)
"""Those that PyTorch before 2.13 has not, or another might not have, and that may be missing."""
_CUDA: Final = tuple(name for name in FUNCTIONS if "cuda" in name)
"""Those that PyTorch for CPUs has not."""


def check_torch() -> tuple[list[int], int]:
    """The addresses of ``FUNCTIONS`` and ``tensor_offset``; ToolchainError where some are not."""
    found = native_functions(FUNCTIONS)
    missing = [n for n in FUNCTIONS if not found[n] and n not in (*_YOUNG, *_CUDA)]
    offset = tensor_offset()
    if missing or offset is None:
        what = ", ".join(missing) or "tensors as Litz knows them"
        raise ToolchainError(f"litz: this PyTorch has not {what}")
    return [found[n] for n in FUNCTIONS], offset


class Executor(Runtime):
    """The library of executor and segments, loaded.  ToolchainError: this PyTorch is another."""

    def __init__(self, path: Path | str) -> None:
        self._functions, self._offset = check_torch()
        super().__init__(path)
        make = ctypes.PyDLL(str(path))["litz_program"]
        make.argtypes = [ctypes.c_char_p, ctypes.py_object]
        make.restype = ctypes.py_object
        self._make: Callable[[bytes, object], BoxedCall] = make

    def program(
        self, plan: Plan, values: Mapping[str, object], natives: Mapping[str, Any]
    ) -> BoxedCall:
        """A callable of a plan, which takes the list of arguments and empties it.

        values, natives: what the plan names: of the host program, and segments and kernels.
        Raises ToolchainError where this PyTorch has not what a plan for GPUs needs.
        """
        segments: list[Segment] = [natives[name] for name in plan.segments]
        kernels: list[Any] = [natives[name] for name in plan.kernels]
        cells = [cell_of(k) for k in kernels]
        objects = tuple(object_of(kind, text, values) for kind, text in plan.objects)
        self._check(objects)
        codes = [_code(o) for o in objects]
        numbers = [0 if n is None else n for n in plan.numbers]
        counts = [len(plan.words) // 8, plan.inputs, plan.tensors, len(numbers), len(objects)]
        places = [s.address for s in segments], [ctypes.addressof(c) for c in cells]
        run = self.function("litz_run_segment").address
        allocator = default_allocator()
        pool = ctypes.addressof(allocator.pool)
        head = [*counts, len(segments), len(kernels), self._offset, _abi(), run, pool]
        front = [*head, *self._functions, *places[0], *places[1], *codes, *numbers]
        make = allocator.empty_strided, _empty, allocator.workspace
        functions = tuple(in_python(dict(enumerate(kernels))).values())
        helpers = tuple(segments), functions, torch.Tensor, *make, in_memory
        keep = (objects, *helpers, cells, kernels, self)
        return self._make(struct.pack(f"={len(front)}q", *front) + plan.words, keep)

    def _check(self, objects: Sequence[object]) -> None:
        if any(isinstance(o, torch.device) and o.type != "cpu" for o in objects):
            found = dict(zip(FUNCTIONS, self._functions, strict=True))
            missing = [n for n in _CUDA if not found[n] and not n.endswith("mm_out")]
            if missing:
                raise ToolchainError(f"litz: this PyTorch has not {', '.join(missing)}")


def _empty(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _code(value: object) -> int:
    """A plain value as PyTorch's C functions take it; 0 for others."""
    if isinstance(value, torch.dtype):
        return dtype_code(value)
    if isinstance(value, torch.device):  # the index is a byte, -1 for the current one
        return device_code(value.type) << 8 | ((-1 if value.index is None else value.index) & 0xFF)
    if isinstance(value, float):
        return int(struct.unpack("=q", struct.pack("=d", value))[0])
    return value if isinstance(value, int) and value.bit_length() < 64 else 0


def _abi() -> int:
    """The version of PyTorch's C functions that the executor is for."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return major << 56 | minor << 48


def object_of(kind: str, text: str, values: Mapping[str, object]) -> object:
    """What an entry of a plan's ``objects`` says.  values: of the host program, by their names."""
    match kind:
        case "literal":
            return ... if text == "Ellipsis" else ast.literal_eval(text)
        case "float":
            return float.fromhex(text)
        case "device":
            return torch.device(text)
        case "value":
            return values[text]
        case "torch":
            place: object = torch
        case _:
            module, _, text = text.partition(":")
            place = importlib.import_module(module)
    for part in text.split("."):
        place = getattr(place, part)
    return place
