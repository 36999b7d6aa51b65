"""Which dim a GPU's lanes run along, where an index says it by divisions or by short dims."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton.language")

from traces import data, trace  # noqa: E402


def launches(fn: Any, *specs: Any) -> list[Any]:
    (made,) = trace(fn, *specs, training=False)
    return [x for k in made.stages.kernels if k.triton for x in k.triton.launches]


@pytest.mark.parametrize("side", [360, 361], ids=["even", "ragged"])
def test_parts_of_channels_are_read_along_rows(side: int) -> None:
    def sums(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum((0, 2, 3)) + x.sum((0, 2, 3))

    first, *_ = launches(sums, data(4, 32, side, side), data(4, 32, side, side))
    assert dict(first.configs[0].blocks)["x"] == 1, first.source
    # Parts end where images do: nothing is divided along them.
    assert f"// {side * side}" not in first.source


def test_short_dims_lie_innermost_where_stores_do() -> None:
    (shuffle,) = launches(lambda x: F.pixel_shuffle(x, 2), data(4, 32, 64, 60))
    assert "tl.store(b1 + (xindex)" in shuffle.source
    (last,) = launches(lambda x: x.to(memory_format=torch.channels_last), data(4, 3, 64, 62))
    assert "tl.store(b1 + (xindex)" in last.source


def test_long_rows_that_lie_across_are_read_and_written_in_whole_lines() -> None:
    """Channels last in, planes out: parts go down columns, and the rest is a tile."""

    def normed(x: Tensor) -> Tensor:
        return F.instance_norm(x.permute(0, 3, 1, 2))

    parts, held, tile = launches(normed, data(4, 181, 181, 32))
    assert [dict(x.configs[0].blocks)["x"] for x in (parts, held)] == [64, 8]
    assert set(dict(tile.configs[0].blocks)) == {"y", "x"}
