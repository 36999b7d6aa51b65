"""Attention in all its uses through Litz: results, gradients, strides and refusals against eager.

``python -m tests.sweep.attention --device cuda|cpu [--seconds N] [--results FILE] [--jobs N]`` runs
a few hundred cases in which every pair of options occurs (``attention_cases.py``): how attention is
called, backends that are asked for, types, masks, lengths, heads, layouts, dropout, gradients,
dynamic sizes.  Results are judged against float64 beside eager's own error.  A line a case goes to
the file; started again with it, the sweep does what is left.  ``--case KEY`` runs one by itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "src"), str(ROOT)]

from attention_cases import Spec, pairs_of, parse, select, wanted_pairs  # noqa: E402
from sweep_farm import (  # noqa: E402
    Late,
    Task,
    again,
    intact,
    kind_of,
    lead,
    settled,
    verdict,
    where,
    within,
)

from tests.farm import (  # noqa: E402
    STAGE,
    Lost,
    append,
    lines,
    serve,
    speaker,
    stop_in_order,
)

TITLES = {"FAIL": "differ", "upstream": "as aot_eager"}


def guarded(key: str, args: argparse.Namespace) -> dict[str, Any]:
    """The row of a case, whatever befalls it in this process."""
    from attention_run import Row, run_case

    try:
        row = within(args.case_seconds, lambda: run_case(parse(key), args.device, args.target))
    except Late:
        row = Row(key, "FAIL", f"not done in {args.case_seconds} s")
    except Exception as e:
        row = Row(key, "FAIL", f"sweep: {type(e).__name__}: {str(e)[:300]}")
    return asdict(row)


def serve_cases(args: argparse.Namespace) -> None:
    from attention_run import without_litz

    of = where(args.device, args.target)
    say = speaker()

    def answer(task: Task) -> dict[str, Any]:
        if "alone" in task:
            for stage in ("eager", "eager, traced"):
                say({STAGE: stage})
                without_litz(parse(task["case"]), args.device, stage != "eager")
                intact()
            say({STAGE: "litz"})
        row = guarded(task["case"], args)
        intact(row["detail"])
        return {**row, **of}

    serve(say, answer)


def sweep(specs: Sequence[Spec], args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the cases: those of the file, and what the time was enough for."""
    started = time.monotonic()
    wanted = {s.key for s in specs}
    kind = kind_of(args.device, args.target)
    repeated = set(args.again.split(","))
    known = lines(args.results) if args.results else []
    rows = {
        r["case"]: r
        for r in known
        if r["case"] in wanted and r["device"] == kind and r["state"] not in repeated
    }

    def heard(task: Task, row: dict[str, Any]) -> None:
        row = rows[task["case"]] = settled(task, row)
        if args.results:
            append(args.results, row)
        if row["state"] == "FAIL":
            print(f"differs: {row['case']}: {row['detail'][:400]}", flush=True)

    def lost(gone: Lost[Task]) -> list[Task]:
        instead = again(gone)
        if not instead:
            task = {"case": gone.work["case"]}
            heard(task, {**task, **verdict(gone, "refused"), "device": kind})
        return instead

    words = [sys.executable, str(HERE / "attention.py"), "--serve", "--device", args.device]
    words += ["--case-seconds", str(args.case_seconds)]
    words += ["--target", args.target] if args.target else []
    left = [{"case": s.key} for s in specs if s.key not in rows]
    lead(args, words, left, heard, lost, limit=args.case_seconds, started=started)
    return list(rows.values())


def report(specs: Sequence[Spec], rows: Sequence[dict[str, Any]], device: str) -> str:
    """Totals, then what is not well, then which pairs of options no accepted case has."""
    n = Counter(r["state"] for r in rows)
    places = {(r["machine"], r["versions"], r["date"]) for r in rows if r.get("machine")}
    text = [f"attention on {'; '.join(', '.join(p) for p in sorted(places))}"]
    text.append(
        f"{len(rows)} of {len(specs)} cases: {n['ok']} ok, {n['refused']} refused by both, "
        f"{n['upstream']} as aot_eager, {n['FAIL']} differ; "
        f"{sum(bool(r.get('breaks')) for r in rows)} with graph breaks; "
        f"{sum(r.get('seconds', 0.0) for r in rows):.0f} process-s"
    )
    kernels = Counter(r["kernel"] for r in rows if r.get("kernel"))
    text += [f"{count:6} {name}" for name, count in kernels.most_common()]
    taken = [parse(r["case"]) for r in rows if r["state"] in ("ok", "upstream", "FAIL")]
    missing = wanted_pairs(device) - {p for s in taken for p in pairs_of(asdict(s))}
    if missing and len(rows) == len(specs):
        pairs = "; ".join(f"{a}={x} {b}={y}" for a, x, b, y in sorted(missing)[:40])
        text.append(f"{len(missing)} pairs of options in no case that eager takes: {pairs}")
    for state in ("upstream", "FAIL"):
        for r in sorted((r for r in rows if r["state"] == state), key=lambda r: r["case"]):
            text.append(f"{TITLES[state]}: {r['case']}: {' '.join(r['detail'].split())[:400]}")
    return "\n".join(text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--target", default="", choices=("", "triton"), help="kernels on the CPU")
    parser.add_argument("--seconds", type=float, default=200, help="no case starts after these")
    parser.add_argument("--closing", type=float, default=20, help="for those under way then")
    parser.add_argument("--case-seconds", type=int, default=120, help="of one case at most")
    parser.add_argument("--results", type=Path, help="a file of JSON lines; read first, to go on")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--again", default="", help="states to run again, such as FAIL")
    parser.add_argument("--case", default="", help="run this one in this process")
    parser.add_argument("--list", action="store_true", help="the cases, and no run")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.target:  # Triton reads it when it is imported
        os.environ["TRITON_INTERPRET"] = "1"
    if args.serve:
        import logging

        logging.disable(logging.ERROR)
        serve_cases(args)
        return 0
    if args.case:
        row = guarded(args.case, args)
        print("\n".join(f"{k}: {v}" for k, v in row.items()))
        return 1 if row["state"] == "FAIL" else 0
    stop_in_order()
    device = args.device.split(":")[0]
    specs = select(device)
    if args.list:
        print("\n".join(s.key for s in specs))
        return 0
    text = report(specs, sweep(specs, args), device)
    print(text, end="")
    return 1 if "\ndiffer: " in text else 0


if __name__ == "__main__":
    sys.exit(main())
