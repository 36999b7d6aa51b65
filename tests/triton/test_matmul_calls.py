"""Calls of operators that are products and something around them, as templates: interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_matmul import TRITON, error, ints, rand, stages, templates
from torch._higher_order_ops.out_dtype import out_dtype

import litz

Tensor = torch.Tensor
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
Case = tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...], int]


def rowwise(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Activations become 8 bits row by row; so are the weights."""
    own = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
    q = (x.float() / own).clamp(-448, 448).to(E4)
    out = torch._scaled_mm(
        q, w.t(), own, scale.t(), bias=bias, out_dtype=x.dtype, use_fast_accum=True
    )
    return F.relu(out)


def rowwise_exact(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    own = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
    q = (x.float() / own).clamp(-448, 448).to(E4).double() * own.double()
    return F.relu(q @ (w.double() * scale.double()).t() + bias.double())


def tensorwise(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.float32).sigmoid()


def tensorwise_exact(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return ((x.double() @ w.double().t()) * a.double() * b.double()).sigmoid()


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-5) / 127
    return torch.round(x.float() / scale).clamp(-128, 127).to(torch.int8), scale


def dynamic(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    q, own = quantised(x)
    return (torch._int_mm(q, w.t()) * own * scale).to(x.dtype) + bias


def dynamic_exact(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    q, own = quantised(x)
    return (q.double() @ w.double().t()) * own.double() * scale.double() + bias.double()


def int8pack(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return torch.ops.aten._weight_int8pack_mm(x, w, scale).relu()


def int8pack_exact(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return ((x.double() @ w.double().t()) * scale.double()).relu()


def grouped(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return F.silu(torch._grouped_mm(x, w.transpose(-2, -1), offs=ends))


def grouped_exact(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    which = torch.searchsorted(ends, torch.arange(len(x)), right=True)
    return F.silu((x.double()[:, None] @ w.double()[which].transpose(-2, -1))[:, 0])


def pairs(x: Tensor, w: Tensor) -> Tensor:
    return torch._grouped_mm(x, w).relu()


def pairs_exact(x: Tensor, w: Tensor) -> Tensor:
    return (x.double() @ w.double()).relu()


def conv(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, w, b) + r)


def conv_exact(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.relu(F.conv2d(x.double(), w.double(), b.double()) + r.double())


def ends(*rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


# The function, what it is in float64, arguments, and how many kernels there are.
CASES: dict[str, Case] = {
    "rowwise": (
        rowwise, rowwise_exact,
        (rand(34, 96), rand(64, 96).to(E4), rand(64, 1).float(), rand(64)), 2,
    ),
    "rowwise_thin": (
        rowwise, rowwise_exact,
        (rand(1, 80), rand(48, 80).to(E4), rand(48, 1).float(), rand(48)), 2,
    ),
    "tensorwise": (
        tensorwise, tensorwise_exact,
        (rand(20, 32).to(E4), rand(48, 32).to(E4), torch.tensor(0.2), torch.tensor([0.7])), 1,
    ),
    "dynamic": (
        dynamic, dynamic_exact, (rand(33, 72), ints(40, 72), rand(40).float(), rand(40)), 2
    ),
    "dynamic_long": (
        dynamic, dynamic_exact, (rand(16, 4096), ints(16, 4096), rand(16).float(), rand(16)), 2
    ),
    "int8pack": (int8pack, int8pack_exact, (rand(20, 64), ints(48, 64), rand(48)), 1),
    "grouped": (grouped, grouped_exact, (rand(70, 64), rand(5, 48, 64), ends(7, 7, 40, 66, 70)), 1),
    "grouped_few": (
        grouped, grouped_exact, (rand(3, 64), rand(8, 40, 64), ends(*[0] * 6, 2, 3)), 1
    ),
    "pairs": (pairs, pairs_exact, (rand(3, 16, 32), rand(3, 32, 24)), 1),
    "conv_turned": (
        conv, conv_exact,
        (rand(2, 16, 6, 5), rand(24, 16, 1, 1), rand(24), last(rand(2, 24, 6, 5))), 1,
    ),
    "conv": (
        conv, conv_exact,
        (last(rand(2, 16, 6, 5)), rand(24, 16, 1, 1), rand(24), last(rand(2, 24, 6, 5))), 1,
    ),
}  # fmt: skip


def eager(fn: Callable[..., Tensor], args: tuple[Tensor, ...]) -> Tensor:
    try:
        return fn(*args)
    except RuntimeError as e:
        assert "per-tensor scaling" in str(e)
        pytest.skip("CPUs have no scales of rows")


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_part_of_a_kernel(name: str) -> None:
    fn, exact, args, kernels = CASES[name]
    own, reference = eager(fn, args), exact(*args)
    found, s = stages(fn, *args)
    assert (found.dtype, found.shape, found.stride()) == (own.dtype, own.shape, own.stride())
    assert error(found, reference) <= 2 * error(own, reference) + 1e-7
    assert len(templates(s)) == 1 and not s.externs()
    assert s.schedule is not None and len(s.schedule.steps) == kernels


def test_several_calls_are_kernels() -> None:
    """Each call's result is the program's own memory, whatever was opened before."""
    fn, _, (x, *rest), _ = CASES["conv"]

    def both(x: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        return fn(x, *rest), fn(x * 2, *rest)

    found, s = stages(both, x, *rest)
    assert len(templates(s)) == 2 and not s.externs()
    for a, b in zip(found, both(x, *rest), strict=True):
        assert error(a, b) < 0.01


@pytest.mark.parametrize("name", ["tensorwise", "dynamic", "grouped", "conv"])
def test_kernels_check_themselves(name: str) -> None:
    fn, _, args, _ = CASES[name]
    options = {**TRITON, "verify": True}
    assert error(torch.compile(fn, backend="litz", options=options)(*args), fn(*args)) < 0.01


def test_bytes_are_added_exactly() -> None:
    for x, w in ((-128, -128), (-128, 127), (127, 127)):
        a = torch.full((17, 96), x, dtype=torch.int8)
        b = torch.full((96, 33), w, dtype=torch.int8)
        found, s = stages(lambda a, b: torch._int_mm(a, b) + 1, a, b)
        assert templates(s) and bool((found == 96 * x * w + 1).all())


@pytest.mark.parametrize("kind", [E4, E5])
def test_what_is_not_finite_stays_so(kind: torch.dtype) -> None:
    x, w, one = rand(20, 32).to(kind), rand(48, 32).to(kind), torch.tensor(1.0)
    x.view(torch.uint8)[3, 5] = 0x7F  # nan
    x.view(torch.uint8)[4, 5] = 0x7C  # of e5m2: infinity
    found, s = stages(
        lambda x, w: torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.float32) * 2, x, w
    )
    assert templates(s)
    wide = 2 * (x.float() @ w.float().t())
    torch.testing.assert_close(found, wide, equal_nan=True)


def test_a_product_of_bytes_by_another_name() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return out_dtype(torch.ops.aten.mm.default, torch.int32, x, w) * 2

    found, s = stages(fn, x := ints(32, 64), w := ints(64, 48))
    assert templates(s) and torch.equal(found, 2 * torch._int_mm(x, w))


def test_rows_behind_all_groups_are_nobody_s() -> None:
    x, w, behind = rand(40, 32), rand(3, 24, 32), ends(5, 9, 30)
    found, s = stages(grouped, x, w, behind)
    assert templates(s)
    assert error(found[:30], grouped_exact(x[:30], w, behind)) < 0.01


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x, w: torch._int_mm(x, w.t()), (ints(32, 64), ints(48, 64))),  # nothing around it
        (lambda x, w: F.conv2d(x, w).relu(), (last(rand(2, 16, 6, 5)), rand(24, 16, 3, 3))),
        (
            lambda x, w: F.conv2d(x, w, stride=2).relu(),
            (last(rand(2, 16, 6, 5)), rand(24, 16, 1, 1)),
        ),
        (lambda x, w: F.conv2d(x, w, padding=1) * 2, (last(rand(2, 8, 4, 4)), rand(8, 8, 1, 1))),
        (lambda x, w: F.conv2d(x, w, groups=2) * 2, (last(rand(2, 8, 4, 4)), rand(8, 4, 1, 1))),
    ],
)
def test_calls_that_stay(fn: Any, args: tuple[Tensor, ...]) -> None:
    found, s = stages(fn, *args)
    assert not templates(s) and len(s.externs()) == 1
    torch.testing.assert_close(found, fn(*args))


def test_open_rows() -> None:
    compiled = torch.compile(rowwise, backend="litz", dynamic=True, options=TRITON)
    for m in (34, 5):
        args = rand(m, 96), *CASES["rowwise"][2][1:]
        eager(rowwise, args)
        assert error(compiled(*args), rowwise_exact(*args)) < 0.01


def test_calls_open_on_gpus_alone() -> None:
    fn, _, args, _ = CASES["dynamic"]
    (graph,) = litz.explain(fn, *args, options={"check_ir": True}).graphs
    assert [e.target_name for e in graph.stages.externs()] == ["aten._int_mm.default"]
