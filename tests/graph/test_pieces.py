"""Products and their transfers in pieces give what they give whole, where pieces pay."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from collective_cases import group, ops, starts  # noqa: F401 - group is a fixture
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from litz.compiler import compile_graph
from litz.graph.calls import op_name
from litz.graph.pieces import PRODUCTS, pipeline_products
from litz.ir.flops import Rates
from litz.ir.program import Extern
from litz.options import make_options
from litz.stages import Stages

SLOW = Rates(latency=1e-9, bandwidth=1e6, memory=1e12, operations=1e7, launch=1e-9)


def name() -> str:
    return dist.group.WORLD.group_name


def whole(x: Tensor, world: int, dim: int = 0) -> Tensor:
    """As DTensor gathers along a dimension."""
    y = ops.wait_tensor(ops.all_gather_into_tensor(x, world, name()))
    return y if dim == 0 else torch.cat(torch.split(y, x.shape[0]), dim)


def parted(x: Tensor, world: int, dim: int = 0) -> Tensor:
    if dim:
        x = torch.cat(torch.split(x, x.shape[dim] // world, dim))
    return ops.wait_tensor(ops.reduce_scatter_tensor(x, "sum", world, name()))


def rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


class Ranks(torch.fx.Interpreter):
    """A graph in several processes at once: a value is a list, one of each."""

    def __init__(self, gm: torch.fx.GraphModule, world: int) -> None:
        super().__init__(gm)
        self.world = world

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        kind = op_name(target)
        if kind == "wait_tensor":
            return args[0]
        if kind == "all_reduce":
            return [sum(args[0])] * self.world
        if kind == "all_gather_into_tensor":
            return [torch.cat(args[0])] * self.world
        if kind == "reduce_scatter_tensor":
            return [*sum(args[0]).chunk(self.world)]
        if target is operator.getitem:
            return [x[args[1]] for x in args[0]]

        def of(k: int, a: Any) -> Any:
            if isinstance(a, list) and len(a) == self.world and not isinstance(a[0], int):
                return [b[k] for b in a] if isinstance(a[0], list) else a[k]
            return [b[k] for b in a] if a and isinstance(a, list) and isinstance(a[0], list) else a

        return [target(*(of(k, a) for a in args), **kwargs) for k in range(self.world)]


def gathers(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, whole(x, 2), w).relu()


def gathers_rows(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    """Three dimensions, the second gathered, two products and another reader."""
    y = whole(x.view(2, -1, x.shape[1]), 2, 1)
    return [rows(y) @ w, torch.addmm(b, rows(y), w) * 2, y.sum(1)]


def scatters(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return parted(torch.addmm(b, x, w), 2) + 1


def scatters_rows(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return parted(torch.mm(x, w).view(2, -1, w.shape[1]), 2, 1) + b


def reduces(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = torch.mm(x, w).view(2, -1, w.shape[1])
    return ops.wait_tensor(ops.all_reduce(y, "sum", name())) * 2


CUT = [(gathers, 2), (gathers_rows, 2), (scatters, 2), (scatters_rows, 2), (reduces, 2)]


def traced(fn: Callable[..., Any], *args: Tensor) -> torch.fx.GraphModule:
    return make_fx(fn, tracing_mode="fake")(*args)


def cut(gm: torch.fx.GraphModule, rates: Rates = SLOW, smallest: int = 64) -> list[str]:
    said = pipeline_products(gm, {name(): rates}, {name(): smallest})
    gm.graph.lint()
    gm.recompile()
    return said


def flat(out: Any) -> list[Tensor]:
    return [t for x in out for t in (x if isinstance(x, list) else [x])]


@pytest.mark.parametrize(("fn", "world"), CUT)
def test_pieces_compute_what_the_whole_does(fn: Callable[..., Any], world: int) -> None:
    given = [[torch.randn(s) for _ in range(world)] for s in ((32, 16), (16, 24), (24,))]
    gm = traced(fn, *(g[0] for g in given))
    wanted = Ranks(gm, world).run(*given)
    (said,) = cut(gm)
    assert ": in 8 pieces: " in said and " -> " in said
    assert len(starts(gm.graph.nodes)) == 8
    for node in gm.graph.nodes:
        if node.op == "call_function":
            assert "val" in node.meta
    out = Ranks(gm, world).run(*given)
    for mine, other in zip(flat(out), flat(wanted), strict=True):
        assert mine.shape == other.shape and torch.allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_pieces_alternate() -> None:
    """What is sent leaves before the next product; what comes is multiplied before the next."""
    x, w, b = torch.randn(32, 16), torch.randn(16, 24), torch.randn(24)
    for fn, first, then in ((reduces, "mm", "all_reduce"), (gathers, "wait_tensor", "addmm")):
        gm = traced(fn, x, w, b)
        cut(gm)
        order = [op_name(n.target) for n in gm.graph.nodes]
        assert [k for k in order if k in (first, then)] == [first, then] * 8


def beside(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    """Another product hides the transfer."""
    y = ops.all_reduce(torch.mm(x, w), "sum", name())
    other = torch.mm(torch.mm(w, w.t()), w)
    return [ops.wait_tensor(y), other]


def read_twice(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    y = torch.mm(x, w)
    return [ops.wait_tensor(ops.all_reduce(y, "sum", name())), y]


@pytest.mark.parametrize(
    ("fn", "rates", "smallest", "why"),
    [
        (reduces, SLOW, 1 << 20, "too small to cut"),
        (reduces, Rates(1e-3, 1e9, 1e12, 1e12, 1e-6), 64, "in one piece"),  # calls cost more
        (reduces, Rates(1e-9, 1e12, 1e12, 1e7, 1e-9), 64, "in one piece"),  # hardly any transfer
        (beside, Rates(1e-9, 1e6, 1e12, 1e6, 1e-9), 64, "of others"),
        (read_twice, SLOW, 64, ""),
    ],
)
def test_what_does_not_pay_stays(fn: Any, rates: Rates, smallest: int, why: str) -> None:
    gm = traced(fn, torch.randn(32, 16), torch.randn(16, 24), torch.randn(24))
    before = gm.code
    said = cut(gm, rates, smallest)
    assert gm.code == before and len(said) == bool(why) and why in "".join(said)
    assert all(n.target in PRODUCTS for n in gm.graph.nodes if "mm" in op_name(n.target))


def test_the_schedule_sends_a_piece_before_the_next_product() -> None:
    args = torch.randn(512, 256), torch.randn(256, 256), torch.randn(24)
    gm = traced(lambda *given: [reduces(*given)], *args)
    cut(gm)
    stages = Stages()
    compile_graph(gm, make_options({"check_ir": True, "bandwidth": 500}), stages)
    assert stages.schedule is not None
    calls = [s.target_name.split(".")[1] for s in stages.schedule.steps if isinstance(s, Extern)]
    assert calls[:16] == ["mm", "all_reduce_"] * 8  # in place: products lie apart
