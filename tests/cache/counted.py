"""Processes of their own that count what they compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_COUNTING = """
from litz import backend

compiled = []
inner = backend.compile_and_bind
def counting(*args, **kwargs):
    compiled.append(1)
    return inner(*args, **kwargs)
backend.compile_and_bind = counting
"""


def started(folder: Path, program: str, *args: str, **env: str) -> subprocess.Popen[str]:
    """Runs a program in which ``compiled`` has an entry for each graph that was compiled."""
    given = {"LITZ_CACHE_DIR": str(folder), "LITZ_CHECK_CALLS": "0", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", _COUNTING + program, *args],
        env={**os.environ, **given, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str], given: str = "") -> str:
    """What a process writes that ends well."""
    out, err = process.communicate(given, timeout=250)
    assert process.returncode == 0, err
    return out
