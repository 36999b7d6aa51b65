"""What saved repros run: a graph that is judged against float64, compiled, or fused.

Each returns 1 where the fault shows.  Nothing is taken from the cache, and nothing saved again.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import symbolic_trace

from litz.errors import LitzError
from litz.verify.compare import compare, same_bits
from litz.verify.reference import Reference


def replay(module: torch.nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]) -> int:
    """Compile ``module``, run it on ``inputs`` and print what differs; 1 if something is wrong.

    Raises where the graph cannot be built here: ATen in its place would always be right.
    """
    wrong = judge(module, inputs, _run(module, inputs, options))
    print("wrong" if wrong else "right: the fault does not show in this part of the graph alone")
    return int(wrong > 0)


def builds(module: torch.nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]) -> int:
    """Compile ``module`` and print why that fails; 1 if it does."""
    error = failure(module, inputs, options)
    print("compiled" if error is None else error)
    return int(error is not None)


def fuses(module: torch.nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]) -> int:
    """Compare ``module`` as it is fused with itself without fusion; 1 if any bit differs."""
    plain, fused = (_run(module, inputs, {**options, "fuel": fuel}) for fuel in (0, -1))
    changed = 0
    for k, (a, b) in enumerate(zip(plain, fused, strict=True)):
        if not same_bits(a, b):
            changed += 1
            print(f"result {k}: fusion changes it by up to {_error(a, b):.3g}")
    judge(module, inputs, fused)
    return int(changed > 0)


def failure(
    module: torch.nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]
) -> LitzError | None:
    """The error that compiling raises, of Litz's own; None if it raises none."""
    try:
        _run(module, inputs, options)
    except Exception as e:
        error = litz_error(e)
        if error is None:
            raise
        return error
    return None


def litz_error(error: BaseException | None) -> LitzError | None:
    """Litz's error behind what PyTorch makes of it."""
    while error is not None and not isinstance(error, LitzError):
        error = error.__cause__ or error.__context__
    return error


def _run(
    module: torch.nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]
) -> Sequence[Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("error", message="(?s).*runs through ATen")
        given = {**options, "verify": False, "graph_cache": False, "repro_dir": folder}
        torch.compiler.reset()
        compiled = torch.compile(module, backend="litz", options=given)
        results: Sequence[Any] = compiled(
            *(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs)
        )
    return results


def judge(module: torch.nn.Module, inputs: Sequence[Any], results: Sequence[Any]) -> int:
    """How many results are beyond tolerance; prints the error of each and of eager."""
    graph = symbolic_trace(module).graph
    given = [n for n in graph.nodes if n.op == "placeholder"]
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    reference = Reference(nodes, dict(zip(given, inputs, strict=True)), {}, int)
    own, exact = reference.own(), reference.exact()
    (outputs,) = next(n for n in graph.nodes if n.op == "output").args
    wrong = 0
    for k, (n, x) in enumerate(zip(outputs, results, strict=True)):
        e, r = own[n], exact[n]
        mine, theirs = _error(x, r), _error(e, r)
        print(f"result {k} ({n.name}): largest error {mine:.3g}, eager's {theirs:.3g}")
        if same_bits(x, e):
            continue

        def sample(units: float, seed: int, n: torch.fx.Node = n) -> torch.Tensor:
            value: torch.Tensor = reference.perturbed(units, seed)[n]
            return value

        found = compare(x, r, e, sample)
        if found is not None:
            wrong += 1
            print(f"  wrong: index {found.index}: {found.actual!r} instead of {found.exact!r}")
    return wrong


def _error(a: torch.Tensor, b: torch.Tensor) -> float:
    if not a.numel():
        return 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    return (a.to(wide) - b.to(wide)).abs().max().item()
