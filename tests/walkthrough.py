"""``python -m tests.walkthrough --write``: docs/architecture.md, with the text of every stage.

The prose stands in ``walkthrough.md``; a line ``<<softmax schedule>>`` in it becomes what Litz
makes there of the program ``softmax``.  ``--check`` fails where the page is not what comes out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.fx import GraphModule

from litz.graph.dialect import RULES, rule_name
from litz.host.lines import host_text
from litz.ir.text import program_text
from litz.kernel.text import plan_text
from litz.schedule.text import schedule_text
from litz.stages import Stages
from litz.targets.kernels import Kernel, make_kernels
from litz.targets.triton.target import Triton
from tests import made
from tests.replay.corpus import Entry
from tests.replay.record import record

TEXT = Path(__file__).with_suffix(".md")
PAGE = made.ROOT / "docs" / "architecture.md"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.125, -1)


def step(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(F.gelu(x @ weight), target)


def rand(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.rand(*shape).requires_grad_(grad)


PROGRAMS = {
    "softmax": Entry(lambda: (softmax, (rand(64, 1000),))),
    "step": Entry(
        lambda: (step, (rand(32, 64), rand(64, 16, grad=True), rand(32, 16))), training=True
    ),
}


@dataclass(frozen=True)
class Shown:
    """A graph as AOTAutograd gave it, after Litz's passes, and what the stages made of it."""

    before: GraphModule
    after: GraphModule
    stages: Stages


def graph(gm: GraphModule) -> str:
    text = gm.print_readable(print_output=False, include_stride=False, include_device=False)
    lines = [line for line in text.splitlines() if line.strip() and "# File:" not in line]
    return "\n".join(line for line in lines if not line.lstrip().startswith("# No stacktrace"))


def program(s: Shown) -> str:
    assert s.stages.program is not None
    return program_text(s.stages.program)


def schedule(s: Shown) -> str:
    assert s.stages.schedule is not None
    return schedule_text(s.stages.schedule)


def on_gpu(s: Shown) -> tuple[Kernel, ...]:
    assert s.stages.schedule is not None
    return make_kernels(s.stages.schedule, lambda _: Triton())[1]


def recipes(kernels: Sequence[Kernel]) -> str:
    """Without the plans, which stand above them."""
    return "\n\n".join(re.sub(r"(?ms)^kernel .*?^}\n", "", k.recipe.text) for k in kernels)


def triton(s: Shown) -> str:
    kernels = [k.triton for k in on_gpu(s) if k.triton is not None]
    return "\n\n".join(launch.source for t in kernels for launch in t.launches)


def host(s: Shown) -> str:
    assert s.stages.host is not None
    return host_text(s.stages.host)


def code(s: Shown) -> str:
    assert s.stages.source is not None
    return s.stages.source.source


STAGES: dict[str, tuple[str, Callable[[Shown], str]]] = {
    "traced": ("python", lambda s: graph(s.before)),
    "graph": ("python", lambda s: graph(s.after)),
    "program": ("", program),
    "schedule": ("", schedule),
    "plan": ("", lambda s: "\n\n".join(plan_text(k.plan) for k in s.stages.kernels)),
    "lanes": ("", lambda s: recipes(s.stages.kernels)),
    "blocks": ("", lambda s: recipes(on_gpu(s))),
    "cpp": ("cpp", lambda s: "\n".join(k.source for k in s.stages.kernels)),
    "triton": ("python", triton),
    "host": ("", host),
    "code": ("python", code),
}


def page() -> str:
    """The text with what the stages print in its places."""
    shown: dict[str, list[Shown]] = {}
    for name, entry in PROGRAMS.items():
        graphs = shown[name] = []
        record(entry, lambda *seen, graphs=graphs: graphs.append(Shown(*seen)))  # type: ignore[misc]

    def fill(m: re.Match[str]) -> str:
        name, number, stage = m["name"], int(m["number"] or 0), m["stage"]
        if stage == "rules":
            texts = {rule_name(r): " ".join(str(r.__doc__).split()) for r in RULES}
            return "\n".join(f"* **{name}**: {text}" for name, text in texts.items())
        language, show = STAGES[stage]
        return f"```{language}\n{show(shown[name][number]).strip()}\n```"

    place = r"^<<(?P<name>\w+?)(?P<number>\d?) (?P<stage>\w+)>>$"
    text = re.sub(place, fill, TEXT.read_text(), flags=re.MULTILINE)
    return made.head("walkthrough") + text


if __name__ == "__main__":
    sys.exit(made.main("walkthrough", __doc__, PAGE, page))
