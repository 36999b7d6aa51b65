"""Text tests of graph passes: a function of ATen calls in, the calls that are left out.

The input is Python: ``def f(x: "f32[4, 8]", y: "i64[8]"): ...`` with ``aten`` at hand.  An
annotation gives an input's type and sizes; ``f32[4, 8]{1, 4}`` its strides too.  The function is
traced with fake tensors, the passes of inference graphs run, and each call is printed on a line,
constants of the graph with their values.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from litz.graph.passes import run_passes
from litz.ir.dtype import BY_NAME
from litz.lowering.torch_types import to_torch

_INPUT = re.compile(r"(\w+)\[([\d, ]*)\](?:\{([\d, ]*)\})?")


def _numbers(text: str) -> list[int]:
    return [int(t) for t in text.split(",") if t.strip()]


def _input(text: str) -> torch.Tensor:
    found = _INPUT.fullmatch(text)
    assert found is not None, text
    dtype, sizes, strides = to_torch(BY_NAME[found[1]]), _numbers(found[2]), found[3]
    if strides is None:
        return torch.empty(sizes, dtype=dtype)
    return torch.empty_strided(sizes, _numbers(strides), dtype=dtype)


def traced(source: str) -> GraphModule:
    """The graph of the function that a text defines."""
    scope: dict[str, Any] = {"aten": torch.ops.aten, "torch": torch, "inf": float("inf")}
    exec(compile(source, "<graph>", "exec", dont_inherit=True), scope)
    function = next(v for v in scope.values() if inspect.isfunction(v))
    inputs = [_input(p.annotation) for p in inspect.signature(function).parameters.values()]

    def several(*args: torch.Tensor) -> tuple[Any, ...]:
        out = function(*args)
        return out if isinstance(out, tuple) else (out,)

    gm = make_fx(several, tracing_mode="fake")(*inputs)
    names = list(inspect.signature(function).parameters)
    for n, name in zip([n for n in gm.graph.nodes if n.op == "placeholder"], names, strict=True):
        n._rename(name)
    return gm


def graph_text(gm: GraphModule) -> str:
    """One line a call."""
    lines: list[str] = []
    for n in gm.graph.nodes:
        if n.op == "get_attr":
            lines.append(f"{n.name} = {getattr(gm, n.target).tolist()}")
        elif n.op == "call_function":
            args = [_text(a) for a in n.args] + [f"{k}={_text(v)}" for k, v in n.kwargs.items()]
            lines.append(f"{n.name} = {n.target}({', '.join(args)})")
        elif n.op == "output":
            lines.append(f"return {_text(n.args[0])}")
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(value)


def passes(source: str) -> str:
    """What the passes make of the graph."""
    gm = traced(source)
    changed = run_passes(gm, inference=True, check=True)
    return f"changed by: {', '.join(changed) or 'none'}\n{graph_text(gm)}"
