"""``litz replay FOLDER``: run a saved repro; the exit status is 1 if the fault shows."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from litz.tools.commands import exit_status


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz replay", description=__doc__)
    made.add_argument("folder", help="the folder of a repro, or its file")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    path = Path(parser().parse_args(arguments).folder)
    path = path / "repro.py" if path.is_dir() else path
    if not path.is_file():
        print(f"litz replay: there is no repro in {path}", file=sys.stderr)
        return 2
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as e:
        return exit_status(e)
    return 0
