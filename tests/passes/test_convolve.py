"""Which nests behind convolutions are computed by the library that computes these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import litz
from litz.ir.program import Extern, Program
from litz.ir.verify import verify
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.passes.convolve import CALL, TakeConvolutions
from litz.passes.pipeline import Pipeline, pipeline
from litz.runtime.tune import Choice

Tensor = torch.Tensor
TAKE = TakeConvolutions(("cpu",), built=True)
SHAPES = (2, 8, 6, 6), (16, 8, 3, 3), (2, 16, 6, 6)


def lowered(
    fn: Callable[..., Any], dtype: torch.dtype = torch.bfloat16, plain: bool = True
) -> Program:
    """A function of an image, a weight, what lies as the result, and a row."""
    kind = torch.channels_last if plain else torch.contiguous_format
    with FakeTensorMode():
        given = [torch.empty(s, dtype=dtype).to(memory_format=kind) for s in SHAPES]
        return lower_graph(
            make_fx(fn)(*given, torch.empty(16, dtype=dtype)), Settings(inference=True)
        )


def calls(p: Program, take: TakeConvolutions = TAKE) -> list[set[str]]:
    """Of each call that is made of a program, its operands and its epilogue."""
    made = take(p)
    verify(made, take.name)
    found = [n for n in made.nodes if isinstance(n, Extern) and n.target_name == CALL]
    names = {"scale", "bias", "added"}
    return [
        {k for k, _ in n.kwargs if k in names} | {str(dict(n.kwargs)["epilogue"])} - {""}
        for n in found
    ]


conv: Any = partial(F.conv2d, bias=None, padding=1)


def by_row(b: Tensor) -> Tensor:
    return b.view(1, -1, 1, 1)


def whole(x: Tensor, w: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (F.relu(conv(x, w) + by_row(b) + r),)


@pytest.mark.parametrize(
    ("fn", "wanted"),
    [
        (whole, {"bias", "added", "relu"}),
        (lambda x, w, r, b: (F.relu(conv(x, w)),), {"relu"}),
        (lambda x, w, r, b: (conv(x, w) + by_row(b),), {"bias"}),
        (lambda x, w, r, b: (r + conv(x, w),), {"added"}),
        (lambda x, w, r, b: (F.relu(conv(x, w) * 0.5 - by_row(b)),), {"scale", "bias", "relu"}),
        (
            lambda x, w, r, b: (F.relu((conv(x, w) + by_row(b)) * by_row(b)),),
            {"scale", "bias", "relu"},
        ),
        (lambda x, w, r, b: (F.batch_norm(conv(x, w), b, b, b, b),), {"scale", "bias"}),
    ],
)
def test_sums_behind_convolutions_are_part_of_them(
    fn: Callable[..., Any], wanted: set[str]
) -> None:
    assert calls(lowered(fn)) == [wanted]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w, r, b: (y := conv(x, w), F.relu(y)),  # it is returned too
        lambda x, w, r, b: (F.relu(y := conv(x, w)).sum(0) + (y * y).sum(0),),
        lambda x, w, r, b: (F.silu(conv(x, w)),),
        lambda x, w, r, b: (conv(x, w) * r,),
        lambda x, w, r, b: ((conv(x, w) + r) * by_row(b),),  # what is added has a factor
        lambda x, w, r, b: (F.relu(conv(x, w) + r + r.cos()),),  # more than a tensor is added
        lambda x, w, r, b: (F.relu(conv(x, w) + r.transpose(2, 3)),),
        lambda x, w, r, b: (conv(x, w).sum(1),),
        lambda x, w, r, b: (F.relu(conv(x, w)).transpose(2, 3).contiguous(),),
        lambda x, w, r, b: (F.relu(F.conv2d(x, w, b, padding=1)),),  # graphs on GPUs have no bias
        lambda x, w, r, b: (F.relu(F.conv_transpose2d(r, w)),),
        lambda x, w, r, b: (F.conv2d(x, w, None, padding=1),),
        lambda x, w, r, b: (F.relu(conv(x, w).clamp(max=1.0)),),
        lambda x, w, r, b: (F.relu(conv(x, w).to(torch.float8_e4m3fn).to(x.dtype)),),
        lambda x, w, r, b: (F.relu(conv(x, w).half().to(x.dtype)),),
    ],
)
def test_what_stays_apart(fn: Callable[..., Any]) -> None:
    assert not calls(lowered(fn))


def test_other_types_layouts_and_devices_stay() -> None:
    assert calls(lowered(whole))
    assert not calls(lowered(whole, torch.float32)) and not calls(lowered(whole, plain=False))
    assert not calls(lowered(whole), TakeConvolutions(("cuda",)))


def test_what_reads_a_convolution_s_operands_may_write_them_behind_it() -> None:
    """The call stands where its nest stood: what is between must not write what it reads."""

    def fn(x: Tensor, w: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = conv(x, w)
        x.copy_(x + 1)
        return (F.relu(y),)

    made = TAKE(lowered(fn))
    order = [n.target_name if isinstance(n, Extern) else "nest" for n in made.nodes]
    if CALL in order:
        assert "nest" not in order[: order.index(CALL)]


def test_forms_that_have_to_be_compiled_are_for_who_measures_them() -> None:
    take = TakeConvolutions(("cpu",))
    found = [
        len(calls(lowered(fn), take))
        for fn in (
            whole,
            lambda x, w, r, b: (conv(x, w) + by_row(b),),
            lambda x, w, r, b: (F.relu(conv(x, w) * 0.5 + by_row(b)),),
            lambda x, w, r, b: (F.relu(conv(x, w)),),
            lambda x, w, r, b: (conv(x, w) + by_row(b) + by_row(b.cos()),),
            lambda x, w, r, b: (conv(x[:, :4], w[:, :4]) + by_row(b),),  # of other strides
            lambda x, w, r, b: (conv(x, w[:, :4].contiguous(), groups=2) + by_row(b),),
        )
    ]
    assert found == [1, 1, 0, 0, 0, 0, 0]


def test_what_is_measured_to_be_slower_stays() -> None:
    asked: list[int] = []

    def rivals(index: int, *programs: Program | None) -> Choice:
        asked.append(len(programs))
        return Choice(index, (1.0, 1.0), True)

    for index, count in ((0, 1), (1, 0)):
        take = TakeConvolutions(("cpu",), True, partial(rivals, index))  # type: ignore[arg-type]
        assert len(calls(lowered(whole), take)) == count
    assert asked == [2, 2]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.d, self.nd = nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.na(self.a(x)) + self.nd(self.d(x)))


def test_a_block_runs_as_two_calls() -> None:
    """From the graph to what runs: results, strides, nan, other sizes."""

    def here(*given: Any) -> Pipeline:
        passes = pipeline(*given[:4], ("cpu",))
        return Pipeline(tuple(TAKE if isinstance(p, TakeConvolutions) else p for p in passes))

    torch.manual_seed(0)
    block = Block().eval().bfloat16().to(memory_format=torch.channels_last)
    options = {"graph_cache": False, "check_ir": True}
    with mock.patch("litz.compiler.pipeline", here), torch.no_grad():
        compiled = torch.compile(block, backend="litz", options=options, dynamic=True)
        for n, side in ((2, 6), (3, 9)):
            x = torch.randn(n, 8, side, side).bfloat16().to(memory_format=torch.channels_last)
            x[0, 0, 0, 0] = torch.nan
            ours, theirs = compiled(x), block(x)
            torch.testing.assert_close(ours, theirs, equal_nan=True, atol=2e-2, rtol=2e-2)
            assert ours.stride() == theirs.stride()
        report = litz.explain(block, x, options=options)
    assert sum(e.calls for e in report.externs if e.op == CALL) == 2
