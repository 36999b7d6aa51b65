"""What equal parts of a graph share while they are compiled changes nothing of what comes out."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from litz.backend import compile_with
from litz.lowering.graph import _Walk
from litz.options import make_options
from litz.stages import Stages

# Functions whose answers are kept by what they are asked.
KEPT = (
    ("litz.schedule.fuse", "alignments"),
    ("litz.lowering.values", "view_strides"),
    ("litz.lowering.values", "axes"),
    ("litz.lowering.values", "contiguous_strides"),
    ("litz.lowering.strides", "row_major"),
    ("litz.host.sizes", "_size"),
    ("litz.host.targets", "_out_target"),
    ("litz.index.layout", "_mixed_radix"),
    ("litz.index.query", "_substitution"),
    ("litz.ir.body", "_result_dtype"),
)


class Views(nn.Module):
    """Layers of views of every kind, of stored values and of computed ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        seen = []
        for layer in self.layers:
            y = layer(x)
            q, k = y.view(2, -1, 3, 4).transpose(1, 2).unbind(1)[0], y[:, 1:, ::2]
            x = x + q.repeat(1, 1, 3) * y.unsqueeze(2).expand(-1, -1, 2, -1).select(2, 1)
            x = x + k.mean((1, 2), keepdim=True) + y.t() if y.dim() == 2 else x.permute(0, 2, 1).mT
            seen.append(y.narrow(2, 2, 5))
        return x, *seen


def made(model: nn.Module, x: torch.Tensor, dynamic: bool) -> list[str]:
    """All sources of forward and backward."""
    found: list[Stages] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def observe(kind: str, graph: Any, stages: Stages) -> None:
            found.append(stages)

        return compile_with(gm, inputs, make_options({}), observe)

    torch.compiler.reset()
    out = torch.compile(model, backend=backend, dynamic=dynamic)(x)
    sum(o.sum() for o in (out if isinstance(out, tuple) else (out,))).backward()
    assert len(found) == 2 and all(s.artifact for s in found)
    return [t for s in found for t in (*(k.source for k in s.kernels), s.source.source)]


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 24, 0.1, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train()


@pytest.mark.parametrize(
    ("model", "size", "dynamic"),
    ((Views, (2, 6, 12), False), (Views, (2, 6, 12), True), (encoder, (2, 5, 16), False)),
)
def test_sources_are_those_of_work_that_is_not_shared(
    monkeypatch: pytest.MonkeyPatch, model: Any, size: tuple[int, ...], dynamic: bool
) -> None:
    torch.manual_seed(0)
    own, x = model(), torch.randn(size)
    shared = made(own, x, dynamic)
    monkeypatch.setattr(_Walk, "view_key", lambda self, n: (None, None))
    for module, name in KEPT:
        m = importlib.import_module(module)
        monkeypatch.setattr(m, name, getattr(m, name).__wrapped__)
    assert made(own, x, dynamic) == shared


def test_views_of_equal_layers_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    key = _Walk.view_key

    def noted(self: _Walk, n: torch.fx.Node) -> Any:
        found = key(self, n)
        if found[1] is not None:
            asked.append(found[1] in self.views)
        return found

    monkeypatch.setattr(_Walk, "view_key", noted)
    made(encoder(), torch.randn(2, 5, 16), False)
    assert sum(asked) > len(asked) / 3


def test_rows_that_are_one_row_again_and_again() -> None:
    """The largest of a row depends on no row, but is stored for each."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1).square().mean()

    x = torch.randn(1, 2048).expand(2048, 2048).requires_grad_()
    found = torch.autograd.grad(torch.compile(loss, backend="litz")(x), x)
    wide = x.detach().double().requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(loss(wide), wide), check_dtype=False)
