"""The native parts under sanitizers: ``python -m tests.sanitize [PYTEST ARGUMENTS]``.

Builds the executor with AddressSanitizer and UndefinedBehaviorSanitizer and runs the replay corpus'
CPU graphs and the other tests of the executor through it, in both hosts; then the packages of that
corpus, and damaged ones, by ``litz.h`` built the same way.  A fault ends it, with its stack.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.native import SANITIZED

PYTHON = ("tests/host/test_host_native.py", "-k", "not nothing_is_left")
"""What runs the executor within Python; figures of memory mean nothing there."""
NATIVE = ("tests/loading/test_native.py", "-k", "corpus or sanitizers")
COMMON = ("-m", "slow or not slow", "-p", "no:cacheprovider", "-q", "--timeout", "1200")


def library(folder: Path) -> Path:
    """The executor's library with sanitizers."""
    from litz.runtime.shipped import _FLAGS, library_source

    source, made = folder / "litz_runtime.cpp", folder / "litz_runtime.so"
    source.write_text(library_source())
    flags = (*_FLAGS, *SANITIZED, "-fno-sanitize=vptr")  # there is no information on types
    subprocess.run(["g++", *flags, str(source), "-o", str(made)], check=True)
    return made


def preloaded() -> str:
    """The sanitizers' libraries, which have to be there before Python's memory is."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        done = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True)
        found.append(done.stdout.strip())
    return " ".join(found)


def within(path: Path, arguments: Sequence[str]) -> int:
    """Run the tests in this process with another library of the executor."""
    import pytest

    from litz.targets import tools

    os.environ.pop("LD_PRELOAD")  # compilers are started without it
    tools.shipped = lambda: path
    return int(pytest.main([*COMMON, *arguments]))


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="litz-sanitize-") as folder:
        env = {
            **os.environ,
            "LD_PRELOAD": preloaded(),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
            "PYTHONMALLOC": "malloc",
        }
        command = [sys.executable, "-m", "tests.sanitize", "--within", str(library(Path(folder)))]
        first = subprocess.run([*command, *PYTHON, *arguments], env=env).returncode
    second = subprocess.run([sys.executable, "-m", "pytest", *COMMON, *NATIVE, *arguments])
    return first or second.returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["--within"]:
        sys.exit(within(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
