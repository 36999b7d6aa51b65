"""Checkpointed attention: what draws nothing is called as it is, in both passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import litz

Tensor = torch.Tensor


def region(x: Tensor, w: Tensor, dropout: float) -> Tensor:
    q, k, v = (x @ w).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True).sin() + x


def model(x: Tensor, w: Tensor, dropout: float = 0.0) -> Tensor:
    for _ in range(2):
        x = checkpoint(region, x, w, dropout, use_reentrant=False)
    return x.square().sum()


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 10, 8), torch.randn(8, 24)
    return x.double().requires_grad_(), w.double().requires_grad_()


def test_attention_without_dropout_is_compiled_with_what_is_around_it() -> None:
    x, w = inputs()
    torch.compiler.reset()
    compiled: Any = torch.compile(model, backend="litz")
    state = torch.get_rng_state()
    with litz.metrics() as found:
        torch.autograd.backward(compiled(x, w))
    assert found.counters["graphs"] == 2 and not found.counters["fallbacks"]
    assert torch.equal(torch.get_rng_state(), state)
    expected = torch.autograd.grad(model(x, w), (x, w))
    for a, b in zip((x.grad, w.grad), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_either_pass_may_run_through_aten(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state that one hands to the other can be restored."""
    from litz import backend
    from litz.errors import GraphUnsupported

    right = backend._found_or_compiled

    def refused(graph: Any, *args: Any) -> Any:
        names = [n.name for n in graph.graph.find_nodes(op="placeholder")]
        if fails == ("backward" if any("tangents" in n for n in names) else "forward"):
            raise GraphUnsupported("planted")
        return right(graph, *args)

    monkeypatch.setattr(backend, "_found_or_compiled", refused)
    x, w = inputs()
    torch.compiler.reset()
    given = {"graph_cache": False}
    found = torch.autograd.grad(torch.compile(model, backend="litz", options=given)(x, w), (x, w))
    for a, b in zip(found, torch.autograd.grad(model(x, w), (x, w)), strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_draws_in_the_backward_pass_what_it_drew_in_the_forward_pass() -> None:
    x, w = inputs()
    torch.compiler.reset()
    compiled: Any = torch.compile(model, backend="litz")

    def gradients(f: Any) -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        return torch.autograd.grad(f(x, w, 0.3), (x, w))

    for a, b in zip(gradients(compiled), gradients(model), strict=True):
        torch.testing.assert_close(a, b)
