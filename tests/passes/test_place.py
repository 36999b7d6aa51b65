"""Products that write straight into concatenations and pads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

Tensor = torch.Tensor
torch.manual_seed(0)
X, A, B = torch.randn(64, 32), torch.randn(32, 32), torch.randn(32, 32)


def batches(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(4, -1, 32), a.expand(4, 32, 32)


def two(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([x @ a, x @ b], 1)


def rows(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([torch.addmm(a[0], x, b), x.relu(), x[:1] @ a])


def side(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.pad(x @ a, (0, 8), value=2.0)


def above(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.pad(x @ a, (0, 0, 1, 0))


def column(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.pad(x @ a[:, :1], (0, 3))


def batched(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    y, c = batches(x, a)
    return torch.cat([y @ c, torch.baddbmm(y, y, c)], 2)


def batched_rows(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    y, c = batches(x, a)
    return torch.cat([y, y @ c], 1)


def around(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.pad(x @ a, (4, 8, 1, 2), value=-1.0)


def images(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    y, c = batches(x, a)
    return F.pad(y @ c, (0, 0, 1, 1))


def narrow(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.pad(x @ a, (-1, 1, 2, 2))


def between(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([x @ a, x @ b], 2)


def turned(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([(x @ a).flip(1), (x @ b).flip(0)], 1)


def read(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.pad(x @ a, (0, 1))
    return y.relu() + 1, y.exp()


def kept(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ a
    return torch.cat([y, x]), y


# How many products write into a part; one of a column is a reduction on GPUs.
PLACED: dict[Callable[..., Any], int] = {
    two: 2, rows: 2, side: 1, above: 1, column: 1, batched: 2, batched_rows: 1,
    around: 1, images: 1, narrow: 0, between: 0, turned: 0, read: 0, kept: 0,
}  # fmt: skip


@pytest.mark.parametrize("fn", PLACED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", ["", "triton"])
def test_products_fill_parts(fn: Callable[..., Any], target: str, capsys: Any) -> None:
    torch._dynamo.reset()
    options = {"target": target, "check_ir": True, "verify": True, "show": "program"}
    found = torch.compile(fn, backend="litz", options=options)(X, A, B)
    torch.testing.assert_close(found, fn(X, A, B))
    assert capsys.readouterr().err.count("out=") == PLACED[fn] - (
        fn is column and target == "triton"
    )


@pytest.mark.parametrize("fn", [two, rows, above, batched])
def test_parts_of_open_sizes(fn: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", dynamic=True, options={"verify": True})
    torch.testing.assert_close(compiled(X, A, B), fn(X, A, B))
    x = torch.cat([X, X])
    torch.testing.assert_close(compiled(x, A, B), fn(x, A, B))


def test_gradients_through_parts() -> None:
    torch._dynamo.reset()
    given = [t.clone().requires_grad_() for t in (X, A, B)]
    compiled = torch.compile(two, backend="litz")
    torch.testing.assert_close(
        torch.autograd.grad(compiled(*given).square().sum(), given),
        torch.autograd.grad(two(*given).square().sum(), given),
    )
