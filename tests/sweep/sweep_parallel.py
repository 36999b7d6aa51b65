"""The operator sweep by several processes in a given time, and a short report of it in a file.

``python tests/sweep/sweep_parallel.py --device cuda --seconds 230 --report FILE`` runs the forward
pass of what ``docs/operators.md`` lists as native, in float32, then bfloat16, then int64.  A
process that dies, or whose GPU context is lost, is started again behind the entry that did it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parent.parent / "docs" / "operators.md"
CLOSING = 12.0  # the end of the run: for what is under way, and the report


def command(args: argparse.Namespace, part: int, out: Path, left: float) -> list[str]:
    """One worker: the sweep of every ``jobs``-th entry."""
    entry = int(max(5, min(args.entry_seconds, left)))
    words = [sys.executable, str(HERE / "op_sweep.py"), "--quiet", "--part", f"{part}/{args.jobs}"]
    words += ["--dtype", args.dtype, "--check", args.check, "--samples", str(args.samples)]
    words += ["--out", str(out), "--device", args.device]
    words += ["--until", f"{time.time() + left:.0f}", "--entry-seconds", str(entry)]
    if args.target:
        words += ["--target", args.target]
    if not args.all:
        words += ["--native", str(TABLE)]
    return words


def environment(args: argparse.Namespace) -> dict[str, str]:
    """That of workers: one thread each, this checkout before any installed package."""
    env = dict(os.environ, OMP_NUM_THREADS="1")
    places = [str(HERE.parent.parent / "src"), str(HERE.parent.parent), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(p for p in places if p)
    env["TRITON_INTERPRET"] = "1" if args.target else "0"
    env.setdefault("LITZ_JOBS", "1" if args.jobs > 1 else "0")
    return env


def run(args: argparse.Namespace, folder: Path) -> list[str]:
    """Run all parts until they are done or the time is over; what workers said as they died."""
    end = time.monotonic() + args.seconds - CLOSING
    env = environment(args)
    cores = sorted(os.sched_getaffinity(0))
    said: list[str] = []
    live: dict[int, subprocess.Popen[bytes]] = {}

    def start(part: int) -> None:
        log = (folder / f"{part}.log").open("ab")
        words = command(args, part, folder / f"{part}.jsonl", end - time.monotonic())
        at = {cores[part % len(cores)], cores[(part + len(cores) // 2) % len(cores)]}
        live[part] = subprocess.Popen(
            words,
            env=env,
            stdout=log,
            stderr=log,
            # A process starts a compile worker for each core that it may use.
            preexec_fn=lambda: os.sched_setaffinity(0, at),
        )

    for part in range(args.jobs):
        start(part)
    while live and time.monotonic() < end + CLOSING / 2:
        time.sleep(0.2)
        for part, process in list(live.items()):
            status = process.poll()
            if status is None:
                continue
            del live[part]
            if status not in (0, 1):
                said.append(f"part {part} ended with status {status}")
                if end - time.monotonic() > 20:
                    start(part)
    for part, process in live.items():
        process.kill()
        process.wait()
        said.append(f"part {part} was stopped at the end of the time")
        drop_begun(folder / f"{part}.jsonl")
    return said


def drop_begun(path: Path) -> None:
    """Forget an entry that had no time to end."""
    lines = path.read_text().splitlines() if path.exists() else []
    if lines and '"state": "begun"' in lines[-1]:
        path.write_text("".join(f"{line}\n" for line in lines[:-1]))


def report(args: argparse.Namespace, folder: Path, said: list[str], seconds: float) -> str:
    """The results as text: totals a type, then each entry that is not well."""
    import torch
    from op_sweep import read_rows

    rows = [r for p in range(args.jobs) for r in read_rows(folder / f"{p}.jsonl")]
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
    what = f"{args.check}, {args.samples or 'all'} samples an entry, {args.jobs} processes"
    lines = [f"operator sweep on {name}, torch {torch.__version__}: {what}, {seconds:.0f} s", ""]
    for dtype in args.dtype.split(","):
        mine = [r for r in rows if r.dtype == dtype]
        count = Counter(r.state for r in mine if r.state != "skip")
        calls = sum(r.samples for r in mine)
        aten = sum(bool(r.externs) for r in mine)
        states = ", ".join(f"{n} {state}" for state, n in sorted(count.items()))
        lines.append(
            f"{dtype}: {sum(count.values())} entries, {calls} calls: {states}; {aten} with ATen"
        )
    lines += ["", *said]
    bad = [r for r in rows if r.state not in ("ok", "skip")]
    order = {"FAIL": 0, "upstream": 1, "known": 2}
    for r in sorted(bad, key=lambda r: (order.get(r.state, 3), r.entry, r.dtype)):
        lines.append(f"{r.state:8} {r.dtype:9} {r.entry:36} {r.detail[:300]}")
    slow = sorted(rows, key=lambda r: -r.seconds)[:8]
    lines += ["", "slowest: " + ", ".join(f"{r.entry} {r.dtype} {r.seconds:.1f} s" for r in slow)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--target", default="", choices=("", "triton"))
    parser.add_argument("--dtype", default="float32,bfloat16,int64", help="comma separated")
    parser.add_argument("--check", default="forward")
    parser.add_argument("--samples", type=int, default=4, help="of each entry at most; 0: all")
    parser.add_argument("--seconds", type=float, default=230, help="of it all")
    parser.add_argument("--entry-seconds", type=int, default=60, help="of one entry at most")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--all", action="store_true", help="entries that call ATen too")
    parser.add_argument("--report", type=Path, default=Path("op_sweep.txt"))
    parser.add_argument("--rows", type=Path, help="a folder to keep the rows in, and to go on from")
    args = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="litz-sweep-") as scratch:
        folder = args.rows or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        said = run(args, folder)
        text = report(args, folder, said, time.monotonic() - start)
    args.report.write_text(text)
    print(text, end="")
    return 1 if "FAIL" in text else 0


if __name__ == "__main__":
    sys.exit(main())
