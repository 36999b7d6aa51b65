"""Compiling programs, alone or several in a graph, and finding out which one differs."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz.compare import Mismatch, compare, expectations
from tests.fuzz.generate import generate
from tests.fuzz.machine import Rejected, replay
from tests.fuzz.program import Program, function, merged

BATCH = 8
# What Dynamo needs to trace results whose size is data.
DATA_SIZES = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
OPTIONS = {"check_ir": True, "repro_dir": tempfile.gettempdir()}


@dataclass(frozen=True)
class Failure:
    """A program that differs from eager, and how."""

    program: Program
    mismatches: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The first word or two of the first mismatch, to compare failures while shrinking."""
        first = self.mismatches[0]
        if first.startswith("raised"):
            return first[:60]
        return first.split()[0].rstrip(":")


def check(p: Program) -> list[str]:
    """How the compiled program differs from eager; raises if eager itself refuses it.

    What differs without Litz too (Dynamo and AOTAutograd with eager kernels) is not counted.
    """
    found = differences(p, "litz", OPTIONS)
    if not found:
        return []
    others = differences(p, "aot_eager", None)
    if others and others[0].what == "raised":
        return []
    own = {x.what for x in others}
    return [str(x) for x in found if x.what not in own]


def differences(p: Program, backend: str, options: dict[str, Any] | None) -> list[Mismatch]:
    """How a run under ``backend`` differs from eager's."""
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        if any(i.device == "cuda" for i in p.inputs):
            stack.enter_context(torch.device("cuda"))
        sizes = (p.inputs, p.others) if p.others else (p.inputs,)
        calls = [(i, expectations(p, m := replay(p, i)), m) for i in sizes]
        torch._dynamo.reset()
        stack.enter_context(torch._dynamo.config.patch(DATA_SIZES))
        compiled = torch.compile(
            function(p),
            backend=backend,
            fullgraph=True,
            dynamic=bool(p.others),
            options=options,
        )
        found: list[Mismatch] = []
        for inputs, wanted, m in calls:
            try:
                found += compare(p, inputs, compiled, m, wanted)
            except Exception as e:
                text = " ".join(str(e).split())[:400]
                return [Mismatch("raised", f"{type(e).__name__}: {text}")]
            if found:
                break
    return found


def failure(p: Program) -> Failure | None:
    found = check(p)
    return Failure(p, tuple(found)) if found else None


@dataclass(frozen=True)
class Batch:
    """Programs of one graph, by their seeds."""

    seeds: tuple[str, ...]
    dynamic: bool = False
    grad: bool = False
    device: str = "cpu"

    def programs(self) -> list[Program]:
        how = {"dynamic": self.dynamic, "grad": self.grad, "device": self.device}
        made = [generate(s, **how) for s in self.seeds]
        return [p for p in made if p.steps]


def batch(seed: int, number: int, device: str = "cpu") -> Batch:
    """The number-th graph of a run: one in ten of dynamic sizes, one in five with gradients."""
    seeds = tuple(f"{seed}:{number}:{k}" for k in range(BATCH))
    return Batch(seeds, dynamic=number % 10 == 3, grad=number % 5 == 4, device=device)


def runs(p: Program) -> bool:
    """Whether eager runs a program on its device: some operators lack types on GPUs."""
    try:
        with torch.device(p.inputs[0].device):
            for inputs in (p.inputs, p.others) if p.others else (p.inputs,):
                expectations(p, replay(p, inputs))
    except (Rejected, RuntimeError):
        if p.inputs[0].device == "cuda":
            # After a fault on the GPU all that follows would seem refused: the worker ends here.
            torch.cuda.synchronize()
        return False
    return True


def run_batch(b: Batch) -> tuple[int, list[Failure]]:
    """How many programs were compared, and those that differ, alone if they do so alone."""
    programs = [p for p in b.programs() if b.device == "cpu" or runs(p)]
    failures: list[Failure] = []
    for grad in (False, True):
        alike = [p for p in programs if p.grad == grad]
        if not alike:
            continue
        whole = merged(alike)
        if differences(whole, "litz", OPTIONS):
            alone = [f for p in alike if (f := failure(p)) is not None]
            together = None if alone else failure(whole)
            failures += alone if together is None else [together]
    return len(programs), failures
