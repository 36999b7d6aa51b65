"""Families of transformers, two training steps each, judged in float64 (the sweep's rows)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.quick import some
from tests.sweep.models import FAMILIES, run, run_fairly

# What DistilBERT, GPT-J and CLIP have is in these or in ``test_models``.
QUICK = ("gemma2", "mixtral", "mamba", "t5", "swin")
# A second layer of these shows nothing that the first does not, and the sweep has it.
FEWER = {
    "mamba": {"num_hidden_layers": 1},
    "mixtral": {"num_hidden_layers": 1},
    "swin": {"depths": [2, 1]},  # windows, windows that are shifted, and the next stage
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some(QUICK, 1))
def test_family(name: str) -> None:
    family = FAMILIES[name]
    if name in FEWER:
        family = replace(family, sizes={**family.sizes, **FEWER[name]})
    row = run(name, family)
    assert row.state == "ok", str(row)
    graphs, breaks, kernels, _, fallbacks = row.counts
    assert graphs >= 2 and breaks == 0 and kernels > 0 and fallbacks == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in QUICK])
def test_every_family(name: str) -> None:
    row = run_fairly(name, FAMILIES[name])
    assert row.state in ("ok", "chance"), str(row)
