"""Families of transformers, two training steps each, judged in float64 (the sweep's rows)."""

from __future__ import annotations

import pytest

from tests.sweep.models import FAMILIES, run, run_fairly

QUICK = ("distilbert", "gemma2", "gptj", "mixtral", "mamba", "t5", "swin", "clip")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", QUICK)
def test_family(name: str) -> None:
    row = run(name, FAMILIES[name])
    assert row.state == "ok", str(row)
    graphs, breaks, kernels, _, fallbacks = row.counts
    assert graphs >= 2 and breaks == 0 and kernels > 0 and fallbacks == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in QUICK])
def test_every_family(name: str) -> None:
    row = run_fairly(name, FAMILIES[name])
    assert row.state in ("ok", "chance"), str(row)
