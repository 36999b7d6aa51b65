"""Matrix products as contractions: passes choose later who computes them.

Those of one row or column and a matrix are reductions where a kernel reads that as it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node as FxNode

from litz.graph.aliasing import is_returned
from litz.graph.values import eager_value
from litz.index import contiguous_strides
from litz.ir.program import Contraction
from litz.lowering import values
from litz.lowering.externs import argument
from litz.lowering.handed import handed
from litz.lowering.numbers import require
from litz.lowering.reductions import counts, reads_rows, times_vector
from litz.lowering.state import GraphLowering
from litz.lowering.strides import spaced
from litz.lowering.values import ONE, ZERO, Shape, TensorValue


def contraction(low: GraphLowering, n: FxNode) -> TensorValue | None:
    """The product that ``n`` stands for; None where only a call of ATen as it is will do.

    So it is where a type is none of Litz's, there is no element, eager lays the result out
    otherwise than row by row, what is added does not broadcast to the product (eager refuses it,
    metadata does not), or the product is multiplied by 0: of what is not finite in it ATen's
    libraries make 0, and its loops over small ones nan.
    """
    val = n.meta["val"]
    r = low.result(val) if isinstance(val, torch.Tensor) else None
    if r is None or ZERO in r.shape or r.strides != contiguous_strides(r.shape):
        return None
    given = low.map(n.args)
    if not all(isinstance(v, TensorValue) and v.device == r.device for v in given):
        return None
    *added, first, second = (v.shape for v in given)
    fits = all(values.broadcasts(shape, (*first[:-1], second[-1])) for shape in added)
    if n.kwargs.get("alpha") == 0 or not fits:
        return None
    numbers: dict[str, Any] = {k: argument(low, v, n) for k, v in n.kwargs.items()}
    require(low, *r.shape)
    kept = low.result(eager_value(n)) if is_returned(n) else None  # what is saved may have gaps
    strides = kept.strides if kept is not None and spaced(kept) else r.strides
    made = _of_vector(low, given, r.shape, numbers) if strides == r.strides else None
    if made is not None:
        return made
    refs: list[Any] = [argument(low, a, n) for a in n.args]
    *bias, left, right = refs
    out = low.b.new_buffer(r.dtype, r.shape, strides, r.device)
    product = Contraction(
        f"product{len(low.b.nodes)}", left, right, bias[0] if bias else None, out.name,
        r.dtype.opmath, r.device, origins=low.b.origins, **numbers,
    )  # fmt: skip
    low.b.nodes.append(product)
    if low.settings.check_calls:
        low.handed[product.name] = handed(low, n, tuple(refs), ())
    return low.b.of_buffer(out)


def _of_vector(
    low: GraphLowering, given: Sequence[TensorValue], shape: Shape, numbers: Mapping[str, Any]
) -> TensorValue | None:
    """The product of a matrix and a vector, where that is one for a kernel."""
    *bias, left, right = given
    if left.ndim != 2:
        return None
    if left.shape[0] is ONE:
        matrix, vector = values.permute(right, (1, 0)), values.drop_dims(left, [0])
    elif right.shape[1] is ONE:
        matrix, vector = left, values.drop_dims(right, [1])
    else:
        return None
    beta, alpha = (numbers.get(name, 1) for name in ("beta", "alpha"))
    if matrix.ref is None or not reads_rows(low.b, matrix) or not counts(alpha, beta):
        return None  # what a matrix is computed from may be small: templates know about that
    start = None
    if bias:
        start = values.reshape(values.expand(bias[0], shape), matrix.shape[:1])
    return values.reshape(times_vector(low.b, matrix, vector, start, beta, alpha), shape)
