"""Dropout that drops nothing, in Dynamo's graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import symbolic_trace

from litz.graph.dropout import drop_idle_dropout

Fn = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.dropout(x, 0.0).sin(),
        lambda x: F.dropout(x, p=0, training=True, inplace=True).sin(),
        lambda x: F.dropout(x, 0.3, False).sin(),
        lambda x: F.dropout(input=x, training=False).sin(),
        lambda x: torch.dropout(x, 0.3, train=False).sin(),
        lambda x: torch.ops.aten.dropout(x, 0.3, False).sin(),
        lambda x: F.dropout(torch.dropout(x, 0.0, True), 0.3, False).sin(),
    ],
)
def test_a_dropout_that_drops_nothing_is_its_argument(fn: Fn) -> None:
    gm = symbolic_trace(fn)
    drop_idle_dropout(gm)
    assert [n.op for n in gm.graph.nodes] == ["placeholder", "call_method", "output"]
    x = torch.randn(5)
    torch.testing.assert_close(gm(x), x.sin(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.dropout(x),
        lambda x: F.dropout(x, 0.3),
        lambda x: F.dropout(x, x.mean()),
        lambda x: torch.dropout(x, 0.3, True),
        lambda x: torch.native_dropout(x, 0.0, True)[0],
    ],
)
def test_any_other_stays(fn: Fn) -> None:
    gm = symbolic_trace(fn)
    before = str(gm.graph)
    drop_idle_dropout(gm)
    assert str(gm.graph) == before


def test_a_branch_may_not_return_what_it_is_given() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.5, False), torch.sin, (x,))

    compiled = torch.compile(fn, backend="litz", fullgraph=True)
    for x in (torch.arange(4.0), -torch.arange(4.0)):
        torch.testing.assert_close(compiled(x), fn(x), rtol=0, atol=0)


def test_what_is_written_into_the_result_reaches_the_argument() -> None:
    drop = nn.Dropout(0.4).eval()

    def fn(x: Tensor) -> Tensor:
        y = drop(x)
        y.add_(1)
        return x * 2

    mine, eager = torch.ones(3, 4), torch.ones(3, 4)
    compiled = torch.compile(fn, backend="litz", fullgraph=True)
    assert torch.equal(compiled(mine), fn(eager))
    assert torch.equal(mine, eager)
