"""Launching a kernel: a Python function from a grid, addresses and integers to a driver call.

What the driver is to read (the launch configuration, the arguments) lies in one buffer, a *frame*,
into which one ``pack_into`` writes all that changes; the driver copies it before it returns.  A
frame belongs to one launch at a time: it is taken from a list and put back, which are atomic and
need no lock.  So threads, and launches from within a launch (finalisers), never share one.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from litz.errors import ToolchainError
from litz.runtime.launchers import Variant
from litz.runtime.triton.driver import INVALID_CONTEXT, INVALID_HANDLE, Function, overlaps
from litz.runtime.triton.job import KernelJob

Launch = Callable[..., None]

# CUlaunchConfig: grid x, y, z, block x, y, z, shared bytes, stream, attributes, their number.
_CONFIG = "=7I4xQQI4x"
_CONFIG_BYTES = struct.calcsize(_CONFIG)
# One CUlaunchAttribute: programmatic stream serialization, allowed.
_EARLY = (ctypes.c_uint64 * 9)(6, 1)
# How a parameter of a type is packed; each has eight bytes to itself.
_TYPES = "i1 i8 i16 i32 i64 u8 u16 u32 u64 fp32 fp64".split()
_FORMS = dict(zip(_TYPES, "?bhiqBHIQfd", strict=True))


class Memory(Protocol):
    """Device memory that lives as long as the object."""

    def data_ptr(self) -> int: ...


def bind(
    function: Function,
    job: KernelJob,
    stream: Callable[[], int],
    allocate: Callable[[int], Memory] | None = None,
    packed: tuple[str, ...] | None = None,
) -> Launch:
    """A function (grid x, y, z, arguments) that launches a kernel on the current stream.

    stream: gives the handle of the stream.  allocate: gives bytes on the device for kernels that
    need scratch memory.  The arguments are those of the job but for its constexprs; pointers are
    addresses.  packed: types of what the arguments' eight bytes hold, where it is not their own.
    Raises CudaError where the launch fails, struct.error where an integer does not fit its type.
    """
    types = [t for _, t in job.arguments]
    hidden = _hidden(function, types)
    packed = packed or tuple(types)
    layout = struct.Struct(f"{_CONFIG}{cells(packed)}{'Q' * hidden}")
    names = [f"a{i}" for i in range(len(packed))]
    scratch = _scratch(function, hidden)
    if scratch and allocate is None:
        raise ToolchainError(f"litz: the kernel {function.binary.entry} needs scratch memory")
    frames: list[Any] = []
    scope: dict[str, Any] = {
        "IndexError": IndexError,
        "pack": layout.pack_into,
        "take": frames.pop,
        "give": frames.append,
        "make": lambda: _frame(layout.size, len(types) + hidden),
        "call": function.device.driver.launch,
        "function": ctypes.c_void_p(function.handle),
        "stream": stream,
        "allocate": allocate,
        "failed": _Failed(function),
    }
    # What is scratch memory here the launch in front may have given back and still use.
    text = _text(function, names, scratch, hidden, 0 if scratch else _attributes(job))
    exec(compile(text, f"<litz launch of {function.binary.entry}>", "exec"), scope)
    launch: Launch = scope["launch"]
    return launch


def variant(function: Function, job: KernelJob) -> Variant:
    """How the executor launches a kernel; without a function where it needs scratch memory."""
    hidden = _hidden(function, [t for _, t in job.arguments])
    binary = function.binary
    if _scratch(function, hidden):
        return Variant()
    threads = binary.num_warps * binary.warp_size
    return Variant(function.handle, threads, binary.shared, hidden, _attributes(job))


def _attributes(job: KernelJob) -> int:
    """The address of a launch's one attribute, 0 where it has none."""
    early = dict(job.constants).get("FOLLOWS") and overlaps()
    return ctypes.addressof(_EARLY) if early else 0


def cells(types: Sequence[str]) -> str:
    """The format of arguments, eight bytes each, in the terms of ``struct``."""
    return "".join(f"{_form(t)}{8 - _bytes(t)}x" for t in types)


def _text(
    function: Function, names: list[str], scratch: dict[int, int], hidden: int, attributes: int
) -> str:
    binary = function.binary
    threads = binary.num_warps * binary.warp_size
    lines = [f"def launch({', '.join(['gx', 'gy', 'gz', *names])}):"]
    last = []
    for i in range(hidden):
        if i in scratch:
            lines.append(f"    memory{i} = allocate(gx * gy * gz * {scratch[i]})")
            last.append(f"memory{i}.data_ptr()")
        else:
            last.append("0")
    values = [f"gx, gy, gz, {threads}, 1, 1, {binary.shared}, stream(), {attributes}"]
    values += [str(int(attributes > 0)), *names, *last]
    lines += [
        "    try:",
        "        frame = take()",
        "    except IndexError:",
        "        frame = make()",
        "    buffer, config, params = frame",
        f"    pack(buffer, 0, {', '.join(values)})",
        "    code = call(config, function, params, None)",
        "    if code:",
        "        failed(code, config, params, gx, gy, gz)",
        "    give(frame)",
    ]
    return "\n".join(lines) + "\n"


def _frame(size: int, params: int) -> tuple[Any, Any, Any]:
    """(buffer, its configuration's address, the table of the parameters' addresses)."""
    buffer = (ctypes.c_uint64 * (-(-size // 8)))()
    base = ctypes.addressof(buffer)
    places = (base + _CONFIG_BYTES + 8 * i for i in range(params))
    table = (ctypes.c_void_p * max(params, 1))(*places)
    return buffer, ctypes.c_void_p(base), table


class _Failed:
    """What a launch does about an error code."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def __call__(self, code: int, config: Any, params: Any, x: int, y: int, z: int) -> None:
        device = self.function.device
        driver, entry = device.driver, self.function.binary.entry
        # A thread new to CUDA has no context, another may be at another device.
        if code in (INVALID_CONTEXT, INVALID_HANDLE) and driver.current() != device.context:
            with device.active():
                handle = ctypes.c_void_p(self.function.handle)
                code = driver.launch(config, handle, params, None)
        if code:
            doing = f"launching the kernel {entry} on a grid of {x} x {y} x {z} programs"
            raise driver.error(code, "cuLaunchKernelEx", doing)


def _form(type_: str) -> str:
    if type_.startswith("*"):
        return "Q"
    if type_ not in _FORMS:
        raise ToolchainError(f"litz: a kernel's argument cannot have the type {type_}")
    return _FORMS[type_]


def _bytes(type_: str) -> int:
    base, _, count = type_.rstrip("]").partition("[")
    return struct.calcsize("=" + _form(base)) * int(count or 1)


def _hidden(function: Function, types: list[str]) -> int:
    """How many pointers Triton added at the end: scratch memory, then a profiler's."""
    params = function.binary.params
    own = tuple(map(_bytes, types))
    hidden = params[len(own) :]
    if params[: len(own)] != own or len(hidden) > 2 or any(n != 8 for n in hidden):
        raise ToolchainError(
            f"litz: the kernel {function.binary.entry} takes parameters of {params} bytes, which "
            f"are not those of its arguments ({', '.join(types)}) and at most two pointers"
        )
    return len(hidden)


def _scratch(function: Function, hidden: int) -> dict[int, int]:
    """Bytes a program of each scratch memory that the kernel needs, by its place."""
    wanted = (function.binary.scratch[0], function.binary.profile_scratch[0])
    if any(wanted[hidden:]):
        raise ToolchainError(
            f"litz: the kernel {function.binary.entry} needs scratch memory, and no parameter "
            "takes its address"
        )
    return {i: n for i, n in enumerate(wanted[:hidden]) if n}
