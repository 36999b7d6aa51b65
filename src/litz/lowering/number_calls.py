"""Calls of the graph whose values are numbers: sizes, arithmetic on them, on floats, on truths."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.fx import Node as FxNode

from litz.graph.calls import leaves
from litz.index import Expr, as_expr, floordiv, max_, min_, mod, symbol
from litz.ir.program import HostFloat
from litz.lowering.context import GraphUnsupported
from litz.lowering.externs import call_extern
from litz.lowering.numbers import emit, require
from litz.lowering.state import GraphLowering

# Integer operators that index algebra computes as Python does.
ALGEBRA: Final[Mapping[object, Callable[..., Expr]]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.neg: operator.neg,
    operator.pos: operator.pos,
    operator.floordiv: floordiv,
    operator.mod: mod,
    torch.sym_max: max_,
    torch.sym_min: min_,
    torch.sym_int: as_expr,
}


def number_call(low: GraphLowering, n: FxNode) -> Expr | HostFloat | int | float | bool:
    """The value of a node that is a number computed from numbers (or sizes of a tensor)."""
    val = n.meta.get("val")
    if isinstance(n.target, torch._ops.OpOverload):
        return _of_tensor(low, n, val)
    args = low.map(n.args)
    if isinstance(n.target, torch._ops.HigherOrderOperator):
        raise GraphUnsupported(f"a call of {n.target}")
    if not callable(n.target) or n.kwargs:
        raise GraphUnsupported(f"arithmetic with {n.target}")
    data = low.symbols.from_data(leaves(args))
    if isinstance(val, int | float | bool) and not data:
        return val
    if isinstance(val, float | torch.SymFloat):
        out = HostFloat(n.name)
        if isinstance(val, torch.SymFloat):
            low.symbols.floats.setdefault(str(val.node.expr), out)
        emit(low, n.target, args, out)
        return out
    if isinstance(val, torch.SymInt) and not data:
        return _size(low, n, val, args)
    truth = isinstance(val, bool | torch.SymBool)
    fn = None if truth else ALGEBRA.get(n.target)
    if fn is not None and all(isinstance(a, int | Expr) for a in args):
        return as_expr(fn(*map(as_expr, args)))
    # A truth value stays a step of the host: ranges, which rest on it, would decide it here.
    result = symbol(n.name, 0, 1) if truth else symbol(n.name)
    emit(low, n.target, args, result)
    return result


def _size(low: GraphLowering, n: FxNode, val: torch.SymInt, args: Any) -> Expr:
    """Index algebra where it is exact; else what eager computes here is what the part means."""
    e = low.symbols.convert(val)
    missing = low.symbols.missing((e,))
    if len(missing) == 1 and missing[0] is e and str(e) in low.symbols.meanings:
        assert callable(n.target)
        emit(low, n.target, args, e)
    require(low, e)
    return e


def _of_tensor(low: GraphLowering, n: FxNode, val: Any) -> Expr | int:
    """``aten.sym_size`` and its like: what the metadata says, if that has a value."""
    if isinstance(val, int):
        return val
    if not isinstance(val, torch.SymInt):
        raise GraphUnsupported(f"{n.target} of sizes that are not known")
    e = low.symbols.convert(val)
    if low.symbols.missing((e,)):
        found = call_extern(low, n, "reads a layout that depends on data")
        assert isinstance(found, Expr)
        return found
    return e
