"""The statement of updates in the order of their rows as C++ text."""

from __future__ import annotations

from dataclasses import replace

from litz.index import Var
from litz.kernel.lanes.fetch import LINE
from litz.kernel.lanes.filled import PLACES
from litz.targets.cpp import tree
from litz.targets.cpp.printer import Printer
from litz.targets.cpp.values import Speller, literal


class SumPrinter(Printer):
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
        fill, dtype = s.put.store.fill, s.put.value.dtype
        assert fill is not None and isinstance(s.var, Var)
        kind, v, n = spell.vtype(dtype), s.var.name, self.kernel.lanes
        names = [f"sum{c}_" for c in range(count)]
        none = literal(fill.value)
        self.line(f"{kind} {', '.join(f'{name}({none})' for name in names)};")
        self.line(f"const int64_t {v}_b = {v};")
        self.open("for (int64_t i_ = first_; i_ < last_; ++i_)")
        self.line(f"const int64_t {s.over} = {s.order}[i_];")
        self.block(s.once, replace(spell, lane=None, count=None))
        for c, name in enumerate(names):
            self.open("")
            self.line(f"const int64_t {v} = {v}_b + {c * n};")
            self.block(s.body, spell, c)
            update = f"litz::update::{s.put.store.mode}::apply"
            self.line(f"{name} = {update}({name}, {spell.vector(s.value)});")
            self.close()
        self.close()
        later = {str(s.over): "next_"}
        later |= {str(v): f"int64_t({PLACES}[next_])" for x in s.ahead for v, _ in x.indirect}
        asked = [(x.dtype.bytes, f"{x.buffer} + ({spell.index(x.index, later)})") for x in s.ahead]
        if asked and spell.count is None:
            self.open("if (first_ < last_)")
            for size, at in asked:
                for c in range(0, count * n, LINE // size):
                    self.line(f"__builtin_prefetch({at} + {c}, 0, 2);")
            self.close()
        for c, name in enumerate(names):
            put = replace(s.put, value=replace(s.put.value, text=name))
            put = replace(put, store=replace(put.store, mode="set", fill=None))
            self.open("")
            self.line(f"const int64_t {v} = {v}_b + {c * n};")
            self.line(spell.put(put))
            self.close()
