"""``litz compare A B``: the first kernel whose output differs between two runs.

A, B: folders that runs under ``inspect_how="sum"`` or ``"save"`` wrote (``docs/reports.md``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from litz.runtime.looking import RECORDS
from litz.verify.compare import same

_SAME = ("step", "when", "buffer", "dtype", "shape")


def first_difference(a: Path | str, b: Path | str) -> str:
    """The first record in which two runs differ, in words; "" where they are equal to the bit.

    a, b: folders.  The runs are of one program: their records are compared in order, of programs
    of several processes rank by rank, a line for each that differs.
    Raises OSError for a folder without records.
    """
    one, other = ({f.parent.name for f in Path(x).glob(f"rank*/{RECORDS}")} for x in (a, b))
    if not (one and other):
        return _first_difference(Path(a), Path(b))
    ranks = sorted({*one, *other}, key=lambda r: (len(r), r))  # rank10 behind rank2
    said = dict.fromkeys(ranks, "only one of the runs has it")
    said |= {r: _first_difference(Path(a, r), Path(b, r)) for r in one & other}
    return "\n".join(f"{r}: {text}" for r, text in said.items() if text)


def _first_difference(a: Path, b: Path) -> str:
    runs = [_records(f) for f in (a, b)]
    for one, other in zip(*runs, strict=False):
        if any(one[k] != other[k] for k in _SAME):
            return f"the runs look at other tensors from here: {_text(one)}, and {_text(other)}"
        if one["sha256"] != other["sha256"]:
            how = _difference(one, other, (a, b))
            return f"{_text(one)} is not equal{how}"
    counts = [len(r) for r in runs]
    return "" if counts[0] == counts[1] else f"equal as far as both go: {counts} records"


def _records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()]


def _text(r: dict[str, Any]) -> str:
    nodes = ", ".join(r["nodes"])
    return f"{r['buffer']} {r['when']} step {r['step']}, {r['kernel']} ({nodes}; {r['line']})"


def _difference(one: dict[str, Any], other: dict[str, Any], folders: tuple[Path, Path]) -> str:
    if "file" not in one or "file" not in other:
        said = (f"{r['min']} to {r['max']}, {r['nan']} nan, {r['inf']} inf" for r in (one, other))
        return ": " + "; and ".join(said)
    x, y = (
        torch.load(f / r["file"], weights_only=True)
        for f, r in zip(folders, (one, other), strict=True)
    )
    real = torch.float64 if x.is_floating_point() else torch.int64
    x, y = (t.to(torch.complex128 if t.is_complex() else real) for t in (x, y))
    wrong = ~same(x, y)
    if not wrong.any():
        return ": the same numbers in other bits (signs of zeros, or nans)"
    most = float((x - y)[wrong].abs().max())
    return f": {int(wrong.sum())} of {x.numel()} elements, by at most {most:.3g}"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz compare", description=__doc__)
    made.add_argument("runs", nargs=2, metavar="FOLDER", type=Path)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 where the runs differ, 2 for a folder without records."""
    try:
        found = first_difference(*parser().parse_args(arguments).runs)
    except OSError as e:
        print(f"litz compare: {e}", file=sys.stderr)
        return 2
    print(found or "equal to the bit")
    return int(bool(found))
