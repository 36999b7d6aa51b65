"""Random operators of checkpointed regions, which PyTorch wraps so that both passes draw the same.

ATen draws, from the state of its generator that the forward pass hands to the backward pass: each
of the two graphs may run without Litz, and numbers are those of eager mode.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Node as FxNode

from litz.graph.calls import RESTORES, higher_order_name
from litz.lowering.context import GraphUnsupported
from litz.lowering.externs import add_call, argument
from litz.lowering.state import GraphLowering
from litz.runtime.drawing import draw_again, draw_and_save

REASON: Final = "draws the same in the forward and the backward pass, as eager mode does"


def lower_drawn_twice(low: GraphLowering, n: FxNode) -> Any:
    """Add the call that wrapper ``n`` stands for; what the wrapper returns.

    Raises GraphUnsupported for what is no functional operator's call.
    """
    again = higher_order_name(n.target) == RESTORES
    op, *given = n.args[again:]
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        raise GraphUnsupported(f"a call of {n.target} with {op}")
    val: Any = n.meta["val"] if again else n.meta["val"][1]
    vals = tuple(val) if isinstance(val, tuple | list) else (val,)
    state = [argument(low, n.args[0], n)] if again else []
    args = (str(op), *state, *(argument(low, a, n) for a in given))
    kwargs = tuple((k, argument(low, v, n)) for k, v in n.kwargs.items())
    call: Any = draw_again if again else draw_and_save
    results = add_call(
        low, n, call, args, kwargs, vals if again else (*vals, n.meta["val"][0]), REASON,
        single=False, called=f"litz.{call.__name__}",
    )  # fmt: skip
    own = results[: len(vals)] if isinstance(val, tuple | list) else results[0]
    return own if again else (results[-1], own)
