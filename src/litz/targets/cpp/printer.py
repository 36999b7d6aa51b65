"""The statements of loop trees as C++ text; ``functions`` puts them into a kernel's functions."""

from __future__ import annotations

from dataclasses import replace

from litz.index import Expr, Var, ceildiv, const, render
from litz.ir.body import Load, Store
from litz.ir.dtype import F64, DType
from litz.ir.reductions import Reduction
from litz.kernel.lanes.access import Move
from litz.kernel.lanes.fetch import LINE
from litz.kernel.nodes import extent, int_value
from litz.targets.cpp import tree
from litz.targets.cpp.scans import lines as step_lines
from litz.targets.cpp.tree import Acc, Kernel, Ref, Slot, Stmt
from litz.targets.cpp.values import DIALECT, Speller, converted, ctype, number


def neutral(row: Reduction, dtype: DType) -> str:
    """The value that leaves an accumulator as it is."""
    return number(row.identity(dtype), dtype)


def combined(row: Reduction, held: str, value: str, square: bool = False) -> str:
    """What an accumulator holds with one value more, or a square.

    A maximum asks its first operand whether it is nan: the value, which nothing waits for.
    """
    if square:
        return f"litz::mad({value}, {value}, {held})"
    a, b = (value, held) if row.op in ("maximum", "minimum") else (held, value)
    return f"{row.cpp}({a}, {b})"


class Printer:
    """Collects the lines of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.pad = "  "
        self.called = {op: f"{kernel.name}_{op}" for op in kernel.called}

    def line(self, text: str) -> None:
        self.lines.append(self.pad + text)

    def open(self, text: str) -> None:
        self.line(text + " {" if text else "{")
        self.pad += "  "

    def close(self) -> None:
        self.pad = self.pad[:-2]
        self.line("}")

    def expr(self, e: Expr) -> str:
        return render(e, DIALECT)

    # --- statements -----------------------------------------------------------------------------

    def block(self, body: list[Stmt], spell: Speller, copy: int = 0) -> None:
        for s in body:
            self.stmt(s, spell, copy)

    def stmt(self, s: Stmt, spell: Speller, copy: int) -> None:
        """By the method of its kind.  copy: which of an unrolled loop's turns it is in."""
        getattr(self, f"visit_{type(s).__name__.lower()}")(s, spell, copy)

    def visit_let(self, s: tree.Let, spell: Speller, _: int) -> None:
        self.line(f"const auto {s.name} = {spell.let(s)};")

    def visit_put(self, s: tree.Put, spell: Speller, _: int) -> None:
        self.line(spell.put(s))

    def visit_ask(self, s: tree.Ask, spell: Speller, _: int) -> None:
        f = s.fetch
        how = "1, 3" if f.written else "0, 2"
        at = f"{f.buffer} + ({spell.index(f.index)})"
        if s.picked is not None:
            at += f" + {spell.index(f.step)} * {s.picked.text}"
        if f.data:
            places = f"{f.data} + ({spell.index(f.at)})"
            given = ", ".join((at, places, *map(spell.index, (f.step, f.apart, f.left))))
            self.line(f"litz::ask_each<{self.kernel.lanes}>({given});")
            return
        self.line(f"__builtin_prefetch({at}, {how});")

    def visit_line(self, s: tree.Line, _: Speller, turn: int) -> None:
        if turn % s.every == 0:
            self.line(s.text)

    def visit_step(self, s: tree.Step, spell: Speller, _: int) -> None:
        for text in step_lines(s, spell):
            self.line(text)

    def visit_keep(self, s: tree.Keep, spell: Speller, _: int) -> None:
        at = s.at or f"{s.array} + {offset(spell)}"
        self.line(f"litz::store({at}, {spell.vector(s.value)});")

    def visit_branch(self, s: tree.Branch, spell: Speller, copy: int) -> None:
        kind = spell.vtype(s.dtype) if s.vec else ctype(s.dtype)

        def text(r: Ref) -> str:
            return spell.vector(r, False) if s.vec else r.text

        self.line(f"{kind} {s.name} = {text(s.other)};")
        self.open(f"if ({s.cond.text})")
        self.block(s.body, spell, copy)
        self.line(f"{s.name} = {text(s.then)};")
        self.close()

    def visit_hold(self, s: tree.Hold, spell: Speller, _: int) -> None:
        value = spell.vector(s.value) if s.ref.vec else s.value.text
        kind = spell.vtype(s.ref.dtype) if s.ref.vec else ctype(s.ref.dtype)
        self.line(f"{kind} {s.ref.text} = {converted(value, s.value.dtype, s.ref.dtype)};")

    # --- accumulators ---------------------------------------------------------------------------

    def visit_clear(self, s: tree.Clear, spell: Speller, _: int) -> None:
        acc = s.acc
        if acc.row.counts:
            self.line(f"double {acc.name}_n = 0;")
        if acc.block is not None:
            self.over_block(acc.block)
        for dtype, none, parts in self.state(acc):
            if acc.block is not None:
                for part in parts:
                    value = f"{spell.vtype(dtype)}({none})"
                    self.line(f"litz::store({acc.name}{part} + j_, {value});")
                continue
            kind = spell.vtype(dtype) if acc.vec else ctype(dtype)
            copies = range(acc.copies)
            names = [f"{acc.name}_{c}{part}({none})" for c in copies for part in parts]
            self.line(f"{kind} {', '.join(names)};")
        if acc.block is not None:
            self.close()

    def state(self, acc: Acc) -> list[tuple[DType, str, tuple[str, ...]]]:
        """The parts of an accumulator by type: what they are at first, and how names end."""
        if acc.row.counts:
            return [(acc.dtype, "0.0", ("", "q"))]
        found: list[tuple[DType, str, tuple[str, ...]]]
        found = [(acc.dtype, neutral(acc.row, acc.dtype), ("",))]
        none = f"{ctype(acc.places)}(0)"
        return [*found, (acc.places, none, ("i",))] if acc.position is not None else found

    def take(self, acc: Acc, more: str, spell: Speller, copy: int = 0) -> None:
        """All parts of an accumulator, changed by what is given.  copy: of those in registers."""
        ends = [end for _, _, parts in self.state(acc) for end in parts]
        if acc.block is None:
            names = ", ".join(f"{acc.name}_{copy}{end}" for end in ends)
            self.line(f"{acc.row.cpp}({names}, {more});")
            return
        at = offset(spell)
        names = ", ".join(f"{end or 'v'}_" for end in ends)
        self.open("")
        for end in ends:
            self.line(f"auto {end or 'v'}_ = litz::load<{spell.lanes}>({acc.name}{end} + {at});")
        self.line(f"{acc.row.cpp}({names}, {more});")
        for end in ends:
            self.line(f"litz::store({acc.name}{end} + {at}, {end or 'v'}_);")
        self.close()

    def visit_mergemoments(self, s: tree.MergeMoments, spell: Speller, _: int) -> None:
        acc, terms = s.acc, f"double({self.expr(s.terms)})"
        mean, m2 = (spell.vector(r) if acc.vec else r.text for r in (s.mean, s.m2))
        mean, m2 = (converted(t, r.dtype, F64) for t, r in ((mean, s.mean), (m2, s.m2)))
        self.take(acc, f"{acc.name}_n, {mean}, {m2}, {terms}", spell)
        if acc.block is None:
            self.line(f"{acc.name}_n += {terms};")

    def visit_counted(self, s: tree.Counted, *_: object) -> None:
        self.line(f"{s.acc.name}_n += double({self.expr(s.terms)});")

    def visit_rescale(self, s: tree.Rescale, *_: object) -> None:
        name = f"{s.acc.name}_0"
        self.line(f"{name} = litz::rescaled({name}, {s.top.name}_0, {s.part.text});")

    def visit_update(self, s: tree.Update, spell: Speller, copy: int) -> None:
        acc, copy = s.acc, copy if s.acc.copies > 1 else 0
        value = spell.vector(s.value) if acc.vec else s.value.text
        if acc.folded and spell.count is not None:
            rest = f"{spell.vtype(acc.dtype)}({neutral(acc.row, acc.dtype)})"
            value = f"litz::where({spell.valid()}, {value}, {rest})"
        if acc.position is not None:
            self.take(
                acc, f"{value}, {spell.index_value(acc.position, acc.vec, acc.places)}", spell, copy
            )
        elif acc.block is not None:
            at = f"{acc.name} + {offset(spell)}"
            old = f"litz::load<{spell.lanes}>({at})"
            self.line(f"litz::store({at}, {combined(acc.row, old, value, s.square)});")
        else:
            name = f"{acc.name}_{copy}"
            self.line(f"{name} = {combined(acc.row, name, value, s.square)};")

    def over_block(self, v: Expr) -> None:
        """Open a loop over the vectors of a block's arrays."""
        self.open(f"for (int64_t j_ = 0; j_ < {v}_e - {v}_b; j_ += {self.kernel.lanes})")

    def visit_merge(self, s: tree.Merge, spell: Speller, _: int) -> None:
        if s.acc.block is not None:
            self.over_block(s.acc.block)
            a, b = (f"litz::load<{spell.lanes}>({n} + j_)" for n in (s.into.name, s.acc.name))
            b = converted(b, s.acc.dtype, s.into.dtype)
            self.line(f"litz::store({s.into.name} + j_, {s.acc.row.cpp}({a}, {b}));")
            self.close()
            return
        for row in range(s.acc.rows):
            value = self.held(s.acc, row, s.acc.folded and not s.into.folded)
            value = converted(value, s.acc.dtype, s.into.dtype)
            into = f"{s.into.name}_{row}"
            self.line(f"{into} = {s.acc.row.cpp}({into}, {value});")

    def held(self, acc: Acc, row: int, folds: bool) -> str:
        """What the copies (and lanes, if it folds them) of a row's accumulators hold together."""
        names = acc.names(row)
        while len(names) > 1:  # pairs, so that the chain of dependent operations is short
            pairs = zip(names[::2], names[1::2], strict=True)
            names = [f"{acc.row.cpp}({a}, {b})" for a, b in pairs]
        return acc.row.cpp_fold.format(names[0]) if folds else names[0]

    def visit_finish(self, s: tree.Finish, _: Speller, row: int) -> None:
        acc = s.acc
        names = acc.names(row)
        if acc.row.counts:
            held = f"{acc.name}_0" if s.part == "mean" else f"{acc.name}_0q"
            value = acc.row.part(s.part).cpp.format(held, f"{acc.name}_n")
            self.line(f"const auto {s.name} = {converted(value, F64, s.dtype)};")
            return
        if acc.position is not None:
            for n in names[1:]:
                self.line(f"{acc.row.cpp}({names[0]}, {names[0]}i, {n}, {n}i);")
            value, at = names[0], f"{names[0]}i"
            if acc.folded:
                self.line(f"const auto {s.name}f = {acc.row.cpp_fold.format(value, at)};")
                value, at = f"{s.name}f.value", f"{s.name}f.at"
            self.line(f"const auto {s.name} = {value if s.part == 'value' else at};")
            return
        held = self.held(acc, row, acc.folded)
        self.line(f"const auto {s.name} = {converted(held, acc.dtype, s.dtype)};")

    def visit_combine(self, s: tree.Combine, spell: Speller, _: int) -> None:
        at = self.expr(s.index)

        def cell(slot: Slot, vec: bool) -> str:
            step = f"k_ * (cells_ * {8 // slot.dtype.bytes})"
            if not vec:
                return f"{slot.name}[{at} + {step}]"
            p = f"{slot.name} + ({at} + {step})"
            if spell.count is not None:
                return f"litz::load_partial<{spell.lanes}>({p}, {spell.count})"
            return f"litz::load<{spell.lanes}>({p})"

        names = (s.name, f"{s.name}q") if len(s.slots) > 1 else (s.name,)
        for name, slot in zip(names, s.slots, strict=False):
            first = cell(slot, s.vec).replace("k_ *", "0 *")
            self.line(f"auto {name} = {first};")
        if s.row.counts:
            self.line(f"double {s.name}_n = {cell(s.slots[2], False).replace('k_ *', '0 *')};")
        self.open("for (int64_t k_ = 1; k_ < parts_; ++k_)")
        cells = [cell(slot, s.vec) for slot in s.slots[:2]]
        if s.row.counts:
            more = cell(s.slots[2], False)
            self.line(f"{s.row.cpp}({', '.join(names)}, {s.name}_n, {', '.join(cells)}, {more});")
            self.line(f"{s.name}_n += {more};")
        elif len(names) > 1:
            self.line(f"{s.row.cpp}({', '.join(names)}, {', '.join(cells)});")
        else:
            self.line(f"{s.name} = {s.row.cpp}({s.name}, {cells[0]});")
        self.close()
        if s.row.counts:
            self.line(f"{s.name} = {s.row.part('mean').cpp.format(s.name, f'{s.name}_n')};")

    # --- loops ----------------------------------------------------------------------------------

    def visit_for(self, s: tree.For, spell: Speller, copy: int) -> None:
        v, stop = str(s.var), self.expr(s.stop)
        if s.together > 1:
            self.together(s, spell)
            return
        if s.part:
            units = self.kernel.units
            i = units.index(s.var)
            v = self.start_of(s.var)
            step = (
                f"{v} += {self.kernel.grains[s.var]}" if s.var in self.kernel.grains else f"++{v}"
            )
            if i + 1 < len(units):
                step += f", {self.start_of(units[i + 1])} = 0"
            else:
                if s.rows > 1:
                    more = f"{v} + {s.rows - 1} < {stop} && unit_ + {s.rows - 1} < units_"
                    self.open(f"for (; {more}; {v} += {s.rows}, unit_ += {s.rows})")
                    self.block(s.beside, spell)
                    self.close()
                step += ", ++unit_"
            self.open(f"for (; {v} < {stop} && unit_ < units_; {step})")
        else:
            start = "0" if s.start is None else self.expr(s.start)
            step = f"++{v}" if s.step == 1 else f"{v} += {s.step}"
            self.open(f"for (int64_t {v} = {start}; {v} < {stop}; {step})")
        self.block(s.body, spell, copy)
        self.close()

    def together(self, s: tree.For, spell: Speller) -> None:
        """Several iterations in each vector: arrays are read and written once for them.

        Memory is then read in as many streams as there are iterations, each soon at its end: what
        the next ones load is fetched ahead.
        """
        v, stop, n = str(s.var), self.expr(s.stop), s.together
        *first, lanes = s.body
        assert isinstance(lanes, tree.Lanes)
        fetch = self.asks(lanes, s.var, s.ahead, spell) if s.ahead else []
        turns = tree.Turns(s.var, n, [*fetch, *first, *lanes.body])
        self.open("")
        self.line(f"int64_t {v} = {'0' if s.start is None else self.expr(s.start)};")
        self.open(f"for (; {v} + {n - 1} < {stop}; {v} += {n})")
        self.visit_lanes(replace(lanes, body=[turns]), spell, 0)
        self.close()
        if s.start is not None or not s.stop.is_const or int_value(s.stop) % n:
            self.open(f"for (; {v} < {stop}; ++{v})")
            self.block(s.body, spell)
            self.close()
        self.close()

    def asks(self, s: tree.Lanes, v: Expr, n: int, spell: Speller, step: int = LINE) -> list[Stmt]:
        """Ask for what is read here ``n`` iterations over ``v`` later, each line once.

        step: elements between the turns of a loop.
        """
        nodes = (t.node for t in s.body if isinstance(t, tree.Let))
        loads = (x for x in nodes if isinstance(x, Load) and not x.indirect and v in x.vars)
        later = {str(v): f"({v} + {n})"}
        found = ((x.dtype.bytes, f"{x.buffer} + ({spell.index(x.index, later)})") for x in loads)
        asked = ((max(1, LINE // (step * size)), at) for size, at in found)
        return [tree.Line(f"__builtin_prefetch({at}, 0, 2);", turns) for turns, at in asked]

    def visit_turns(self, s: tree.Turns, spell: Speller, copy: int) -> None:
        base = str(s.var)
        self.line(f"const int64_t {base}_b = {base};")
        # It runs once at most: what is compiled once will do.
        if spell.count is not None and not s.rows:
            end = f"{base}_b + {s.count * s.step}"
            self.open(f"for (int64_t {base} = {base}_b; {base} < {end}; {base} += {s.step})")
            self.block(s.body, spell)
            self.close()
            return
        for c in range(s.count):
            self.open("")
            self.line(f"const int64_t {base} = {base}_b + {self.expr(const(c) * s.step)};")
            self.block(s.body, spell, copy * s.count + c)
            self.close()

    def start_of(self, v: Expr) -> str:
        """The C++ variable that says where a unit dim starts."""
        return f"{v}_lo" if v in self.kernel.grains else str(v)

    def visit_range(self, s: tree.Range, spell: Speller, _: int) -> None:
        n, lo, hi = self.kernel.lanes, f"{s.var}_lo", f"{s.var}_hi"
        self.line(
            f"const int64_t {hi} = litz::least({self.expr(s.stop)}, {lo} + (units_ - unit_) * {n});"
        )
        self.block(s.body, spell)
        self.line(f"unit_ += litz::ceil_div({hi} - {lo}, {n});")

    def visit_blocks(self, s: tree.Blocks, spell: Speller, _: int) -> None:
        v = str(s.var)
        lo, hi = (f"{v}_lo", f"{v}_hi") if s.ranged else ("0", self.expr(s.stop))
        self.open(f"for (int64_t {v}_b = {lo}; {v}_b < {hi}; {v}_b += {s.size})")
        self.line(f"const int64_t {v}_e = litz::least({hi}, {v}_b + {s.size});")
        self.block(s.body, spell)
        self.close()

    def visit_tiles(self, s: tree.Tiles, spell: Speller, _: int) -> None:
        """The tiles of one block, whole ones and those at the edges."""
        assert isinstance(s.across, Var)
        n, down, across = self.kernel.lanes, str(s.down), s.across.name
        for dim in (s.down, s.across):
            stop = f"{dim}_lo + {self.kernel.grains[dim]}"
            self.line(f"const int64_t {dim}_hi = litz::least({self.expr(extent(dim))}, {stop});")
        if s.room is not None and s.move is not None:
            self.move_block(s.move, s.room, spell)
            return
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
        self.line(f"litz::turn_over<{self.kernel.lanes}>({self.ends(m, spell)});")

    def ends(self, m: Move, spell: Speller) -> str:
        ends = ((m.load, m.load_row), (m.store, m.store_row))
        at = (f"{a.buffer} + ({spell.index(a.index)}), {self.expr(row)}" for a, row in ends)
        return ", ".join(at)

    def move_block(self, m: Move, room: tuple[str, int], spell: Speller) -> None:
        both = m.outer, m.inner
        at = self.ends(m, replace(spell, names={str(v): f"{v}_lo" for v in both}))
        sizes = ", ".join(f"{v}_hi - {v}_lo" for v in both)
        name, pitch = room
        self.line(f"litz::turn_stream<{self.kernel.lanes}>({at}, {sizes}, {name}, {pitch});")

    def visit_lanes(self, s: tree.Lanes, spell: Speller, _: int) -> None:
        assert isinstance(s.var, Var)
        v, width = s.var.name, self.kernel.lanes
        lo, hi = s.between or ("0", self.expr(s.stop))
        lo = lo if s.start is None else self.expr(s.start)
        whole = replace(spell, lane=s.var)
        if s.ahead is not None:
            s = replace(s, body=[*self.asks(s, s.ahead, 1, whole, width), *s.body], ahead=None)
        step = width * s.unroll
        if s.head is not None:
            return self.from_head(s, s.head, lo, hi, whole)
        if s.exact:
            self.open(f"for (int64_t {v} = {lo}; {v} < {hi}; {v} += {step})")
            self.copies(s, whole)
            self.close()
            return
        self.open("")
        self.line(f"int64_t {v} = {lo};")
        if not (s.stop.hi is not None and s.stop.hi < step):
            self.open(f"for (; {v} + {step - 1} < {hi}; {v} += {step})")
            self.copies(s, whole)
            self.close()
        known = s.start is None and s.between is None and s.stop.is_const
        size = int_value(s.stop) if known else None
        if s.unroll > 1 and (size is None or size % step >= width):
            self.open(f"for (; {v} + {width - 1} < {hi}; {v} += {width})")
            self.block(s.body, whole)
            self.close()
        if size is None or size % width:
            self.open(f"for (; {v} < {hi}; {v} += {width})")
            self.line(f"const int64_t {v}_n = litz::least({hi} - {v}, {width});")
            self.block(s.body, replace(whole, count=f"{v}_n"))
            self.close()
        self.close()

    def from_head(self, s: tree.Lanes, head: Store, lo: str, hi: str, spell: Speller) -> None:
        """The lanes before a line of memory, vectors of whole lines, and as the first the rest."""
        v, n, at = str(s.var), self.kernel.lanes, f"{head.buffer} + ({spell.index(head.index)})"
        k = max(n, LINE // head.value.dtype.bytes)
        self.open("")
        self.line(f"int64_t {v} = {lo}, {v}_e = litz::least({hi}, {v} + litz::before<{k}>({at}));")
        self.line(f"const int64_t {v}_w = {v}_e + ({hi} - {v}_e) / {k} * {k};")
        self.open(f"for (; {v} < {hi}; {v}_e = {hi})")
        self.open(f"for (int64_t {v}_n; {v} < {v}_e; {v} += {v}_n)")
        self.line(f"{v}_n = litz::least({v}_e - {v}, {n});")
        self.block(s.body, replace(spell, count=f"{v}_n"))
        self.close()
        self.open(f"for (; {v} < {v}_w; {v} += {n})")
        self.block(s.body, spell)
        for _ in range(3):
            self.close()

    def copies(self, s: tree.Lanes, spell: Speller) -> None:
        if s.unroll == 1:
            self.block(s.body, spell)
            return
        self.visit_turns(tree.Turns(s.var, s.unroll, s.body, self.kernel.lanes), spell, 0)

    def unit_count(self, v: Expr) -> Expr:
        """How many units lie along one dim."""
        return ceildiv(extent(v), self.kernel.grains.get(v, 1))


def offset(spell: Speller) -> str:
    """Where the current lanes lie in a block's arrays."""
    assert spell.lane is not None
    return f"({spell.lane.name} - {spell.lane.name}_b)"
