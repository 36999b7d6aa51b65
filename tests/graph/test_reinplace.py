"""Updates of arguments in place: the graph before and after must do the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from litz.graph.reinplace import write_in_place

aten = torch.ops.aten
X = torch.arange(24.0).reshape(4, 6)
AT = torch.tensor([2, 0, 1])
END = 2**63 - 1
Update = Callable[[Tensor, Tensor], Tensor]


def traced(update: Update) -> GraphModule:
    """``update`` of the argument, with a copy of its result into the argument behind it."""

    def f(x: Tensor, i: Tensor) -> None:
        aten.copy_.default(x, update(x, i))

    with FakeTensorMode() as mode:
        gm = make_fx(f, tracing_mode="fake")(mode.from_tensor(X), mode.from_tensor(AT))
    return gm


def _old_row(x: Tensor, i: Tensor) -> Tensor:
    """The row is updated from what it was before all rows were."""
    row = aten.index_fill.int_Scalar(x.select(0, 1), 0, i, 5.0)
    return aten.select_scatter(aten.index_put(x, [i], torch.ones(6)), row, 0, 1)


def _new_row(x: Tensor, i: Tensor) -> Tensor:
    y = aten.index_put(x, [i], torch.ones(6))
    return aten.select_scatter(y, aten.index_fill.int_Scalar(y.select(0, 1), 0, i, 5.0), 0, 1)


def _another_row(x: Tensor, i: Tensor) -> Tensor:
    return aten.select_scatter(x, aten.index_fill.int_Scalar(x.select(0, 2), 0, i, 5.0), 0, 1)


def _inner_of_old(x: Tensor, i: Tensor) -> Tensor:
    part = aten.index_fill.int_Scalar(x[1:][:, 2], 0, i, 7.0)
    y = aten.index_fill.int_Scalar(x, 1, i, 9.0)
    return aten.slice_scatter(y, aten.select_scatter(y[1:], part, 1, 2), 0, 1, END)


def _inner(x: Tensor, i: Tensor) -> Tensor:
    y = aten.index_fill.int_Scalar(x, 1, i, 9.0)
    part = aten.index_fill.int_Scalar(y[1:][:, 2], 0, i, 7.0)
    return aten.slice_scatter(y, aten.select_scatter(y[1:], part, 1, 2), 0, 1, END)


def _fresh(x: Tensor, i: Tensor) -> Tensor:
    y = x.flip(0) * 2
    return aten.index_add(aten.index_put(y, [i], x[:3] + 1), 0, i, y[1:])


def _transposed(x: Tensor, i: Tensor) -> Tensor:
    return aten.index_fill.int_Scalar(x.t(), 0, i, 1.0).t()


CASES = [_old_row, _new_row, _another_row, _inner_of_old, _inner, _fresh, _transposed]


@pytest.mark.parametrize("update", CASES)
def test_the_rewritten_graph_does_the_same(update: Update) -> None:
    gm = traced(update)
    x, y = X.clone(), X.clone()
    gm(x, AT)
    write_in_place(gm)
    gm.graph.lint()
    gm.recompile()
    gm(y, AT)
    assert torch.equal(x, y)


@pytest.mark.parametrize("update", [_new_row, _inner, _transposed])
def test_updates_of_the_value_itself_need_no_copy(update: Update) -> None:
    gm = traced(update)
    assert write_in_place(gm)
    targets = {str(n.target) for n in gm.graph.nodes}
    assert "aten.copy_.default" not in targets and "aten.index_fill_.int_Scalar" in targets


def test_a_computed_value_is_copied_once() -> None:
    gm = traced(_fresh)
    assert write_in_place(gm)
    targets = [str(n.target) for n in gm.graph.nodes]
    assert targets.count("aten.copy_.default") == 1
    assert "aten.index_put_.default" in targets and "aten.index_add_.default" in targets
