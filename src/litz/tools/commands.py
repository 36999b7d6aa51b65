"""``litz`` and ``python -m litz``: what the command line has."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final

from litz.version import __version__, deprecated

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bisect": "find what Litz gets wrong in a program, and make it small",
        "cache": "list, check, clear, export and import compiled code",
        "compare": "find where two runs that were looked at differ first",
        "completion": "print what completes these commands in a shell",
        "demo": "compile a small transformer, check it and time it",
        "doctor": "say what this machine has and lacks, and what mends it",
        "explain": "run a program and report what was made of it",
        "package": "compile an exported program to one file",
        "profile": "run a program and report where its time goes",
        "replay": "run a saved repro",
    }
)
"""Each a module beside this one with ``main`` and ``parser``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(overview())
        return 0
    if given[0] == "--json":
        deprecated("`litz --json`", "call `litz doctor --json`", "0.3.0")
        given = ["doctor", *given]
    name, *rest = given
    if name == "--version":
        print(f"litz {__version__}")
        return 0
    if name in COMMANDS:
        return int(import_module(f"litz.tools.{name}").main(rest))
    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0)[0]
    print(f"litz: no command {name!r}; did you mean {near!r}?", file=sys.stderr)
    return 2


def overview() -> str:
    """The commands, a line each."""
    lines = [f"  {name:11} {what}" for name, what in COMMANDS.items()]
    return "\n".join(("litz COMMAND [--help]", "", *lines))


def exit_status(e: SystemExit) -> int:
    """What a process that ends by it says."""
    return e.code if isinstance(e.code, int) else int(e.code is not None)
