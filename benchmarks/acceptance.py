"""What several processes are asked for, part by part, and whether it is so.

    python -m benchmarks.distributed --accept --out FILE                 # parts that FILE has not
    python -m benchmarks.distributed --accept --out FILE --only ddp_gpt2 # these, again

Each call runs parts as long as ``--within`` seconds may be enough, and ends what takes longer; FILE
has a line of JSON for each that is done.  The table says of every figure what is asked.
"""

from __future__ import annotations

import json
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.distributed import (
    AGAIN,
    BACKENDS,
    CASES,
    EXACT,
    far,
    run_case,
    table,
    transformer_sizes,
)
from benchmarks.report import PEER, SUBJECT, align, number

Rows = list[dict[str, Any]]
HEADER = ("part", "what", "asked", "measured", "")


@dataclass(frozen=True)
class Part:
    """A case on ``backends``.  large: whether models are as they are known."""

    case: str
    steps: int = 50
    backends: tuple[str, ...] = BACKENDS
    large: bool = True

    @property
    def enough(self) -> float:
        """Seconds that it is begun with."""
        return 200.0 if self.backends == BACKENDS else 70.0


PARTS = {
    **{case: Part(case) for case in CASES},
    **{f"repeated_{case}": Part(case, 200, (SUBJECT,), large=False) for case in CASES},
}


def rows_of(part: Part, args: Namespace, seconds: float) -> Rows:
    sizes = ("full", "small") if args.device == "cuda" else ("tiny", "tiny")
    steps = min(part.steps, args.steps) if part.backends == BACKENDS else part.steps
    backends = tuple(name for name in part.backends if name in args.backends)
    own = {"size": sizes[not part.large], "steps": steps, "backends": backends, "limit": seconds}
    if not part.large:
        own["rounds"] = 0
    return run_case(part.case, Namespace(**(vars(args) | own)))


def accept(args: Namespace) -> str:
    """Run what is to be run; the table of all that is known, and what is left."""
    end, found = time.monotonic() + args.within, dict[str, Rows]()
    if args.out.exists():
        found = {r["part"]: r["rows"] for r in map(json.loads, args.out.read_text().splitlines())}
    wanted = args.only or [name for name in PARTS if name not in found]
    for name in wanted:
        if (seconds := end - time.monotonic()) < PARTS[name].enough and name != wanted[0]:
            break
        rows = found[name] = rows_of(PARTS[name], args, seconds)
        print(table(rows), flush=True)
        with args.out.open("a") as file:
            file.write(json.dumps({"part": name, "rows": rows}) + "\n")
    lines = [line for name in PARTS if name in found for line in judged(name, found[name])]
    if "graph_sharded" in found and args.device == "cuda":
        lines += predicted(found["graph_sharded"], args)
    left = [name for name in PARTS if name not in found]
    return "\n".join([align([HEADER, *lines]), *[f"left: {', '.join(left)}"] * bool(left)])


def judged(name: str, rows: Rows) -> Iterator[tuple[str, ...]]:
    """What is asked of a part, line by line."""
    part = PARTS[name]
    if failed := [r for r in rows if "failed" in r and r["backend"] != PEER]:
        yield name, "runs", "yes", f"{failed[0]['backend']}: {failed[0]['failed'][:60]}", "NO"
        return
    if part.backends != BACKENDS:
        for r in rows:
            yield (
                name,
                "steps",
                str(part.steps),
                *_verdict(len(r["losses"]), lambda n: n >= part.steps, "d"),
            )
        return
    by = {r["backend"]: r for r in rows}
    mine, eager, peer = by[SUBJECT], by["eager"], by.get(PEER, {})
    if peer.get("rounds"):
        wanted = 1.1 if name == "fsdp2" else 1.0
        speed = statistics.median(peer["rounds"]) / statistics.median(mine["rounds"])
        yield (
            name,
            "times the peer's speed",
            f">= {wanted}",
            *_verdict(speed, lambda x: x >= wanted),
        )
    if "exposed" in mine:
        share = mine["exposed"] / max(eager["exposed"], 1e-9)
        asked = "<= 0.5" if name == "fsdp2" else "-"
        yield name, "exposed, of eager's", asked, *_verdict(share, lambda x: x <= 0.5, asks=asked)
    peak = mine["peak"] / max(eager["peak"], 1e-9)
    yield name, "peak memory, of eager's", "<= 1.05", *_verdict(peak, lambda x: x <= 1.05)
    noise, off = far(by[AGAIN], eager), far(mine, eager)
    what = f"losses of {len(mine['losses'])} steps from eager's"
    # Two runs lie twice as far from each other as each may from what both are noise around.
    yield name, what, f"<= 2 x {noise:.1e}", *_verdict(off, lambda x: x <= 2 * noise, ".1e")
    if "losses" in peer and "failed" not in peer:
        yield name, "the peer's", "-", f"{far(peer, eager):.1e}", ""
    if "losses" in (exact := by.get(EXACT, {})):
        error, allowed = far(mine, exact), 2 * max(far(eager, exact), noise)
        asked = f"<= {allowed:.1e}, eager's twice"
        yield name, "losses from float32's", asked, *_verdict(error, lambda x: x <= allowed, ".1e")


def _verdict(
    x: float, holds: Callable[[float], bool], form: str = ".2f", asks: str = ""
) -> tuple[str, str]:
    return f"{x:{form}}", "" if asks == "-" else "ok" if holds(x) else "NO"


def predicted(rows: Rows, args: Namespace) -> Iterator[tuple[str, ...]]:
    """The simulator's figures for so many ranks beside what was measured."""
    from benchmarks.simulated import Network
    from benchmarks.simulated import predicted as prediction

    mine = next((r for r in rows if r["backend"] == SUBJECT and "failed" not in r), None)
    if mine is None or not mine.get("bandwidth"):
        return
    layers, width, _, tokens = transformer_sizes("full")
    network = Network(inside=1e6 * mine["bandwidth"] * (args.ranks - 1) / args.ranks)
    _, _, _, compute, transfers, exposed, _ = prediction(args.ranks, network, layers, width, tokens)
    said = f"{exposed} of {transfers}, compute {compute}"
    measured = (
        f"{number(1e3 * mine['exposed'], 2)}, step {1e3 * statistics.median(mine['rounds']):.2f}"
    )
    yield "graph_sharded", "exposed ms, simulated", said, measured, ""
