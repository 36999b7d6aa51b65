"""What each process of a test of several runs: ``python -m tests.distributed.ranks RANK WORLD FILE
CASE..``.

Every case is a training step or a program that eager mode runs as well; they have to agree.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from benchmarks.distributed import Sharded
from litz.reporting import Listener
from litz.runtime import meeting

CASES: dict[str, Callable[[], None]] = {}
ops = torch.ops._c10d_functional


def case(fn: Callable[[], None]) -> Callable[[], None]:
    CASES[fn.__name__] = fn
    return fn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def model(width: int = 32, layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(layers)))


def data(rows: int = 6, width: int = 32) -> Tensor:
    torch.manual_seed(1 + dist.get_rank())
    return torch.randn(rows, width)


def agree(mine: Any, theirs: Any, bound: float = 1e-5) -> None:
    a, b = (x.full_tensor() if isinstance(x, DTensor) else x for x in (mine, theirs))
    distance, size = (a - b).double().norm().item(), b.double().norm().item()
    assert distance <= bound * (size + 1e-6), (distance, size)


def train(net: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor, steps: int = 3) -> list[Any]:
    """Losses of some steps, and the parameters behind them."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in net.parameters())]


def compare(
    make: Callable[[], nn.Module],
    x: Tensor,
    bound: float = 1e-5,
    inside: bool = False,
    options: dict[str, Any] | None = None,
) -> None:
    """A model of several processes, compiled, beside eager.  inside: its blocks are compiled."""
    eager, mine = make(), make()
    if inside:
        for block in mine.children():
            block.compile(backend="litz")
        run: Any = mine
    else:
        run = torch.compile(mine, backend="litz", options=options)
    for a, b in zip(train(mine, run, x), train(eager, eager, x), strict=True):
        agree(a, b, bound)


@case
def collectives() -> None:
    """All functional collectives in one program, starts and waits apart."""
    name, world = dist.group.WORLD.group_name, dist.get_world_size()

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        total = ops.all_reduce(x.sin(), "sum", name)
        parts = ops.all_gather_into_tensor(x * 2, world, name)
        h = (w @ w).relu() @ w
        mine = ops.reduce_scatter_tensor(x.repeat(world, 1) + 1, "sum", world, name)
        rows = [2] * world
        others = ops.all_to_all_single(x[: 2 * world].contiguous(), rows, rows, name)
        first = ops.broadcast(x + 1, 0, name)
        several = ops.all_reduce_coalesced([x.cos(), w.cos()], "sum", name)
        waited = [ops.wait_tensor(t) for t in (total, parts, mine, others, first, *several)]
        return (*(t * 2 for t in waited), h)

    x = data(2 * dist.get_world_size(), 16)
    w = torch.randn(16, 16)
    for a, b in zip(torch.compile(fn, backend="litz")(x, w), fn(x, w), strict=True):
        agree(a, b)


@case
def uneven() -> None:
    """Numbers of rows that differ among processes, exchanged at sizes that data says."""

    def fn(x: Tensor, counts: Tensor) -> Tensor:
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        ins, outs = theirs.tolist(), counts.tolist()
        out = x.new_empty(sum(ins), x.shape[1])
        dist.all_to_all_single(out, x * 2, ins, outs)
        return out.tanh()

    rank, world = dist.get_rank(), dist.get_world_size()
    counts = torch.tensor([1 + (rank + k) % 3 for k in range(world)])
    x = data(int(counts.sum()), 8)
    agree(torch.compile(fn, backend="litz")(x, counts), fn(x, counts))


@case
def ddp() -> None:
    compare(lambda: DistributedDataParallel(model()), data())


@case
def fsdp() -> None:
    def make() -> nn.Module:
        net = model()
        for block in net:
            fully_shard(block)
        return fully_shard(net)

    compare(make, data(), inside=True)
    compare(make, data())


@case
def fsdp_mixed() -> None:
    """Mixed precision, and activations computed again."""

    def make() -> nn.Module:
        net = nn.Sequential(*(checkpoint_wrapper(b) for b in model()))
        for block in net:
            fully_shard(block, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        return fully_shard(net)

    compare(make, data(), 2e-2, inside=True)


@case
def hybrid() -> None:
    """Sharded within halves, replicated among them."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("r", "s"))

    def make() -> nn.Module:
        net = model()
        for block in net:
            fully_shard(block, mesh=mesh)
        return fully_shard(net, mesh=mesh)

    compare(make, data(), inside=True)


@case
def sharded() -> None:
    """Collectives of several parameters share calls, forward and backward."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(m for _ in range(3) for m in (Sharded(32, 32, "cpu"), nn.ReLU())))

    kinds: list[str] = []

    def hear(c: Any) -> None:
        names = [n.target_name for n in c.stages.schedule.steps if hasattr(n, "target_name")]
        kinds.extend(name for name in names if "coalesced" in name)

    with Listener(hear, stages=True):
        compare(make, data())
    assert any("gather" in k for k in kinds) and any("scatter" in k for k in kinds), kinds
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        compare(make, data().bfloat16(), 3e-2)


@case
def tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def make() -> nn.Module:
        net = model()
        for block in net:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return net

    torch.manual_seed(7)
    compare(make, torch.randn(6, 32))


@case
def tensor_parallel_in_pieces() -> None:
    """Sequences in parts between layers: products are cut with what is gathered and scattered."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))

    def make() -> nn.Module:
        net = model(512, 2)
        for block in net:
            plan = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            }
            parallelize_module(block, mesh, plan)
        return net

    said: list[str] = []
    with Listener(lambda c: said.extend(c.stages.pieces), stages=True):
        x = data(2 * 256 // world, 512).view(2, -1, 512)
        compare(make, x, options={"bandwidth": 500})  # by which pieces pay
    assert sum(": in one piece" not in s for s in said) >= 4, said


@case
def distributed_tensors() -> None:
    """Operators of sharded tensors, shards uneven."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def fn(x: DTensor, w: DTensor) -> Any:
        y = (x @ w).relu()
        return y.sum(0).redistribute(mesh, [Replicate()]), y.redistribute(mesh, [Shard(1)]) * 2

    torch.manual_seed(3)
    x = distribute_tensor(torch.randn(7, 8), mesh, [Shard(0)])
    w = distribute_tensor(torch.randn(8, 6), mesh, [Replicate()])
    for a, b in zip(torch.compile(fn, backend="litz")(x, w), fn(x, w), strict=True):
        agree(a, b)


@case
def pipeline() -> None:
    """Stages of a pipeline, each compiled."""
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = copy.deepcopy(model(32, world)[rank])
    eager = copy.deepcopy(stage)
    run = torch.compile(stage, backend="litz")

    def forward(fn: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.ones(4, 32)
        if rank:
            dist.recv(x, rank - 1)
        y = fn(x)
        if rank < world - 1:
            dist.send(y.detach().contiguous(), rank + 1)
        return y

    agree(forward(run), forward(eager))


def refused(what: str, run: Callable[[], object]) -> None:
    """Every rank raises, within a moment, and says what."""
    start = time.monotonic()
    try:
        run()
    except Exception as e:
        assert what in str(e), str(e)
    else:
        raise AssertionError(f"nothing was refused: {what}")
    assert time.monotonic() - start < 30


def doubled(x: Tensor) -> Tensor:
    return ops.wait_tensor(ops.all_reduce(x * 2, "sum", dist.group.WORLD.group_name)) + 1


@case
def agreement() -> None:
    """All ranks have one figure of bandwidth; other sizes, other calls and failures are named."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.compile(doubled, backend="litz")(data())
    (group,) = meeting.known([dist.group.WORLD.group_name])
    figures: list[Any] = [None] * world
    dist.all_gather_object(figures, meeting.bandwidth(group, "cpu", "", 60))
    assert figures[0] > 0 and {*figures} == {figures[0]}

    torch._dynamo.reset()
    refused(
        f"all_reduce(float32[4, 8], 'sum') of rank 0 and all_reduce(float32[{3 + world}, 8], 'sum')"
        if world == 2
        else "of rank 0 and all_reduce(float32[5, 8], 'sum') of rank 1",
        lambda: torch.compile(doubled, backend="litz")(data(4 + rank, 8)),
    )

    def more(x: Tensor) -> Tensor:
        return doubled(doubled(x)) if rank == world - 1 else doubled(x)

    refused(
        f"is missing of rank 0 and all_reduce(float32[6, 32], 'sum') of rank {world - 1}",
        lambda: torch.compile(more, backend="litz")(data()),
    )

    class Broken:
        def __call__(self, graph: Any) -> None:
            if rank == 1:
                raise ValueError("this rank has no luck")

        def uuid(self) -> str:
            return "broken"

    def unlucky(x: Tensor) -> Tensor:
        return doubled(x).sin()

    folder = str(Path(sys.argv[3]).parent)
    options = {"before_passes": Broken(), "repro_dir": folder, "graph_cache": False}
    refused(
        "this rank has no luck",
        lambda: torch.compile(unlucky, backend="litz", options=options)(data()),
    )


@case
def alone() -> None:
    """A rank that compiles what others do not is told so, and goes on."""
    x = data()
    run = torch.compile(doubled, backend="litz", options={"agreement": 1})
    fn = run if dist.get_rank() == 0 else doubled
    for _ in range(2):
        agree(fn(x), doubled(x))


@case
def one_compiles() -> None:
    """The first call of many processes costs one compile where they share a folder."""
    folder = str(Path(sys.argv[3]).parent / "cache")
    options = {"cache_dir": folder, "check_calls": False}
    hits: list[Any] = [None] * dist.get_world_size()
    found: list[bool] = []
    with Listener(lambda c: found.append("passes" not in c.stages.seconds)):
        torch.compile(doubled, backend="litz", options=options)(data(5, 7))
    dist.all_gather_object(hits, found)
    assert sorted(hits) == [[False], *[[True]] * (len(hits) - 1)], hits


def main() -> None:
    rank, world, file, *chosen = sys.argv[1:]
    dist.init_process_group(
        "gloo", f"file://{file}", timedelta(seconds=120), rank=int(rank), world_size=int(world)
    )
    torch.set_num_threads(1)
    for name in chosen:
        torch._dynamo.reset()
        CASES[name]()
        print(name, "ok", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
