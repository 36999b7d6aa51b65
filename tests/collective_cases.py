"""Collectives of one process, and what a backend makes of programs that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from litz.backend import compile_with
from litz.options import make_options
from litz.stages import Stages


@contextmanager
def one_process() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


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
