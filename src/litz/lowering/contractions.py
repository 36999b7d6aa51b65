"""Matrix products as contractions: passes choose later who computes them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node as FxNode

from litz.graph.aliasing import is_returned
from litz.graph.values import eager_value
from litz.index import contiguous_strides
from litz.ir.program import Contraction
from litz.lowering.externs import argument
from litz.lowering.handed import handed
from litz.lowering.numbers import require
from litz.lowering.state import GraphLowering
from litz.lowering.strides import spaced
from litz.lowering.values import ZERO, TensorValue


def contraction(low: GraphLowering, n: FxNode) -> TensorValue | None:
    """The product that ``n`` stands for; None where only a call of ATen as it is will do.

    So it is where a type is none of Litz's, there is no element, or eager lays the result out
    otherwise than row by row.
    """
    val = n.meta["val"]
    r = low.result(val) if isinstance(val, torch.Tensor) else None
    if r is None or ZERO in r.shape or r.strides != contiguous_strides(r.shape):
        return None
    given = low.map(n.args)
    if not all(isinstance(v, TensorValue) and v.device == r.device for v in given):
        return None
    refs: list[Any] = [argument(low, a, n) for a in n.args]
    *bias, left, right = refs
    numbers: dict[str, Any] = {k: argument(low, v, n) for k, v in n.kwargs.items()}
    require(low, *r.shape)
    kept = low.result(eager_value(n)) if is_returned(n) else None  # what is saved may have gaps
    strides = kept.strides if kept is not None and spaced(kept) else r.strides
    out = low.b.new_buffer(r.dtype, r.shape, strides, r.device)
    made = Contraction(
        f"product{len(low.b.nodes)}", left, right, bias[0] if bias else None, out.name,
        r.dtype.opmath, r.device, origins=low.b.origins, **numbers,
    )  # fmt: skip
    low.b.nodes.append(made)
    if low.settings.check_calls:
        low.handed[made.name] = handed(low, n, tuple(refs), ())
    return low.b.of_buffer(out)
