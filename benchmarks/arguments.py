"""Arguments that several benchmarks take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def names(text: str) -> tuple[str, ...]:
    """The parts between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def described(module: str, text: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m benchmarks.<module>``; ``--help`` shows the text as it is."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_only(parser: argparse.ArgumentParser, known: Collection[str]) -> None:
    """``--only``: some of the ``known`` workloads."""
    parser.add_argument(
        "--only", type=_known(known), metavar="NAME,...", help="these workloads", default=()
    )


def _known(workloads: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        wanted = names(text)
        unknown = [name for name in wanted if name not in workloads]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"no such workload: {', '.join(unknown)}; there are {', '.join(workloads)}"
            )
        return wanted

    return parse
