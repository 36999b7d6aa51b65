"""Users' Triton kernels that Dynamo captures and that run on the CPU, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

_OF_COMPILER = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class InterpretedJit(JITFunction):
    """What ``triton.jit`` makes, to Dynamo; a launch runs in the interpreter.

    launches: grid and arguments of each, the latest last.
    """

    def __init__(self, fn: Any) -> None:
        super().__init__(fn)
        self.launches: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        kept = {k: v for k, v in kwargs.items() if k not in _OF_COMPILER}
        if callable(grid):
            grid = grid({**dict(zip(self.arg_names, args, strict=False)), **kept})
        self.launches.append((grid, args, kwargs))
        return InterpretedFunction(self.fn).run(*args, grid=grid, warmup=warmup, **kept)


class _Driver:
    """What Triton asks of a driver before it compiles: a target, but no GPU."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        def bench(fn: Any, *_: Any, **__: Any) -> list[float]:
            fn()
            return [1.0, 1.0, 1.0]

        return bench


@contextmanager
def captured() -> Iterator[None]:
    """Dynamo takes Triton kernels into its graphs, and PyTorch analyses them, without a GPU."""
    names = ("has_triton", "has_triton_tensor_descriptor_host_tma")
    patches = [mock.patch(f"torch.utils._triton.{n}", lambda: True) for n in names]
    before = driver._active
    driver.set_active(_Driver())
    torch._dynamo.reset()
    try:
        with patches[0], patches[1]:
            yield
    finally:
        driver._active = before
        torch._dynamo.reset()


@InterpretedJit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    x = tl.load(x_ptr + i, mask=m)
    y = tl.load(y_ptr + i, mask=m)
    tl.store(out_ptr + i, x + y, mask=m)


@InterpretedJit
def increment_kernel(x_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=m) + 1, mask=m)


def cdiv(a: Any, b: int) -> Any:
    return triton.cdiv(a, b)
