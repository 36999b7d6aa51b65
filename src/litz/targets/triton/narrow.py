"""Values that end in 16 bits: where a cheaper function changes no digit that is kept.

An f32 value may carry a relative error of 2^-17 where every use of it is rounded to 16 bits, at
once or behind operations that pass a relative error on as it is.  Sums and differences do not, so
that what is added to must stay exact; but for one plus an exponential, or plus an error function,
which are spelled as one.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.ir.body import Const, Load, Masked, Node, Op, Reduce, Store, walk
from litz.kernel.nodes import roots

PASSING = frozenset({"mul", "div", "neg", "abs"})


def narrow_nodes(stores: Sequence[Store]) -> frozenset[Node]:
    """The nodes that may be computed with such an error."""
    order = list(walk(roots(stores)))
    users: dict[Node, list[Node]] = {n: [] for n in order}
    for n in order:
        for a in n.args:
            users[a].append(n)
    exposed = set(roots(stores))
    exact = unrounded(stores)
    out: set[Node] = set()
    for n in reversed(order):
        if n.dtype.name != "f32" or n in exposed or not users[n]:
            continue
        if all(
            is_rounding(u) or (u in out and _passes(u, n)) or (_totals(u) and u not in exact)
            for u in users[n]
        ):
            out.add(n)
    return frozenset(out)


def _totals(n: Node) -> bool:
    """Whether a node sums the exponentials of a softmax: the large ones among them stay exact."""
    if not (isinstance(n, Reduce) and n.kind == "sum"):
        return False
    power = n.args[0]
    if not (isinstance(power, Op) and power.name == "exp"):
        return False
    less = power.args[0]
    if not (isinstance(less, Op) and less.name == "sub"):
        return False
    value, top = less.args
    return isinstance(top, Reduce) and top.kind == "max" and top.args[0] is value


def is_rounding(n: Node) -> bool:
    """Whether a node rounds to a 16-bit float."""
    return isinstance(n, Op) and n.name in ("cast", "round_to") and _sixteen(n.param)


def _sixteen(dtype: object) -> bool:
    return getattr(dtype, "is_float", False) and getattr(dtype, "bits", 0) == 16


def _passes(user: Node, n: Node) -> bool:
    if isinstance(user, Masked):
        return n is not user.args[0]
    if not isinstance(user, Op):
        return False
    if user.name == "where":
        return n is not user.args[0]
    if user.name == "add":
        return one_plus(user) is n
    return user.name in PASSING


def one_plus(n: Node) -> Op | None:
    """The exponential or error function that one is added to, if a node is such a sum."""
    if not (isinstance(n, Op) and n.name == "add"):
        return None
    for one, other in (n.args, reversed(n.args)):
        if isinstance(one, Const) and one.value == 1 and isinstance(other, Op):
            return other if other.name in ("exp", "erf") else None
    return None


def unrounded(stores: Sequence[Store]) -> frozenset[Node]:
    """The nodes that reach a store without being rounded to 16 bits on the way."""
    out: set[Node] = set()
    stack = list(roots(stores))
    while stack:
        n = stack.pop()
        if n not in out:
            out.add(n)
            if not is_rounding(n):
                stack.extend(n.args)
    return frozenset(out)


def is_f16_quotient(n: Op) -> bool:
    """Whether a quotient is one of f16 values: its cheaper form could round another way."""
    return n.name == "div" and all(_is_f16(a) for a in n.args)


def _is_f16(n: Node) -> bool:
    if isinstance(n, Const):
        return True
    if not (isinstance(n, Op) and n.name in ("cast", "round_to")):
        return False
    source = n.args[0]
    kept = n.name == "round_to" and getattr(n.param, "name", "") == "f16"
    return kept or (source.dtype.name == "f16" and isinstance(source, (Load, Op, Masked)))
