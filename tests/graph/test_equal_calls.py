"""Equal calls of a joint graph: made one as PyTorch's partitioner does it, without its compiler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch._higher_order_ops.flex_attention import flex_attention as flex
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.nn.attention.flex_attention import create_block_mask

from litz.graph.equal_calls import share_equal_calls

aten = torch.ops.aten
X = torch.randn(4, 4)


def traced(fn: object) -> GraphModule:
    made: GraphModule = make_fx(fn, tracing_mode="fake")(X)  # type: ignore[arg-type]
    return made


def text(graph: Graph) -> list[tuple[str, str, str]]:
    number = {n: i for i, n in enumerate(graph.nodes)}
    return [(n.name, str(n.target), repr(map_arg(n.args, number.__getitem__))) for n in graph.nodes]


def equal(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = (x.sin() + 1).exp().chunk(2), (x.sin() + 1).exp().chunk(2)
    return a[0] * b[1], torch.full((3,), 1.0).sum(), torch.full((3,), 1).sum()


def returned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = x + 1, x + 1
    return y.t(), z, (x + 2).sum() + (x + 2).mean()


def random(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x) - torch.rand_like(x) + torch.empty(4).sum() + torch.empty(4).sum()


@pytest.mark.parametrize("fn", [equal, returned, random])
def test_as_the_partitioner_does_it(fn: object) -> None:
    from torch._functorch.compile_utils import fx_graph_cse

    gm = traced(fn)
    expected = fx_graph_cse(traced(fn).graph)
    assert share_equal_calls(gm.graph)
    assert text(gm.graph) == text(expected)


def test_zeros_of_either_sign_stay_apart() -> None:
    gm = traced(lambda x: x * 0.0 + x * -0.0)
    before = text(gm.graph)
    assert share_equal_calls(gm.graph) and text(gm.graph) == before


def test_what_has_effects_is_left_to_the_partitioner() -> None:
    gm = traced(lambda x: aten.add_.Tensor(x.sin() + x.sin(), 1))
    before = text(gm.graph)
    assert not share_equal_calls(gm.graph) and text(gm.graph) == before


def test_a_training_step_finds_its_backend_and_leaves_the_other_compiler_alone() -> None:
    """Litz needs no import; the other and equal regions take longer to import than a small step to
    compile."""
    program = """
import sys, torch
assert not any(m.startswith("litz") for m in sys.modules)
step = torch.compile(lambda x: (x.sin() * 2).sum(), backend="litz", options={"on_error": "raise"})
known = torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
before = set(sys.modules)
x = torch.ones(3, 4, requires_grad=True)
loss = step(x)
loss.backward()
torch.testing.assert_close(loss, (x.sin() * 2).sum())
torch.testing.assert_close(x.grad, x.cos() * 2)
idle = "torch._inductor", "torch.ao", "litz.regions.place"
print(*(m for m in set(sys.modules) - before if m.startswith(idle)))
"""
    run = [sys.executable, "-c", program]
    found = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert all("fx_passes" in name for name in found), found


def test_what_has_graphs_of_its_own_stays_apart() -> None:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 4, 4, "cpu").as_tuple()
    tables = [t for t in mask if isinstance(t, torch.Tensor)]

    def attend(x: torch.Tensor, own: Iterator[torch.Tensor]) -> torch.Tensor:
        given = tuple(next(own) if isinstance(t, torch.Tensor) else t for t in mask)
        keep = lambda s, b, h, i, j: s  # noqa: E731
        out: torch.Tensor = flex(*(x[None, None],) * 3, keep, given, 1.0, {"BACKEND": "AUTO"})[0]
        return out

    def twice(x: torch.Tensor, *own: torch.Tensor) -> torch.Tensor:
        return attend(x, iter(own)) + attend(x, iter(own)) * (x.sin() - x.sin())

    gm = make_fx(twice, tracing_mode="fake")(X, *tables)
    assert share_equal_calls(gm.graph)
    targets = [str(n.target) for n in gm.graph.nodes]
    assert targets.count("flex_attention") == 2 and targets.count("aten.sin.default") == 1
