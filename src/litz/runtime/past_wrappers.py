"""Calls of compiled graphs past AOTAutograd's wrappers, where those have nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from litz.runtime.second_gradients import Program, remember, remembered
from litz.runtime.torch_private import in_transform, is_autocasting, set_gradients, skipped

_WRAPPERS = (
    "SerializableCompiledFunction",
    "_create_runtime_wrapper.<locals>.runtime_wrapper",
    "EffectTokensWrapper.post_compile.<locals>.inner_fn",
    "FunctionalizedRngRuntimeWrapper.post_compile.<locals>.wrapper",
    "make_boxed_func.<locals>.g",
)
"""Those of AOTAutograd that graphs may have."""
_TASKS = (
    "num_mutated_inp_runtime_indices",
    "num_mutated_graph_handled_indices_seen_by_autograd",
    "num_outputs_aliased",
    "dynamic_outputs",
    "is_rng_op_functionalized",
    "tokens",
)
"""What AOTAutograd knows of a graph where its wrappers have more to do than to call it."""
_TRAINING_TASKS = (
    "num_unsafe_view_outputs",
    "num_backward_tokens",
    "num_graphsafe_rng_states",
    "num_intermediate_bases",
    "num_tensors_saved_with_no_vc_check",
    "num_opaque_objects_saved_for_bw",
    "num_symints_saved_for_bw",
    "dynamic_saved_tensors_idxs",
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
)
"""The same where it has gradients; a version of PyTorch that lacks one has no such task."""

_Wrapped = Callable[[list[Any]], Any]
_Call = Callable[..., Sequence[Any]]


def past_wrappers(call: _Wrapped, metadata: Any, program: Program | None) -> _Call | None:
    """What calls a graph as AOTAutograd's wrappers around it do, where they have nothing to do.

    They take longer than a small kernel.  The first call goes by them, who look at custom operators
    in it; later ones turn gradients off alone, or are of an autograd function that does no more
    than to call the graphs and to save tensors.

    call: the wrappers, which take a list of arguments.  metadata: what AOTAutograd knows of the
    graph.  program: the same in eager mode, if gradients may be differentiated by way of it.  None
    where they have more to do, or this version of PyTorch has others.
    """
    if is_autocasting() or not _idle(metadata):
        return None
    if getattr(metadata, "grad_enabled_mutation", True) is not None:
        return None
    graph: Any = _wrapped_by_idle(call)
    if graph is None:
        return None
    function = getattr(graph, "__self__", None)
    if isinstance(function, type) and issubclass(function, Function):
        lean = _lean(function, metadata, program is not None)
        return None if lean is None else _with_gradients(call, lean, program)
    if graph is call or not getattr(graph, "_boxed_call", False):
        return None
    return _without_gradients(call, graph)


def are_idle() -> bool:
    """Whether wrappers around the graph that AOTAutograd compiles do no more than to call it."""
    return _idle(getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None))


def _idle(metadata: Any) -> bool:
    return not any(getattr(metadata, name, True) for name in _TASKS)


def _wrapped_by_idle(call: Any) -> Any:
    """What is called in the end, None where a wrapper between may have more to do."""
    while (inside := getattr(call, "__wrapped__", None)) is not None:
        if _name(call) not in _WRAPPERS:
            return None
        call = inside
    return call


def _name(wrapper: Any) -> str:
    """Where a wrapper was written: some of PyTorch 2.11 have taken the name of what they call."""
    code = getattr(wrapper, "__code__", wrapper)
    name = getattr(code, "co_qualname", None)  # from Python 3.11 on
    return str(name or getattr(wrapper, "__qualname__", type(wrapper).__name__))


def _without_gradients(call: _Wrapped, graph: _Wrapped) -> _Call:
    first = True

    def run(*args: Any) -> Any:
        nonlocal first
        if first:
            first = False
            return call([*args])
        if not torch.is_grad_enabled():
            return graph([*args])
        set_gradients(False)
        try:
            return graph([*args])
        finally:
            set_gradients(True)

    return run


def _with_gradients(call: _Wrapped, lean: type[Function], program: Program | None) -> _Call:
    # Without what Function.apply asks of each argument: guards tell tensors of transforms apart.
    apply: Any = super(Function, lean).apply  # type: ignore[misc]
    idle: bool | None = None  # the wrappers: None before the first call

    def run(*args: Any) -> Any:
        nonlocal idle
        if not idle or not torch.is_grad_enabled() or in_transform():
            results = call([*args])
            if torch.is_grad_enabled() and not in_transform():
                if program is not None:
                    remember(results, args, program if idle is None else None)
                if idle is None:
                    idle = _takes_all(args, results)
            return results
        return apply(*args)

    return run


def _takes_all(args: Sequence[Any], results: Sequence[Any]) -> bool:
    """Whether the function that made results was given arguments as they are.

    Wrappers detach those that have no gradient, and have more to do with what is neither a tensor
    nor a number.
    """
    if not all(isinstance(x, Tensor | int | float) for x in args):
        return False
    if any(torch._C._functorch.is_functorch_wrapped_tensor(x) for x in args if type(x) is Tensor):
        return False
    made = (x.grad_fn for x in results if isinstance(x, Tensor))
    node: Any = next((n for n in made if n is not None), None)
    wanted = tuple(isinstance(x, Tensor) and x.requires_grad for x in args)
    return getattr(node, "needs_input_grad", None) == wanted


def _lean(function: Any, metadata: Any, repeatable: bool) -> type[Function] | None:
    """AOTAutograd's function of a graph with gradients without what it does for others.

    repeatable: gradients may be differentiated, for which a node remembers its arguments.  It
    leaves to that function backward passes that are not yet compiled or are differentiated, and
    gradients that do not lie as the backward graph wants them.
    """
    if any(getattr(metadata, name, None) for name in _TRAINING_TASKS):
        return None
    names = ("compiled_fw", "compiled_bw", "_backward_impl", "maybe_subclass_metadata")
    if not all(hasattr(function, n) for n in names) or function.maybe_subclass_metadata is not None:
        return None
    outputs = metadata.output_info
    count = metadata.num_forward_returns
    fixed = [i for i, o in enumerate(outputs) if not o.requires_grad]
    tangents = [
        i
        for i, o in enumerate(outputs)
        if issubclass(o.raw_type, Tensor)
        and getattr(o, "requires_grad_for_backward", o.requires_grad)
    ]
    formats: list[Any] = [getattr(m, "memory_format", None) for m in metadata.subclass_tangent_meta]
    if not formats or None in formats or len(formats) != len(tangents) or count != len(outputs):
        return None
    layouts = [(i, f.stride, f.memory_format) for i, f in zip(tangents, formats, strict=True)]
    forward_graph: _Wrapped = _wrapped_by_idle(function.compiled_fw) or function.compiled_fw
    boxed = getattr(function, "boxed_grads_call", False)

    class CompiledFunction(function):  # type: ignore[misc]  # named as PyTorch's
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            if repeatable:
                ctx.given = remembered(args)
            made = forward_graph([*args])
            ctx.save_for_backward(*[x.detach() if x._is_view() else x for x in made[count:]])
            if fixed:
                ctx.mark_non_differentiable(*[x for i in fixed if isinstance(x := made[i], Tensor)])
                ctx._materialize_non_diff_grads = False
            return tuple(made[:count])

        @staticmethod
        @skipped
        def backward(ctx: Any, *given: Any) -> Any:
            grads: Any = given[0] if boxed else given
            graph, strict = function.compiled_bw, torch.are_deterministic_algorithms_enabled()
            if graph is None or strict or torch.is_grad_enabled() or in_transform():
                return function.backward(ctx, *given)
            # Before a look at saved tensors: a checkpoint hands each out once.
            if not _fit(grads, layouts):
                return function.backward(ctx, *given)
            args = [*ctx.saved_tensors, *(grads[i] for i, _, _ in layouts)]
            if boxed:
                grads.clear()  # so that they die in time
            ctx.maybe_clear_saved_tensors()
            return tuple(graph(args))

    node: Any = CompiledFunction._backward_cls
    node.symints = node.opaque_objects = node._tensors_no_vc_check = ()
    return CompiledFunction


def _fit(grads: Sequence[Any], layouts: Sequence[tuple[int, Any, Any]]) -> bool:
    """Whether gradients lie as a graph wants them: by strides, or in a memory format's order."""
    for i, stride, order in layouts:
        x = grads[i]
        if type(x) is not Tensor or not (
            x.stride() == stride if order is None else x.is_contiguous(memory_format=order)
        ):
            return False
    return True
