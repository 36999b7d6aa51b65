"""Steps that an interrupt must not leave half done."""

from __future__ import annotations

import threading
from collections.abc import Callable

SECONDS = 10.0  # how long an interrupt waits for a step


def unbroken(step: Callable[[], None]) -> None:
    """Run ``step`` to its end; an interrupt of this thread (Ctrl-C) meanwhile is raised behind it.

    The step runs in a thread of its own, as Python hears signals in the main thread alone.  Raises
    what the step raises.
    """
    faults: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            step()
        except BaseException as e:
            faults.append(e)
        finally:
            done.set()

    try:
        threading.Thread(target=run, daemon=True).start()
        done.wait()
    except RuntimeError:  # no more threads
        step()
    except BaseException:
        done.wait(SECONDS)
        raise
    if faults:
        raise faults[0]
