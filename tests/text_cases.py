"""Text tests of passes: one file a test, with a command, an input program and the expected text.

A file reads ``command: NAME``, then the input, then a line ``=====`` and what the command prints.
The input is a program, or for ``graph`` a Python function of ATen calls (see ``graph_cases``).
``python tests/text_cases.py`` rewrites the expected parts; read the diff before you commit it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import graph_cases
import torch

from litz.errors import LitzError
from litz.host.lines import host_text
from litz.host.memory import plan_memory
from litz.host.plan import plan as plan_host
from litz.ir.parse import ParseError, parse
from litz.ir.program import Program
from litz.ir.text import program_text
from litz.ir.verify import verify
from litz.kernel.blocks.choose import choose
from litz.kernel.build import build_kernel
from litz.kernel.text import plan_text
from litz.passes.convolve import TakeConvolutions
from litz.passes.pipeline import pipeline, run_passes
from litz.schedule.build import schedule
from litz.schedule.groups import Group
from litz.schedule.text import schedule_text
from litz.targets.cpp.target import Cpp
from litz.targets.horizontal import arranged, make_all
from litz.targets.kernels import Target, bind_plans
from litz.targets.triton.launcher import print_launcher
from litz.targets.triton.render import NAME, named, render
from litz.targets.triton.target import Triton

FOLDER = Path(__file__).parent / "text"
BAR = "\n=====\n"


def resolve(name: str) -> object:
    """``aten.mm.default`` to the operator."""
    found: object = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _kernels(p: Program) -> str:
    s = schedule(p)
    plans = [build_kernel(g, p.buffers) for g in s.steps if isinstance(g, Group)]
    return "\n".join(f"# {', '.join(b.buffers)}\n{plan_text(b.plan)}" for b in plans)


def _host(p: Program) -> str:
    from litz.host.lines import CallKernel

    s = schedule(p)
    calls = {}
    for g in s.steps:
        if isinstance(g, Group):
            b = build_kernel(g, p.buffers)
            calls[g.name] = CallKernel(g.name, b.buffers, b.ints, g.name)
    return host_text(plan_memory(plan_host(s, calls)))


def _triton(p: Program) -> str:
    s = schedule(p)
    out = []
    for g in s.steps:
        if isinstance(g, Group):
            bound = build_kernel(g, p.buffers)
            kernel = named(render(choose(bound.plan), NAME), g.name, " ".join(g.origins))
            configs = [x.configs[0] for x in kernel.launches]
            out += [source for x in kernel.launches for source in x.sources()]
            out.append(print_launcher(kernel, configs))
    return "\n".join(out)


def _horizontal(p: Program) -> str:
    """The order of steps, the horizontal groups, and the kernels of these."""
    s = schedule(p)
    targets: dict[str, Target] = {"cpu": Cpp(lambda: 8), "cuda": Triton()}
    bound = bind_plans(s)
    found = arranged(s, bound, targets.__getitem__, {}, check=True)
    calls, kernels = make_all(found, bound, targets.__getitem__)
    out = [", ".join(step.name for step in found.steps)]
    out += [x for x in schedule_text(found).split("\n") if x.startswith("horizontal ")]
    for k in (k for k in kernels if k.bodies):
        out += [f"\n# {', '.join(calls[k.groups[0]].buffers)}\n{k.source}"]
        if k.triton is not None:
            out.append(print_launcher(k.triton, [x.configs[0] for x in k.triton.launches]))
    return "\n".join(out)


def _verify(p: Program) -> str:
    verify(p, "input")
    return "valid"


CONVOLUTIONS = TakeConvolutions(("cuda",), built=True)
PASSES = pipeline(("cuda",), convolved=("cuda",))
COMMANDS: dict[str, Callable[[Program], str]] = {
    "print": program_text,
    "passes": lambda p: program_text(run_passes(p, PASSES, check=True)),
    "convolutions": lambda p: program_text(CONVOLUTIONS(p)),
    "schedule": lambda p: schedule_text(schedule(p), reasons=True),
    "kernels": _kernels,
    "host": _host,
    "horizontal": _horizontal,
    "triton": _triton,
    "verify": _verify,
}


def run(text: str) -> tuple[str, str]:
    """What a test file expects, and what its command prints."""
    given, _, expected = text.partition(BAR)
    first, _, source = given.partition("\n")
    command = first.removeprefix("command:").strip()
    try:
        if command == "graph":
            actual = graph_cases.passes(source)
        else:
            actual = COMMANDS[command](parse(source, resolve=resolve))
    except (ParseError, LitzError) as e:
        actual = f"{type(e).__name__}: {e}"
    return expected.rstrip("\n"), actual.rstrip("\n")


def cases() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


if __name__ == "__main__":
    for path in cases() if len(sys.argv) == 1 else [Path(a) for a in sys.argv[1:]]:
        body = path.read_text()
        path.write_text(body.partition(BAR)[0] + BAR + run(body)[1] + "\n")
