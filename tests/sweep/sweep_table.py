"""The table of operators: what is lowered natively, what calls ATen, and what the sweep found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from sweep_kinds import CORE, kind_of


class Row(Protocol):
    """A row of the sweep's results."""

    entry: str
    dtype: str
    check: str
    state: str
    detail: str
    samples: int
    native: int
    externs: dict[str, str]


INTRO = """\
# Operators

What `torch.compile(backend="litz")` does with each entry of PyTorch's operator database (`op_db`),
written by `tests/sweep/op_sweep.py` from its results. *native*: every sample's forward pass is
Litz's own kernels and views. *partly*: some samples are. *ATen*: a call of ATen, fused around but
not into. A call of ATen is right by construction; only its speed and its memory are eager's.
Entries count by their float32 samples, or by those of another type where they take no float32;
complex numbers always go to ATen.
"""
RESULTS = """\
Values, types, shapes, strides, aliases, changes of the arguments and gradients are those of eager.
Of floats the error against float64 may be twice eager's own and two units in the last place
besides; where one result is worse, eight draws of other numbers decide whether that was chance. In
float64 eager itself is the reference, within eight units, or twice what its results move by when
its inputs move by one unit in the last place. *as aot_eager*: what `torch.compile` does
with ATen alone behind it differs from eager in the same way.
"""
SHARED = """\
With `backend="aot_eager"`, which runs ATen's own kernels, the same call differs from eager in the
same way; the first such call of each entry.
"""


def entry_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def native_entries(page: str) -> frozenset[str]:
    """The entries that a page written here has as native, wholly or partly."""
    found = re.findall(r"^\| `([^`]+)` \| (?:native|partly) \|", page, re.MULTILINE)
    return frozenset(found)


def forward_row(rows: Sequence[Row]) -> Row | None:
    """The forward run that tells most: of float32, then of what saw most samples; complex last."""
    found = [r for r in rows if r.check == "forward" and r.samples]

    def rank(r: Row) -> tuple[bool, bool, int]:
        return r.dtype == "float32", not r.dtype.startswith("complex"), r.samples

    return max(found, key=rank, default=None)


def coverage(row: Row | None) -> str:
    if row is None:
        return "not run"
    if not row.externs:
        return "native"
    return "partly" if row.native else "ATen"


def _why(row: Row | None) -> str:
    if row is None or not row.externs:
        return ""
    parts = [f"`{k}`: {v}" if k[0] != "(" else f"{k[1:-1]}: {v}" for k, v in row.externs.items()]
    text = "; ".join(parts).replace("|", "\\|").replace("\n", " ")
    share = f"{row.native} of {row.samples} samples native; " if row.native else ""
    return (share + text)[:320]


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _totals(kinds: dict[str, list[str]]) -> list[str]:
    lines = [
        "## Totals",
        "",
        _line("kind", "entries", "native", "partly", "ATen", "native, %"),
        "|---|---|---|---|---|---|",
    ]
    order = [k for k in CORE if k in kinds] + sorted(k for k in kinds if k not in CORE)
    core: list[str] = []
    for kind in order:
        states = [s for s in kinds[kind] if s != "not run"]
        core += states if kind in CORE else []
        lines.append(_total(kind, states))
    lines.append(_total("**these first five together**", core))
    every = [s for states in kinds.values() for s in states if s != "not run"]
    lines.append(_total("**all**", every))
    return [*lines, ""]


def _total(name: str, states: list[str]) -> str:
    n = [states.count(s) for s in ("native", "partly", "ATen")]
    share = f"{100 * n[0] / len(states):.0f}" if states else ""
    return _line(name, len(states), *n, share)


def _results(rows: Sequence[Row]) -> list[str]:
    """Entries by check and type: how many agree with eager."""
    table: dict[tuple[str, str], dict[str, int]] = {}
    calls: dict[tuple[str, str], int] = {}
    for r in rows:
        states = table.setdefault((r.check, r.dtype if r.check != "errors" else ""), {})
        states[r.state] = states.get(r.state, 0) + 1
        key = (r.check, r.dtype if r.check != "errors" else "")
        calls[key] = calls.get(key, 0) + r.samples
    lines = [
        "## Results",
        "",
        RESULTS,
        _line("check", "type", "entries", "calls", "agree", "known", "as aot_eager", "differ"),
        "|---|---|---|---|---|---|---|---|",
    ]
    for (check, dtype), n in sorted(table.items()):
        run = sum(v for k, v in n.items() if k != "skip")
        counts = [n.get(s, 0) for s in ("ok", "known", "upstream", "FAIL")]
        lines.append(_line(check, dtype, run, calls[check, dtype], *counts))
    return [*lines, ""]


def _differences(rows: Sequence[Row]) -> list[str]:
    known = _entries(rows, "known")
    shared = _entries(rows, "upstream")
    lines = ["## Known differences", "", *known, ""]
    return [*lines, "## Differences of torch.compile itself", "", SHARED, *shared, ""]


def _entries(rows: Sequence[Row], state: str) -> list[str]:
    """The entries with a state, each with its reason and where it was found."""
    found: dict[tuple[str, str], list[str]] = {}
    for r in rows:
        if r.state == state:
            found.setdefault((r.entry, _without_sample(r.detail)), []).append(
                f"{r.check} {r.dtype}"
            )
    return [
        f"- `{entry}` ({', '.join(sorted(set(where)))}): {why}"
        for (entry, why), where in sorted(found.items())
    ]


def _without_sample(detail: str) -> str:
    """What differs, without the number of the sample and without its arguments."""
    error = re.match(r"BackendCompilerFailed: .*? raised:\n(.*)", detail)
    text = error[1] if error else re.sub(r"^case \d+: ", "", detail.partition("\n")[0])
    return text.partition(" [")[0][:200]


def write_table(rows: Sequence[Row], op_db: Sequence[Any]) -> str:
    """The page, from result rows of any number of runs."""
    by_entry: dict[str, list[Row]] = {}
    for r in rows:
        by_entry.setdefault(r.entry, []).append(r)
    kinds: dict[str, list[str]] = {}
    sections: dict[str, list[str]] = {}
    for op in op_db:
        name, kind = entry_name(op), kind_of(op)
        row = forward_row(by_entry.get(name, []))
        state = coverage(row)
        kinds.setdefault(kind, []).append(state)
        sections.setdefault(kind, []).append(_line(f"`{name}`", state, _why(row)))
    lines = [INTRO, *_totals(kinds), *_results(rows), *_differences(rows), "## Entries", ""]
    order = [k for k in CORE if k in sections] + sorted(k for k in sections if k not in CORE)
    for kind in order:
        lines += [f"### {kind}", "", _line("entry", "", "why"), "|---|---|---|"]
        lines += [*sections[kind], ""]
    return "\n".join(lines).rstrip() + "\n"
