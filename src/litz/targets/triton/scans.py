"""Scans along the reduced axis: of a block at once, with what comes before it in loops of blocks.

Blocks that a mask cuts off end a row, so that nothing is read behind what they leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from litz.ir.body import Node, Scan
from litz.ir.ops import TRITON_TYPES
from litz.kernel.values import Value
from litz.targets.triton.layout import Scope
from litz.targets.triton.lookback import LookBack
from litz.targets.triton.printer import Printer
from litz.targets.triton.reductions import at_once
from litz.targets.triton.spell import neutral, number

Key = tuple[str, tuple[Value, ...], tuple[Node, ...]]


class Scans:
    """The scans of one kernel along an axis of its blocks; parts of a state come together."""

    def __init__(self, printer: Printer, axis: int) -> None:
        self.printer, self.axis = printer, axis
        self.done: dict[Key, tuple[Scope, tuple[str, ...]]] = {}  # where, and names of the parts
        self.look_back = LookBack(printer, axis)
        self.ends: dict[str, str] = {}  # of scans in runs, what all of these come to
        self.before: dict[Key, tuple[str, ...]] = {}  # names of what the blocks so far have come to

    def begin(self) -> None:
        """A walk over the reduced axis begins."""
        self.before = {}

    def __call__(self, v: Value) -> str:
        node = v.node
        assert isinstance(node, Scan)
        home = self.printer.home(v)
        key = node.kind, v.args, node.combine
        where, parts = self.done.get(key, (None, ()))
        if where is not home:
            parts = self._parts(node, v, home)
            self.done[key] = home, parts
        return parts[[p.name for p in node.row.state].index(node.part)]

    def _parts(self, node: Scan, v: Value, home: Scope) -> tuple[str, ...]:
        p, count = self.printer, len(node.row.state)
        found = tuple(p.fresh("scan") for _ in range(count))
        parts = [p.wide_value(a) for a in v.args[:count]]
        values = ", ".join(parts)
        if node.row.whole:
            mask = p.mask("r")
            if mask:
                rest = neutral(node.row, node.dtype)
                values = f"tl.where({mask}, {values}, tl.full([], {rest}, {values}.dtype))"
            home.emit(f"{found[0]} = litz.{node.row.scan}({values})")
            return found
        function, scan = self._spelled(node, p.made.backward)
        left = None
        if p.made.early and node.row.op:
            left = self.look_back.leave(node, [at_once(node.row, parts[0], self.axis)])
        if p.made.run > 1:
            self._in_runs(home, node, found, parts)
        else:
            home.emit(f"{', '.join(found)}, = {scan.format(values)}")
        if p.made.words is not None:
            first = self._first(node, v) if node.start or not node.combine else ()
            left = left or self.look_back.leave(node, [self.end(n) for n in found])
            scan = self._spelled(node, False)[1]
            both = partial(self.both, node)
            return self.look_back(node, found, left, scan, both, first)
        if p.made.persistent and not node.start:
            return found
        before = self._before(node, v)
        out = tuple(p.fresh() for _ in range(count))
        home.emit(self.both(node, out, before, found))
        if node.combine:
            for new, own in zip(out, found, strict=True):
                home.emit(f"{new} = tl.where({before[0]}_is, {new}, {own})")
            home.emit(f"{before[0]}_is = tl.full([], 1, tl.int1)")
        if not p.made.persistent:
            for old, new in zip(before, out, strict=True):
                home.emit(f"{old} = {self.end(new)}")
        return out

    def _in_runs(
        self, home: Scope, node: Scan, found: Sequence[str], values: Sequence[str]
    ) -> None:
        """Scans of a block in runs: of each by itself, of what they come to, and of both."""
        p, function = self.printer, self._spelled(node, False)[0]
        own, ends, out = ([p.fresh("run") for _ in found] for _ in range(3))
        for name, text in zip(own, values, strict=True):
            home.emit(f"{name} = litz.runs({text}, {p.made.run})")
        home.emit(f"{', '.join(own)}, = litz.scan(({', '.join(own)},), 2, {function})")
        last = ", ".join(f"litz.end_of_runs({x})" for x in own)
        home.emit(f"{', '.join(ends)}, = litz.scan(({last},), 1, {function})")
        before = [f"litz.before_runs({x}, {p.made.run})" for x in ends]
        home.emit(self.both(node, out, before, own))
        for name, new, old in zip(found, out, own, strict=True):
            home.emit(f"{name} = litz.of_runs({new}, {old})")
        self.ends.update(zip(found, ends, strict=True))

    def _before(self, node: Scan, v: Value) -> tuple[str, ...]:
        """The state in front of a block; its lines stand in front of the loop."""
        p, count = self.printer, len(node.row.state)
        key = node.kind, v.args, node.combine
        if key in self.before:
            return self.before[key]
        names = self.before[key] = tuple(p.fresh("carry") for _ in range(count))
        for name, text in zip(names, self._first(node, v), strict=True):
            p.top.emit(f"{name} = {text}")
        if node.combine:  # whether anything came before: there is no state of no elements
            p.top.emit(f"{names[0]}_is = tl.full([], 0, tl.int1)")
        return names

    def _first(self, node: Scan, v: Value) -> tuple[str, ...]:
        """The state before all elements, of a row of the table."""
        p, count = self.printer, len(node.row.state)
        shape = p.extents(a.name for a in p.axes.parallel)
        out = []
        for i, (part, element) in enumerate(zip(node.row.state, node.elements, strict=True)):
            first = part.identity(element.dtype)
            text = number(first) if isinstance(first, float) else str(int(first))
            text = f"tl.full({shape}, {text}, {TRITON_TYPES[element.dtype.name]})"
            if node.start:
                text = f"tl.broadcast_to({p.value(v.args[count + i])}, {shape})"
            out.append(text)
        return tuple(out)

    def end(self, name: str) -> str:
        """The last element of a scan of a block."""
        if self.printer.made.backward:
            return f"litz.element({name}, {self.axis}, 0)"
        return f"litz.last({self.ends.get(name, name)}, {self.axis})"

    def both(self, node: Scan, out: Sequence[str], a: Sequence[str], b: Sequence[str]) -> str:
        """The line that combines two states, whose functions give tuples where they are printed."""
        comma = "," if node.combine else ""
        return f"{', '.join(out)}{comma} = {self._spelled(node, False)[0]}({', '.join((*a, *b))})"

    def _spelled(self, node: Scan, backward: bool) -> tuple[str, str]:
        """The function of two states, and a template of the scan of some."""
        back = ", reverse=True" if backward else ""
        function = self._function(node.combine) if node.combine else f"litz.{node.row.scan}"
        return function, f"litz.scan(({{0}},), {self.axis}, {function}{back})"

    def _function(self, combine: tuple[Node, ...]) -> str:
        """The name of a function of two states, which stands in front of the kernel."""
        functions = self.printer.functions
        if combine not in functions:
            functions[combine] = f"combine{len(functions)}"
        return functions[combine]
