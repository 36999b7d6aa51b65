"""Blocks over parts of several rows, where rows and columns share most of what is computed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from judge import check
from traces import data, trace

pytest.importorskip("triton.language")

import litz  # noqa: E402
from litz.index import const  # noqa: E402
from litz.kernel.blocks.axes import row_block  # noqa: E402

TRITON = {"target": "triton"}


def doubled(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, scale_factor=2, mode="bicubic")


def windowed(x: torch.Tensor) -> torch.Tensor:
    """122 columns, which no block divides, of a padded image."""
    wide = F.pad(x, (2, 3, 1, 1), mode="replicate")
    rows, columns = (torch.arange(n) * 0.1 for n in wide.shape[-2:])
    return wide * columns.sin() + rows.cos()[:, None]


def test_rows_and_columns_compute_once_each() -> None:
    x = torch.randn(2, 3, 5, 130)[..., 3:120]
    check(windowed, x, runs=1, **TRITON)
    (graph,) = litz.explain(windowed, x, options=TRITON).graphs
    (kernel,) = graph.stages.kernels
    assert "yindex" in kernel.source
    # The pointer to a row, then the place in it.
    assert ")) + (tl.m" in kernel.source


def test_a_gpu_needs_no_tables_of_weights() -> None:
    (made,) = trace(doubled, data(2, 3, 16, 64), training=False)
    assert len(made.stages.kernels) == 1


@pytest.mark.parametrize(("size", "block"), [(128, 128), (122, 128), (181, 64), (66, 0), (20, 0)])
def test_blocks_along_rows_leave_little_to_masks(size: int, block: int) -> None:
    assert row_block(const(size)) == block
