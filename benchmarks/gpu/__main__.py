"""``python -m benchmarks.gpu``: Litz beside eager and the peer on a GPU.

Each backend runs in a fresh process on empty caches and goes from workload to workload; a first
small compile, which brings imports and pools, is reported by itself.  What the columns mean:

first s    the first call, compilation included, model and inputs already built
2nd s      the same in a second process that finds the first one's caches (--again)
ms         median of a steady call, between CUDA events, on a cold last-level cache
replay ms  the same for replays of the call captured as a CUDA graph
GB/s       the bytes that must move at least, over the replay's time (the call's without one)
% roof     that beside a plain copy on the device
x eager    how many times faster than eager, the median over paired rounds; x peer likewise;
           rx eager, rx peer: the same of replays
error      distance from float64, relative
right      ok: at most twice eager's own error (and a rounding), the worst element included;
           loose: more, but near; WRONG
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.arguments import add_only, described, names
from benchmarks.gpu.measure import Plan
from benchmarks.gpu.run import Run, run
from benchmarks.gpu.workloads import GPU_WORKLOADS

BACKENDS = {"cuda": "eager,inductor,litz", "cpu": "eager,litz"}


def common(parser: argparse.ArgumentParser) -> None:
    """The arguments that the check of a machine takes as well."""
    add_only(parser, GPU_WORKLOADS)
    parser.add_argument("--backends", type=names, help=BACKENDS["cuda"])
    parser.add_argument("--device", choices=tuple(BACKENDS), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, short rounds")
    parser.add_argument("--again", action="store_true", help="second processes' first calls too")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of steady-state timing")
    parser.add_argument("--cell", type=float, default=75, metavar="SECONDS", help="of a cell")


def checked(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, sound and with their defaults."""
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds takes a number from 1 on")
    options.backends = options.backends or names(BACKENDS[options.device])
    options.only = options.only or tuple(GPU_WORKLOADS)
    return options


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = described("gpu", __doc__)
    common(parser)
    parser.add_argument("--limit", type=float, default=460, metavar="SECONDS", help="of the run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write there what workers said")
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    return checked(parser, arguments)


def plan_of(options: argparse.Namespace, until: float) -> Plan:
    return Plan(
        device=options.device,
        backends=options.backends,
        quick=options.quick,
        rounds=options.rounds,
        seconds=0.05 if options.quick else 0.12,
        cell=options.cell,
        until=until,
    )


def narrator() -> Callable[[str], None]:
    """Says things on stderr, with the time since now."""
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:6.0f} s] {text}", file=sys.stderr, flush=True)

    return say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status is 1 where Litz failed or was not right."""
    options = parse(arguments)
    if options.list:
        print("\n".join(GPU_WORKLOADS))
        return 0
    # An exception on the way out ends the workers and removes their caches.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = plan_of(options, time.monotonic() + options.limit)

    def write(found: Run) -> None:
        if options.json:
            options.json.write_text(json.dumps(found.as_json(), indent=1) + "\n")

    found = run(plan, options.only, narrator(), options.again, write, options.log)
    print(found.text())
    return 0 if found.right else 1


if __name__ == "__main__":
    sys.exit(main())
