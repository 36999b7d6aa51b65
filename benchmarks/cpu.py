"""``python -m benchmarks.cpu``: Litz beside eager and the peer on the CPU.

Each workload and backend runs in a fresh process on empty caches.  What the columns mean:

first s    the first call, compilation included, model and inputs already built
+aot s     that beyond the first call of ``aot_eager``, which compiles nothing
2nd s      the first call of a second process that finds the first one's caches; +aot s likewise
steady ms  median of a steady call; backends are timed in turn, one at a time
x eager    how many times faster than eager, the median over paired rounds; x peer likewise
peak MiB   growth of resident memory during steady calls, pools emptied before; held: what
           stays of it in pools once results and gradients are gone
error      distance from float64, relative
right      ok: at most twice eager's own error (and a rounding); loose: more, but near; WRONG
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import add_only, described, names
from benchmarks.measure import BASELINE, Plan, Row, Say, measure
from benchmarks.report import summary, table
from benchmarks.session import Session, WorkerError
from benchmarks.workloads import QUICK, WORKLOADS

BACKENDS = "eager,inductor,litz"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = described("cpu", __doc__)
    add_only(parser, WORKLOADS)
    parser.add_argument("--backends", type=names, default=names(BACKENDS), help=BACKENDS)
    parser.add_argument("--quick", action="store_true", help="fewer, smaller, shorter")
    parser.add_argument("--runs", type=int, help="rounds of steady-state timing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    options = parser.parse_args(arguments)
    if options.runs is not None and options.runs < 1:
        parser.error("--runs takes a number from 1 on")
    return options


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        model = found[0].partition(":")[2].strip() if found else model
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def rehearse(plan: Plan, say: Say) -> dict[str, Any]:
    """Let each backend compile something once, so that no measured first call reads cold disks.

    What is warmed is the system's file cache and Python's bytecode; compilers' caches are empty
    again for each measurement.
    """
    facts: dict[str, Any] = {}
    for backend in (BASELINE, *plan.backends):
        say(f"rehearsal: {backend}")
        with tempfile.TemporaryDirectory(prefix="litz-bench-") as folder:
            try:
                with Session("softmax", backend, True, Path(folder)) as session:
                    facts = session.facts
                    session.ask("first")
            except WorkerError as error:
                say(f"rehearsal: {backend} failed: {error}")
    return facts


def write(path: Path, facts: dict[str, Any], plan: Plan, rows: Sequence[Row]) -> None:
    data = {
        "machine": facts,
        "quick": plan.quick,
        "rounds": plan.rounds,
        "workloads": [row.as_json() for row in rows],
    }
    path.write_text(json.dumps(data, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status is 1 where Litz failed or was wrong."""
    options = parse(arguments)
    if options.list:
        print("\n".join(WORKLOADS))
        return 0
    rounds = options.runs or (5 if options.quick else 9)
    plan = Plan(options.backends, options.quick, rounds, 0.1 if options.quick else 0.3)
    # An exception on the way out ends the workers and removes their caches.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:6.0f} s] {text}", file=sys.stderr, flush=True)

    facts = machine()
    if facts["load"] > 0.25 * facts["cores"]:
        say(f"the machine is busy (load {facts['load']:.1f}): first calls will be too long")
    facts |= rehearse(plan, say)
    rows: list[Row] = []
    for name in options.only or (QUICK if options.quick else WORKLOADS):
        rows.append(measure(name, plan, say))
        print(table(rows[-1:]), file=sys.stderr, flush=True)
        if options.json:
            write(options.json, facts, plan, rows)
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    print(table(rows))
    print(summary(rows))
    cells = [row.cells["litz"] for row in rows if "litz" in row.cells]
    bad = [c for c in cells if c.failure is not None or not (c.verdict or {}).get("ok")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
