"""The report as one page of HTML: it works from disk, asks no network and has all of the data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import quote

from litz.report.findings import size, time
from litz.report.record import Finding, Report
from litz.report.text import nothing, place, report_text, totals

PARTS = Path(__file__).parent / "page"
MOST = 25
"""Findings on the first screen."""


def report_page(r: Report) -> str:
    """The page.  Findings are in its text; the script draws the rest from the record in it."""
    parts = {
        "title": escape(r.title),
        "versions": escape(", ".join(f"{k} {v}" for k, v in r.versions.items())),
        "figures": "\n".join(_figures(r)),
        "findings": "\n".join(_findings(r)),
        "text": escape(report_text(r)),
        "data": r.to_json().replace("<", "\\u003c"),
        "css": (PARTS / "page.css").read_text(),
        "js": (PARTS / "page.js").read_text(),
    }
    form = (PARTS / "page.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], form)


def _figures(r: Report) -> Iterator[str]:
    show = {"bytes": size, "bytes apart": size, "peak": size, "seconds": time}
    names = {"bytes": "moved", "bytes apart": "operator by operator", "peak": "held at most"}
    names |= {"seconds": "compiling"}
    for name, n in totals(r).items():
        value = show.get(name, str)(n)
        yield f"<div><dt>{names.get(name, name)}</dt><dd>{escape(value)}</dd></div>"


def _findings(r: Report) -> Iterator[str]:
    if not r.findings:
        yield f"<p>{nothing(r).capitalize()}.</p>"
        return
    yield '<ol class="findings">'
    for f in r.findings[:MOST]:
        yield f"<li>{_finding(r, f)}</li>"
    yield "</ol>"
    if len(r.findings) > MOST:
        yield f"<p>... and {len(r.findings) - MOST} more, in the text below.</p>"


def _finding(r: Report, f: Finding) -> str:
    parts = [f"<b>{f.kind}</b>"]
    if f.line in r.by_line:
        link = f"#{quote(f'line-{f.line}', safe='')}"
        code = escape(r.by_line[f.line].text)
        parts.append(f'<a href="{link}">{escape(place(r, f.line))}</a> <code>{code}</code>')
    parts.append(f"<br>{escape(f.what)}")
    if f.step:
        parts.append(f'<a href="#steps" data-step="{escape(f.step)}">its step</a>')
    if f.advice:
        parts.append(f'<br><span class="advice">{escape(f.advice)}</span>')
    return " ".join(parts)
