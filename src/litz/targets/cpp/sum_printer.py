"""The statement of updates in the order of their rows as C++ text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.index import Var
from litz.kernel.lanes.fetch import LINE
from litz.kernel.lanes.updates import PLACES
from litz.kernel.nodes import extent
from litz.targets.cpp import tree
from litz.targets.cpp.tile_printer import TilePrinter
from litz.targets.cpp.values import Speller


class SumPrinter(TilePrinter):
    """Prints it besides all others."""

    def visit_sums(self, s: tree.Sums, spell: Speller, _: int) -> None:
        assert isinstance(s.var, Var)
        v, n = s.var.name, self.kernel.lanes
        lo, hi = s.between or ("0", self.expr(s.stop))
        whole, step = replace(spell, lane=s.var), n * s.count
        self.open("")
        if s.ahead:
            self.line(f"const int64_t next_ = {s.order}[last_];")
        self.line(f"int64_t {v} = {lo};")
        self.open(f"for (; {v} + {step - 1} < {hi}; {v} += {step})")
        self.sums(s, whole, s.count)
        self.close()
        self.open(f"for (; {v} < {hi}; {v} += {n})")
        self.line(f"const int64_t {v}_n = litz::least({hi} - {v}, {n});")
        self.sums(s, replace(whole, count=f"{v}_n"), 1)
        self.close()
        self.close()

    def sums(self, s: tree.Sums, spell: Speller, count: int) -> None:
        """Some vectors of a row."""
        assert isinstance(s.var, Var)
        kind, v, n = spell.vtype(s.value.dtype), s.var.name, self.kernel.lanes
        names = [f"sum{c}_" for c in range(count)]
        self.line(f"{kind} {', '.join(names)};")
        self.line(f"const int64_t {v}_b = {v};")

        def each(body: Sequence[tree.Stmt], end: str, before: str = "") -> None:
            for c, name in enumerate(names):
                self.open("")
                self.line(f"const int64_t {v} = {v}_b + {c * n};")
                if before:
                    self.line(before.format(name))
                self.block(list(body), spell, c)
                if end:
                    self.line(end.format(name))
                self.close()

        each(s.start, f"{{0}} = {spell.vector(s.first)};")
        self.open("for (int64_t i_ = first_; i_ < last_; ++i_)")
        for name, digit in self.digits(s, f"{s.order}[i_]").items():
            self.line(f"const int64_t {name} = {digit};")
        self.block(s.once, replace(spell, lane=None, count=None))
        each(s.body, f"{{0}} = litz::update::{s.mode}::apply({{0}}, {spell.vector(s.value)});")
        self.close()
        later = self.digits(s, "next_")
        later |= {str(v): f"int64_t({PLACES}[next_])" for x in s.ahead for v, _ in x.indirect}
        asked = [(x.dtype.bytes, f"{x.buffer} + ({spell.index(x.index, later)})") for x in s.ahead]
        if asked and spell.count is None:
            self.open("if (first_ < last_)")
            for size, at in asked:
                for c in range(0, count * n, LINE // size):
                    self.line(f"__builtin_prefetch({at} + {c}, 0, 2);")
            self.close()
        each(s.last, "", "const auto sum_ = {0};")

    def digits(self, s: tree.Sums, number: str) -> dict[str, str]:
        """What an update's number says of the variables that count updates."""
        found, sizes = {}, [self.expr(extent(v)) for v in s.over]
        for k, v in enumerate(s.over):
            less = f"({number} / ({' * '.join(sizes[k + 1 :])}))" if k + 1 < len(sizes) else number
            found[str(v)] = f"{less} % ({sizes[k]})" if k else less
        return {name: f"({text})" if len(s.over) > 1 else text for name, text in found.items()}
