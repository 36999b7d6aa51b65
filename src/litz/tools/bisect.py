"""``litz bisect SCRIPT``: which part of a program Litz gets wrong, made small.

It runs the program again and again, each time in a process of its own.  First as it is: a graph
that fails to compile is found.  Then under ``verify``: the first kernel that is wrong.  Then with
fewer and fewer fusions (``fuel``): the one by which its exit status changes, or what it prints
where that is the same each time.  What was found is cut to few calls on short tensors and written
as a repro, which ``litz replay`` runs.  The exit status is 1 if something was found.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch.fx import symbolic_trace

from litz.dataclass import dataclass
from litz.errors import CompilationError, LitzError, VerificationError
from litz.graph.repro import example_input
from litz.options import make_options
from litz.report.collect import Collector
from litz.reporting import Listener
from litz.schedule.groups import Group
from litz.stages import Compiled
from litz.tools.commands import exit_status
from litz.tools.explain import run_script, takes_script
from litz.verify import replay
from litz.verify.report import Report, save
from litz.verify.shrink import Case, part, shrink, values_of

COMMAND: Final = (sys.executable, "-m", "litz.tools.bisect", "--once")
SECONDS: Final = 60.0
"""For which a program is made smaller."""


@dataclass(frozen=True)
class Fusion:
    """One kernel: the number of its graph in the run, its loop nests, and their graph nodes."""

    graph: int
    nests: tuple[str, ...]
    origins: tuple[str, ...]


def _fusion(made: Mapping[str, Any]) -> Fusion:
    return Fusion(int(made["graph"]), tuple(made["nests"]), tuple(made["origins"]))


@dataclass(frozen=True)
class Run:
    """One run of the program.

    error: the kind of Litz's error that it raised, or ''; message: the error's text, or what was
    found of a fusion; repro: the file that shows it.  kernels: those that each graph was fused to;
    merges: as many as a graph has at most.  ended: the last line of its standard error.
    """

    error: str = ""
    message: str = ""
    repro: str = ""
    kernels: tuple[Fusion, ...] = ()
    merges: int = 0
    status: int = 0
    printed: str = ""
    ended: str = ""


Runner = Callable[..., Run]
"""Runs the program with these variables; ``fusion=`` has it write a repro of one."""


def bisect(run: Runner, say: Callable[[str], object]) -> Run | None:
    """What is wrong with a program: the run that shows it, with a repro; None if nothing is."""
    first = run({})
    if first.error:
        return first
    why = f" ({first.ended})" if first.status and first.ended else ""
    say(f"as it is: exit status {first.status}{why}")
    if not first.merges and first.status >= 0:
        say("Litz compiles nothing in it")
        return None
    checked = run({"LITZ_VERIFY": "1"})
    if checked.error:
        return checked
    say("every kernel is right by itself (verify)")
    plain, again = run({"LITZ_FUEL": "0"}), run({"LITZ_FUEL": "0"})
    prints = plain.printed == again.printed

    def same(other: Run) -> bool:
        return other.status == plain.status and (not prints or other.printed == plain.printed)

    low, high = 0, first.merges or plain.merges  # a run that a signal ended says nothing
    runs = {low: plain, high: run({"LITZ_FUEL": str(high)})}
    if not prints:
        say("what it prints differs each time, so that its exit status counts alone")
    if same(runs[high]):
        say("without fusion it does the same")
        return None
    while high - low > 1:
        middle = (low + high) // 2
        runs[middle] = run({"LITZ_FUEL": str(middle)})
        low, high = (middle, high) if same(runs[middle]) else (low, middle)
        say(f"LITZ_FUEL={middle}: {'as' if low == middle else 'not as'} without fusion")
    made = [k for k in runs[high].kernels if k not in runs[low].kernels]
    # Fuel is counted by graph: of several that the same number changes, the first is shown.
    if made:
        return run({"LITZ_FUEL": str(high)}, fusion=made[0])
    ends = (f"LITZ_FUEL={n} ends with exit status {runs[n].status}" for n in (low, high))
    return replace(runs[high], message=", ".join(ends))


def runner(script: str, arguments: Sequence[str], folder: Path) -> Runner:
    """Runs of a script in processes of their own; repros go to ``folder``."""

    def run(variables: Mapping[str, str], fusion: Fusion | None = None) -> Run:
        own = {"LITZ_GRAPH_CACHE": "0", "LITZ_REPRO_DIR": str(folder), **variables}
        with tempfile.TemporaryDirectory() as place:
            told = Path(place) / "told.json"
            wanted = json.dumps(fusion and asdict(fusion))
            command = [*COMMAND, str(told), wanted, script, *arguments]
            with contextlib.suppress(OSError):  # a file is read from its beginning each time
                os.lseek(0, 0, os.SEEK_SET)
            done = subprocess.run(command, env=os.environ | own, capture_output=True)
            # A run that a signal ended tells nothing.
            found = json.loads(told.read_text()) if told.exists() else {"kernels": ()}
        said = done.stderr.decode(errors="replace").splitlines()
        seen = {
            "kernels": tuple(map(_fusion, found["kernels"])),
            "status": done.returncode,
            "printed": done.stdout.decode(errors="replace"),
            "ended": said[-1] if said else "",
        }
        return Run(**{**found, **seen})

    return run


# --- in the process that runs the program --------------------------------------------------------


def once(told: Path, fusion: Fusion | None, script: str, arguments: Sequence[str]) -> int:
    """Run the program and write what became of it; its exit status."""
    collector, status, found = Collector(), 0, Run()
    try:
        run_script(script, arguments, Listener(collector.hear, stages=True), collector)
    except SystemExit as e:
        status = exit_status(e)
    except Exception as e:
        traceback.print_exc()
        status = 1
        if isinstance(error := replay.litz_error(e), CompilationError | VerificationError):
            found = _of_error(error)
    if fusion is not None:
        found = _of_fusion(collector.compiled[fusion.graph], fusion.origins)
    sys.stdout.flush()
    kernels, merges = [], 0
    for n, c in enumerate(collector.compiled):
        for s in c.stages.parts():
            if s.schedule is not None and s.program is not None:
                groups = (k for k in s.schedule.steps if isinstance(k, Group))
                kernels += [asdict(Fusion(n, k.nodes, k.origins)) for k in groups]
                merges = max(merges, len(s.program.nodes))
    told.write_text(json.dumps({**asdict(found), "kernels": kernels, "merges": merges}))
    return status


def _of_error(error: CompilationError | VerificationError) -> Run:
    """The error, with its repro made small where that can be."""
    found = Run(type(error).__name__, str(error), error.repro or "")
    if not error.repro:
        return found
    scope = runpy.run_path(error.repro, run_name="repro")
    options: Mapping[str, Any] = scope["OPTIONS"]
    if isinstance(error, VerificationError):
        inputs = torch.load(str(error.inputs), weights_only=True)["inputs"]
        check, fails = "replay", _says(replay.replay, options)
    else:
        inputs, kind = scope["inputs"](), _kind(error)
        check = "builds"

        def fails(case: Case) -> bool:
            again = replay.failure(case.module, case.inputs, options)
            return again is not None and _kind(again) == kind

    case = Case(symbolic_trace(scope["Repro"]()), tuple(inputs))
    what = str(getattr(error, "message", error)).partition("\n")[0]
    return Run(found.error, found.message, _small(case, fails, what, options, check) or found.repro)


def _of_fusion(compiled: Compiled, names: tuple[str, ...]) -> Run:
    """The calls that one kernel computes, by themselves, fused and not."""
    graph, artifact = compiled.graph, compiled.stages.artifact
    options = {k: v for k, v in (artifact.options if artifact else {}).items() if k != "fuel"}
    at = Report(graph.graph, "", {}).lines(names)
    message = f"the fusion of {', '.join(names)}\n  in your code:\n{at}"
    given = (n for n in graph.graph.nodes if n.op == "placeholder")
    whole = Case(graph, tuple(example_input(n.meta.get("val")) for n in given))
    values = values_of(whole)
    if values is None:
        return Run("Fusion", message)
    what = f"fused, {', '.join(names)} give other numbers"
    own = [n for n in whole.calls if n.name in names]
    for calls in (own, whole.calls):  # by themselves they may be fused otherwise
        case = part(whole, calls, values)
        fails = _says(replay.fuses, options)
        if case and (path := _small(case, fails, what, options, "fuses")):
            return Run("Fusion", message, path)
    return Run("Fusion", f"{message}\n  It does not show in the graph's calls by themselves.")


def _kind(error: LitzError) -> tuple[str, str | None]:
    """By what two failures count as one."""
    return type(error.__cause__).__name__, getattr(error, "op", None)


def _says(check: Callable[..., int], options: Mapping[str, Any]) -> Callable[[Case], bool]:
    def fails(case: Case) -> bool:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return bool(check(case.module, case.inputs, options))
        except Exception:  # it fails in another way
            return False

    return fails


def _small(
    case: Case, fails: Callable[[Case], bool], what: str, options: Mapping[str, Any], check: str
) -> str:
    """Write the smallest program that fails; '' if this one does not by itself."""
    if not fails(case):
        return ""
    small = shrink(case, fails, SECONDS)
    folder = Path(make_options().repro_dir or ".")
    inputs = {"inputs": list(small.inputs)}
    return save(folder, small.module, inputs, what, options, check)[1] or ""


# --- the command ---------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz bisect", description=__doc__)
    takes_script(made)
    made.add_argument("--folder", default=".", help="where the repro goes")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    asked = parser().parse_args(arguments)
    found = bisect(runner(asked.file, asked.arguments, Path(asked.folder).resolve()), print)
    if found is None:
        print("nothing is wrong that could be found")
        return 0
    print(found.message)
    if found.repro:
        lines = len(Path(found.repro).read_text().splitlines())
        print(f"made small, {lines} lines: litz replay {Path(found.repro).parent}")
    return 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        given = json.loads(sys.argv[3])
        wanted = _fusion(given) if given else None
        sys.exit(once(Path(sys.argv[2]), wanted, sys.argv[4], sys.argv[5:]))
    sys.exit(main())
