"""Calls with bodies (``torch.cond``, ``scan``, regions), which are compiled by themselves.

The calls are the host's, as it has to look at what decides between bodies.  A region of which a
graph has many is compiled once.  Attention with functions of scores is a region: what its operator
does step by step, these functions inside.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.func import functionalize
from torch.fx import GraphModule, map_arg
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.graph.calls import higher_order_name
from litz.graph.dialect import (
    ASSOCIATIVE,
    COND,
    FLEX,
    FLEX_GRADIENT,
    MAP,
    REGION,
    SCAN,
    WHILE_LOOP,
    WITH_BODIES,
)
from litz.graph.values import attribute_value, fake_mode
from litz.ir.program import Subgraph
from litz.lowering.attention_captured import wanted_of_captured
from litz.lowering.context import GraphUnsupported
from litz.lowering.externs import add_call, argument
from litz.lowering.numbers import is_symbolic
from litz.lowering.state import GraphLowering
from litz.runtime import control_flow
from litz.runtime.torch_private import step_by_step

REASON: Final = "its bodies are compiled by themselves"
_RUNS: Final = {
    COND: "cond", WHILE_LOOP: "while_loop", REGION: "region", FLEX: "region",
    FLEX_GRADIENT: "region", MAP: "scan", SCAN: "scan", ASSOCIATIVE: "region",
}  # fmt: skip


def has_bodies(target: object) -> bool:
    """Whether an operator is one of those whose bodies are compiled."""
    return higher_order_name(target) in WITH_BODIES


def is_body(gm: GraphModule, n: FxNode) -> bool:
    """Whether a node is an attribute that is read as a body alone."""
    if n.op != "get_attr" or not isinstance(attribute_value(gm, n), torch.nn.Module):
        return False
    return bool(n.users) and all(has_bodies(u.target) for u in n.users)


def lower_control_flow(low: GraphLowering, n: FxNode) -> Any:
    """Add the call that ``n`` stands for; its results."""
    name = higher_order_name(n.target)
    if low.compile_body is None:
        raise GraphUnsupported(f"a call of {name}, whose bodies nobody checks")
    vals: Any = n.meta.get("val")
    if name == FLEX_GRADIENT:
        if wanted_of_captured(n):
            raise GraphUnsupported("the gradient of what attention's functions capture")
        vals = (*vals[:3], *vals[3])
    if not isinstance(vals, tuple | list) or any(map(is_symbolic, vals)):
        raise GraphUnsupported(f"a call of {name} that gives numbers")
    runs: Any = getattr(control_flow, _RUNS[name])
    bodies: tuple[Subgraph, ...]
    given: tuple[Any, ...]  # what a body takes lies in tuples
    if name == REGION:
        attribute, identifier, *taken = n.args
        bodies, given = (_region(low, attribute, identifier),), (tuple(taken),)
    elif name in (FLEX, FLEX_GRADIENT, ASSOCIATIVE):
        if name == ASSOCIATIVE and is_symbolic(vals[0].shape[0]):
            raise GraphUnsupported(f"steps of a length that is open, by {low.declined[n]}")
        gm, operands = _steps(low, n)
        bodies, given = (low.subgraph(gm),), (operands,)
    elif name == COND:
        predicate, then, otherwise, taken = _arguments(n, 4)
        bodies = (low.subgraph(_body(low, then)), low.subgraph(_body(low, otherwise)))
        given = (predicate, tuple(taken))
    elif name == MAP:
        body, rows, others = _arguments(n, 3)
        bodies, given = (low.subgraph(_body(low, body)),), ((), tuple(rows), tuple(others))
    elif name == SCAN:
        body, *parts = _arguments(n, 4)
        bodies, given = (low.subgraph(_body(low, body)),), tuple(map(tuple, parts))
    else:
        test, body, *parts = _arguments(n, 4)
        bodies = (low.subgraph(_body(low, test)), low.subgraph(_body(low, body)))
        given = tuple(map(tuple, parts))
    args = (*bodies, *(argument(low, v, n) for v in given))
    called = f"higher_order.{name}"
    why = f"{low.declined[n]}: {REASON}" if n in low.declined else REASON
    found = add_call(low, n, runs, args, (), tuple(vals), why, single=False, called=called)
    return (*found[:3], found[3:]) if name == FLEX_GRADIENT else found


def _region(low: GraphLowering, attribute: Any, identifier: Any) -> Subgraph:
    """The body of a region, compiled once for each layout of its operands."""
    gm = _body(low, attribute)
    metas = (_layout(p.meta.get("val")) for p in gm.graph.find_nodes(op="placeholder"))
    key = (str(identifier), *metas)
    if key not in low.regions:
        low.regions[key] = low.subgraph(gm)
    return low.regions[key]


def _steps(low: GraphLowering, n: FxNode) -> tuple[GraphModule, tuple[FxNode, ...]]:
    """What a higher-order operator computes where nobody compiles it, and its operands."""
    taken = tuple(a for a in n.all_input_nodes if not is_body(low.gm, a))
    eager = step_by_step(n.target)

    def steps(*operands: Any) -> tuple[Any, ...]:
        known = dict(zip(taken, operands, strict=True))
        args, kwargs = map_arg(
            (n.args, n.kwargs), lambda a: known[a] if a in known else attribute_value(low.gm, a)
        )
        *found, last = eager(*args, **kwargs)
        return (*found, *last) if isinstance(last, tuple) else (*found, last)

    with fake_mode(n.graph):
        return make_fx(functionalize(steps))(*(a.meta["val"] for a in taken)), taken


def _layout(val: Any) -> str:
    if isinstance(val, torch.Tensor):
        return f"{val.dtype} {tuple(val.shape)} {val.stride()} {val.device}"
    return f"{type(val).__name__} {val}"


def _arguments(n: FxNode, count: int) -> Sequence[Any]:
    if len(n.args) != count or n.kwargs:
        raise GraphUnsupported(
            f"a call of {higher_order_name(n.target)} with other arguments than known"
        )
    return n.args


def _body(low: GraphLowering, attribute: FxNode) -> GraphModule:
    """A body as a graph of its own, which passes may change, that returns a tuple."""
    module = attribute_value(low.gm, attribute)
    gm = GraphModule(module, copy.deepcopy(module.graph))
    (output,) = gm.graph.find_nodes(op="output")
    if not isinstance(output.args[0], tuple | list):
        output.args = ((output.args[0],),)
    return gm
