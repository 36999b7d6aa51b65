"""Steps run to their end before an interrupt is raised."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from litz.runtime.unbroken import unbroken


def test_an_interrupt_waits() -> None:
    ended = []

    def step() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)
        ended.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            unbroken(step)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended


def test_faults_come_through() -> None:
    def step() -> None:
        raise OSError(threading.current_thread().name)

    with pytest.raises(OSError, match="Thread-"):
        unbroken(step)


def test_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ended: list[bool] = []
    unbroken(lambda: ended.append(True))
    assert ended == [True]
