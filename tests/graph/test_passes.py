"""FX passes: what they change, and what they must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from judge import check
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from litz import dynamo, explain
from litz.graph.aliasing import sharing
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


def shared(fn: Callable[..., Any], *args: torch.Tensor) -> GraphModule:
    """The ATen graph of a function with its writes where they stand, equal calls made one."""
    gm = make_fx(fn, tracing_mode="fake")(*args)
    expected, given = fn(*(a.clone() for a in args)), [a.clone() for a in args]
    share_common_subexpressions(gm)
    gm.graph.lint()
    gm.recompile()
    torch.testing.assert_close(gm(*given), expected)
    return gm


def test_equal_calls_become_one_whatever_else_is_written() -> None:
    def fn(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x @ x
        b[0].add_(1)
        return y + (x @ x).sin()

    assert count(shared(fn, torch.randn(3, 3), torch.randn(3, 3)), aten.mm.default) == 1
    with torch.no_grad():
        check(fn, torch.randn(3, 3), torch.randn(3, 3))
    program = explain(fn, torch.randn(3, 3), torch.randn(3, 3))
    assert len(program.externs) == 1


def test_a_copy_into_an_argument_writes_not_what_it_copies() -> None:
    def fn(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.copy_(x @ x)
        return (x @ x) + 1

    assert count(shared(fn, torch.randn(3, 3), torch.randn(3, 3)), aten.mm.default) == 1
    with torch.no_grad():
        check(fn, torch.randn(3, 3), torch.randn(3, 3))


def test_reads_on_both_sides_of_a_write_are_two() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        x.add_(2)
        return y + (x + 1)

    assert not share_common_subexpressions(trace(fn, torch.ones(3)))
    gm = shared(fn, torch.randn(3))
    assert count(gm, aten.add.Tensor) == 3
    check(fn, torch.randn(5))


def test_reads_of_views_know_of_writes_through_other_views() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.t(), x.view(2, -1)
        before = a.exp() + a.exp()
        b[0].mul_(2)
        after = a.exp()
        x.split(2)[1].add_(1)
        return before, after + a.exp(), a.exp() * 2

    gm = shared(fn, torch.randn(4, 4))
    assert count(gm, aten.exp.default) == 3  # before, between and behind the writes
    with torch.no_grad():
        check(fn, torch.randn(4, 4))


def test_equal_views_are_one_between_writes() -> None:
    def fn(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        before = (b.t() @ x) + (b.t() @ x)
        b.add_(1)
        return before + (b.t() @ x) * (b.t() @ x)

    gm = shared(fn, torch.randn(3, 3), torch.randn(3, 3))
    assert count(gm, aten.t.default) == count(gm, aten.mm.default) == 2
    with torch.no_grad():
        check(fn, torch.randn(3, 3), torch.randn(3, 3))


def test_results_that_are_written_stay_apart() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c = x + 1, x + 1, x + 1
        a.view(-1)[0].mul_(2)
        return a * 3, b * 3, c * 5

    gm = shared(fn, torch.randn(2, 2))
    assert count(gm, aten.add.Tensor) == 2  # the one that is written, and the others
    with torch.no_grad():
        check(fn, torch.randn(2, 2))


def test_returned_results_stay_two_tensors_where_something_is_written() -> None:
    def fn(x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        b.add_(1)
        return x * 2, (x * 2).view(-1), x * 2 + b

    gm = shared(fn, torch.randn(2, 2), torch.randn(2, 2))
    assert count(gm, aten.mul.Tensor) == 2
    with torch.no_grad():
        check(fn, torch.randn(2, 2), torch.randn(2, 2))


def test_random_draws_are_not_shared_where_something_is_written() -> None:
    def fn(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.add_(1)
        return torch.rand_like(x) + torch.rand_like(x)

    gm = make_fx(fn, tracing_mode="fake")(torch.ones(3), torch.ones(3))
    share_common_subexpressions(gm)
    assert count(gm, aten.rand_like.default) == 2


def test_alias_sets_know_what_each_view_operator_returns() -> None:
    """Of every operator of ATen whose results are views, the schema names an argument's memory."""
    packets = (getattr(aten, name) for name in dir(aten) if name[0] != "_")
    overloads = [
        getattr(p, o) for p in packets if isinstance(p, torch._ops.OpOverloadPacket)
        for o in p.overloads()
    ]  # fmt: skip
    # Others (of dictionaries and lists) are there once something has asked for them.
    tensors = [t for t in overloads if any("Tensor" in str(r.type) for r in t._schema.returns)]
    views = [t for t in tensors if any(r.alias_info for r in t._schema.returns)]
    assert len(views) > 500
    assert [t for t in views if not sharing(t).shared] == []


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
    assert run_passes(gm, inference=True, check=True) == ("channels-last convolutions",)
    # One copy, of the input; everything behind it follows.
    assert count(gm, aten.clone.default) == 1
    convs = [n for n in gm.graph.nodes if n.target is aten.convolution.default]
    for n in convs:
        assert n.meta["val"].is_contiguous(memory_format=torch.channels_last)


def test_training_graphs_keep_their_layout() -> None:
    gm = trace(conv_net, *conv_inputs())
    assert run_passes(gm, inference=False, check=True) == ()


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


def test_values_of_matrices_are_those_that_eager_mode_computes_without_vectors() -> None:
    def values(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x + x.mT
        known = torch.linalg.svdvals(x), torch.linalg.eigvals(x), torch.linalg.eigvalsh(h)
        return *known, torch.linalg.cond(x), torch.linalg.matrix_rank(h, hermitian=True)

    x = torch.randn(7, 7)
    torch._dynamo.reset()
    got = torch.compile(values, backend="litz")(x)
    assert all(map(torch.equal, got, values(x)))
