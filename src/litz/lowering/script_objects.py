"""Calls of script objects' methods (TorchBind)."""

from __future__ import annotations

from typing import Any

from torch.fx import Node as FxNode

from litz.lowering.externs import add_call, argument, lasting
from litz.lowering.state import GraphLowering


def lower_method_call(low: GraphLowering, n: FxNode) -> Any:
    """The call of an object, a method's name and the method's arguments."""
    args = lasting(low, tuple(argument(low, a, n) for a in n.args))
    kwargs = tuple((k, lasting(low, argument(low, v, n))) for k, v in n.kwargs.items())
    val = n.meta.get("val")
    vals = tuple(val) if isinstance(val, tuple | list) else (val,)
    single = not isinstance(val, tuple | list)
    results = add_call(
        low, n, n.target, args, kwargs, vals,
        "a script object computes it", single=single, called="higher_order.call_torchbind",
    )  # fmt: skip
    return results[0] if single else results
