"""Which values of factors are small integers in 16-bit floats, or products of such floats.

Both have instructions for several in one register, which give the same numbers in a fraction of
the time: what is read as four or eight bits is computed on more than it is read.
"""

from __future__ import annotations

from dataclasses import replace

from litz.dataclass import dataclass
from litz.ir.body import Const, Node, Op
from litz.ir.dtype import DType
from litz.kernel.values import Value

BYTE = 0xFF
MOST = 128  # integers up to which both 16-bit floats hold the sums that are made on the way


@dataclass(frozen=True)
class Small:
    """``(((source >> shift) & mask) ^ flip) - minus``; source: of 8 bits."""

    source: Value
    shift: int = 0
    mask: int = BYTE
    flip: int = 0
    minus: int = 0


def small(v: Value) -> Small | None:
    """A cast to a 16-bit float of some bits of a byte, less a constant."""
    n = v.node
    if not (isinstance(n, Op) and n.name == "cast" and _is_sixteen(n.dtype)):
        return None
    found = _bits(v.args[0])
    fits = found is not None and found.mask < MOST and 0 <= found.minus < MOST
    return found if fits else None


def factors(v: Value) -> tuple[Value, Value] | None:
    """The 16-bit floats whose product, in float32, is rounded to their type."""
    n = v.node
    if not (isinstance(n, Op) and n.name == "cast" and _is_sixteen(n.dtype)):
        return None
    (product,) = v.args
    if not (isinstance(product.node, Op) and product.node.name == "mul"):
        return None
    a, b = product.args
    widened = all(isinstance(x.node, Op) and x.node.name == "cast" for x in (a, b))
    if not widened or not a.args[0].node.dtype is b.args[0].node.dtype is n.dtype:
        return None
    return a.args[0], b.args[0]


def _is_sixteen(t: DType) -> bool:
    return t.is_float and t.bits == 16


def _bits(v: Value) -> Small | None:
    """An integer as some bits of a byte; it is below 128 and loses nothing in casts."""
    n = v.node
    if not isinstance(n, Op) or not n.dtype.is_int:
        return None
    number = _constant(n.args[-1]) if len(n.args) == 2 else None
    if n.name == "cast":
        return _bits(v.args[0])
    if n.name == "sub" and number is not None:
        inner = _bits(v.args[0])
        signed = n.dtype.kind == "int"
        return replace(inner, minus=inner.minus + number) if inner and signed else None
    if n.dtype.bits != 8 or number is None or number < 0:
        return None
    if n.name == "and_" and number < MOST:
        shifted = v.args[0]
        s = shifted.node
        by = _constant(s.args[-1]) if isinstance(s, Op) and s.name == "shr" else None
        if by is not None and 0 <= by < 8 and number <= BYTE >> by:
            return Small(shifted.args[0], by, number)
        return Small(v.args[0], 0, number)
    if n.name == "shr" and 0 < number < 8:
        return _shifted(v, number)
    return None


def _shifted(v: Value, by: int) -> Small | None:
    """The upper bits of a byte: of a signed one, they have a sign."""
    source, mask = v.args[0], BYTE >> by
    if v.node.dtype.kind == "uint":
        return Small(source, by, mask)
    half = (mask + 1) // 2
    s = source.node
    if isinstance(s, Op) and s.name == "shl" and _constant(s.args[-1]) == by:
        return Small(source.args[0], 0, mask, half, half)
    return Small(source, by, mask, half, half)


def _constant(n: Node) -> int | None:
    return int(n.value) if isinstance(n, Const) and n.dtype.is_int else None
