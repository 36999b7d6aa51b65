"""Type promotion of operands, as torch's TensorIterator does it."""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, Var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Scalar
from litz.ir.dtype import DType, wrap
from litz.ir.program import HostFloat
from litz.lowering.context import Builder, Operand
from litz.lowering.torch_types import promote
from litz.lowering.values import TensorValue

_CATEGORY = {"bool": 0, "uint": 1, "int": 1, "float": 2}


def _scalar_dtype(b: Builder, value: Scalar | Expr | HostFloat) -> DType:
    if isinstance(value, bool):
        return d.BOOL
    if isinstance(value, int | Expr):
        return d.I64
    return b.settings.floats  # only its category counts next to a float tensor


def common_dtype(b: Builder, operands: Sequence[Operand]) -> DType:
    """The dtype that torch computes in: dimensioned tensors, then 0-d tensors, then numbers.

    A lower group counts only if its category (bool < int < float) is higher.
    """
    best: DType | None = None
    groups: list[list[DType]] = [[], [], []]
    for o in operands:
        if isinstance(o, TensorValue):
            groups[0 if o.ndim else 1].append(o.dtype)
        else:
            groups[2].append(_scalar_dtype(b, o))
    for group in groups:
        if not group:
            continue
        mine = group[0]
        for g in group[1:]:
            mine = promote(mine, g)
        if best is None or _CATEGORY[mine.kind] > _CATEGORY[best.kind]:
            best = mine
    assert best is not None
    return best


def device_of(operands: Sequence[Operand]) -> str:
    """Where a result lies: tensors without dimensions go from the host to any device."""
    devices = [o.device for o in operands if isinstance(o, TensorValue)]
    return next((device for device in devices if device != "cpu"), "cpu")


def as_tensors(b: Builder, operands: Sequence[Operand]) -> list[TensorValue]:
    """Numbers become 0-d values of their own category's widest type."""
    device = device_of(operands)
    out = []
    for o in operands:
        if isinstance(o, TensorValue):
            out.append(o)
        elif isinstance(o, float | HostFloat):
            out.append(b.full((), o, d.F64, device))
        else:
            out.append(b.full((), o, _scalar_dtype(b, o), device))
    return out


def operand(b: Builder, node: Node, dtype: DType, *, exact: bool = False) -> Node:
    """An operand of common type ``dtype``, in its opmath type.

    exact: a number is not rounded to the common type first.
    """
    exact = exact or not b.settings.eager_numerics
    if isinstance(node, body.Const):
        if not _fits(node, dtype):
            return body.cast(node, dtype.opmath)
        narrow = dtype.is_float and dtype.bits == 16 and not exact
        return body.const(dtype.opmath, wrap(node.value, dtype) if narrow else node.value)
    if exact and node.dtype is not dtype:
        return body.cast(b.opmath(node), dtype.opmath)
    if node.dtype is dtype:
        return b.opmath(node)
    if node.dtype.is_float and node.dtype.bits == 16:
        node = b.opmath(node)
    if dtype.is_float and dtype.bits == 16:
        # A wider 0-d operand is first rounded to the common type, as TensorIterator does.
        return body.op("round_to", body.cast(node, d.F32), to=dtype)
    return body.cast(node, dtype)


def is_number(node: Node) -> bool:
    """Whether the node is a number that the host knows."""
    if isinstance(node, body.Const):
        return True
    if isinstance(node, body.Op) and node.name == "bitcast":
        (node,) = node.args
    return isinstance(node, body.Index) and not any(isinstance(v, Var) for v in node.expr.free)


def _fits(node: body.Const, dtype: DType) -> bool:
    if dtype.is_float:
        return True
    return not node.dtype.is_float
