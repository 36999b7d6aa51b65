"""Numbers that the host computes: arithmetic on sizes that is no index algebra, reads from data.

Each such step becomes a call of Python's own operator, so that floats round as in eager code.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.fx import Node as FxNode

from litz.index import Expr, const, symbol
from litz.ir.program import HostFloat
from litz.lowering.context import NUMBER, GraphUnsupported
from litz.lowering.state import GraphLowering
from litz.lowering.symbols import Solution, Symbols, solve

aten = torch.ops.aten
_SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)
CHECK: Final = "asserts what sizes were compiled for"
SCALAR_READS: Final = frozenset({aten._local_scalar_dense.default, aten.item.default})


def emit(
    low: GraphLowering, target: Callable[..., Any], args: tuple[object, ...], to: Expr | HostFloat
) -> None:
    """Have the host compute ``to``."""
    name = to.name if isinstance(to, HostFloat) else str(to)
    for a in args:
        if isinstance(a, Expr):
            require(low, a)
    low.b.extern(
        target, args, (None,), "cpu", NUMBER, name=f"number_{name}",
        target_name=target_name(target), symbols=((0, to),),
    )  # fmt: skip
    low.symbols.give(to, data=low.symbols.from_data(args))


def target_name(target: Any) -> str:
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", str(target))
    return f"{module.lstrip('_')}.{name}" if module else name


# --- numbers read from data -------------------------------------------------------------------


def read(low: GraphLowering, n: FxNode, val: Any) -> Expr | HostFloat:
    """The number that a call returns.

    It keeps the shape environment's name, unless that has replaced it by something else: then what
    is read and what it should be are two values, and an assertion in the graph compares them.
    """
    if isinstance(val, torch.SymFloat):
        out = HostFloat(n.name)
        low.symbols.floats.setdefault(str(val.node.expr), out)
        low.symbols.give(out, data=True)
        return out
    if isinstance(val, torch.SymInt):
        found = low.symbols.convert(val)
    elif isinstance(val, torch.SymBool) and len(val.node.expr.free_symbols) == 1:
        low.symbols.env = val.node.shape_env
        (sym,) = val.node.expr.free_symbols  # Eq(u0, 1)
        found = low.symbols.from_sympy(sym)
    else:
        found = const(0)
    if low.symbols.missing((found,)) != (found,):
        # A call may return several numbers.
        own = symbol(n.name)
        fits = low.symbols.missing((own,)) == (own,)
        found = own if fits else symbol(low.symbols.fresh(n.name))
    low.symbols.give(found, data=True)
    return found


# --- values for symbols that have none --------------------------------------------------------


def require(low: GraphLowering, *exprs: Expr) -> None:
    """Have the host compute the parts below ``exprs`` that have no value yet."""
    for s in low.symbols.missing(exprs):
        meaning = low.symbols.meanings.get(str(s))
        if meaning is None:
            raise GraphUnsupported(f"nothing gives the value of the size {s}")
        _SympyEmitter(low).assign(s, meaning)


def solve_inputs(low: GraphLowering) -> None:
    """Symbols that no input is by itself, from inputs that are linear in them."""
    left = low.symbols.unsolved
    while left:
        rest = []
        for e, position, dim in left:
            found = solve(e, low.symbols.missing((e,)))
            if found is None:
                rest.append((e, position, dim))
                continue
            whole = symbol(low.symbols.fresh("size"), e.lo, e.hi)
            low.symbols.input(whole, position, dim)
            assign_solution(low, whole, found)
        if len(rest) == len(left):
            break
        left = rest
    low.symbols.unsolved = []


def assign_solution(low: GraphLowering, whole: Expr, found: Solution) -> None:
    emit(low, operator.floordiv, (whole - found.rest, found.coefficient), found.unknown)


def assert_deferred(low: GraphLowering, given: tuple[Expr, ...]) -> None:
    """The shape environment's assertions about symbols that have just got a value.

    Those that the graph itself asserts are left to it, with their own messages.
    """
    env = low.symbols.env
    pending = getattr(env, "deferred_runtime_asserts", {})
    for key, found in pending.items():
        if low.symbols.scope.get(str(key)) not in given:
            continue
        for a in found:
            text = assertion_text(a.expr)
            if text in low.asserted or not low.symbols.knows(a.expr):
                continue
            low.asserted.add(text)
            condition = symbol(low.symbols.fresh("holds"), 0, 1)
            _SympyEmitter(low).assign(condition, a.expr)
            _assert(low, condition, f"Runtime assertion failed for expression {a.expr}")


def assert_not_negative(low: GraphLowering, e: Expr, message: str) -> None:
    """Have the host raise RuntimeError where ``e`` is negative, unless it never can be."""
    if e.lo is not None and e.lo >= 0:
        return
    condition = symbol(low.symbols.fresh("holds"), 0, 1)
    emit(low, operator.le, (0, e), condition)
    _assert(low, condition, message)


def _assert(low: GraphLowering, condition: Expr, message: str) -> None:
    target, args = aten._assert_scalar.default, (condition, message)
    low.b.extern(target, args, (None,), "cpu", CHECK, name=f"check_{condition}", origins=())


def graph_assertions(low: GraphLowering) -> set[str]:
    """What the graph asserts itself, as the shape environment writes it."""
    found = set()
    for n in low.gm.graph.nodes:
        if n.target is aten._assert_scalar.default and isinstance(n.args[0], FxNode):
            val = n.args[0].meta.get("val")
            if isinstance(val, torch.SymBool):
                found.add(assertion_text(val.node.expr))
    return found


def assertion_text(e: Any) -> str:
    """One text for a comparison, however it is written round."""
    name, args = type(e).__name__, list(map(str, e.args))
    turned = {"GreaterThan": "LessThan", "StrictGreaterThan": "StrictLessThan"}
    if name in turned:
        name, args = turned[name], args[::-1]
    if name in ("Equality", "Unequality"):
        args.sort()
    return f"{name}({', '.join(args)})"


_UNARY: Final[Mapping[str, Callable[..., Any]]] = {
    "ToFloat": float,
    "TruncToInt": math.trunc,
    "TruncToFloat": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "floor": math.floor,
    "ceiling": math.ceil,
    "RoundToInt": round,
    "Abs": abs,
    "Not": operator.not_,
    **{
        f"OpaqueUnaryFn_{name}": getattr(math, name)
        for name in (
            "acos", "asin", "asinh", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh",
            "sqrt", "tan", "tanh",
        )
    },
}  # fmt: skip
_BINARY: Final[Mapping[str, Callable[..., Any]]] = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "PythonMod": operator.mod,
    "Mod": operator.mod,
    "PowByNatural": operator.pow,
    "FloatPow": operator.pow,
    "Pow": operator.pow,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "RoundDecimal": round,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "LessThan": operator.le,
    "StrictLessThan": operator.lt,
    "GreaterThan": operator.ge,
    "StrictGreaterThan": operator.gt,
}
_FOLDS: Final[Mapping[str, Callable[..., Any]]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Max": max,
    "Min": min,
    "And": operator.and_,
    "Or": operator.or_,
}


class _SympyEmitter:
    """Has the host compute a sympy expression that no node of the graph computes."""

    def __init__(self, low: GraphLowering) -> None:
        self.low = low

    def assign(self, to: Expr | HostFloat, e: Any) -> None:
        """``to = e``, whose own node must be an operator."""
        target, args = self.application(e)
        emit(self.low, target, args, to)

    def value(self, e: Any) -> object:
        symbols: Symbols = self.low.symbols
        if getattr(e, "is_Integer", False):
            return int(e)
        if getattr(e, "is_Float", False):
            return float(e)
        if type(e).__name__ in ("BooleanTrue", "BooleanFalse"):
            return bool(e)
        if getattr(e, "is_Symbol", False) and not getattr(e, "is_integer", False):
            if str(e) in symbols.floats:
                return symbols.floats[str(e)]
            raise GraphUnsupported(f"nothing gives the value of the number {e}")
        if getattr(e, "is_integer", False):
            found = symbols.from_sympy(e)
            require(self.low, found)
            return found
        truth = getattr(e, "is_Boolean", False)
        to: Expr | HostFloat = (
            symbol(symbols.fresh("truth"), 0, 1) if truth else HostFloat(symbols.fresh("float"))
        )
        self.assign(to, e)
        return to

    def application(self, e: Any) -> tuple[Callable[..., Any], tuple[object, ...]]:
        """An operator and its operands; of several equal operators in a row the last one."""
        name = type(e).__name__
        if getattr(e, "is_Symbol", False) or getattr(e, "is_number", False):
            return builtins.int if getattr(e, "is_integer", False) else float, (self.value(e),)
        if name in _UNARY and len(e.args) == 1:
            return _UNARY[name], (self.value(e.args[0]),)
        if name in _BINARY and len(e.args) == 2:
            a, b = map(self.value, e.args)
            return _BINARY[name], (a, b)
        if name in _FOLDS and len(e.args) >= 2:
            rest = e.args[0] if len(e.args) == 2 else e.func(*e.args[:-1], evaluate=False)
            return _FOLDS[name], (self.value(rest), self.value(e.args[-1]))
        raise GraphUnsupported(f"nothing computes {e}")


def is_symbolic(val: object) -> bool:
    return isinstance(val, _SYMBOLIC)
