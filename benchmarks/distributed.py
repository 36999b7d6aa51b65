"""Training steps of several processes: eager mode, Litz and the peer beside each other.

    python -m benchmarks.distributed                         # GPUs and NCCL where there are some
    python -m benchmarks.distributed --device cpu --ranks 2  # gloo, tiny models
    python -m benchmarks.distributed --full --steps 50       # the sizes of docs/benchmarks.md
    python -m benchmarks.distributed --simulate              # 2 to 1,024 ranks, by estimates
    python -m benchmarks.distributed --accept --out FILE     # what is asked, a part at a time

Each case runs in processes of its own, one a rank, all backends in turns. A row says: seconds of
the first step; milliseconds of a step (median of turns, the slowest rank's); how many times faster
than eager mode and the peer; milliseconds in which a GPU communicates and computes nothing, of a
step (by PyTorch's profiler, mean of ranks); milliseconds in which the processor issues it; GiB of
memory at most above what lay there before (on a CPU: of the process, above what it has between
steps); the largest distance of a loss from eager mode's, by its size, eager mode's from itself run
again from weights a rounding apart, and the loss's from eager mode's without autocast.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.arguments import add_only, described, names
from benchmarks.report import PEER, SUBJECT, align, number

Step = Callable[[int], Tensor]
Wrap = Callable[[nn.Module], None]
BACKENDS = ("eager", SUBJECT, PEER)
AGAIN = "eager again"  # from weights a rounding apart: its losses show eager mode's own noise
EXACT = "eager float32"  # without autocast: how far each is from it is its error
BESIDE = (AGAIN, EXACT)  # whose losses alone are of interest
HEADER: tuple[str, ...] = (
    *("case", "backend", "first s", "ms", "x eager", "x peer"),
    *("exposed ms", "host ms", "peak GiB", "loss", "eager's", "error"),
)


# --- models ---------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer of a transformer, with heads of 128.  x: (batch, length, width)."""

    def __init__(self, width: int, linear: Callable[[int, int], nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.heads = max(1, width // 128)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        q, k, v = parts.unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        hidden: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return hidden


class Transformer(nn.Module):
    """Logits of the next token.  ids: (batch, length)."""

    def __init__(self, layers: int, width: int, vocabulary: int, linear: Any = nn.Linear) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, linear) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Sharded(nn.Module):
    """A product whose weight lies in parts on all ranks; the graph itself gathers it."""

    def __init__(self, fan_in: int, fan_out: int, device: str) -> None:
        super().__init__()
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh(device, (dist.get_world_size(),))
        whole = torch.randn(fan_out, fan_in, device=device) / fan_in**0.5
        self.weight = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))

    def forward(self, x: Tensor) -> Tensor:
        from torch.distributed.tensor import Partial, Replicate

        weight: Any = self.weight
        whole = weight.redistribute(placements=[Replicate()])
        return F.linear(x, whole.to_local(grad_placements=[Partial("avg")]).to(x.dtype))


# --- cases ----------------------------------------------------------------------------------


def compiled(fn: Any, backend: str) -> Any:
    return fn if backend.startswith("eager") else torch.compile(fn, backend=backend)


def ddp(model: nn.Module, device: str) -> nn.Module:
    # Statistics of batch norm are each rank's own: sending them is no part of what is measured.
    parallel: Any = nn.parallel.DistributedDataParallel
    wrapped: nn.Module = parallel(model.to(device), broadcast_buffers=False)
    return wrapped


def step_of(
    model: nn.Module, run: Any, draw: Callable[[], tuple[Tensor, Tensor]], backend: str
) -> Step:
    """A step of training under autocast, on data that its number and the rank say."""
    parameters = [*model.parameters()]
    if backend == AGAIN:
        with torch.no_grad():
            for p in parameters:
                p.mul_(1 + 2**-23)
    device = parameters[0].device.type
    # Tensors in parts have a group of their own: one call takes no mixture of them and others.
    kinds = {type(p): [q for q in model.parameters() if type(q) is type(p)] for p in parameters}
    groups: list[dict[str, Any]] = [{"params": several} for several in kinds.values()]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)

    def step(number: int) -> Tensor:
        torch.manual_seed(1000 * number + dist.get_rank())
        x, labels = draw()
        with torch.autocast(device, torch.bfloat16, enabled=backend != EXACT):
            out = run(x)
        loss = F.cross_entropy(out.float().flatten(0, -2), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def tokens(device: str, vocabulary: int, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    ids = torch.randint(vocabulary, (shape[0], shape[1] + 1), device=device)
    return ids[:, :-1], ids[:, 1:]


def resnet(size: str, backend: str, device: str) -> Step:
    from transformers import ResNetConfig, ResNetForImageClassification

    depths = {"tiny": [1, 1, 1, 1], "small": [2, 2, 2, 2]}.get(size, [3, 4, 6, 3])
    batch, side = (2, 64) if size == "tiny" else (64, 224)
    widths = {"hidden_sizes": [64] * 4, "embedding_size": 16} if size == "tiny" else {}
    config = ResNetConfig(depths=depths, num_labels=1000, **widths)
    net: Any = ResNetForImageClassification(config).to(memory_format=torch.channels_last)
    model = ddp(net, device)
    run = compiled(model, backend)

    def draw() -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 3, side, side, device=device)
        labels = torch.randint(1000, (batch,), device=device)
        return x.to(memory_format=torch.channels_last), labels

    return step_of(model, lambda x: run(x).logits, draw, backend)


def gpt2(size: str, backend: str, device: str) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    layers = {"tiny": 1, "small": 6}.get(size, 12)
    more: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    vocabulary = 50257
    if size == "tiny":
        vocabulary = more["vocab_size"] = 512
        more |= {"n_embd": 128, "n_head": 2}
    config = GPT2Config(n_layer=layers, use_cache=False, attn_implementation="sdpa", **more)
    model = ddp(GPT2LMHeadModel(config).train(), device)
    run = compiled(model, backend)
    shape = (1, 32) if size == "tiny" else (8, 512)
    return step_of(
        model, lambda x: run(x).logits, partial(tokens, device, vocabulary, shape), backend
    )


def transformer_sizes(size: str) -> tuple[int, int, int, tuple[int, int]]:
    """Layers, width, vocabulary, and the shape of a rank's tokens."""
    if size == "tiny":
        return 2, 128, 512, (2, 32)
    rows = 16 if size == "long" else 4
    return (4 if size == "small" else 12), 2048, 8192, (rows, 1024)


def fsdp2(size: str, backend: str, device: str) -> Step:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    layers, width, vocabulary, shape = transformer_sizes(size)
    model = Transformer(layers, width, vocabulary).to(device)
    policy = MixedPrecisionPolicy(None if backend == EXACT else torch.bfloat16, torch.float32)
    for layer in model.layers:
        if not backend.startswith("eager"):
            layer.compile(backend=backend)
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return step_of(model, model, partial(tokens, device, vocabulary, shape), backend)


def graph_sharded(size: str, backend: str, device: str) -> Step:
    """Weights in parts, gathered by the graph: its collectives are the compiler's to order."""
    layers, width, vocabulary, shape = transformer_sizes(size)
    linear = partial(Sharded, device=device)
    model = Transformer(layers, width, vocabulary, linear).to(device)
    run = compiled(model, backend)
    return step_of(model, run, partial(tokens, device, vocabulary, shape), backend)


class Multiplied(nn.Module):
    """Two products of a layer, split over ranks; rows lie in parts between layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return hidden


def tensor_parallel(size: str, backend: str, device: str) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    layers, width, _, (batch, length) = transformer_sizes(size)
    if size == "full":  # as many rows as products in pieces are for
        layers, width, batch, length = 4, 4096, 8, 2048
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    plan: Any = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    model = nn.Sequential(*(Multiplied(width) for _ in range(layers))).to(device)
    for layer in model:
        parallelize_module(layer, mesh, plan)
    rows = batch, length // dist.get_world_size()

    def draw() -> tuple[Tensor, Tensor]:
        labels = torch.randint(width, rows, device=device)
        return torch.randn(*rows, width, device=device), labels

    return step_of(model, compiled(model, backend), draw, backend)


CASES: dict[str, Callable[[str, str, str], Step]] = {
    "ddp_resnet": resnet,
    "ddp_gpt2": gpt2,
    "fsdp2": fsdp2,
    "graph_sharded": graph_sharded,
    "tensor_parallel": tensor_parallel,
}


# --- one rank -------------------------------------------------------------------------------


def measure(case: str, backends: tuple[str, ...], args: argparse.Namespace) -> None:
    """Write a row a backend, of this rank, as far as it came.

    A step that fails fails in all ranks, or they time out.
    """
    rows: list[dict[str, Any]] = []
    steps: dict[str, Step] = {}
    for backend in (*backends, *BESIDE) if "eager" in backends else backends:
        row: dict[str, Any] = {"case": case, "backend": backend, "rounds": []}
        rows.append(row)
        torch._dynamo.reset()
        torch.manual_seed(0)
        gc.collect()
        before = memory(args.device)
        print(f"{case} on {backend}", flush=True)  # what a run that ends early was at
        try:
            start = time.perf_counter()
            step = CASES[case](args.size, backend, args.device)
            row["losses"] = [step(0).item()]
            row["first"] = time.perf_counter() - start
            row["losses"] += [step(k).item() for k in range(1, args.steps)]
        except Exception as e:  # a backend that fails is a row that says so
            row["failed"] = f"{type(e).__name__}: {str(e)[:300]}"
        else:
            row["peak"] = (memory(args.device, peak=True) - before) / 2**30
            if backend not in BESIDE:
                steps[backend] = step
        write(rows, args)
    ran = [(row, steps[row["backend"]]) for row in rows if row["backend"] in steps]
    for _ in range(args.rounds):
        for row, step in ran:
            row["rounds"].append(timed(step, args.device, args.seconds))
        write(rows, args)
    for row, step in ran:
        row["host"] = host(step, args.device)
        if args.device == "cuda":
            row["exposed"] = exposed(step)
        else:
            row["peak"] = growth(step) / 1024
        if row["backend"] == SUBJECT:
            row["bandwidth"] = bandwidth_of_all(args.device)
        write(rows, args)


def write(rows: list[Any], args: argparse.Namespace) -> None:
    Path(args.folder, f"rows{args.rank}").write_text(json.dumps(rows))


def memory(device: str, peak: bool = False) -> int:
    """Bytes of the GPU that are allocated, or were at most since this was asked last."""
    if device != "cuda":
        return 0
    if peak:
        return torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def growth(step: Step) -> float:
    """MiB by which steps make the process grow at most."""
    from benchmarks.worker import empty_pools, reset_peak, status_mib, trim_heap

    empty_pools()
    trim_heap()
    before = status_mib("VmRSS")
    if not reset_peak():
        return 0.0
    for k in range(3):
        step(k)
    return status_mib("VmHWM") - before


def bandwidth_of_all(device: str) -> int:
    """MB a second between all ranks, as Litz measured it; 0 where it did not."""
    from litz.runtime.meeting import bandwidth, known

    world = dist.group.WORLD
    groups = known([world.group_name] if world is not None else [])
    return bandwidth(groups[0], device, "", 60) if groups else 0


def timed(step: Step, device: str, seconds: float) -> float:
    """Seconds of a step: as many as fill a turn, by the first rank's estimate."""

    def run(count: int) -> float:
        dist.barrier()
        start = time.perf_counter()
        for k in range(count):
            step(k)
        finish(device)
        return (time.perf_counter() - start) / count

    guess = [run(2)]
    dist.broadcast_object_list(guess, 0)
    return run(max(2, min(100, int(seconds / guess[0]))))


def finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def host(step: Step, device: str, count: int = 5) -> float:
    """Processor's seconds of a step, of all threads, until all is handed to the device."""
    finish(device)
    start = time.process_time()
    for k in range(count):
        step(k)
    return (time.process_time() - start) / count


def exposed(step: Step, count: int = 3) -> float:
    """Seconds of a step in which kernels of NCCL run, and no others."""
    step(0)
    finish("cuda")
    dist.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for k in range(count):
            step(k)
        finish("cuda")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    spans = [
        ("nccl" in e["name"].lower(), float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    return uncovered(spans) / 1e6 / count


def uncovered(spans: list[tuple[bool, float, float]]) -> float:
    """How long some span that is marked runs, and none that is not."""
    changes = sorted(
        (at, mark, by) for mark, start, end in spans for at, by in ((start, 1), (end, -1))
    )
    running, total, last = {True: 0, False: 0}, 0.0, 0.0
    for at, mark, by in changes:
        if running[True] and not running[False]:
            total += at - last
        running[mark] += by
        last = at
    return total


def rank_main(args: argparse.Namespace) -> None:
    """What each process does."""
    backend = "gloo"
    if args.device == "cuda":
        torch.cuda.set_device(args.rank)
        backend = "cpu:gloo,cuda:nccl"
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        f"file://{args.folder}/store",
        timedelta(seconds=args.limit),
        rank=args.rank,
        world_size=args.ranks,
    )
    (case,) = args.only
    measure(case, args.backends, args)
    dist.destroy_process_group()


def merged(rows: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """One row of those of all ranks."""
    row = dict(rows[0])
    row["rounds"] = [max(turn) for turn in zip(*(r["rounds"] for r in rows), strict=True)]
    if all("exposed" in r for r in rows):
        row["exposed"] = statistics.mean(r["exposed"] for r in rows)
    for name in ("peak", "first"):
        row[name] = max((r[name] for r in rows if name in r), default=None)
    if failed := [f"rank {k}: {r['failed']}" for k, r in enumerate(rows) if "failed" in r]:
        row["failed"] = failed[0]
    return row


# --- all ranks ------------------------------------------------------------------------------


def run_case(case: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a case: its processes, started and, past the limit, ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.distributed", "--only", case]
        for name in ("device", "ranks", "size", "steps", "rounds", "seconds", "limit"):
            command += [f"--{name}", str(getattr(args, name))]
        command += ["--backends", ",".join(args.backends), "--folder", folder]
        errors = [Path(folder, f"errors{r}").open("w+") for r in range(args.ranks)]
        ranks = [
            subprocess.Popen([*command, "--rank", str(r)], stdout=e, stderr=e)
            for r, e in enumerate(errors)
        ]
        end, late = time.monotonic() + args.limit, ""
        try:
            for process in ranks:
                process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = f"no answer within {args.limit:.0f} s: "
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        files = [Path(folder, f"rows{r}") for r in range(args.ranks)]
        found = [json.loads(f.read_text()) if f.exists() else [] for f in files]
        rows = [merged(several) for several in zip(*found, strict=False)]
        if any(process.returncode for process in ranks):
            for e in errors:
                e.seek(0)
            why = " | ".join(" ".join(e.read()[-500:].split()) for e in errors)
            rows.append({"case": case, "backend": "what is left", "failed": late + why})
        return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, those that failed below."""
    lines, notes = [HEADER], []
    for row in rows:
        beside = {r["backend"]: r for r in rows if r["case"] == row["case"]}
        if "failed" in row:
            notes.append(f"FAIL {row['case']} on {row['backend']}: {row['failed']}")
        elif row["backend"] not in BESIDE:
            lines.append(line(row, beside))
    return "\n".join([align(lines), *notes])


def line(row: dict[str, Any], beside: dict[str, Any]) -> tuple[str, ...]:
    exposed = row.get("exposed")
    mine = statistics.median(row["rounds"]) if row["rounds"] else None
    others = (beside.get(name, {}).get("rounds") for name in ("eager", PEER))
    return (
        row["case"],
        row["backend"],
        number(row["first"], 1),
        number(None if mine is None else 1e3 * mine, 2),
        *(number(statistics.median(r) / mine, 2) if r and mine else "-" for r in others),
        number(None if exposed is None else 1e3 * exposed, 2),
        number(1e3 * row["host"] if "host" in row else None, 2),
        number(row["peak"], 2),
        distance(row, beside.get("eager")),
        distance(beside.get(AGAIN), beside.get("eager")),
        distance(row, beside.get(EXACT)),
    )


def distance(row: dict[str, Any] | None, other: dict[str, Any] | None) -> str:
    if not row or not other or "failed" in row or "failed" in other:
        return "-"
    return f"{far(row, other):.1e}"


def far(row: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest distance of a loss, by the size of the other."""
    pairs: Any = zip(row["losses"], other["losses"], strict=True)
    found: float = max((abs(a - b) / abs(b) for a, b in pairs), default=0.0)
    return found


def arguments() -> argparse.Namespace:
    parser = described("distributed", __doc__)
    add_only(parser, (*CASES, *(f"repeated_{case}" for case in CASES)))
    gpus = torch.cuda.device_count()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if gpus else "cpu")
    parser.add_argument("--ranks", type=int, default=max(2, gpus))
    parser.add_argument("--backends", type=names, default=BACKENDS)
    parser.add_argument("--full", dest="size", action="store_const", const="full")
    parser.add_argument("--size", choices=("tiny", "small", "full", "long"), help="of models")
    parser.add_argument("--steps", type=int, default=50, help="whose losses are compared")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a backend's turn")
    parser.add_argument("--limit", type=float, default=170.0, help="seconds that a case may take")
    parser.add_argument("--accept", action="store_true", help="what is asked, and whether it is so")
    parser.add_argument("--within", type=float, default=450.0, help="seconds, with --accept")
    parser.add_argument("--out", type=Path, help="rows as they come, a line of JSON each")
    parser.add_argument("--simulate", action="store_true", help="estimate, and run nothing")
    parser.add_argument("--inside", type=float, default=200.0, help="GB/s within a host, estimated")
    parser.add_argument("--across", type=float, default=40.0, help="GB/s between hosts, estimated")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.size = args.size or ("small" if args.device == "cuda" else "tiny")
    return args


def main() -> None:
    args = arguments()
    if args.rank is not None:
        rank_main(args)
        return
    if args.simulate:
        from benchmarks.simulated import Network
        from benchmarks.simulated import table as predictions

        print(predictions(Network(inside=1e9 * args.inside, across=1e9 * args.across)))
        return
    if args.accept:
        from benchmarks.acceptance import accept

        if args.out is None:
            raise SystemExit("--accept needs --out FILE, for the parts that are done")
        print(accept(args))
        return
    rows: list[dict[str, Any]] = []
    for case in args.only or CASES:
        found = run_case(case, args)
        rows += found
        print(table(found), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)
    print("\n" + table(rows))


if __name__ == "__main__":
    main()
