"""``python -m benchmarks.gpu_check``: everything about a machine with a GPU, in one run.

First the Triton tests' corpus and the op table's rows, launched on the GPU instead of interpreted;
then what a launch costs; then ``benchmarks.gpu``.  Writes ``check.json`` and ``check.txt`` (and
what workers said, ``cases.log`` and ``gpu.log``) into a folder, as results come; prints the text.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.arguments import names
from benchmarks.gpu.__main__ import checked, common, narrator, plan_of
from benchmarks.gpu.corpus import Result, cases_text, run_cases
from benchmarks.gpu.run import Run, gather_logs, run
from benchmarks.measure import Say
from benchmarks.session import WorkerError

# The benchmark gets no more than this, so that the table is there in good time.
BENCHMARK = 460.0
# The end of the run: workers are ended and files written.
CLOSING = 8.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    common(parser)
    parser.add_argument("--limit", type=float, default=570, metavar="SECONDS", help="of it all")
    parser.add_argument("--cases", type=float, default=170, metavar="SECONDS", help="of the cases")
    parser.add_argument("--case", type=float, default=45, metavar="SECONDS", help="of one case")
    parser.add_argument("--match", type=names, default=(), metavar="WORD,...", help="these cases")
    parser.add_argument("--jobs", type=int, help="processes that run cases at once")
    parser.add_argument("--no-benchmark", action="store_true", help="the cases alone")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", ".")), help="folder (default: $OUT)"
    )
    options = checked(parser, arguments)
    if options.jobs is None:
        options.jobs = max(1, min(6, len(os.sched_getaffinity(0)) // 2))
    return options


def cases(options: argparse.Namespace, say: Say) -> tuple[list[Result], str]:
    """The cases' results, and as text."""
    until = time.monotonic() + min(options.cases, options.limit)
    with tempfile.TemporaryDirectory(prefix="litz-cases-") as folder:
        place = Path(folder)
        try:
            results = run_cases(
                options.device, options.match, place, options.jobs, until, options.case, say
            )
        except WorkerError as error:
            return [], f"WRONG the cases did not start: {error}"
        finally:
            gather_logs(place, options.out / "cases.log")
    return results, cases_text(results)


def write(out: Path, data: dict[str, Any], text: str) -> None:
    (out / "check.json").write_text(json.dumps(data, indent=1) + "\n")
    (out / "check.txt").write_text(text + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; the exit status is 1 where something was wrong or did not run."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    # An exception on the way out ends the workers and removes their caches.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say = narrator()
    results, text = cases(options, say)
    text = f"{text}\ncases took {time.monotonic() - start:.0f} s"
    data: dict[str, Any] = {"cases": [asdict(r) for r in results]}
    write(options.out, data, text)
    right = bool(results) and all(r.why is None for r in results)
    if not options.no_benchmark:
        print(text, file=sys.stderr, flush=True)
        now = time.monotonic()
        until = min(start + options.limit - CLOSING, now + BENCHMARK)
        out = options.out

        def keep(found: Run) -> None:
            write(out, {**data, "benchmark": found.as_json()}, f"{text}\n\n{found.text()}")

        plan, log = plan_of(options, until), out / "gpu.log"
        found = run(plan, options.only, say, options.again, keep, log)
        text, right = f"{text}\n\n{found.text()}", right and found.right
    print(text)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
