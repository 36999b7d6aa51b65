"""The Dynamo backend: ``torch.compile(fn, backend="litz")``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from litz import dynamo
from litz.compiler import Stages, compile_graph
from litz.errors import CompilationError, LitzError, ToolchainError
from litz.graph.repro import save_repro
from litz.lowering.context import GraphUnsupported
from litz.options import Options, make_options

log = logging.getLogger("litz")

Boxed = Callable[[list[Any]], Any]
Observer = Callable[[str, GraphModule, Stages], None]


def litz(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph (PyTorch calls this).

    mode, options: as given to ``torch.compile``; see ``litz.options.Options``.
    Raises OptionError, CompilationError.
    """
    return compile_with(gm, example_inputs, make_options(options, mode))


def compile_with(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    observe: Observer | None = None,
) -> Callable[..., Any]:
    """``litz`` with parsed options.  observe: told the kind, graph and stages of each compile."""

    def compiler(kind: str) -> Callable[[GraphModule, Sequence[Any]], Boxed]:
        def compile_one(graph: GraphModule, _inputs: Sequence[Any]) -> Boxed:
            stages = Stages()
            call = compile_or_fall_back(graph, options, stages, kind)
            if observe is not None:
                observe(kind, graph, stages)
            return dynamo.boxed(call)

        return compile_one

    return dynamo.compile_through_aot(
        gm,
        example_inputs,
        forward=compiler("forward"),
        backward=compiler("backward"),
        inference=compiler("inference"),
    )


def compile_or_fall_back(
    graph: GraphModule, options: Options, stages: Stages, kind: str = ""
) -> Boxed:
    """Compile; what Litz cannot hold, or cannot build on this machine, runs through ATen."""
    try:
        return compile_graph(graph, options, stages, inference=kind == "inference")
    except GraphUnsupported as e:
        stages.fallback = str(e)
        log.info("a graph runs through ATen: %s", e)
        return dynamo.interpreted(graph)
    except ToolchainError as e:
        stages.fallback = "no working C++ compiler"
        if "refused" in str(e):
            return _failed(graph, options, stages, e)
        warnings.warn(f"{e} Until then, compiled graphs run through ATen.", stacklevel=2)
        return dynamo.interpreted(graph)
    except Exception as e:
        return _failed(graph, options, stages, e)


def _failed(graph: GraphModule, options: Options, stages: Stages, error: Exception) -> Boxed:
    path = save_repro(graph, options.repro_dir, error)
    if isinstance(error, CompilationError):
        shown = CompilationError(
            error.message, op=error.op, user_stack=error.user_stack, repro=path
        )
    else:
        what = str(error) if isinstance(error, LitzError) else f"{type(error).__name__}: {error}"
        shown = CompilationError(what, repro=path)
    if options.on_error == "eager":
        stages.fallback = str(error)
        warnings.warn(f"{shown}\nThis graph runs through ATen.", stacklevel=2)
        return dynamo.interpreted(graph)
    raise shown from error
