"""Communication of a training step at many ranks, by the estimates that order it.

The graph of a step (layers of ``distributed.Transformer``, weights in parts that the graph gathers)
is traced for each number of ranks with tensors that hold nothing, compiled as far as its schedule,
which needs no GPU, and timed by Litz's cost model of one: the GPU at hand, or a large one.  A
network has two bandwidths: processes of one host talk by the first, a ring that leaves it is as
slow as the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.report import align
from litz.compiler import compile_graph
from litz.graph.communicate import narrow_before_gathering, share_calls
from litz.ir.flops import Rates
from litz.options import make_options
from litz.schedule import overlap
from litz.schedule.build import schedule as make_schedule
from litz.schedule.fuse import FusionSettings
from litz.schedule.groups import Schedule
from litz.stages import Stages
from litz.targets.triton.costs import costs_of

WORLDS = (2, 8, 16, 32, 64, 128, 256, 512, 1024)
HEADER: tuple[str, ...] = (
    *("ranks", "calls", "MB", "compute ms", "transfers ms", "exposed ms"),
    "in the graph's order",
)


@dataclass(frozen=True)
class Network:
    """How processes are connected: seconds, bytes a second of each, and processes of a host."""

    latency: float = 2e-5
    inside: float = 2e11
    across: float = 4e10
    host: int = 8

    def between(self, world: int) -> tuple[float, float]:
        """Latency and bandwidth at so many ranks, as ``overlap.Rates`` has them.

        A ring moves (n - 1) / n of the bytes; what starts it goes through a tree of the ranks.
        """
        slowest = self.inside if world <= self.host else min(self.inside, self.across)
        return self.latency * max(1.0, math.log2(world)), slowest * world / (world - 1)


class Gather(torch.autograd.Function):
    """A weight of its parts; its gradient in parts."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        ops, group = torch.ops._c10d_functional, dist.group.WORLD
        assert group is not None
        whole = ops.all_gather_into_tensor(part, dist.get_world_size(), group.group_name)
        found: Tensor = ops.wait_tensor(whole)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        ops, group = torch.ops._c10d_functional, dist.group.WORLD
        assert group is not None
        whole = grads[0].contiguous()
        part = ops.reduce_scatter_tensor(whole, "avg", dist.get_world_size(), group.group_name)
        found: Tensor = ops.wait_tensor(part)
        return found


class Parted(nn.Module):
    """A product whose weight lies in parts on all ranks."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out // dist.get_world_size(), fan_in))

    def forward(self, x: Tensor) -> Tensor:
        whole: Tensor = Gather.apply(self.weight)  # type: ignore[no-untyped-call]
        return nn.functional.linear(x, whole.to(x.dtype))


def graph_of(layers: int, width: int, tokens: tuple[int, int]) -> GraphModule:
    """A layer stack's loss and gradients, in bfloat16 with weights of float32."""
    from benchmarks.distributed import Layer

    with torch.device("meta"):
        net = nn.ModuleList(Layer(width, Parted) for _ in range(layers))
    names, shapes = zip(*((n, p.shape) for n, p in net.named_parameters()), strict=True)
    with FakeTensorMode():
        types = (torch.bfloat16 if "norm" in name else torch.float32 for name in names)
        made = zip(shapes, types, strict=True)
        weights = [torch.empty(shape, dtype=t, requires_grad=True) for shape, t in made]
        x = torch.empty(*tokens, width, dtype=torch.bfloat16)

        def step(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            given = dict(zip(names, weights, strict=True))
            for k, layer in enumerate(net):
                own = {n.split(".", 1)[1]: w for n, w in given.items() if n.startswith(f"{k}.")}
                x = torch.func.functional_call(layer, own, (x,))
            return torch.autograd.grad(x.float().square().mean(), weights)

        return make_fx(step)(x, *weights)


def schedule_of(gm: GraphModule, limits: Mapping[str, int]) -> Schedule:
    """The schedule of a graph whose transfers up to limits in bytes, by group, share calls."""
    narrow_before_gathering(gm)
    share_calls(gm, limits)
    stages = Stages()
    compile_graph(gm, make_options({}), stages)
    assert stages.program is not None
    return make_schedule(stages.program, FusionSettings())  # in the order of the graph


def predicted(
    world: int, network: Network, layers: int, width: int, tokens: tuple[int, int]
) -> tuple[str, ...]:
    """Milliseconds of a step at so many ranks: a row of the table."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    costs = costs_of("cuda")
    assert costs is not None
    latency, bandwidth = network.between(world)
    rates = Rates(latency, bandwidth, costs.memory, costs.matrix, costs.launch)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        limit = overlap.worth_a_call("cuda", int(bandwidth / 1e6))
        limits = {dist.group.WORLD.group_name: limit}  # type: ignore[union-attr]
        schedule = schedule_of(graph_of(layers, width, tokens), limits)
    finally:
        dist.destroy_process_group()
    found = overlap.overlap(schedule, rates)
    moved = found.transfers
    exposed = sum(t.left for t in moved)
    total = overlap.seconds(found, rates)
    sent, written = sum(t.seconds for t in moved), sum(t.idle for t in moved)
    times = (total - exposed, sent, exposed, written)
    return (
        str(world),
        str(len(moved)),
        f"{sum(t.bytes for t in moved) / 1e6:.0f}",
        *(f"{1e3 * t:.2f}" for t in times),
    )


def table(
    network: Network, layers: int = 12, width: int = 2048, tokens: tuple[int, int] = (4, 1024)
) -> str:
    """The prediction for all numbers of ranks, as text: layers on the tokens of a rank."""
    row = partial(predicted, network=network, layers=layers, width=width, tokens=tokens)
    return align([HEADER, *(row(world) for world in WORLDS)])
