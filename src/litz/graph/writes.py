"""What calls of Dynamo's graphs may write into."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from litz.graph.calls import argument, leaves
from litz.graph.mistraced import IN_PLACE, name_of
from litz.graph.values import attribute_value
from litz.runtime.torch_private import address

STATEFUL: Final = ("batch_norm", "instance_norm", "moving_avg")
"""In names of functions that write what they are given beside."""


def checkpointed(gm: GraphModule, n: Node) -> GraphModule | None:
    """The graph that a checkpoint runs, on its arguments behind that graph."""
    if n.target is not torch.ops.higher_order.tag_activation_checkpoint:
        return None
    body = attribute_value(gm, n.args[0])  # type: ignore[arg-type]
    return body if isinstance(body, GraphModule) else None


def written_memory(gm: GraphModule) -> set[int]:
    """Addresses of the memory that calls may write into."""
    some = [x for n in gm.graph.nodes if n.op.startswith("call") for x in may_write(gm, n)]
    values = [x.meta.get("example_value") for x in some if isinstance(x, Node)]
    return {address(v) for v in leaves(values) if isinstance(v, Tensor)}


def may_write(gm: GraphModule, n: Node) -> list[Any]:
    """What a call may write into, as far as its name, arguments and schema say."""
    target: Any = n.target
    if (body := checkpointed(gm, n)) is not None:  # its inputs are the same tensors
        return [x for c in body.graph.nodes for x in may_write(body, c)]
    name = name_of(n)
    name = name[2:-2] if name.startswith("__") else name  # the method of an operator
    home = "torch" if isinstance(target, str) else getattr(target, "__module__", None) or "torch"
    plain = n.op != "call_module" and not isinstance(target, torch._ops.HigherOrderOperator)
    if not plain or home.split(".")[0] not in ("torch", "_operator", "math"):
        return n.all_input_nodes
    # Methods and operators write what they are of; functions what they are told by any name, some
    # more than one: ``inplace`` may be told by position, as may the running means of norms.
    writes = name.endswith("_") and home != "_operator" or name in ("setitem", *IN_PLACE)
    if n.op == "call_method" or home == "_operator":
        return list(n.args[:1]) if writes else []
    writes |= _is_mutable(target) or any(s in name for s in STATEFUL)
    writes |= "embedding" in name and not isinstance(argument(n, 3, "max_norm"), bool | None)
    writes |= any(a is True for a in (*n.args, n.kwargs.get("inplace")))
    return n.all_input_nodes if writes else leaves(n.kwargs.get("out"))


def _is_mutable(target: object) -> bool:
    """Whether an operator writes; of those of ATen's own whose name does not say so."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        own = target._qualified_op_name.startswith("aten::")
        return not own and any(_is_mutable(getattr(target, o)) for o in target.overloads())  # type: ignore[no-untyped-call]
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
