"""Calls that no lowering may take because of numbers that are known only while the program runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch
from torch.fx import Node as FxNode

from litz.graph.calls import leaves, op_name
from litz.index import ZERO, Expr, Symbol, provably_le
from litz.ir.dtype import BOOL, F16, DType
from litz.ir.program import HostFloat
from litz.lowering.context import Unsupported
from litz.lowering.registry import Result
from litz.lowering.symbols import Symbols
from litz.lowering.torch_types import to_torch
from litz.lowering.values import ONE, TensorValue

# Lowerings that take a symbolic float wherever they take a number.
TAKES_FLOATS: Final = frozenset(
    (
        "add", "sub", "rsub", "mul", "div", "true_divide", "remainder", "fmod", "floor_divide",
        "eq", "ne", "lt", "le", "gt", "ge", "pow", "where", "masked_fill", "clamp", "clamp_min",
        "clamp_max", "lerp", "addcmul", "addcdiv", "full", "full_like", "new_full",
        "scalar_tensor", "fill",
    )
)  # fmt: skip
# Those of them that convert it to the type of their tensors, and refuse what that does not hold.
REFUSE_FLOATS: Final = frozenset(
    (
        "where", "masked_fill", "clamp", "clamp_min", "clamp_max", "full", "full_like", "new_full",
        "scalar_tensor", "fill",
    )
)  # fmt: skip
# Ops that check a position against a size, which a lowering cannot do for a position from data.
CHECK_POSITIONS: Final = frozenset(
    (
        "select", "slice", "narrow", "split", "split_with_sizes", "as_strided", "select_scatter",
        "slice_scatter", "select_copy", "slice_copy", "constant_pad_nd", "unfold",
    )
)  # fmt: skip
# Ops that write into a part, which must lie inside.
WRITE_PARTS: Final = frozenset(("select_scatter", "slice_scatter"))
# Ops that have no value over nothing, where eager raises; and more by how their names begin.
NEED_ELEMENTS: Final = frozenset(
    "max min amax amin argmax argmin aminmax median nanmedian kthvalue".split()
)
NEED_ELEMENTS_PREFIXES: Final = (
    "max_pool", "avg_pool", "_adaptive_avg_pool", "upsample_", "_upsample_", "grid_sampler_",
    "reflection_pad", "replication_pad",
)  # fmt: skip


def check(
    symbols: Symbols, n: FxNode, args: Sequence[object], results: Sequence[Result | None]
) -> None:
    """Raise ``Unsupported`` where the call must be made as it is."""
    name = op_name(n.target)
    made = [e for r in results if r is not None for e in r.shape]
    if any(str(s) not in symbols.meanings for s in symbols.missing(made)):
        raise Unsupported("sizes that depend on data")
    given = leaves(args)
    if name not in TAKES_FLOATS and any(isinstance(a, HostFloat) for a in given):
        raise Unsupported("a symbolic float")
    tensors = [a for a in given if isinstance(a, TensorValue)]
    if _beyond(n, tensors, results):
        raise Unsupported("a number that a type does not hold, which eager may refuse")
    if name in WRITE_PARTS and any(_is_unbacked(s) for v in tensors for s in v.shape):
        raise Unsupported("a write into a part that perhaps lies outside")
    needs_elements = name in NEED_ELEMENTS or name.startswith(NEED_ELEMENTS_PREFIXES)
    needs_elements = needs_elements and not any(e is ZERO for e in made)
    if needs_elements and any(_perhaps_none(s) for v in tensors for s in v.shape):
        raise Unsupported("an operator on perhaps nothing")
    if not symbols.data:
        return
    numbers = [a for a in given if isinstance(a, Expr)]
    if name in CHECK_POSITIONS and symbols.from_data(numbers):
        raise Unsupported("a position that depends on data")


def _is_unbacked(size: Expr) -> bool:
    return any(isinstance(e, Symbol) and e.hint is None for e in size.free)


def _perhaps_none(size: Expr) -> bool:
    return not provably_le(ONE, size)


def _beyond(n: FxNode, tensors: Sequence[TensorValue], results: Sequence[Result | None]) -> bool:
    """Whether a number is none of some type: eager refuses to convert it, where it has to."""
    places = _number_parameters(n.target)
    if not places:
        return False
    made = {r.dtype for r in results if r is not None}
    dtypes = {v.dtype for v in tensors} | made
    given = [n.args[i] if i < len(n.args) else n.kwargs.get(name) for i, name in places]
    numbers = [abs(v) for v in given if isinstance(v, int | float) and math.isfinite(v)]
    symbolic = any(isinstance(v, torch.SymFloat) for v in given)
    if symbolic and F16 in dtypes and op_name(n.target) in REFUSE_FLOATS:
        return True
    if any(_is_none_of(t, v) for v in given if isinstance(v, float) for t in made):
        return True
    return any(v > _largest(t) for v in numbers for t in dtypes if v > 1 and t is not BOOL)


def _is_none_of(dtype: DType, v: float) -> bool:
    """Whether integers of a type have nothing for a float, however small."""
    return dtype.is_int and (not math.isfinite(v) or v < 0 and dtype.kind == "uint")


@lru_cache(maxsize=1024)
def _number_parameters(target: object) -> tuple[tuple[int, str], ...]:
    """The parameters of an operator that it converts to the type of its tensors.

    Comparisons and arithmetic take their other side as it is.
    """
    name = op_name(target)
    if not isinstance(target, torch._ops.OpOverload) or name == "isin":
        return ()
    as_it_is = "" if name == "where" else "other"
    named = [(i, a) for i, a in enumerate(target._schema.arguments) if a.name != as_it_is]
    return tuple((i, a.name) for i, a in named if str(a.type) in ("number", "Optional[number]"))


@lru_cache(maxsize=64)
def _largest(dtype: DType) -> float:
    """The largest number of a type; of a negative one, eager takes the same of unsigned types."""
    torch_type = to_torch(dtype)
    info = torch.finfo(torch_type) if dtype.is_float else torch.iinfo(torch_type)
    return info.max + (not dtype.is_float and info.min < 0)


def has_symbolic(args: Sequence[object]) -> bool:
    """Whether a number among the arguments is known only while the program runs."""
    return any(
        isinstance(a, HostFloat) or isinstance(a, Expr) and not a.is_const for a in leaves(args)
    )
