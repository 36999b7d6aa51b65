"""Operators that Litz only calls get their arguments laid out as PyTorch's metadata states."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litz.ir.program import Extern, Loops
from tests.lowering.evaluate import check, lower_fn

Fn = Callable[..., Tensor]


@pytest.fixture(scope="module")
def layout() -> Iterator[Fn]:
    """An operator whose result is where its argument lies: strides, offset and address, by 16."""
    with torch.library._scoped_library("litz_layouts", "FRAGMENT") as lib:
        lib.define("of(Tensor x) -> Tensor")

        def real(x: Tensor) -> Tensor:
            where = (*x.stride(), x.storage_offset(), x.data_ptr() % 16)
            return torch.tensor([float(n) for n in where])

        lib.impl("of", real, "CPU")
        lib.impl("of", lambda x: x.new_empty(x.dim() + 2, dtype=torch.float32), "Meta")
        yield torch.ops.litz_layouts.of


def aligned_mask(m: Tensor, of: Fn) -> Tensor:
    """What PyTorch makes of a mask for attention on GPUs: rows of 16 elements that hold 13."""
    keys = m.shape[-1]
    wide = F.pad(m, (0, -keys % 16))[..., :keys]
    return of(wide.expand(3, 4, *wide.shape[-2:]))


PROGRAMS: dict[str, Callable[[Tensor, Fn], Tensor]] = {
    "aligned": aligned_mask,
    "computed": lambda x, of: aligned_mask(torch.where(x > 0, 0.0, -1e9), of),
    "both": lambda x, of: torch.cat((aligned_mask(x * 2, of)[:4], (x * 0).sum(1))),
    "expanded": lambda x, of: of((x + 1)[:, :1].expand(-1, 5)),
    "sliced": lambda x, of: of((x * x)[:, 2:9]),
    "stepped": lambda x, of: of(x.sin()[:, ::3]),
    "twice": lambda x, of: torch.stack((of((x * x)[:, 2:9]), of((x * x)[:, 2:9].t()))),
    "transposed": lambda x, of: of((x + 1).t()),
    "repeated": lambda x, of: of(x.cos()[None].expand(2, -1, -1).transpose(0, 2)),
    "one element": lambda x, of: of(x[:, None].expand(-1, 1, -1).transpose(1, 2)),
    "one row": lambda x, of: of((x * 2)[:1]) + of((x * 2)[None, 0]),
    "overlapping": lambda x, of: of((x + 1).unfold(1, 4, 2)),
    "contiguous": lambda x, of: of((x + 1).t().contiguous()),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_layouts(dynamic: bool, layout: Fn) -> None:
    def every(x: Tensor) -> list[Tensor]:
        return [program(x, layout) for program in PROGRAMS.values()]

    torch._dynamo.reset()
    compiled = torch.compile(every, backend="litz", dynamic=dynamic, options={"check_ir": True})
    for rows in (7, 8):
        x = torch.randn(rows, 13)
        for name, mine, eager in zip(PROGRAMS, compiled(x), every(x), strict=True):
            # Offsets in memory of eager's own are for eager to know.
            assert torch.equal(mine[..., :-2], eager[..., :-2]), (name, mine, eager)
            assert mine[..., -1].any() <= eager[..., -1].any(), name


def test_numbers_that_calls_read_are_constants() -> None:
    """No kernel makes them."""
    x = torch.randn(5, 7, dtype=torch.float64)
    found = lower_fn(lambda x: torch.linalg.pinv(x, atol=0.5, rtol=0.25), x)
    assert sorted(float(v) for v in found.constants.values()) == [0.25, 0.5]
    assert not any(isinstance(n, Loops) for n in found.nodes)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.linalg.pinv(x, atol=0.5), torch.linalg.pinv(x, atol=3.0)

    check(both, x, externs=["linalg_pinv"], ulps=100)


def test_numbers_that_calls_may_return_are_made_each_time() -> None:
    with torch.library._scoped_library("litz_numbers", "FRAGMENT") as lib:
        lib.define("same(Tensor x) -> Tensor")
        lib.impl("same", lambda x: x.clone(), "CPU")
        lib.impl("same", lambda x: x.new_empty(()), "Meta")
        same = torch.ops.litz_numbers.same
        program = lower_fn(lambda x: same(torch.full((), 2.5)) + x, torch.ones(3))
        assert not program.constants
        assert any(isinstance(n, Extern) for n in program.nodes)
