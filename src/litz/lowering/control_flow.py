"""Calls with bodies (``torch.cond``, ``while_loop``): the bodies are compiled by themselves.

They run on the host, as it has to look at what decides between them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from litz.lowering.context import GraphUnsupported
from litz.lowering.externs import add_call, operands
from litz.lowering.numbers import is_symbolic
from litz.runtime.control_flow import Body, Cond, WhileLoop

if TYPE_CHECKING:
    from litz.lowering.graph import GraphLowering

Compile = Callable[[GraphModule], Body]
REASON: Final = "control flow: its bodies are compiled by themselves"
COND, WHILE_LOOP = "cond", "while_loop"


def has_bodies(target: object) -> bool:
    """Whether an operator is one of those whose bodies are compiled."""
    return _name(target) in (COND, WHILE_LOOP)


def is_body(n: FxNode) -> bool:
    """Whether an attribute is read as a body alone."""
    return bool(n.users) and all(has_bodies(u.target) for u in n.users)


def _name(target: object) -> str:
    is_higher = isinstance(target, torch._ops.HigherOrderOperator)
    return str(getattr(target, "__name__", "")) if is_higher else ""


def lower_control_flow(low: GraphLowering, n: FxNode) -> Any:
    """Add the call that ``n`` stands for; its results."""
    compiled = low.compile_body
    if compiled is None:
        raise GraphUnsupported(f"a call of {_name(n.target)}, whose bodies nobody checks")
    vals = n.meta.get("val")
    if not isinstance(vals, tuple | list) or any(is_symbolic(v) or v is None for v in vals):
        raise GraphUnsupported(f"a call of {_name(n.target)} that gives numbers")
    runs: Cond | WhileLoop
    given: tuple[Any, ...]
    if _name(n.target) == COND:
        predicate, then, otherwise, taken = _arguments(n, 4)
        runs = Cond(compiled(_body(low, then)), compiled(_body(low, otherwise)))
        given = (predicate, *taken)
    else:
        test, body, carried, others = _arguments(n, 4)
        runs = WhileLoop(compiled(_body(low, test)), compiled(_body(low, body)), len(carried))
        given = (*carried, *others)
    args = operands(low, given, n)
    called: Any = runs
    return add_call(low, n, called, args, (), tuple(vals), REASON, single=False)


def _arguments(n: FxNode, count: int) -> Sequence[Any]:
    if len(n.args) != count or n.kwargs:
        raise GraphUnsupported(f"a call of {_name(n.target)} with other arguments than known")
    return n.args


def _body(low: GraphLowering, attribute: FxNode) -> GraphModule:
    """A body as a graph of its own, which passes may change, that returns a tuple."""
    module: Any = low.gm
    for part in str(attribute.target).split("."):
        module = getattr(module, part)
    gm = GraphModule(module, copy.deepcopy(module.graph))
    (output,) = gm.graph.find_nodes(op="output")
    if not isinstance(output.args[0], tuple | list):
        output.args = ((output.args[0],),)
    return gm
