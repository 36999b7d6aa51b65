"""``python -m benchmarks.limits``: CPU kernels beside what bounds them, memory or arithmetic.

What the columns mean, medians of rounds that take turns, one thread's by its processor's time
(of what is in the cache, the least):

ms         of a call of --size elements
GB/s       of the bytes that must move: arguments and results, each once
copy       times what a copy takes that moves as many bytes: ATen's or Litz's, whichever is faster
compute    times what as many elements take in the cache: the slope between two small calls, which
           other work blurs; it counts where there is no loop by hand
by hand    times a loop by hand of all its work (`benchmarks.by_hand`), 0 where there is none
bound      times what bounds it: the loop by hand, else the larger of copy and compute
eager      how many times faster than eager
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.arguments import add_only, described, names
from benchmarks.by_hand import loop
from benchmarks.sweep.compositions import COMPOSITIONS
from benchmarks.sweep.tensors import Job, Place
from benchmarks.sweep.timing import Side, alternated, beside, leaves, moved, timed
from benchmarks.sweep.worker import observed

CASES = (
    *("sum_all", "sum_rows", "sum_columns", "softmax", "softmax_columns", "layer_norm"),
    *("group_norm_silu", "transposed_copy", "index_select", "gather", "scatter_add", "index_add"),
    *("embedding_training", "max_pool", "avg_pool", "cross_entropy_training"),
)
# Rows of a small call and of a larger one, how long they are: 64 and 320 KB of float32.
SMALL, LARGE, COLUMNS = 16, 80, 1024
MANY = 1e-3  # seconds that a turn of small calls takes

Call = Callable[[], Any]


@dataclass(frozen=True)
class Rows(Place):
    """A place for matrices of so many rows, and images of so many lines, that fit a cache."""

    rows: int = SMALL

    def sides(self) -> tuple[int, int]:
        return self.rows, COLUMNS

    def image(self, channels: int = 32, least: int = 4) -> Tensor:
        return self.laid_out((1, channels, self.rows // 4, 4 * COLUMNS // channels))


@dataclass(frozen=True)
class Line:
    """Times (seconds) of a case: of a call, a copy of its bytes, its arithmetic, eager, by hand."""

    name: str
    threads: int
    call: float
    bytes: int
    copy: float
    compute: float
    eager: float
    hand: float = 0.0

    @property
    def times_copy(self) -> float:
        return self.call / self.copy

    @property
    def times_compute(self) -> float:
        return self.call / self.compute if self.compute else 0.0

    @property
    def bound(self) -> float:
        """Times what bounds it."""
        return self.call / (self.hand or max(self.copy, self.compute))

    def text(self) -> str:
        hand = self.call / self.hand if self.hand else 0.0
        head = f"{self.name:24} {self.threads:7} {self.call * 1e3:9.3f}"
        rates = (
            f"{self.bytes / self.call / 1e9:7.1f} {self.times_copy:6.2f} {self.times_compute:8.2f}"
        )
        return f"{head} {rates} {hand:8.2f} {self.bound:6.2f} {self.eager:6.2f}"


HEAD = f"{'':24} threads        ms    GB/s   copy  compute  by hand  bound  eager"


def compiled(job: Job) -> Side:
    torch._dynamo.reset()
    torch.set_grad_enabled(job.training)
    side = Side(observed(job.fn, {}), job)
    side()
    return side


def elements(job: Job) -> int:
    return max(t.numel() for t in job.args if isinstance(t, Tensor))


def arithmetic(name: str, rounds: int) -> float:
    """Seconds that one thread takes for an element of what is in its cache."""
    torch.set_num_threads(1)
    jobs = [COMPOSITIONS[name](Rows(0, torch.float32, "plain", "cpu", n)) for n in (SMALL, LARGE)]
    small, large = (compiled(job) for job in jobs)
    count = max(1, int(MANY / timed(large, 3)))
    times = alternated({"small": small, "large": large}, lambda c: timed(c, count), 10 * rounds)
    least = min(times["large"]) - min(times["small"])
    return max(least, 0.0) / (elements(jobs[1]) - elements(jobs[0]))


def copies(size: int) -> list[Call]:
    """Calls that move so many bytes."""
    x = torch.randn(size // 8)
    out = torch.empty_like(x)
    # Into memory that is there: a result of another size would take the memory of the case's own.
    own = compiled(Job(lambda into, x: into.copy_(x), (out, x)))
    return [lambda: out.copy_(x), own]


def again(call: Call) -> float:
    """Seconds of a call's second turn: the first finds the memory that results have recycled gone,
    where what ran before had results of another size."""
    call()
    return timed(call, 1)


def measure(name: str, size: int, threads: Sequence[int], rounds: int) -> list[Line]:
    """A line for each number of threads."""
    each = arithmetic(name, rounds)
    torch.manual_seed(0)
    job = COMPOSITIONS[name](Place(size, torch.float32, "plain", "cpu"))
    torch.set_grad_enabled(job.training)
    eager = Side(job.fn, job)
    total = moved(job, eager.outcome())
    by_hand = loop(name, job)
    found = []
    for n in threads:
        torch.set_num_threads(n)
        first, second = copies(total)
        sides: dict[str, Call] = {"litz": compiled(job), "first": first, "second": second}
        sides["eager"] = eager
        if by_hand is not None:
            sides["hand"] = by_hand

        def turn(call: Call) -> float:
            for t in leaves(job):  # what another side has left there is no work of this one
                t.grad = None
            return again(call)

        times = alternated(sides, turn, rounds)
        call = statistics.median(times["litz"])
        copy = min(statistics.median(times[k]) for k in ("first", "second"))
        faster, _ = beside(times["litz"], times["eager"])
        hand = statistics.median(times["hand"]) if by_hand is not None else 0.0
        compute = each * elements(job) / n
        found.append(Line(name, n, call, total, copy, compute, faster, hand))
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = described("limits", __doc__)
    add_only(parser, CASES)
    parser.add_argument("--size", type=int, default=1 << 24, help="elements of float32")
    parser.add_argument("--threads", type=names, default=("1", "2"), metavar="N,...")
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    print(HEAD, flush=True)
    before = torch.get_num_threads()
    try:
        for name in options.only or CASES:
            lines = measure(name, options.size, [*map(int, options.threads)], options.rounds)
            print("\n".join(line.text() for line in lines), flush=True)
    finally:
        torch.set_num_threads(before)
        torch.set_grad_enabled(True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
