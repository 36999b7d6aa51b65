"""``traced_programs.py`` in a process of its own: PyTorch's autograd counts a process's GPUs once,
at its first backward, and there the one on paper has to be among them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.language")
HERE = Path(__file__).parent


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_programs_traced_for_a_gpu(which: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which]
    made = subprocess.run(
        [*command, str(HERE / "traced_programs.py")],
        cwd=HERE.parents[1],
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert made.returncode == 0, made.stdout[-6000:] + made.stderr[-1000:]
    assert " passed" in made.stdout
