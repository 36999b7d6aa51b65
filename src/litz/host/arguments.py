"""What a program's tensor arguments must look like."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch

from litz.host.aliasing import read_by_strides, touched, written
from litz.index import Const, Expr
from litz.ir.dtype import DType
from litz.ir.program import Extern, Program
from litz.lowering.torch_types import to_torch
from litz.runtime.arguments import Argument


def arguments(program: Program) -> tuple[Argument, ...]:
    """The tensor arguments that kernels read by type and strides, in order."""
    writes = written(program)
    loops = [n for n in program.nodes if not isinstance(n, Extern)]
    externs = [n for n in program.nodes if isinstance(n, Extern)]
    kernels = [b for n in loops for b in touched(n)]
    looked_into = read_by_strides(kernels, externs, program.outputs, program.buffers)
    used = writes | looked_into | {b for n in externs for b in n.read_buffers()}
    found: list[Argument] = []
    for position, name in enumerate(program.inputs):
        b = program.buffers.get(name)
        if b is None or b.kind != "input" or name not in used:
            continue  # what only comes and goes may be anything: tokens of effects are None
        uses = name in writes, name not in looked_into
        found.append(Argument(position, name, *_laid(b.shape, b.strides, b.dtype, b.device), *uses))
    return tuple(found)


@lru_cache(maxsize=1024)
def _laid(
    shape: tuple[Expr, ...], strides: tuple[Expr, ...], dtype: DType, device: str
) -> tuple[torch.dtype, torch.device, tuple[int | None, ...], tuple[int | None, ...]]:
    """What an argument that lies so has to be: the strides of one element or none do not count."""
    steps = zip(sizes := _known(shape), _known(strides), strict=True)
    counted = tuple(None if size in (0, 1) else step for size, step in steps)
    return to_torch(dtype), torch.device(device), sizes, counted


def _known(exprs: Iterable[Expr]) -> tuple[int | None, ...]:
    return tuple(int(e) if isinstance(e, Const) else None for e in exprs)
