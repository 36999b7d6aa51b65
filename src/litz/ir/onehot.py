"""Sums of rows with one element that is not zero: no loop needs to look for it."""

from __future__ import annotations

from litz.index import Expr, Var, as_expr
from litz.ir import body
from litz.ir.body import Const, Index, Node, Op
from litz.ir.dtype import I64
from litz.ir.masks import conjuncts


def sum_of_one_hot(value: Node, v: Expr) -> Node | None:
    """The sum of ``value`` over all of the loop ``v``, where it is ``a if v == at else 0``.

    None: it is no such value, or ``a`` or ``at`` varies along ``v``.
    """
    if not isinstance(v, Var) or not isinstance(value, Op):
        return None
    if value.name in ("cast", "round_to"):
        if not (value.dtype.is_float and value.args[0].dtype.is_float):
            return None
        inner = sum_of_one_hot(value.args[0], v)
        return None if inner is None else body.op(value.name, inner, to=value.param)
    if value.name != "where":
        return None
    hit, found, zero = value.args
    if not (isinstance(zero, Const) and zero.value == 0) or v in found.vars:
        return None
    conds = conjuncts(hit)
    at = next((a for c in conds if (a := _position(c, v)) is not None), None)
    rest = [c for c in conds if v not in c.vars]
    if at is None or len(rest) != len(conds) - 1:
        return None
    inside = body.op("le", body.const(I64, 0), at)
    rest += [inside, body.op("lt", at, body.index(as_expr(v.extent)))]
    cond = rest[0]
    for c in rest[1:]:
        cond = body.op("and_", cond, c)
    return body.op("where", cond, found, zero)


def _position(cond: Node, v: Expr) -> Node | None:
    """What ``v`` is compared with, if a condition holds where ``v`` equals it."""
    if not (isinstance(cond, Op) and cond.name == "eq"):
        return None
    for own, at in (cond.args, reversed(cond.args)):
        if isinstance(own, Index) and own.expr is v and v not in at.vars and at.dtype is I64:
            return at
    return None
