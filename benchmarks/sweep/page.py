"""Rows of a sweep as text, as CSV and as a page with plots."""

from __future__ import annotations

import csv
import html
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import align, geometric_mean, number

Row = dict[str, Any]
LEAST = 0.95
COLUMNS = (
    *("case", "device", "threads", "bytes", "eager", "litz", "peer", "ratio", "noise"),
    *(
        "dynamo",
        "dynamo_ratio",
        "dynamo_noise",
        "peer_ratio",
        "peer_noise",
        "right",
        "off",
        "eager_off",
        "first",
        "peer_first",
    ),
    *("kernels", "externs", "replays", "failed", "fault", "peer_failed"),
)
WORST = 100
HEADER = (
    *("case", "device", "x eager", "counts", "noise", "x peer", "us", "eager us", "right"),
    *("kernels", "ATen"),
)


def slower(row: Row) -> bool:
    """Whether a case is slower than eager beyond 5 % and noise; see ``against``."""
    if "ratio" not in row:
        return False
    ratio, noise = against(row)
    return ratio < LEAST and ratio + noise < 1


def against(row: Row) -> tuple[float, float]:
    """The ratio that counts and its noise: beside eager, called by Dynamo where calls are brief."""
    key = "dynamo_" if "dynamo_ratio" in row else ""
    return row[f"{key}ratio"], row[f"{key}noise"]


def timed(rows: Iterable[Row]) -> list[Row]:
    return [r for r in rows if "ratio" in r]


def place(row: Row) -> str:
    return str(row["device"]) + (f" {row['threads']}" if row["threads"] else "")


def summary(rows: Sequence[Row], most: int = 40) -> str:
    """Means and counts by device and family, and what is slowest."""
    lines: list[tuple[str, ...]] = [
        ("device", "family", "cases", "x eager", "counts", "worst", "slower", "x peer", "not right")
    ]
    for device in sorted({place(r) for r in rows}):
        here = [r for r in rows if place(r) == device]
        families = sorted({r["case"].split("/")[0] for r in here})
        for family in (*families, ""):
            some = [r for r in here if r["case"].startswith(family)]
            lines.append((device, family or "all", *figures(some)))
    parts = [align(lines)] if rows else ["no cases"]
    slow = sorted(filter(slower, rows), key=against)
    if slow:
        parts += ["slower than eager:", align([HEADER, *map(line, slow[:most])])]
    parts += [f"FAIL {r['case']} on {place(r)}: {r['failed']}" for r in rows if "failed" in r]
    parts += [
        f"{r['right']} {r['case']} on {place(r)}: {r.get('fault') or told(r)}"
        for r in timed(rows)
        if r["right"] in ("loose", "WRONG")
    ]
    return "\n".join(parts)


def told(row: Row) -> str:
    return f"error {row['off']:.1e}, eager's {row['eager_off']:.1e}"


def figures(rows: Sequence[Row]) -> tuple[str, ...]:
    ratios = [r["ratio"] for r in timed(rows)]
    counts = [against(r)[0] for r in timed(rows)]
    peers = [r["peer_ratio"] for r in timed(rows) if "peer_ratio" in r]
    wrong = sum("failed" in r or r["right"] in ("loose", "WRONG") for r in rows)
    return (
        str(len(rows)),
        number(geometric_mean(ratios), 2),
        number(geometric_mean(counts), 2),
        number(min(counts, default=None), 2),
        str(sum(map(slower, rows))),
        number(geometric_mean(peers), 2),
        str(wrong),
    )


def line(row: Row) -> tuple[str, ...]:
    return (
        row["case"],
        place(row),
        number(row["ratio"], 2),
        *(number(x, 2) for x in against(row)),
        number(row.get("peer_ratio"), 2),
        number(1e6 * row["litz"], 1),
        number(1e6 * row["eager"], 1),
        row["right"],
        str(row["kernels"]),
        ", ".join(row["externs"])[:60],
    )


def write_csv(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        for row in sorted(rows, key=lambda r: (r["device"], r["threads"], r["case"])):
            flat = {"externs": "; ".join(f"{k}: {v}" for k, v in row.get("externs", {}).items())}
            writer.writerow(row | flat)


# --- the page -------------------------------------------------------------------------------------

STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:80em}table{border-collapse:collapse}"
    "td,th{padding:2px 8px;text-align:right;border-bottom:1px solid #ddd}td:first-child"
    "{text-align:left;font-family:monospace}svg{margin:8px}text{font:11px sans-serif}"
)
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8a5a9e", "#c98a00", "#5f6b73")
WIDTH, HEIGHT, EDGE = 560, 320, 42


def write_page(rows: Sequence[Row], path: Path) -> None:
    """One file that needs no other: plots, means, and what is slowest."""
    parts = [f"<!doctype html><meta charset=utf-8><title>Sweep</title><style>{STYLE}</style>"]
    for device in sorted({place(r) for r in rows}):
        here = [r for r in timed(rows) if place(r) == device]
        if not here:
            continue
        parts.append(f"<h1>{html.escape(device)}: {len(here)} cases</h1>")
        parts.append(scatter(here))
        parts.append(ranked(here))
        worst = sorted(here, key=against)[:WORST]
        parts += ["<h2>Slowest beside eager</h2>", table([HEADER, *map(line, worst)])]
    parts.append(f"<h2>All</h2><pre>{html.escape(summary(rows, 0))}</pre>")
    path.write_text("\n".join(parts) + "\n")


def table(lines: Sequence[Sequence[str]]) -> str:
    def cells(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    head, *rest = lines
    return "\n".join(["<table>", cells("th", head), *(cells("td", x) for x in rest), "</table>"])


def scale(values: Sequence[float], length: float) -> Callable[[float], float]:
    """From a value to its place on a logarithmic axis from the least to the largest."""
    low, high = math.log(min(values)), math.log(max(values))
    return lambda v: EDGE + (math.log(v) - low) / ((high - low) or 1.0) * (length - 2 * EDGE)


def frame(title: str, marks: Iterable[str], grid: Callable[[float], float]) -> str:
    """A plot whose vertical axis is a ratio, with lines where it is 0.5, 1, 2 and so on."""
    lines = []
    for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 50):
        y = HEIGHT - grid(value)
        if EDGE / 2 < y < HEIGHT - EDGE / 2:
            colour = "#333" if value == 1 else "#ddd"
            lines.append(f'<path d="M{EDGE} {y:.1f}H{WIDTH - EDGE}" stroke="{colour}"/>')
            lines.append(f'<text x="4" y="{y + 4:.1f}">{value:g}</text>')
    body = "\n".join((*lines, *marks, f'<text x="{EDGE}" y="14">{html.escape(title)}</text>'))
    return f'<svg width="{WIDTH}" height="{HEIGHT}">{body}</svg>'


def scatter(rows: Sequence[Row]) -> str:
    across = scale([max(r["bytes"], 1) for r in rows], WIDTH)
    up = scale([against(r)[0] for r in rows] + [0.5, 2.0], HEIGHT)
    families = sorted({r["case"].split("/")[0] for r in rows})
    marks = []
    for r in rows:
        family = families.index(r["case"].split("/")[0])
        x, y = across(max(r["bytes"], 1)), HEIGHT - up(against(r)[0])
        name = html.escape(f"{r['case']}: {against(r)[0]:.2f}")
        marks.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{COLOURS[family % len(COLOURS)]}" '
            f'opacity=".6"><title>{name}</title></circle>'
        )
    for k, family in enumerate(families):
        colour = COLOURS[k % len(COLOURS)]
        marks.append(f'<text x="{EDGE + 80 * k}" y="{HEIGHT - 6}" fill="{colour}">{family}</text>')
    return frame("times eager's speed over bytes moved", marks, up)


def ranked(rows: Sequence[Row]) -> str:
    """All ratios in order, beside eager and beside the peer."""
    peers = sorted(r["peer_ratio"] for r in rows if "peer_ratio" in r)
    sides = [sorted(against(r)[0] for r in rows), peers]
    up = scale([v for side in sides for v in side] + [0.5, 2.0], HEIGHT)
    marks = []
    for side, colour in zip(sides, COLOURS, strict=False):
        step = (WIDTH - 2 * EDGE) / max(len(side) - 1, 1)
        points = " ".join(f"{EDGE + k * step:.1f},{HEIGHT - up(v):.1f}" for k, v in enumerate(side))
        marks.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    return frame("all cases in order: beside eager (blue) and the peer (red)", marks, up)
