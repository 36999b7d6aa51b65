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
SLOW = 60.0  # one that takes longer is named


def worker(seed: int, shrinking: bool, device: str) -> None:
    """Run the graphs whose numbers come in; report each as a line of JSON."""
    from tests.fuzz.shrink import script, shrink

    for line in sys.stdin:
        count, failures = run_batch(batch(seed, int(line), device))
        found = []
        for f in failures:
            small = shrink(f) if shrinking else f
            found.append({"why": list(small.mismatches), "script": script(small)})
        print(json.dumps({"count": count, "failures": found}), flush=True)


class Run:
    """Workers, restarted behind a graph that ends or hangs one."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.graphs = -(-args.count // BATCH)
        self.numbers = iter(range(self.graphs))
        self.lock = Lock()
        self.programs = 0
        self.failures: list[str] = []
        # Its graph, and when that began.
        self.running: dict[subprocess.Popen[bytes], tuple[int, float]] = {}
        self.out = Path(args.out or tempfile.mkdtemp(prefix="litz-fuzz-"))
        self.begin = time.monotonic()

    def line(self) -> None:
        """Keep one worker busy for as long as there are graphs."""
        number = self.following()
        command = [sys.executable, "-m", "tests.fuzz", "--seed", str(self.args.seed), "--worker"]
        command += ["--device", self.args.device]
        command += [] if self.args.shrink else ["--no-shrink"]
        while number is not None:
            with tempfile.TemporaryFile() as said:
                p = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
                )
                while number is not None and self.graph(p, number):
                    number = self.following()
                late = self.running.pop(p, None) is None
                p.communicate()
                if number is None:
                    return
                said.seek(0)
                last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            why = f"no end after {LIMIT:.0f} s" if late else f"status {p.returncode}: {last}"
            with self.lock:
                self.report(number, [f"the process of a graph: {why}"], "")
            number = self.following()

    def following(self) -> int | None:
        with self.lock:
            return next(self.numbers, None)

    def graph(self, p: subprocess.Popen[bytes], number: int) -> bool:
        """One graph in a worker; whether the worker came to its end."""
        assert p.stdin is not None and p.stdout is not None
        self.running[p] = (number, time.monotonic())
        try:
            p.stdin.write(b"%d\n" % number)
            p.stdin.flush()
        except BrokenPipeError:
            return False
        for raw in p.stdout:
            if raw.startswith(b"{"):
                self.read(number, json.loads(raw))
                return True
        return False

    def read(self, number: int, row: dict[str, Any]) -> None:
        with self.lock:
            self.programs += row["count"]
            for f in row["failures"]:
                self.report(number, f["why"], f["script"])
            if number % 25 == 0:
                spent = time.monotonic() - self.begin
                print(f"{self.programs} programs, {len(self.failures)} differ, {spent:.0f} s")
                sys.stdout.flush()

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
        threads = [Thread(target=self.line) for _ in range(self.args.jobs)]
        for t in threads:
            t.start()
        named: set[int] = set()
        while any(t.is_alive() for t in threads):
            time.sleep(0.2)
            for p, (number, begin) in list(self.running.items()):
                spent = time.monotonic() - begin
                if spent > SLOW and number not in named:
                    named.add(number)
                    print(f"slow {self.args.seed}:{number}", flush=True)
                if spent > LIMIT and self.running.pop(p, None):
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
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 30)
    if args.worker:
        worker(args.seed, args.shrink, args.device)
        return 0
    if args.only or args.batch:
        return one(args)
    return Run(args).run()


if __name__ == "__main__":
    sys.exit(main())
