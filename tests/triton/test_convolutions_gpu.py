"""Convolutions by cuDNN with what is behind them on a GPU: against float64, nan and infinities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import litz
from litz.passes.convolve import CALL, TakeConvolutions
from litz.passes.pipeline import Pipeline, pipeline
from litz.runtime.cache import Cache
from litz.runtime.convolutions import Apart, Convolutions, Images, problem_of
from litz.runtime.cudnn import Cudnn, libraries
from litz.runtime.instance import Instance
from litz.runtime.offers import keeping

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
Tensor = torch.Tensor
CUDA = torch.device("cuda", 0)
# Images, channels in and out, their side, the kernel's, stride, dilation, groups.
SHAPES = (
    (4, 64, 64, 28, 3, 1, 1, 1), (4, 64, 256, 14, 1, 1, 1, 1), (4, 3, 64, 56, 7, 2, 1, 1),
    (2, 64, 96, 15, 3, 2, 2, 1), (2, 64, 64, 14, 3, 1, 1, 4), (2, 60, 72, 13, 3, 1, 1, 1),
)  # fmt: skip


def images(*shape: int, dtype: torch.dtype = torch.float16, scale: float = 1.0) -> Tensor:
    gen = torch.Generator("cuda").manual_seed(sum(shape))
    x = (torch.randn(shape, generator=gen, device=CUDA) * scale).to(dtype)
    return x.to(memory_format=torch.channels_last)


def given(
    shape: Sequence[int], what: str, dtype: torch.dtype = torch.float16
) -> tuple[Images, dict[str, Any]]:
    """Operands; what: those that there are besides, by their first letters."""
    n, inner, outer, side, kernel, stride, dilation, groups = shape
    pad = dilation * (kernel // 2)
    x = images(n, inner, side, side, dtype=dtype)
    depth = inner // groups * kernel * kernel
    w = images(outer, inner // groups, kernel, kernel, dtype=dtype, scale=depth**-0.5)
    how: dict[str, Any] = {"stride": [stride] * 2, "padding": [pad] * 2, "dilation": [dilation] * 2}
    how["groups"] = groups
    like = F.conv2d(x, w, None, **how)
    rows = torch.float32 if "s" in what else dtype
    scale = torch.rand(outer, device=CUDA) + 0.5 if "s" in what else None
    bias = torch.randn(outer, device=CUDA).to(rows) if "b" in what else None
    added = images(*like.shape, dtype=dtype) if "a" in what else None
    return Images(x, w, torch.empty_like(like), scale, bias, added), how


def exact(o: Images, how: dict[str, Any]) -> Tensor:
    y = F.conv2d(o.image.double(), o.weight.double(), None, **how)
    row = (1, -1, 1, 1)
    y = y if o.scale is None else y * o.scale.double().view(row)
    y = y if o.bias is None else y + o.bias.double().view(row)
    return (y if o.added is None else y + o.added.double()).relu()


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def of(device: torch.device) -> Cudnn:
    found = next(x for x in libraries(device) if not isinstance(x, Apart))
    assert isinstance(found, Cudnn)
    return found


@pytest.mark.parametrize("what", ["b", "ba", "sb", "sba"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_is_right(shape: Sequence[int], what: str) -> None:
    dtype = torch.bfloat16 if shape[4] == 1 else torch.float16
    o, how = given(shape, what, dtype)
    p, wanted, library = problem_of(o, **how, epilogue="relu"), exact(o, how), of(CUDA)
    Apart().bind(p, Instance(""))(o)
    theirs = error(o.out, wanted)
    for way in library.instances(p, 4):
        o.out.fill_(torch.nan)
        library.bind(p, way)(o)
        assert error(o.out, wanted) <= 1.2 * theirs, way


@pytest.mark.parametrize("what", ["b", "ba", "sba"])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_the_way_that_is_taken_keeps_nan(shape: Sequence[int], what: str, tmp_path: Path) -> None:
    o, how = given(shape, what)
    made = Convolutions(libraries, Cache(tmp_path), 0.0)
    for mark in (torch.nan, torch.inf, -torch.inf):
        x = o.image.clone()
        x[0, 1, 3, 5] = mark
        out = torch.empty_like(o.out)
        kind = {k: v for k, v in o.operands.items() if k in ("scale", "bias", "added")}
        made.convolution(x, o.weight, out=out, **kind, **how, epilogue="relu")
        wanted = exact(Images(x, o.weight, out, **kind), how)
        assert torch.equal(out.isnan(), wanted.isnan())
        assert torch.equal(out.isinf(), wanted.isinf())
    assert len(made.chosen) == 1


def test_ways_are_judged_by_what_they_make_of_nan() -> None:
    o, how = given(SHAPES[0], "b")
    p, library, first = problem_of(o, **how, epilogue="relu"), of(CUDA), Apart()
    by = {x.version: x for x in (first, library)}
    ways = library.instances(p, 8)
    kept = keeping(p, o, by, first.instances(p, 1)[0], ways)
    assert ways and {*kept} <= {*ways}


class Block(nn.Module):
    """Two convolutions with batch norms, of which one is added to the other, and one with bias."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.b, self.nb = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.d, self.nd = nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64)
        self.last = nn.Conv2d(64, 64, 3, padding=1)
        for n in (self.na, self.nb, self.nd):
            n.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr, operator]
            n.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr, operator]

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.na(self.a(x)))
        y = F.relu(self.nb(self.b(y)) + self.nd(self.d(x)))
        return F.relu(self.last(y) + y)


def built(*given: Any) -> Pipeline:
    """The passes, with forms that cuDNN compiles."""
    take = TakeConvolutions(("cuda",), built=True)
    passes = pipeline(*given)
    return Pipeline(tuple(take if isinstance(p, TakeConvolutions) else p for p in passes))


@pytest.mark.parametrize(
    ("kind", "how", "count"),
    [
        ({}, pipeline, 1),
        ({"mode": "reduce-overhead"}, pipeline, 1),
        ({"options": {"graph_cache": False}}, built, 2),
    ],
)
def test_a_residual_block_is_calls_of_cudnn(kind: dict[str, Any], how: Any, count: int) -> None:
    torch.manual_seed(0)
    block = Block().cuda().eval()
    x = images(8, 32, 28, 28, dtype=torch.float32)
    with torch.no_grad(), mock.patch("litz.compiler.pipeline", how):
        wanted = block.double()(x.double())
        block = block.half().to(memory_format=torch.channels_last)
        theirs = block(x.half())
        torch._dynamo.reset()
        compiled = torch.compile(block, backend="litz", dynamic=False, **kind)
        for _ in range(3):
            ours = compiled(x.half()).clone()
        assert error(ours, wanted) <= 1.05 * error(theirs, wanted)
        assert ours.stride() == theirs.stride()
        bad = x.half().clone()
        bad[0, 0, 0, 0] = torch.nan
        assert torch.equal(compiled(bad).isnan(), block(bad).isnan())
        report = litz.explain(block, x.half(), options={"graph_cache": False})
    # One of a single element is a product, which may be a template.
    assert sum(e.calls for e in report.externs if e.op == CALL) >= count


def test_batches_of_any_size() -> None:
    block = Block().cuda().eval().half().to(memory_format=torch.channels_last)
    torch._dynamo.reset()
    compiled = torch.compile(block, backend="litz", dynamic=True)
    with torch.no_grad():
        for n in (2, 5, 9):
            x = images(n, 32, 14, 14)
            torch.testing.assert_close(compiled(x), block(x), atol=2e-2, rtol=2e-2)
