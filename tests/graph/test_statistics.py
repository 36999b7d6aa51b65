"""Statistics of norms have the types that ATen gives them, against PyTorch's metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litz.graph.statistics import NORMS
from tests.quick import some

aten = torch.ops.aten
Norm = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
FORMS: dict[str, Norm] = {
    "batch": lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True, 0.2),
    "instance": lambda x, w, b, m, v: F.instance_norm(x, m, v, w, b, True, 0.2),
    "group": lambda x, w, b, m, v: F.group_norm(x, 2, w, b),
    "layer": lambda x, w, b, m, v: F.layer_norm(x.transpose(1, 3), [4], w, b),
}


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("dtype", some([torch.bfloat16, torch.float16], 1), ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_gradients_of_mixed_types(name: str, dtype: torch.dtype) -> None:
    def step(fn: Any, to: torch.dtype | None) -> list[Tensor]:
        given = [draw(3, 4, 1, 5, dtype=dtype) * 2 + 1, draw(4), draw(4), torch.zeros(4)]
        x, w, b, mean, var = (t.to(to or t.dtype) for t in (*given, torch.ones(4)))
        y = fn(x, w.requires_grad_(), b.requires_grad_(), mean, var)
        up = draw(*y.shape, dtype=dtype).to(y.dtype)
        return [*torch.autograd.grad(y, (w, b), up), mean, var]

    fn = FORMS[name]
    exact, own = step(fn, torch.float64), step(fn, None)
    for found, e, x in zip(step(torch.compile(fn, backend="litz"), None), own, exact, strict=True):
        assert found.dtype is e.dtype
        limit = 2 * (e.double() - x).norm() + 1e-6 * x.norm()
        assert (found.double() - x).norm() <= limit


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", some(NORMS, 3))
def test_types_are_those_of_eager(name: str, weights: torch.dtype) -> None:
    x, (w, b, m, v) = draw(2, 4, 3, 3, dtype=torch.bfloat16), (draw(4).to(weights) for _ in "wbmv")
    calls: dict[str, Sequence[Any]] = {
        "native_layer_norm": (x.transpose(1, 3), [4], w, b, 1e-5),
        "native_group_norm": (x, w, b, 2, 4, 9, 2, 1e-5),
        "_batch_norm_with_update_functional": (x, w, b, m, v, 0.1, 1e-5),
    }
    call, args = getattr(aten, name), calls.get(name, (x, w, b, m, v, True, 0.1, 1e-5))
    wanted = [t.dtype for t in call(*args)]
    torch._dynamo.reset()  # of one function it compiles so many forms
    found = torch.compile(lambda *a: call(*a), backend="litz")(*args)
    assert [t.dtype for t in found] == wanted
