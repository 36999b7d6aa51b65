"""Tensors without memory: PyTorch's zero tensors, which autograd makes of gradients that vanish."""

from __future__ import annotations

import pytest
import torch

Tensor = torch.Tensor


def fn(x: Tensor) -> Tensor:
    return (x * 2).cos()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_as_arguments(dtype: torch.dtype, dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", dynamic=dynamic)
    for n in (5, 64, 0):
        zero = torch._efficientzerotensor((n, 24), dtype=dtype)
        assert torch.equal(compiled(zero), torch.ones(n, 24, dtype=dtype))


def test_as_gradients() -> None:
    """The loss depends on the graph's result by a function whose slope is 0."""
    x = torch.randn(8, 8, requires_grad=True)
    torch.compile(fn, backend="litz")(x).sgn().sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_inside_a_graph() -> None:
    def inside(x: Tensor) -> Tensor:
        return x.sum(1, dtype=torch.float64).sgn().expand(3, 8)

    x = torch.randn(8, 8, requires_grad=True)
    torch.compile(inside, backend="litz", fullgraph=True)(x).sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_before_a_product() -> None:
    """ATen's libraries get what has memory by then."""
    w = torch.randn(24, 4)
    compiled = torch.compile(lambda x, w: (x @ w, fn(x) @ w), backend="litz", fullgraph=True)
    none, some = compiled(torch._efficientzerotensor((3, 24)), w)
    assert torch.equal(none, torch.zeros(3, 4))
    torch.testing.assert_close(some, torch.ones(3, 24) @ w)


def test_memory_that_was_given_back() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz")
    x = torch.randn(6)
    compiled(x)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="has been freed"):
        compiled(x)
