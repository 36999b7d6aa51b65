"""Programs of independent kernels: their inputs, and the launches of Triton that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
BF16 = torch.bfloat16


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=g).to(dtype)


def many(fn: Callable[[Tensor], Tensor]) -> Callable[..., list[Tensor]]:
    return lambda *xs: [fn(x) for x in xs]


def in_place(a: Tensor, b: Tensor, s: Tensor, t: Tensor) -> None:
    """What writes one tensor stands between what reads the others."""
    s.add_(1)
    a.mul_(s)
    t.add_(1)
    b.mul_(t)


def one_after_another(a: Tensor, b: Tensor) -> None:
    a.add_(b)
    b.mul_(a.flip(0))
    a.sub_(b.flip(0))


def parts_of_one(*xs: Tensor) -> tuple[Tensor, Tensor]:
    """Each writes its part; what reads all of them runs behind them."""
    joined = torch.cat([x.exp() for x in xs], 1)
    return joined, torch.softmax(joined, 1)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    # Whole blocks, ends, single elements and two types.
    "sizes": (
        many(lambda x: torch.sigmoid(x) * 2),
        (
            rand(5),
            rand(1000),
            rand(17, 3),
            rand(2049, dtype=BF16),
            rand(7, dtype=BF16),
            rand(1),
            rand(4096),
        ),
        1,
    ),  # fmt: skip
    "rows_alike": (
        many(lambda x: F.layer_norm(x, (64,))),
        (rand(5, 64), rand(33, 64), rand(1, 64), rand(2, 3, 64)),
        1,
    ),
    "rows_of_two_widths": (
        many(lambda x: torch.softmax(x, -1)),
        (rand(5, 64), rand(33, 65), rand(4, 64), rand(8, 65)),
        1,
    ),
    "columns": (many(lambda x: x.sum(0)), (rand(50, 30), rand(50, 40), rand(20, 30)), 2),
    "transposed": (many(lambda x: x.t() * 2), (rand(50, 30), rand(50, 31), rand(20, 30)), 1),
    "in_place": (in_place, (rand(50), rand(70), rand(1)[0], rand(1)[0]), 2),
    "one_after_another": (one_after_another, (rand(50), rand(50)), 3),
    "gathered": (
        lambda x, y, i, j: (x[i], y[j]),
        (rand(50), rand(60), torch.arange(7) * 5, torch.arange(9) * 6),
        1,
    ),
    "of_nothing": (many(lambda x: x + 1), (rand(0), rand(3), rand(0, 4), rand(5)), 3),
    "truth": (many(lambda x: (x > 0) & (x < 1)), (rand(5), rand(3), rand(9)), 1),
    "parts_of_one": (parts_of_one, (rand(5, 3), rand(5, 40), rand(5, 1), rand(5, 3)), 2),
    # Few long rows are in parts: the parts of all calls are one launch, and what adds them up.
    "long_rows": (
        many(lambda x: x.norm()),
        (rand(130, 128), rand(130, 128), rand(97, 200), rand(20, 30), rand(2, 3, 30)),
        1,
    ),
    "norms_side_by_side": (
        lambda *xs: torch.stack([x.norm() for x in xs]),
        (rand(130, 128), rand(97, 200), rand(9000), rand(7), rand(20, 30)),
        1,
    ),
    "tall_columns": (
        many(lambda x: x.square().mean(0)),
        (rand(1030, 30), rand(1030, 40), rand(1030, 30, dtype=BF16), rand(1030, 9)),
        2,
    ),
    "scans": (many(lambda x: torch.cumsum(x, 0)), (rand(50), rand(30), rand(20)), 1),
}
