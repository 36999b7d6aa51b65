"""Reading the text form of recipes back (``litz.kernel.text`` writes it and documents it)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from litz.index import Expr
from litz.index import parse as parse_expr
from litz.ir.body import Node
from litz.ir.dtype import BY_NAME, DType
from litz.ir.parse import NestReader, ParseError, bracketed, parse_axes, parse_symbol, split
from litz.kernel.blocks.recipe import BlockPlan, BlockRecipe
from litz.kernel.lanes.recipe import LanePlan, LaneRecipe
from litz.kernel.plan import Dim, KernelPlan, Param

_KINDS: Mapping[str, tuple[type, type]] = {
    "recipe in blocks": (BlockRecipe, BlockPlan),
    "recipe in lanes": (LaneRecipe, LanePlan),
}
_PLAN = re.compile(
    r"kernel \((.*)\) for \[(.*?)\](?: reduce \[(.*?)\])?(?: ints \[(.*?)\])?"
    r" lane (\S+)(?: tile (\S+))? \{"
)
_PARAM = re.compile(r"(\S+): (\S+) (\S+)( by value)?")
_FIELD = re.compile(r"(\w+): (.*)")


def parse_recipe(text: str) -> BlockRecipe | LaneRecipe:
    """The recipe whose ``text`` this is.  Raises ``ParseError`` with the line's number."""
    head, *rest = (line.strip() for line in text.split("\n"))
    if head not in _KINDS:
        raise ParseError(f"line 1: not a recipe: {head!r}")
    reader = _Reader(*_KINDS[head])
    lines = iter(list(enumerate(rest, 2)))
    try:
        for reader.number, line in lines:
            reader.line(line, lines)
        return reader.end()
    except (ValueError, KeyError, TypeError) as e:
        raise ParseError(f"line {reader.number}: {e}") from e


class _Reader:
    """recipe, kernel: the classes of both."""

    def __init__(self, recipe: type, kernel: type) -> None:
        self.recipe, self.kernel = recipe, kernel
        self.symbols: dict[str, Expr] = {}
        self.first: tuple[KernelPlan, NestReader] | None = None
        self.next: tuple[KernelPlan, NestReader] | None = None  # of the next kernel alone
        self.nodes = NestReader({})  # of the record that is read
        self.number = 1
        self.records: list[dict[str, Any]] = []

    def line(self, text: str, lines: Iterator[tuple[int, str]]) -> None:
        if text.startswith("symbol "):
            s = parse_symbol(text.removeprefix("symbol "))
            self.symbols[str(s)] = s
        elif text.startswith("kernel "):
            self.next = self.plan(text, lines)
            if self.first is None:
                self.first = self.next
                self.record()
        elif text == "runs":
            self.record()
        else:
            self.field(text)

    def record(self) -> None:
        found = self.next or self.first
        assert found is not None
        plan, self.nodes = found
        self.records.append({"plan": plan})
        self.next = None

    def field(self, text: str) -> None:
        m = _match(_FIELD, text, "a field")
        kind = get_type_hints(self.kernel if len(self.records) > 1 else self.recipe)[m[1]]
        of = get_args(kind)
        record = self.records[-1]
        if get_origin(kind) is tuple and is_dataclass(of[0]):  # a line for each
            record[m[1]] = (*record.get(m[1], ()), self.value(of[0], m[2]))
        else:
            record[m[1]] = self.value(kind, m[2])

    def plan(self, head: str, lines: Iterator[tuple[int, str]]) -> tuple[KernelPlan, NestReader]:
        m = _match(_PLAN, head, "a plan")
        params = []
        for part in split(m[1]):
            name, mode, dtype, by_value = _match(_PARAM, part, "a parameter").groups()
            params.append(Param(name, BY_NAME[dtype], mode, bool(by_value)))  # type: ignore[arg-type]
        parallel = parse_axes(m[2], self.symbols)
        reduced = parse_axes(m[3] or "", {**self.symbols, **parallel})
        reader = NestReader({**self.symbols, **parallel, **reduced})
        for self.number, line in lines:
            if line == "}":
                break
            reader.line(line)
        lane, tile = (None if n in (None, "None") else reader.scope[n] for n in (m[5], m[6]))
        dims = (*(Dim(v, "p") for v in parallel.values()), *(Dim(v, "r") for v in reduced.values()))
        ints = tuple(self.symbols[n] for n in split(m[4] or ""))
        stores = tuple(reader.stores)
        plan = KernelPlan(dims, tuple(params), ints, stores, lane, tile, reader.skeleton)
        return plan, reader

    def value(self, kind: Any, text: str) -> Any:
        """The value of a type."""
        origin, of = get_origin(kind), get_args(kind)
        if origin is UnionType:
            return None if text == "None" else self.value(of[0], text)
        if origin in (tuple, frozenset):
            parts = split(bracketed(text)[0])
            kinds = of if of[1:] and of[-1] is not ... else of[:1] * len(parts)
            return origin(self.value(k, part) for k, part in zip(kinds, parts, strict=True))
        if kind is Expr:
            return parse_expr(text, self.nodes.scope)
        if kind is DType:
            return BY_NAME[text]
        if kind is int:
            return int(text)
        if kind is bool or origin is Literal:
            words = {str(x): x for x in of or (True, False)}
            if text not in words:
                raise ParseError(f"{text!r} is none of {', '.join(words)}")
            return words[text]
        if isinstance(kind, type) and issubclass(kind, Node):
            return self.nodes.node(text)
        if is_dataclass(kind):
            hints = get_type_hints(kind)
            given = (part.partition(": ") for part in split(bracketed(text)[0]))
            return kind(**{name: self.value(hints[name], x) for name, _, x in given})  # type: ignore[operator]
        return text

    def end(self) -> BlockRecipe | LaneRecipe:
        whole, *own = self.records
        made: BlockRecipe | LaneRecipe
        made = self.recipe(**whole, kernels=tuple(self.kernel(**k) for k in own))
        return made


def _match(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    m = pattern.fullmatch(text)
    if m is None:
        raise ParseError(f"not {what}: {text!r}")
    return m
