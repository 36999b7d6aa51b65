"""Compiling programs, alone or several in a graph, and finding out which one differs."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
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
    """How a run under ``backend`` differs from eager's.

    Nothing is known of a program that eager refuses once it has drawn other random numbers.
    """
    p = p.with_draws
    if backend == "litz" and p.rng != "litz":
        options = {**(options or {}), "rng": p.rng}
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
            except Rejected:
                return []
            except Exception as e:
                intact(p.inputs[0].device)
                text = " ".join(str(e).split())[:400]
                return [Mismatch("raised", f"{type(e).__name__}: {text}")]
            if found:
                break
    return found


def intact(device: str) -> None:
    """Raise what a GPU says for good once a kernel went wrong: all that follows would seem so."""
    if device == "cuda":
        torch.cuda.synchronize()


def failure(p: Program) -> Failure | None:
    found = check(p)
    return Failure(p, tuple(found)) if found else None


@dataclass(frozen=True)
class Batch:
    """Programs of one graph, by their seeds."""

    seeds: tuple[str, ...]
    dynamic: bool = False
    grad: bool = False
    layers: bool = False
    device: str = "cpu"
    rng: str = "litz"

    def program(self, k: int) -> Program:
        return generate(
            self.seeds[k],
            dynamic=self.dynamic,
            grad=self.grad,
            layers=self.layers,
            device=self.device,
            rng=self.rng,
        )


def batch(seed: int, number: int, device: str = "cpu") -> Batch:
    """The number-th graph of a run.

    Dynamic sizes: one in ten, and one in twenty with gradients; gradients: one in five; mostly
    layers: one in three; torch's own stream of random numbers: one in four.
    """
    return Batch(
        tuple(f"{seed}:{number}:{k}" for k in range(BATCH)),
        dynamic=number % 10 == 3 or number % 20 == 9,
        grad=number % 5 == 4,
        layers=number % 3 == 1,
        device=device,
        rng="eager" if number % 4 == 2 else "litz",
    )


def runs(p: Program) -> bool:
    """Whether eager runs a program on its device: some operators lack types on GPUs."""
    try:
        with torch.device(p.inputs[0].device):
            for inputs in (p.inputs, p.others) if p.others else (p.inputs,):
                expectations(p, replay(p, inputs))
    except Exception:
        intact(p.inputs[0].device)
        return False
    return True


def quiet(_: str) -> None:
    pass


def unheard(_: Failure) -> None:
    pass


def run_batch(
    b: Batch,
    only: int | None = None,
    tell: Callable[[str], None] = quiet,
    suspect: Callable[[Failure], None] = unheard,
) -> tuple[int, list[Failure]]:
    """How many programs were compared, and those that differ, alone if they do so alone.

    only: one of the programs.  tell: is told what is going on, should the process end of it.
    suspect: is given the one program before it runs.
    """
    programs = []
    for k in range(len(b.seeds)) if only is None else (only,):
        tell(f"eager {b.seeds[k]}")
        p = b.program(k)
        if p.steps and (b.device == "cpu" or runs(p)):
            programs.append((b.seeds[k], p))
            if only is not None:
                suspect(Failure(p, ("ends its process",)))
                tell(f"eager, traced {b.seeds[k]}")
                _without_litz(p)
    failures: list[Failure] = []
    for grad in (False, True):
        alike = [(s, p) for s, p in programs if p.grad == grad]
        if not alike:
            continue
        whole = merged([p for _, p in alike])
        tell(f"litz {alike[0][0].rpartition(':')[0]}")
        try:
            if not differences(whole, "litz", OPTIONS):
                continue
        except Rejected:  # by what other random numbers than alone make of one
            pass
        alone = []
        for s, p in alike:
            tell(f"litz {s}")
            try:
                found = failure(p)
            except Rejected:
                continue
            alone += [] if found is None else [found]
        failures += alone
        if not alone:
            tell(f"litz {alike[0][0].rpartition(':')[0]}")
            together = _together(whole)
            failures += [] if together is None else [together]
    return len(programs), failures


def _without_litz(p: Program) -> None:
    """Run what Dynamo and AOTAutograd make of a program: it may end the process by itself."""
    try:
        differences(p, "aot_eager", None)
    except Exception:
        intact(p.inputs[0].device)


def _together(whole: Program) -> Failure | None:
    try:
        return failure(whole)
    except Rejected:
        return None
