"""``python -m benchmarks.sweep``: thousands of small cases beside eager and, with --peer, the peer.

Operators of PyTorch's database and compositions, in sizes from one element to 256 MB, of several
types and layouts.  A case is compiled, judged against float64 and timed in turns with eager in one
process.  Times are medians, a ratio is the median over paired rounds, its noise half a 95 %
interval.  Slower is what is below 0.95 of eager and by more than the noise below 1.  Calls of less
than two milliseconds on the CPU, and on a GPU where none can be replayed, count beside eager as
Dynamo calls it, whose guards are part of every compiled call.

Figures go to --out, a line of JSON a case; those that it holds are not measured again.  --table
writes a CSV file and a page with plots of what it holds.  On the CPU each process has --threads
cores of its own; processes share GPUs in turns, one at a time uses one, while others compile.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import described, names
from benchmarks.session import Session, WorkerError, WorkerLost
from benchmarks.sweep.cases import Group, asked, chosen, groups
from benchmarks.sweep.page import summary, write_csv, write_page

Row = dict[str, Any]

# A dozen that meet each family, every kind of layout and a gradient, for a run of a minute.
QUICK = (
    "matrix/softmax/float32/plain/1000/",
    "matrix/layer_norm/bfloat16/plain/65536/",
    "matrix/sum_columns/float32/plain/1/",
    "matrix/embedded_mean/float32/plain/65536/",
    "matrix/cat/float32/plain/1000/",
    "training/embedding_training/float32/plain/65536/",
    "image/bilinear/float32/plain/1000/",
    "image/max_pool/float32/plain/1000/",
    "unary/exp/float32/transposed/",
    "binary/add/float32/broadcast/",
    "reduction/amax/float32/odd/",
    "sample/linalg.det/",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = described("sweep", __doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument(
        "--only",
        type=names,
        default=(),
        metavar="PART,...",
        help="cases with such a part in their names",
    )
    parser.add_argument("--quick", action="store_true", help="a dozen cases")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of a case on the CPU")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--peer", action="store_true", help="time the peer as well")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case later")
    parser.add_argument("--each", type=float, default=0.15, help="seconds to time a side of a case")
    parser.add_argument("--within", type=float, default=90, help="seconds that a case may take")
    parser.add_argument("--cache", type=Path, help="a folder for caches, kept (default: none)")
    parser.add_argument("--table", type=Path, help="write this name with .csv and .html")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    options = parser.parse_args(arguments)
    if options.quick:
        options.only = QUICK
    cores = len(os.sched_getaffinity(0))
    if options.device == "cpu" and options.jobs * options.threads > cores:
        parser.error(f"there are {cores} cores for {options.jobs} times {options.threads} threads")
    return options


def rows_of(path: Path) -> list[Row]:
    """What a file holds; a line that a killed run left unfinished is none."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


@dataclass
class Sweep:
    """The queue that processes take groups from, and the file that rows go to."""

    options: argparse.Namespace
    cache: Path
    have: set[tuple[str, str, int]]
    until: float
    todo: queue.SimpleQueue[Group] = field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: int = 0

    def key(self, name: str) -> tuple[str, str, int]:
        threads = self.options.threads if self.options.device == "cpu" else 0
        return name, self.options.device, threads

    def wanted(self, group: Group) -> list[str]:
        """Cases of a group that are asked for and not there."""
        found = (c for c in group.cases() if asked(c, self.options.only))
        return [c for c in found if self.key(c) not in self.have]

    def place(self, job: int) -> str:
        """A process's GPU or cores, as its argument."""
        if self.options.device != "cpu":
            return f"gpu{job % max(torch.cuda.device_count(), 1)}"
        threads, mine = self.options.threads, sorted(os.sched_getaffinity(0))
        return ",".join(map(str, mine[job * threads : (job + 1) * threads]))

    def work(self, job: int) -> None:
        """Measure group after group in a process that is replaced where a case ends it."""
        session: Session | None = None
        try:
            while time.monotonic() < self.until:
                try:
                    group = self.todo.get_nowait()
                except queue.Empty:
                    return
                for name in self.wanted(group):
                    if time.monotonic() < self.until:
                        session = self.one(name, session or self.open(job))
        finally:
            if session is not None:
                session.close()

    def open(self, job: int) -> Session:
        device, peer = self.options.device, self.options.peer
        return Session(device, self.place(job), peer, self.cache, "benchmarks.sweep.worker")

    def one(self, name: str, session: Session) -> Session | None:
        """Measure a case; the process for the next one, None where it ended or is in doubt."""
        case, device, threads = self.key(name)
        row: Row = {"case": case, "device": device, "threads": threads}
        kept: Session | None = session
        try:
            within = self.options.within
            row |= session.ask("case", within, name=name, seconds=self.options.each)
            if row.get("replays") is False:  # a capture that failed leaves its marks
                session.close()
                kept = None
        except WorkerError as error:
            row["failed"] = str(error)
            # An error of a kernel on a GPU stays with its process.
            if isinstance(error, WorkerLost) or device == "cuda":
                session.kill()
                kept = None
        with self.lock, self.options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
            self.done += 1
            said = row.get("failed") or f"{row['ratio']:.2f} of eager's speed, {row['right']}"
            print(f"{self.done} {name}: {said}", file=sys.stderr, flush=True)
        return kept


def run(options: argparse.Namespace, cache: Path) -> None:
    have = {(r["case"], r["device"], r["threads"]) for r in rows_of(options.out)}
    sweep = Sweep(options, cache, have, time.monotonic() + options.seconds)
    for group in chosen(groups(options.device), options.only):
        if sweep.wanted(group):
            sweep.todo.put(group)
    threads = [threading.Thread(target=sweep.work, args=(job,)) for job in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep; the exit status is 1 where Litz failed or was not right."""
    options = parse(arguments)
    if options.list:
        found = chosen(groups(options.device), options.only)
        print("\n".join(c for g in found for c in g.cases() if asked(c, options.only)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder: AbstractContextManager[Any] = (
        nullcontext(options.cache)
        if options.cache
        else tempfile.TemporaryDirectory(prefix="litz-sweep-", ignore_cleanup_errors=True)
    )
    with folder as cache:
        run(options, Path(cache).resolve())
    rows = rows_of(options.out)
    print(summary(rows))
    if options.table:
        write_csv(rows, options.table.with_suffix(".csv"))
        write_page(rows, options.table.with_suffix(".html"))
    bad = [r for r in rows if "failed" in r or r["right"] in ("WRONG", "loose")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
