"""What is sent among processes, in fewer bytes.

A gathered parameter of float32 of which only its cast to 16 bits is read is cast where it lies in
parts: each element's value is the same, and half of the bytes move.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from litz.graph.calls import op_name
from litz.runtime.collectives import is_collective, is_wait

CASTS = (torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default)


def narrow_before_gathering(gm: GraphModule) -> bool:
    """Casts to types of fewer bytes come before the gather that alone they read."""
    changed = False
    for cast in [n for n in gm.graph.nodes if n.target in CASTS]:
        if (gather := _gathered(cast)) is None:
            continue
        (wait,), part, dtype = gather.users, gather.args[0], cast.meta["val"].dtype
        with gm.graph.inserting_before(gather):
            narrow = gm.graph.call_function(cast.target, (part, *cast.args[1:]), dict(cast.kwargs))
        narrow.meta = {**cast.meta, "val": part.meta["val"].to(dtype)}  # type: ignore[union-attr]
        gather.args = (narrow, *gather.args[1:])
        for n in (gather, wait):
            n.meta["val"] = n.meta["val"].to(dtype)
        cast.replace_all_uses_with(wait)
        gm.graph.erase_node(cast)
        changed = True
    return changed


def _gathered(cast: Node) -> Node | None:
    """The gather whose result is alone read by a cast to a type of fewer bytes."""
    wait = cast.args[0]
    if not isinstance(wait, Node) or not is_wait(wait.target) or len(wait.users) > 1:
        return None
    gather = wait.args[0]
    if not isinstance(gather, Node) or not is_collective(gather.target) or len(gather.users) > 1:
        return None
    before, after = (n.meta["val"].dtype for n in (wait, cast))
    floats = before.is_floating_point and after.is_floating_point
    only = {k for k, v in cast.kwargs.items() if v is not None} <= {"dtype"}
    fits = floats and only and after.itemsize < before.itemsize
    return gather if fits and op_name(gather.target) == "all_gather_into_tensor" else None
