"""What calls of Dynamo's graphs may write into."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from litz.graph.calls import argument, leaves
from litz.graph.mistraced import IN_PLACE, is_in_place, name_of
from litz.graph.values import attribute_value
from litz.runtime.torch_private import address

STATEFUL: Final = ("batch_norm", "instance_norm", "moving_avg")
"""In names of functions that write what they are given beside."""
KNOWN: Final = frozenset(("torch", "_operator", "math", "litz"))
"""Where functions are at home of which their names say whether they write."""
OPERATORS: Final = IN_PLACE | {"setitem"}
"""Of Python's that write: ``and_`` does not."""


def checkpointed(gm: GraphModule, n: Node) -> GraphModule | None:
    """The graph that a checkpoint runs, on its arguments behind that graph."""
    if n.target is not torch.ops.higher_order.tag_activation_checkpoint:
        return None
    body = attribute_value(gm, n.args[0])  # type: ignore[arg-type]
    return body if isinstance(body, GraphModule) else None


def written_memory(gm: GraphModule) -> set[int]:
    """Addresses of the memory that calls may write into."""
    some = [x for n in gm.graph.nodes if n.op.startswith("call") for x in _written(gm, n)]
    values = [x.meta.get("example_value") for x in some]
    return {address(v) for v in leaves(values) if isinstance(v, Tensor)}


def _written(gm: GraphModule, n: Node) -> list[Node]:
    """What a call may write into, or those of a graph that it runs: its inputs are the same."""
    body = checkpointed(gm, n)
    if body is None:
        return may_write(n)
    return [x for c in body.graph.nodes for x in _written(body, c)]


def may_write(n: Node) -> list[Node]:
    """What a call may write into, as far as its name, arguments and schema say."""
    target: Any = n.target
    name = plain_name(name_of(n))
    home = "torch" if isinstance(target, str) else getattr(target, "__module__", None) or "torch"
    if target is getattr:
        return []
    if not is_plain(n) or home.split(".")[0] not in KNOWN:
        return n.all_input_nodes
    # Methods and operators write what they are of; functions what they are told by any name, some
    # more than one: ``inplace`` may be told by position, as may the running means of norms.
    writes = is_in_place(name) and (home != "_operator" or name in OPERATORS)
    if n.op == "call_method" or home == "_operator":
        return n.all_input_nodes[:1] if writes else []
    writes |= _is_mutable(target) or any(s in name for s in STATEFUL)
    writes |= "embedding" in name and not isinstance(argument(n, 3, "max_norm"), bool | None)
    writes |= any(a is True for a in (*n.args, n.kwargs.get("inplace")))
    out = leaves(n.kwargs.get("out"))
    return n.all_input_nodes if writes else [x for x in out if isinstance(x, Node)]


def is_plain(n: Node) -> bool:
    """Whether it calls a function or a method, not a module or an operator that runs graphs."""
    return n.op != "call_module" and not isinstance(n.target, torch._ops.HigherOrderOperator)


def plain_name(name: str) -> str:
    """The name of a method, which may be that of an operator: ``__eq__``."""
    return name[2:-2] if name.startswith("__") else name


def _is_mutable(target: object) -> bool:
    """Whether an operator writes; of ATen's own, which are told so, not by way of ``out``."""
    if not isinstance(target, torch._ops.OpOverloadPacket | torch._ops.OpOverload):
        return False
    some: list[Any] = [target]
    own = False
    if isinstance(target, torch._ops.OpOverloadPacket):
        own = target._qualified_op_name.startswith("aten::")
        some = [getattr(target, o) for o in target.overloads()]  # type: ignore[no-untyped-call]
    given = [a for o in some for a in o._schema.arguments]
    return any(a.alias_info and a.alias_info.is_write and not (own and a.is_out) for a in given)
