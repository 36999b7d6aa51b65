"""Threads that take turns as often as they can, so that what they share is met in every state."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def hurried(every: float = 1e-6) -> Iterator[None]:
    """every: seconds after which the interpreter asks a thread to let others run."""
    old = sys.getswitchinterval()
    sys.setswitchinterval(every)
    try:
        yield
    finally:
        sys.setswitchinterval(old)


def together(works: Iterable[Callable[[], object]], every: float = 1e-6) -> None:
    """Run each in a thread of its own, at once, until all have ended."""
    threads = [threading.Thread(target=work) for work in works]
    with hurried(every):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
