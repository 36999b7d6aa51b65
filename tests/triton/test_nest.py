"""Loops within loops read everything before they replace it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from judge import check
from torch import Tensor

pytest.importorskip("triton")

import litz  # noqa: E402
from litz.index import Expr, const, var  # noqa: E402
from litz.ir import body  # noqa: E402
from litz.ir.body import Node, Store  # noqa: E402
from litz.ir.dtype import F32  # noqa: E402
from litz.kernel.blocks.choose import choose  # noqa: E402
from litz.kernel.plan import Dim, KernelPlan, Param  # noqa: E402
from litz.schedule.fuse import Fusion  # noqa: E402
from litz.targets.triton.render import render  # noqa: E402

TRITON = {"target": "triton"}


def read_whole_then_doubled(g: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    out = (g * x).sum(), (x * x).mean() + g, torch.var_mean(x * x, -1)[0] * g
    x.mul_(2)
    return out


def replaced_in_the_deepest_loops(g: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    mean = (x * x).mean()
    out = (g * x).sum(), mean + g, x * mean
    g.copy_(g * mean)
    return out


def both_replaced(g: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    mean = (x * x).mean()
    out = x * mean
    g.copy_(g * mean + x)
    x.copy_(x * mean)
    return (g * x).sum(), out


def each_reads_the_other(g: Tensor, x: Tensor) -> Tensor:
    mean, out = g.mean(), x * g
    x.copy_(x * 0.5 + mean)
    g.copy_(g * 0.5 + x)
    return out


def one_row_and_copies_of_it(g: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return x.expand(100, 5).var(), x.any(), x.amax() + g


def rows_beside_a_whole_sum(g: Tensor, x: Tensor) -> Tensor:
    return g.mean() + x


def columns_of_what_rows_reduce(g: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    off = g - g.mean(1, keepdim=True)
    return off, off.sum(0) * x, (g * g).sum()


PROGRAMS = (
    columns_of_what_rows_reduce,
    read_whole_then_doubled,
    replaced_in_the_deepest_loops,
    both_replaced,
    each_reads_the_other,
    one_row_and_copies_of_it,
    rows_beside_a_whole_sum,
)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_programs(fn: Callable[..., object], apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fusion makes no loops within loops, which one lane would run; what it could make is right."""
    if not apart:
        monkeypatch.setattr(Fusion, "_nested", lambda *_: "")
    g, x = (torch.randn(n, generator=torch.Generator().manual_seed(1)) for n in (10, 5))
    g = g.view(2, 5)
    (graph,) = litz.explain(fn, g.clone(), x.clone(), options=TRITON).graphs
    assert any(k.recipe.kernels[0].form == "nest" for k in graph.stages.kernels) is not apart
    check(fn, g, x, runs=1, judge=False, **TRITON)


R0, R1 = var("r0", 2), var("r1", 5)
WHOLE = 5 * R0 + R1


def plan(*stores: Store) -> KernelPlan:
    params = tuple(Param(f"b{i}", F32, "inout") for i in range(3))
    return KernelPlan((Dim(R0, "r"), Dim(R1, "r")), params, (), stores, R1)


def loaded(buffer: str, at: Expr) -> Node:
    return body.load(F32, buffer, at)


def test_what_no_order_of_loops_gives_is_refused() -> None:
    """Of two arrays each takes from the other; of one, each row from all."""
    g, x = loaded("b0", WHOLE), loaded("b1", R1)
    everything = Store("b2", const(0), body.reduce("sum", (R0, R1), g))
    columns = body.reduce("sum", (R0,), g)
    rows = body.reduce("sum", (R1,), g)
    taken = Store("b0", WHOLE, body.op("add", g, x))
    assert render(choose(plan(everything, Store("b0", WHOLE, body.op("sub", g, rows)))), "k")
    for stores in (
        (everything, taken, Store("b1", R1, body.op("add", x, columns))),
        (everything, Store("b0", WHOLE, body.op("sub", g, columns))),
    ):
        with pytest.raises(ValueError, match="no order of loops"):
            render(choose(plan(*stores)), "k")
