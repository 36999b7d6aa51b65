"""Checkpointed attention: what draws nothing is called as it is, in both passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import litz
from litz.runtime import drawing

Tensor = torch.Tensor


def region(x: Tensor, w: Tensor, dropout: float) -> Tensor:
    q, k, v = (x @ w).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True).sin() + x


def model(x: Tensor, w: Tensor, dropout: float = 0.0) -> Tensor:
    for _ in range(2):
        x = checkpoint(region, x, w, dropout, use_reentrant=False)
    return x.square().sum()


def drops(x: Tensor, w: Tensor) -> Tensor:
    """Draws in a transposed layout, and twice: what is behind the second is drawn after it."""
    y = F.dropout((x @ w).mT, 0.4).mT.chunk(3, -1)[0]
    return F.dropout(y.sin() + x, 0.2).tanh() * torch.rand_like(x)


def dropping(x: Tensor, w: Tensor, dropout: float = 0.0) -> Tensor:
    for _ in range(3):
        x = checkpoint(drops, x, w, use_reentrant=False)
    return x.square().sum()


def gradients(f: Any, dropout: float) -> tuple[Tensor, ...]:
    x, w = inputs()
    torch.manual_seed(5)
    loss = f(x, w, dropout)
    found = loss.detach(), *torch.autograd.grad(loss, (x, w))
    return *found, torch.rand(3)  # and the generator goes on from where it should


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


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_either_pass_may_run_through_aten(
    fails: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    torch.compiler.reset()
    compiled = torch.compile(model, backend="litz", options={"graph_cache": False})
    for a, b in zip(gradients(compiled, dropout), gradients(model, dropout), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("options", [{}, {"host": "python"}, {"verify": True}], ids=str)
@pytest.mark.parametrize("program", [model, dropping])
def test_dropout_draws_in_the_backward_pass_what_it_drew_in_the_forward_pass(
    program: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    """To the bit what eager mode draws; the second time the code is from the cache."""
    expected = gradients(program, 0.3)
    for turn in range(2):
        torch.compiler.reset()
        unseen = {"check_ir": False, "check_calls": False, "cache_dir": str(tmp_path)}
        given = {**unseen, **options}  # what is looked at is not cached
        compiled: Any = torch.compile(program, backend="litz", options=given)
        with litz.metrics() as found:
            mine = gradients(compiled, 0.3)
        assert found.counters["graphs"] == 2 and not found.counters["fallbacks"]
        assert found.counters["cache_hits"] == (0 if "verify" in options or not turn else 2)
        for a, b in zip(mine, expected, strict=True):
            torch.testing.assert_close(a, b)


@torch.library.custom_op(
    "litz_tests::steps_and_noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def steps_and_noise(x: Tensor) -> Tensor:
    """Reads the steps of its argument, as attention on a GPU does of its masks."""
    return torch.rand(x.shape, dtype=x.dtype) + x.stride(-2) + x


@steps_and_noise.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


steps_and_noise.register_autograd(lambda ctx, grad: grad)


def test_what_draws_twice_is_handed_arguments_as_they_lie_in_eager_mode() -> None:
    def region(x: Tensor) -> Tensor:
        return steps_and_noise(F.pad(x.sin(), (0, 3))[..., :-3]).tanh()

    def padded(x: Tensor, w: Tensor, dropout: float) -> Tensor:
        return (checkpoint(region, x * w[0, 0], use_reentrant=False).cos()).sum()

    torch.compiler.reset()
    expected = gradients(padded, 0.0)
    for a, b in zip(gradients(torch.compile(padded, backend="litz"), 0.0), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_states_are_those_of_the_device_that_is_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ``rand((), device="cuda")`` no tensor tells the device."""
    states: list[Tensor] = []
    on_gpu = torch.full((16,), 7, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", on_gpu.clone)
    monkeypatch.setattr(torch.cuda, "set_rng_state", states.append)
    monkeypatch.setattr(drawing, "_results", lambda *given: (given[2]["device"],))
    for device in ("cuda", torch.device("cuda", 0)):
        _, state = drawing.draw_and_save("aten.rand.default", (3,), device=device)
        assert torch.equal(state, on_gpu)
        drawing.draw_again("aten.rand.default", state + 1, (3,), device=device)
        assert torch.equal(torch.stack(states), torch.stack((on_gpu + 1, on_gpu)))
        states.clear()
    x = torch.zeros(3)
    _, state = drawing.draw_and_save("aten.rand_like.default", x, device=torch.device("cpu"))
    assert torch.equal(state, torch.get_rng_state())
