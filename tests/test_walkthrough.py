"""docs/architecture.md shows what the stages print today."""

from __future__ import annotations

import pytest
import torch

from tests.walkthrough import PAGE, page


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="graphs are as PyTorch 2.13 traces them"
)
def test_the_page_is_what_the_stages_print() -> None:
    pytest.importorskip("triton.language")
    assert PAGE.read_text() == page(), "python -m tests.walkthrough --write"
