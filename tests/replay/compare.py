"""What two recordings of the corpus have different, in words."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FIGURES = ("launches", "bytes", "calls", "of_calls")
Recorded = Mapping[str, Any]  # of an entry: "graphs", or the "error" that it ended with


def figures(recorded: Recorded) -> dict[str, int]:
    """Of all graphs of an entry: launches, bytes, operators of ATen, bytes of those."""
    totals = Counter(dict.fromkeys(FIGURES, 0))
    for g in recorded.get("graphs", ()):
        for name in FIGURES:
            totals[name] += len(g[name]) if isinstance(g[name], list) else g[name]
    return dict(totals)


def differences(name: str, old: Recorded, new: Recorded, lines: int = 40) -> Iterator[str]:
    """The lines that tell what changed in an entry; none where nothing did.

    lines: of each text's difference at most.
    """
    if old == new:
        return
    yield f"== {name}"
    if "error" in old or "error" in new:
        yield f"  {old.get('error', 'compiled')}  ->  {new.get('error', 'compiled')}"
        return
    before, after = figures(old), figures(new)
    changed = [f"{k} {before[k]} -> {after[k]}" for k in FIGURES if before[k] != after[k]]
    if changed:
        yield f"  {', '.join(changed)}"
    if len(old["graphs"]) != len(new["graphs"]):
        yield f"  {len(old['graphs'])} graphs -> {len(new['graphs'])}"
        return
    for k, (a, b) in enumerate(zip(old["graphs"], new["graphs"], strict=True)):
        if a != b:
            yield f"  graph {k}"
            yield from _of_graph(a, b, lines)


def _of_graph(old: Recorded, new: Recorded, lines: int) -> Iterator[str]:
    if old["whole"] != new["whole"]:
        yield f"    whole in ATen: {old['whole'] or 'no'} -> {new['whole'] or 'no'}"
    yield from _texts("calls of ATen", old["calls"], new["calls"], lines)
    gone = [s for k, s in old["kernels"].items() if k not in new["kernels"]]
    come = [s for k, s in new["kernels"].items() if k not in old["kernels"]]
    # Names come from contents: what is alike, apart from its name, is one kernel that changed.
    for k in range(max(len(gone), len(come))):
        pair = [s[k].splitlines() if k < len(s) else [] for s in (gone, come)]
        yield from _texts("a kernel", *pair, lines)
    if not gone and not come:
        yield from _texts("host", old["host"].splitlines(), new["host"].splitlines(), lines)


def _texts(what: str, old: Sequence[str], new: Sequence[str], lines: int) -> Iterator[str]:
    found = list(difflib.unified_diff(old, new, lineterm="", n=1))[2:]
    if not found:
        return
    yield f"    {what}"
    yield from (f"      {line}" for line in found[:lines])
    if len(found) > lines:
        yield f"      ... {len(found) - lines} lines more"


def grown(expected: Mapping[str, Sequence[int]], recorded: Mapping[str, Recorded]) -> list[str]:
    """What takes more than the expectations say, or fails; and entries that they do not have."""
    found = []
    for name, r in recorded.items():
        now = figures(r)
        if "error" in r:
            found.append(f"{name}: {r['error']}")
        elif name not in expected:
            found.append(f"{name}: it is not among the expectations")
        else:
            before = dict(zip(FIGURES, expected[name], strict=True))
            more = [f"{k} {before[k]} -> {now[k]}" for k in FIGURES if now[k] > before[k]]
            found += [f"{name}: {', '.join(more)}"] if more else []
    found += [f"{name}: it is not in the corpus" for name in expected if name not in recorded]
    return found


def read_expectations(text: str) -> dict[str, tuple[int, ...]]:
    """Lines of a name and its figures."""
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {name: tuple(map(int, values)) for name, *values in rows}


def write_expectations(recorded: Mapping[str, Recorded]) -> str:
    head = f"# entry {' '.join(FIGURES)}: python -m tests.replay --write\n"
    rows = ((name, *figures(r).values()) for name, r in sorted(recorded.items()))
    return head + "".join(f"{' '.join(map(str, row))}\n" for row in rows)
