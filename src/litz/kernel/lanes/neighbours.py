"""Loops that read every second element, whose lanes may lie in whatever order.

Two vectors from memory become every second element of both in one shuffle, and in order in two.
The second waits: values are put in order once, where something asks which lane is which.  Windows
two apart take the maximum of many such loads first, and what stores pairs, as complex numbers are,
need not do it at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, coefficient, const
from litz.ir.body import Load, Masked, Node, Op, Reduce, Scan, Store, walk
from litz.ir.dtype import BF16, BOOL, F32, F64
from litz.ir.ops import CHECKS
from litz.kernel.nodes import roots

DIVISIONS = ("floordiv", "truncdiv", "mod", "fmod")  # of integers: lanes past the end are masked
Place = tuple[str, Expr]


def unordered(stores: Sequence[Store], lane: Expr | None) -> dict[Node, str]:
    """Values of the loop along ``lane``, if any, whose lanes lie in whatever order: all in one.

    Of loads what each is: ``firsts`` or ``seconds`` of pairs, both of which are read, or ``alone``;
    of others ``apart``.  Empty where the order is asked for as often as something is loaded.
    Of bfloat16 only pairs, which lie in order: their 32 bits are one float or the other.
    """
    if lane is None:
        return {}
    nodes = tuple(walk(roots(stores)))
    loads = [n for n in nodes if isinstance(n, Load) and coefficient(n.index, lane) is const(2)]
    if not loads or loads[0].dtype not in (F32, F64, BF16):
        return {}
    if any(isinstance(n, Reduce | Scan) for n in nodes):
        return {}
    around = _around(nodes, roots(stores))
    for n in loads:
        guards = around[n]
        if n.dtype is not loads[0].dtype or n.indirect or guards is None:
            return {}
        if any(lane in c.vars for c in guards):
            return {}
    found = _pairs(loads, around)
    if loads[0].dtype is BF16:
        users = [n for n in nodes if any(a in found for a in n.args)]
        wide = all(isinstance(n, Op) and n.name == "cast" and n.dtype is F32 for n in users)
        wide = wide and not any(n in found for n in roots(stores))
        return {n: form for n, form in found.items() if wide and form != "alone"}
    bits = loads[0].dtype.bits
    for x in nodes:
        varying = [a for a in x.args if lane in a.vars]
        plain = isinstance(x, Op) and x.name not in CHECKS or isinstance(x, Masked)
        divides = isinstance(x, Op) and x.name in DIVISIONS and x.dtype.is_int
        wide = x.dtype is BOOL or x.dtype.bits == bits
        if plain and wide and not divides and varying and found.keys() >= {*varying}:
            found[x] = "apart"
    ends = _ends(nodes, stores, lane, found)
    return found if ends is not None and len(ends) < len(loads) else {}


def _around(nodes: Sequence[Node], tops: Sequence[Node]) -> dict[Node, frozenset[Node] | None]:
    """The conditions of the masked regions around each node; None where its users are in several.

    nodes: below ``tops``, in the order of ``walk``.
    """
    found: dict[Node, frozenset[Node] | None] = dict.fromkeys(tops, frozenset())
    for n in reversed(nodes):
        own = found[n]
        for i, a in enumerate(n.args):
            guards = own is not None and isinstance(n, Masked) and i == 1
            inner = own | {n.args[0]} if own is not None and guards else own
            if found.setdefault(a, inner) != inner:
                found[a] = None
    return found


def _pairs(loads: Sequence[Load], around: dict[Node, frozenset[Node] | None]) -> dict[Node, str]:
    """Which loads are of both elements of pairs.  A pair is read as a whole: both or none are."""
    at: dict[Place, Load] = {(n.buffer, n.index): n for n in loads}
    found: dict[Node, str] = {}
    begins = [n for n in loads if (n.buffer, n.index - 1) not in at]
    for n in begins:
        one: Load | None = n
        while one is not None:
            other = at.get((one.buffer, one.index + 1))
            both = other is not None and around[one] == around[other]
            found[one] = "firsts" if both else "alone"
            if both and other is not None:
                found[other] = "seconds"
                other = at.get((other.buffer, other.index + 1))
            one = other
    return found


def _ends(
    nodes: Sequence[Node], stores: Sequence[Store], lane: Expr, found: dict[Node, str]
) -> dict[Node, None] | None:
    """The values that are put in order; None where one cannot be."""
    ends: dict[Node, None] = {}
    for n in nodes:
        taken = [a for a in n.args if a in found] if n not in found else []
        if taken and (not isinstance(n, Op) or n.name in CHECKS):
            return None
        ends.update(dict.fromkeys(taken))
    written = {(s.buffer, s.index): s for s in stores}
    for s in stores:
        if any(n in found for n in s.roots() if n is not s.value):
            return None
        beside = [written.get((s.buffer, s.index + k)) for k in (1, -1)]
        paired = coefficient(s.index, lane) is const(2) and any(
            b is not None and b.value in found for b in beside
        )
        if s.value in found and not paired:
            ends[s.value] = None
    return None if any(n.dtype is BOOL for n in ends) else ends
