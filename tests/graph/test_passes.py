"""FX passes: what they change, and what they must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from judge import check
from torch.fx import GraphModule

from litz import dynamo
from litz.graph.passes import (
    drop_dead_code,
    run_passes,
    share_common_subexpressions,
)

aten = torch.ops.aten


def trace(fn: Callable[..., Any], *args: torch.Tensor) -> GraphModule:
    """The functional ATen graph of an inference call."""
    found: list[GraphModule] = []

    def compiler(graph: GraphModule, _: Any) -> Any:
        found.append(graph)
        return dynamo.boxed(dynamo.interpreted(graph))

    def backend(gm: GraphModule, inputs: Any) -> Any:
        return dynamo.compile_through_aot(
            gm, inputs, forward=compiler, backward=compiler, inference=compiler
        )

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=backend)(*args)
    return found[0]


def text(gm: GraphModule) -> str:
    """One line a call: ``name = op(inputs)``."""
    lines = []
    for n in gm.graph.nodes:
        if n.op == "call_function":
            name = getattr(n.target, "__name__", str(n.target))
            lines.append(f"{n.name} = {name}({', '.join(a.name for a in n.all_input_nodes)})")
    return "\n".join(lines)


def count(gm: GraphModule, target: object) -> int:
    return sum(n.target is target for n in gm.graph.nodes)


def test_equal_calls_become_one() -> None:
    gm = trace(lambda x, w: (x @ w).relu() + (x @ w).relu() * 2, torch.ones(4, 4), torch.ones(4, 4))
    assert count(gm, aten.mm.default) == 2
    assert share_common_subexpressions(gm)
    assert text(gm) == (
        "mm = mm.default(arg0_1, arg1_1)\n"
        "relu = relu.default(mm)\n"
        "mul = mul.Tensor(relu)\n"
        "add = add.Tensor(relu, mul)"
    )


def test_unlike_numbers_are_unlike_calls() -> None:
    gm = trace(lambda x: (x + 1, x + 1.0, x * 0.0, x * -0.0), torch.ones(3))
    share_common_subexpressions(gm)
    assert count(gm, aten.add.Tensor) == 2 and count(gm, aten.mul.Tensor) == 2


def test_returned_results_stay_two_tensors() -> None:
    gm = trace(lambda x: (x + 1, x + 1), torch.ones(3))
    share_common_subexpressions(gm)
    assert count(gm, aten.add.Tensor) == 2


def test_random_draws_are_not_shared() -> None:
    gm = trace(lambda x: torch.rand_like(x) + torch.rand_like(x), torch.ones(3))
    share_common_subexpressions(gm)
    assert count(gm, aten.rand_like.default) == 2


def test_graphs_that_write_are_left_alone() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        x.add_(2)
        return y + (x + 1)

    gm = trace(fn, torch.ones(3))
    assert not share_common_subexpressions(gm)
    check(fn, torch.randn(5))


def test_dead_calls_go() -> None:
    gm = trace(lambda x: x + 1, torch.ones(3))
    with gm.graph.inserting_before(next(n for n in gm.graph.nodes if n.op == "output")):
        first = next(iter(gm.graph.nodes))
        gm.graph.call_function(aten.mul.Tensor, (first, 3))
    assert drop_dead_code(gm)
    assert count(gm, aten.mul.Tensor) == 0


def conv_net(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.conv2d(x, w, padding=1).relu()
    return torch.nn.functional.conv2d(y, v).relu()


def conv_inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 8, 9, 9), torch.randn(16, 8, 3, 3), torch.randn(8, 16, 1, 1)


def test_convolutions_run_in_channels_last() -> None:
    gm = trace(conv_net, *conv_inputs())
    assert run_passes(gm, inference=True) == ("channels-last convolutions",)
    # One copy, of the input; everything behind it follows.
    assert count(gm, aten.clone.default) == 1
    convs = [n for n in gm.graph.nodes if n.target is aten.convolution.default]
    for n in convs:
        assert n.meta["val"].is_contiguous(memory_format=torch.channels_last)


def test_training_graphs_keep_their_layout() -> None:
    gm = trace(conv_net, *conv_inputs())
    assert run_passes(gm, inference=False) == ()


@pytest.mark.parametrize(
    "after",
    [
        lambda y: y,  # returned with eager's strides
        lambda y: y.view(2, -1) + 1,  # a view that channels-last forbids
        lambda y: y.permute(0, 2, 3, 1).contiguous(),
        lambda y: (y.mean((2, 3)), y.amax(1)),
        lambda y: torch.as_strided(y * 2, (4,), (3,)),  # reads strides: left alone
    ],
)
def test_results_are_eagers_whatever_the_layout(after: Callable[[torch.Tensor], Any]) -> None:
    with torch.no_grad():
        check(lambda x, w, v: after(conv_net(x, w, v)), *conv_inputs())
