from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from litz.index import symbol, var
from litz.ir import body
from litz.ir.body import Reduce, walk
from litz.ir.dtype import F32, I64
from litz.ir.onehot import sum_of_one_hot

V, ROW = var("r0", 10), var("x0", 4)
LABEL = body.load(I64, "labels", ROW)
HIT = body.op("eq", body.index(V), LABEL)
FOUND, ZERO = body.load(F32, "g", ROW), body.const(F32, 0)


def test_the_sum_of_a_one_hot_row_is_its_element() -> None:
    valid = body.op("ne", LABEL, body.const(I64, -100))
    found = sum_of_one_hot(body.op("where", body.op("and_", HIT, valid), FOUND, ZERO), V)
    assert found is not None and V not in found.vars
    assert not any(isinstance(n, Reduce) for n in walk((found,)))


def test_other_sums_stay() -> None:
    varying = body.load(F32, "g", V)
    assert sum_of_one_hot(body.op("where", HIT, varying, ZERO), V) is None
    assert sum_of_one_hot(body.op("where", HIT, FOUND, body.const(F32, 1)), V) is None
    assert (
        sum_of_one_hot(body.op("where", body.op("ne", body.index(V), LABEL), FOUND, ZERO), V)
        is None
    )
    twice = body.op("eq", body.index(V * 2), LABEL)
    assert sum_of_one_hot(body.op("where", twice, FOUND, ZERO), V) is None
    assert sum_of_one_hot(FOUND, V) is None
    assert sum_of_one_hot(body.op("where", HIT, FOUND, ZERO), symbol("s")) is None


@pytest.mark.parametrize("kind", ["mean", "sum"])
@pytest.mark.parametrize("weight", [None, torch.linspace(0.5, 1.5, 9)])
def test_the_gradient_of_cross_entropy(kind: str, weight: torch.Tensor | None) -> None:
    def fn(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, labels, weight, reduction=kind)

    x = torch.randn(6, 9, requires_grad=True)
    labels = torch.tensor([0, 8, -100, 3, 3, 1])
    (ours,) = torch.autograd.grad(torch.compile(fn, backend="litz")(x, labels), x)
    (eager,) = torch.autograd.grad(fn(x, labels), x)
    torch.testing.assert_close(ours, eager)
