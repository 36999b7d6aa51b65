"""Cheaper functions where results are rounded to 16 bits: nothing of it may show."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from judge import check

pytest.importorskip("triton.language")

import litz  # noqa: E402
from litz.index import var  # noqa: E402
from litz.ir import body  # noqa: E402
from litz.ir.body import Store  # noqa: E402
from litz.ir.dtype import F16, F32  # noqa: E402
from litz.kernel.blocks import sizes as blocks  # noqa: E402
from litz.kernel.blocks.narrow import narrow_nodes  # noqa: E402
from litz.kernel.softmax import is_total  # noqa: E402

TRITON = {"target": "triton"}
HALF = (torch.float16, torch.bfloat16)
SPECIAL = [0.0, -0.0, 1.0, 1e-30, 3e38, 65504, -88.5, -90, -100, 88.5, 100, -5.8, -8.3, 1e-40]
SPECIAL += [float("inf"), float("-inf"), float("nan")]


def special(dtype: torch.dtype) -> torch.Tensor:
    x = torch.cat([torch.tensor(SPECIAL), torch.linspace(-110, 110, 111)]).to(dtype)
    # The interpreter reads subnormal bf16 values as zeros.
    tiny = (x.float().abs() < 1e-37) & (x != 0)
    return x[~tiny] if dtype == torch.bfloat16 else x


@pytest.mark.parametrize("to", HALF)
@pytest.mark.parametrize("of", [torch.float32, *HALF])
def test_special_values(of: torch.dtype, to: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, y = x[:, None], x[None]
        out = (x / y, x.exp(), x.sigmoid(), F.silu(x), 1 + x.exp(), x.sinh(), x.asinh(), x.tanh())
        return tuple(v.to(to) for v in out)

    x = special(of)
    check(fn, x, runs=1, judge=False, **TRITON)
    check(lambda x: (1 + x.tanh()).to(to), x, runs=1, **TRITON)
    x = x[~x.isinf()]  # of inf eager makes nan
    check(lambda x: (F.gelu(x).to(to), F.gelu(x, approximate="tanh").to(to)), x, runs=1, **TRITON)


@pytest.mark.parametrize("to", HALF)
def test_what_is_subnormal_may_grow(to: torch.dtype) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        e = x.exp()
        out = (e / y.exp(), e * 1e38, e * y, 1e-38 / e, torch.where(y > 0, e, y) / 1e-38)
        return tuple(v.to(to) for v in out)

    x = torch.linspace(-95, -80, 200)
    check(fn, x, x.flip(0), runs=1, judge=False, **TRITON)


@pytest.mark.parametrize("to", HALF)
def test_only_f16_loses_what_is_subnormal(to: torch.dtype) -> None:
    """No argument of the kernels is of 16 bits.  (The interpreter gets subnormal bf16 wrong.)"""
    x = torch.linspace(-95, -80, 200)
    (graph,) = litz.explain(lambda x: x.exp().to(to).float(), x, options=TRITON).graphs
    (kernel,) = graph.stages.kernels
    assert ("flush" in kernel.source) == (to is torch.float16)


@pytest.mark.parametrize("size", [60, 3001])
@pytest.mark.parametrize("of", [torch.float32, torch.float64])
def test_sums_of_exponentials(size: int, of: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of nothing but -inf among them; and a sum from which much is taken stays exact."""
    monkeypatch.setattr(blocks, "PERSISTENT", 64)
    monkeypatch.setattr(blocks, "ROW", 1024)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        low = x - x.amax(1, True)
        e = low.exp()
        total = e.sum(1, True)
        return (e / total).half(), total.log().half(), (low - total.log()).half(), total.half()

    def taken(x: torch.Tensor) -> torch.Tensor:
        total = (x - x.amax(1, True)).exp().sum(1)
        return ((total - total.round()) * 100).half()

    x = torch.randn(6, size, generator=torch.Generator().manual_seed(size)).to(of) * 3
    x[1] = float("-inf")
    x[2, ::2] = float("-inf")
    x[3, 5] = float("inf")
    x[4, 5] = float("nan")
    check(fn, x, runs=1, judge=False, **TRITON)
    check(lambda x: (x - x.amax(1, True)).exp().sum(1), x, runs=1, **TRITON)
    check(taken, x[5:], runs=1, **TRITON)


def test_a_maximum_over_more_is_none_of_a_softmax() -> None:
    """Such a sum may be small: its logarithm shows every error."""
    x, r0, r1 = var("x0", 4), var("r0", 5), var("r1", 6)
    value = body.load(F32, "b0", 30 * x + 6 * r0 + r1)
    for axes, want in (((r1,), True), ((r0, r1), False)):
        top = body.reduce("max", axes, value)
        power = body.op("exp", body.op("sub", value, top))
        total = body.reduce("sum", (r1,), power)
        assert is_total(total) is want
        half = body.cast(body.op("log", total), F16)
        stores = (Store("b1", 5 * x + r0, half),)
        assert (power in narrow_nodes(stores)) is want
