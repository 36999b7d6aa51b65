"""Blocks of kernels for a GPU, at the sizes where they matter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from traces import Spec, data, trace

Tensor = torch.Tensor


def interleaved(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack((x.t(), y.t()), -1)


def short_columns(x: Tensor) -> Tensor:
    return x.mean(1)


def spread(x: Tensor) -> Tensor:
    return x.expand(2048, 2048) * 2


def bias(x: Tensor, b: Tensor) -> Tensor:
    return x + b


def across(x: Tensor, y: Tensor) -> Tensor:
    return (x.t() + y).softmax(-1)


def softmax_down(x: Tensor) -> Tensor:
    return x.softmax(0)


def scanned(x: Tensor) -> Tensor:
    return x.cumsum(0)


def many_columns(x: Tensor) -> Tensor:
    return x.sum(0)


def channels(x: Tensor, s: Tensor) -> Tensor:
    """Rows are less than there are parts of all of them."""
    return (x * s[:, None, None]).square().sum((0, 2, 3))


def gammas(x: Tensor) -> Tensor:
    """So much arithmetic that registers decide."""
    return torch.mvlgamma(x, 5)


def turned_gammas(x: Tensor) -> Tensor:
    """A tile of as few elements a thread."""
    return torch.mvlgamma(x.t(), 5)


def few(x: Tensor) -> Tensor:
    return x.lgamma() * 2


def windows(x: Tensor) -> Tensor:
    """Most loads lie two elements apart from the neighbour's: a thread has one point."""
    return torch.nn.functional.max_pool2d(x, 3, 2, 1)


def sampled(x: Tensor, grid: Tensor, mode: str = "bilinear") -> Tensor:
    """A thread has registers for the addresses of all elements that its points read."""
    return torch.nn.functional.grid_sample(x, grid, mode, align_corners=False)


IMAGES = data(8, 64, 256, 256), data(8, 256, 256, 2)

CASES: dict[str, tuple[Callable[..., Tensor], tuple[Spec, ...], dict[str, int], int]] = {
    "interleaved": (interleaved, (data(2048, 2048), data(2048, 2048)), {"y": 64, "x": 64}, 8),
    "short_columns": (short_columns, (data(1024, 4, 4096),), {"x": 256, "r": 4}, 2),
    "spread": (spread, (data(2048),), {"y": 4, "x": 512}, 4),
    "differ": (torch.ne, (data(1024, 1024), data(1024, 1024)), {"x": 1024}, 4),
    "bias": (bias, (data(2048, 2048), data(2048)), {"x": 1024}, 8),
    "channels": (channels, (data(4, 32, 181, 181), data(32)), {"x": 1, "r": 8192}, 16),
    "gammas": (gammas, (data(1 << 22),), {"x": 256}, 4),
    "turned_gammas": (turned_gammas, (data(1024, 1024),), {"y": 32, "x": 32}, 16),
    "few": (few, (data(1),), {"x": 1}, 1),
    # As many threads as the machine holds, and of what few elements take no thought.
    "asinh": (torch.asinh, (data(1 << 20),), {"x": 512}, 4),
    "bessel_j0": (torch.special.bessel_j0, (data(1 << 22),), {"x": 1024}, 4),
    "digamma": (torch.digamma, (data(1 << 22, dtype=torch.bfloat16),), {"x": 512}, 4),
    "tanh": (torch.tanh, (data(1 << 22, dtype=torch.bfloat16),), {"x": 1024}, 4),
    "across": (across, (data(2048, 2048), data(2048, 2048)), {"x": 8, "r": 2048}, 16),
    "stored_across": (softmax_down, (Spec((2048, 2048), form=(1, 2048)),), {"x": 8, "r": 2048}, 16),
    "columns": (softmax_down, (data(2048, 2048),), {"x": 16, "r": 2048}, 32),
    "scanned": (scanned, (data(1024, 1024, dtype=torch.bfloat16),), {"x": 16, "r": 1024}, 16),
    "few_columns": (softmax_down, (data(256, 200),), {"x": 8, "r": 256}, 2),
    "long_columns": (softmax_down, (data(4096, 2048),), {"x": 64, "r": 32}, 8),
    "many_columns": (many_columns, (data(512, 1 << 16),), {"x": 64, "r": 32}, 8),
    "windows": (windows, (data(4, 32, 362, 362),), {"x": 128}, 4),
    "sampled": (sampled, IMAGES, {"x": 128}, 4),
    "cubic": (partial(sampled, mode="bicubic"), IMAGES, {"x": 128}, 4),
}


@pytest.mark.parametrize("name", CASES)
def test_default_blocks(name: str) -> None:
    fn, specs, blocks, warps = CASES[name]
    (made,) = trace(fn, *specs)
    (kernel,) = made.stages.kernels
    assert kernel.triton is not None
    first = kernel.triton.launches[0].configs[0]
    assert (dict(first.blocks), first.warps) == (blocks, warps)


def grouped(x: Tensor) -> Tensor:
    return torch.nn.functional.group_norm(x, 32)


def moments(x: Tensor) -> tuple[Tensor, ...]:
    return torch.var_mean(x, 0)


LAST = torch.channels_last
PARTS: dict[str, tuple[Callable[..., object], Spec, list[tuple[dict[str, int], int]]]] = {
    # Two warps hold a part, in lines of memory; who combines parts has a row's beside each other.
    "grouped": (
        grouped,
        Spec((16, 320, 64, 64), torch.bfloat16, form=LAST),
        [({"x": 32, "r": 128}, 2), ({"x": 1, "r": 512}, 1)],
    ),
    "grouped_wide": (
        grouped,
        Spec((1, 128, 512, 512), form=LAST),
        [({"x": 16, "r": 256}, 2), ({"x": 1, "r": 4096}, 8)],
    ),
    "moments": (moments, data(65536, 512), [({"x": 64, "r": 16}, 2), ({"x": 8, "r": 256}, 2)]),
}


@pytest.mark.parametrize("name", PARTS)
def test_blocks_of_parts(name: str) -> None:
    fn, spec, blocks = PARTS[name]
    (made,) = trace(fn, spec, training=False)
    (kernel,) = made.stages.kernels
    assert kernel.triton is not None
    first = [launch.configs[0] for launch in kernel.triton.launches[:2]]
    assert [(dict(c.blocks), c.warps) for c in first] == blocks


def test_positions_of_samples_are_computed_once() -> None:
    """Masks of the elements are no masks of what these come from."""
    (made,) = trace(sampled, *IMAGES)
    (job,) = made.jobs
    assert job.source.count("load_pair(") == 1
    assert job.source.count("tl.load(") == 4
    assert job.source.count("tl.floor(") == 2


def test_stores_with_gaps_are_filled() -> None:
    """Rows of pixels are interleaved: blocks follow what is stored."""
    (made,) = trace(lambda x: torch.nn.functional.pixel_shuffle(x, 2), data(4, 28, 90, 90))
    (kernel,) = made.stages.kernels
    assert "tl.store(b1 + (xindex)" in kernel.source
