"""FX passes over a functional ATen graph, before it is lowered.

A pass is a frozen dataclass with a name and one function that changes a graph in place and says
whether it did.  ``PIPELINE`` is the order.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from litz.dataclass import dataclass
from litz.errors import CompilationError
from litz.graph.aliasing import AliasSets, leaves, writes
from litz.graph.attention import leave_out_unread_blocks
from litz.graph.calls import is_random, takes_objects
from litz.graph.communicate import narrow_before_gathering
from litz.graph.complex_pairs import compute_in_pairs
from litz.graph.constants import fold_constants
from litz.graph.convolutions import add_bias_apart, sum_bias_apart
from litz.graph.dialect import Dialect, border
from litz.graph.layout import convolutions_in_channels_last
from litz.graph.noops import drop_no_ops
from litz.graph.positions import name_positions
from litz.graph.products import name_products_of_bytes
from litz.graph.reinplace import read_what_was_written, write_in_place
from litz.graph.rng_states import unwrap_what_draws_nothing
from litz.graph.statistics import give_true_types
from litz.graph.storage import make_storage_explicit
from litz.graph.tokens import drop_tokens
from litz.graph.values import give_values
from litz.graph.vectors import leave_out_vectors
from litz.options import GraphHook


@dataclass(frozen=True)
class GraphPass:
    """name: for logs.  run: changes the graph in place; True where it changed something.

    inference: only for graphs that no backward graph shares tensors with.
    """

    name: str
    run: Callable[[GraphModule], bool]
    inference: bool = False


def drop_dead_code(gm: GraphModule) -> bool:
    """Remove calls without effect whose result nobody reads."""
    changed = False
    for n in reversed(gm.graph.nodes):
        if not n.users and n.op in ("call_function", "get_attr") and not _has_effect(n):
            gm.graph.erase_node(n)
            changed = True
    return changed


def _has_effect(n: Node) -> bool:
    is_higher = isinstance(n.target, torch._ops.HigherOrderOperator)
    return n.is_impure() or takes_objects(n.target) or is_higher and not _is_functional(n)


def _is_functional(n: Node) -> bool:
    """Whether a call is a higher-order operator that returns what it writes.

    One without a result (a kernel launch) is there for what it writes into its arguments.
    """
    return isinstance(n.target, torch._ops.HigherOrderOperator) and n.meta.get("val") is not None


def _key(value: Any) -> Any:
    """A hashable form of an argument, in which 1, 1.0 and True differ; raises TypeError if none."""
    if isinstance(value, Node):
        return value
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise TypeError
    hash(value)
    return (type(value).__name__, value)


def _is_pure(n: Node, known: dict[Any, bool]) -> bool:
    """known: the answers so far, by target; asking takes a while."""
    if n.op != "call_function":
        return False
    if n.target not in known:
        known[n.target] = _is_pure_call(n)
    return known[n.target]


def _is_pure_call(n: Node) -> bool:
    if n.target is operator.getitem:
        return True
    if not isinstance(n.target, torch._ops.OpOverload) or n.is_impure():
        return False
    schema = n.target._schema
    # Fresh empty memory is not a value.
    effects = is_random(n.target) or schema.is_mutable or takes_objects(n.target)
    return not (effects or "empty" in schema.name)


def share_common_subexpressions(gm: GraphModule) -> bool:
    """Equal calls with equal arguments become one, where nothing writes what they read in between.

    What the graph writes itself, through a view or as an operator's argument, stays apart from what
    was equal before.
    """
    sets = AliasSets.of(gm)
    altered = sets.altered()
    times: Counter[Node] = Counter()  # so far, by the set that is written
    seen: dict[Any, Node] = {}
    known: dict[Any, bool] = {}
    changed = False
    for n in list(gm.graph.nodes):
        if not _is_functional(n):
            times.update({sets.first[a] for a in writes(n)})
        if sets.first[n] in altered or not _is_pure(n, known):
            continue
        read = tuple(times[sets.first[a]] for a in n.all_input_nodes)
        try:
            key = (n.target, _key(n.args), _key(n.kwargs), read)
        except TypeError:
            continue
        first = seen.setdefault(key, n)
        # Two results that are returned must stay two tensors.
        if first is not n and not (leaves(first) and leaves(n)):
            n.replace_all_uses_with(first)
            gm.graph.erase_node(n)
            changed = True
    return changed


@dataclass(frozen=True)
class PassGroup:
    """Passes that belong together.  hooks: the option of the users' passes that run behind them."""

    hooks: str
    passes: tuple[GraphPass, ...] = ()


# Storage comes first: it asks which values eager has as views of which.  Then complex numbers:
# their parts may be constant; then constants: a folded one can make a no-op.
# All leave dead calls.  Layout comes last: it looks at what others left.
PIPELINE: tuple[PassGroup, ...] = (
    PassGroup("before_passes"),
    PassGroup(
        "after_storage",
        (
            GraphPass("effects", drop_tokens),
            GraphPass("states of random numbers", unwrap_what_draws_nothing),
            # Joint graphs are mended before they are split.
            GraphPass("types of statistics", lambda gm: give_true_types(gm.graph), inference=True),
            GraphPass("products of bytes", name_products_of_bytes),
            GraphPass("bias of convolutions", add_bias_apart),
            GraphPass("gradients of bias", sum_bias_apart),
            # Before the next, while what PyTorch added behind its last copies still stands there.
            GraphPass("reads of written arguments", read_what_was_written, inference=True),
            GraphPass("storage", make_storage_explicit),
        ),
    ),
    PassGroup(
        "after_simplifying",
        (
            GraphPass("complex numbers", compute_in_pairs),
            GraphPass("positions", name_positions),
            GraphPass("constants", fold_constants),
            GraphPass("no-ops", drop_no_ops),
            GraphPass("blocks of attention", leave_out_unread_blocks),
            GraphPass("vectors of decompositions", leave_out_vectors),
            GraphPass("dead code", drop_dead_code),
            GraphPass("narrow gathers", narrow_before_gathering),
            GraphPass("common subexpressions", share_common_subexpressions),
        ),
    ),
    PassGroup(
        "after_layout",
        (GraphPass("channels-last convolutions", convolutions_in_channels_last, inference=True),),
    ),
    # Behind all that takes the graph to be functional up to its last copies.
    PassGroup("after_passes", (GraphPass("writes in place", write_in_place),)),
)


def run_passes(
    gm: GraphModule,
    *,
    inference: bool,
    hooks: Callable[[str], Sequence[GraphHook]] = lambda group: (),
    check: bool = False,
) -> tuple[str, ...]:
    """Run the pipeline with the user's hooks behind its groups; names of what changed something.

    check: whether every pass must leave the graph within the dialect.
    Raises CompilationError where a hook fails or leaves a graph that cannot be compiled, and
    VerifyError where a pass leaves the dialect.
    """
    changed = []
    dialect = Dialect.of(gm) if check else None
    for group in PIPELINE:
        for p in group.passes:
            if inference or not p.inference:
                changed += [p.name] * p.run(gm)
                if dialect is not None:
                    dialect.check(gm, p.name)
        for hook in hooks(group.hooks):
            run_hook(gm, hook)
            if dialect is not None:
                dialect.check(gm, str(hook.uuid()))
    return tuple(changed)


def run_hook(gm: GraphModule, hook: GraphHook) -> None:
    """Run a user's pass: it may not change what goes in and how much comes out."""
    what = f"the graph pass {hook.uuid()!r}"
    before = border(gm)
    try:
        hook(gm)
        gm.graph.lint()
        give_values(gm)
    except Exception as e:
        raise CompilationError(f"{what} failed: {type(e).__name__}: {e}") from e
    if border(gm) != before:
        raise CompilationError(f"{what} changed the graph's inputs or the number of its results")
