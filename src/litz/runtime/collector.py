"""The garbage collector of Python, held off."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile.

    Imports and graphs make many objects and little garbage, and one collection goes through the
    million objects of PyTorch: 0.15 s, as long as a small compilation.  And what a collection
    frees may not be freed while a CUDA graph is recorded.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
