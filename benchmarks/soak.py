"""A server's hours in minutes: ``python -m benchmarks.soak``.

Threads call one package without a pause, with few rows and many (whose buffers the pool of large
ones holds), while one of them replaces constants, has calls refused and loads the package anew;
prints the calls and the resident memory every so often.  The exit status is 1 where a result is
wrong, or where memory grows: the most of the last half beyond the most of the first half (the first
tenth apart, in which the pool fills).  ``--results FILE`` keeps the samples, and another run goes
on where they end; each run's memory is judged by itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

import litz
from benchmarks.worker import status_mib
from litz.runtime.memory import default_allocator

ROWS = (1, 3, 64, 1500)
EVERY = 500
"""Calls of a thread between two things that are no calls."""


class Wide(nn.Module):
    """Intermediates and results that the pool of large buffers holds, and an operator of ATen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 1024), nn.Linear(1024, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.first(x).relu()
        return self.second(h), h.exp()


@dataclass(frozen=True)
class Sample:
    """run: when it began.  seconds, calls: since then.  resident, pool: MiB."""

    run: float
    seconds: float
    calls: int
    resident: float
    pool: float


class Threads:
    """Threads that call a program until they are told to stop."""

    def __init__(self, path: Path, count: int) -> None:
        self.calls = [0] * count
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._path, self._program = path, litz.load(path)
        self._inputs = [torch.randn(n, 64) for n in ROWS]
        self._wanted = [self._program(x) for x in self._inputs]
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]
        for t in self._threads:
            t.start()

    def stop(self) -> None:
        self._stop.set()
        for t in self._threads:
            t.join()

    def _run(self, n: int) -> None:
        try:
            while not self._stop.is_set():
                self._call(n)
        except BaseException as e:
            self.errors.append(e)

    def _call(self, n: int) -> None:
        k = self.calls[n]
        at = len(ROWS) - 1 if k % EVERY == n else k % (len(ROWS) - 1)
        found = self._program(self._inputs[at])
        if k % 16 == 0 and not all(map(torch.equal, found, self._wanted[at])):
            raise AssertionError(f"a wrong result of {ROWS[at]} rows, call {k} of thread {n}")
        if k % EVERY == 0 and n == 0:
            self._program.update_constants(self._program.constants)
            litz.load(self._path)(self._inputs[0])
        if k % EVERY == 0 and n == 1:
            try:
                self._program(self._inputs[at].double())
            except litz.PackageError:
                pass
            else:
                raise AssertionError("a call with another type was taken")
        self.calls[n] += 1


def soak(path: Path, threads: int, seconds: float, every: float) -> list[Sample]:
    """Samples of one run.  Raises what a thread raised."""
    began, start, samples = time.time(), time.monotonic(), list[Sample]()
    running = Threads(path, threads)
    try:
        while (passed := time.monotonic() - start) < seconds and not running.errors:
            time.sleep(min(every, seconds - passed))
            gc.collect()
            stats = default_allocator().stats()
            now = time.monotonic() - start
            pool = (stats.live + stats.cached) / 2**20
            made = Sample(began, now, sum(running.calls), status_mib("VmRSS"), pool)
            samples.append(made)
            print(
                f"{now:7.1f} s {made.calls:10,} calls  resident {made.resident:8.1f} MiB"
                f"  pool {pool:6.1f} MiB",
                flush=True,
            )
    finally:
        running.stop()
    if running.errors:
        raise running.errors[0]
    return samples


def growth(samples: Sequence[Sample]) -> float:
    """MiB by which the last half held more than the first half, once that was under way."""
    later = samples[len(samples) // 10 :]
    half = len(later) // 2
    first, last = later[:half], later[half:]
    return max(s.resident for s in last) - max(s.resident for s in first) if first else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds from sample to sample")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--bound", type=float, default=16.0, help="MiB of growth that are allowed")
    parser.add_argument("--results", type=Path, help="samples are kept here, and gone on from")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kept = list[Sample]()
    if asked.results and asked.results.exists():
        kept = [Sample(**json.loads(line)) for line in asked.results.read_text().splitlines()]
    done = list({s.run: s for s in kept}.values())  # the last of each run
    left = asked.seconds - sum(s.seconds for s in done)
    grown = 0.0
    if left > 0:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "wide.litz"
            x = (torch.randn(1200, 64),)  # what is large here goes through the pool
            litz.package(Wide(), path, x, dynamic_shapes=({0: Dim("b", max=4096)},))
            samples = soak(path, asked.threads, left, asked.every)
        if asked.results:
            with asked.results.open("a") as out:
                out.writelines(f"{json.dumps(asdict(s))}\n" for s in samples)
        grown, done = growth(samples), [*done, samples[-1]]
    calls, seconds = sum(s.calls for s in done), sum(s.seconds for s in done)
    print(f"{calls:,} calls in {seconds:.0f} s of {len(done)} runs; grown by {grown:.1f} MiB")
    return int(grown > asked.bound)


if __name__ == "__main__":
    sys.exit(main())
