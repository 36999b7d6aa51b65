"""Values of 32 or 64 bits that a narrower float type holds as they are: rounding changes none."""

from __future__ import annotations

from typing import Final

from litz.ir.body import Const, Masked, Node, Op, Reduce, op
from litz.ir.dtype import DType, wrap

# Ops that give one of their operands, a whole number next to it, or it with another sign.
_KEEP: Final = frozenset(
    {"neg", "abs", "copysign", "floor", "ceil", "trunc", "round"}
    | {"maximum", "minimum", "fmax", "fmin", "where", "mostly"}
)
_CHOICES: Final = frozenset({"where", "mostly"})
_DIGITS: Final = {"bf16": 8, "f16": 11}  # of whole numbers up to a power of two
_DEPTH: Final = 6  # how far down is looked: a chain of such ops is asked after each


def rounded(n: Node, to: DType) -> Node:
    """``n`` rounded to a value of ``to``, in its own type."""
    return n if holds(n, to) else op("round_to", n, to=to)


def holds(n: Node, to: DType, depth: int = _DEPTH) -> bool:
    """Whether a 16-bit float type has each value of ``n``, a float."""
    if isinstance(n, Const):
        return n.value != n.value or wrap(n.value, to) == n.value
    if depth == 0:
        return False
    if isinstance(n, Masked):
        return all(holds(a, to, depth - 1) for a in n.args[1:])
    if isinstance(n, Reduce):
        return n.kind in ("max", "min") and holds(n.args[0], to, depth - 1)
    if not isinstance(n, Op):
        return False
    if n.name == "round_to":
        return n.param is to
    if n.name == "cast":
        (value,) = n.args
        digits = value.dtype.bits - (value.dtype.kind == "int")
        small = not value.dtype.is_float and digits <= _DIGITS.get(to.name, 0)
        return value.dtype is to or small
    if n.name == "mul":
        one, other = n.args
        return any(
            _is_unit(a, depth - 1) and holds(b, to, depth - 1)
            for a, b in ((one, other), (other, one))
        )
    if n.name in _KEEP:
        given = n.args[:1] if n.name == "copysign" else n.args[n.name in _CHOICES :]
        return all(holds(a, to, depth - 1) for a in given)
    return n.name == "sign"


def _is_unit(n: Node, depth: int) -> bool:
    """Whether each value is -1, 0, 1 or nan."""
    if isinstance(n, Const):
        return n.value in (-1, 0, 1)
    if depth == 0 or not isinstance(n, Op):
        return False
    if n.name in _CHOICES:
        return all(_is_unit(a, depth - 1) for a in n.args[1:])
    if n.name == "cast":
        return n.args[0].dtype.kind == "bool"
    return n.name == "sign"
