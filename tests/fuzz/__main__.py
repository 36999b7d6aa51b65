"""``python -m tests.fuzz --count 1000 --seed 7 --jobs 2``: random programs against eager.

Prints one line a failure and writes a stand-alone script of it to ``--out``; the exit status is 1
if there were any, or if a graph ended or hung its process.  ``--seconds`` stops the run in time.
``--only 7:12:3`` runs one program again, and ``--batch 7:12`` one graph.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.farm import STAGE, Farm, Lost, serve, speaker, stop_in_order
from tests.fuzz.program import source
from tests.fuzz.run import BATCH, batch, failure, run_batch

LIMIT = 120.0  # seconds for a graph, beside shrinking where it differs
SHRINKING = 60.0  # seconds for that, a program
SLOW = 60.0  # a graph that takes longer is named


class Work(NamedTuple):
    """A graph of a run, or one program of it by itself."""

    number: int
    only: int | None = None


def prepare(device: str) -> None:
    """Eager's own precision, where a choice of algorithm would be the largest of errors."""
    import torch

    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def worker(seed: int, shrinking: bool, device: str) -> None:
    """Run what comes in; see Farm."""
    from tests.fuzz.shrink import script, shrink

    say = speaker()
    prepare(device)

    def answer(work: tuple[int, int | None]) -> dict[str, Any]:
        number, only = work
        b = batch(seed, number, device)
        count, failures = run_batch(
            b,
            only,
            lambda stage: say({STAGE: stage}),
            lambda f: say({"suspect": script(f)}),
        )
        # What was found is said before it is made smaller, which may take too long.
        for n, f in enumerate(failures):
            say({"found": n, "why": list(f.mismatches), "script": script(f)})
        for n, f in enumerate(failures if shrinking else []):
            say({STAGE: "shrinking"})
            small = shrink(f, seconds=SHRINKING / len(failures))
            say({"smaller": n, "why": list(small.mismatches), "script": script(small)})
        return {"count": count}

    serve(say, answer)


class Run:
    """What a run found, while its workers find it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.graphs = -(-args.count // BATCH)
        self.programs = self.done = 0
        self.failures: list[str] = []
        self.unexplained: dict[int, str] = {}  # graphs that ended a process, until a program did
        self.suspects: dict[Work, str] = {}
        self.without_litz = 0
        self.out = Path(args.out or tempfile.mkdtemp(prefix="litz-fuzz-"))
        self.begin = time.monotonic()

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "tests.fuzz", "--seed", str(self.args.seed), "--worker"]
        command += ["--device", self.args.device]
        return command if self.args.shrink else [*command, "--no-shrink"]

    def heard(self, work: Work, row: dict[str, Any]) -> None:
        if "found" in row:
            self.failures.append(row["why"][0])
            name = f"{self.args.seed}:{work.number}"
            path = self.write(work, row["found"], row["script"])
            print(f"DIFFERS {name} {row['why'][0][:300]}  {path}", flush=True)
        elif "suspect" in row:
            self.suspects[work] = row["suspect"]
        elif "smaller" in row:
            self.write(work, row["smaller"], row["script"])
        elif "count" in row:
            self.programs += row["count"]
            self.done += work.only is None
            if row["seconds"] > SLOW:
                print(f"slow {self.args.seed}:{work.number} {row['seconds']:.0f} s", flush=True)
            if self.done % 25 == 0 and work.only is None:
                print(f"{self.programs} programs, {len(self.failures)} differ,", end=" ")
                print(f"{time.monotonic() - self.begin:.0f} s", flush=True)

    def write(self, work: Work, n: int, text: str) -> Path:
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"fuzz_{self.args.seed}_{work.number}_{work.only or 0}_{n}.py"
        path.write_text(text)
        return path

    def lost(self, gone: Lost[Work]) -> Sequence[Work]:
        """Note work that ended its worker; of a graph, its programs are tried one by one."""
        work = gone.work
        name = f"{self.args.seed}:{work.number}" + ("" if work.only is None else f":{work.only}")
        if gone.stage == "shrinking":
            return ()  # what there was to be found has been said
        if gone.stage.startswith("eager"):
            self.without_litz += 1
            self.unexplained.pop(work.number, None)
            print(f"EAGER {name} ends its process ({gone.stage}): {gone.why}", flush=True)
        elif work.only is None:
            self.unexplained[work.number] = gone.why
            print(f"ENDS {name} ({gone.stage or 'at the start'}) {gone.why}", flush=True)
        else:
            self.failures.append(gone.why)
            self.unexplained.pop(work.number, None)
            script = self.suspects.get(work)
            path = self.write(work, 0, script) if script else ""
            print(f"LOST {name} ({gone.stage or 'at the start'}) {gone.why}  {path}", flush=True)
        return () if work.only is not None else [Work(work.number, k) for k in range(BATCH)]

    def run(self) -> int:
        args = self.args
        print(f"seed {args.seed}, {self.graphs} graphs of {BATCH} programs", flush=True)
        interpreted = {"LITZ_TARGET": args.target, "TRITON_INTERPRET": "1"}
        farm = Farm(
            self.command(),
            (Work(n) for n in range(self.graphs)),
            args.jobs,
            self.heard,
            self.lost,
            device=args.device,
            environment=interpreted if args.target else {},
            limit=args.limit + (SHRINKING if args.shrink else 0),
            seconds=args.seconds or float("inf"),
        )
        finished = False
        try:
            finished = farm.run()
        except KeyboardInterrupt:
            print("interrupted")
        for work in farm.unfinished:
            print(f"unfinished {args.seed}:{work.number}")
        self.failures += self.unexplained.values()  # by no program of the graph alone
        spent = time.monotonic() - self.begin
        rest = "" if finished else f" ({self.done} of {self.graphs} graphs)"
        rest += f", {self.without_litz} end eager" if self.without_litz else ""
        print(f"seed {args.seed}: {self.programs} programs{rest}, ", end="")
        print(f"{len(self.failures)} differ, {spent:.0f} s", flush=True)
        return 1 if self.failures or farm.broken or not self.programs else 0


def one(args: argparse.Namespace) -> int:
    """One program or one graph again, in this process."""
    from tests.fuzz.shrink import script, shrink

    prepare(args.device)
    seed, number, *only = map(int, (args.only or args.batch).split(":"))
    b = batch(seed, number, args.device)
    if only:
        p = b.program(only[0])
        print(source(p))
        f = failure(p)
        failures = [] if f is None else [f]
    else:
        _, failures = run_batch(b)
    for f in failures:
        print("\n".join(f.mismatches))
        print(script(shrink(f) if args.shrink else f))
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0, help="give out no work after so many")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for a graph")
    parser.add_argument("--out", default="")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    parser.add_argument("--only", default="")
    parser.add_argument("--batch", default="")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--target", default="", choices=["", "triton"], help="see Options.target")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 30)
    if args.worker:
        worker(args.seed, args.shrink, args.device)
        return 0
    if args.only or args.batch:
        return one(args)
    stop_in_order()
    return Run(args).run()


if __name__ == "__main__":
    sys.exit(main())
