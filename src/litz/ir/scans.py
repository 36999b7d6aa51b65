"""Nests of scans in rows: what runs at every point of a row, and what the points before it give.

A program stores ``scan kind [r0 to i1]`` at each ``i1``, as it would a reduction.  A kernel walks
``r0`` once: there, ``i1`` is ``r0``, and the nest one reduced loop whose points all store.

A sort is a scan too, which at each point gives the element that belongs there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from litz.index import Expr, Substitution
from litz.ir import body
from litz.ir.body import (
    Const,
    Given,
    Index,
    Masked,
    Node,
    Op,
    Reduce,
    Rewriter,
    Scan,
    Store,
    scans,
    walk,
)
from litz.ir.dtype import F32, F64, DType
from litz.ir.ops import CHECKS, RANDOM

Loops = tuple[Expr, ...]
Function = tuple[Node, ...]


def scans_of(stores: Sequence[Store]) -> tuple[Scan, ...]:
    return scans(r for s in stores for r in s.roots())


def sorts_of(stores: Sequence[Store]) -> tuple[Scan, ...]:
    """The scans that need all of a row at once."""
    return tuple(n for n in scans_of(stores) if n.row.whole)


def wanted_of(n: Scan, stores: Sequence[Store]) -> int | None:
    """Of how many first elements of a sorted row stores make use; None for all of them."""
    most = 0
    for s in stores:
        below = list(walk(s.roots()))
        if n not in below:
            continue
        folds = (m for m in below if m is not n and isinstance(m, (Scan, Reduce)))
        limit = first_points(s.mask, n.axis)
        if limit is None or any(n in walk(m.args) for m in folds):
            return None
        most = max(most, limit)
    return most


def first_points(mask: Node | None, axis: Expr) -> int | None:
    """How many first points of a loop a mask allows at most."""
    if not isinstance(mask, Op):
        return None
    if mask.name == "and_":
        known = [x for x in (first_points(a, axis) for a in mask.args) if x is not None]
        return min(known, default=None)
    a, b = mask.args[0], mask.args[-1]
    if mask.name == "lt" and isinstance(a, Index) and a.expr is axis and isinstance(b, Const):
        return int(b.value)
    return None


def in_rows(
    axes: Loops, reduced: Loops, stores: tuple[Store, ...]
) -> tuple[Loops, Loops, tuple[Store, ...]]:
    """A nest whose scans are read where they run; the same if it has none that can be."""
    found = scans_of(stores)
    places = {(n.axis, n.at) for n in found}
    if len(places) != 1 or reduced != (found[0].axis,) or found[0].at not in axes:
        return axes, reduced, stores
    ((axis, at),) = places
    rewrite = Rewriter(Substitution({at: axis}))
    rows = tuple(v for v in axes if v is not at)
    return rows, reduced, tuple(rewrite.store(s) for s in stores)


def faults(n: Scan, reduced: Loops) -> Iterator[tuple[str, str]]:
    """What is wrong with a scan in a nest, with the rule that says so."""
    if n.axis not in reduced:
        yield "scan", f"a scan over {n.axis}"
    if any(n.axis in a.vars for a in n.start):
        yield "scan", f"a scan that starts with what depends on {n.axis}"
    if n.combine:
        yield from (("operand", why) for why in function_faults(n.combine, n.elements))
        return
    alike = zip(n.start, n.elements, strict=False)
    if n.row.whole and n.start:
        yield "scan", f"a {n.kind} that starts with something"
    if not n.row.takes(n.args[0].dtype) or any(a.dtype is not b.dtype for a, b in alike):
        yield "operand", f"a scan {n.kind} of {', '.join(str(a.dtype) for a in n.args)}"


def run_along(stores: Sequence[Store], reduced: Loops) -> bool:
    """Whether every scan runs along the one reduced loop, read where it runs."""
    return all(reduced == (n.axis,) == (n.at,) for n in scans_of(stores))


# --- functions of two states ----------------------------------------------------------------------


def function_faults(combine: Function, elements: Sequence[Node]) -> Iterator[str]:
    """What keeps nodes from being a function of two states alone."""
    types = [a.dtype for a in elements]
    if [v.dtype for v in combine] != types:
        yield f"a function whose results are no state of {', '.join(map(str, types))}"
    for v in walk(combine):
        if isinstance(v, Given):
            if v.number >= 2 * len(types) or v.dtype is not types[v.number % len(types)]:
                yield f"a function that is given no {v.dtype} as number {v.number}"
        elif not isinstance(v, (Const, Masked, Op)):
            yield f"a function of more than two states: {v}"
        elif isinstance(v, Op) and (v.name in CHECKS or v.name in RANDOM):
            yield f"a function with {v.name}"


def applied(combine: Function, earlier: Sequence[Node], later: Sequence[Node]) -> Function:
    """Two states together."""
    given: dict[Node, Node] = {body.given(v.dtype, i): v for i, v in enumerate((*earlier, *later))}
    rewrite = Rewriter(memo=given)
    return tuple(map(rewrite, combine))


def carried(n: Scan) -> tuple[DType, ...]:
    """The types in which C++ keeps what a scan has come to."""
    if n.combine:
        return tuple(v.dtype for v in widened(n.combine))
    return tuple(n.row.carried(a.dtype) for a in n.elements)


@lru_cache(maxsize=256)
def widened(combine: Function) -> Function:
    """The function with double precision in the place of single; the same where bits count."""
    known: dict[Node, Node] = {}
    for v in walk(combine):
        args = tuple(known[a] for a in v.args)
        to = F64 if v.dtype is F32 else v.dtype
        if isinstance(v, Given):
            known[v] = body.given(to, v.number)
        elif isinstance(v, Const):
            known[v] = body.const(to, v.value)
        elif isinstance(v, Masked):
            known[v] = body.masked(*args)
        elif not isinstance(v, Op) or v.name in ("bitcast", "round_to", "nextafter"):
            return combine
        elif v.name == "cast":
            known[v] = body.cast(args[0], to)
        else:
            known[v] = body.op(v.name, *args, to=v.param)
    return tuple(known[v] for v in combine)
