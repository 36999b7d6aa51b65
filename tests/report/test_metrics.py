"""Counters of what is compiled: in the process, in a file, in the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import planted
import pytest
import torch

import litz


def test_counters_are_those_of_what_was_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "metrics.jsonl"
    options = {"metrics": str(file), "cache_dir": str(tmp_path), "check_calls": False}
    x = torch.randn(300, 200)

    def run(fn: object) -> None:
        torch.compiler.reset()
        torch.compile(fn, backend="litz", options=options)(x)

    caplog.set_level(logging.INFO, "litz")
    torch.compiler.reset()
    with litz.metrics() as found:
        run(planted.graph_break)
    c = found.counters
    assert (c["graphs"], c["graphs.inference"], c["graph_breaks"]) == (2, 2, 1)
    assert (c["recompiles"], c["fallbacks"], c["cache_hits"]) == (0, 0, 0)
    assert (c["kernel_calls"], c["aten_calls"], c["kernels"], c["operators"]) == (3, 0, 3, 5)
    assert c["bytes"] > 4 * 4 * 300 * 200 and c["fusions"] > 0
    assert 0 < c["seconds.lowering"] < c["seconds"]
    assert "2 graphs" in found.summary() and found.summary() in caplog.text
    assert "seconds.lowering" in str(found)

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [x["kind"] for x in lines] == ["inference", "inference"]
    assert sum(x["counters"]["kernels"] for x in lines) == 3

    with litz.metrics() as again:
        run(planted.graph_break)
    assert again.counters["cache_hits"] == 2 and again.counters["kernels"] == 3
    run(planted.fallback)
    assert again.counters["graphs"] == 2, "it listens no more"
    assert len(file.read_text().splitlines()) == 5


def test_recompiles_are_counted_with_their_reason(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    torch.compiler.reset()
    with litz.metrics() as found:
        loop = torch.compile(planted.Loop(), backend="litz", options={"metrics": str(file)})
        loop(torch.randn(5, 4))
    assert found.counters["recompiles"] == 3
    last = json.loads(file.read_text().splitlines()[-1])
    assert "step == " in last["recompile"] and last["counters"]["recompiles"] == 1


def test_a_file_that_cannot_be_written_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.compiler.reset()
    fn = torch.compile(lambda x: x.sin(), backend="litz", options={"metrics": str(tmp_path)})
    assert fn(torch.zeros(3)).shape == (3,)
    assert "no metrics are written" in caplog.text
