"""Signs of 16-bit floats, which are bits of them: nothing is widened and narrowed."""

from __future__ import annotations

from dataclasses import replace

from litz.ir.body import Node, Op, const, op
from litz.ir.dtype import I16
from litz.kernel.plan import KernelPlan

SIGN = -(1 << 15)


def in_bits(plan: KernelPlan) -> KernelPlan:
    """The plan with absolute values and negations that are but stored as operations on bits."""
    stores = tuple(replace(s, value=_in_bits(s.value)) for s in plan.stores)
    return plan if stores == plan.stores else replace(plan, stores=stores)


def _in_bits(n: Node) -> Node:
    if not (isinstance(n, Op) and n.name == "cast" and n.dtype.is_float and n.dtype.bits == 16):
        return n
    (changed,) = n.args
    if not (isinstance(changed, Op) and changed.name in ("abs", "neg")):
        return n
    (wide,) = changed.args
    if not (isinstance(wide, Op) and wide.name == "cast" and wide.args[0].dtype is n.dtype):
        return n
    name, bits = ("and_", ~SIGN) if changed.name == "abs" else ("xor", SIGN)
    held = op("bitcast", wide.args[0], to=I16)
    return op("bitcast", op(name, held, const(I16, bits)), to=n.dtype)
