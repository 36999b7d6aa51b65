"""Which of many alike cases every run of the tests has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], count: int) -> list[Any]:
    """``count`` of the cases, evenly spread, the first among them; the others are ``slow``."""
    every = list(cases)
    kept = {i * len(every) // count for i in range(count)}
    slow = pytest.mark.slow
    return [c if i in kept else pytest.param(c, marks=slow) for i, c in enumerate(every)]
