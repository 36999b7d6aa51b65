"""Values that end in 16 bits: where a cheaper function changes no digit that is kept.

An f32 value may carry a relative error of 2^-17 where every use of it is rounded to 16 bits, at
once or behind operations that pass a relative error on as it is.  Sums and differences do not, so
that what is added to must stay exact; but for one plus an exponential, an error function or a
hyperbolic tangent, which are spelled as one, and for the sum of a softmax and its logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from litz.ir.body import Const, Masked, Node, Op, Store, walk
from litz.kernel.nodes import roots
from litz.kernel.softmax import is_total, lowered

PASSING = frozenset({"mul", "div", "neg", "abs"})
# Ops with a cheaper form for values of 16 bits.
CHEAPER = ("div", "exp", "sigmoid", "sinh", "asinh", "tanh")


def narrow(stores: Sequence[Store]) -> tuple[Node, ...]:
    """The values that are computed in a cheaper form: it changes no digit that is kept."""
    found = narrow_nodes(stores)
    return tuple(n for n in walk(roots(stores)) if n in found and _is_cheaper(n))


def _is_cheaper(n: Node) -> bool:
    if not isinstance(n, Op):
        return is_total(n)
    if n.name == "div":
        return is_close_quotient(n)
    return n.name in CHEAPER or one_plus(n) is not None


def flushed(stores: Sequence[Store]) -> tuple[Node, ...]:
    """The exponentials in a cheaper form whose subnormal values may become zero."""
    vanishing = vanishing_nodes(stores)
    return tuple(
        n for n in narrow(stores) if isinstance(n, Op) and n.name == "exp" and n in vanishing
    )


def narrow_nodes(stores: Sequence[Store]) -> frozenset[Node]:
    """The nodes that may be computed with such an error."""

    def forgives(user: Node, n: Node, out: AbstractSet[Node]) -> bool:
        return is_rounding(user) or (user in out and _passes(user, n))

    return _forgiven(stores, forgives)


def _forgiven(
    stores: Sequence[Store], forgives: Callable[[Node, Node, AbstractSet[Node]], bool]
) -> frozenset[Node]:
    """The f32 nodes that every user forgives: ``forgives(user, node, nodes found so far)``."""
    order = list(walk(roots(stores)))
    users: dict[Node, list[Node]] = {n: [] for n in order}
    for n in order:
        for a in n.args:
            users[a].append(n)
    exposed = set(roots(stores))
    out: set[Node] = set()
    for n in reversed(order):
        if (
            n.dtype.name == "f32"
            and n not in exposed
            and all(forgives(u, n, out) for u in users[n])
        ):
            out.add(n)
    return frozenset(out)


def vanishing_nodes(stores: Sequence[Store]) -> frozenset[Node]:
    """The nodes of which no use can tell what is subnormal in f32 from zero.

    In f16 it is nothing, unless it grows before it is rounded; nor is it beside a softmax's one.
    """

    def forgives(user: Node, n: Node, out: AbstractSet[Node]) -> bool:
        if is_rounding(user):
            return isinstance(user, Op) and getattr(user.param, "name", "") == "f16"
        return is_total(user) or (user in out and _shrinks(user, n))

    return _forgiven(stores, forgives)


def _shrinks(user: Node, n: Node) -> bool:
    """Whether what ``user`` makes of ``n`` is no larger."""
    if isinstance(user, Masked):
        return n is not user.args[0]
    if not isinstance(user, Op):
        return False
    if user.name in ("where", "mostly"):
        return n is not user.args[0]
    if user.name == "div":
        return n is not user.args[1] and is_total(user.args[1])
    return user.name in ("neg", "abs")


def is_rounding(n: Node) -> bool:
    """Whether a node rounds to a 16-bit float."""
    return isinstance(n, Op) and n.name in ("cast", "round_to") and _sixteen(n.param)


def _sixteen(dtype: object) -> bool:
    return getattr(dtype, "is_float", False) and getattr(dtype, "bits", 0) == 16


def _passes(user: Node, n: Node) -> bool:
    """Whether a relative error of ``n`` is one of ``user`` too."""
    if isinstance(user, Masked):
        return n is not user.args[0]
    if is_total(user):
        return True
    if not isinstance(user, Op):
        return False
    if user.name == "log":
        return is_total(n)
    if user.name == "sub":
        return _is_log_softmax(user, n)
    if user.name in ("where", "mostly"):
        return n is not user.args[0]
    if user.name == "add":
        return one_plus(user) is n
    return user.name in PASSING


def _is_log_softmax(n: Op, log: Node) -> bool:
    """Whether a difference subtracts ``log`` from what is no larger than 0: nothing cancels."""
    low, other = n.args
    if other is not log or not (isinstance(log, Op) and log.name == "log"):
        return False
    return lowered(log.args[0]) is low


def one_plus(n: Node) -> Op | None:
    """The exponential or another such function that one is added to, if a node is such a sum."""
    if not (isinstance(n, Op) and n.name == "add"):
        return None
    for one, other in (n.args, reversed(n.args)):
        if isinstance(one, Const) and one.value == 1 and isinstance(other, Op):
            return other if other.name in ("exp", "erf", "tanh") else None
    return None


def is_close_quotient(n: Op) -> bool:
    """Whether a quotient may be some units off in f32: its rounding shows none of them.

    Quotients of two bf16 numbers lie too far from where rounding changes.  A transcendental value
    is off itself.  Other quotients are arithmetic, which is bitwise eager's.
    """
    return all(map(_is_bf16, n.args)) or any(map(_is_transcendental, n.args))


def _is_bf16(n: Node) -> bool:
    if not (isinstance(n, Op) and n.name in ("cast", "round_to")):
        return False
    kept = n.name == "round_to" and getattr(n.param, "name", "") == "bf16"
    return kept or n.args[0].dtype.name == "bf16"


def _is_transcendental(n: Node) -> bool:
    if isinstance(n, Op) and n.name in ("mul", "neg", "abs", "div"):
        return any(map(_is_transcendental, n.args))
    named = isinstance(n, Op) and n.name in ("exp", "erf", "sigmoid", "tanh", "log", "pow")
    return named or one_plus(n) is not None or is_total(n)
