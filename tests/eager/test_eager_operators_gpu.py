"""Single operators on a GPU; skips itself without one."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import litz
from litz.runtime.dispatcher import through_aten

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
NAMES = (
    "aten::gelu",
    "aten::mul.Tensor",
    "aten::_softmax",
    "aten::native_layer_norm",
    "aten::sum.dim_IntList",
    "aten::mm",
)


def results(x: torch.Tensor) -> list[torch.Tensor]:
    scale = torch.tensor(0.5)  # on the CPU
    return [
        functional.gelu(x),
        x * 2.5,
        x * scale,
        x.softmax(1),
        functional.layer_norm(x, x.shape[1:]),
        x.sum([0, 1]),
        x @ x.t(),
    ]


def test_results_and_gradients() -> None:
    with litz.eager.use(*NAMES, device="cuda") as used:
        for n in (64, 65, 66, 67):
            x = torch.randn(n, 48, device="cuda", requires_grad=True)
            with through_aten():
                expected = results(x)
                (wanted,) = torch.autograd.grad(expected[4].square().sum(), x)
            found = results(x)
            (gradient,) = torch.autograd.grad(found[4].square().sum(), x)
            for f, e in zip([*found, gradient], [*expected, wanted], strict=True):
                assert (f.dtype, f.stride()) == (e.dtype, e.stride())
                torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-4)
        kept = len(used.decisions)
        graph = torch.cuda.CUDAGraph()
        x = torch.randn(64, 48, device="cuda")
        with torch.cuda.graph(graph):
            inside = [functional.gelu(x), (x[:7] * 3.5)]  # the second is new: ATen runs it
        graph.replay()
        torch.testing.assert_close(inside[0], functional.gelu(x))
        torch.testing.assert_close(inside[1], x[:7] * 3.5)
    assert any(d.guards for d in used.decisions) and kept >= len(NAMES)
