"""Sizes at the border: torch's ``SymInt`` to an index expression, with ranges and hints."""

from __future__ import annotations

from typing import Any

import torch

from litz.index import Expr, const, symbol
from litz.index.border import NotRepresentable, from_sympy
from litz.lowering.context import GraphUnsupported

# Above this a bound means "unbounded" (ShapeEnv uses sys.maxsize - 1 and friends).
UNBOUNDED = 1 << 48


def _bound(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return number if -UNBOUNDED < number < UNBOUNDED else None


def _declare(sym: Any, shape_env: Any, scope: dict[str, Expr]) -> None:
    name = str(sym)
    if name in scope:
        return
    ranges = shape_env.bound_sympy(sym)
    hint = shape_env.backed_var_to_val.get(sym) if hasattr(shape_env, "backed_var_to_val") else None
    scope[name] = symbol(name, _bound(ranges.lower), _bound(ranges.upper), _bound(hint))


def convert(value: Any, scope: dict[str, Expr]) -> Expr:
    """An int or SymInt as an expression; symbols that it names are added to ``scope``."""
    if isinstance(value, int):
        return const(int(value))
    if not isinstance(value, torch.SymInt):
        raise GraphUnsupported(f"a size of type {type(value).__name__}")
    node = value.node
    expr = node.expr
    for sym in sorted(expr.free_symbols, key=str):
        _declare(sym, node.shape_env, scope)
    try:
        return from_sympy(expr, scope)
    except NotRepresentable as e:
        raise GraphUnsupported(f"size {expr} is not integer arithmetic that Litz knows: {e}") from e
