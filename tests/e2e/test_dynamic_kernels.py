"""Kernels of symbolic sizes do what those of known sizes do: rows kept, masks by ranges, groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from judge import assert_close

from litz.backend import compile_with
from litz.compiler import Stages
from litz.options import make_options


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def sources(fn: Callable[..., Any], *calls: Sequence[Any]) -> str:
    """The kernels of the one graph that serves all calls, each as near to float64 as eager."""
    seen: list[Stages] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def observe(kind: str, graph: Any, stages: Stages) -> None:
            seen.append(stages)

        return compile_with(gm, inputs, make_options({"check_ir": True}), observe)

    compiled = torch.compile(fn, backend=backend, dynamic=True, fullgraph=True)
    for args in calls:
        wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
        assert_close(compiled(*args), fn(*args), fn(*wide))
    assert len(seen) == 1
    return "\n".join(k.source for k in seen[0].kernels)


def test_rows_of_any_length_are_kept() -> None:
    """A row may be shorter than a vector, or far longer than the one that was compiled for."""
    rows = [(3, 64), (2, 5), (4, 17), (2, 70_001), (5, 2)]
    text = sources(lambda x: torch.softmax(x * 3, -1), *((torch.randn(s),) for s in rows))
    # Of the one loop that computes them: two unrolled, whole vectors, and what is left of a row.
    assert "litz::Scratch" in text and text.count("litz::exp(") <= 4


def test_rows_of_two_dims_are_kept() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        return y - y.mean((1, 3), keepdim=True)

    shapes = [(2, 3, 4, 35), (3, 7, 2, 16), (2, 2, 2, 3)]
    assert "litz::Scratch" in sources(fn, *((torch.randn(s),) for s in shapes))


def test_long_rows_are_summed_in_parts() -> None:
    """Parts of a row are added up in float64, one value a part."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).sum(-1)

    assert "double" in sources(fn, *((torch.rand(3, n),) for n in (100, 3, 8192, 50_003)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_halves_turn_at_any_width(dtype: torch.dtype) -> None:
    """Where a half begins is known at run time only: it may cut a vector anywhere."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * y + torch.cat((-b, a), -1) * y

    shapes = [(2, 3, n) for n in (64, 4, 6, 30, 34, 130)]
    calls = [tuple(torch.randn(s).to(dtype) for _ in range(2)) for s in shapes]
    text = sources(fn, *calls)
    assert "litz::first_n<" in text and "litz::lt(" not in text
    if dtype is torch.bfloat16:
        assert "litz::hany(" in text  # vectors of the other half skip the region


def test_many_pieces_in_one_kernel() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat((x.exp(), y * 3 + 1, x.sin() * 2, y), 1) + 1

    sizes = [(33, 5), (16, 48), (2, 3), (100, 7)]
    calls = [(torch.randn(3, a), torch.randn(3, b)) for a, b in sizes]
    assert "litz::hany(" in sources(fn, *calls)


def test_a_triangle_of_unknown_size() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.tril(-1) + 1, torch.triu(x, 2) * 2, x.exp().tril(3)

    sources(fn, *((torch.randn(s),) for s in [(2, 40, 50), (3, 5, 33), (2, 70, 3)]))


def test_group_norm_with_channels_last() -> None:
    """A few channels to a group, or more than a vector has lanes."""

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(F.group_norm(x, 4, w, b))

    calls = []
    for n, c, h in ((2, 8, 6), (3, 12, 5), (2, 4 * 40, 7), (5, 20, 9)):
        x = torch.randn(n, c, h, h + 1).to(memory_format=torch.channels_last)
        calls.append((x, torch.randn(c), torch.randn(c)))
    text = sources(fn, *calls)
    assert "x1g" in text  # the channels of all groups are one dim
