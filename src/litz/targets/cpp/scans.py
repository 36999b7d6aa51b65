"""Scans in loop trees: a state that the loop over the scanned axis carries from point to point."""

from __future__ import annotations

from litz.ir import body
from litz.ir.body import Node, Scan
from litz.ir.dtype import DType
from litz.targets.cpp import tree
from litz.targets.cpp.scope import Placer, Scope
from litz.targets.cpp.tree import Ref
from litz.targets.cpp.values import Speller, ctype, number


def states_of(n: Scan) -> tuple[DType, ...]:
    """The types in which a scan's state is carried."""
    return tuple(n.row.carried(a.dtype) for a in n.elements)


def begins(n: Scan, b: Placer, home: Scope) -> tuple[Ref, ...]:
    """What each part of a scan's state is at first, placed at ``home``."""
    if n.start:
        return tuple(b.place(a, home) for a in n.start)
    parts = zip(n.row.state, n.elements, strict=True)
    return tuple(Ref(number(p.identity(a.dtype), a.dtype), a.dtype) for p, a in parts)


def emit(n: Scan, b: Placer, scope: Scope) -> None:
    """Carry the state of a scan through the loops over its axis; all parts are known then."""
    found = [b.ref(a, scope) for a in n.elements]
    depth = max((b.bound_depth(n.vars, scope), *(d for _, d in found)))
    home, values = scope.at(depth), tuple(r for r, _ in found)
    loop = scope.binds(n.axis)
    assert loop is not None
    outside = scope.at(loop).outside
    assert outside is not None
    along = n.axis is b.lane
    held, before, after = b.hold(n, outside, home, values)
    vec = along or any(r.vec for r in (*values, *held))
    out = tuple(Ref(b.name(), a.dtype, vec) for a in n.elements)
    step = tree.Step(n, out, values, held, "lanes" if along else "each")
    home.body += [*before, step, *after]
    for p, ref in zip(n.row.state, out, strict=True):
        home.env[body.scan(n.kind, p.name, n.axis, n.at, n.args)] = ref


def first(nodes: tuple[Node, ...], b: Placer, scope: Scope) -> None:
    """Scans below ``nodes``, before masks around them are looked at."""
    if scope.guard is None:
        for n in body.scans(nodes):
            if scope.binds(n.axis) is not None:
                b.place(n, scope)


def lines(s: tree.Step, spell: Speller) -> list[str]:
    """One step of a scan."""
    n, row = s.scan, s.scan.row
    names = [r.text for r in s.held]
    wide = states_of(n)
    given = []
    for r, own in zip(s.values, wide, strict=True):
        text = spell.vector(r) if s.out[0].vec else r.text
        given.append(text if r.dtype is own else f"litz::cast<{ctype(own)}>({text})")
    if len(names) > 1:
        out = [r.text for r in s.out]
        head = [f"auto {o} = {v};" for o, v in zip(out, given, strict=True)]
        args = ", ".join([*names, *out])
        if s.how == "lanes":
            step = "[](auto& a, auto& i, auto b, auto j) LITZ_LAMBDA { "
            step += f"{row.cpp}(a, i, b, j); }}"
            return [*head, f"litz::scan_pairs({args}, {step});"]
        last = [f"{o} = {h};" for o, h in zip(out, names, strict=True)]
        return [*head, f"{row.cpp}({args});", *last]
    (state,), (out_,) = names, s.out
    if s.how == "lanes":
        step = f"[](auto a, auto b) LITZ_LAMBDA {{ return {row.cpp}(a, b); }}"
        none = number(row.identity(wide[0]), wide[0])
        text = f"litz::scan_lanes({state}, {given[0]}, {none}, {step})"
        return [f"const auto {out_.text} = {_narrowed(text, wide[0], out_.dtype)};"]
    text = _narrowed(state, wide[0], out_.dtype)
    return [f"{state} = {row.cpp}({state}, {given[0]});", f"const auto {out_.text} = {text};"]


def _narrowed(text: str, source: DType, to: DType) -> str:
    return text if source is to else f"litz::cast<{ctype(to)}>({text})"
