"""The page in a browser, as its readers have it: `make packages browser` has what that takes."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import planted
import pytest
import torch

import litz
from litz.report.html import report_page
from litz.report.record import GraphNode, Line, Refused, Report

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: see `make browser`")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
images = pytest.importorskip("PIL.Image")

NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"


def starts(path: str) -> bool:
    """Some systems have a command in its place that says where to get it."""
    return subprocess.run([path, "--version"], capture_output=True).returncode == 0


CHROMIUM = next(filter(starts, filter(None, map(shutil.which, NAMES))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: see `make packages`")

SCHEMES = "light", "dark"
SCREEN = {"width": 1280, "height": 800}
CASES: dict[str, Callable[..., Any]] = {
    "graph break": planted.graph_break,
    "fallback": planted.fallback,
    "transposed copy": planted.transposed_copy,
    "recompile": planted.Loop(),
}
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return {k: litz.explain(f, torch.randn(300, 200)).report for k, f in CASES.items()}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # Root has no sandbox, nor do containers.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as p:
        made = p.chromium.launch(executable_path=CHROMIUM, args=args)
        yield made
        made.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Open:
    """Shows a report, and fails where the page complains or asks for anything but itself."""

    @contextmanager
    def show(report: Report, scheme: str = "light", screen: dict[str, int] = SCREEN) -> Any:
        file = tmp_path / "report.html"
        file.write_text(report_page(report), encoding="utf-8")
        context = browser.new_context(color_scheme=scheme, viewport=screen)
        page, said, asked = context.new_page(), [], []
        page.on("console", lambda m: said.append(m.text))
        page.on("pageerror", lambda e: said.append(str(e)))
        page.on("request", lambda r: asked.append(r.url))
        page.goto(file.as_uri())
        yield page
        context.close()
        assert not said and asked == [file.as_uri()]

    return show


def lit(page: Any) -> set[str]:
    found: list[str] = page.locator(".lit").evaluate_all("all => all.map(e => e.id)")
    return set(found)


def open_all(page: Any) -> None:
    for _ in range(2):  # what is opened has more in it
        page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
        page.wait_for_timeout(50)
    page.locator("#rows td button").first.click()


@pytest.mark.parametrize("kind", CASES)
def test_the_first_screen_names_the_line(
    kind: str, reports: dict[str, Report], opened: Open
) -> None:
    with opened(reports[kind]) as page:
        first = page.locator("ol.findings li").first
        playwright.expect(first).to_be_in_viewport(ratio=1)
        assert first.locator("b").inner_text() == kind
        assert first.locator("code").inner_text().endswith("# here")
        link = first.locator("a").first
        link.click()  # leads to the line
        line = page.locator(f"[id='line-{reports[kind].findings[0].line}']")
        playwright.expect(line).to_be_in_viewport(ratio=0.5)  # a long line is cut
        assert "# here" in line.inner_text() and link.inner_text().startswith("planted.py:")


def test_pointing_lights_up_lines_and_steps(reports: dict[str, Report], opened: Open) -> None:
    report = reports["transposed copy"]
    step = report.graphs[0].steps[0]
    line = step.lines[-1]
    both = {step.id, *(f"line-{x}" for x in step.lines)}
    with opened(report) as page:
        page.hover(f"[id='{step.id}']")
        assert lit(page) == both
        page.hover(f"[id='line-{line}']")
        assert lit(page) == {f"line-{line}", *(s.id for s in report.steps_of_line(line))}
        page.get_by_text("its step").first.click()
        assert lit(page) == both and page.locator("#rows tbody tr").count() == 1


def test_every_link_has_its_place(reports: dict[str, Report], opened: Open) -> None:
    for report in reports.values():
        with opened(report) as page:
            open_all(page)
            ids = set(page.locator("[id]").evaluate_all("all => all.map(e => e.id)"))
            to = page.locator("a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
            assert to and all(x.startswith("#") and unquote(x[1:]) in ids for x in to)


def test_keys_alone_are_enough(reports: dict[str, Report], opened: Open) -> None:
    report = reports["transposed copy"]
    step = report.graphs[0].steps[0]
    with opened(report) as page:

        def tab_to(css: str) -> None:
            for _ in range(60):
                page.keyboard.press("Tab")
                if page.evaluate("css => document.activeElement.matches(css)", css):
                    return
            raise AssertionError(f"Tab does not lead to {css}")

        tab_to(".skip")
        playwright.expect(page.locator(".skip")).to_be_in_viewport()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "first"
        tab_to(f"[id='line-{step.lines[0]}']")
        assert step.id in lit(page)
        page.keyboard.press("Enter")
        of_line = report.steps_of_line(step.lines[0])
        assert page.locator("#rows tbody tr").count() == len(of_line)
        assert page.locator("#said").inner_text().startswith(f"{len(of_line)} step")
        tab_to(f"[id='{step.id}'] button")
        page.keyboard.press("Enter")
        shown = page.locator(".inside").inner_text()
        assert all(x in shown for x in ("torch.ops.aten.relu", "loops0 = ", "group0 = ", "litz::"))
        page.keyboard.press("Enter")
        assert page.locator(".inside").count() == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_can_be_read_by_all(scheme: str, reports: dict[str, Report], opened: Open) -> None:
    """axe finds no fault: contrast, names of what can be used, order of headings, keys."""
    with opened(reports["graph break"], scheme) as page:
        open_all(page)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


def test_it_is_drawn_alike_and_in_both_schemes(reports: dict[str, Report], opened: Open) -> None:
    """Screens of one page are equal; those of light and dark are the system's."""
    shots: dict[str, Any] = {}
    for scheme in SCHEMES:
        for _ in range(2):
            with opened(reports["fallback"], scheme) as page:
                found = images.open(io.BytesIO(page.screenshot())).convert("L")
            assert shots.setdefault(scheme, found).tobytes() == found.tobytes()
    bright = {k: sum(x.tobytes()) / len(x.tobytes()) for k, x in shots.items()}
    assert bright["light"] > 200 and bright["dark"] < 80
    extremes = {k: x.getextrema() for k, x in shots.items()}
    assert all(high - low > 150 for low, high in extremes.values())  # text stands out in both


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_runs_out_of_the_window(
    width: int, reports: dict[str, Report], opened: Open
) -> None:
    """What is wide scrolls in its own box."""
    with opened(reports["transposed copy"], screen={"width": width, "height": 800}) as page:
        open_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def large(report: Report, n: int) -> Report:
    """A report of n kernels, each with its source, of n / 5 lines."""
    (graph,), kernel = report.graphs, report.kernels[0]
    file = planted.__file__
    lines = [Line(f"{file}:{i}", file, i, "f", f"y = g{i}(x)") for i in range(1, n // 5 + 1)]
    at = [lines[i // 5].id for i in range(n)]
    step = graph.steps[0]
    steps = [
        replace(step, id=f"g0.group{i}", name=f"k{i}", nodes=(f"g0.n{i}",), lines=(at[i],))
        for i in range(n)
    ]
    memory = replace(graph.memory, held=tuple(i % 977 for i in range(n)))
    refused = [Refused(s.id, step.id, "loops of other sizes", 100) for s in steps]
    graph = replace(
        graph,
        steps=tuple(steps),
        nodes=tuple(GraphNode(f"g0.n{i}", "aten.relu.default", at[i]) for i in range(n)),
        refused=tuple(refused),
        memory=memory,
        texts={k: text * (n // 5) for k, text in graph.texts.items()},
    )
    sources = {file: "\n".join(x.text for x in lines)}
    kernels = tuple(replace(kernel, id=f"k{i}") for i in range(n))
    return replace(report, graphs=(graph,), kernels=kernels, lines=tuple(lines), sources=sources)


def test_ten_thousand_kernels_do_not_stall(reports: dict[str, Report], opened: Open) -> None:
    """Loading takes seconds at most, and what the page does after it a moment."""
    report = large(reports["transposed copy"], 10_000)
    react = """([css, name]) => {
        const start = performance.now();
        document.querySelector(css).dispatchEvent(new Event(name));
        document.body.getBoundingClientRect();  // drawn by then
        return performance.now() - start;
    }"""
    with opened(report) as page:
        loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        last = report.lines[-1]
        spent = {
            "hover a step": page.evaluate(react, ["#rows tbody tr", "mouseenter"]),
            "hover a line": page.evaluate(react, [f"[id='line-{last.id}']", "mouseenter"]),
            "a line's steps": page.evaluate(react, [f"[id='line-{last.id}']", "click"]),
            "all steps": page.evaluate(react, ["button.more:last-child", "click"]),
            "200 more": page.evaluate(react, ["button.more", "click"]),
            "open a step": page.evaluate(react, ["#rows td button", "click"]),
        }
        assert page.locator("#rows tbody tr").count() == 401
        assert loaded < 20_000 and max(spent.values()) < 2_000, (loaded, spent)
        print(f"loaded in {loaded:.0f} ms; then at most, in ms: {spent}")
