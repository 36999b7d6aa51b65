"""What a template takes in: nests behind it, and what its factors are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from litz.index import Expr, Substitution, Var, invert
from litz.ir import body
from litz.ir.body import Load, Node, Reduce, Rewriter, Store
from litz.ir.program import ProgramNode, Template
from litz.ir.skeletons import GROWING

TWO: Final = "two templates are two kernels"
APART: Final = "a template takes in what it reads or what reads it"
MANY: Final = "more is stored than what a factor is read from"
READ: Final = "somebody else reads what a factor is read from"
NO_PLACE: Final = "the template has no place for it"
ONCE: Final = "the kernel that reduces computes it once, a product again for every block"
PLACES: Final = "a factor is read at places that do not tell where it was stored"


def grows(n: ProgramNode) -> bool:
    return isinstance(n, Template) and n.skeleton.kind in GROWING


def is_factor(buffer: str, stores: Sequence[Store]) -> bool:
    """Whether something is read below a sum."""
    sums = (n for n in body.walk(r for s in stores for r in s.roots()) if isinstance(n, Reduce))
    return any(n.buffer == buffer for n in body.loads(sums))


def taken_in(made: Store, axes: Sequence[Expr], stores: Sequence[Store]) -> list[Store] | str:
    """``stores`` with the value of ``made``, a store over ``axes``, where they load it."""
    own = [v for v in axes if isinstance(v, Var)]
    lost: list[Load] = []

    def take(_: Node, n: Node) -> Node:
        if not isinstance(n, Load) or n.buffer != made.buffer:
            return n
        places = None if n.indirect else invert(made.index, own, n.index)
        if places is None:
            lost.append(n)
            return n
        return Rewriter(Substitution(places))(made.value)

    rewrite = Rewriter(replace=take)
    found = [rewrite.store(s) for s in stores]
    return PLACES if lost else found
