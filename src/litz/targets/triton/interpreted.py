"""Binding a Triton kernel to Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litz.runtime.triton.interpret import interpreted
from litz.targets.triton.launcher import print_launcher
from litz.targets.triton.signature import pointer_type
from litz.targets.triton.source import TritonKernel


def bind_interpreted(kernel: TritonKernel) -> Callable[..., None]:
    """The launcher of a kernel whose launches are interpreted on the CPU."""
    configs = [launch.configs[0] for launch in kernel.launches]
    text = print_launcher(kernel, configs)
    scope: dict[str, Any] = {}
    for i, (launch, config) in enumerate(zip(kernel.launches, configs, strict=True)):
        types = [pointer_type(p.dtype) for p in launch.pointers]
        blocks = dict(config.constants)
        scope[f"launch_{i}"] = interpreted(launch.source, launch.name, types, blocks)
        if (narrow := launch.narrow) is not None:
            scope[f"launch_{i}_narrow"] = interpreted(narrow.source, narrow.name, types, blocks)
    exec(compile(text, "<litz launcher>", "exec"), scope)
    call: Callable[..., None] = scope["call"]
    return call
