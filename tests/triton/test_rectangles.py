"""Accesses by block pointers, of plans that graphs do not make so easily."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from litz.index import symbol, var  # noqa: E402
from litz.ir import body  # noqa: E402
from litz.ir.body import Store  # noqa: E402
from litz.ir.dtype import F32  # noqa: E402
from litz.kernel.blocks.choose import choose  # noqa: E402
from litz.kernel.blocks.recipe import Style  # noqa: E402
from litz.kernel.plan import Dim, KernelPlan, Param  # noqa: E402
from litz.targets.triton.interpreted import bind_interpreted  # noqa: E402
from litz.targets.triton.render import render  # noqa: E402


@pytest.mark.parametrize("least", [0, 1])
def test_steps_that_may_be_nothing(least: int) -> None:
    """Rows of a matrix as wide as a number that is known to be no less than ``least``."""
    x, r, width = var("x0", 8), var("r0", 16), symbol("s0", least, 1 << 10, 32)
    total = body.reduce("sum", (r,), body.load(F32, "b0", width * x + r))
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    plan = KernelPlan((Dim(x, "p"), Dim(r, "r")), params, (width,), (Store("b1", x, total),), r)
    kernel = render(choose(plan, Style(block_pointers=True)), "kernel")
    assert "(8, 16), (s0, 1)" in kernel.launches[0].source
    a, out = torch.rand(8, 40), torch.empty(8)
    bind_interpreted(kernel)(a.data_ptr(), out.data_ptr(), 40)
    torch.testing.assert_close(out, a[:, :16].sum(1))
