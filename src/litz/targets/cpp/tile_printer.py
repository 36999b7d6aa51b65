"""The statements of transposed tiles as C++ text."""

from __future__ import annotations

from dataclasses import replace

from litz.index import Var
from litz.kernel.lanes.access import Move
from litz.kernel.nodes import extent
from litz.targets.cpp import tree
from litz.targets.cpp.printer import Printer
from litz.targets.cpp.values import Speller


class TilePrinter(Printer):
    """Prints tiles, one by one or a block of them as a whole."""

    def visit_tiles(self, s: tree.Tiles, spell: Speller, _: int) -> None:
        """The tiles of one block, whole ones and those at the edges."""
        assert isinstance(s.across, Var)
        n, down, across = self.kernel.lanes, str(s.down), s.across.name
        if s.pitch:
            self.whole_block(s, spell)
            return
        for dim in (s.down, s.across):
            stop = f"{dim}_lo + {self.kernel.grains[dim]}"
            self.line(f"const int64_t {dim}_hi = litz::least({self.expr(extent(dim))}, {stop});")
        loops = [
            f"for (int64_t {down}_t = {down}_lo; {down}_t < {down}_hi; {down}_t += {n})",
            f"for (int64_t {across} = {across}_lo; {across} < {across}_hi; {across} += {n})",
        ]
        for text in reversed(loops) if s.down_first else loops:
            self.open(text)
        inside = replace(spell, lane=s.across)
        if s.exact:
            self.tile(s, inside, "", "")
        else:
            for v, at in ((down, f"{down}_t"), (across, across)):
                self.line(f"const int64_t {v}_n = litz::least({v}_hi - {at}, {n});")
            self.open(f"if ({down}_n == {n} && {across}_n == {n})")
            self.tile(s, inside, "", "")
            self.close()
            self.open("else")
            self.tile(s, replace(inside, count=f"{across}_n"), f"{down}_n", f"{across}_n")
            self.close()
        self.close()
        self.close()

    def tile(self, s: tree.Tiles, spell: Speller, rows: str, count: str) -> None:
        n, down = self.kernel.lanes, str(s.down)
        if s.move is not None and not count:
            self.move(s.move, replace(spell, names={down: f"{down}_t"}))
            return
        edge = f", {count}, {rows}" if count else ""
        for t in s.loads:
            at = spell.index(t.index, {down: f"{down}_t"})
            stride = self.expr(t.stride)
            self.line(f"litz::turn_in<{n}>({t.buffer} + ({at}), {stride}, {t.array}{edge});")
        last = rows or str(n)
        self.open(f"for (int64_t {down} = {down}_t; {down} < {down}_t + {last}; ++{down})")
        self.block(s.rows, replace(spell, lane=None, count=None))
        self.block(s.body, spell)
        self.close()
        for t in s.stores:
            at = spell.index(t.index, {down: f"{down}_t"})
            stride = self.expr(t.stride)
            self.line(f"litz::turn_out<{n}>({t.array}, {t.buffer} + ({at}), {stride}{edge});")

    def move(self, m: Move, spell: Speller) -> None:
        ends = ((m.load, m.load_row), (m.store, m.store_row))
        at = (f"{a.buffer} + ({spell.index(a.index)}), {self.expr(row)}" for a, row in ends)
        self.line(f"litz::turn_over<{self.kernel.lanes}>({', '.join(at)});")

    def whole_block(self, s: tree.Tiles, spell: Speller) -> None:
        """Turn all of a block, then go along its rows; meanwhile ask for what the next one reads.

        Where these begin within lines, first lanes are the block's before, which has read a line
        more: it writes as much of this one as its own last lines take.
        """
        assert isinstance(s.across, Var)
        n, down, across, grains = self.kernel.lanes, str(s.down), s.across.name, self.kernel.grains
        store = next(t.store for t in s.body if isinstance(t, tree.Put) and t.stream)
        most = {s.down: grains[s.down], s.across: grains[s.across] + s.line}
        self.next_unit()
        for v in (s.down, s.across):
            for end, more in (("", "true"), ("_next", "more_")):
                left = f"litz::least({self.expr(extent(v))} - {v}_lo{end}, {most[v]})"
                self.line(f"const int64_t {v}_n{end} = {more} ? {left} : 0;")
        later = {str(v): f"{self.start_of(v)}_next" for v in self.kernel.units}
        here = {down: f"{down}_lo", across: f"{across}_lo"}
        for t in s.loads:
            at, stride = f"{t.buffer} + ({spell.index(t.index, here)})", self.expr(t.stride)
            given = f"{at}, {stride}, {t.array}, {across}_n, {down}_n"
            self.line(f"litz::turn_block<{n}, {s.pitch}>({given});")
        ways = [(t, across, down) for t in s.loads] + [(t, down, across) for t in s.asks]
        for i, (t, over, along) in enumerate(ways):
            at, stride = f"{t.buffer} + ({spell.index(t.index, later)})", self.expr(t.stride)
            self.line(f"litz::Asked asked{i}_{{{at}, {stride}, {over}_n_next, {along}_n_next}};")
        self.open(f"for (int64_t {down} = {down}_lo; {down} < {down}_lo + {down}_n; ++{down})")
        self.block(s.rows, replace(spell, lane=None, count=None))
        first, end = f"{across}_lo", f"{across}_lo + {across}_n"
        if s.line:
            at = spell.index(store.index, {across: f"{across}_lo"})
            self.line(f"const auto* row_ = {store.buffer} + ({at});")
            first += f" + ({across}_lo ? litz::before<{s.line}>(row_) : 0)"
            size = grains[s.across]
            end = (
                f"litz::least({end}, {across}_lo + {size} + litz::before<{s.line}>(row_ + {size}))"
            )
        self.line(f"const int64_t from_ = {first}, to_ = {end};")
        body = [*(tree.Line(f"asked{i}_.next();") for i in range(len(ways))), *s.body]
        lanes = tree.Lanes(s.across, extent(s.across), body, between=("from_", "to_"))
        lanes.exact, lanes.head = s.exact and not s.line, store if s.line else None
        self.visit_lanes(lanes, spell, 0)
        self.close()
        for i in range(len(ways)):
            self.line(f"asked{i}_.rest();")

    def next_unit(self) -> None:
        """Where dims start in the next unit, and whether this thread has one."""
        self.line("const bool more_ = unit_ + 1 < units_;")
        turn = "1"
        for v in reversed(self.kernel.units):
            at, step = self.start_of(v), self.kernel.grains.get(v, 1)
            self.line(f"int64_t {at}_next = {at} + {turn} * {step};")
            turn = f"{v}_turn"
            self.line(f"const bool {turn} = {at}_next >= {self.expr(extent(v))};")
            self.line(f"if ({turn}) {at}_next = 0;")
