"""PyTorch's operator database through ``torch.compile(backend="litz")``: results against eager.

``python tests/sweep/op_sweep.py --dtype float32 --check forward --only add,sum`` runs these entries
and prints a line for each; ``sweep_parallel.py`` runs all of them in several processes, which are
this program with ``--serve``.  ``--table docs/operators.md FILE...`` writes the table from its
result files.  ``--device cuda`` runs on a GPU, ``--target triton`` Triton kernels under its
interpreter.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import sys
import time
import types
import unittest
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_JIT", "0")
if "--target" in sys.argv:  # Triton reads it when it is imported
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import expecttest  # noqa: F401
except ImportError:  # PyTorch's own tests build on its class, the operator database does not
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stand_in

import torch
from torch.testing._internal.common_methods_invocations import op_db

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import sweep_cases as sc
from sweep_cases import CHECKS, Case, LitzBackend, Place, Seen
from sweep_exact import true_values
from sweep_farm import Late, intact, where, within
from sweep_known import known_reason, no_run, random_values
from sweep_luck import is_chance
from sweep_table import write_table

from tests.farm import MORE, STAGE, lines, serve, speaker

BATCH = 16
SECONDS = 120
Tell = Callable[[str], None] | None
TURN = 20.0  # seconds after which a long entry goes back into the queue


@dataclass
class Row:
    """One entry of the database under one dtype and check.

    state: ok, skip, known, upstream (torch.compile's own ``aot_eager`` backend differs as well) or
    FAIL.  native, samples: how many calls need nothing of ATen, of how many.  bad: the numbers of
    the samples in that state.  next: the sample to go on from, where time was over.  device,
    machine, versions, date: where and when, with what.
    """

    entry: str
    dtype: str
    check: str
    state: str = "ok"
    detail: str = ""
    samples: int = 0
    native: int = 0
    externs: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    bad: list[int] = field(default_factory=list)
    next: int = 0
    device: str = "cpu"
    machine: str = ""
    versions: str = ""
    date: str = ""

    def __str__(self) -> str:
        how = f"native {self.native}/{self.samples}" if self.samples else ""
        why = self.detail or "; ".join(f"{k}: {v}" for k, v in self.externs.items())
        return f"{self.entry:44} {self.state:8} {how:14} {why[:240]}".rstrip()


def entry_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


# --- one entry -----------------------------------------------------------------------------------


def check_batch(
    target: Callable[..., Any],
    batch: list[Case],
    check: str,
    values: bool,
    seen: Seen,
    place: Place,
) -> str:
    """What differs from eager in a batch; empty where nothing does."""
    eager = sc.run(target, batch, check)
    exact = sc.exact_run(target, batch, check, eager) if values else None
    if values and (known := true_values(place.entry, [c.args for c in batch])):
        exact = sc.Run(known, eager.grads, eager.inputs, eager.alias)
    try:
        mine = sc.run(target, batch, check, backend=LitzBackend(seen, place))
    except Exception as e:
        return f"{type(e).__name__}: {str(e).strip()[:400]}"
    return sc.compare(mine, eager, exact, values)


def upstream_differs(
    target: Callable[..., Any], case: Case, check: str, values: bool, mine: str
) -> bool:
    """Whether torch.compile itself, with ATen behind it, differs from eager as well."""
    eager = sc.run(target, [case], check)
    try:
        theirs = sc.run(target, [case], check, backend="aot_eager")
    except Exception:
        return True
    found = sc.compare(theirs, eager, None, values)
    return bool(found) and _sort_of(found) == _sort_of(mine)


def _sort_of(text: str) -> str:
    """A difference without its numbers."""
    return "".join(c for c in text.split(" instead of ")[0] if c.isalpha() or c == " ")


def lowering_only(target: Callable[..., Any], case: Case, check: str, place: Place) -> bool:
    """Whether one call is lowered without a call of ATen."""
    seen = Seen()
    try:
        sc.run(target, [case], check, backend=LitzBackend(seen, place))
    except Exception:
        return False
    return not seen.reasons()


def without_litz(
    target: Callable[..., Any], batch: list[Case], check: str, tell: Callable[[str], None]
) -> None:
    """Run a batch in eager, then traced: either may end the process by itself."""
    for stage, backend in (("eager", None), ("eager, traced", "aot_eager")):
        tell(stage)
        for case in batch:
            try:
                sc.run(target, [case], check, backend=backend)
            except Exception:
                intact()
        intact()
    tell("litz")


def sweep_entry(
    op: Any, row: Row, limit: int, place: Place, until: float = math.inf, tell: Tell = None
) -> Row:
    """Go on with an entry: all its samples, or as many batches as begin before ``until``.

    row.next is then the number of the sample to go on from, 0 where all are done.  tell: is told
    what is going on, of an entry that ended its process.
    """
    dtype, check = getattr(torch, row.dtype), row.check
    reason = no_run(op, dtype, check, place.device)
    target = sc.function_of(op, check)
    if reason or target is None:
        row.state, row.detail = "skip", reason or "no such form"
        return row
    if check == "errors":
        return sweep_errors(op, target, row, place)
    values = not random_values(row.entry)
    try:
        cases = sc.cases(op, dtype, check, limit, place.device)
    except Exception as e:
        row.state, row.detail = "skip", f"no samples: {e}"[:200]
        return row
    failures: list[tuple[Case, str]] = []
    first, row.next = row.next, 0
    for start in range(first, len(cases), BATCH):
        if time.monotonic() > until:
            row.next = start
            break
        batch = cases[start : start + BATCH]
        if tell is not None:
            without_litz(target, batch, check, tell)
        batch = accepted(target, batch, check)
        if not batch:
            continue
        row.samples += len(batch)
        seen = Seen()
        found = check_batch(target, batch, check, values, seen, place)
        if found:
            failures += split(target, batch, check, values, row, place)
        else:
            tally(target, batch, check, seen, row, place)
    numbers = check in ("forward", "backward", "strided", "inplace")
    for case, found in failures:
        if not (
            numbers
            and re.search(r"error \d", found)
            and is_chance(op, target, case, check, dtype, limit, place)
        ):
            judge(target, case, found, check, values, row)
    if not row.samples and not row.next:
        row.state, row.detail = "skip", "eager takes none of the samples"
    return row


def accepted(target: Callable[..., Any], batch: list[Case], check: str) -> list[Case]:
    """The cases that eager takes; for the check of that name with tensors to write to."""
    cases = [c for c in batch if sc.eager_accepts(target, c, check)]
    if check != "out":
        return cases
    outs = []
    for case in cases:
        try:
            with_out = sc.with_out(target, case)
        except Exception:
            continue
        if with_out is not None and sc.eager_accepts(target, with_out, check):
            outs.append(with_out)
    return outs


def split(
    target: Callable[..., Any],
    batch: list[Case],
    check: str,
    values: bool,
    row: Row,
    place: Place,
) -> list[tuple[Case, str]]:
    """The cases of a failing batch one by one."""
    failures = []
    for case in batch:
        seen = Seen()
        found = check_batch(target, [case], check, values, seen, place)
        if found:
            failures.append((case, found))
        tally(target, [case], check, seen, row, place)
    return failures


def tally(
    target: Callable[..., Any],
    batch: list[Case],
    check: str,
    seen: Seen,
    row: Row,
    place: Place,
) -> None:
    reasons = seen.reasons()
    row.externs.update(reasons)
    if not reasons:
        row.native += len(batch)
    elif (
        place.count and len(batch) > 1 and check == "forward" and row.dtype in ("float32", "int64")
    ):
        row.native += sum(lowering_only(target, c, check, place) for c in batch)


def judge(
    target: Callable[..., Any], case: Case, found: str, check: str, values: bool, row: Row
) -> None:
    """What a difference makes of the entry's row."""
    known = known_reason(row.entry, row.dtype, check, found)
    state = "known" if known else "FAIL"
    if not known and upstream_differs(target, case, check, values, found):
        state = "upstream"
    found = re.sub(r"^case \d+: ", "", found)
    if row.state == "ok" or (state == "FAIL" and row.state != state):
        row.state, row.bad = state, []
        row.detail = known or f"sample {case.number}: {found} [{describe(case)}]"
    if row.state == state:
        row.bad.append(case.number)


def describe(case: Case) -> str:
    def one(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, list | tuple):
            return f"({', '.join(map(one, x))})"
        return repr(x)

    parts = [one(a) for a in case.args] + [f"{k}={one(v)}" for k, v in case.kwargs.items()]
    return ", ".join(parts)[:200]


def sweep_errors(op: Any, target: Callable[..., Any], row: Row, place: Place) -> Row:
    """What eager refuses must not pass in silence, unless torch.compile itself lets it."""
    for case in sc.error_cases(op, place.device):
        if sc.eager_accepts(target, case, "forward"):
            continue  # refused only with an out= argument or for another device
        row.samples += 1
        try:
            sc.run(target, [case], "forward", backend=LitzBackend(Seen(), place))
        except Exception:
            continue
        found = "no error"
        row.state, row.detail = "FAIL", f"{found} [{describe(case)}]"
        known = known_reason(row.entry, row.dtype, "errors", found)
        try:
            sc.run(target, [case], "forward", backend="aot_eager")
        except Exception:
            if known:
                row.state, row.detail = "known", known
        else:
            row.state = "upstream"
    if not row.samples:
        row.state = "skip"
    return row


# --- the sweep -----------------------------------------------------------------------------------


def guarded(
    op: Any, row: Row, args: argparse.Namespace, turn: float = math.inf, tell: Tell = None
) -> Row:
    """The row of an entry, whatever befalls it in this process.  turn: seconds until it pauses."""
    place = Place(args.device, args.target, row.entry, not args.no_count)
    start = time.monotonic()
    try:
        row = within(
            args.entry_seconds,
            lambda: sweep_entry(op, row, args.samples, place, start + turn, tell),
        )
    except Late:
        row.state, row.detail = "FAIL", f"not done in {args.entry_seconds} s"
    except Exception as e:
        row.state, row.detail = "FAIL", f"sweep: {type(e).__name__}: {str(e)[:300]}"
    row.seconds = round(row.seconds + time.monotonic() - start, 2)
    return row


def read_rows(path: Path) -> list[Row]:
    """The last row of each entry, dtype, check and device of a result file."""
    names = {f.name for f in fields(Row)}
    rows: dict[tuple[str, ...], Row] = {}
    for line in lines(path):
        row = Row(**{k: v for k, v in line.items() if k in names})
        rows[row.entry, row.dtype, row.check, row.device] = row
    return list(rows.values())


def serve_entries(args: argparse.Namespace) -> None:
    """Answer ``sweep_parallel.py``: an entry, dtype and check each time, a row back."""
    entries = {entry_name(op): op for op in op_db}
    of = where(args.device, args.target)
    say = speaker()

    def answer(task: dict[str, Any]) -> dict[str, Any]:
        row = Row(**task.get("row", {k: v for k, v in task.items() if k != "alone"}))
        tell = (lambda stage: say({STAGE: stage})) if "alone" in task else None
        row = guarded(entries[row.entry], row, args, TURN, tell)
        intact(row.detail)
        if row.next:
            return {MORE: {**task, "row": asdict(row)}}
        return {**asdict(row), **of}

    serve(say, answer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", help="comma separated")
    parser.add_argument("--check", default="forward", choices=CHECKS)
    parser.add_argument("--samples", type=int, default=16, help="of each entry at most; 0: all")
    parser.add_argument("--only", default="", help="names of entries, comma separated")
    parser.add_argument("--device", default="cpu", help="where the tensors lie")
    parser.add_argument("--target", default="", choices=("", "triton"), help="kernels on the CPU")
    parser.add_argument("--entry-seconds", type=int, default=SECONDS, help="of one entry at most")
    parser.add_argument("--quiet", action="store_true", help="print what is not ok")
    parser.add_argument(
        "--no-count", action="store_true", help="do not count which samples need ATen (faster)"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--table", default="", help="write the table of these results, run nothing")
    parser.add_argument("files", nargs="*", help="result files for --table")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # what is refused is refused loudly, twice
    if args.table:
        rows = [r for f in args.files for r in read_rows(Path(f))]
        Path(args.table).write_text(write_table(rows, op_db))
        return 0
    if args.serve:
        serve_entries(args)
        return 0
    only = {x for x in args.only.split(",") if x}
    count: dict[str, int] = {}
    for dtype in args.dtype.split(","):
        for op in op_db:
            if only and not only & {op.name, entry_name(op)}:
                continue
            row = guarded(op, Row(entry_name(op), dtype, args.check), args)
            count[row.state] = count.get(row.state, 0) + 1
            if not args.quiet or row.state not in ("ok", "skip"):
                print(row, flush=True)
    print(", ".join(f"{v} {key}" for key, v in sorted(count.items())))
    return 1 if count.get("FAIL") else 0


if __name__ == "__main__":
    sys.exit(main())
