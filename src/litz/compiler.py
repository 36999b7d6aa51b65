"""The corridor: the stages in order, each a function from data to data, and nothing else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

from litz.graph.passes import run_passes
from litz.host.inplace import inplace_pairs
from litz.host.lines import CallKernel, HostProgram, host_text
from litz.host.memory import plan_memory
from litz.host.plan import plan as plan_host
from litz.host.python import HostSource, load_host, print_host
from litz.host.segment import bind_segments, segment_tables
from litz.ir.program import Extern, Program
from litz.ir.text import program_text
from litz.ir.verify import verify
from litz.kernel.build import build_kernel
from litz.kernel.plan import KernelPlan
from litz.lowering import families
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.options import Options
from litz.runtime.cache import Cache, content_key
from litz.runtime.native import Fault, Function, Library, Runtime
from litz.schedule.build import schedule as make_schedule
from litz.schedule.fuse import FusionSettings
from litz.schedule.groups import Group, Schedule
from litz.schedule.text import schedule_text
from litz.targets.cpp.render import render, unit
from litz.targets.cpp.toolchain import SourceUnit, Toolchain, find_toolchain, runtime_unit, submit
from litz.targets.triton.interpreted import bind_interpreted
from litz.targets.triton.render import render as render_triton
from litz.targets.triton.source import TritonKernel

# Filling the registry takes a while; with the backend's import it's over before the first call.
families.load()

PLACEHOLDER = "LITZ_KERNEL_NAME"
INDEX_FAULT: Fault = (IndexError, "index out of range in a compiled kernel")


@dataclass(frozen=True)
class Kernel:
    """One distinct kernel: its name, plan, source, and the groups of the schedule that call it."""

    name: str
    plan: KernelPlan
    source: str
    groups: tuple[str, ...]
    triton: TritonKernel | None = None


@dataclass
class Stages:
    """What a compilation made, stage by stage; ``explain`` reads it.

    seconds: wall time of each stage.  ``waiting`` is the time left to wait for the C++ compiler
    after all other stages ran beside it.
    """

    program: Program | None = None
    schedule: Schedule | None = None
    kernels: tuple[Kernel, ...] = ()
    host: HostProgram | None = None
    source: HostSource | None = None
    units: tuple[Path, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    fallback: str = ""

    def externs(self) -> tuple[Extern, ...]:
        if self.program is None:
            return ()
        return tuple(n for n in self.program.nodes if isinstance(n, Extern))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@lru_cache(maxsize=8)
def _toolchain(cxx: str, isa: str, cache_dir: str) -> tuple[Toolchain, Cache]:
    cache = Cache(cache_dir or None)
    return find_toolchain(cxx or None, isa or None, cache), cache


def _show(options: Options, stage: str, text: Callable[[], str]) -> None:
    if stage in options.shown or "all" in options.shown:
        print(f"# --- {stage} ---\n{text()}", file=sys.stderr)


def compile_graph(
    gm: GraphModule, options: Options, stages: Stages | None = None, *, inference: bool = False
) -> Callable[[list[Any]], Any]:
    """Compile a functional ATen graph to a callable that takes its arguments as a list it empties.

    stages: filled as the compilation goes.  inference: no backward graph belongs to it.
    Raises ToolchainError without a C++ compiler,
    CompilationError where a lowering fails, VerifyError for a fault of Litz itself.
    """
    s = stages or Stages()
    start = time.perf_counter()
    with s.timed("passes"):
        run_passes(gm, inference=inference)
    _show(options, "graph", lambda: gm.print_readable(print_output=False))
    toolchain, cache = _toolchain(options.cxx, options.isa, options.cache_dir)
    with s.timed("lowering"):
        settings = Settings(options.numerics == "eager", options.rng == "eager")
        s.program = program = lower_graph(gm, settings)
    _show(options, "program", lambda: program_text(program))
    _check(program, "lowering", options, s)
    with s.timed("schedule"):
        fuel = None if options.fuel < 0 else options.fuel
        s.schedule = schedule = make_schedule(program, FusionSettings(fuel=fuel))
    _show(options, "schedule", lambda: schedule_text(schedule))
    _check(program, "schedule", options, s, schedule)
    with s.timed("kernels"):
        calls, s.kernels = make_kernels(schedule, toolchain.lanes_f32, options.target)
    _show(options, "kernels", lambda: "\n".join(k.source for k in s.kernels))
    with s.timed("submit"):
        piles = make_piles(tuple(k for k in s.kernels if k.triton is None))
        units = (*(p.unit for p in piles), runtime_unit())
        build = submit(units, toolchain, cache, options.jobs or None)
    with s.timed("host"):
        takeovers = {
            g.name: inplace_pairs(g, program.buffers)
            for g in schedule.steps
            if isinstance(g, Group)
        }
        native = all(k.triton is None for k in s.kernels)
        s.host = host = plan_memory(plan_host(schedule, calls), takeovers, segments=native)
        s.source = source = print_host(host)
    _show(options, "host", lambda: host_text(host))
    _show(options, "code", lambda: source.source)
    with s.timed("waiting"):
        s.units = paths = tuple(build.wait())
    with s.timed("load"):
        call = load(host, source, piles, paths, s.kernels)
    s.seconds["total"] = time.perf_counter() - start
    _show(options, "time", lambda: "\n".join(f"{k:12}{v:9.4f} s" for k, v in s.seconds.items()))
    return call


def _check(
    program: Program, after: str, options: Options, s: Stages, schedule: Schedule | None = None
) -> None:
    if options.verify:
        with s.timed("verify"):
            verify(program, after, None if schedule is None else schedule.steps)


# --- kernels ---


def make_kernels(
    schedule: Schedule, lanes: int, target: str = ""
) -> tuple[dict[str, CallKernel], tuple[Kernel, ...]]:
    """The kernel call of each group, and the distinct kernels: equal plans are one kernel."""
    calls: dict[str, CallKernel] = {}
    known: dict[tuple[KernelPlan, str], Kernel] = {}
    groups: dict[str, list[str]] = {}
    for g in schedule.steps:
        if not isinstance(g, Group):
            continue
        bound = build_kernel(g, schedule.program.buffers)
        where = target or ("cpp" if g.device.startswith("cpu") else "triton")
        found = known.get((bound.plan, where))
        if found is None:
            make = triton_kernel if where == "triton" else cpp_kernel
            found = known[bound.plan, where] = make(bound.plan, lanes, " ".join(g.origins))
        groups.setdefault(found.name, []).append(g.name)
        calls[g.name] = CallKernel(found.name, bound.buffers, bound.ints, g.name)
    return calls, tuple(replace(k, groups=tuple(groups[k.name])) for k in known.values())


def cpp_kernel(plan: KernelPlan, lanes: int, origins: str) -> Kernel:
    """A plan in C++, named by its content."""
    text = render(plan, PLACEHOLDER, lanes)
    name = f"k{content_key(text)[:16]}"
    return Kernel(name, plan, f"// {origins}\n{text.replace(PLACEHOLDER, name)}", ())


def triton_kernel(plan: KernelPlan, lanes: int, origins: str) -> Kernel:
    """A plan in Triton, named by its content."""
    draft = render_triton(plan, PLACEHOLDER)
    name = f"k{content_key(chr(10).join(x.source for x in draft.launches))[:16]}"
    made = render_triton(plan, name, origins)
    return Kernel(name, plan, "\n\n".join(x.source for x in made.launches), (), made)


@dataclass(frozen=True)
class Pile:
    """A translation unit and the kernels in it."""

    unit: SourceUnit
    kernels: tuple[str, ...]


def make_piles(kernels: tuple[Kernel, ...]) -> tuple[Pile, ...]:
    """Kernels spread over a few translation units of about equal length."""
    count = min(len(kernels), max(1, os.cpu_count() or 1))
    piles: list[list[Kernel]] = [[] for _ in range(count)]
    sizes = [0] * count
    for k in sorted(kernels, key=lambda k: (-len(k.source), k.name)):
        at = sizes.index(min(sizes))
        piles[at].append(k)
        sizes[at] += len(k.source)
    return tuple(
        Pile(
            SourceUnit(f"unit {n}", unit([(k.plan, k.source) for k in pile])),
            tuple(k.name for k in pile),
        )
        for n, pile in enumerate(piles)
    )


def load(
    host: HostProgram,
    source: HostSource,
    piles: tuple[Pile, ...],
    paths: tuple[Path, ...],
    kernels: tuple[Kernel, ...] = (),
) -> Callable[[list[Any]], Any]:
    """Bind the built kernels to the host program.  paths: of the piles, then of the runtime."""
    *unit_paths, runtime_path = paths
    runtime = Runtime(runtime_path)
    functions: dict[str, Function] = {}
    for pile, path in zip(piles, unit_paths, strict=True):
        library = Library(path)
        functions.update({k: library.function(k) for k in pile.kernels})
    faults: Mapping[str, tuple[Fault, ...]] = dict.fromkeys(functions, (INDEX_FAULT,))
    segments = bind_segments(segment_tables(host), runtime, functions, faults)
    triton = {k.name: bind_interpreted(k.triton, k.plan) for k in kernels if k.triton is not None}
    return load_host(source.source, {**source.values, **segments, **triton})
