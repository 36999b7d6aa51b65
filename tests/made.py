"""Pages of docs that a command makes of prose and of what the code says."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def head(module: str) -> str:
    """The first line of a page that ``python -m tests.<module>`` makes of ``<module>.md``."""
    how = f"made by `python -m tests.{module} --write`; prose in `tests/{module}.md`"
    return f"<!-- {how} -->\n"


def main(module: str, about: str | None, place: Path, page: Callable[[], str]) -> int:
    """Print the page, with ``--write`` write it, with ``--check`` say whether it is in its place.

    The exit status is 1 where it is not.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.{module}", description=about)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = page()
    if args.write:
        place.write_text(text)
    elif not args.check:
        print(text)
    elif place.read_text() != text:
        print(f"{place.name} is not what comes out: python -m tests.{module} --write")
        return 1
    return 0
