"""The Dynamo backend behind ``litz.entry``: graphs through AOTAutograd to compiled calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.fx import GraphModule

from litz import dynamo
from litz.artifact import Artifact
from litz.binding import Binder, Recorder, bind
from litz.bound import bound_graphs, finished
from litz.cache import store
from litz.cache.code import NotCached
from litz.cache.key import graph_key, symbols
from litz.cache.programs import Boxed, Kept, Program, ProgramKey, program_key, wrapped, writing
from litz.errors import (
    ArtifactError,
    CompilationError,
    EagerOnly,
    GraphUnsupported,
    LitzError,
    RefusedSourceError,
    ToolchainError,
    WrongMetadata,
)
from litz.graph.calls import count_calls
from litz.graph.communicate import narrow_before_gathering, share_calls
from litz.graph.dropout import drop_idle_dropout
from litz.graph.eager_calls import less_than_a_function, on_cpus, one_call, views_alone
from litz.graph.fused_attention import Sizes, fuse_attention
from litz.graph.generic_scans import make_scans_whole
from litz.graph.mistraced import mistraced
from litz.graph.original import kept, restored
from litz.graph.recurrences import roll_up
from litz.graph.repro import save_repro
from litz.graph.rng_states import fix_states
from litz.graph.scan_gradients import differentiate_scans
from litz.graph.short import called, seen
from litz.graph.statistics import give_true_types
from litz.graph.user_kernels import launched
from litz.logs import events
from litz.options import Options
from litz.ranks import agreement, program_name
from litz.regions import traced_once
from litz.regions.find import NotEqual
from litz.regions.placing import Placing
from litz.reporting import (
    Observer,
    report_compiled,
    report_fallback,
    report_graph,
    report_guards,
    report_recompile,
    telling,
    timer_of,
    wants_stages,
)
from litz.runtime.cache import Cache
from litz.runtime.collector import uncollected
from litz.runtime.dispatcher import through_aten
from litz.runtime.min_cut import Cut, Split
from litz.runtime.progress import Progress
from litz.runtime.torch_private import in_dual_level, is_packing
from litz.stages import Stages, show
from litz.targets.tools import Tools

if TYPE_CHECKING:
    from litz.targets.kernels import Kernel


def compile_with(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    observe: Observer | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph.  observe: told the kind, graph and stages of each compile."""
    if observe is not None or wants_stages():
        options = replace(options, graph_cache=False)  # the cache has no stages
    packing = options.graph_cache and is_packing()
    compile = partial(_compiled, gm, example_inputs, options, observe, packing)
    if packing:
        from litz.packed import packed

        call = packed(gm, example_inputs, options, compile)
    else:
        call = compile()
    if in_dual_level() or call != gm.forward:  # eager mode heeds levels by itself
        dynamo.guard_dual_level()
    return call


def _compiled(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    observe: Observer | None,
    packing: bool,
) -> Callable[..., Any]:
    """``compile_with``.  packing: all of it is compiled, and now; none is left to eager mode."""
    tell, recompile = telling(options, observe), dynamo.recompile_reason() or ""
    report_recompile(recompile)
    recorder, name = Recorder(options), program_name(gm)
    # What is wrong with the metadata of a forward graph, which its backward graph shares.
    wrong: list[str] = []
    reason = "it runs in forward-mode AD" if in_dual_level() else mistraced(gm)
    drop_idle_dropout(gm)
    if reason or views_alone(gm) and not packing:
        return _in_eager_mode(gm, reason or "it makes views alone", recompile, tell)
    known = _program_key(gm, example_inputs, options) if options.graph_cache else None
    cache = Tools(options).cache if known else None
    if known and cache and (kept := store.load_program(cache, known.key)) is not None:
        # As if it were not there: what fails beside is told when it fails again.
        with suppress(LitzError, OSError, ValueError):
            return _bound_program(kept, gm, example_inputs, known, options, recorder, tell)
    make_scans_whole(gm)
    roll_up(gm)
    from litz.graph.masks import drop_idle_masks  # what is found in the cache needs none of it

    plain, fused = drop_idle_masks(gm, same_draws=options.rng == "eager"), tuple[str, ...]()
    if any(isinstance(x, Tensor) and x.is_cuda for x in example_inputs):
        start_workers(options.jobs or None)  # they load while AOTAutograd traces
        masked, fused = fuse_attention(gm, partial(attention_that_trains, options))
        plain = masked if plain is gm else plain

    program: Program | None = None
    made_of: dict[str, Artifact | None] = {}

    def kept_program() -> Program | None:
        if known is None or cache is None:
            return None
        return Program(known, partial(store.save_program, cache, known.key))

    def compiler(kind: str, regions: Placing) -> dynamo.GraphCompiler:
        def compile_one(graph: GraphModule, _inputs: Sequence[Any]) -> Boxed:
            if kind == "inference":
                graph = regions.whole(graph)
            elif kind == "forward":
                if _takes_eager_mode(options) and not packing and not [*gm.children()]:
                    if idle := less_than_a_function(graph, recorder.wanted):
                        raise EagerOnly(idle)
                dynamo.keep_saved_tensors()
            fix_states(seen(graph))
            timer = timer_of(graph)
            stages = Stages(fused=fused, regions=regions.said, recompile=recompile, timer=timer)
            report_graph(kind, called(graph))
            guards = len(dynamo.guards(seen(graph)))
            if wrong:
                call = _through_aten(graph, stages, kind, wrong[0])
            else:
                with Progress(lambda: f"{kind} graph, {stages.at}", options.progress):
                    call = _agreed(graph, options, stages, kind, name)
            if stages.wrong_metadata:
                wrong.append(stages.fallback)
            if kind == "forward" and not stages.fallback:
                dynamo.results_are_no_views()
            report_guards(guards, lambda: dynamo.guards(seen(graph)))
            call = finished(call, recorder, stages, kind)
            artifact = None if stages.fallback or stages.timer else stages.artifact
            made_of[kind] = artifact
            if program is not None:
                program.made(kind, None if stages.fallback else stages.artifact, stages.not_kept)
            tell(kind, graph, stages)
            return call

        return compile_one

    def on_lists() -> Callable[..., Any]:
        from litz.regions.lists import whole  # what is bound from the cache needs none of it

        nonlocal program
        made = whole(gm, dynamo.traced)
        program = kept_program()
        call = compiler("inference", Placing((), made.shared))(made.graph, made.inputs)
        if program is not None:
            program.finished(call, made.written)
        return writing(call, made.given, made.written)

    def through_aot(regions: Placing) -> Callable[..., Any]:
        nonlocal program
        differentiate_scans(gm)
        kinds = ("forward", "backward", "inference")
        compilers = {kind: compiler(kind, regions) for kind in kinds}
        if (program := kept_program()) is not None:
            compilers = program.compilers(compilers, packing)

        def split(
            joint: GraphModule, forwards: int, static: Sequence[int], parted: Split
        ) -> Sequence[GraphModule]:
            def typed(
                graph: GraphModule, static: Sequence[int], cuts: list[Cut]
            ) -> Sequence[GraphModule]:
                give_true_types(graph.graph)
                return parted(graph, static, cuts)

            return regions.split(joint, forwards, static, typed)

        with program.compiling() if program else nullcontext():
            shown = regions.shown(example_inputs)
            made = dynamo.compile_through_aot(gm, shown, plain, split=split, **compilers)
        if program is not None:
            program.finished(made)
        # In a package all is compiled.  Otherwise what PyTorch traced may not be what it computes.
        mistaken = wrong and [*made_of] == ["inference"]
        as_it_is = not packing and (mistaken or _left_to_aten(gm, made_of, recorder))
        return plain.forward if as_it_is else made

    try:
        with Progress(lambda: f"tracing {count_calls(gm)} calls", options.progress):
            if options.equal_regions:
                with suppress(NotEqual):
                    return on_lists()
            return traced_once(gm, dynamo.traced_part, through_aot, options.equal_regions)
    except EagerOnly as e:
        return _in_eager_mode(plain, str(e), recompile, tell)
    except RuntimeError as e:
        if not dynamo.is_refusal(e):
            raise
        return _in_eager_mode(plain, str(e).partition("\n")[0], recompile, tell)


def _program_key(gm: GraphModule, inputs: Sequence[Any], options: Options) -> ProgramKey | None:
    """The key of Dynamo's graph; None where it has none."""
    try:
        return program_key(gm, inputs, options)
    except NotCached as e:
        events.debug("the graph is looked for behind AOTAutograd: %s", e)
        return None


def _bound_program(
    kept: Kept,
    gm: GraphModule,
    inputs: Sequence[Any],
    known: ProgramKey,
    options: Options,
    recorder: Recorder,
    tell: Observer,
) -> Callable[..., Any]:
    """The callable of a program that was kept.  Raises ArtifactError or ValueError."""
    calls = {}
    for kind, call, stages in bound_graphs(kept, known, options, recorder):
        calls[kind] = call
        report_compiled(kind, stages)
        tell(kind, gm, stages)
    made = wrapped(kept, calls, inputs, known, gm)
    return gm.forward if _left_to_aten(gm, kept[0], recorder) else made


def _left_to_aten(
    gm: GraphModule, made_of: Mapping[str, Artifact | None], recorder: Recorder
) -> bool:
    """Whether a program is one call that ATen computes whole: called by Dynamo's own graph."""
    if [*made_of] != ["inference"] or (made := made_of["inference"]) is None:
        return False
    if not _takes_eager_mode(recorder.options) or made.kernels or not one_call(gm):
        return False
    # On a GPU a library may have been chosen for it, or it is recorded as a CUDA graph.
    return on_cpus(gm) or not (made.host.values or recorder.wanted)


def attention_that_trains(options: Options, sizes: Sizes, kind: str) -> str | None:
    """Why attention written by hand is a library's while it trains, by estimates; None: it is not.

    kind: whose kernel it is, as ``Costs`` names it.
    """
    from litz.passes.flash import training_seconds  # what is found in the cache needs none of it
    from litz.targets.choice import targets

    if (costs := targets(options)("cuda").costs("cuda")) is None:
        return None
    own, library = training_seconds(costs, sizes.scores, sizes.elements, sizes.head, kind)
    if own <= library:
        return None
    return (
        f"attention of {sizes.scores} scores, heads of {sizes.head}, trains by {kind}'s kernels: "
        f"{library * 1e6:.0f} us estimated, {own * 1e6:.0f} as it is written"
    )


def _takes_eager_mode(options: Options) -> bool:
    """Whether no option looks at what is compiled where eager mode does the same at less cost."""
    looks = options.check_ir or options.check_calls or options.verify or options.inspect
    return not (looks or options.target)


def _agreed(graph: GraphModule, options: Options, stages: Stages, kind: str, program: str) -> Boxed:
    """``compile_or_fall_back``, in all processes that communicate with this one."""
    found = agreement(seen(graph), f"{program}, {kind}", options)
    if found is None:
        return compile_or_fall_back(graph, options, stages, kind)
    with dynamo.real_tensors(), through_aten():
        # Only programs that communicate pay for it.
        from litz.graph.pieces import pipeline_products
        from litz.ir.flops import Rates
        from litz.schedule.overlap import between, worth_a_call
        from litz.targets.choice import device_rates, targets

        bandwidths = found.bandwidths(options.bandwidth)
        devices = found.figures("rates", device_rates(found.kind, targets(options)))
    options = replace(options, bandwidth=min(filter(None, bandwidths.values()), default=0))
    narrow_before_gathering(graph)
    limits = {name: worth_a_call(found.kind, mb) for name, mb in bandwidths.items()}
    rates = {name: Rates(*between(found.kind, bandwidths[name]), *devices[name]) for name in limits}
    stages.pieces = tuple(pipeline_products(graph, rates, limits))
    share_calls(graph, limits)
    calls = found.calls()
    try:
        call = compile_or_fall_back(graph, options, stages, kind)
    except LitzError as e:
        found.reached(calls, str(e))
        raise
    with stages.timed("ranks"):
        found.reached(calls)
    return call


def compile_or_fall_back(
    graph: GraphModule, options: Options, stages: Stages, kind: str = ""
) -> Boxed:
    """Compile; what Litz cannot hold, or cannot build on this machine, runs through ATen."""
    before = kept(graph)
    try:
        inference = kind == "inference"
        # A backward graph may come long after PyTorch's call of the backend.
        with uncollected(), dynamo.real_tensors(), through_aten():
            call = _found_or_compiled(graph, options, stages, inference)
    except EagerOnly:
        raise
    except GraphUnsupported as e:
        stages.wrong_metadata = isinstance(e, WrongMetadata)
        return _through_aten(restored(graph, before), stages, kind, str(e))
    except RefusedSourceError as e:
        return _failed(restored(graph, before), options, stages, kind, e)
    except ToolchainError as e:
        warnings.warn(f"{e}\nThis graph runs through ATen.", stacklevel=2)
        return _through_aten(restored(graph, before), stages, kind, str(e).partition("\n")[0])
    except Exception as e:
        return _failed(restored(graph, before), options, stages, kind, e)
    report_compiled(kind, stages)
    return call


def _found_or_compiled(
    graph: GraphModule, options: Options, stages: Stages, inference: bool
) -> Boxed:
    """What the cache has of the graph, or what is made of it and then kept."""
    start = stages.clock()
    made = partial(compile_and_bind, inference=inference, guarded=True)
    key, known = _key(graph, options, stages, inference) if options.graph_cache else ("", "")
    if not key:
        return made(graph, options, stages)
    cache = Tools(options).cache
    if (call := _found(cache, key, graph, options, stages, start)) is not None:
        return call
    # Ranks and workers meet a graph at once: one of them compiles it.
    with cache.alone(key):
        if (call := _found(cache, key, graph, options, stages, start)) is not None:
            return call

        def keep(artifact: Artifact) -> None:
            if symbols(seen(graph)) == known:
                store.save(cache, key, artifact)
            else:
                stages.not_kept = "compiling it added guards"

        return made(graph, options, stages, keep=keep)


def _found(
    cache: Cache, key: str, graph: GraphModule, options: Options, stages: Stages, start: float
) -> Boxed | None:
    """The bound artifact of a key, if there is one that this process can bind."""
    artifact = store.load(cache, key)
    if artifact is None:
        return None
    with suppress(ArtifactError):  # it names what this process has not
        call = bind(artifact, options, launched(seen(graph)))
        stages.artifact = artifact
        stages.seconds["total"] = stages.clock() - start
        return call
    return None


def _key(graph: GraphModule, options: Options, stages: Stages, inference: bool) -> tuple[str, str]:
    """The graph's key and what is known of its symbols; empty, as the log says, without a key."""
    try:
        with stages.timed("key"):
            return graph_key(graph, options, inference=inference, guarded=True), symbols(
                seen(graph)
            )
    except NotCached as e:
        stages.not_kept = str(e)
        events.info("the graph is not cached: %s", e)
        return "", ""


def compile_and_bind(
    graph: GraphModule,
    options: Options,
    stages: Stages | None = None,
    *,
    inference: bool = False,
    guarded: bool = False,
    keep: Callable[[Artifact], None] | None = None,
) -> Boxed:
    """The callable of a functional ATen graph; its kernels are built while the rest is compiled.

    keep: told of the artifact while its kernels are still being built.
    See ``compile_graph`` for the arguments, and for the errors beside those of ``bind``.
    """
    s = stages or Stages()
    start = s.clock()
    with s.timed("import"):  # who binds what is kept does without it
        from litz.compiler import compile_graph, on_gpu
        from litz.contest import Contest
    if on_gpu(seen(graph)):
        start_workers(options.jobs or None)  # they are ready when the first kernel is

    kernels = launched(seen(graph))
    contest = Contest(options, options.tuning_seconds) if options.tunes_widely else None
    binder = Binder(options, s.choices)

    def build(made: Sequence[Kernel]) -> AbstractContextManager[Any]:
        binder.spend(contest.spent if contest else 0.0)
        return binder.start(made)

    artifact = compile_graph(
        graph, options, s, inference=inference, guarded=guarded, start=build, rivals=contest
    )
    if keep is not None:
        with s.timed("saving"):
            keep(artifact)
    with s.timed("waiting"):
        binder.wait(artifact)
    with s.timed("load"):
        call = binder.load(artifact, s.watch, kernels)
    s.seconds["total"] = s.clock() - start
    show(options, "time", lambda: "\n".join(f"{k:12}{v:9.4f} s" for k, v in s.seconds.items()))
    return call


def start_workers(count: int | None) -> None:
    """Start Triton's compile workers; without Triton, whoever needs them says so."""
    from litz.runtime.triton.build import start_workers as start  # the CPU does without it

    with suppress(ToolchainError):
        start(count)


def _in_eager_mode(
    gm: GraphModule, reason: str, recompile: str, tell: Observer
) -> Callable[..., Any]:
    """Dynamo's own graph, as it is."""
    report_fallback("whole", reason)
    tell("eager", gm, Stages(fallback=reason, recompile=recompile))
    return gm.forward


def _through_aten(graph: GraphModule, stages: Stages, kind: str, reason: str) -> Boxed:
    stages.fallback = reason
    report_fallback(kind, reason)
    return dynamo.interpreted(graph)


def _failed(
    graph: GraphModule, options: Options, stages: Stages, kind: str, error: Exception
) -> Boxed:
    path = save_repro(graph, options, error)
    if isinstance(error, CompilationError):
        shown = CompilationError(
            error.message, op=error.op, user_stack=error.user_stack, repro=path
        )
    else:
        what = str(error) if isinstance(error, LitzError) else f"{type(error).__name__}: {error}"
        shown = CompilationError(what, repro=path)
    if options.on_error == "eager":
        warnings.warn(f"{shown}\nThis graph runs through ATen.", stacklevel=2)
        return _through_aten(graph, stages, kind, str(error))
    raise shown from error
