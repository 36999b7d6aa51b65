"""Graphs with control flow are found by another process, and are what they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import control_flow_programs as programs
import pytest


@pytest.mark.slow
def test_another_process_finds_graphs_with_control_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"LITZ_CACHE_DIR": str(tmp_path), "LITZ_CHECK_CALLS": "0", "LITZ_CHECK_IR": "0"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    made, first = programs.run()
    seed = "2" if os.environ.get("PYTHONHASHSEED") != "2" else "1"
    done = subprocess.run(
        [sys.executable, programs.__file__],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert made > 20 and done.stdout.split() == ["0", first]
