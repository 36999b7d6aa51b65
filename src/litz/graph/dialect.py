"""The dialect of FX that ``lowering/`` takes, as rules that are checked after every pass.

A graph may come with what no rule allows: an operator that Litz does not know, say.  Lowering
declines it then.  But no pass may add to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch.fx import GraphModule, Node

from litz.dataclass import dataclass
from litz.errors import VerifyError
from litz.graph.aliasing import owner, sharing
from litz.graph.calls import CALL_METHOD, higher_order_name, in_place_form, leaves
from litz.graph.reinplace import AT_POSITIONS, COPY
from litz.graph.storage import ANCHORED, READS, SCATTER, is_flat

COND, WHILE_LOOP, REGION, MAP, SCAN = "cond", "while_loop", "invoke_subgraph", "map_impl", "scan"
ASSOCIATIVE: Final = "associative_scan"
FLEX: Final = "flex_attention"
FLEX_GRADIENT: Final = "flex_attention_backward"
WITH_BODIES: Final = (COND, WHILE_LOOP, REGION, MAP, SCAN, ASSOCIATIVE, FLEX, FLEX_GRADIENT)
USER_KERNEL: Final = "triton_kernel_wrapper_functional"
MUTATION: Final = "triton_kernel_wrapper_mutation"  # the same before AOTAutograd
USER_OPERATORS: Final = ("auto_functionalized", "auto_functionalized_v2")
HIGHER_ORDER: Final = (*WITH_BODIES, USER_KERNEL, *USER_OPERATORS)
WRITERS: Final = frozenset({COPY, *map(in_place_form, AT_POSITIONS)})
GIVEN: Final = ("placeholder", "get_attr")
NUMBERS: Final = (bool, int, float, torch.SymBool, torch.SymInt, torch.SymFloat, type(None))


def _kind(n: Node) -> str:
    """A node is an input, a constant, a call of a function or the output; inputs come first."""
    if n.op not in ("placeholder", "get_attr", "call_function", "output"):
        return f"is a {n.op}"
    early = n.op == "placeholder" and n.prev.op not in ("root", "placeholder")
    return f"is an input behind {n.prev.name}" if early else ""


def _order(n: Node) -> str:
    """A node stands behind what it reads."""
    late = [a.name for a in n.all_input_nodes if a.graph is not n.graph or not a < n]
    return f"reads {late[0]}, which stands behind it or in another graph" if late else ""


def _val(n: Node) -> str:
    """Inputs and calls have the metadata `val`: fake tensors, numbers, or None."""
    missing = n.op in ("placeholder", "call_function") and "val" not in n.meta
    return "has no metadata val" if missing else ""


def _target(n: Node) -> str:
    """A call is of an overload of an operator, of Python's function of numbers, the pick of one of
    several results, or of a higher-order operator that Litz knows: `cond`, `while_loop`,
    `invoke_subgraph`, `map_impl`, `scan`, `associative_scan`, `flex_attention`,
    `flex_attention_backward`, `triton_kernel_wrapper_functional`, `auto_functionalized`,
    `auto_functionalized_v2`, `call_torchbind`.
    """
    if n.op != "call_function" or isinstance(n.target, torch._ops.OpOverload):
        return ""
    if isinstance(n.target, torch._ops.HigherOrderOperator):
        known = higher_order_name(n.target) in (*HIGHER_ORDER, CALL_METHOD)
        return "" if known else f"calls the higher-order operator {n.target}"
    if n.target is operator.getitem or isinstance(n.meta.get("val"), NUMBERS):
        return ""
    return f"calls {n.target}, which is no overload and gives no number"


def _arguments(n: Node) -> str:
    """Tensors among the arguments are nodes."""
    given = leaves((n.args, list(n.kwargs.values())))
    return "is given a tensor that is no node" if any(map(torch.is_tensor, given)) else ""


def _pick(n: Node) -> str:
    """What is picked is there."""
    source = n.args[0] if n.target is operator.getitem else None
    if not isinstance(source, Node) or higher_order_name(source.target) == USER_KERNEL:
        return ""
    results, at = source.meta.get("val"), n.args[1]
    if isinstance(results, tuple | list) and isinstance(at, int):
        return "" if -len(results) <= at < len(results) else f"picks {at} of {len(results)} results"
    return f"picks {at} of what {source.name} gives"


def _write(n: Node) -> str:
    """What writes is `copy_`, or an operator's own in-place form where nobody reads what was there;
    it writes into an input or a constant, or into a view of one.
    """
    written = sharing(n.target).written if n.op == "call_function" else ()
    if not written:
        return ""
    if n.target not in WRITERS:
        return f"writes into an argument as {n.target}"
    to = n.args[0]
    whose = owner(to) if isinstance(to, Node) else n
    return "" if whose.op in GIVEN else f"writes into {whose.name}, which is no argument"


def _storage(n: Node) -> str:
    """`as_strided` and its kind address an input, a constant, or the flat tensor of all elements of
    what was computed.
    """
    base = n.args[0] if n.target in (*READS, SCATTER) else None
    if not isinstance(base, Node):
        return ""
    if is_flat(n):
        rank = base.meta["val"].dim()
        return "" if rank == 1 else f"addresses {base.name} as flat, which has {rank} dimensions"
    if base.op in GIVEN or n.meta.get(ANCHORED):
        return ""
    return f"addresses the storage of {base.name}, whose layout is Litz's to choose"


def _results(n: Node) -> str:
    """The one output stands last, and returns a tuple of nodes, numbers and None."""
    if n.op != "output":
        return "is the last node and no output" if n.next.op == "root" else ""
    if n.next.op != "root":
        return f"is an output in front of {n.next.name}"
    results = n.args[0]
    if not isinstance(results, tuple | list):
        return "returns no tuple"
    other = [v for v in results if not isinstance(v, (Node, *NUMBERS))]
    return f"returns a {type(other[0]).__name__}" if other else ""


RULES: Final = (
    _kind, _order, _val, _target, _arguments, _pick, _write, _storage, _results
)  # fmt: skip
"""What is wrong with a node, "" for nothing; a rule says in its docstring what it wants."""


def rule_name(rule: Callable[[Node], str]) -> str:
    return rule.__name__.lstrip("_")


@dataclass(frozen=True)
class Dialect:
    """What a graph has come with.

    border: its inputs, and how many results.  known: faults by rule and node.
    """

    border: tuple[list[str], int]
    known: frozenset[tuple[str, str]]

    @staticmethod
    def of(gm: GraphModule) -> Dialect:
        return Dialect(border(gm), frozenset((rule, n.name) for rule, n, _ in faults(gm)))

    def check(self, gm: GraphModule, after: str) -> None:
        """Raise VerifyError, with its name and the node, where a pass has broken a rule."""
        for rule, n, fault in faults(gm):
            if (rule, n.name) not in self.known:
                text = f"after the pass {after!r}: {n.name} {fault}\n  in {n.format_node() or n.op}"
                raise VerifyError(f"{text}\n  rule {rule!r} of the FX dialect")
        if border(gm) != self.border:
            raise VerifyError(f"after the pass {after!r}: other inputs or another count of results")


def faults(gm: GraphModule) -> Iterator[tuple[str, Node, str]]:
    """Every (rule, node, what is wrong) of a graph."""
    for n in gm.graph.nodes:
        for rule in RULES:
            if fault := rule(n):
                yield rule_name(rule), n, fault


def border(gm: GraphModule) -> tuple[list[str], int]:
    """What goes in, by name, and how much comes out; -1 for no tuple."""
    inputs = [str(n.target) for n in gm.graph.nodes if n.op == "placeholder"]
    results = [n.args[0] for n in gm.graph.nodes if n.op == "output"]
    tuples = [len(r) for r in results if isinstance(r, tuple | list)]
    return inputs, tuples[0] if tuples else -1
