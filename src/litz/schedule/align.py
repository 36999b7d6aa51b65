"""Common iteration spaces: how the loops of two groups become one loop nest.

The loops of both sides are split into *atoms* such that each atom is a whole loop or a factor of
one on each side.  Atoms are found from an access that both sides make (the same strides must step
through the same memory), or by position when their sizes agree.  Where one side steps through it
backwards, parallel loops of either are turned round, so that what is flipped behind a scan, or in
front of one, runs along with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache

from litz.dataclass import dataclass
from litz.index import (
    ONE,
    ZERO,
    Expr,
    Substitution,
    exact_quotient,
    size_hint,
    split_linear,
    var,
)


@dataclass(frozen=True, slots=True)
class Space:
    """The loops of one group: parallel and reduced variables."""

    axes: tuple[Expr, ...]
    reduce_axes: tuple[Expr, ...]

    @property
    def all(self) -> tuple[Expr, ...]:
        return (*self.axes, *self.reduce_axes)


@dataclass(frozen=True, slots=True)
class Alignment:
    """A fused space and what each side's variables are in it (missing: unchanged)."""

    space: Space
    left: Mapping[Expr, Expr]
    right: Mapping[Expr, Expr]


@dataclass(slots=True)
class _Part:
    """What is left to match of one loop: ``extent`` steps of ``weight`` positions each."""

    var: Expr
    extent: Expr
    weight: Expr


@dataclass(frozen=True, slots=True)
class _Atom:
    extent: Expr
    left: tuple[Expr, Expr] | None  # (variable, weight of this factor in it)
    right: tuple[Expr, Expr] | None


def _walk(
    left: Sequence[Expr], right: Sequence[Expr]
) -> tuple[list[_Atom], list[_Part], list[_Part]] | None:
    """Match loops from the innermost; None where sizes have no common split."""
    a = [_Part(v, v.extent, ONE) for v in left]  # type: ignore[attr-defined]
    b = [_Part(v, v.extent, ONE) for v in right]  # type: ignore[attr-defined]
    atoms: list[_Atom] = []
    while a and b:
        p, q = a[-1], b[-1]
        if p.extent is q.extent:
            size = p.extent
        elif exact_quotient(q.extent, p.extent) is not None:
            size = p.extent
        elif exact_quotient(p.extent, q.extent) is not None:
            size = q.extent
        else:
            return None
        atoms.append(_Atom(size, (p.var, p.weight), (q.var, q.weight)))
        for stack in (a, b):
            part = stack[-1]
            if part.extent is size:
                stack.pop()
            else:
                rest = exact_quotient(part.extent, size)
                assert rest is not None
                stack[-1] = _Part(part.var, rest, part.weight * size)
    return atoms, a, b


def _by_stride(
    index: Expr, variables: Sequence[Expr]
) -> tuple[list[tuple[Expr, Expr]], Expr] | None:
    """(variable, stride) pairs from the largest stride to the smallest, and the constant part."""
    split = split_linear(index, variables)
    if split is None:
        return None
    coefs, rest = split
    used = [(v, coefs[v]) for v in variables if v in coefs and coefs[v] is not ZERO]
    used.sort(key=lambda p: (-size_hint(p[1], default=1 << 10), p[1].key))
    return used, rest


def _match_access(
    left_index: Expr, left: Space, right_index: Expr, right: Space
) -> list[_Atom] | None:
    """Atoms under which both sides step through the same memory together."""
    a = _by_stride(left_index, left.all)
    b = _by_stride(right_index, right.all)
    if a is None or b is None or a[1] is not b[1]:
        return None
    walked = _walk([v for v, _ in a[0]], [v for v, _ in b[0]])
    if walked is None or walked[1] or walked[2]:
        return None
    strides_a, strides_b = dict(a[0]), dict(b[0])
    for atom in walked[0]:
        assert atom.left is not None and atom.right is not None
        (v, wv), (u, wu) = atom.left, atom.right
        if strides_a[v] * wv is not strides_b[u] * wu:
            return None
    return walked[0]


def _rest(left: Space, right: Space, atoms: list[_Atom]) -> list[_Atom] | None:
    """Match, by position, the loops that the shared access does not mention."""
    seen_a = {x.left[0] for x in atoms if x.left}
    seen_b = {x.right[0] for x in atoms if x.right}
    more_a = [v for v in left.all if v not in seen_a]
    more_b = [v for v in right.all if v not in seen_b]
    if not more_a or not more_b:
        return [
            *atoms,
            *(_Atom(v.extent, (v, ONE), None) for v in reversed(more_a)),  # type: ignore[attr-defined]
            *(_Atom(v.extent, None, (v, ONE)) for v in reversed(more_b)),  # type: ignore[attr-defined]
        ]
    walked = _walk(more_a, more_b)
    if walked is None:
        return None
    done, rest_a, rest_b = walked
    if any(p.weight is not ONE for p in (*rest_a, *rest_b)):
        return None
    return [
        *atoms,
        *done,
        *(_Atom(p.extent, (p.var, p.weight), None) for p in reversed(rest_a)),
        *(_Atom(p.extent, None, (p.var, p.weight)) for p in reversed(rest_b)),
    ]


def _legal_roles(left: Space, right: Space, atoms: list[_Atom]) -> bool:
    """One outer space and one reduced space must serve both sides.

    A loop that only one side has must be a reduced loop of that side: then the other side runs once
    per outer iteration.  A loop that one side reduces may be no outer loop of another reduction.
    """
    for x in atoms:
        lr = x.left is not None and x.left[0] in left.reduce_axes
        rr = x.right is not None and x.right[0] in right.reduce_axes
        if x.left is None:
            if not rr:
                return False
        elif x.right is None:
            if not lr:
                return False
        elif lr != rr and (right if lr else left).reduce_axes:
            return False
    return True


def _build(
    left: Space, right: Space, atoms: list[_Atom], turned: Set[Expr] = frozenset()
) -> Alignment:
    """turned: variables of one side that count from the end."""
    names = {str(v) for v in (*left.all, *right.all)}
    fresh = 0
    variables: list[Expr] = []
    for x in atoms:
        whole = x.left is not None and x.left[0].extent is x.extent  # type: ignore[attr-defined]
        if whole and x.left is not None:
            variables.append(x.left[0])
            continue
        while f"a{fresh}" in names:
            fresh += 1
        names.add(f"a{fresh}")
        variables.append(var(f"a{fresh}", x.extent))
    sides: list[dict[Expr, Expr]] = [{}, {}]
    for v, x in zip(variables, atoms, strict=True):
        for mapping, part in zip(sides, (x.left, x.right), strict=True):
            if part is not None:
                old, weight = part
                mapping[old] = mapping[old] + v * weight if old in mapping else v * weight
    for mapping in sides:
        mapping.update({v: _back(v, mapping[v]) for v in turned if v in mapping})
    order = _order(left, right, atoms)
    p_axes = tuple(variables[k] for k in order if not _reduced(left, right, atoms[k]))
    r_axes = tuple(variables[k] for k in order if _reduced(left, right, atoms[k]))
    return Alignment(
        Space(p_axes, r_axes),
        {o: e for o, e in sides[0].items() if o is not e},
        {o: e for o, e in sides[1].items() if o is not e},
    )


def _reduced(left: Space, right: Space, x: _Atom) -> bool:
    return (x.left is not None and x.left[0] in left.reduce_axes) or (
        x.right is not None and x.right[0] in right.reduce_axes
    )


def _order(left: Space, right: Space, atoms: list[_Atom]) -> list[int]:
    """Atoms in the loop order of the left side, then of the right; outer factors first."""
    place_l = {v: n for n, v in enumerate(left.all)}
    place_r = {v: n for n, v in enumerate(right.all)}

    def key(k: int) -> tuple[int, int, int]:
        x = atoms[k]
        if x.left is not None:
            return (0, place_l[x.left[0]], -k)
        assert x.right is not None
        return (1, place_r[x.right[0]], -k)

    return sorted(range(len(atoms)), key=key)


@lru_cache(maxsize=1024)
def alignments(
    left: Space, right: Space, shared: tuple[tuple[Expr, Expr], ...], crossing: bool = False
) -> tuple[Alignment, ...]:
    """Candidate fused spaces, the likeliest first.

    shared: pairs (index on the left, index on the right) of accesses to one buffer.  crossing: also
    those in which each side goes over what the other reduces.
    """
    found = tuple(_alignments(left, right, shared))
    return (*found, *_crossings(left, right, shared)) if crossing else found


def _crossings(
    left: Space, right: Space, shared: Sequence[tuple[Expr, Expr]]
) -> Iterator[Alignment]:
    """Both sides' loops as one nest of reduced ones, of which each reduction runs over some."""
    if not left.reduce_axes or not right.reduce_axes:
        return
    for a, b in shared:
        atoms = _match_access(a, left, b, right)
        full = None if atoms is None else _rest(left, right, atoms)
        if full is None or any(x.left is None or x.right is None for x in full):
            continue
        if all(_reduced(left, right, x) for x in full) and not _legal_roles(left, right, full):
            yield _build(left, right, full)
            return


def _alignments(
    left: Space, right: Space, shared: Sequence[tuple[Expr, Expr]]
) -> Iterator[Alignment]:
    seen: set[tuple[object, ...]] = set()
    for a, b in shared:
        atoms = _match_access(a, left, b, right)
        full = None if atoms is None else _rest(left, right, atoms)
        if full is not None and _legal_roles(left, right, full) and (k := tuple(full)) not in seen:
            seen.add(k)
            yield _build(left, right, full)
    for a, b in shared:
        yield from _turned(a, left, b, right)
    full = _rest(left, right, [])
    if full is not None and _legal_roles(left, right, full) and tuple(full) not in seen:
        yield _build(left, right, full)


def _turned(a: Expr, left: Space, b: Expr, right: Space) -> Iterator[Alignment]:
    """With the right side's loops turned round that step backwards, or the left side's instead."""
    split = split_linear(b, right.all)
    turned = {v for v, c in split[0].items() if c.hi is not None and c.hi < 0} if split else set()
    if not turned:
        return
    atoms = _match_access(a, left, Substitution({v: _back(v, v) for v in turned})(b), right)
    full = None if atoms is None else _rest(left, right, atoms)
    if full is None or not _legal_roles(left, right, full):
        return
    if turned.issubset(right.axes):
        yield _build(left, right, full, turned)
    parts = [(x.left, x.right is not None and x.right[0] in turned) for x in full]
    others = {p[0] for p, back in parts if p is not None and back}
    whole = all(p is None or back == (p[0] in others) for p, back in parts)
    if whole and all(p is not None for p, back in parts if back) and others.issubset(left.axes):
        yield _build(left, right, full, others)


def _back(v: Expr, e: Expr) -> Expr:
    """What a loop's variable is where ``e`` counts it from the end."""
    return v.extent - 1 - e  # type: ignore[attr-defined, no-any-return]
