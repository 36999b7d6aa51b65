"""Gradients of gradients: the first are compiled, what is differentiated again runs eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.autograd import Function

from litz.errors import SecondGradientError
from litz.runtime.torch_private import CHECKPOINT, in_transform, is_autocasting, skipped, untraced

Program = Callable[..., Any]
"""What was compiled, in eager mode: takes the same arguments, and gives results of as many."""

_ALONE = ("num_outputs_aliased", "num_intermediate_bases")
"""What AOTAutograd counts where results of a compiled graph are not the program's alone."""


def remembered(args: Iterable[Any]) -> list[Any] | None:
    """Arguments without keeping them alive, and how often each was written until now.

    None where one does not say: tensors of inference mode, which gradients cannot go by, and what
    is neither a tensor nor a number.  Every call with gradients pays for it.
    """
    try:
        return [x if type(x) is int or type(x) is float else (ref(x), x._version) for x in args]
    except (AttributeError, RuntimeError, TypeError):
        return None


def keep_program(function: Any, program: Program) -> None:
    """Have gradients of AOTAutograd's function differentiated by way of the program.

    They are those of the compiled backward graph.  Who differentiates them again has the program
    run once more, in eager mode: that needs the arguments of the forward pass, which its node has
    as ``given`` (see ``remembered``).  Nodes without are left as they are.
    """
    plain = function.backward
    boxed = getattr(function, "boxed_grads_call", False)

    def backward(ctx: Any, *given: Any) -> Any:
        known = getattr(ctx, "given", None)
        if known is None or not torch.is_grad_enabled() or in_transform():
            return plain(ctx, *given)
        args, why = _arguments(known, ctx.needs_input_grad)
        grads = [*(given[0] if boxed else given)]
        apply: Any = _Gradients.apply
        return apply(partial(plain, ctx, *given), program, why, len(grads), *grads, *args)

    function.backward = staticmethod(skipped(backward))


def differentiable(call: Program, program: Program | None) -> Program:
    """A compiled program whose gradients can be differentiated; call: by AOTAutograd's wrappers."""
    if program is None:
        return call
    ready = False

    def run(*args: Any) -> Any:
        nonlocal ready
        results = call(*args)
        if torch.is_grad_enabled() and not in_transform():
            ready = remember(results, args, None if ready else program) or ready
        return results

    return run


def repeatable(program: torch.fx.GraphModule, metadata: Any) -> Program | None:
    """Dynamo's graph in eager mode, None where it has no gradients or gives views.

    What refuses where that is none of what is differentiated: AOTAutograd would itself where it is
    asked, but nobody may come to ask it.  metadata: what it knows of the graph.
    """
    alone = (
        any(x.requires_grad for x in metadata.output_info)
        and not any(getattr(metadata, name, True) for name in _ALONE)
        and not metadata.tokens
    )
    if not alone:
        return None
    if any(x.mutates_data or x.mutates_metadata for x in metadata.input_info):
        return _refusing("the program writes into its arguments")
    if metadata.num_forward_returns != len(metadata.output_info):
        return None
    if is_autocasting():
        return _refusing("the program was compiled under autocast")
    # Dynamo has traced what is in them without its gradients: those of autograd functions are code
    # that nobody differentiates again as eager mode does.
    graphs = (m.graph for m in program.modules() if isinstance(m, torch.fx.GraphModule))
    for target in (n.target for graph in graphs for n in graph.nodes):
        if isinstance(target, HigherOrderOperator) and target is not CHECKPOINT:
            return _refusing(f"the program calls {target}")
    return untraced(program.forward)


def _refusing(why: str) -> Program:
    """In place of a program that does not give in eager mode what would be differentiated."""

    def refuse(*_: Any) -> Any:
        raise _refused(why)

    return refuse


def remember(results: Iterable[Any], args: Sequence[Any], program: Program | None) -> bool:
    """Tell the node that made results what it was given; False where there is none.

    program: for AOTAutograd's function, which has not been told of it yet.
    """
    made = (x.grad_fn for x in results if isinstance(x, Tensor))
    kinds = ((node, getattr(type(node), "_forward_cls", None)) for node in made)
    node: Any
    node, function = next((k for k in kinds if hasattr(k[1], "compiled_bw")), (None, None))
    if node is None or len(node.needs_input_grad) != len(args):
        return False
    if program is not None:
        keep_program(function, program)
    node.given = remembered(args)
    return True


def _arguments(known: Sequence[Any], wanted: Sequence[bool]) -> tuple[list[Any], str]:
    """The arguments of a forward pass as it had them, and why they are not to be had; "" if so.

    wanted: of which there are gradients.  Who differentiates those finds out on the way to an
    argument; where one of these is missed nobody may go there, and all is refused at once.
    """
    args: list[Any] = []
    why = ""
    for x, needed in zip(known, wanted, strict=True):
        if not isinstance(x, tuple):
            args.append(x)
            continue
        if (tensor := x[0]()) is None:
            why = "an argument of the forward pass is not in memory any more"
        elif tensor._version != x[1]:
            why = "an argument has been written since the forward pass"
        if needed and (tensor is None or not tensor.requires_grad):
            raise _refused(why or "an argument wanted a gradient before, and wants none now")
        if tensor is not None:
            args.append(tensor if needed else tensor.detach())
    return args, why


class _Gradients(Function):
    """The gradients of a program, as a function of its results' gradients and its arguments."""

    @staticmethod
    def forward(ctx: Any, first: Any, program: Program, why: str, count: int, *given: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.program, ctx.why, ctx.count = program, why, count
        ctx.places = [i for i, x in enumerate(given) if isinstance(x, Tensor)]
        ctx.others = [None if isinstance(x, Tensor) else x for x in given]
        ctx.save_for_backward(*[given[i] for i in ctx.places])
        return tuple(first())

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        if ctx.why:
            raise _refused(ctx.why)
        given = [*ctx.others]
        for i, x in zip(ctx.places, ctx.saved_tensors, strict=True):
            given[i] = x
        wanted = [x is not None for x in outer]
        if not any(wanted):
            return (None,) * (4 + len(given))
        again = torch.is_grad_enabled()
        with torch.enable_grad(), _without_casts(x for x in given if isinstance(x, Tensor)):
            own = [_own(x) if isinstance(x, Tensor) else x for x in given]
            grads, args = own[: ctx.count], own[ctx.count :]
            with _without_draws(x for x in args if isinstance(x, Tensor)):
                results = ctx.program(*args)
            over = [i for i, x in enumerate(args) if wanted[i] and x.requires_grad]
            inner = _gradients(results, [args[i] for i in over], grads, True)
            asked = [i for i, need in enumerate(ctx.needs_input_grad[4:]) if need]
            second = _gradients(inner, [own[i] for i in asked], [outer[i] for i in over], again)
            found = dict(zip(asked, second, strict=True))
        return None, None, None, None, *[found.get(i) for i in range(len(given))]


def _gradients(of: Iterable[Any], by: Sequence[Tensor], given: Iterable[Any], again: bool) -> Any:
    """Gradients by tensors, None where there are none; given: those of what they are taken of.

    again: they are differentiated too.
    """
    pairs = zip(of, given, strict=True)
    known = [
        (x, g) for x, g in pairs if isinstance(x, Tensor) and x.requires_grad and g is not None
    ]
    if not known or not by:
        return [None] * len(by)
    tops, grads = zip(*known, strict=True)
    return torch.autograd.grad(tops, by, grads, create_graph=again, allow_unused=True)


def _own(x: Tensor) -> Tensor:
    """A tensor to differentiate by, apart from others that were computed from it.

    What wants no gradient stays so: some operators refuse statistics, say, that want one.
    """
    return x.view_as(x) if x.requires_grad else x


@contextmanager
def _without_casts(tensors: Iterable[Tensor]) -> Iterator[None]:
    """As a program was compiled, whatever casts operators where gradients are asked for again."""
    with ExitStack() as stack:
        for kind in sorted({x.device.type for x in tensors}) if is_autocasting() else ():
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def _without_draws(tensors: Iterable[Tensor]) -> Iterator[None]:
    """What draws random numbers is refused, and draws none: it drew others before."""
    devices = sorted({x.device.index for x in tensors if x.is_cuda})

    def states() -> list[Tensor]:
        return [torch.get_rng_state(), *[torch.cuda.get_rng_state(d) for d in devices]]

    with torch.random.fork_rng(devices):
        before = states()
        yield
        drawn = not all(torch.equal(a, b) for a, b in zip(before, states(), strict=True))
    if drawn:
        raise _refused("the program draws random numbers, and would draw others")


def _refused(why: str) -> SecondGradientError:
    return SecondGradientError(
        f"litz: gradients of a compiled program cannot be differentiated: {why}. Compute the "
        "first gradient within what is compiled (torch.func.grad), or leave it in eager mode."
    )
