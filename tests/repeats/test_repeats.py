"""Graphs that repeat: scheduled with fewer copies, the host program is the plain way's own."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torch.nn import functional

import litz
from litz import backend as litz_backend
from litz import dynamo
from litz.compiler import compile_graph
from litz.options import make_options
from litz.stages import Stages
from litz.targets import horizontal
from tests.quick import some

NAMES = re.compile(r"(buf|group|product|extern|loops|template)\d+(_\d+)?")


def text(s: Stages) -> str:
    """The host program, with its buffers numbered as they come."""
    numbers: dict[str, str] = {}
    assert s.source is not None
    return NAMES.sub(lambda m: numbers.setdefault(m[0], f"{m[1]}#{len(numbers)}"), s.source.source)


def compiled(
    program: Callable[..., Any],
    inputs: Sequence[Any],
    monkeypatch: pytest.MonkeyPatch,
    dynamic: bool | None = None,
    **options: Any,
) -> list[str]:
    """What is said of the repeats of each graph, all of which have been compared."""
    said = []

    def both(graph: GraphModule, _: Any, __: Any, inference: bool) -> Any:
        made = []
        for equal in (False, True):
            given = make_options({"equal_regions": equal, "check_ir": True, **options})
            compile_graph(
                copy.deepcopy(graph), given, s := Stages(), inference=inference, guarded=True
            )
            made.append(s)
        plain, short = made
        said.append(short.repeats)
        assert not plain.repeats.endswith("neighbours")
        assert text(short) == text(plain)
        assert [(k.name, len(k.groups)) for k in short.kernels] == [
            (k.name, len(k.groups)) for k in plain.kernels
        ]
        ours, theirs = short.artifact, plain.artifact
        assert ours is not None
        assert theirs is not None
        assert ours.arguments == theirs.arguments
        assert ours.externs == theirs.externs
        return dynamo.interpreted(graph)

    monkeypatch.setattr(litz_backend, "_found_or_compiled", both)
    torch.compiler.reset()
    out = torch.compile(program, backend="litz", dynamic=dynamic)(*inputs)
    outs = out if isinstance(out, tuple | list) else (out,)
    if any(o.requires_grad for o in outs):
        sum(o.sum() for o in outs).backward()
    return said


class Chain(nn.Module):
    """Residual blocks.  own: what stands behind the one in the middle."""

    def __init__(self, count: int = 10, shared: bool = False, own: bool = False) -> None:
        super().__init__()
        first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(first if shared else nn.Linear(8, 8) for _ in range(count))
        self.own = count // 2 if own else -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.all(x)[-1]

    def all(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for i, layer in enumerate(self.layers):
            x = x + torch.tanh(layer(functional.gelu(x)).sin()) * 0.5
            x = x.cos() if i == self.own else x
            found.append(x)
        return found


class AllOf(Chain):
    def forward(self, x: torch.Tensor) -> Any:
        return self.all(x)


class Added(Chain):
    """What the middle gives is read behind the last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.all(x)).exp()


class Skipping(Chain):
    """Each block reads two before it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = x.sin()
        for layer in self.layers:
            before, x = x, torch.tanh(layer(functional.gelu(x)).sin()) + before.exp()
        return x


class Normed(Chain):
    """Residual blocks behind a norm, whose backward pass reads what it saved in two places."""

    def all(self, x: torch.Tensor) -> list[torch.Tensor]:
        for layer in self.layers:
            y = layer(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * layer.bias)
            x = x + functional.silu(y) * y.cos()
        return [x]


class Convolutions(nn.Module):
    """Residual blocks with batch norm, which in training writes its statistics."""

    def __init__(self, count: int = 9) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = functional.relu(x + layer(x))
        return x.mean((2, 3))


class Decoder(nn.Module):
    """A step of attention with a cache that is written, or returned."""

    def __init__(self, written: bool, count: int = 7) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(16, 48) for _ in range(count))
        self.down = nn.ModuleList(nn.Linear(16, 16) for _ in range(count))
        self.written = written
        for i in range(2 * count):
            self.register_buffer(f"cache{i}", torch.zeros(2, 4, 8, 4))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:
        caches = []
        for i, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            parts = up(functional.layer_norm(x, (16,))).chunk(3, -1)
            q, *kv = (t.view(2, 1, 4, 4).transpose(1, 2) for t in parts)
            for j, part in enumerate(kv):
                cache = getattr(self, f"cache{2 * i + j}")
                if self.written:
                    cache.index_copy_(2, at, part)
                else:
                    cache = torch.cat([cache, part], 2)
                caches.append(cache)
            k, v = caches[-2:]
            y = (q @ k.transpose(-1, -2) * 0.3).softmax(-1) @ v
            x = x + down(y.transpose(1, 2).reshape(2, 1, 16))
        return x if self.written else (x, *caches)


def encoder(p: float, count: int = 7) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 16, p, "gelu", batch_first=True)
    layers = nn.TransformerEncoder(layer, count, enable_nested_tensor=False)
    return nn.Sequential(nn.Dropout(p), layers, nn.Dropout(p)) if p else layers


X = torch.randn(4, 8)
SEQUENCE = torch.randn(2, 4, 16)
STEP = [torch.randn(2, 1, 16), torch.tensor([3])]
COPIES, READ_LATER = "scheduled like their neighbours", "is read behind the last copy"


@dataclass(frozen=True)
class Case:
    """A program, its inputs, and what is said of its graphs' repeats."""

    name: str
    program: Callable[[], nn.Module]
    inputs: Sequence[torch.Tensor]
    said: Sequence[str]
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("dropout", lambda: encoder(0.1), [SEQUENCE], [COPIES, COPIES]),
    Case("eager", lambda: encoder(0.1), [SEQUENCE], [COPIES, COPIES], {"rng": "eager"}),
    Case("own", lambda: Chain(22, own=True), [X], [COPIES, COPIES]),
    Case("shared", lambda: Chain(shared=True), [X], [COPIES, "has left"]),
    Case("added", Added, [X], [READ_LATER, ""]),
    Case("statistics", Convolutions, [torch.randn(2, 4, 8, 8)], [COPIES, COPIES]),
    Case("chain", Chain, [X], [COPIES, COPIES]),
    Case("gradient", Chain, [X.clone().requires_grad_()], [COPIES, COPIES]),
    Case("returned", lambda: Decoder(False), STEP, [COPIES]),
    Case("encoder", lambda: encoder(0), [SEQUENCE], [COPIES, COPIES]),
    Case("written", lambda: Decoder(True), STEP, [COPIES]),
    Case("fewest", lambda: encoder(0, 6), [SEQUENCE], [COPIES, COPIES]),
    Case("all", AllOf, [X], [COPIES, "differ"]),
    Case("skipping", lambda: Skipping(14), [X], ["differ", READ_LATER]),
    Case("normed", Normed, [X], [COPIES, COPIES]),
    Case("dynamic", Chain, [X], [COPIES, COPIES], {"dynamic": True}),
    Case("fast", lambda: encoder(0.1).bfloat16(), [SEQUENCE.bfloat16()], [COPIES, COPIES]),
]


@pytest.mark.parametrize("case", some(CASES, 3), ids=lambda c: c.name)
def test_the_plain_way(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    said = compiled(case.program().train(), case.inputs, monkeypatch, **case.options)
    assert len(said) == len(case.said)
    assert all(part in s for part, s in zip(case.said, said, strict=True)), said


@pytest.mark.parametrize("drawn", [False, True])
def test_equal_launches_are_printed_once(drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a draw lies in the random stream is an argument of the launch."""

    def fn(x: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
        out = []
        for w in weights:
            x = x @ w
            one = (functional.dropout(x, 0.5) != 0) * (x == 0) if drawn else x.sin()
            out += [one, x[:, :3].sum(0)]
        return out

    printed: list[Any] = []

    def joined(*given: Any) -> Any:
        printed.append(given)
        return print_joined(*given)

    print_joined = horizontal.joined
    monkeypatch.setattr(horizontal, "joined", joined)
    torch.compiler.reset()
    given = torch.randn(6, 8), [torch.randn(8, 8) for _ in range(3)]
    found = torch.compile(fn, backend="litz", options={"graph_cache": False})(*given)
    torch.testing.assert_close(found, fn(*given))
    assert len(printed) == 1


def test_who_asks_for_each_call_gets_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        assert compiled(Chain(), [X], monkeypatch, verify=True, check_calls=True) == [""]
        assert compiled(Chain(3), [X], monkeypatch) == [""]


def test_runs_and_explains() -> None:
    torch.manual_seed(0)
    program = Chain().requires_grad_(False)
    torch.compiler.reset()
    plain = torch.compile(program, backend="litz", options={"equal_regions": False})(X)
    torch.compiler.reset()
    assert torch.equal(torch.compile(program, backend="litz")(X), plain)
    torch.compiler.reset()
    assert "copies scheduled like their neighbours" in str(litz.explain(program, X))
