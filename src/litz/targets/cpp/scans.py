"""Scans in loop trees: a state that the loop over the scanned axis carries from point to point."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litz.ir import body
from litz.ir.body import Const, Given, Masked, Node, Op, Scan, walk
from litz.ir.ops import cpp_text
from litz.ir.scans import carried, widened
from litz.targets.cpp import tree
from litz.targets.cpp.scope import Placer, Scope
from litz.targets.cpp.tree import Ref
from litz.targets.cpp.values import Speller, converted, ctype, literal, number


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
        home.env[n.of(p.name)] = ref


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
    wide = carried(n)
    given = []
    for r, own in zip(s.values, wide, strict=True):
        text = spell.vector(r) if s.out[0].vec else r.text
        given.append(converted(text, r.dtype, own))
    if n.combine:
        return _function_lines(s, spell, given)
    if len(names) > 1:
        out = [r.text for r in s.out]
        head = [f"auto {o} = {v};" for o, v in zip(out, given, strict=True)]
        args = ", ".join([*names, *out])
        if s.how == "lanes":
            return [*head, f"{row.cpp_lanes}({args});"]
        last = [f"{o} = {h};" for o, h in zip(out, names, strict=True)]
        return [*head, f"{row.cpp}({args});", *last]
    (state,), (out_,) = names, s.out
    if s.how == "lanes":
        step = f"[](auto a, auto b) LITZ_LAMBDA {{ return {row.cpp}(a, b); }}"
        none = number(row.identity(wide[0]), wide[0])
        text = f"litz::scan_lanes({state}, {given[0]}, {none}, {step})"
        if row.cpp_lanes:
            text = f"{row.cpp_lanes}({state}, {given[0]})"
        return [f"const auto {out_.text} = {converted(text, wide[0], out_.dtype)};"]
    text = converted(state, wide[0], out_.dtype)
    return [f"{state} = {row.cpp}({state}, {given[0]});", f"const auto {out_.text} = {text};"]


def _function_lines(s: tree.Step, spell: Speller, given: Sequence[str]) -> list[str]:
    """One step by a function of two states: what comes first is a state by itself.

    Lanes that follow each other are walked one by one.
    """
    n, names, wide = s.scan, [r.text for r in s.held], carried(s.scan)

    def fixed(c: Const) -> str:
        ref = Ref(literal(c), c.dtype)
        return spell.vector(ref) if s.out[0].vec else ref.text

    at = spell.index(n.axis)
    kinds = [ctype(t) for t in wide]
    new = [f"{o.text}_n" for o in s.out]
    lines = [f"auto {v} = {x};" for v, x in zip(new, given, strict=True)]
    if s.how == "lanes":
        for v, kind in zip(new, kinds, strict=True):
            lines.append(f"{kind} {v}a[{spell.lanes}];")
            lines.append(f"litz::store({v}a, {v});")
        lines.append(f"for (int64_t i_ = 0; i_ < {spell.lanes}; i_++) {{")
        body_ = _combined(n, names, [f"{v}a[i_]" for v in new], f"{at} + i_ > 0", literal)
        lines += [f"  {x}" for x in body_]
        lines += [f"  {v}a[i_] = {c};" for v, c in zip(new, names, strict=True)]
        lines.append("}")
        lines += [f"{v} = litz::load<{spell.lanes}>({v}a);" for v in new]
    else:
        lines += _combined(n, names, new, f"{at} > 0", fixed)
        lines += [f"{v} = {c};" for v, c in zip(new, names, strict=True)]
    for o, v, t in zip(s.out, new, wide, strict=True):
        lines.append(f"const auto {o.text} = {converted(v, t, o.dtype)};")
    return lines


def _combined(
    n: Scan,
    held: Sequence[str],
    later: Sequence[str],
    started: str,
    constant: Callable[[Const], str],
) -> list[str]:
    """A state behind another, in the other's place."""
    combine = widened(n.combine)
    given = [*held, *later]
    names: dict[Node, str] = {}
    lines = [f"if ({started}) {{"]
    for v in walk(combine):
        args = [names[a] for a in v.args]
        if isinstance(v, Given):
            names[v] = given[v.number]
            continue
        if isinstance(v, Const):
            names[v] = constant(v)
            continue
        names[v] = f"f{len(names)}_"
        if isinstance(v, Masked):
            text = f"litz::where({', '.join(args)})"
        else:
            assert isinstance(v, Op)
            text = cpp_text(v.name, args, v.args[-1].dtype, v.param)
        lines.append(f"  const auto {names[v]} = {text};")
    # What is handed on unchanged may be another part's new value.
    kept = [names[v] for v in combine]
    lines += [f"  const auto h{i}_ = {x};" for i, x in enumerate(kept)]
    lines += [f"  {c} = h{i}_;" for i, c in enumerate(held)]
    last = " ".join(f"{c} = {x};" for c, x in zip(held, later, strict=True))
    return [*lines, f"}} else {{ {last} }}"]
