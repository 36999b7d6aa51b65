"""Kernels whose size whole accesses do not divide: blocks that lie inside run without masks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from judge import check

pytest.importorskip("triton.language")

from traces import data, trace  # noqa: E402

from litz.kernel.blocks import choose  # noqa: E402
from litz.targets.triton.source import TritonKernel  # noqa: E402

TRITON = {"target": "triton"}


def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.gelu(x) * y[0, 0], x.sin().half()


def kernels(*shape: int) -> list[TritonKernel]:
    """Those of large tensors take the interpreter seconds, and are only looked at."""
    (made,) = trace(fn, data(*shape), data(*shape), training=False)
    return [k.triton for k in made.stages.kernels if k.triton is not None]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0]))


@pytest.mark.parametrize("shape", [(33, 35), (1, 1), (7, 1023), (40, 1024)])
def test_results(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "BLOCKS", 1)
    check(fn, numbers(*shape), numbers(*shape), runs=1, **TRITON)


def test_when_lines_are_there_twice() -> None:
    """Many blocks, a size that is not whole in accesses."""
    for shape, twice in (((1023, 1025), True), ((1024, 1024), False), ((33, 35), False)):
        (made,) = kernels(*shape)
        assert ("else:" in made.launches[0].source) is twice
