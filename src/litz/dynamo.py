"""The one door to PyTorch's compiler stack: AOTAutograd, the partitioner, graph interpretation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import (  # type: ignore[import-untyped]
    min_cut_rematerialization_partition,
)
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Interpreter

GraphCompiler = Callable[[GraphModule, Sequence[Any]], Callable[[list[Any]], Any]]


def compile_through_aot(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
) -> Callable[..., Any]:
    """Split ``gm`` by AOTAutograd into functional ATen graphs and compile each."""
    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=DECOMPOSITIONS,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    return compiled


def boxed(call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark ``call`` as taking one list of arguments that it may empty."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def interpreted(gm: GraphModule) -> Callable[[list[Any]], Any]:
    """Run the graph node by node through ATen; arguments die with their last use."""

    def run(args: list[Any]) -> Any:
        own = list(args)
        args.clear()
        return Interpreter(gm).boxed_run(own)

    return run


# Operators are lowered whole: AOTAutograd decomposes only what is composite by definition.
DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
