"""The text form of kernel plans and of recipes; ``litz.kernel.parse`` reads it back.

A recipe is its plan, then a line for every field; of its kernels likewise, each with its own plan
where it has one.  Fields that have their defaults are left out.  By example::

    recipe in lanes
    symbol s0 in [2, inf] hint 8
    kernel (b0: in f32, b1: out f32) for [x0 < s0] reduce [r0 < 1000] ints [s0] lane r0 {
      %0: f32 = load b0[r0 + 1000*x0]
      ...
    }
    runs
      form: rows
      reductions: [%2]
      passes: {groups: [[0]], stores: [], reads: again}
      passes: {groups: [], stores: [0], reads: last}

Values of fields: words, numbers, expressions, nodes and literals as in the plan, ``[..]`` of
several, ``{field: ..}`` of records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Protocol

from litz.ir.body import Namer, Node, symbol_text
from litz.ir.dtype import DType
from litz.ir.text import axes_text, nest_body_lines
from litz.kernel.plan import KernelPlan


class Record(Protocol):
    """What runs a plan: a dataclass."""

    @property
    def plan(self) -> KernelPlan: ...


class Recipe(Record, Protocol):
    """Kernels in order for a plan."""

    @property
    def kernels(self) -> Sequence[Record]: ...


APART = ("plan", "kernels")  # fields that are no lines


def plan_text(p: KernelPlan) -> str:
    params = ", ".join(
        f"{x.name}: {x.mode} {x.dtype}{' by value' if x.by_value else ''}" for x in p.params
    )
    head = f"kernel ({params}) for [{axes_text(p.parallel)}]"
    if p.reduced:
        head += f" reduce [{axes_text(p.reduced)}]"
    if p.ints:
        head += f" ints [{', '.join(str(e) for e in p.ints)}]"
    head += f" lane {p.lane}" + (f" tile {p.tile}" if p.tile is not None else "")
    return "\n".join([head + " {", *(f"  {x}" for x in nest_body_lines(p.stores, p.skeleton)), "}"])


def recipe_text(recipe: Recipe, kind: str) -> str:
    """kind: what it is in, ``lanes`` or ``blocks``."""
    lines = [f"recipe in {kind}", *(f"symbol {symbol_text(s)}" for s in recipe.plan.ints)]
    lines += [plan_text(recipe.plan), *_lines(recipe)]
    for k in recipe.kernels:
        lines += [] if k.plan == recipe.plan else [plan_text(k.plan)]
        lines += ["runs", *(f"  {line}" for line in _lines(k))]
    return "\n".join(lines)


def _lines(record: Record) -> Iterator[str]:
    name = Namer()
    for s in record.plan.stores:
        name.lines(s.roots())
    for f in told(record):
        value = getattr(record, f.name)
        # A line for each of several records.
        several = isinstance(value, tuple) and value and all(map(is_dataclass, value))
        for x in value if several else (value,):
            yield f"{f.name}: {_value(x, name)}"


def told(record: Any) -> list[Field[Any]]:
    """The fields of a record that are not as they are by default."""
    own = [f for f in fields(record) if f.name not in APART]
    return [f for f in own if f.default is MISSING or getattr(record, f.name) != f.default]


def _value(x: object, name: Namer) -> str:
    if isinstance(x, Node):
        return name(x)
    if isinstance(x, frozenset):
        return _value(tuple(sorted(x)), name)
    if isinstance(x, tuple):
        return f"[{', '.join(_value(v, name) for v in x)}]"
    if is_dataclass(x) and not isinstance(x, DType):
        return f"{{{', '.join(f'{f.name}: {_value(getattr(x, f.name), name)}' for f in told(x))}}}"
    return str(x)
