"""Collectives of one process, and what a backend makes of programs that have them.

Tests that import this are skipped where PyTorch was built without ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from litz.backend import compile_with
from litz.options import make_options
from litz.runtime.collectives import is_start
from litz.stages import Stages

if not dist.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)
ops = torch.ops._c10d_functional


@contextmanager
def one_process() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """That group, for the tests of a file that imports this."""
    with one_process():
        yield


def gathered(x: Tensor) -> Tensor:
    return ops.wait_tensor(ops.all_gather_into_tensor(x, 1, dist.group.WORLD.group_name))


def reduced(x: Tensor) -> Tensor:
    return ops.wait_tensor(ops.all_reduce(x, "sum", dist.group.WORLD.group_name))


def starts(calls: Iterable[Any]) -> list[Any]:
    """Those nodes of a graph, or of a program, or steps of a schedule that begin to communicate."""
    return [n for n in calls if is_start(getattr(n, "target", None))]


def compiled(fn: Callable[..., Any], *args: Tensor, **options: Any) -> tuple[Stages, Any]:
    """The stages of a program's one graph, and what the program returns."""
    found: list[Stages] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        made = make_options(options)
        return compile_with(gm, inputs, made, lambda kind, graph, s: found.append(s))

    torch._dynamo.reset()
    out = torch.compile(fn, backend=backend, fullgraph=True)(*args)
    (stages,) = found
    return stages, out
