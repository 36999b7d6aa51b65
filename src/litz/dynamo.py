"""The one door to PyTorch's compiler stack: AOTAutograd, the partitioner, graph interpretation."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
from functorch.compile import (  # type: ignore[import-untyped]
    aot_module_simplified,
    min_cut_rematerialization_partition,
)
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Interpreter

from litz.graph.values import EAGER_VAL
from litz.runtime.fake import unset_fake_temporarily
from litz.runtime.min_cut import Cut, Split, quick_cuts
from litz.runtime.past_wrappers import past_wrappers
from litz.runtime.second_gradients import differentiable, repeatable
from litz.runtime.torch_private import (
    LazyGraphModule,
    is_written,
    lazy_modules,
    partitioning,
    untraced,
)
from litz.runtime.torch_private import traced as is_traced

REFUSALS = ("encountered a mutation on a view chain", "Found a custom (non-ATen) operator")
GraphCompiler = Callable[[GraphModule, Sequence[Any]], Callable[[list[Any]], Any]]


def compile_through_aot(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    plain: GraphModule | None = None,
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
    split: Callable[[GraphModule, int, Sequence[int], Split], Sequence[GraphModule]] | None = None,
) -> Callable[..., Any]:
    """Split ``gm`` by AOTAutograd into functional ATen graphs and compile each.

    plain: what eager mode runs where gradients are differentiated again; None: ``gm``.
    split: gives the forward and backward part of a joint graph, of which so many results are the
    forward's and these inputs stay where they are, by way of PyTorch's partitioner.
    """

    def partition(
        joint: GraphModule,
        _inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **more: Any,
    ) -> Any:
        def parted(
            graph: GraphModule, static: Sequence[int], cuts: list[Cut]
        ) -> Sequence[GraphModule]:
            # What is bound from the cache needs none of it.
            from litz.graph.equal_calls import share_equal_calls

            with quick_cuts(cuts), partitioning(partial(share_equal_calls, graph.graph)):
                parts: Sequence[GraphModule] = min_cut_rematerialization_partition(
                    graph,
                    _inputs,
                    num_fwd_outputs=num_fwd_outputs,
                    static_lifetime_input_indices=list(static),
                    **more,
                )
            return parts

        static = static_lifetime_input_indices or ()
        parts = (
            split(joint, num_fwd_outputs, static, parted) if split else parted(joint, static, [])
        )
        from litz.graph.saved import save_less  # what is bound from the cache needs none of it

        before, after = parts
        save_less(before, after, num_fwd_outputs)
        return tuple(_Part(m, m.graph, type(m).__name__) for m in parts)

    return _through_aot(
        gm,
        example_inputs,
        gm if plain is None else plain,
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=DECOMPOSITIONS,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def _through_aot(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    plain: GraphModule,
    *,
    bw_compiler: Any,
    **given: Any,
) -> Callable[..., Any]:
    """PyTorch's ``aot_autograd``, without what that imports of its compiler to write logs."""
    lists = any(isinstance(x, list | tuple | dict) for x in example_inputs)
    if lists or os.environ.get("TORCH_COMPILE_DEBUG") == "1":
        whole: Callable[..., Any] = aot_autograd(bw_compiler=bw_compiler, **given)
        return whole(gm, example_inputs)  # type: ignore[no-any-return]

    def later(compile: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: untraced(untraced(compile)(*args))

    if hasattr(bw_compiler, "compiler_fn"):  # marked as one whose graphs are kept
        bw_compiler.compiler_fn = later(bw_compiler.compiler_fn)
    else:
        bw_compiler = later(bw_compiler)
    # DDP's optimizer sees by this count that the first call shall give it fake results.
    torch._dynamo.utils.counters["aot_autograd"]["total"] += 1
    with lazy_modules():  # only their graphs are read
        made = aot_module_simplified(gm, example_inputs, bw_compiler=bw_compiler, **given)
    inside = None if [*gm.parameters(), *gm.buffers()] else getattr(made, "__wrapped__", None)
    known = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    if inside is not None:
        program = None if known is None else repeatable(plain, known)
        direct = past_wrappers(inside, known, program) or differentiable(made, program)
        made = made if direct is made else wraps(made)(direct)
    return untraced(made)


class _Part(LazyGraphModule):
    """The forward or backward part of a joint graph: its text is made for who reads it.

    AOTAutograd copies one, and prints both for PyTorch's structured trace even where none is kept;
    Litz reads their graphs alone.
    """

    def print_readable(self, *args: Any, **kwargs: Any) -> str:
        if kwargs.get("expanded_def") and not is_traced():  # so does that trace ask
            return ""
        text: str = super().print_readable(*args, **kwargs)
        return text


def traced(program: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> GraphModule:
    """The functional graph of ATen calls that AOTAutograd makes of a program without gradients."""
    found: list[GraphModule] = []

    def keep(graph: GraphModule, _inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        found.append(graph)
        return boxed(lambda args: ())  # nobody runs it

    aot_module_simplified(
        program,
        inputs,
        fw_compiler=keep,
        inference_compiler=keep,
        decompositions=DECOMPOSITIONS,
        keep_inference_input_mutations=True,
    )
    return found[0]


def traced_part(program: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> GraphModule:
    """The graph that ``traced`` makes of what writes no input, in one run of it.

    AOTAutograd runs a program once before, to see what it writes and which memory results share.
    inputs: fake tensors, at least one.  Raises ValueError where one is written.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(*own: Any) -> Any:
        results = program(*own)
        if any(is_written(x) for x in own):
            raise ValueError("an input is written")
        return results

    functional = dispatch_functionalize(run, FunctionalTensorMode())
    one_thread = torch.autograd.set_multithreading_enabled(False)
    fake: Any = inputs[0]
    with one_thread, fake.fake_mode, enable_python_dispatcher():
        graph = make_fx(functional, decomposition_table=DECOMPOSITIONS)(*inputs)
    graph.graph.eliminate_dead_code()
    return graph


def keep_saved_tensors() -> None:
    """Tell AOTAutograd, which is compiling a forward graph, that backward graphs overwrite no
    tensor saved for them: they may run again, for `retain_graph=True`.

    It refuses that otherwise, but where it compiles a backward graph for such a run.
    """
    context: Any = torch._guards.TracingContext.try_get()
    if (known := getattr(context, "fw_metadata", None)) is not None:
        known.bw_donated_idxs = []


def results_are_no_views() -> None:
    """Tell AOTAutograd that the forward graph that it has compiled returns tensors, not views.

    It would make them into such by a call that hides from autograd what they share memory with, so
    that nobody were told who writes into what the backward pass reads.
    """
    context: Any = torch._guards.TracingContext.try_get()
    if (known := getattr(context, "fw_metadata", None)) is not None:
        known.num_unsafe_view_outputs, known.unsafe_view_out_indices = 0, []


def guard_dual_level() -> None:
    """Have Dynamo compile again what is called in another level of forward-mode AD than now.

    It looks at the level by itself where a function enters one, and nowhere else.
    """
    context = torch._guards.TracingContext.try_get()
    if context is not None:
        from torch._dynamo.source import GlobalStateSource
        from torch._guards import Guard

        guard = Guard(GlobalStateSource(), torch._dynamo.guards.GuardBuilder.DUAL_LEVEL)
        context.guards_context.dynamo_guards.add(guard)


def is_refusal(error: RuntimeError) -> bool:
    """Whether AOTAutograd says that no graph without mutation stands for a program.

    It takes operators for users' own where it knows no form of them that writes nothing:
    ``polygamma_``.
    """
    return any(text in str(error) for text in REFUSALS)


@contextmanager
def tracing() -> Iterator[None]:
    """A compilation for what was traced in another process, where none is under way."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fake = torch._subclasses.FakeTensorMode(shape_env=ShapeEnv())
    context = torch._guards.TracingContext.try_get() or torch._guards.TracingContext(fake)
    with torch._guards.tracing(context):
        yield


def real_tensors() -> AbstractContextManager[Any]:
    """Where tensors that the compiler makes hold numbers, although PyTorch is tracing."""
    context: AbstractContextManager[Any] = unset_fake_temporarily()
    return context


def boxed(call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark ``call`` as taking one list of arguments that it may empty."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def interpreted(gm: GraphModule) -> Callable[[list[Any]], Any]:
    """Run the graph node by node through ATen; arguments die with their last use.

    Results have eager's strides also where a pass has changed those of the graph.
    """
    strides = _eager_strides(gm)

    def run(args: list[Any]) -> Any:
        own = list(args)
        args.clear()
        results = Interpreter(gm).boxed_run(own)
        if not strides:
            return results
        return tuple(_laid_out(r, strides.get(i)) for i, r in enumerate(results))

    return run


def _eager_strides(gm: GraphModule) -> dict[int, tuple[int, ...]]:
    """The strides of results, by position, that are not those of the graph any more."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    found: dict[int, tuple[int, ...]] = {}
    for i, n in enumerate(output.args[0]):
        val = n.meta.get(EAGER_VAL) if isinstance(n, torch.fx.Node) else None
        if val is not None and all(type(s) is int for s in val.stride()):
            found[i] = val.stride()
    return found


def _laid_out(result: Any, strides: tuple[int, ...] | None) -> Any:
    if strides is None or result.stride() == strides:
        return result
    fresh = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    return fresh.copy_(result)


def recompile_reason() -> str | None:
    """The guard whose failure made Dynamo compile again what is being compiled now, if one did."""
    try:
        from torch._dynamo.utils import get_metrics_context

        reason = get_metrics_context()._metrics.get("recompile_reason")
    except (ImportError, AttributeError):
        return None  # only the log would say it
    return reason if isinstance(reason, str) else None


class _Heard(logging.Handler):
    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__(logging.DEBUG)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage())


@contextmanager
def heard_breaks(hear: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile ``hear`` gets what Dynamo's log of graph breaks says of each: place and reason."""
    log = logging.getLogger("torch._dynamo.symbolic_convert.__graph_breaks")
    handler, level, propagate = _Heard(hear), log.level, log.propagate
    log.addHandler(handler)
    if not log.isEnabledFor(logging.DEBUG):  # nobody else has asked to read it
        log.setLevel(logging.DEBUG)
        log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


@contextmanager
def apart() -> Iterator[Callable[..., Any]]:
    """Where programs are compiled as in a fresh process; what was compiled before stays as it was.

    Gives what to call for ``torch.compile``.  What is compiled meanwhile is given up at the end,
    and what Dynamo has learned of functions that it had not seen: to leave one alone, say.
    """
    from torch._C._dynamo.eval_frame import reset_code
    from torch._dynamo.convert_frame import input_codes
    from torch._dynamo.guards import DeletedGuardManagerWrapper
    from torch._dynamo.pgo import get_code_state

    before = {id(x): x for x in _entries()}  # kept, so that no other gets its id
    seen = {id(code): code for code in _codes()}
    sizes = get_code_state()
    known = dict(sizes)
    sizes.clear()
    most = torch._dynamo.config.recompile_limit + len(before)
    isolates = "isolate_recompiles" in signature(torch.compile).parameters  # PyTorch 2.13 on
    try:
        with torch._dynamo.config.patch(recompile_limit=most):
            yield partial(torch.compile, **({"isolate_recompiles": True} if isolates else {}))
    finally:
        sizes.clear()
        sizes.update(known)
        for code in (new := [code for code in _codes() if id(code) not in seen]):
            reset_code(code)
        input_codes.seen[:] = [ref for ref in input_codes.seen if id(ref()) in seen]
        input_codes.seen_ids.difference_update(map(id, new))
        gone = DeletedGuardManagerWrapper("it was compiled to be looked at")
        for x in _entries():
            if id(x) not in before and x.extra_state is not None:
                x.extra_state.invalidate(x.cache_entry, gone)


def _entries() -> list[Any]:
    """The conditions under which Dynamo runs what it compiled, one object for each graph."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return [x.guard_manager for code in _codes() for x in _debug_get_cache_entry_list(code)]


def _codes() -> list[Any]:
    """The code of all functions that Dynamo has seen."""
    from torch._dynamo.convert_frame import input_codes

    return [code for seen in input_codes.seen if (code := seen()) is not None]


def guards(gm: GraphModule) -> list[object]:
    """The conditions on sizes that a graph's trace stands under so far."""
    for n in gm.graph.nodes:
        if n.op != "placeholder":
            break
        val = n.meta.get("val")
        sizes = val.shape if isinstance(val, torch.Tensor) else (val,)
        for s in sizes:
            if isinstance(s, torch.SymInt):
                return [g.expr for g in s.node.shape_env.guards]
    return []


# Operators are lowered whole: AOTAutograd decomposes only what is composite by definition.
DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
