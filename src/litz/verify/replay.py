"""Runs a saved repro: compiled and eager results against float64."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import symbolic_trace

from litz.verify.compare import compare, same_bits
from litz.verify.reference import Reference


def replay(module: torch.nn.Module, inputs: Sequence[Any], options: Mapping[str, Any]) -> int:
    """Compile ``module``, run it on ``inputs`` and print what differs; 1 if something is wrong.

    Raises where the graph cannot be built here: ATen in its place would always be right.
    """
    compiled = torch.compile(module, backend="litz", options=dict(options))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*runs through ATen")
        results = compiled(*(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs))
        wrong = judge(module, inputs, results)
    print("wrong" if wrong else "right: the fault does not show in this part of the graph alone")
    return int(wrong > 0)


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
