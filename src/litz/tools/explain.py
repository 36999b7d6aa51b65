"""``litz.explain`` and ``litz explain FILE``: what a compilation made of a program, and why."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from litz.backend import compile_with
from litz.dataclass import dataclass
from litz.dynamo import apart, heard_breaks
from litz.options import Options, make_options
from litz.report.collect import Collector
from litz.report.gather import plain_name
from litz.report.record import Report, from_json
from litz.report.text import report_text
from litz.reporting import Listener
from litz.runtime.meeting import rank
from litz.stages import Compiled, Stages
from litz.targets.kernels import Kernel

HEAD = 3
"""Lines of a report that each of several processes prints."""


@dataclass(frozen=True)
class ExternReport:
    """An operator that ATen runs: its name, why, and how often it is called."""

    op: str
    reason: str
    calls: int


@dataclass(frozen=True)
class Explanation:
    """All graphs of one run.  result: what the function returned.  ``str`` gives the report.

    A backward graph is there as soon as it has run, whoever runs it.
    """

    result: Any
    collector: Collector
    title: str
    options: Options

    @property
    def graphs(self) -> tuple[Compiled, ...]:
        """What was compiled, in order, with all that each stage made."""
        return tuple(self.collector.compiled)

    @property
    def report(self) -> Report:
        """All of it as plain data, with ``to_json``."""
        return self.collector.report(self.title, self.options)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The distinct kernels of all graphs."""
        found = {k.name: k for g in self.graphs for s in g.stages.parts() for k in s.kernels}
        return tuple(found.values())

    @property
    def externs(self) -> tuple[ExternReport, ...]:
        """Operators left to ATen, each with its reason, most calls first."""
        count = Counter[tuple[str, str]]()
        for g in self.graphs:
            for e in (e for s in g.stages.parts() for e in s.externs()):
                count[plain_name(e), e.reason] += 1
            if g.stages.fallback:
                count[f"the whole {g.kind} graph", g.stages.fallback] += 1
        rows = [ExternReport(op, why, n) for (op, why), n in count.items()]
        return tuple(sorted(rows, key=lambda r: (-r.calls, r.op)))

    def __str__(self) -> str:
        return report_text(self.report)


def title_of(fn: Any) -> str:
    """What a report calls a function or module."""
    if isinstance(fn, torch.nn.Module):
        return type(fn).__name__
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__)


def explain(
    fn: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    html: str = "",
    backward: bool = False,
) -> Explanation:
    """Compile and run ``fn`` once, and its backward pass if asked to; see ``litz.explain``."""
    collector, made = Collector(), make_options(options)

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Any:
        def observe(kind: str, graph: GraphModule, stages: Stages) -> None:
            collector.hear(Compiled(kind, graph, stages))

        return compile_with(gm, inputs, made, observe)

    with apart() as compile, heard_breaks(collector.hear_break):
        compiled: Any = compile(fn, backend=backend)
        result = compiled(*args, **kwargs)
        if backward:
            _run_backward(result)
    found = Explanation(result, collector, title_of(fn), made)
    if html:
        write_page(found.report, html)
    return found


def _run_backward(result: Any) -> None:
    """Run the backward pass of all results for gradients of one that nobody gets."""
    tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    ends = [x for x in tensors if x.grad_fn is not None]
    todo: list[Any] = [x.grad_fn for x in ends]
    seen, leaves = set(todo), []
    while todo:
        node = todo.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    if leaves:
        given = [torch.ones_like(x) for x in ends]
        torch.autograd.grad(ends, leaves, given, allow_unused=True)


def write_page(report: Report, file: str) -> None:
    """Write a report as one page of HTML that needs nothing else."""
    from litz.report.html import report_page  # only who asks for it pays

    write(file, report_page(report))


def write(file: str, text: str) -> None:
    """Write a file that was asked for; ranks behind the first to ``name.rankN.suffix`` beside."""
    path = Path(file)
    if mine := rank():
        path = path.with_suffix(f".rank{mine}{path.suffix}")
    path.write_text(text, encoding="utf-8")


def script_title(path: str) -> str:
    """What the report of a program is called."""
    return Path(path).name + ("" if (mine := rank()) is None else f", rank {mine}")


def say(text: str) -> None:
    """Print a report; ranks behind the first print its head alone."""
    lines = text.splitlines()
    said = "\n".join(lines[:HEAD] if rank() else lines)
    print(f"{said}\n", end="", flush=True)  # at once: ranks share the terminal


def run_script(
    path: str, arguments: Sequence[str], listener: Listener, collector: Collector
) -> None:
    """Run a Python program, heard by a listener and, of graph breaks, by a collector.

    What the program raises, its exit too, goes through.
    """
    program = ModuleType("__main__")
    program.__file__ = path
    # What it made lives to the end of the process, as it would without us: threads of PyTorch's
    # process groups wait for each other where a model goes before that.
    sys.modules[path] = program
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    sys.argv, sys.modules["__main__"] = [path, *arguments], program
    sys.path.insert(0, str(Path(path).resolve().parent))  # as Python itself does
    try:
        with listener, heard_breaks(collector.hear_break):
            code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
            exec(code, vars(program))
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before


def explain_script(path: str, arguments: Sequence[str] = ()) -> Report:
    """Run a Python program and report all that ``backend="litz"`` compiled in it."""
    collector = Collector()
    run_script(path, arguments, Listener(collector.hear, stages=True), collector)
    return collector.report(script_title(path), make_options())


def takes_script(made: argparse.ArgumentParser, what: str = "a Python program to run") -> None:
    """The arguments of a command that runs a program: its file, and what the program is given."""

    def existing(path: str) -> str:
        if not Path(path).is_file():
            raise argparse.ArgumentTypeError(f"there is no file {path}")
        return path

    made.add_argument("file", type=existing, help=what)
    about = "what the program is given; behind -- if it begins with a dash"
    made.add_argument("arguments", nargs="*", help=about)


def takes_files(made: argparse.ArgumentParser) -> None:
    """The arguments of a command that writes a report."""
    made.add_argument("--json", metavar="FILE", help="write the report as JSON")
    made.add_argument("--html", metavar="FILE", help="write the report as a page")


def write_files(report: Report, asked: argparse.Namespace) -> None:
    """Write a report to the files that ``takes_files`` was given."""
    if asked.json:
        write(asked.json, report.to_json(1))
    if asked.html:
        write_page(report, asked.html)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz explain", description=__doc__)
    takes_script(made, "a Python program to run, or a report that --json wrote")
    takes_files(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    asked = parser().parse_args(arguments)
    if asked.file.endswith(".json"):
        report = from_json(Path(asked.file).read_text())
    else:
        report = explain_script(asked.file, asked.arguments)
    write_files(report, asked)
    say(report_text(report))
    return 0
