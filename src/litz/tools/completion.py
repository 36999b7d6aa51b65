"""``litz completion SHELL``: print what completes these commands in a shell."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from litz.tools.commands import COMMANDS

# Zsh's own completion first: a bare zsh has not begun it.
ZSH: Final = """\
(( $+functions[compdef] )) || { autoload -U compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""


def words() -> dict[str, dict[str, str]]:
    """What may follow each command, and what each of it is."""
    found: dict[str, dict[str, str]] = {}
    for name in COMMANDS:
        known = found[name] = {}
        for action in import_module(f"litz.tools.{name}").parser()._actions:
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
            choices = " ".join(x for x in follow[name] if not x.startswith("--"))
            seen = f"__fish_seen_subcommand_from {name}"
            for word, about in follow[name].items():
                if word.startswith("--"):
                    where, kind = f"'{seen}'", f"-l {word[2:]}"
                else:  # instead of files, until one is there
                    where = f"'{seen}; and not __fish_seen_subcommand_from {choices}'"
                    kind = f"-f -a {word}"
                lines.append(f"complete -c litz -n {where} {kind} -d {shlex.quote(about)}")
        return "\n".join(lines) + "\n"
    cases = "\n".join(f'    {name}) words="{" ".join(x)}" ;;' for name, x in follow.items())
    return f"""{ZSH if shell == "zsh" else ""}_litz() {{
  local words="{" ".join(COMMANDS)}"
  ((COMP_CWORD == 1)) || case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _litz litz
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz completion", description=__doc__)
    made.add_argument("shell", choices=("bash", "zsh", "fish"))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    print(completion(parser().parse_args(arguments).shell), end="")
    return 0
