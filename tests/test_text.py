"""Runs the text tests; see ``text_cases``."""

from __future__ import annotations

from pathlib import Path

import pytest
import text_cases


@pytest.mark.parametrize("path", text_cases.cases(), ids=lambda p: p.stem)
def test_text(path: Path) -> None:
    expected, actual = text_cases.run(path.read_text())
    assert actual == expected
