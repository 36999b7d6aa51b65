"""Cases of a benchmark, each with each backend in a process of its own, going on where it ended."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from benchmarks.arguments import add_only, described, names

Measure = Callable[[str, str, str | None], dict[str, Any]]


def measured_apart(
    module: str,
    text: str | None,
    cases: Collection[str],
    backends: tuple[str, ...],
    measure: Measure,
) -> list[dict[str, Any]] | None:
    """What ``python -m benchmarks.<module>`` is asked for: a row a case and backend.

    measure: takes a case, a backend and a mode, in the case's own process; None comes back there.
    A row of a case that failed says so as ``failed``.  Rows are kept in ``--out`` as they come, a
    line of JSON each, and those that it holds are not measured again.
    """
    parser = described(module, text)
    add_only(parser, cases)
    parser.add_argument("--backends", type=names, default=backends)
    parser.add_argument("--mode")
    default = Path(f"{module.rpartition('.')[2]}.jsonl")
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    wanted = [(n, b) for n in args.only or cases for b in args.backends]
    if args.here:
        ((name, backend),) = wanted
        print(json.dumps(measure(name, backend, args.mode)))
        return None
    rows = [json.loads(x) for x in args.out.read_text().splitlines()] if args.out.exists() else []
    have = {(r["case"], r["backend"]) for r in rows}
    for name, backend in wanted:
        if (name, backend) in have:
            continue
        command = [sys.executable, "-m", f"benchmarks.{module}", "--here", "--only", name]
        command += ["--backends", backend, *(["--mode", args.mode] if args.mode else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            rows.append({"case": name, "backend": backend, "failed": done.stderr})
        else:
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        with args.out.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    return rows
