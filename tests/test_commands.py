"""The command ``litz``: what it lists, what it runs, and what completes it in a shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import litz.tools
from litz import version
from litz.runtime.looking import look
from litz.tools.commands import COMMANDS, main
from litz.tools.compare import first_difference
from litz.tools.completion import completion, words


def test_every_tool_with_a_main_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    files = Path(litz.tools.__path__[0]).glob("*.py")
    tools = {f.stem for f in files if "\ndef main(" in f.read_text()} - {"commands"}
    assert tools == set(COMMANDS)
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in COMMANDS)


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explian"]) == 2
    assert "did you mean 'explain'" in capsys.readouterr().err


def test_what_follows_a_command_comes_from_its_parser() -> None:
    found = words()
    assert {"list", "verify", "import"} <= found["cache"].keys()
    assert {"--html", "--json"} <= found["explain"].keys()
    assert {"bash", "zsh", "fish"} <= found["completion"].keys()
    assert all("--help" in known for known in found.values())


def test_the_demo_says_what_it_is_and_does_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["demo", "--help"])
    assert "a small transformer" in capsys.readouterr().out


TYPED = {"litz ex": "explain", "litz cache ver": "verify", "litz profile --tr": "--trace"}


def installed(shell: str) -> str:
    if (path := shutil.which(shell)) is None:
        pytest.skip(f"no {shell}: see `make packages`")
    return path


@pytest.mark.parametrize(("typed", "expected"), TYPED.items())
def test_bash_completes(typed: str, expected: str) -> None:
    n = len(typed.split()) - 1
    run = f'COMP_WORDS=({typed}); COMP_CWORD={n}; _litz; echo "${{COMPREPLY[*]}}"'
    script = [installed("bash"), "-c", completion("bash") + run]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.stdout.split() == [expected], done.stderr


def test_fish_completes(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    # Instead of files, which follow them.
    some = {**TYPED, "litz completion ": "bash fish zsh", "litz cache export ": "a file"}
    ask = "".join(f"complete -C '{typed}' | cut -f1 | string join ' '\n" for typed in some)
    script = [installed("fish"), "--no-config", "-c", completion("fish") + ask]
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == list(some.values()) and not done.stderr


@pytest.mark.parametrize("setup", ["", "autoload -U compinit && compinit -u\n"])
def test_zsh_completes(setup: str, tmp_path: Path) -> None:
    """As its user types, in a bare shell and in one that has completion already."""
    (tmp_path / "script").write_text(setup + completion("zsh"))
    typed = "".join(f"zpty -w it $'{t}\\t\\C-a: \\n'; take\n" for t in TYPED)
    run = f"""
zmodload zsh/zpty
take() {{ local x; zpty -r it x $'*: litz*\\n*\\n'; print -r -- $x; }}
zpty it {installed("zsh")} -f -i
zpty -w it 'unsetopt zle_bracketed_paste; TERM=dumb; source script; print re''ady'
zpty -r it x '*ready*'; print -r -- $x
{typed}"""
    done = subprocess.run(
        [installed("zsh"), "-f", "-c", run],
        capture_output=True, text=True, timeout=60,
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert "not found" not in done.stdout, done.stdout
    for t, expected in TYPED.items():
        assert f"{t.rpartition(' ')[0]} {expected} " in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]), "the same numbers in other bits"),
        (
            torch.tensor([torch.inf, 1.0]),
            torch.tensor([5.0, 1.0]),
            "1 of 2 elements, by at most inf",
        ),
        (
            torch.tensor([torch.nan, 1.0]),
            torch.tensor([5.0, 3.0]),
            "2 of 2 elements, by at most nan",
        ),
        (torch.tensor([2**62]), torch.tensor([2**62 + 1]), "1 of 1 elements, by at most 1"),
        (torch.tensor([True]), torch.tensor([False]), "1 of 1 elements, by at most 1"),
    ],
)
def test_what_differs_between_runs(a: Tensor, b: Tensor, said: str, tmp_path: Path) -> None:
    for x, name in ((a, "a"), (b, "b")):
        look(0, True, "k", (), "", "save", str(tmp_path / name), ("x",), x)
    assert f"is not equal: {said}" in first_difference(tmp_path / "a", tmp_path / "b")


def test_ranks_come_in_their_order(tmp_path: Path) -> None:
    for run, ranks in (("a", (0, 1, 2, 10)), ("b", (10, 2, 1))):
        for n in ranks:
            folder, x = str(tmp_path / run / f"rank{n}"), torch.full((2,), len(ranks) * (n != 1))
            look(0, True, "k", (), "", "sum", folder, ("x",), x)
    said = first_difference(tmp_path / "a", tmp_path / "b").splitlines()
    assert [x.partition(":")[0] for x in said] == ["rank0", "rank2", "rank10"]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_what_is_deprecated_goes_in_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(litz.tools.__path__[0]).parent
    calls = r'\bdeprecated\([^)]*?"([0-9.]+)"\)'
    found = {v for f in place.rglob("*.py") for v in re.findall(calls, f.read_text(), re.DOTALL)}
    assert found and all(numbers(v) > numbers(version.__version__) for v in found)


def test_the_old_call_of_doctor_works_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    from litz.tools import doctor

    given: list[list[str]] = []
    monkeypatch.setattr(doctor, "main", lambda arguments: given.append(arguments) or 0)
    with pytest.warns(FutureWarning, match="goes away in version 0.3.0; call `litz doctor --json`"):
        assert main(["--json"]) == 0
    assert given == [["--json"]]
