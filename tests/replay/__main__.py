"""What a change changes: ``python -m tests.replay HEAD~1`` compiles the corpus twice.

Once as it is in the checkout and once at the revision, kernels unbuilt, and prints what differs in
kernels, host programs and calls of ATen; exit status 1 where anything does.

``--check`` compares the checkout with ``expectations.txt`` instead: kernels launched and bytes
moved.  Exit status 1 where one grows.  ``--write`` writes that file.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.replay import compare

ROOT = Path(__file__).resolve().parents[2]
EXPECTATIONS = Path(__file__).with_name("expectations.txt")
# A process each: autograd learns once what devices there are.
PARTS = ("cpu", "cuda")


def record_part(part: str, only: str) -> None:
    """Print a line of JSON for each entry of a device."""
    import contextlib

    import torch

    from tests.replay.corpus import corpus
    from tests.replay.record import record

    if part == "cuda":
        from traces import cuda_on_paper

        around: Any = cuda_on_paper()
    else:
        around = contextlib.nullcontext()
    torch.set_num_threads(1)
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no result
    with around:
        for name, entry in corpus().items():
            if entry.device != part or only not in name:
                continue
            try:
                found: dict[str, Any] = {"graphs": [g.as_json() for g in record(entry)]}
            except Exception as e:
                found = {"error": f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"}
            print(json.dumps([name, found]), file=say, flush=True)


def recorded(root: Path, only: str) -> dict[str, Any]:
    """The corpus compiled by the sources below ``root``."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    # Its disk cache holds guesses that tuning made here.
    with tempfile.TemporaryDirectory(prefix="litz-replay-") as cache:
        env |= {"LITZ_CACHE_DIR": cache, "PYTHONHASHSEED": "0", "TRITON_INTERPRET": "0"}
        command = [sys.executable, "-m", "tests.replay", "--only", only, "--part"]
        logs = {part: Path(cache) / f"{part}.log" for part in PARTS}
        runs = {
            part: subprocess.Popen(
                [*command, part],
                cwd=root,
                env=env,
                stdout=(Path(cache) / part).open("w"),
                stderr=log.open("w"),
            )
            for part, log in logs.items()
        }
        found: dict[str, Any] = {}
        for part, run in runs.items():
            if run.wait():
                end = logs[part].read_text()[-3000:]
                sys.exit(f"{end}\nthe process for {part} ended with status {run.returncode}")
            text = (Path(cache) / part).read_text()
            found.update(json.loads(line) for line in text.splitlines())
    return found


def sources_of(revision: str, folder: Path) -> None:
    """The revision's package with its own corpus and recorder; this checkout's if it has none."""
    for paths in (["src", "tests", "benchmarks"], ["tests/replay"]):
        made = subprocess.run(["git", "archive", revision, *paths], cwd=ROOT, capture_output=True)
        if made.returncode == 0:
            with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
                archive.extractall(folder, filter="data")
        elif "src" in paths:
            sys.exit(made.stderr.decode().strip())
        else:
            shutil.copytree(ROOT / "tests" / "replay", folder / "tests" / "replay")


def against(revision: str, only: str, lines: int) -> int:
    with tempfile.TemporaryDirectory(prefix="litz-replay-") as name:
        folder = Path(name)
        sources_of(revision, folder)
        old = recorded(folder, only)
    new = recorded(ROOT, only)
    count = 0
    for name in [n for n in new if n in old]:
        found = list(compare.differences(name, old[name], new[name], lines))
        count += bool(found)
        print("\n".join(found), end="\n" if found else "")
    for revisions, names in (("the checkout", new.keys() - old), (revision, old.keys() - new)):
        if names:
            print(f"{len(names)} entries are in {revisions} alone: {', '.join(sorted(names)[:5])}")
    graphs = sum(len(r.get("graphs", ())) for r in new.values())
    print(f"{len(new)} entries, {graphs} graphs; {count} entries differ from {revision}")
    return int(count > 0)


def check(only: str) -> int:
    expected = compare.read_expectations(EXPECTATIONS.read_text())
    now = recorded(ROOT, only)
    expected = {k: v for k, v in expected.items() if only in k}
    found = compare.grown(expected, now)
    print("\n".join(found), end="\n" if found else "")
    print(f"{len(now)} entries, {len(found)} are worse than expected")
    return int(bool(found))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", nargs="?", default="", help="of git, to compare with")
    parser.add_argument("--only", default="", help="entries whose names have this in them")
    parser.add_argument("--lines", type=int, default=40, help="of each text's difference at most")
    parser.add_argument("--check", action="store_true", help="against the expectations")
    parser.add_argument("--write", action="store_true", help="the expectations")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.part:
        record_part(args.part, args.only)
        return 0
    if args.write:
        EXPECTATIONS.write_text(compare.write_expectations(recorded(ROOT, "")))
        return 0
    if args.check:
        return check(args.only)
    if not args.revision:
        parser.error("a revision is wanted, --check or --write")
    return against(args.revision, args.only, args.lines)


if __name__ == "__main__":
    sys.exit(main())
