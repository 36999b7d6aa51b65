"""Equal layers without gradients: what is made of a few of them is what is made of all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

from litz import backend as litz_backend
from litz import dynamo
from litz.cache.key import graph_key
from litz.compiler import compile_graph
from litz.graph.short import SHORT, called
from litz.options import make_options
from litz.regions import few
from litz.stages import Stages
from tests.quick import some
from tests.regions.test_regions import Block, Gated, X, check, encoder, stack
from tests.regions.test_regions import run as run_program
from tests.repeats.test_repeats import text

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: encoder(0.5, 9).train(),
    "layers": lambda: stack(*(Block() for _ in range(9))),
    "gated": lambda: stack(*(Gated() for _ in range(10))),
    "two kinds": lambda: stack(*(Block(then=f) for _ in range(9) for f in (torch.tanh, torch.exp))),
    "two stacks": lambda: stack(
        *(Block() for _ in range(9)), nn.Linear(16, 24), *(Block(24) for _ in range(8))
    ),
}


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """The graphs that the compiler would be given; ATen runs them."""
    found: list[GraphModule] = []

    def run(graph: GraphModule, *_: Any) -> Any:
        found.append(graph)
        return dynamo.interpreted(copy.deepcopy(graph) if SHORT in graph.meta else graph)

    monkeypatch.setattr(litz_backend, "_found_or_compiled", run)
    return found


@pytest.mark.parametrize("kind", some(list(LAYERS), 3))
def test_code(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host program is that of the whole graph; without it, where few layers stand for all."""
    said: list[str] = []

    def compiled(graph: GraphModule, **options: bool) -> Stages:
        compile_graph(graph, make_options(options), s := Stages(), inference=True, guarded=True)
        return s

    def run(graph: GraphModule, *_: Any) -> Any:
        if SHORT in graph.meta:  # not where equal layers are not asked for
            assert isinstance(graph, few.Unplaced)
            all_of_it = GraphModule(graph, copy.deepcopy(vars(graph)["_graph"]))
            graph.put(all_of_it.graph)
            assert called(graph) == called(all_of_it)
            names = {n.name for n in all_of_it.graph.nodes}
            short = compiled(graph)
            said.append(short.repeats)
            assert (SHORT in graph.meta) == ("scheduled like" in short.repeats)
            whole = compiled(copy.deepcopy(all_of_it))
            plain = compiled(copy.deepcopy(all_of_it), equal_regions=False)
            assert short.repeats == whole.repeats
            assert text(short) == text(plain) == text(whole)
            assert short.artifact and plain.artifact
            assert short.artifact.arguments == plain.artifact.arguments
            assert names.issuperset(name for e in short.artifact.externs for name in e.origins)
            return dynamo.interpreted(all_of_it)
        return dynamo.interpreted(graph)

    monkeypatch.setattr(litz_backend, "_found_or_compiled", run)
    run_program(LAYERS[kind](), [X], True)
    assert len(said) == 1
    assert ("scheduled like" in said[0]) == (kind in ("dropout", "two kinds"))


def test_graphs(through: list[GraphModule]) -> None:
    """Node for node PyTorch's own, put together for who looks at it."""
    check(stack(*(Block() for _ in range(9))), [X], "traced once: 9 x")
    assert len(through) == 2
    assert isinstance(through[1], few.Unplaced)


def test_keys(through: list[GraphModule]) -> None:
    """As many layers as there are belong to the key, of which the same few are read."""
    keys, options = [], make_options({"check_ir": False, "check_calls": False})
    for count in (9, 10, 9):
        torch.compiler.reset()
        torch.compile(stack(*(Block() for _ in range(count))), backend="litz")(X)
        graph = through.pop()
        with dynamo.real_tensors():
            keys.append(graph_key(graph, options, inference=True, guarded=True))
    assert keys[0] == keys[2] != keys[1]


class Scaled(nn.Module):
    """Layers with something that not every one has for itself."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layers, self.how = stack(*(Block() for _ in range(9))), how
        self.scales = nn.Parameter(torch.rand(2 if how == "in turn" else 9, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales = list(self.scales.sin() if self.how == "computed" else self.scales)
        for k, layer in enumerate(self.layers[1:]):
            x = layer(x) * scales[k % len(scales)]
        return x


@pytest.mark.parametrize("how", ["computed", "slices", "in turn"])
def test_what_is_put_together_at_once(how: str, through: list[GraphModule]) -> None:
    check(Scaled(how), [X], "")
    assert not any(isinstance(g, few.Unplaced) for g in through)


def test_more_than_a_call(through: list[GraphModule]) -> None:
    """AOTAutograd gives a result that is a view of an input: it is shown all of them."""
    layers = stack(*(Block() for _ in range(9)))

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y.mul_(2)
        return layers(x), y.view(-1)

    torch.compiler.reset()
    given, own = torch.ones(6), torch.ones(6)
    got, view = torch.compile(program, backend="litz")(X, given)
    expected, _ = program(X, own)
    assert torch.equal(given, own) and view.data_ptr() == given.data_ptr()
    torch.testing.assert_close(got, expected)
    assert not any(isinstance(g, few.Unplaced) for g in through)
