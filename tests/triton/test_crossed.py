"""Reductions of rows and of columns of one matrix, in programs that go over rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from judge import check

from tests.quick import some

pytest.importorskip("triton.language")

import litz  # noqa: E402
from litz.index import var  # noqa: E402
from litz.ir import body  # noqa: E402
from litz.ir.body import Store  # noqa: E402
from litz.ir.dtype import F32  # noqa: E402
from litz.kernel.blocks import crossed  # noqa: E402
from litz.kernel.parse import parse_recipe  # noqa: E402
from litz.kernel.plan import Dim, KernelPlan, Param  # noqa: E402
from litz.kernel.verify import verify  # noqa: E402
from litz.targets.triton.crossed import CrossedPrinter  # noqa: E402

Tensor = torch.Tensor
HALF = torch.bfloat16
TRITON = {"target": "triton"}


def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A layer norm of what a bias was added to: the gradients of all three sum columns."""
    return F.layer_norm(x + b, x.shape[-1:], w, b)


def scaled(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w)


def averaged(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Of the gradients' sums one goes through fewer dims than the others."""
    return normed(x * w, w, b).mean(1)


def several(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Columns of what rows are reduced for, and others."""
    return x.softmax(-1), x.amax(0) * 2, (x * x.sum(-1, keepdim=True)).sum(0)


def beyond(x: Tensor) -> Tensor:
    """Rows that need what columns are reduced to take a kernel more."""
    return (x - x.sum(0)).softmax(-1) * x.softmax(-1)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


CASES = {
    "half, odd": (scaled, (leaf(521, 67, dtype=HALF), leaf(67, dtype=HALF))),
    "odd": (scaled, (leaf(521, 67), leaf(67))),
    "sliced": (lambda x, w: scaled(x[:, 1:91], w), (leaf(523, 99), leaf(90))),
    "several loops of rows": (normed, (leaf(3, 175, 64), leaf(64), leaf(64))),
    "short rows": (normed, (leaf(576, 48), leaf(48), leaf(48))),
}


@pytest.mark.parametrize("name", some(list(CASES), 1))
def test_gradients(name: str) -> None:
    fn, args = CASES[name]
    check(fn, *args, grad=True, runs=1, **TRITON)


@pytest.mark.parametrize("options", [{}, TRITON])
def test_a_mean_behind_a_norm(options: dict[str, str]) -> None:
    """Columns that go through the samples alone lie beside some that go through all rows."""
    args = leaf(2, 16, 64), leaf(64), leaf(64)
    check(averaged, *args, grad=True, runs=1, **options)


def test_reductions() -> None:
    check(several, torch.randn(530, 50), runs=1, **TRITON)


def test_the_last_program_of_narrow_rows_has_fewer() -> None:
    check(lambda x: (x.amax(0), x.prod(-1)), torch.randn(1025, 3), runs=1, **TRITON)


def test_rows_and_columns_are_one_kernel_and_a_small_one() -> None:
    (graph,) = litz.explain(several, torch.randn(530, 50), options=TRITON).graphs
    (kernel,) = graph.stages.kernels
    assert [k.form for k in kernel.recipe.kernels] == ["crossed", "persistent"]
    assert kernel.recipe.kernels[0].configs[0].block("x") == 2
    verify(kernel.recipe)
    assert parse_recipe(kernel.recipe.text) == kernel.recipe


def test_columns_that_rows_need_stay_apart() -> None:
    (graph,) = litz.explain(beyond, torch.randn(530, 50), options=TRITON).graphs
    forms = [k.form for kernel in graph.stages.kernels for k in kernel.recipe.kernels]
    assert "crossed" not in forms and "nest" not in forms


def test_rows_of_several_loops_are_not_fetched_ahead() -> None:
    """Those of a plan that is no part of another: their places take divisions."""
    b, r, q, c = var("x0", 4), var("r0", 8), var("r1", 6), var("r2", 64)
    value = body.load(F32, "b0", ((b * 8 + r) * 10 + q) * 64 + c)
    rows, columns = body.reduce("sum", (c,), value), body.reduce("sum", (r, q), value)
    stores = Store("b1", (b * 8 + r) * 6 + q, rows), Store("b2", b * 64 + c, columns)
    params = tuple(Param(f"b{i}", F32, "out" if i else "in") for i in range(3))
    dims = (Dim(b, "p"), *(Dim(v, "r") for v in (r, q, c)))
    made = crossed.in_blocks(KernelPlan(dims, params, (), stores, c), False)
    assert made is not None and not made.ahead
    assert "for xstart in range(0, 48, XBLOCK):" in CrossedPrinter(made, "k").print()
