"""The page: one file that asks for nothing, whose first screen is there without a script."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from time import perf_counter
from urllib.parse import unquote

import planted
import pytest
import torch

import litz
from litz.report.html import PARTS, report_page
from litz.report.record import Report, from_json

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags with their attributes, text by the innermost tag, and whether all tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> str:
        return " ".join(text for own, text in self.texts if own == tag)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Report]:
    file = tmp_path_factory.mktemp("page") / "report.html"
    found = litz.explain(planted.transposed_copy, torch.randn(300, 200), html=str(file))
    return file.read_text(encoding="utf-8"), found.report


def test_the_page_is_whole_and_asks_nobody(written: tuple[str, Report]) -> None:
    text, report = written
    page = Page(text)
    assert not page.open and text.startswith("<!doctype html>")
    assert all(
        not {"src", "srcset", "action"} & a.keys() and (a.get("href") or "#").startswith("#")
        for _, a in page.tags
    )
    assert "default-src 'none'" in text and "url(" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in page.of("style")
    data = next(t for (tag, a), t in zip(_scripts(page), _texts(page), strict=True) if "type" in a)
    assert from_json(data) == report


def _scripts(page: Page) -> list[tuple[str, dict[str, str | None]]]:
    return [x for x in page.tags if x[0] == "script"]


def _texts(page: Page) -> list[str]:
    return [text for tag, text in page.texts if tag == "script"]


def test_the_page_can_be_read_aloud_and_walked_by_key(written: tuple[str, Report]) -> None:
    page = Page(written[0])
    ids = {a["id"] for _, a in page.tags if "id" in a}
    html = next(a for tag, a in page.tags if tag == "html")
    assert html["lang"] == "en" and {"main", "header", "h1", "noscript"} <= {
        t for t, _ in page.tags
    }
    for tag, a in page.tags:
        assert a.get("aria-labelledby", next(iter(ids))) in ids
        if tag == "a" and (a.get("href") or "").startswith("#first"):
            assert "first" in ids
    assert any(a.get("role") == "status" and a.get("aria-live") for _, a in page.tags)


def test_findings_lead_to_their_lines(written: tuple[str, Report]) -> None:
    text, report = written
    page = Page(text)
    links = [unquote(a["href"] or "")[6:] for t, a in page.tags if t == "a" and a.get("href")]
    assert [x for x in links if x in report.by_line][: len(report.findings)] == [
        f.line for f in report.findings
    ]
    first = page.texts.index(("h2", "What to look at first"))
    assert ("b", "transposed copy") in page.texts[first : first + 12]
    assert any(t == "code" and x.endswith("# here") for t, x in page.texts[first : first + 20])


def test_what_a_user_writes_stays_text(written: tuple[str, Report]) -> None:
    bad = "</script><script>alert(1)</script>{{data}}"
    report = replace(written[1], title=bad, sources={"f.py": bad})
    page = Page(report_page(report))
    assert len(_scripts(page)) == 2 and page.of("h1") == bad


def test_ten_thousand_kernels(written: tuple[str, Report]) -> None:
    """The page of many steps is made in a moment, and its script draws few of them."""
    (graph,) = written[1].graphs
    steps = tuple(replace(graph.steps[0], id=f"g0.group{i}") for i in range(10_000))
    report = replace(written[1], graphs=(replace(graph, steps=steps),))
    start = perf_counter()
    page = report_page(report)
    assert perf_counter() - start < 5
    assert page.count("<tr") < 50  # all rows are the script's
    run = _run(page)
    if run is not None:
        assert run["rows"] <= 401 and run["seconds"] < 2


def test_the_script_draws_and_links(written: tuple[str, Report]) -> None:
    run = _run(written[0])
    if run is None:
        pytest.skip("there is no node")
    _, report = written
    (graph,) = report.graphs
    assert run["rows"] == len(graph.steps) + 1  # and the head
    assert set(run["lines"]) == {f"line-{x}" for x in report.by_line}
    step = graph.steps[0]
    assert set(run["litByStep"]) == {step.id, *(f"line-{x}" for x in step.lines)}
    line = step.lines[0]
    assert set(run["litByLine"]) == {f"line-{line}", *(s.id for s in report.steps_of_line(line))}
    assert "litz::" in run["opened"]


def _run(page: str) -> dict[str, object] | None:
    """What the page's script does in a document of paper; None without node."""
    node = shutil.which("node")
    if node is None:
        return None
    data = next(t for t in _texts(Page(page)) if t.startswith("{"))
    code = Path(__file__).with_name("paper.js").read_text()
    given = json.dumps({"data": data, "script": (PARTS / "page.js").read_text()})
    ran = subprocess.run([node, "-e", code], input=given, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    return found
