"""The graphs that are compiled again: what tests and benchmarks have, small, for both targets.

Nothing here knows Litz's own functions: an entry is a program in PyTorch, or a text of IR.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "triton"), str(TESTS.parent)]

# Of the Triton tests' corpus one of so many is also compiled for open sizes, by its name.
OPEN = 3


@dataclass(frozen=True)
class Entry:
    """A program.

    build: gives the callable and its arguments: real tensors on the CPU, of which fake ones on
    ``device`` are made; or, if ``fake``, what is called where tensors are fake ones there.
    training: backward graphs too.  text: IR instead of a program, for both targets.
    """

    build: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]] | None = None
    device: str = "cpu"
    training: bool = False
    dynamic: bool | None = False
    fake: bool = False
    text: str = ""


def corpus() -> dict[str, Entry]:
    """All entries by name: target, origin, and what is special."""
    found: dict[str, Entry] = {}
    for part in (_texts(), _samples(), _large(), _traced(), _workloads()):
        found.update(part)
    return found


def _texts() -> Iterator[tuple[str, Entry]]:
    for path in sorted((TESTS / "text").glob("*.txt")):
        given = path.read_text().partition("\n=====\n")[0]
        first, _, source = given.partition("\n")
        command = first.removeprefix("command:").strip()
        if command in ("schedule", "kernels", "host", "triton", "print"):
            yield f"text/{path.stem}", Entry(text=source)


def _samples() -> Iterator[tuple[str, Entry]]:
    """The Triton tests' corpus: on a CPU and on a GPU, with gradients where it has some."""
    from test_interpreted import CORPUS

    for name, (fn, args) in CORPUS.items():
        floats = any(isinstance(a, torch.Tensor) and a.dtype.is_floating_point for a in args)
        for device, target in (("cpu", "cpp"), ("cuda", "triton")):
            entry = Entry(lambda fn=fn, args=args: (fn, args), device)
            yield f"{target}/{name}", entry
            if floats:
                learned = replace(entry, build=_learned(fn, args), training=True)
                yield f"{target}/{name}+training", learned
            if zlib.crc32(name.encode()) % OPEN == 0:
                yield f"{target}/{name}+dynamic", replace(entry, dynamic=True)


def _large() -> Iterator[tuple[str, Entry]]:
    """What takes the interpreter long: rows too many to be divided, and too long to be kept."""
    for device, target in (("cpu", "cpp"), ("cuda", "triton")):
        yield (
            f"{target}/softmax_many_rows",
            Entry(lambda: (lambda x: torch.softmax(x, -1), (torch.ones(520, 17000),)), device),
        )


def _learned(fn: Any, args: Any) -> Any:
    def build() -> tuple[Any, tuple[Any, ...]]:
        return fn, tuple(_leaf(a) if isinstance(a, torch.Tensor) else a for a in args)

    return build


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_(x.dtype.is_floating_point)


def _traced() -> Iterator[tuple[str, Entry]]:
    """What CUDA's graphs have and those of CPUs do not."""
    from traced_programs import CASES, Case

    def entry(case: Case) -> Entry:
        def build() -> tuple[Any, tuple[Any, ...]]:
            return (case.fn() if case.model else case.fn), tuple(s.make() for s in case.specs)

        return Entry(build, "cuda", training=case.graphs > 1, fake=True)

    for name, case in CASES.items():
        yield f"triton/traced/{name}", entry(case)
        if case.dynamic:
            yield f"triton/traced/{name}+dynamic", replace(entry(case), dynamic=True)


def _workloads() -> Iterator[tuple[str, Entry]]:
    from benchmarks.gpu.workloads import GPU_WORKLOADS
    from benchmarks.workloads import WORKLOADS, Workload

    def entry(make: Callable[[], Workload], device: str) -> Entry:
        def build() -> tuple[Any, tuple[Any, ...]]:
            made = make()
            return made.fn if made.training else _without_gradients(made.fn), made.inputs

        return Entry(build, device, training=True)

    for name, of_cpu in WORKLOADS.items():
        if not name.startswith(("vit", "llama", "resnet50_")):  # seconds each, and like the others
            yield f"cpp/workload/{name}", entry(lambda b=of_cpu: b(True), "cpu")
    for name, of_gpu in GPU_WORKLOADS.items():
        yield f"triton/workload/{name}", entry(lambda b=of_gpu: b(True).workload, "cuda")


def _without_gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(fn, torch.nn.Module):
        return fn.requires_grad_(False)
    return fn
