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
    device: str
    machine: str
    versions: str
    date: str


TITLES = {"cpu": "CPU", "cuda": "GPU"}

INTRO = """\
# Operators

What `torch.compile(backend="litz")` does with each entry of PyTorch's operator database (`op_db`),
written by `tests/sweep/op_sweep.py` from its results. *native*: every sample's forward pass is
Litz's own kernels and views. *partly*: some samples are. *ATen*: a call of ATen, fused around but
not into. A call of ATen is right by construction; only its speed and its memory are eager's.
Entries count by their float32 samples, or by those of another type where they take no float32;
views of complex numbers' memory, at both ends, are ATen's.
`operators.md` is about CPUs, `operators_cuda.md` about a GPU.
"""
ON_GPU = """\
On a GPU samples are counted in batches: *with ATen* says that some sample calls it.
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
    if row.device != "cpu":
        return "with ATen"
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


def places(rows: Sequence[Row]) -> list[str]:
    """The kinds of device that rows are of: CPUs first."""
    found = {r.device for r in rows}
    return sorted(found, key=lambda d: (d != "cpu", d)) or ["cpu"]


def _where(rows: Sequence[Row]) -> list[str]:
    """What was run on what, with which versions, when."""
    lines = []
    for device in places(rows):
        days: dict[tuple[str, str], set[str]] = {}
        for r in rows:
            if r.device == device and r.machine:
                days.setdefault((r.machine, r.versions), set()).add(r.date)
        for (machine, versions), dates in sorted(days.items()):
            span = " to ".join(sorted({min(dates), max(dates)}))
            lines.append(f"- {TITLES.get(device, device)}: {machine}, {versions}, {span}")
    return [*lines, ""] if lines else []


def _results(rows: Sequence[Row]) -> list[str]:
    """Entries by check and type: how many agree with eager, on each kind of device."""
    of: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for r in rows:
        key = (r.check, r.dtype if r.check != "errors" else "")
        of.setdefault(key, {}).setdefault(r.device, []).append(r)
    devices = places(rows)
    titles = [TITLES.get(d, d) for d in devices] if len(devices) > 1 else [""]
    columns = ("entries", "calls", "agree", "known", "as aot_eager", "differ")
    head = [f"{title} {c}".strip() for title in titles for c in columns]
    lines = ["## Results", "", RESULTS, *_where(rows), _line("check", "type", *head)]
    lines.append("|---" * (2 + len(head)) + "|")
    for (check, dtype), found in sorted(of.items()):
        cells = [x for d in devices for x in _counts(found.get(d, []))]
        lines.append(_line(check, dtype, *cells))
    return [*lines, ""]


def _counts(rows: Sequence[Row]) -> list[object]:
    """Entries that were run, calls, and entries by state; nothing where none was run."""
    if not rows:
        return [""] * 6
    n = [sum(r.state == s for r in rows) for s in ("ok", "known", "upstream", "FAIL")]
    ran = sum(r.state != "skip" for r in rows)
    return [ran, sum(r.samples for r in rows), *n]


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
            on = f"{TITLES.get(r.device, r.device)} " if r.device != "cpu" else ""
            found.setdefault((r.entry, _without_sample(r.detail)), []).append(
                f"{on}{r.check} {r.dtype}"
            )
    return [
        f"- `{entry}` ({', '.join(sorted(set(where)))}): {why}"
        for (entry, why), where in sorted(found.items())
    ]


def _without_sample(detail: str) -> str:
    """What differs, without the number of the sample and without its arguments."""
    detail = re.sub(r"^sample \d+: ", "", detail)
    error = re.match(r"BackendCompilerFailed: .*? raised:\n(.*)", detail)
    text = error[1] if error else re.sub(r"^(?:case|sample) \d+: ", "", detail.partition("\n")[0])
    return text.partition(" [")[0][:200]


def write_table(rows: Sequence[Row], op_db: Sequence[Any]) -> str:
    """The page, from result rows of any number of runs on any kinds of device."""
    devices = places(rows)
    by_entry: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        by_entry.setdefault((r.entry, r.device), []).append(r)
    kinds: dict[str, list[str]] = {}
    sections: dict[str, list[str]] = {}
    for op in op_db:
        name, kind = entry_name(op), kind_of(op)
        found = [forward_row(by_entry.get((name, d), [])) for d in devices]
        states = [coverage(row) for row in found]
        kinds.setdefault(kind, []).append(states[0])
        sections.setdefault(kind, []).append(_line(f"`{name}`", *states, _why(found[0])))
    lines = [INTRO, *([ON_GPU] if len(devices) > 1 else [])]
    lines += [*_totals(kinds), *_results(rows), *_differences(rows), "## Entries", ""]
    titles = [TITLES.get(d, d) for d in devices] if len(devices) > 1 else [""]
    order = [k for k in CORE if k in sections] + sorted(k for k in sections if k not in CORE)
    for kind in order:
        lines += [f"### {kind}", "", _line("entry", *titles, "why")]
        lines += ["|---" * (2 + len(titles)) + "|", *sections[kind], ""]
    return "\n".join(lines).rstrip() + "\n"
