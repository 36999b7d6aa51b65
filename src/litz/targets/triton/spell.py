"""How single values are spelled in Triton."""

from __future__ import annotations

import math

from litz.ir.bits import is_undecimal, signed_bits
from litz.ir.body import Const, Given, Masked, Node, Op, walk
from litz.ir.dtype import DType
from litz.ir.ops import TRITON_TYPES, triton_text
from litz.ir.reductions import Reduction

_BOOLEAN = {"lt": "litz.lt({}, {})", "le": "litz.le({}, {})", "gt": "litz.gt({}, {})"}
_BOOLEAN["ge"] = "litz.ge({}, {})"


def literal(n: Const) -> str:
    """A typed scalar."""
    kind = TRITON_TYPES[n.dtype.name]
    if n.dtype.kind == "bool":
        return f"tl.full([], {bool(n.value)}, {kind})"
    if n.dtype.is_int:
        return f"tl.full([], {int(n.value)}, {kind})"
    value = float(n.value)
    # Triton makes every zero the positive one, and every nan the same; its interpreter makes no
    # constant of bfloat16 and flushes those that it casts.
    if is_undecimal(value) or n.dtype.name == "bf16":
        bits = signed_bits(value, n.dtype)
        return f"tl.full([], {bits}, tl.int{n.dtype.bits}).to({kind}, bitcast=True)"
    return f"tl.full([], {number(value)}, {kind})"


def number(value: float) -> str:
    if math.isnan(value) or math.isinf(value):
        return f'float("{value}")'
    return repr(value)


def neutral(row: Reduction, dtype: DType) -> str:
    """What a reduction begins with, as a Python literal."""
    value = row.identity(dtype)
    return number(value) if isinstance(value, float) else str(int(value))


def op_text(n: Op, args: list[str]) -> str:
    """An op of the table on spelled operands."""
    source = n.args[-1].dtype
    if n.name in _BOOLEAN and source.kind == "bool":
        return _BOOLEAN[n.name].format(*args)
    return triton_text(n.name, args, n.param)


def function_text(name: str, combine: tuple[Node, ...]) -> str:
    """A function of the parts of two states, the earlier one's first."""
    names: dict[Node, str] = {}
    lines = []
    for n in walk(combine):
        args = [names[a] for a in n.args]
        if isinstance(n, Given):
            names[n] = f"g{n.number}"
            continue
        names[n] = f"v{len(names)}"
        if isinstance(n, Const):
            text = literal(n)
        elif isinstance(n, Masked):
            text = f"tl.where({', '.join(args)})"
        else:
            assert isinstance(n, Op)
            text = op_text(n, args)
        lines.append(f"    {names[n]} = {text}")
    given = ", ".join(f"g{i}" for i in range(2 * len(combine)))
    lines.append(f"    return ({', '.join(names[n] for n in combine)},)")
    return "\n".join(["@triton.jit", f"def {name}({given}):", *lines])
