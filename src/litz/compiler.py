"""The corridor: the stages in order, each a function from data to data, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule

from litz.artifact import Artifact, ExternCall, Host, Live, Native
from litz.binding import versions
from litz.graph.calls import leaves
from litz.graph.columns import COLUMNS, Columns
from litz.graph.passes import run_passes
from litz.graph.short import SHORT
from litz.host.aliasing import written
from litz.host.aligned import with_aligned
from litz.host.arguments import arguments
from litz.host.capturable import recording
from litz.host.checks import with_checks
from litz.host.inplace import takeovers
from litz.host.lines import HostProgram, host_text
from litz.host.memory import plan_memory
from litz.host.plan import plan as plan_host
from litz.host.probes import with_marks, with_probes
from litz.host.python import print_host
from litz.host.segment import segment_tables
from litz.ir.flops import Rates
from litz.ir.program import Extern, Program
from litz.ir.text import program_text
from litz.ir.verify import verify
from litz.kernel.starts import told_where
from litz.loading.values import PROBE
from litz.lowering import families
from litz.lowering.context import Settings
from litz.lowering.graph import DEVICES, check_devices, drawn_buffers, lower
from litz.lowering.state import Compile
from litz.lowering.torch_types import FROM_TORCH
from litz.lowering.versions import check_offsets
from litz.options import Options
from litz.passes.pipeline import pipeline
from litz.passes.pipeline import run_passes as run_program_passes
from litz.passes.rivals import Rivals
from litz.repeats.columns import with_all_columns
from litz.repeats.lengthen import Scheduled, lengthened
from litz.repeats.shorten import NotRepeating, shortened
from litz.runtime import cudnn
from litz.runtime.collectives import is_collective
from litz.runtime.plan import Plan, plan_text
from litz.schedule.build import schedule as make_schedule
from litz.schedule.fuse import FusionSettings
from litz.schedule.groups import Group, Schedule
from litz.schedule.text import schedule_text
from litz.stages import Stages, show
from litz.targets.choice import device_rates, targets
from litz.targets.horizontal import arranged, make_all
from litz.targets.kernels import Kernel, Target, bind_plans
from litz.targets.records import record
from litz.targets.tools import Tools

if TYPE_CHECKING:
    from litz.verify.run import Watch

Start = Callable[[Sequence[Kernel]], AbstractContextManager[Any]]

# Filling the registry takes a while; with the backend's import it's over before the first call.
families.load()


def compile_graph(
    gm: GraphModule,
    options: Options,
    stages: Stages | None = None,
    *,
    inference: bool = False,
    guarded: bool = False,
    start: Start = nullcontext,
    rivals: Rivals | None = None,
) -> Artifact:
    """Compile a functional ATen graph; ``litz.binding.bind`` makes a callable of the result.

    stages: filled as the compilation goes.  inference: no backward graph belongs to it.
    guarded: somebody checks the arguments before each call; otherwise the callable does, and raises
    TypeError.  start: called with the kernels as soon as they are known, for who builds them while
    the rest is compiled; an error meanwhile goes through the context that it gives.
    rivals: measures ways to compute a part of the graph, where somebody does.
    Bodies of control flow go down the same corridor; their artifacts are part of the graph's.
    Raises ToolchainError without a C++ compiler,
    CompilationError where a lowering fails, VerifyError for a fault of Litz itself.
    """
    s = stages or Stages()
    bodies: dict[str, Artifact] = {}

    def body(name: str, of: GraphModule) -> Program:
        s.bodies.append(inner := Stages(graph=of))
        bodies[name] = compile_graph(of, options, inner, inference=inference)
        assert inner.program
        return inner.program

    way = partial(
        _scheduled, options=options, s=s, inference=inference, compile_body=body, rivals=rivals
    )
    made = _repeated(gm, way, options, s)
    return _finished(gm, made, options, s, guarded, start, bodies)


def compile_program(program: Program, options: Options) -> Artifact:
    """Compile a program as it is, whose passes have run: what is measured of a graph."""
    blocks = tuple(d for d in DEVICES if targets(options)(d).blocks)
    schedule = make_schedule(program, FusionSettings(blocks=blocks))
    made: Scheduled = schedule, bind_plans(schedule), {}
    return _finished(GraphModule({}, Graph()), made, options, Stages(), False, nullcontext, {})


def _finished(
    gm: GraphModule,
    made: Scheduled,
    options: Options,
    s: Stages,
    guarded: bool,
    start: Start,
    bodies: Mapping[str, Artifact],
) -> Artifact:
    """From the schedule to the artifact."""
    target_of = targets(options)
    schedule, bound, handed = made
    schedule = _overlapped(schedule, target_of, options.bandwidth)
    program = schedule.program
    s.program, s.schedule = program, schedule
    with s.timed("plans"):
        there = (g for g in schedule.steps if isinstance(g, Group))
        bound = told_where(bound, [g.name for g in there if not target_of(g.device).blocks])
    with s.timed("horizontal"):
        if not options.by_steps:
            numbers = {k: n for hook in options.partition for k, n in hook(schedule).items()}
            schedule = arranged(schedule, bound, target_of, numbers, options.check_ir)
            s.schedule = schedule
    show(options, "schedule", lambda: schedule_text(schedule, reasons=True))
    with s.timed("kernels"):
        calls, s.kernels = make_all(schedule, bound, target_of)
    if options.verify or options.check_ir:
        from litz.kernel.verify import verify as verify_recipe  # only who asks for it pays

        with s.timed("verify"):
            for k in s.kernels:
                for recipe in k.recipes:
                    verify_recipe(recipe)
    show(options, "plan", lambda: "\n\n".join(k.text for k in s.kernels))
    show(options, "kernels", lambda: "\n".join(k.source for k in s.kernels))
    with s.timed("submit"):
        started = start(s.kernels)
    notes: tuple[str, ...] = ()
    with started, s.timed("host"):
        several = {name for x in schedule.horizontal for name in x.groups}
        alone = (g for g in schedule.steps if isinstance(g, Group) and g.name not in several)
        plans = {name: ((b.plan, b.ints), b.buffers) for name, b in bound.items()}
        inplace = takeovers(alone, plans, program.buffers)
        native = target_of("cpu").segments and not options.by_steps
        s.host = host = plan_memory(plan_host(schedule, calls), inplace, segments=native)
        if options.by_steps:
            s.host = host = with_probes(host, [k.name for k in s.kernels if k.target.segments])
        elif s.timer is not None:
            s.host = host = with_marks(host)
        if options.inspect and not options.verify:
            from litz.host.looks import looked_at  # only who asks for it pays

            s.host, notes = looked_at(host, options, schedule.steps, gm.graph)
            host = s.host
        if options.check_calls or options.verify:
            s.host = host = with_checks(host, handed)
        s.host = host = with_aligned(host)
        s.source = source = print_host(host)
        s.watch = watch(gm, program, schedule, host, options) if options.verify else s.timer
        if s.watch is not None:
            how = "checked against the graph" if options.verify else "timed call by call"
            probe = Live(s.watch.probe, f"its runs are {how}")
            s.source = source = replace(source, values={**source.values, PROBE: probe})
    show(options, "host", lambda: host_text(host))
    show(options, "code", lambda: source.source)
    with started, s.timed("artifact"):
        s.artifact = _artifact(s, options, guarded, bodies, notes)
    return s.artifact


def _repeated(
    gm: GraphModule, way: Callable[[GraphModule], Scheduled], options: Options, s: Stages
) -> Scheduled:
    """The ``way`` from a graph to its schedule, for fewer copies where the graph repeats."""
    try:
        with s.timed("repeats"):
            known = gm.meta.get(COLUMNS) or gm.meta.get(SHORT)
            short = known or shortened(gm) if _may_shorten(options) else None
        if short is not None:
            fewer = way(short.gm)
            with s.timed("repeats"):
                if isinstance(short, Columns):
                    inputs = tuple(n.name for n in gm.graph.find_nodes(op="placeholder"))
                    made = with_all_columns(fewer, short, inputs)
                else:
                    made = lengthened(fewer, short)
            _check(made[0].program, "schedule", options, s, made[0])
            s.repeats = f"{short.copies} copies scheduled like their neighbours"
            return made
    except NotRepeating as e:
        s.repeats = f"scheduled whole: {e}" if e.args else ""
    return way(gm)


def _may_shorten(options: Options) -> bool:
    """Whether nobody asks for each call of the graph: checkers of runs, users' passes, fuel."""
    watched = options.verify or options.fuel >= 0
    hooks = any(isinstance(v, tuple) and v for v in vars(options).values())
    return options.equal_regions and not watched and not hooks


def _scheduled(
    gm: GraphModule,
    options: Options,
    s: Stages,
    inference: bool,
    compile_body: Compile,
    rivals: Rivals | None,
) -> Scheduled:
    """A graph's schedule, with its plans.  compile_body: compiles a body of control flow."""
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
            tuple(d for d in devices(gm) if target_of(d).blocks),
            options.check_calls or options.verify,
            FROM_TORCH[torch.get_default_dtype()],
        )
        lowered = lower(gm, settings, None if options.verify else compile_body)
        check_devices(lowered.program)
    _check(lowered.program, "lowering", options, s)
    with s.timed("program passes"):
        costs = {d: target_of(d).costs(d) for d in settings.blocks}
        known = {d: c for d, c in costs.items() if c is not None}
        # Python calls cuDNN: what runs without has ATen's convolutions.
        called = bool(settings.blocks) and options.host != "native" and cudnn.is_there()
        convolved = settings.blocks if called else ()
        chosen = pipeline(settings.blocks, known, options.tunes_widely, rivals, convolved)
        program = run_program_passes(lowered.program, chosen, hooks=options.hooks, check=checked)
    show(options, "program", lambda: program_text(program, str(chosen)))
    with s.timed("schedule"):
        fuel = None if options.fuel < 0 else options.fuel
        fusion = FusionSettings(fuel=fuel, blocks=settings.blocks)
        keep = drawn_buffers(gm.graph, program) if options.verify else frozenset()
        schedule = make_schedule(program, fusion, keep)
    _check(program, "schedule", options, s, schedule)
    with s.timed("plans"):
        bound = bind_plans(schedule)
    return schedule, bound, lowered.handed


def _artifact(
    s: Stages,
    options: Options,
    guarded: bool,
    bodies: Mapping[str, Artifact],
    notes: tuple[str, ...],
) -> Artifact:
    """What all stages have made."""
    program, schedule, host, source = s.program, s.schedule, s.host, s.source
    assert program and schedule and host and source
    plan: Plan | str = ""
    origins = {step.name: step.origins for step in schedule.steps}
    if options.host != "python":
        from litz.host.native import plan_native  # only who asks for it pays

        plan = made = plan_native(host, source.values, options.host == "fx", origins)
        if options.host == "native" and not isinstance(made, str):
            show(options, "code", lambda: plan_text(made))
    reasons = [v.reason for v in source.values.values() if isinstance(v, Live)]
    reasons += [b.not_portable for b in bodies.values() if b.not_portable]
    if not written(program).isdisjoint(program.constants):
        reasons.append("it writes a tensor of its own, which later calls see")
    return Artifact(
        kernels=tuple(record(k, origins) for k in s.kernels),
        native=_native(Tools(options)) if any(k.target.segments for k in s.kernels) else None,
        host=Host(source.source, source.values, segment_tables(host), plan),
        count=len(program.inputs),
        arguments=arguments(program),
        always=options.verify or not guarded,
        recording=recording(program, options.by_steps),
        externs=tuple(ExternCall(e.target_name, e.reason, e.origins) for e in s.externs()),
        options=options.given(),
        versions=versions(),
        bodies=bodies,
        not_portable=next(iter(reasons), ""),
        notes=notes,
    )


def _native(tools: Tools) -> Native:
    t = tools.toolchain
    return Native(t.isa, t.lanes_f32, t.flags, t.version)


def watch(
    gm: GraphModule,
    program: Program,
    schedule: Schedule,
    host: HostProgram,
    options: Options,
) -> Watch:
    """The checker of this graph's runs, called by the probes of ``host``."""
    from litz.verify.run import steps_of, watch  # only who asks for it pays for the import

    steps = steps_of(schedule, host)
    program = replace(program, buffers=host.buffers)  # with what kernels need during their calls
    return watch(gm, program, schedule, steps, options.repro_dir, options.given())


def devices(gm: GraphModule) -> tuple[str, ...]:
    """The kinds of devices that tensors of the graph lie on, as far as there are targets."""
    values = (v for n in gm.graph.nodes for v in leaves(n.meta.get("val")))
    found = {v.device.type for v in values if isinstance(v, torch.Tensor)}
    return tuple(d for d in DEVICES if d in found)


def on_gpu(gm: GraphModule) -> bool:
    """Whether an argument of the graph lies on a GPU."""
    values = (n.meta.get("val") for n in gm.graph.find_nodes(op="placeholder"))
    return any(isinstance(v, torch.Tensor) and v.device.type == "cuda" for v in values)


def _overlapped(schedule: Schedule, target_of: Callable[[str], Target], bandwidth: int) -> Schedule:
    """The schedule with its collectives beside other steps."""
    calls = [step for step in schedule.steps if isinstance(step, Extern)]
    device = next((step.device for step in calls if is_collective(step.target)), "")
    if not device:
        return schedule
    from litz.schedule import overlap  # only programs that communicate pay for it

    kind = device.partition(":")[0]
    rates = device_rates(kind, target_of)
    return overlap.overlap(schedule, Rates(*overlap.between(kind, bandwidth), *rates))


def _check(
    program: Program, after: str, options: Options, s: Stages, schedule: Schedule | None = None
) -> None:
    if options.verify or options.check_ir:
        with s.timed("verify"):
            verify(program, after, None if schedule is None else schedule.steps)
