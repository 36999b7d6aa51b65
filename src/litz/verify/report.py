"""What users see of a wrong kernel: its nodes, their lines, the figures, and a saved repro."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from litz.dataclass import dataclass
from litz.errors import VerificationError
from litz.index import Expr
from litz.ir.text import marked
from litz.verify.compare import Difference
from litz.verify.reference import RULES
from litz.verify.targets import Key, Target

aten = torch.ops.aten
AROUND = 12
"""Lines of a kernel's text that an error shows on each side of the marked one."""


@dataclass(frozen=True)
class WatchedStep:
    """One call of the host program.

    kernel: its name (of an extern: the operator).  before, after: the buffers that the probes
    around it show.  numbers: integers that it makes.  written: the buffers whose memory it writes.
    origins: names of graph nodes.  lines: its text in the schedule.
    """

    kernel: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    numbers: tuple[Expr, ...]
    written: frozenset[str]
    origins: tuple[str, ...]
    lines: Callable[[], list[str]]

    def marked(self, buffer: str, message: str) -> str:
        """What it computes, the message under the line that stores the buffer."""
        lines = self.lines()
        stores = (k for k, x in enumerate(lines) if x.lstrip().startswith(f"store {buffer}["))
        at = next(stores, 0)
        if at > AROUND:
            lines[1 : at - AROUND] = ["  ..."]
            at = AROUND + 2
        lines[at + AROUND :] = ["  ..."] * (len(lines) > at + AROUND)
        return "\n".join(marked(lines, at, message))


@dataclass(frozen=True)
class Finding:
    """A wrong value.  why: what is wrong where that is no difference of numbers."""

    target: Target
    difference: Difference | None
    why: str
    actual: torch.Tensor
    exact: torch.Tensor | None
    leaves: dict[Key, Any]

    @property
    def node(self) -> Node:
        return self.target.key[0]

    def text(self) -> str:
        d = self.difference
        if d is None:
            return self.why
        if d.index is None:
            return (
                f"relative error {d.error:.3g} over the whole tensor; "
                f"rounding explains {d.tolerance:.3g}"
            )
        return (
            f"{d.wrong} of {d.numel} elements are wrong, first at index {d.index}: "
            f"{d.actual!r} instead of {d.exact!r} (eager: {d.eager!r}); "
            f"error {d.error:.3g}, tolerance {d.tolerance:.3g}"
        )


@dataclass(frozen=True)
class Report:
    """Makes the errors of one graph.  folder: where to save; options: of the compile."""

    graph: Graph
    folder: str
    options: Mapping[str, object]

    def error(
        self, message: str, kernel: str, detail: str, origins: Sequence[str]
    ) -> VerificationError:
        """An error that no repro of a few nodes would show: it is about memory."""
        return VerificationError(
            message,
            kernel=kernel,
            nodes=tuple(origins),
            detail=detail,
            user_stack=self.lines(origins),
        )

    def wrong(
        self,
        step: WatchedStep | None,
        number: int,
        findings: Sequence[Finding],
        hints: Iterable[str],
    ) -> VerificationError:
        """The error for wrong values after a step (of which the first is described)."""
        first = findings[0]
        if step is None:
            what = f"{first.node.name}, a view of an input, is wrong before any kernel runs"
        else:
            what = f"kernel {step.kernel} (step {number}) computes a wrong {first.node.name}"
        origins = () if step is None else step.origins
        names = dict.fromkeys((*origins, *(n.name for n in first.target.nodes)))
        inputs, repro = self.save(what, findings)
        return VerificationError(
            what,
            kernel="" if step is None else step.kernel,
            nodes=tuple(names),
            detail="\n  ".join((first.text(), *hints)),
            ir="" if step is None else step.marked(first.target.binding.ref.buffer, first.text()),
            others=tuple(f.node.name for f in findings[1:]),
            user_stack=self.lines(tuple(names)),
            inputs=inputs,
            repro=repro,
        )

    def lines(self, names: Sequence[str]) -> str:
        """The user's source lines of some nodes: the innermost of each, once."""
        wanted = frozenset(names)
        found: dict[str, None] = {}
        for n in self.graph.nodes:
            stack = (n.meta.get("stack_trace") or "").rstrip().splitlines()
            if n.name in wanted and stack:
                at = max((k for k, x in enumerate(stack) if x.lstrip().startswith("File ")))
                found["\n".join(stack[at:])] = None
        return "\n".join(found)

    # --- repro -----------------------------------------------------------------------------

    def save(self, what: str, findings: Sequence[Finding]) -> tuple[str | None, str | None]:
        """Paths of the saved inputs and of the repro, None where nothing can be written."""
        known = [f for f in findings if f.target.nodes]
        if not known:
            return None, None
        gm, leaves = subgraph(known)
        saved = {
            "inputs": leaves,
            "wrong": [f.actual.detach().clone() for f in known],
            "exact": [f.exact for f in known],
        }
        return save(Path(self.folder or "."), gm, saved, f"{what}: {known[0].text()}", self.options)


def save(
    folder: Path,
    gm: GraphModule,
    saved: Mapping[str, Any],
    what: str,
    options: Mapping[str, object],
    check: str = "replay",
) -> tuple[str | None, str | None]:
    """Write a repro into a folder of its own in ``folder``; paths as of ``Report.save``.

    saved: what goes into the file of inputs, under ``inputs`` those of ``gm``.  check: the function
    of ``litz.verify.replay`` that shows the fault.
    """
    inputs = saved["inputs"]
    given = {k: v for k, v in options.items() if k != "verify"}
    text = _text(gm, what, given, _environment(inputs, given), check)
    place = folder / ("litz_wrong_" + hashlib.sha256(text.encode()).hexdigest()[:10])
    try:
        place.mkdir(parents=True, exist_ok=True)
        torch.save(saved, place / "inputs.pt")
        (place / "repro.py").write_text(text)
    except OSError:
        return None, None
    return str(place / "inputs.pt"), str(place / "repro.py")


def subgraph(findings: Sequence[Finding]) -> tuple[GraphModule, list[Any]]:
    """The nodes that compute the wrong values, as a module of its own, and what it is called on."""
    graph = Graph()
    new: dict[Node, Any] = {}
    drawn: dict[Node, Node] = {}
    inputs: list[Any] = []
    for f in findings:
        for (n, position), value in f.leaves.items():
            known = new if position is None else drawn
            if n not in known:
                known[n] = graph.placeholder(f"{n.name}_drawn" if position else n.name)
                inputs.append(value)
    # Placeholders first, then the nodes in the order of the graph.
    wanted = {n for f in findings for n in f.target.nodes}
    for n in (m for m in findings[0].node.graph.nodes if m in wanted and m not in new):
        if n.target in RULES:
            x, p = new[n.args[0]], float(n.args[1])
            kept = graph.call_function(aten.mul.Tensor, (x, drawn[n]))
            scale = 0.0 if p == 1 else 1 / (1 - p)
            new[n] = (graph.call_function(aten.mul.Tensor, (kept, scale)), drawn[n])
        elif n.args and isinstance(new.get(n.args[0]), tuple):
            new[n] = new[n.args[0]][n.args[1]]
        else:
            new[n] = graph.node_copy(n, lambda m: new[m])
            new[n].meta = {}
    graph.output(tuple(new[f.node] for f in findings))
    return GraphModule({}, graph), inputs


def _environment(inputs: Sequence[Any], options: Mapping[str, object]) -> str:
    """What has to be set before Triton is imported to run its kernels on the CPU."""
    on_gpu = any(isinstance(x, torch.Tensor) and x.device.type != "cpu" for x in inputs)
    if options.get("target") != "triton" or on_gpu:
        return ""
    return 'import os\n\nos.environ["TRITON_INTERPRET"] = "1"\n\n'


_TEXT = '''"""{what}

Run this file with Python to see it again: inputs.pt beside it holds the kernel's inputs.
"""

{environment}import sys
from pathlib import Path

import torch
from torch import device, inf, nan, tensor  # noqa: F401  (names that the graph may use)

import litz  # noqa: F401
from litz.verify.replay import {check}


{module}

OPTIONS = {options}

if __name__ == "__main__":
    saved = torch.load(Path(__file__).with_name("inputs.pt"), weights_only=True)
    sys.exit({check}(Repro(), saved["inputs"], OPTIONS))
'''


def _text(
    gm: GraphModule, what: str, options: Mapping[str, object], environment: str, check: str
) -> str:
    code = gm.print_readable(print_output=False, include_stride=False, include_device=False)
    lines = [
        line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    first = next(k for k, line in enumerate(lines) if line.startswith("class "))
    lines[first] = "class Repro(torch.nn.Module):"
    module = "\n".join(lines)
    what = what.replace('"""', "'''")
    return _TEXT.format(
        what=what, environment=environment, module=module, options=dict(options), check=check
    )
