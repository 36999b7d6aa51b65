"""The sweep's results as tables: for the terminal, and for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models_run import STATES, Row
from models_variants import BASE, VARIANTS
from zoo_families import Zoo

from tests.farm import lines

Key = tuple[str, str, str]


def key_of(row: Row) -> Key:
    return row.family, row.variant, row.device


@dataclass
class Results:
    """Rows by task, and what each device was: a file of lines of JSON, the last one counts."""

    rows: dict[Key, Row] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What was last run on, by device."""
    made: dict[Key, dict[str, Any]] = field(default_factory=dict)
    """What each row was run on."""

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Results:
        results = cls()
        for path in paths:
            for value in lines(path):
                results.add(value)
        return results

    def add(self, value: dict[str, Any]) -> None:
        """A line of the file."""
        if "about" in value:
            self.about[value["about"]["device"]] = value["about"]
        else:
            row = Row.from_json(value)
            self.rows[key_of(row)] = row
            self.made[key_of(row)] = self.about.get(row.device, {})

    def only(self, wanted: Collection[Key]) -> Results:
        """Of some of the rows."""
        kept = {k: r for k, r in self.rows.items() if k in wanted}
        return Results(kept, self.about, self.made)


INTRO = """\
# Models

Families of transformers, timm and diffusers through `torch.compile(backend="litz")`: small models
with random weights run three steps, and outputs, gradients, buffers, and the weights that a
compiled optimizer changes, are judged in float64 beside eager's. Written by
`python -m tests.sweep.models --report FILE... --write docs/models.md`.

An error may be twice eager's own, plus rounding of the narrowest type. What is beyond that is run
with six other draws of weights and batches.

* *ok*: no error is beyond its limit.
* *chance*: one is, but not so in most other draws, nor in the sum of all; or eager's own is as
  large where each number of weights and inputs moves by its last bit, with cuDNN or without.
* *unjudged*: eager's own numbers are no measure: they overflow, or are nowhere near float64's.
* *eager*: its own kernels on the device are wrong: Litz agrees with eager on the CPU.
* *upstream*: `aot_eager`, which is PyTorch without Litz, does the same.
* *n/a*: the model has no such thing, or eager cannot run it so.
* *WRONG*, *FAILED*: Litz's faults.
"""


def totals(rows: Iterable[Row]) -> str:
    """How many rows there are of each state."""
    states = Counter(r.state for r in rows)
    return ", ".join(f"{states[s]} {s}" for s in STATES if states[s]) or "none"


def sums(rows: Sequence[Row]) -> str:
    whole = sum(r.state != "FAILED" and not r.breaks for r in rows)
    graphs, breaks, kernels, externs, fallbacks = (
        sum(column) for column in zip(*(r.counts for r in rows), strict=True)
    )
    return (
        f"{len(rows)} runs: {totals(rows)}; {whole} without a graph break; {graphs} graphs, "
        f"{breaks} breaks, {kernels} kernel calls, {externs} extern calls, "
        f"{fallbacks} graphs whole in ATen"
    )


def reasons(rows: Iterable[Row]) -> str:
    """Why ATen is called, the most frequent reasons first."""
    count: Counter[str] = Counter()
    for r in rows:
        count.update(r.reasons)
    lines = (f"{n:7} x {reason}" for reason, n in count.most_common(30))
    return "\n".join(["extern calls by reason:", *lines])


def markdown(results: Results, zoo: Mapping[str, Zoo]) -> str:
    """The whole page."""
    rows = list(results.rows.values())
    devices = [d for d in ("cpu", "cuda") if any(r.device == d for r in rows)]
    parts = [INTRO, *(run_on(results, d) for d in devices)]
    parts += ["\n## By family\n\n", by_family(rows, devices, zoo)]
    parts += ["\n## By variant\n\n", by_variant(results, devices)]
    odd = [r for r in rows if r.state not in ("ok", "n/a")]
    if odd:
        parts += ["\n## What is not ok\n\n", remarks(odd, zoo)]
    return "".join(parts)


def run_on(results: Results, device: str) -> str:
    """Where and when a device's rows were run, the most first; and their sums."""
    rows = {k: r for k, r in results.rows.items() if r.device == device}
    runs = Counter(machine(results.made.get(k, {})) for k in rows)
    where = "; ".join(f"{text}: {n} runs" for text, n in runs.most_common())
    return f"\n{device.upper()}: {where}. Together {sums([*rows.values()])}.\n"


def machine(about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in about.get("versions", {}).items())
    return f"{about.get('chip', 'unknown')}, {about.get('date', 'undated')}, {versions}"


def by_family(rows: Sequence[Row], devices: Sequence[str], zoo: Mapping[str, Zoo]) -> str:
    """A row a family: the base set, a column a device, and what of the rest it was given."""
    found = {(r.family, r.variant, r.device): r for r in rows}
    names = [f for f in zoo if any(r.family == f for r in rows)]
    names += sorted({r.family for r in rows} - set(names))
    run = {(r.variant, r.device) for r in rows}
    columns = [(v, d) for v in BASE for d in devices if (v, d) in run]
    heads = ["family", "kind", "model", *(f"{v} {d.upper()}" for v, d in columns)]
    heads += [f"others {d.upper()}" for d in devices]
    lines = [heads, ["---"] * len(heads)]
    for f in names:
        kind = next(r.kind for r in rows if r.family == f)
        cells = [f, kind, zoo[f].model if f in zoo else ""]
        cells += [cell(found.get((f, v, d))) for v, d in columns]
        for d in devices:
            others = [r for r in rows if (r.family, r.device) == (f, d) and r.variant not in BASE]
            cells.append(totals(others) if others else "")
        lines.append(cells)
    return table(lines)


def cell(row: Row | None) -> str:
    """The state, and how far beyond eager's the largest error is."""
    if row is None:
        return ""
    pairs = [p for p in (row.forward, row.gradient) if p[1] > 0]
    if row.state in ("n/a", "FAILED") or not pairs:
        return row.state
    mine, eager = max(pairs, key=lambda p: p[0] / p[1])
    return f"{row.state} {mine:.0e}/{eager:.0e}"


def by_variant(results: Results, devices: Sequence[str]) -> str:
    heads = ["variant", "what it is", "device", "run on", "families", *STATES]
    lines = [heads, ["---"] * len(heads)]
    for name, variant in VARIANTS.items():
        for d in devices:
            mine = {k: r for k, r in results.rows.items() if (r.variant, r.device) == (name, d)}
            if mine:
                count = Counter(r.state for r in mine.values())
                numbers = [str(count[s] or "") for s in STATES]
                days = Counter(results.made.get(k, {}).get("date", "undated") for k in mine)
                when = ", ".join(
                    day if len(days) == 1 else f"{day} ({days[day]})" for day in sorted(days)
                )
                lines.append([name, variant.about, d.upper(), when, str(len(mine)), *numbers])
    return table(lines)


def remarks(rows: Sequence[Row], zoo: Mapping[str, Zoo]) -> str:
    order = [*reversed(STATES)]
    lines = [["state", "family", "variant", "device", "why"], ["---"] * 5]
    for r in sorted(rows, key=lambda r: (order.index(r.state), r.family, r.variant, r.device)):
        why = r.why[:200].replace("|", "/")
        lines.append([r.state, r.family, r.variant, r.device.upper(), why])
    return table(lines)


def table(lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
