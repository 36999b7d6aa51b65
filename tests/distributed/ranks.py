"""What each process of a test of several runs: ``python -m tests.distributed.ranks RANK WORLD FILE
CASE.. [--steps N]``.

Every case is a training step or a program that eager mode runs as well; they have to agree.  Losses
of more steps than a few may differ by what eager mode makes of weights that lie a rounding apart.
"""

from __future__ import annotations

import argparse
import copy
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import litz
from benchmarks.distributed import Sharded
from litz.ranks import SIZED
from litz.reporting import Listener
from litz.runtime import meeting
from litz.tools.compare import first_difference

CASES: dict[str, Callable[[], None]] = {}
FEW = 3
steps = FEW  # of training, as the command says
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


def train(net: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Any]:
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
    eager, mine, apart = make(), make(), make()
    if inside:
        for block in mine.children():
            block.compile(backend="litz")
        run: Any = mine
    else:
        run = torch.compile(mine, backend="litz", options=options)
    found, wanted = train(mine, run, x), train(eager, eager, x)
    if steps == FEW:
        for a, b in zip(found, wanted, strict=True):
            agree(a, b, bound)
        return
    with torch.no_grad():
        for p in apart.parameters():
            (p.to_local() if isinstance(p, DTensor) else p).mul_(1 + 2**-23)
    noise = distance(train(apart, apart, x), wanted)
    assert distance(found, wanted) <= max(4 * noise, bound), (distance(found, wanted), noise)


def distance(mine: list[Any], theirs: list[Any]) -> float:
    """The largest distance of a loss from another run's, by its size."""
    pairs = [(a.item(), b.item()) for a, b in zip(mine[:steps], theirs[:steps], strict=True)]
    assert all(math.isfinite(a) for a, _ in pairs)
    return max(abs(a - b) / abs(b) for a, b in pairs)


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
def reports() -> None:
    """Records of what was looked at lie apart by rank; profiles call as often in each."""
    rank, world = dist.get_rank(), dist.get_world_size()
    name, folder = dist.group.WORLD.group_name, [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)

    def fn(x: Tensor, own: float) -> Tensor:
        time.sleep(own)
        return ops.wait_tensor(ops.all_reduce(x.sin(), "sum", name)) * 2

    options = {"inspect": "*", "inspect_how": "save", "inspect_dir": folder[0]}
    looked = torch.compile(lambda x: fn(x, 0), backend="litz", options=options)
    looked(data())
    dist.barrier()
    found = [Path(folder[0], f"rank{r}") for r in range(world)]
    assert sorted(Path(folder[0]).iterdir()) == found
    assert first_difference(folder[0], folder[0]) == ""
    assert "before step 0" in first_difference(found[0], found[1])  # each rank has its own data
    assert "not equal" not in first_difference(found[0], found[0])
    times = litz.profile(fn, data(), 0.02 * rank, against=("eager",), seconds=0.2).timings
    assert all(t.seconds > 0 for t in times)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


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
    run = torch.compile(fn, backend="litz")
    for _ in range(steps):
        agree(run(x, counts), fn(x, counts))


@case
def ddp() -> None:
    compare(lambda: DistributedDataParallel(model()), data())
    wide = data(6, 256)  # several buckets: Dynamo compiles a graph for each
    compare(lambda: DistributedDataParallel(model(256, 8), bucket_cap_mb=1), wide)


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
def order_of_hooks() -> None:
    """What FSDP2 and DDP start between compiled graphs starts as early as it does in eager mode."""

    def sharded_events(compiled: bool) -> list[str]:
        net, found = model(), list[str]()
        for block in net:
            fully_shard(block)
        fully_shard(net)
        for block in net.children() if compiled else ():
            block.compile(backend="litz")

        def noted(name: str) -> Callable[..., Any]:
            call = getattr(dist, name)

            def note(*args: Any, **kwargs: Any) -> Any:
                found.append(name)
                return call(*args, **kwargs)

            return note

        names = ("all_gather_single", "reduce_scatter_single")  # of PyTorch 2.13, and before
        calls = [n for n in (*names, *SIZED) if hasattr(dist, n)]
        with ExitStack() as stack:
            for name in calls:
                stack.enter_context(mock.patch.object(dist, name, noted(name)))
            for _ in range(2):
                x = data()
                for k, block in enumerate(net):
                    x = block(x)
                    found.append(f"forward {k}")
                    x.register_hook(partial(lambda k, _: found.append(f"backward {k}"), k))
                x.sum().backward()
        return found

    eager = sharded_events(False)
    mine_events = sharded_events(True)
    assert any("scatter" in e for e in eager) and mine_events == eager, (mine_events, eager)

    def ddp_events(compiled: bool) -> list[int]:
        """How many gradients were there when each bucket began to travel."""
        net = DistributedDataParallel(model(128, 8), bucket_cap_mb=1)
        found, there = list[int](), list[None]()
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(lambda _: there.append(None))

        def reduced(buffer: Tensor) -> Any:
            found.append(len(there))
            work = dist.all_reduce(buffer, async_op=True)
            return work.get_future().then(lambda done: done.value()[0] / dist.get_world_size())

        net.register_comm_hook(None, lambda _, bucket: reduced(bucket.buffer()))
        run: Any = torch.compile(net, backend="litz") if compiled else net
        for _ in range(3):
            there.clear()
            found.clear()
            run(data(6, 128)).sum().backward()
        return found

    counts = [*zip(ddp_events(True), ddp_events(False), strict=True)]
    # Graphs end with a layer's parameters, buckets anywhere within.
    assert len(counts) > 3 and all(mine < theirs + 6 for mine, theirs in counts), counts


@case
def fsdp_uneven() -> None:
    """Shards of different sizes, some of them empty."""

    def make() -> nn.Module:
        net = model(3 + dist.get_world_size() // 2)
        for block in net:
            fully_shard(block)
        return fully_shard(net)

    compare(make, data(6, 3 + dist.get_world_size() // 2), inside=True)


class Experts(nn.Module):
    """Rows go to the expert of a rank, and come back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.gate, self.expert = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        rank, world = dist.get_rank(), dist.get_world_size()
        ins = [1 + (k + 2 * rank) % 3 for k in range(world)]  # rows to each rank
        outs = [1 + (rank + 2 * k) % 3 for k in range(world)]
        move = functional.all_to_all_single_autograd
        theirs = move(self.gate(x)[: sum(ins)], outs, ins, dist.group.WORLD)
        return x[: sum(ins)] + move(F.gelu(self.expert(theirs)), ins, outs, dist.group.WORLD)


@case
def experts() -> None:
    compare(Experts, data(3 * dist.get_world_size(), 16))


@case
def stages() -> None:
    """Stages of a pipeline, trained on several batches at a time."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, given = torch.randn(8, 32, generator=torch.Generator().manual_seed(1)), rank == 0

    def losses(backend: str, factor: float = 1.0) -> list[Any]:
        net = copy.deepcopy(model(32, world)[rank])
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(factor)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        run: Any = torch.compile(net, backend=backend) if backend else net
        stage = PipelineStage(run, rank, world, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 4, lambda y, target: (y - target).square().mean())
        found = []
        for _ in range(steps):
            parts: list[Tensor] = []
            last = {"target": x.cos(), "losses": parts} if rank == world - 1 else {}
            schedule.step(*([x] if given else []), **last)
            optimizer.step()
            optimizer.zero_grad()
            found.append(torch.stack(parts).mean().detach() if parts else torch.ones(()))
        return found

    wanted = losses("")
    noise = distance(losses("", 1 + 2**-23), wanted)
    assert distance(losses("litz"), wanted) <= max(4 * noise, 1e-5)


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
    run = torch.compile(fn, backend="litz")
    for _ in range(steps):
        for a, b in zip(run(x, w), fn(x, w), strict=True):
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
    global steps
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("world", type=int)
    parser.add_argument("file")
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--steps", type=int, default=FEW)
    args = parser.parse_args()
    steps = args.steps
    dist.init_process_group(
        "gloo",
        f"file://{args.file}",
        timedelta(seconds=120),
        rank=args.rank,
        world_size=args.world,
    )
    torch.set_num_threads(1)
    for name in args.cases:
        torch._dynamo.reset()
        CASES[name]()
        print(name, "ok", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
