"""Binding a Triton kernel to Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

from litz.kernel.blocks.recipe import Config
from litz.runtime.triton.interpret import interpreted
from litz.targets.triton.launcher import bind
from litz.targets.triton.signature import pointer_type
from litz.targets.triton.source import Launch, TritonKernel


def bind_interpreted(kernel: TritonKernel) -> Callable[..., None]:
    """The launcher of a kernel whose launches are interpreted on the CPU."""

    def launcher(launch: Launch, config: Config) -> Callable[..., None]:
        types = [pointer_type(p.dtype) for p in launch.pointers]
        return interpreted(launch.source, launch.name, types, dict(config.constants))

    return bind(kernel, [x.configs[0] for x in kernel.launches], launcher)
