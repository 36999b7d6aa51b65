"""The benchmark of whole models on a GPU, as far as it goes without one."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.judge import distance
from benchmarks.gpu.models import BACKENDS, build, exact, outcome, step_of, table


@pytest.mark.parametrize("case", ["encoder_infer", "encoder_train"])
def test_steps_of_tiny_models(case: str) -> None:
    module, batch = build(case, "cpu", True)
    again, _ = build(case, "cpu", True)
    assert all(map(torch.equal, module.parameters(), again.parameters()))
    mine = outcome(module, step_of(module, module, batch))
    right = exact(module, batch)
    assert 0 < distance(mine, right).error < 0.05
    assert distance(right, right).error == 0
    assert (len(mine) > 1) == module.training


def test_table_compares_with_the_peer() -> None:
    def row(backend: str, busy: float) -> dict[str, object]:
        times = {"first": 4 * busy, "ms": busy, "busy": busy}
        found = {"starts": 7.0, "peak": 2.0, "error": 1e-3}
        return {"case": "vit_train", "backend": backend, **times, **found}

    rows = [row(b, ms) for b, ms in zip(BACKENDS, (3.0, 2.0, 1.0), strict=True)]
    rows.append({"case": "llama_infer", "backend": "litz", "failed": "it fell"})
    text = table(rows)
    assert "busy 0.500, peak 1.000, first 0.500" in text
    assert text.endswith("llama_infer litz failed: it fell")
    assert table(rows[:1]).count("\n") == 1  # no peer: a header and a row
