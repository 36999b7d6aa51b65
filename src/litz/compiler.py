"""The corridor: the stages in order, each a function from data to data, and nothing else."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

from litz.artifact import Artifact, ExternCall, Host, Live, Native
from litz.binding import versions
from litz.graph.passes import run_passes
from litz.host.aliasing import written
from litz.host.arguments import arguments
from litz.host.capturable import recording
from litz.host.checks import with_checks
from litz.host.inplace import inplace_pairs
from litz.host.lines import HostProgram, host_text
from litz.host.memory import plan_memory
from litz.host.plan import plan as plan_host
from litz.host.probes import with_probes
from litz.host.python import HostSource, print_host
from litz.host.segment import segment_tables
from litz.host.values import PROBE
from litz.ir.program import Extern, Program
from litz.ir.text import program_text
from litz.ir.verify import verify
from litz.logs import stage_logger
from litz.lowering import families
from litz.lowering.bindings import Binding
from litz.lowering.context import Settings
from litz.lowering.graph import check_devices, drawn_buffers, lower_with_bindings
from litz.lowering.versions import check_offsets
from litz.options import Options
from litz.runtime.cuda_graphs import CudaGraphs
from litz.schedule.build import schedule as make_schedule
from litz.schedule.fuse import FusionSettings
from litz.schedule.groups import Group, Schedule
from litz.schedule.text import schedule_text
from litz.targets.batches import batch_calls
from litz.targets.choice import targets
from litz.targets.kernels import Kernel, make_kernels
from litz.targets.records import record
from litz.targets.tools import Tools

if TYPE_CHECKING:
    from litz.verify.run import Watch

# Filling the registry takes a while; with the backend's import it's over before the first call.
families.load()


@dataclass
class Stages:
    """What a compilation made, stage by stage; ``explain`` reads it.

    fallback: why ATen runs the graph, if it does.  wrong_metadata: that is why.
    cuda_graphs: the recorded graph, or why it is not recorded; None where nobody asked.
    bodies: of control flow, compiled by themselves.
    seconds: wall time of each stage.  ``waiting`` is the time left to wait for the C++ compiler
    after all other stages ran beside it; ``load`` what binding takes then.
    """

    program: Program | None = None
    schedule: Schedule | None = None
    kernels: tuple[Kernel, ...] = ()
    host: HostProgram | None = None
    source: HostSource | None = None
    artifact: Artifact | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    fallback: str = ""
    wrong_metadata: bool = False
    watch: Watch | None = None
    cuda_graphs: CudaGraphs | str | None = None
    bodies: list[Stages] = field(default_factory=list)

    def parts(self) -> Iterator[Stages]:
        """This graph, and the bodies in it."""
        yield self
        for body in self.bodies:
            yield from body.parts()

    def externs(self) -> tuple[Extern, ...]:
        """The calls of operators; the host's own arithmetic is none."""
        if self.program is None:
            return ()
        calls = (n for n in self.program.nodes if isinstance(n, Extern))
        return tuple(n for n in calls if not (n.is_number or n.is_assertion))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def show(options: Options, stage: str, text: Callable[[], str]) -> None:
    if stage in options.shown or "all" in options.shown:
        print(f"# --- {stage} ---\n{text()}", file=sys.stderr)
    logger = stage_logger(stage)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s:\n%s", stage, text())


def compile_graph(
    gm: GraphModule,
    options: Options,
    stages: Stages | None = None,
    *,
    inference: bool = False,
    guarded: bool = False,
    start: Callable[[Sequence[Kernel]], AbstractContextManager[Any]] = nullcontext,
    bodies: Callable[[GraphModule], Callable[[list[Any]], Any]] | None = None,
) -> Artifact:
    """Compile a functional ATen graph; ``litz.binding.bind`` makes a callable of the result.

    stages: filled as the compilation goes.  inference: no backward graph belongs to it.
    guarded: somebody checks the arguments before each call; otherwise the callable does, and raises
    TypeError.  start: called with the kernels as soon as they are known, for who builds them while
    the rest is compiled; an error meanwhile goes through the context that it gives.
    bodies: compiles and binds those of control flow; without it such a graph is not compiled.
    Raises ToolchainError without a C++ compiler,
    CompilationError where a lowering fails, VerifyError for a fault of Litz itself.
    """
    s = stages or Stages()
    target_of = targets(options)
    with s.timed("passes"):
        check_offsets(gm.graph)
        checked = options.verify or options.check_ir
        run_passes(gm, inference=inference, hooks=options.hooks, check=checked)
    show(options, "graph", lambda: gm.print_readable(print_output=False))
    with s.timed("lowering"):
        settings = Settings(
            options.numerics == "eager",
            options.rng == "eager",
            options.verify,
            inference,
            target_of("cpu").blocks,
            options.check_calls or options.verify,
        )
        lowered = lower_with_bindings(gm, settings, None if options.verify else bodies)
        program, bindings = lowered.program, lowered.bindings
        check_devices(program)
        s.program = program
    show(options, "program", lambda: program_text(program))
    _check(program, "lowering", options, s)
    with s.timed("schedule"):
        fuel = None if options.fuel < 0 else options.fuel
        fusion = FusionSettings(fuel=fuel, interpreted=settings.interpreted)
        keep = drawn_buffers(gm.graph, bindings) if options.verify else frozenset()
        s.schedule = schedule = make_schedule(program, fusion, keep)
    show(options, "schedule", lambda: schedule_text(schedule))
    _check(program, "schedule", options, s, schedule)
    with s.timed("kernels"):
        calls, s.kernels = make_kernels(schedule, target_of)
        batches: frozenset[str] = frozenset()
        if not options.verify:  # which watches every call by itself
            s.schedule, calls, s.kernels, batches = batch_calls(schedule, calls, s.kernels)
            schedule = s.schedule
    if options.verify or options.check_ir:
        from litz.kernel.verify import verify as verify_recipe  # only who asks for it pays

        with s.timed("verify"):
            for k in s.kernels:
                verify_recipe(k.recipe)
    show(options, "plan", lambda: "\n\n".join(k.recipe.text for k in s.kernels))
    show(options, "kernels", lambda: "\n".join(k.source for k in s.kernels))
    with s.timed("submit"):
        started = start(s.kernels)
    with started, s.timed("host"):
        takeovers = {
            g.name: inplace_pairs(g, program.buffers)
            for g in schedule.steps
            if isinstance(g, Group) and g.name not in batches
        }
        native = target_of("cpu").segments and not options.verify
        s.host = host = plan_memory(plan_host(schedule, calls), takeovers, segments=native)
        if options.verify:
            s.host = host = with_probes(host, [k.name for k in s.kernels if k.target.segments])
        if settings.check_calls:
            s.host = host = with_checks(host, lowered.handed)
        s.source = source = print_host(host)
        if options.verify:
            s.watch = watch(gm, program, schedule, bindings, host, options)
            probe = Live(s.watch.probe, "its runs are checked against the graph")
            s.source = source = replace(source, values={**source.values, PROBE: probe})
    show(options, "host", lambda: host_text(host))
    show(options, "code", lambda: source.source)
    with started, s.timed("artifact"):
        s.artifact = _artifact(s, options, guarded)
    return s.artifact


def _artifact(s: Stages, options: Options, guarded: bool) -> Artifact:
    """What all stages have made."""
    program, schedule, host, source = s.program, s.schedule, s.host, s.source
    assert program and schedule and host and source
    origins = {step.name: step.origins for step in schedule.steps}
    reasons = [v.reason for v in source.values.values() if isinstance(v, Live)]
    if not written(program).isdisjoint(program.constants):
        reasons.append("it writes a tensor of its own, which later calls see")
    return Artifact(
        kernels=tuple(record(k, origins) for k in s.kernels),
        native=_native(Tools(options)) if any(k.target.segments for k in s.kernels) else None,
        host=Host(source.source, source.values, segment_tables(host)),
        count=len(program.inputs),
        arguments=arguments(program),
        always=options.verify or not guarded,
        recording=recording(program, options.verify),
        externs=tuple(ExternCall(e.target_name, e.reason, e.origins) for e in s.externs()),
        options=options.given(),
        versions=versions(),
        not_portable=next(iter(reasons), ""),
    )


def _native(tools: Tools) -> Native:
    t = tools.toolchain
    return Native(t.isa, t.lanes_f32, t.flags, t.version)


def watch(
    gm: GraphModule,
    program: Program,
    schedule: Schedule,
    bindings: tuple[Binding, ...],
    host: HostProgram,
    options: Options,
) -> Watch:
    """The checker of this graph's runs, called by the probes of ``host``."""
    from litz.verify.run import steps_of, watch  # only who asks for it pays for the import

    steps = steps_of(schedule, host)
    program = replace(program, buffers=host.buffers)  # with what kernels need during their calls
    return watch(gm, program, schedule, bindings, steps, options.repro_dir, options.given())


def on_gpu(gm: GraphModule) -> bool:
    """Whether an argument of the graph lies on a GPU."""
    values = (n.meta.get("val") for n in gm.graph.find_nodes(op="placeholder"))
    return any(isinstance(v, torch.Tensor) and v.device.type == "cuda" for v in values)


def _check(
    program: Program, after: str, options: Options, s: Stages, schedule: Schedule | None = None
) -> None:
    if options.verify or options.check_ir:
        with s.timed("verify"):
            verify(program, after, None if schedule is None else schedule.steps)
