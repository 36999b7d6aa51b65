"""Calls on lists, traced once for each kind: graphs are node for node those of the plain way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_regions import text
from torch.fx import GraphModule

from litz import backend as litz_backend
from litz import dynamo
from litz.backend import compile_with
from litz.cache import portable
from litz.options import make_options
from litz.regions import lists
from litz.stages import Stages
from litz.targets.tools import Tools
from tests.quick import some

Tensor = torch.Tensor
Seen = list[tuple[str, list[object], str]]
SHAPES = [(3, 4), (5,), (4, 3), ()]


def tensors(count: int = 24, seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.rand(SHAPES[i % len(SHAPES)], generator=g) + 0.5 for i in range(count)]


def run(
    fn: Callable[..., Any], inputs: Sequence[Tensor], once: bool, **options: Any
) -> tuple[list[Tensor], list[int], Seen]:
    """The inputs after a call, how often they were written, and graphs with what was said."""
    seen: Seen = []

    def observe(kind: str, graph: GraphModule, stages: Stages) -> None:
        names = [] if "equal" in stages.regions and once else [n.name for n in graph.graph.nodes]
        seen.append((kind, [*text(graph), *names], stages.regions))

    def backend(gm: GraphModule, examples: Sequence[Any]) -> Any:
        made = make_options({"equal_regions": once, **options})
        return compile_with(gm, examples, made, observe if not options else None)

    torch.compiler.reset()
    torch.manual_seed(0)
    own = [x.clone() for x in inputs]
    torch.compile(fn, backend=backend)(*own)
    return own, [x._version for x in own], seen


def check(fn: Callable[..., Any], inputs: Sequence[Tensor], said: str) -> None:
    (plain, _, expected), (mine, versions, seen) = (run(fn, inputs, o) for o in (False, True))
    assert len(seen) == 1 and said in seen[0][2], seen[0][2]
    assert seen[0][1] == expected[0][1][: len(seen[0][1])]
    assert all(map(torch.equal, mine, plain))
    written = [not torch.equal(a, b) for a, b in zip(mine, inputs, strict=True)]
    assert not said.startswith("lists") or [v > 0 for v in versions] == written


@pytest.fixture(autouse=True)
def through_aten(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal graphs compile to equal code; few tests compile them, the others interpret them."""
    if "compiled" not in request.node.name:
        call = lambda graph, *_: dynamo.interpreted(graph)  # noqa: E731
        monkeypatch.setattr(litz_backend, "_found_or_compiled", call)


def parts(xs: Sequence[Tensor], count: int) -> list[list[Tensor]]:
    n = len(xs) // count
    return [list(xs[i * n : (i + 1) * n]) for i in range(count)]


def adam(*xs: Tensor) -> None:
    params, grads, first, second = parts(xs, 4)
    torch._foreach_lerp_(first, grads, 0.1)
    torch._foreach_mul_(second, 0.9)
    torch._foreach_addcmul_(second, grads, grads, 0.1)
    root = torch._foreach_sqrt(second)
    torch._foreach_add_(root, 1e-8)
    torch._foreach_addcdiv_(params, first, root, -0.01)


def scalars(*xs: Tensor) -> None:
    a, b = parts(xs, 2)
    torch._foreach_addcdiv_(a, b, b, [0.5 + i % 2 for i in range(len(a))])


def alone(*xs: Tensor) -> None:
    """Calls for one tensor each between the lists, of what all share too."""
    rate, *rest = xs
    a, b = parts(rest, 2)
    step = rate * 2
    d = torch._foreach_sub(a, b)
    torch._foreach_addcmul_(b, d, [torch.full_like(x, 0.5) for x in d])
    torch._foreach_mul_(a, step)
    for x, y in zip(a, d, strict=True):
        x.add_(y.sin() * rate)


def crossing(*xs: Tensor) -> None:
    """Each depends on its neighbour."""
    torch._foreach_add_(list(xs), [*xs[1:], xs[0]])


def summing(*xs: Tensor) -> None:
    """One tensor takes something of each place."""
    total, *rest = xs
    for x in torch._foreach_mul(list(rest), 2):
        total.add_(x.sum())
    torch._foreach_mul_(list(rest), 3)


def constant(*xs: Tensor) -> None:
    torch._foreach_mul_(list(xs), torch.tensor([2.0, 0.5]).sum())


def one_for_all(*xs: Tensor) -> None:
    torch._foreach_mul_(list(xs[1:]), torch._foreach_sin(list(xs))[0])


def drawing(*xs: Tensor) -> None:
    torch._foreach_mul_(list(xs), [x.bernoulli() for x in torch._foreach_mul(list(xs), 0.5)])


def one_behind_all(*xs: Tensor) -> None:
    """Each place writes the same memory, which PyTorch doesn't count."""
    torch._foreach_mul_([xs[0][0] for _ in xs[1:]], list(xs[1:]))


SAME = [torch.ones(6) for _ in range(24)]
CASES: dict[str, tuple[Callable[..., Any], Sequence[Tensor], str]] = {
    "adam": (adam, tensors(96), "lists are traced once for 4 kinds of 24 places"),
    "scalars": (scalars, tensors(48), "lists are traced once for 4 kinds of 24"),
    "alone": (alone, [torch.tensor(0.5), *tensors(96)], "lists are traced once for 4 kinds of 48"),
    "crossing": (crossing, SAME, "no equal regions"),
    "drawing": (drawing, SAME, "equal regions"),
    "summing": (summing, [torch.tensor(0.5), *SAME], "equal regions"),
    "one for all": (one_for_all, [torch.tensor(0.5), *SAME], "no equal regions"),
    "one behind all": (one_behind_all, [torch.rand(2, 6), *SAME], "no equal regions"),
    "constant": (constant, SAME, "no equal regions"),
    "few": (adam, tensors(32), "no equal regions"),
    "returns": (lambda *xs: torch._foreach_add(list(xs), 1), SAME, "no equal regions"),
    "all differ": (adam, [torch.rand(1 + i % 24) for i in range(96)], "no equal regions"),
}


@pytest.mark.parametrize("name", some(CASES, 4))
def test_graphs_are_the_plain_ways(name: str) -> None:
    check(*CASES[name])


def test_inputs_that_share_memory_go_the_plain_way() -> None:
    rows = torch.rand(24, 6)

    def fn(x: Tensor) -> None:
        torch._foreach_add_(list(x.unbind()), 1.0)

    _, _, seen = run(fn, [rows], True)
    assert "lists" not in seen[0][2]


@pytest.mark.parametrize("kind", some(["SGD", "Adagrad"], 1))
def test_optimizers(kind: str) -> None:
    """Parameters are the graph's own, not its arguments."""
    found = []
    for once in (False, True):
        params = [torch.nn.Parameter(x) for x in tensors()]
        for p in params:
            p.grad = p.detach().sin()
        how = {"momentum": 0.9, "weight_decay": 0.1} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(params, foreach=True, **how)
        said: list[str] = []

        def backend(gm: GraphModule, xs: Any, once: bool = once, said: list[str] = said) -> Any:
            tell = lambda kind, graph, stages: said.append(stages.regions)  # noqa: E731
            return compile_with(gm, xs, make_options({"equal_regions": once}), tell)

        torch.compiler.reset()
        step = torch.compile(optimizer.step, backend=backend)
        for _ in range(3):
            step()
        assert any(s.startswith("lists are traced once for 4 kinds") for s in said) == once, said
        found.append(params)
        assert not once or all(p._version for p in params)
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("name", some(["adam", "scalars", "alone"], 2))
def test_compiled_from_one_place_of_each_kind(name: str) -> None:
    """Passes, lowering and schedule see no other; kernels and what they take are the same."""
    fn, inputs, _ = CASES[name]
    seen: list[Stages] = []
    found = []
    for once in (False, True):

        def backend(gm: GraphModule, xs: Any, once: bool = once) -> Any:
            options = make_options({"equal_regions": once, "check_ir": True})
            return compile_with(gm, xs, options, lambda _kind, _graph, s: seen.append(s))

        torch.compiler.reset()
        own = [x.clone() for x in inputs]
        torch.compile(fn, backend=backend)(*own)
        found.append(own)
    assert all(map(torch.equal, *found))
    plain, mine = seen
    assert "copies" in mine.repeats and not plain.repeats
    assert plain.schedule is not None and mine.schedule is not None
    steps = [
        sorted((g.read_buffers(), g.write_buffers()) for g in x.steps)
        for x in (plain.schedule, mine.schedule)
    ]
    if name == "alone":  # the plain way's kernels are of several places that read one tensor
        written = [sorted(b for _, own in some for b in own) for some in steps]
        assert written[0] == written[1] and len(steps[1]) == 48
    else:
        assert {k.name for k in mine.kernels} == {k.name for k in plain.kernels}
        assert steps[0] == steps[1]


def test_compiled_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Litz's kernels, then those that another process would find."""
    inputs = tensors(96)
    plain, _, _ = run(adam, inputs, False)
    options = {"cache_dir": str(tmp_path), "check_calls": False}
    first, _, _ = run(adam, inputs, True, **options)
    (entry,) = tmp_path.glob("v1/program/*/*.program")
    data = entry.read_bytes()
    assert b"lists [" in data
    name = entry.relative_to(tmp_path / "v1").as_posix()
    assert portable.fault(name, data) == ""  # so that it may go to other machines
    monkeypatch.delattr(lists, "whole")  # nothing is traced any more
    Tools(make_options(options)).cache.recent.clear()
    again, versions, _ = run(adam, inputs, True, **options)
    assert all(map(torch.equal, first, plain)) and all(map(torch.equal, again, plain))
    assert sum(v > 0 for v in versions) == 72
