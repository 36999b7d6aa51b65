"""``litz`` and ``python -m litz``: what the command line has, and completion of it in shells."""

from __future__ import annotations

import argparse
import difflib
import shlex
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
"""Each a module beside this one with ``main`` and, but for ``demo``, ``parser``."""


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
    elif name == "completion":
        print(completion(completion_parser().parse_args(rest).shell), end="")
    elif name in COMMANDS:
        module = import_module(f"litz.tools.{name}")
        return int(module.main() if name == "demo" else module.main(rest))
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0)[0]
        print(f"litz: no command {name!r}; did you mean {near!r}?", file=sys.stderr)
        return 2
    return 0


def overview() -> str:
    """The commands, a line each."""
    lines = [f"  {name:11} {what}" for name, what in COMMANDS.items()]
    return "\n".join(("litz COMMAND [--help]", "", *lines))


def completion_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz completion", description=COMMANDS["completion"])
    made.add_argument("shell", choices=("bash", "zsh", "fish"))
    return made


def words() -> dict[str, dict[str, str]]:
    """What may follow each command, and what each of it is."""
    found: dict[str, dict[str, str]] = {}
    for name in COMMANDS:
        known = found[name] = {"--help": "show what it takes"}
        if name == "demo":
            continue
        if name == "completion":
            parser = completion_parser()
        else:
            parser = import_module(f"litz.tools.{name}").parser()
        for action in parser._actions:
            options = [x for x in action.option_strings if x.startswith("--")]
            # Of sub-commands the choices are their parsers.
            known |= dict.fromkeys((*options, *(action.choices or ())), action.help or "")
    return found


def completion(shell: str) -> str:
    """A script for ``eval`` (bash, zsh) or ``source`` (fish)."""
    follow = words()
    if shell == "fish":
        lines = []
        for name, what in COMMANDS.items():
            first = "complete -c litz -n __fish_use_subcommand -f"
            lines.append(f"{first} -a {name} -d {shlex.quote(what)}")
            for word, about in follow[name].items():
                seen = f"complete -c litz -n '__fish_seen_subcommand_from {name}'"
                kind = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
                lines.append(f"{seen} {kind} -d {shlex.quote(about)}")
        return "\n".join(lines) + "\n"
    cases = "\n".join(f'    {name}) words="{" ".join(x)}" ;;' for name, x in follow.items())
    start = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{start}_litz() {{
  local words="{" ".join(COMMANDS)}"
  ((COMP_CWORD == 1)) || case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _litz litz
"""
