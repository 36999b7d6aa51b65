"""Graphs that are bound, as PyTorch is handed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from litz import dynamo
from litz.binding import Recorder, bind
from litz.cache.programs import Boxed, Kept, ProgramKey, wrapped
from litz.errors import LitzError
from litz.options import Options
from litz.runtime.batched import one_by_one
from litz.runtime.collector import uncollected
from litz.runtime.torch_private import has_tangent, in_batches, in_dual_level
from litz.stages import Stages


def recorded(call: Boxed, recorder: Recorder, stages: Stages, kind: str) -> Boxed:
    """``call`` as a CUDA graph, where the mode asks for it and nothing stands against it."""
    if not recorder.wanted or stages.timer is not None:
        return call
    if stages.fallback or stages.artifact is None:
        stages.cuda_graphs = "it runs through ATen"
        return call
    stages.cuda_graphs = found = recorder.record(call, stages.artifact.recording, kind)
    return call if isinstance(found, str) else found


def finished(call: Boxed, recorder: Recorder, stages: Stages, kind: str) -> Boxed:
    """What PyTorch is handed: ``recorded``, and a backward graph that says what it cannot take."""
    made = recorded(call, recorder, stages, kind)
    if kind == "backward" and not stages.fallback:
        made = partial(_backward, made)
    return dynamo.boxed(made)


def _backward(call: Boxed, args: list[Any]) -> Any:
    """Neither forward-mode AD nor batched gradients keep a backward pass apart by guards."""
    if in_batches():
        return one_by_one(call, args)
    if in_dual_level() and any(isinstance(x, Tensor) and has_tangent(x) for x in args):
        raise LitzError(
            "forward-mode AD through the gradient of a function that was compiled outside of it: "
            "call the function in the dual level too, where it runs in eager mode"
        )
    return call(args)


def bind_program(kept: Kept, options: Options) -> Callable[..., Any]:
    """The callable of a program that was kept, whose guards have been checked."""
    known, recorder = ProgramKey("", None, {}), Recorder(options)
    calls = {kind: call for kind, call, _ in bound_graphs(kept, known, options, recorder)}
    with dynamo.tracing():
        return wrapped(kept, calls, (), known)


def bound_graphs(
    kept: Kept, known: ProgramKey, options: Options, recorder: Recorder
) -> Iterator[tuple[str, Boxed, Stages]]:
    """The graphs of a program that was kept: the kind of each, its call, and what it took."""
    with uncollected(), dynamo.real_tensors():
        for kind, artifact in kept[0].items():
            stages = Stages(artifact=artifact)
            with stages.timed("total"):
                call = finished(bind(artifact, options, known.objects), recorder, stages, kind)
            yield kind, call, stages
