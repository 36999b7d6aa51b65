"""``python -m tests.fuzz --count 1000 --seed 7 --jobs 2``: random programs against eager.

Prints one line a failure and writes a stand-alone script of it to ``--out``; the exit status is 1
if there were any.  ``--only 7:12:3`` runs one program again (with ``--grad`` or ``--dynamic`` as
printed), and ``--batch 7:12`` one graph.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from tests.fuzz.generate import generate
from tests.fuzz.program import source
from tests.fuzz.run import BATCH, batch, failure, run_batch

LIMIT = 600.0  # seconds for a graph, with shrinking where it differs


def worker(seed: int, first: int, last: int, stride: int, shrinking: bool, device: str) -> None:
    """Run graphs; report each as a line of JSON: started, then finished."""
    from tests.fuzz.shrink import script, shrink

    for number in range(first, last, stride):
        print(json.dumps({"start": number}), flush=True)
        b = batch(seed, number, device)
        count, failures = run_batch(b)
        found = []
        for f in failures:
            small = shrink(f) if shrinking else f
            found.append({"why": list(small.mismatches), "script": script(small)})
        print(json.dumps({"done": number, "count": count, "failures": found}), flush=True)


class Run:
    """Workers, restarted behind a graph that ends or hangs one."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.graphs = -(-args.count // BATCH)
        self.lock = Lock()
        self.programs = 0
        self.failures: list[str] = []
        self.running: dict[subprocess.Popen[bytes], float] = {}  # when its graph began
        self.out = Path(args.out or tempfile.mkdtemp(prefix="litz-fuzz-"))
        self.begin = time.monotonic()

    def line(self, k: int) -> None:
        first = k
        while first < self.graphs:
            command = [sys.executable, "-m", "tests.fuzz", "--seed", str(self.args.seed)]
            command += ["--worker", f"{first}:{self.graphs}:{self.args.jobs}"]
            command += ["--device", self.args.device]
            command += [] if self.args.shrink else ["--no-shrink"]
            with tempfile.TemporaryFile() as said:
                p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
                assert p.stdout is not None
                current = first
                for raw in p.stdout:
                    self.running[p] = time.monotonic()
                    if raw.startswith(b"{"):
                        current = self.read(json.loads(raw), current)
                ended = p.wait() == 0
                late = self.running.pop(p, None) is None
                if ended:
                    return
                said.seek(0)
                last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            why = f"no end after {LIMIT:.0f} s" if late else f"status {p.returncode}: {last}"
            with self.lock:
                self.report(current, [f"the process of a graph: {why}"], "")
            first = current + self.args.jobs

    def read(self, row: dict[str, Any], current: int) -> int:
        if "start" in row:
            return int(row["start"])
        with self.lock:
            self.programs += row["count"]
            for f in row["failures"]:
                self.report(row["done"], f["why"], f["script"])
            if row["done"] % 25 == 0:
                spent = time.monotonic() - self.begin
                print(f"{self.programs} programs, {len(self.failures)} differ, {spent:.0f} s")
                sys.stdout.flush()
        return current

    def report(self, number: int, why: list[str], text: str) -> None:
        path = self.out / f"fuzz_{self.args.seed}_{number}_{len(self.failures)}.py"
        if text:
            self.out.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.failures.append(why[0])
        print(f"DIFFERS {self.args.seed}:{number} {why[0][:300]}  {path if text else ''}")
        sys.stdout.flush()

    def run(self) -> int:
        print(f"seed {self.args.seed}, {self.graphs} graphs of {BATCH} programs")
        threads = [Thread(target=self.line, args=(k,)) for k in range(self.args.jobs)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            time.sleep(0.2)
            for p, begin in list(self.running.items()):
                if time.monotonic() - begin > LIMIT and self.running.pop(p, None):
                    p.kill()
        spent = time.monotonic() - self.begin
        print(
            f"seed {self.args.seed}: {self.programs} programs, {len(self.failures)} differ,", end=""
        )
        print(f" {spent:.0f} s")
        return 1 if self.failures else 0


def one(args: argparse.Namespace) -> int:
    """One program or one graph again, in this process."""
    from tests.fuzz.shrink import script, shrink

    if args.batch:
        seed, number = map(int, args.batch.split(":"))
        _, failures = run_batch(batch(seed, number, args.device))
    else:
        p = generate(args.only, dynamic=args.dynamic, grad=args.grad, device=args.device)
        print(source(p))
        f = failure(p)
        failures = [] if f is None else [f]
    for f in failures:
        print("\n".join(f.mismatches))
        print(script(shrink(f) if args.shrink else f))
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", default="")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    parser.add_argument("--only", default="")
    parser.add_argument("--batch", default="")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--grad", action="store_true")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 30)
    if args.worker:
        first, last, stride = map(int, args.worker.split(":"))
        worker(args.seed, first, last, stride, args.shrink, args.device)
        return 0
    if args.only or args.batch:
        return one(args)
    return Run(args).run()


if __name__ == "__main__":
    sys.exit(main())
