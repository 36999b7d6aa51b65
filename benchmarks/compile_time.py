"""``python -m benchmarks.compile_time``: what compiling costs, cold and warm, stage by stage.

Each figure is the first call of a fresh process on a workload (training: with its backward pass),
model and inputs already built, the median over ``--runs``; backends take turns.

cold s    on empty caches; +aot s: beyond the same of ``aot_eager``, which builds nothing
2nd s     in another process that finds the first one's caches
+dyn s    each beyond the same of ``eager``, which is Dynamo alone
next s    on empty caches, in a process that has compiled something else before
x peer    how many times the peer's figure is this one: cold, 2nd, next
split     of the cold call, in milliseconds: import of the backend, Dynamo, AOTAutograd, and of Litz
          its key, passes, lowering, schedule, kernels, host and artifact, the rest of building
          (waiting), loading and saving; "other" is what none of them counts: what a backend
          does elsewhere, guards, and the call itself

``--out FILE`` keeps each run, a line of JSON; a second command goes on where the first was
stopped, by ``--seconds`` or otherwise, and prints what there is.

``--growth`` has another table: what graphs cost as they grow, see ``benchmarks.growth``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import compile_worker
from benchmarks.arguments import add_only, described, names
from benchmarks.cpu import machine
from benchmarks.measure import BASELINE, Say, paired
from benchmarks.report import PEER, align, number
from benchmarks.session import Session, WorkerError
from benchmarks.workloads import WORKLOADS

NAMES = (
    "softmax",
    "norm_gelu_softmax",
    "cross_entropy_training",
    "bert",
    "gpt2",
    "resnet50",
    "bert_training",
    "gpt2_training",
    compile_worker.OPTIMIZER,
)
DYNAMO = "eager"  # runs what Dynamo traced as it is
QUICK = ("softmax", "cross_entropy_training", "bert")
WAYS = ("cold", "second", "next")
HEADER = (
    "workload",
    "sizes",
    "backend",
    "cold s",
    "+dyn s",
    "+aot s",
    "2nd s",
    "+dyn s",
    "next s",
    "x peer",
    "2nd",
    "next",
    "split of the cold call, ms",
)


@dataclass
class Cell:
    """One workload on one backend: seconds by way, one a run; stages of the cold calls."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    stages: list[dict[str, float]] = field(default_factory=list)
    failure: str = ""

    def median(self, way: str) -> float | None:
        return statistics.median(self.seconds[way]) if self.seconds[way] else None

    def beyond(self, other: Cell | None, way: str) -> float | None:
        """Seconds beyond another backend's, the median over runs; None beside itself or none."""
        if other is None or other is self:
            return None
        pairs = zip(self.seconds[way], other.seconds[way], strict=False)
        return statistics.median([a - b for a, b in pairs] or [float("nan")])

    def split(self) -> str:
        """The median of each stage."""
        stages = list(dict.fromkeys(name for s in self.stages for name in s))
        found = {n: statistics.median(s.get(n, 0.0) for s in self.stages) for n in stages}
        rest = (self.median("cold") or 0.0) - sum(found.values())
        parts = {**found, "other": max(rest, 0.0)}
        return ", ".join(f"{n} {1e3 * s:.0f}" for n, s in parts.items() if s >= 0.0005)

    def add(self, run: Run) -> None:
        self.failure = self.failure or run.failure
        for way, seconds in run.seconds.items():
            self.seconds[way].append(seconds)
        if run.stages:
            self.stages.append(run.stages)


@dataclass
class Run:
    """One run of a workload on a backend, the ``turn``-th."""

    name: str
    sizes: str
    backend: str
    turn: int
    seconds: dict[str, float] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def which(self) -> tuple[str, str, str, int]:
        return self.name, self.sizes, self.backend, self.turn


@dataclass(frozen=True)
class Plan:
    """What to measure, and where to keep it: with ``out``, nothing again that it holds.

    until: the time, by the monotonic clock, from which on no run is begun.
    """

    device: str
    backends: tuple[str, ...]
    quick: bool
    runs: int
    out: Path | None = None
    until: float = float("inf")

    def kept(self) -> dict[tuple[str, str, str, int], Run]:
        """The runs of ``out``."""
        text = self.out.read_text() if self.out is not None and self.out.exists() else ""
        runs = [Run(**json.loads(line)) for line in text.splitlines()]
        return {run.which: run for run in runs}

    def keep(self, run: Run) -> None:
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")


def run_once(run: Run, plan: Plan) -> None:
    """One cold call, one of a second process, one behind another graph; a failure is noted."""

    def session(cache: Path) -> Session:
        return Session(plan.device, run.backend, plan.quick, cache, "benchmarks.compile_worker")

    with tempfile.TemporaryDirectory(prefix="litz-bench-") as folder:
        try:
            for way, cache in zip(WAYS, ("one", "one", "other"), strict=True):
                with session(Path(folder) / cache) as worker:
                    if way == "next":
                        worker.ask("ahead")
                    reply = worker.ask("first", name=run.name, dynamic=run.sizes == "dynamic")
                    run.seconds[way] = reply["seconds"]
                    if way == "cold":
                        run.stages = reply["stages"]
        except WorkerError as error:
            run.failure = str(error)


def measure(name: str, sizes: str, plan: Plan, say: Say) -> dict[str, Cell]:
    """A workload on each backend; they take turns, each round beginning with another."""
    cells = {backend: Cell() for backend in plan.backends}
    order, kept = list(plan.backends), plan.kept()
    for turn in range(plan.runs):
        shift = turn % len(order)
        for backend in order[shift:] + order[:shift]:
            run = Run(name, sizes, backend, turn)
            if run.which in kept:
                run = kept[run.which]
            elif cells[backend].failure or time.monotonic() > plan.until:
                continue
            else:
                say(f"{name}, {sizes}: {backend}, run {turn + 1}")
                run_once(run, plan)
                plan.keep(run)
            cells[backend].add(run)
    return {backend: cell for backend, cell in cells.items() if cell.failure or cell.stages}


def lines(name: str, sizes: str, cells: dict[str, Cell]) -> list[tuple[str, ...]]:
    out = []
    for backend, cell in cells.items():
        if cell.failure:
            out.append((name, "", backend, f"FAIL {cell.failure}", *[""] * (len(HEADER) - 4)))
            continue
        base, peer, alone = cells.get(BASELINE), cells.get(PEER), cells.get(DYNAMO)
        ratios = [
            None if peer is None or peer is cell else paired(cell.seconds[way], peer.seconds[way])
            for way in WAYS
        ]
        first, second, following = (number(cell.median(way), 2) for way in WAYS)
        out.append(
            (
                name,
                sizes,
                backend,
                first,
                number(cell.beyond(alone, "cold"), 2),
                number(cell.beyond(base, "cold"), 2),
                second,
                number(cell.beyond(alone, "second"), 2),
                following,
                *(number(r, 2) for r in ratios),
                cell.split(),
            )
        )
    return out


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = described("compile_time", __doc__)
    add_only(parser, (*WORKLOADS, compile_worker.OPTIMIZER))
    backends = (DYNAMO, BASELINE, PEER, "litz")
    parser.add_argument("--backends", type=names, default=backends, help=",".join(backends))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--sizes", type=names, default=("static", "dynamic"))
    parser.add_argument("--quick", action="store_true", help="fewer workloads, smaller")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes of each kind")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep runs; go on where it ends")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run later")
    parser.add_argument("--growth", action="store_true", help="how cost grows with a graph's size")
    parser.add_argument("--build", action="store_true", help="of growth: build the kernels as well")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs takes a number from 1 on")
    if unknown := set(options.sizes) - {"static", "dynamic"}:
        parser.error(f"--sizes takes static and dynamic, not {', '.join(sorted(unknown))}")
    return options


def facts(device: str) -> dict[str, Any]:
    """What the figures depend on."""
    found = {"torch": torch.__version__, **machine()}
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def keep_bytecode(folder: str) -> None:
    """Have all workers find Python's bytecode, as in any installation that may write it."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", folder)


def profile(plan: Plan, only: Sequence[str], sizes: Sequence[str], say: Say) -> tuple[str, bool]:
    """The table, and whether anything failed."""
    rows: list[tuple[str, ...]] = [HEADER]
    failed = False
    kept, turns = plan.kept(), range(plan.runs)
    for backend in plan.backends:  # reads the disk and writes bytecode, so that no figure does
        if any((n, s, backend, t) not in kept for n in only for s in sizes for t in turns):
            say(f"rehearsal: {backend}")
            run_once(Run("softmax", "static", backend, 0), plan)
    for name in only:
        for way in sizes:
            cells = measure(name, way, plan, say)
            found = lines(name, way, cells)
            print(align([HEADER, *found]), file=sys.stderr, flush=True)
            rows += found
            failed |= any(c.failure for c in cells.values())
    return align(rows), failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; the exit status is 1 where a backend failed."""
    options = parse(arguments)
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:6.0f} s] {text}", file=sys.stderr, flush=True)

    failed = False
    with tempfile.TemporaryDirectory(prefix="litz-bytecode-") as folder:
        keep_bytecode(folder)
        if options.growth:
            from benchmarks import growth

            text = growth.table(8 if options.quick else 1, options.build, say)
        else:
            # An exception on the way out ends the workers and removes their caches.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            until = start + options.seconds
            plan = Plan(
                *(options.device, options.backends, options.quick, options.runs),
                *(options.out, until),
            )
            only = options.only or (QUICK if options.quick else NAMES)
            text, failed = profile(plan, only, options.sizes, say)
    print(", ".join(f"{key} {value}" for key, value in facts(options.device).items()))
    print(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
