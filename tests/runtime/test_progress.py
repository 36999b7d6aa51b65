"""The line about what takes long: on terminals alone, and gone with its thread in the end."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch

from litz.runtime import progress
from litz.runtime.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, text: str) -> bool:
    until = time.monotonic() + 5
    while text not in out.getvalue() and time.monotonic() < until:
        time.sleep(0.005)
    return text in out.getvalue()


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "litz progress"]


def terminal(patch: pytest.MonkeyPatch, after: float = 0.01) -> Terminal:
    patch.setattr(progress, "AFTER", after)
    patch.setattr(progress, "EVERY", 0.001)
    patch.setattr(sys, "stderr", out := Terminal())
    return out


def test_a_line_with_the_innermost_text_that_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(monkeypatch)
    with Progress(lambda: "outer"):
        assert shown(out, "\rlitz: outer, 0 s\x1b[K") and threads() == ["litz progress"]
        with Progress(lambda: "inner", spent=5.0):
            assert shown(out, "litz: inner") and threads() == ["litz progress"]
        out.truncate(0)
        assert shown(out, "litz: outer")
    assert out.getvalue().endswith("\r\x1b[K") and not threads()


def test_time_that_was_spent_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(monkeypatch)
    with Progress(lambda: "timing", spent=61.0):
        assert shown(out, "litz: timing, 61 s")


def test_nothing_is_said_of_what_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(monkeypatch, 60.0)
    with Progress(lambda: "quick"):
        pass
    assert out.getvalue() == "" and not threads()


def closed() -> io.StringIO:
    (out := io.StringIO()).close()
    return out


class Other:
    """What a program may put in the place of standard error."""


@pytest.mark.parametrize(
    "out, wanted", [(io.StringIO, True), (Terminal, False), (closed, True), (Other, True)]
)
def test_no_thread_in_logs_and_where_it_is_not_wanted(
    out: Callable[[], object], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", out())
    with Progress(lambda: "x", wanted):
        assert not threads()


def test_a_compile_names_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(monkeypatch, 0.0)

    def hook(graph: object) -> None:
        assert shown(out, "litz: inference graph, passes")

    hook.uuid = lambda: "waits"  # type: ignore[attr-defined]
    torch.compiler.reset()
    options = {"before_passes": hook}
    assert torch.compile(lambda x: x.sin() + 1, backend="litz", options=options)(
        torch.ones(3)
    ).sum()
    assert out.getvalue().endswith("\r\x1b[K") and not threads()
