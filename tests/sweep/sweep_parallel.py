"""The operator sweep by several processes, on all GPUs, in a given time; it goes on where it ended.

``python tests/sweep/sweep_parallel.py --device cuda --runs all --samples 0 --results ops.jsonl
--seconds 450`` adds a line to the file for each entry of the database, type and check as it ends.
No entry starts after that time, and the program ends at most ``--closing`` seconds later; started
again with the same file it does what is not there yet.  An entry that takes too long, kills its
process or loses the GPU's context counts as different, and the others go on in a fresh process.
``--runs forward:float32,backward:bfloat16`` names checks and types; ``--list`` prints all.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]  # this checkout before any installed package

from sweep_farm import Task, again, kind_of, lead, settled, verdict  # noqa: E402

from tests.farm import Lost, append, stop_in_order  # noqa: E402

TABLE = ROOT / "docs" / "operators.md"

# Cheap and telling ones first: what is refused and written, each check in float32, the type of most
# models, integers, then the types that share their code.
RUNS = (
    "errors:float32",
    "inplace:float32",
    "forward:float32",
    "forward:int64",
    "backward:float32",
    "forward:bfloat16",
    "strided:float32",
    "out:float32",
    "backward:bfloat16",
    "forward:bool",
    "forward:float16",
    "forward:uint8",
    "forward:float64",
    "forward:int32",
    "backward:float16",
    "forward:complex64",
    "backward:float64",
)


def chosen_runs(text: str) -> list[tuple[str, str]]:
    """(check, type) of each run asked for, in that order.  Exits where there is none such."""
    names = RUNS if text == "all" else tuple(x for x in text.split(",") if x)
    if unknown := [x for x in names if x not in RUNS]:
        sys.exit(f"no run {', '.join(unknown)}; there are {', '.join(RUNS)}")
    pairs = (x.partition(":") for x in names)
    return [(check, dtype) for check, _, dtype in pairs]


def command(args: argparse.Namespace) -> list[str]:
    """One worker."""
    words = [sys.executable, str(HERE / "op_sweep.py"), "--serve", "--device", args.device]
    words += ["--samples", str(args.samples), "--entry-seconds", str(args.entry_seconds)]
    if args.target:
        words += ["--target", args.target]
    if not args.count:
        words += ["--no-count"]
    return words


def entries(args: argparse.Namespace) -> list[str]:
    """The entries of the database that are asked for, in its order."""
    from op_sweep import entry_name
    from sweep_table import native_entries
    from torch.testing._internal.common_methods_invocations import op_db

    only = {x for x in args.only.split(",") if x}
    native = native_entries(TABLE.read_text()) if args.native else None
    return [
        entry_name(op)
        for op in op_db
        if (not only or only & {op.name, entry_name(op)})
        and (native is None or entry_name(op) in native)
    ]


def rows_of(args: argparse.Namespace) -> list[Any]:
    """What the file has of this kind of device."""
    from op_sweep import read_rows

    kind = kind_of(args.device, args.target)
    return [r for r in read_rows(args.results) if r.device == kind]


def tasks(
    runs: Sequence[tuple[str, str]], names: Sequence[str], done: set[tuple[str, str, str]]
) -> Iterator[Task]:
    for check, dtype in runs:
        for entry in names:
            if (entry, dtype, check) not in done:
                yield {"entry": entry, "dtype": dtype, "check": check}


def sweep(
    args: argparse.Namespace, runs: Sequence[tuple[str, str]], names: list[str], started: float
) -> None:
    """Run what the file lacks until it is done or the time is over."""
    repeated = set(args.again.split(","))
    rows = [r for r in rows_of(args) if r.state not in repeated]
    of = {"device": kind_of(args.device, args.target)}
    of |= {"machine": rows[-1].machine, "versions": rows[-1].versions} if rows else {}
    count, told = 0, started

    def heard(task: Task, row: dict[str, Any]) -> None:
        nonlocal count, told
        row = settled(task, row)
        append(args.results, row)
        count += 1
        where = f"{row['check']} {row['dtype']} {row['entry']}"
        if row["state"] == "FAIL":
            print(f"differs: {where}: {row['detail'][:300]}", flush=True)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"{told - started:.0f} s: {count} entries, at {where}", flush=True)

    def lost(gone: Lost[Task]) -> list[Task]:
        instead = again(gone)
        if not instead:
            task = {key: gone.work[key] for key in ("entry", "dtype", "check")}
            heard(task, {**task, **verdict(gone, "upstream"), **of})
        return instead

    left = tasks(runs, names, {(r.entry, r.dtype, r.check) for r in rows})
    lead(args, command(args), left, heard, lost, limit=args.entry_seconds, started=started)


def report(args: argparse.Namespace, runs: Sequence[tuple[str, str]], names: list[str]) -> str:
    """The results as text: a line for each run, then each entry that is not well."""
    rows = rows_of(args)
    places = sorted({f"{r.machine}, {r.versions}, {r.date}" for r in rows if r.machine})
    lines = [f"operator sweep on {'; '.join(places)}: {args.samples or 'all'} samples an entry"]
    lines.append(
        f"{'run':20}{'entries':>8}{'calls':>8}{'ok':>6}{'known':>7}{'as aot_eager':>14}"
        f"{'differ':>8}{'with ATen':>11}{'left':>6}{'process-s':>11}"
    )
    wanted = set(names)
    bad: list[Any] = []
    for check, dtype in runs:
        mine = [r for r in rows if (r.check, r.dtype) == (check, dtype) and r.entry in wanted]
        n = Counter(r.state for r in mine)
        ran = len(mine) - n["skip"]
        aten = sum(bool(r.externs) for r in mine)
        lines.append(
            f"{check + ':' + dtype:20}{ran:8}{sum(r.samples for r in mine):8}{n['ok']:6}"
            f"{n['known']:7}{n['upstream']:14}{n['FAIL']:8}{aten:11}{len(names) - len(mine):6}"
            f"{sum(r.seconds for r in mine):11.0f}"
        )
        bad += [r for r in mine if r.state not in ("ok", "skip")]
    order = {"FAIL": 0, "upstream": 1, "known": 2}
    titles = {"FAIL": "differ", "upstream": "as aot_eager", "known": "known"}
    for r in sorted(bad, key=lambda r: (order.get(r.state, 3), r.entry, r.check, r.dtype)):
        more = f" ({len(r.bad)} samples: {r.bad[:12]})" if len(r.bad) > 1 else ""
        text = " ".join(r.detail.split())[: 400 if r.state == "FAIL" else 120]
        title = titles.get(r.state, r.state)
        lines.append(f"{title}: {r.check} {r.dtype} {r.entry}: {text}{more}")
    slow = sorted(rows, key=lambda r: -r.seconds)[:10]
    lines.append("slowest: " + ", ".join(f"{r.entry} {r.dtype} {r.seconds:.0f} s" for r in slow))
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--target", default="", choices=("", "triton"))
    parser.add_argument("--runs", default="all", help="all, or check:type, comma separated")
    parser.add_argument("--list", action="store_true", help="the runs, and nothing else")
    parser.add_argument("--samples", type=int, default=0, help="of each entry at most; 0: all")
    parser.add_argument("--only", default="", help="names of entries, comma separated")
    parser.add_argument("--native", action="store_true", help="only what the table has native")
    parser.add_argument("--results", type=Path, default=Path("op_sweep.jsonl"))
    parser.add_argument("--seconds", type=float, default=450, help="no entry starts after these")
    parser.add_argument("--closing", type=float, default=30, help="for those under way then")
    parser.add_argument("--entry-seconds", type=int, default=90, help="of one entry at most")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--again", default="", help="states to run again, such as FAIL")
    parser.add_argument(
        "--count", action="store_true", help="count which samples of an entry need ATen (slow)"
    )
    parser.add_argument("--report", type=Path, help="a file for what is printed at the end")
    args = parser.parse_args()
    if args.list:
        print("\n".join(RUNS))
        return 0
    stop_in_order()
    runs = chosen_runs(args.runs)
    started = time.monotonic()
    names = entries(args)
    sweep(args, runs, names, started)
    text = report(args, runs, names)
    if args.report:
        args.report.write_text(text)
    print(text, end="")
    return 1 if "\ndiffer: " in text else 0


if __name__ == "__main__":
    sys.exit(main())
