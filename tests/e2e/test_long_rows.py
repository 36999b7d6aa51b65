"""Several reductions of rows that are too long for the cache, in one kernel."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from judge import error

from tests.quick import some

# What a kernel may compute of the same rows; each is judged alone.
PARTS = {
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: x.mean(d),
    "squares": lambda x, d: (x * x).sum(d),
    "var": lambda x, d: x.var(d),
    "var of twice": lambda x, d: (x * 2).var(d, unbiased=False),
    "centred": lambda x, d: x - x.mean(d, keepdim=True),
    "scaled": lambda x, d: (x - x.mean(d, keepdim=True)) / x.std(d, keepdim=True),
    "shifted": lambda x, d: (x - x.amax(d, keepdim=True)).exp(),
}
SETS = (
    ("shifted", "mean", "var"),
    ("centred", "var"),
    ("scaled", "mean", "var"),
    ("shifted", "sum", "squares", "var", "var of twice"),
    ("var", "centred", "sum"),
)
SHAPES = (((70_000,), (0,)), ((20, 70_000), (1,)), ((3, 200, 400), (1, 2)), ((300, 400, 3), (0, 1)))


@pytest.mark.parametrize("case", some(product(SHAPES, (False, True)), 5))
def test_moments_beside_sums(case: tuple[tuple[tuple[int, ...], tuple[int, ...]], bool]) -> None:
    """Moments are taken chunk by chunk: a chunk's sum is not the row's, which looks the same."""
    (shape, dims), dynamic = case

    def fn(*xs: torch.Tensor) -> list[torch.Tensor]:
        # Each set reads rows of its own, and is kernels of its own.
        return [PARTS[k](x, dims) for names, x in zip(SETS, xs, strict=True) for k in names]

    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(shape) + 0.5
    found = torch.compile(fn, backend="litz", dynamic=dynamic)(*(x.clone() for _ in SETS))
    tried = [(names, k) for names in SETS for k in names]
    exact = {k: PARTS[k](x.double(), dims) for k in PARTS}
    for (names, k), actual in zip(tried, found, strict=True):
        assert error(actual, exact[k]) < 2e-6, (names, k)
