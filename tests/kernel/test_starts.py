"""Kernels that begin elsewhere in their buffers are one that is told where."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import litz
from litz.index import Expr, const, symbol, var
from litz.ir import body as B
from litz.ir.body import Store
from litz.ir.dtype import F32
from litz.kernel.build import BoundKernel
from litz.kernel.plan import Dim, KernelPlan, Param
from litz.kernel.starts import told_where
from tests.judge import check


def steps(x: Tensor, w: Tensor) -> Tensor:
    """Each reads the next row, and a row of the state at places around it; rows are stacked."""
    state, found = torch.zeros_like(x[0]), []
    for t in range(x.shape[0]):
        state = torch.tanh(torch.cat([x[t, :, :1], state[:, :-1]], 1) * w + x[t])
        found.append(state)
    return torch.stack(found)


@pytest.mark.parametrize("n", [4, 21])
def test_kernels_of_a_loop_do_not_grow_with_it(n: int) -> None:
    made = {}
    for count in (6, 12):
        args = [torch.randn(count, 3, n, requires_grad=True), torch.randn(n)]
        made[count] = len(litz.explain(steps, *args).kernels)
    assert made[6] == made[12] < 6
    check(steps, *args, runs=1, grad=True)


def test_nor_do_those_of_a_loop_over_rows_of_open_sizes() -> None:
    made = {}
    for count in (6, 12):
        args = [torch.randn(count, 3, 21), torch.randn(21)]
        torch._dynamo.reset()
        torch._dynamo.mark_dynamic(args[0], 1)
        made[count] = len(litz.explain(steps, *args).kernels)
    assert made[6] == made[12] < 6
    check(steps, *args, runs=1, dynamic=True)


def plan(read: int | Expr, write: int | Expr, back: int = 0) -> KernelPlan:
    """``b1[x + write] = b0[x + read] + b0[x + read - back]``"""
    x = var("x0", 32)
    value = B.op("add", B.load(F32, "b0", x + read), B.load(F32, "b0", x + read - back))
    params = Param("b0", F32, "in"), Param("b1", F32, "out")
    sizes = tuple(e for e in (x + read + write).free if e is not x)
    return KernelPlan((Dim(x, "p"),), params, sizes, (Store("b1", x + write, value),), x)


def shared(*plans: KernelPlan) -> list[BoundKernel]:
    own = symbol("n", 0, None, 64)
    given = [tuple(own for _ in p.ints) for p in plans]
    bound = {
        f"group{k}": BoundKernel(p, ("a", "b"), ints)
        for k, (p, ints) in enumerate(zip(plans, given, strict=True))
    }
    found = told_where(bound, bound)
    assert [*found] == [*bound]
    return [*found.values()]


def test_starts_are_counted_in_what_divides_all() -> None:
    first, second, third = shared(plan(0, 64), plan(48, 96), plan(80, 320))
    assert first.plan == second.plan == third.plan
    (store,) = first.plan.stores
    o0, o1 = first.plan.ints
    assert store.index - first.plan.dims[0].var is 32 * o1
    assert {n.index - first.plan.dims[0].var for n in B.loads((store.value,))} == {16 * o0}
    assert [b.ints for b in (first, second, third)] == [
        tuple(map(const, at)) for at in ((0, 2), (3, 3), (5, 10))
    ]


def test_what_moves_alike_is_one_integer_and_what_stays_a_literal() -> None:
    first, second = shared(plan(8, 8, back=3), plan(40, 40, back=3))
    assert first.plan == second.plan and len(first.plan.ints) == 2
    first, second = shared(plan(5, 8), plan(5, 40))
    assert len(first.plan.ints) == 1 and "x0 + 5" in str(first.plan.stores)


def test_starts_of_rows_are_counted_in_their_size() -> None:
    s0, n = symbol("s0", 0, None, 64), symbol("n", 0, None, 64)
    first, second = shared(plan(s0, 0), plan(3 * s0, 4 * s0 + 2))
    assert first.plan == second.plan
    x, (_, o0, o1) = first.plan.dims[0].var, first.plan.ints
    (store,) = first.plan.stores
    assert store.index is x + 2 * o1
    assert {load.index for load in B.loads((store.value,))} == {x + s0 * o0}
    assert [b.ints for b in (first, second)] == [
        (n, const(1), const(0)),
        (n, const(3), 2 * n + 1),
    ]


def test_others_stay_as_they_are() -> None:
    plans = plan(0, 64), plan(0, 64), plan(0, 64, back=-1), plan(0, 64, back=2)
    assert [b.plan for b in shared(*plans)] == [*plans]
    assert all(not b.ints for b in shared(*plans))
