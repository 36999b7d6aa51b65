"""A line on the terminal about what takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

from litz.runtime.meeting import rank

AFTER: Final = 2.0  # seconds without a line
EVERY: Final = 0.25  # seconds between lines


class Progress:
    """Says at the foot of a terminal what goes on while it does, and wipes that in the end.

    what: gives the text, a line, asked every now and then from another thread, which lives no
    longer than the context.  wanted: option ``progress``.  spent: seconds of the same work before.
    Inside of another one, its text takes the place of that one's.  Nothing is said, and no thread
    started, where standard error is no terminal, nor by ranks behind the first.
    """

    def __init__(self, what: Callable[[], str], wanted: bool = True, spent: float = 0.0) -> None:
        self._what, self._wanted, self._spent = what, wanted, spent
        self._line: _Line | None = None

    def __enter__(self) -> Progress:
        if self._wanted and _is_terminal(sys.stderr) and not rank():
            # Python keeps who talks: there is one line at the foot of a terminal.
            lines = (t for t in threading.enumerate() if isinstance(t, _Line))
            self._line = next(lines, None) or _Line(sys.stderr, self._spent)
            self._line.texts.append(self._what)
            if self._line.ident is None:  # another thread's line may be over by now
                self._line.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.texts.remove(self._what)
            if not self._line.texts:
                self._line.over.set()
                self._line.join()


def _is_terminal(out: TextIO | None) -> bool:
    try:
        return out is not None and out.isatty()
    except (AttributeError, ValueError):  # a program's own object, or one that is closed
        return False


class _Line(threading.Thread):
    def __init__(self, out: TextIO, spent: float) -> None:
        super().__init__(name="litz progress", daemon=True)
        self.texts: list[Callable[[], str]] = []
        self.out, self.spent = out, spent
        self.over = threading.Event()

    def run(self) -> None:
        start = time.monotonic() - self.spent
        pause, written = max(0.0, AFTER - self.spent), False
        while not self.over.wait(pause):
            what = self.texts[-1:]
            text = f"litz: {what[0]() if what else ''}, {time.monotonic() - start:.0f} s"
            self.out.write(f"\r{text[:78]}\x1b[K")
            self.out.flush()
            pause, written = EVERY, True
        if written:
            self.out.write("\r\x1b[K")
            self.out.flush()
