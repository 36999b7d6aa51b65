"""Elements beside each other that a point reads or writes both: one access, interpreted."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from judge import check

pytest.importorskip("triton.language")

import litz  # noqa: E402
from litz.index import const, var  # noqa: E402
from litz.ir.body import Store, load  # noqa: E402
from litz.ir.dtype import F32  # noqa: E402
from litz.kernel.tiling import Tiling  # noqa: E402
from litz.kernel.weave import woven  # noqa: E402

TRITON = {"target": "triton"}
Tensor = torch.Tensor


def turned(x: Tensor, by: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * by[:, None]).flatten(-2)


def nibbles(x: Tensor) -> Tensor:
    return torch.stack((x & 15, x >> 4), -1).flatten(-2)


def in_place(x: Tensor) -> Tensor:
    return x.copy_(torch.stack((x[:, 1::2] + 1, x[:, ::2] * 2), -1).flatten(-2))


def guarded(x: Tensor) -> Tensor:
    """Nothing lies behind the last row: only points that are inside may read there."""
    wide = torch.nn.functional.pad(x, (0, 0, 0, 1))
    return wide[:, ::2] - wide[:, 1::2]


def of_bools(x: Tensor) -> Tensor:
    return torch.stack((x > 0, x < 1), -1)


def steps(x: Tensor) -> Tensor:
    """Neighbours in steps of one: each is the second of one and the first of another."""
    return x[:, :-1] - x[:, 1:]


def stacked(x: Tensor, y: Tensor) -> Tensor:
    """Tiles: contiguous down columns where it is read, in pairs along rows where it is written."""
    return torch.stack((x.t(), y.t()), -1)


def parted(x: Tensor) -> Tensor:
    """The other way round."""
    first, second = x.unbind(-1)
    return torch.stack((first + second, first - second)).transpose(1, 2).contiguous()


def four(x: Tensor) -> Tensor:
    return torch.stack((x, x * 2, x + 1, x - 3), -1)


CASES: tuple[tuple[Callable[..., object], tuple[Tensor, ...], tuple[int, int]], ...] = (
    (turned, (torch.randn(3, 5, 14), torch.randn(3, 7, dtype=torch.complex64)), (2, 1)),
    (nibbles, (torch.randint(0, 256, (9, 31), dtype=torch.uint8),), (0, 1)),
    (in_place, (torch.randn(5, 12),), (1, 1)),
    (guarded, (torch.randn(5, 12),), (0, 0)),
    (of_bools, (torch.randn(5, 12),), (0, 0)),
    (steps, (torch.randn(5, 12),), (0, 0)),
    (stacked, (torch.randn(20, 35), torch.randn(20, 35)), (0, 1)),
    (four, (torch.randn(5, 12),), (0, 2)),
    (parted, (torch.randn(20, 35, 2),), (1, 0)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_neighbours(
    case: tuple[Callable[..., object], tuple[Tensor, ...], tuple[int, int]],
) -> None:
    fn, args, (loads, stores) = case
    check(fn, *args, runs=1, judge=False, **TRITON)
    given = [a.clone() for a in args]
    sources = [
        k.source for g in litz.explain(fn, *given, options=TRITON).graphs for k in g.stages.kernels
    ]
    text = "".join(sources)
    assert (text.count("load_pair"), text.count("store_pair")) == (loads, stores)


def stack_of(*xs: Tensor) -> Tensor:
    return torch.stack([x.t() * (1 + k) for k, x in enumerate(xs)], -1)


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 3, 2, 1).contiguous()


SQUARE = torch.randn(20, 35)
TILES: tuple[tuple[Callable[..., object], tuple[Tensor, ...]], ...] = (
    (stack_of, (SQUARE, SQUARE + 1)),
    (stack_of, (SQUARE, SQUARE + 1, SQUARE + 2)),
    (channels_last, (torch.randn(2, 3, 20, 35),)),
    (lambda x: channels_last(x).float() / 9, (torch.arange(2244).reshape(1, 4, 33, 17).byte(),)),
)


@pytest.mark.parametrize("case", TILES, ids=lambda c: f"{len(c[1])}-{c[0].__name__}")
def test_tiles_are_stored_in_rows(
    case: tuple[Callable[..., object], tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: results side by side are one, short loops fill the gaps of what is stored."""
    monkeypatch.setattr("litz.kernel.build.in_blocks", lambda device: True)
    fn, args = case
    check(fn, *args, runs=1, judge=False, **TRITON)
    (graph,) = litz.explain(fn, *args, options=TRITON).graphs
    (kernel,) = graph.stages.kernels
    (store,) = kernel.plan.stores
    assert kernel.plan.tile is not None
    assert (
        kernel.source.count("tl.store") == 1 and f"store({store.buffer} + (xindex" in kernel.source
    )


@pytest.mark.parametrize(("count", "stores"), [(2, ["store_pair"]), (3, ["store"]), (4, ["store"])])
def test_more_than_a_pair(count: int, stores: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One store goes through three results and more, of which each point makes one."""
    monkeypatch.setattr("litz.kernel.build.in_blocks", lambda device: True)
    xs = [torch.randn(9, 20) + n for n in range(count)]
    fn = lambda *xs: torch.stack([x + k for k, x in enumerate(xs)], -1)  # noqa: E731
    check(fn, *xs, runs=1, judge=False, **TRITON)
    (graph,) = litz.explain(fn, *xs, options=TRITON).graphs
    (kernel,) = graph.stages.kernels
    assert re.findall(r"\b(store\w*)\(", kernel.source) == stores


@pytest.mark.parametrize("read", ["a", "b"])
def test_what_a_neighbour_reads_is_not_written_by_another(read: str) -> None:
    x = var("x0", const(64))
    places = [x * 3 + k for k in range(3)]
    turned = [load(F32, read, places[k - 1]) for k in range(3)]
    stores = tuple(Store("b", at, n) for at, n in zip(places, turned, strict=True))
    _, found = woven(Tiling(x, None, (x,)), stores)
    assert len(found) == (1 if read == "a" else 3)
