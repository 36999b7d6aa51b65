"""Floats of 8 bits: what operators may do with them, and arithmetic that converts them.

``e5m2`` is a float16 cut off; ``e4m3`` has no infinity, and its nan is the one pattern above the
largest number.  Both round to the nearest, ties to even.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch

from litz.dataclass import dataclass
from litz.graph.aliasing import is_view_op
from litz.ir import dtype as d
from litz.ir.body import Node, const, op
from litz.ir.dtype import DType

aten = torch.ops.aten

# What besides views takes them or gives them; arithmetic on them is left to ATen, which has none.
MOVES: Final = frozenset(
    {
        aten._to_copy.default,
        aten.clone.default,
        aten.copy.default,
        aten.copy_.default,
        torch.ops.prims.convert_element_type.default,
    }
)


def in_arithmetic(target: object, tensors: Iterable[Any]) -> bool:
    """Whether an operator computes with 8-bit floats among its tensors; numbers count as that."""
    own = [t for t in tensors if getattr(t, "dtype", None) in d.STORED]
    moves = target in MOVES or is_view_op(target)
    return bool(own) and not (moves and all(t.shape for t in own))


@dataclass(frozen=True)
class Format:
    """mantissa: its bits; bias: of the exponent; beyond: the least number too large for any.

    most: the pattern of all that is too large.
    """

    mantissa: int
    bias: int
    beyond: float
    most: int


WIDE: Final = 23  # bits of the mantissa of a float32, and its bias
BIAS: Final = 127
NAN: Final = 0x7F
# Up to PyTorch 2.11 what is too large for a format without infinity becomes nan, then the largest.
SATURATES: Final = float(torch.full((1,), 500.0, device="cpu").to(torch.float8_e4m3fn)) == 448.0
FORMATS: Final = {
    d.F8E4: Format(3, 7, 480.0, 0x7E if SATURATES else NAN),
    d.F8E5: Format(2, 15, 65536.0, 0x7C),
}


def _int(value: int) -> Node:
    return const(d.I32, value)


def widened(node: Node) -> Node:
    """An 8-bit float as a float32, exactly: by way of the float16 whose upper bits it has."""
    short = op("cast", op("bitcast", node, to=d.I8), to=d.I16)
    moved = op("shl", short, const(d.I16, 8))
    if node.dtype is d.F8E5:
        return op("cast", op("bitcast", moved, to=d.F16), to=d.F32)
    # One bit of the exponent is missing: it is smaller by a constant.
    moved = op("and_", op("shr", moved, const(d.I16, 1)), const(d.I16, ~0x4000))
    value = op("cast", op("bitcast", moved, to=d.F16), to=d.F32) * const(d.F32, 256.0)
    is_nan = op("eq", op("and_", short, const(d.I16, NAN)), const(d.I16, NAN))
    return op("where", is_nan, const(d.F32, math.nan), value)


def narrowed(node: Node, to: DType) -> Node:
    """A float32 as an 8-bit float."""
    bits, f = op("bitcast", node, to=d.I32), FORMATS[to]
    own = op("and_", bits, _int(0x7FFFFFFF))
    down = WIDE - f.mantissa
    odd = op("and_", op("shr", own, _int(down)), _int(1))
    # Half of the last place, less one unless that is odd: a carry goes into the exponent.
    near = op("add", own, op("add", odd, _int((1 << (down - 1)) - 1)))
    large = op("sub", op("shr", near, _int(down)), _int((BIAS - f.bias) << f.mantissa))
    size = op("abs", node)
    steps = op("round", size * const(d.F32, 2.0 ** (f.bias + f.mantissa - 1)))
    is_small = op("lt", size, const(d.F32, 2.0 ** (1 - f.bias)))
    # What is not small is kept from a cast that has no meaning for it.
    small = op("cast", op("where", is_small, steps, const(d.F32, 0)), to=d.I32)
    code = op("where", is_small, small, large)
    most = _int(f.most)
    fits = op("lt", size, const(d.F32, f.beyond))
    code = op("where", fits, op("minimum", code, most), most)
    code = op("where", op("isnan", node), _int(NAN), code)
    sign = op("and_", op("shr", bits, _int(24)), _int(0x80))
    return op("bitcast", op("cast", op("or_", code, sign), to=d.U8), to=to)
