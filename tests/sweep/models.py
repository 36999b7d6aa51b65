"""Families of transformers, timm and diffusers through Litz, against eager and float64.

``python -m tests.sweep.models [--list] [--only bert,gpt2] [--kind vision] [--part 0/2]`` trains
small models with random weights on the CPU for three steps, eagerly and compiled, and judges
outputs, gradients and buffers (``models_judge.py`` says how).

``--device cuda --results FILE --seconds 450`` runs them on a GPU, in variants (``--variants
base,rotation``; ``models_variants.py`` has them), by as many processes as there are cores; the same
command goes on from the file where the time was over.  ``--report FILE... --write docs/models.md``
writes the tables of such files.

Exit status 1 when anything is wrong or fails.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

import models_report as report  # noqa: E402
from models_report import Results  # noqa: E402
from models_run import DRAWS, HEADER, STATES, Row, run, run_fairly  # noqa: E402
from models_variants import VARIANTS, tasks_of  # noqa: E402
from zoo_families import Zoo, families, missing  # noqa: E402

from tests.farm import Farm, Lost, append, stop_in_order  # noqa: E402

__all__ = ["FAMILIES", "run", "run_fairly"]

FAMILIES = families()
Task = tuple[str, str]  # family, variant
Run = tuple[str, str, str]  # and the backend in Litz's place, if another
# After the time is over: for what is under way.
GRACE = 60.0


def chosen(args: argparse.Namespace) -> list[str]:
    """The families that the command line asks for.  Exits with the names when one is unknown."""
    only = [x for x in args.only.split(",") if x]
    unknown = [x for x in only if x not in FAMILIES]
    if unknown:
        sys.exit(f"no family {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    k, n = map(int, args.part.split("/"))
    names = only or [f for f, v in FAMILIES.items() if args.kind in ("", v.kind)]
    return names[k::n]


def sweep(args: argparse.Namespace) -> Results:
    """Run what the file of results does not have yet; all of it together."""
    variants = args.variants or ("fp32" if args.device == "cpu" else "base,rotation")
    try:
        tasks = tasks_of(FAMILIES, chosen(args), variants)
    except ValueError as e:
        sys.exit(str(e))
    again = {x for x in args.again.split(",") if x}
    known = Results.read([args.results] if args.results else [])
    done = {key for key, row in known.rows.items() if row.state not in again}
    left = [t for t in tasks if (*t, args.device) not in done]
    left = left[: args.count or len(left)]
    print(f"{len(left)} tasks of {len(tasks)}, {args.jobs} processes", flush=True)
    for package in missing():
        print(f"{package} is not installed: its families are left out")
    print(HEADER)
    start = time.monotonic()
    count = 0

    def write(value: dict[str, Any]) -> None:
        known.add(value)
        if args.results:
            append(args.results, value)

    def done(row: Row) -> None:
        nonlocal count
        count += 1
        write(row.as_json())
        print(row, flush=True)

    ended: dict[Task, Row] = {}  # runs that ended their process, until PyTorch alone was tried

    def heard(run: Run, said: dict[str, Any]) -> None:
        about = {**said["about"], "date": f"{datetime.date.today()}"}
        if known.about.get(about["device"]) != about:
            write({"about": about})
        family, variant, backend = run
        row = Row.from_json(said["row"])
        if backend:
            why = "" if STATES[row.state] else row.why
            row = without_litz(ended.pop((family, variant)), why)
        done(row)

    def lost(gone: Lost[Run]) -> list[Run]:
        family, variant, backend = gone.work
        if backend:
            done(without_litz(ended.pop((family, variant)), gone.why))
            return []
        row = Row(family, variant, args.device.partition(":")[0], FAMILIES[family].kind, "FAILED")
        row.why, row.seconds = gone.why, round(gone.seconds, 2)
        ended[family, variant] = row
        return [(family, variant, "aot_eager")]

    command = [sys.executable, str(HERE / "models_worker.py")]
    command += [args.device, str(args.draws), args.target]
    farm = Farm(
        command,
        [(*t, "") for t in left],
        args.jobs,
        heard,
        lost,
        device=args.device,
        environment=environment(args.target),
        threads=1 if args.jobs > 1 else 0,
        limit=args.task_seconds,
        seconds=args.seconds or float("inf"),
        grace=GRACE,
    )
    farm.run()
    for row in ended.values():
        done(row)
    print(f"{time.monotonic() - start:.0f} s; {len(left) - count} tasks are left")
    if farm.broken:
        sys.exit(1)
    wanted = {(*t, args.device) for t in tasks}
    return known.only(wanted)


def without_litz(row: Row, why: str) -> Row:
    """A run that ended its process, by what PyTorch alone does there: ``why`` it fails too."""
    if why:
        row.state, row.why = "upstream", f"{row.why} (aot_eager: {why})"
    return row


def environment(target: str) -> dict[str, str]:
    """That of workers, besides this process's."""
    env = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if "LITZ_REPRO_DIR" not in os.environ:
        env["LITZ_REPRO_DIR"] = str(Path(tempfile.gettempdir()) / "litz-models")
    return {**env, "TRITON_INTERPRET": "1"} if target else env


def summary(rows: Sequence[Row]) -> str:
    """For the terminal: sums, each variant's, and each row that is not ok."""
    lines = [report.sums(rows)] if rows else ["no rows"]
    for device in sorted({r.device for r in rows}):
        for name in VARIANTS:
            mine = [r for r in rows if (r.variant, r.device) == (name, device)]
            if mine:
                seconds = sum(r.seconds for r in mine)
                lines.append(f"{device:5} {name:18} {report.totals(mine)}; {seconds:.0f} s")
    slow = sorted(rows, key=lambda r: -r.seconds)[:8]
    lines.append("slowest: " + ", ".join(f"{r.family} {r.variant} {r.seconds:.0f} s" for r in slow))
    order = [*reversed(STATES)]
    odd = [r for r in rows if r.state not in ("ok", "n/a")]
    lines += [str(r) for r in sorted(odd, key=lambda r: (order.index(r.state), r.family))]
    none = Counter((r.family, r.why[:160]) for r in rows if r.state == "n/a")
    lines += [f"n/a {n} x {family}: {why}" for (family, why), n in none.items()]
    return "\n".join(lines)


def listed(zoo: Mapping[str, Zoo]) -> None:
    for name, f in zoo.items():
        print(f"{name:24} {f.kind:16} {f.model}")
    for name, variant in VARIANTS.items():
        print(f"{name:24} {'variant':16} {variant.about}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="families, comma separated")
    parser.add_argument("--kind", default="", help="encoder, decoder, vision, speech, timm, ...")
    parser.add_argument("--list", action="store_true", help="families and variants, and no run")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th family from the k-th")
    parser.add_argument("--target", default="", help="the option of that name")
    parser.add_argument("--device", default="cpu", help="cpu or cuda: all GPUs that are seen")
    parser.add_argument("--variants", default="", help="base, rotation, all, or names")
    parser.add_argument("--jobs", type=int, default=0, help="processes (a GPU: one a core)")
    parser.add_argument("--seconds", type=float, default=0, help="begin no task after so long")
    parser.add_argument("--task-seconds", type=float, default=300, help="of one task at most")
    parser.add_argument("--count", type=int, default=0, help="of tasks at most")
    parser.add_argument("--draws", type=int, default=DRAWS, help="that judge what is beyond")
    parser.add_argument("--results", type=Path, help="a file to append to, and to go on from")
    parser.add_argument("--again", default="", help="states to run again: WRONG,FAILED")
    parser.add_argument("--report", type=Path, nargs="+", help="files of results: no run")
    parser.add_argument("--write", type=Path, help="a file for the tables, as in docs/models.md")
    args = parser.parse_args()
    stop_in_order()
    if args.list:
        listed(FAMILIES)
        return 0
    args.jobs = args.jobs or (1 if args.device == "cpu" else len(os.sched_getaffinity(0)))
    results = Results.read(args.report) if args.report else sweep(args)
    rows = list(results.rows.values())
    print(f"\n{summary(rows)}")
    if not args.report:
        print(report.reasons(rows))
    if args.write:
        args.write.write_text(report.markdown(results, FAMILIES))
    return 0 if all(STATES[r.state] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
