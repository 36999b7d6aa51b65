"""Binding a Triton kernel to Triton's interpreter."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

from litz.kernel.blocks.recipe import Config
from litz.runtime.triton.interpret import interpreted
from litz.runtime.triton.launch import cells
from litz.targets.triton.joined import in_memory
from litz.targets.triton.launcher import bind
from litz.targets.triton.signature import pointer_type
from litz.targets.triton.source import Launch, Table, TritonKernel


def bind_interpreted(kernel: TritonKernel) -> Callable[..., None]:
    """The launcher of a kernel whose launches are interpreted on the CPU."""

    def launcher(launch: Launch, config: Config) -> Callable[..., None]:
        if launch.table is not None:
            return _with_table(launch, launch.table)
        types = [pointer_type(p.dtype) for p in launch.pointers]
        return interpreted(launch.source, launch.name, types, dict(launch.constants(config, True)))

    return bind(kernel, [x.configs[0] for x in kernel.launches], launcher)


def _with_table(launch: Launch, table: Table) -> Callable[..., None]:
    """A launch of several calls: what the memory of parameters would hold is made in memory."""
    run = interpreted(in_memory(launch), launch.name, ["*i64"], {"ALIGNED": False})
    layout = struct.Struct(f"={cells(table.types)}")

    def call(x: int, y: int, z: int, *args: float) -> None:
        room = ctypes.create_string_buffer(layout.pack(*args))
        run(x, y, z, ctypes.addressof(room))

    return call
