"""What comes before a program's block of a row, from what the programs before it leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from litz.ir.body import Scan
from litz.ir.ops import TRITON_TYPES
from litz.kernel.blocks.lookback import HEAD, pieces
from litz.kernel.blocks.sizes import power_of_two
from litz.kernel.nodes import int_value
from litz.targets.triton.layout import Scope
from litz.targets.triton.printer import Printer


class Left(NamedTuple):
    """What a block comes to, and where the words of that begin: of each part of a state."""

    ends: tuple[str, ...]
    places: tuple[str, ...]


class LookBack:
    """The words of one kernel; see ``litz.kernel.blocks.lookback``.

    Those of a state's piece lie together: of each block of each row, then of each whole group.
    """

    def __init__(self, printer: Printer, axis: int) -> None:
        self.printer, self.axis = printer, axis
        self.pieces = 0  # so far

    def begin(self) -> None:
        """Where a program's rows have their words, and its place in its group."""
        p, reduced = self.printer, self.printer.axes.reduced
        assert p.made.words is not None and reduced is not None
        name, group = p.made.words
        points, number = p.index(p.axes.parallel[-1].size), p.pids["r"]
        row = "xindex" if p.plan.down else "xindex * rwords"
        self.step = f" * ({points})" if p.plan.down else ""  # between blocks of a row
        for line in (
            f"rblocks = ({p.index(reduced.size)} + RBLOCK - 1) // RBLOCK",
            f"rwords = rblocks + rblocks // {group}",
            f"rpiece = rwords * ({points})",
            f"row = {name} + ({HEAD} + {row})",
            f"rgroup = {number} // {group}",
            f"rnear = {number} % {group}",
            f"rbefore = rgroup * {group} + tl.arange(0, {group})[None, :]",
            f"rgroups = tl.arange(0, {self.together()[0]})[None, :]",
        ):
            p.top.emit(line)

    def together(self) -> tuple[int, bool]:
        """How many groups a program looks at together, as the default has them; whether more."""
        p, reduced = self.printer, self.printer.axes.reduced
        assert p.made.words is not None and reduced is not None
        _, group = p.made.words
        if not reduced.size.is_const:
            return group, True
        blocks = [c.block("r") * group for c in p.made.configs]
        before = [-(-int_value(reduced.size) // n) - 1 for n in blocks]
        some = max(2, min(group, power_of_two(before[0])))
        return some, max(before) > some

    def leave(self, node: Scan, ends: Sequence[str]) -> Left:
        """Leaves what a block comes to.  ends: expressions of it."""
        p, places = self.printer, list[str]()
        for e in node.elements:
            places.append(f"row + rpiece * {self.pieces}" if self.pieces else "row")
            self.pieces += pieces(e.dtype)
        names = tuple(p.fresh("end") for _ in ends)
        for name, text in zip(names, ends, strict=True):
            p.top.emit(f"{name} = {text}")
        self._leave(places, names, f"{p.pids['r']}{self.step}")
        return Left(names, tuple(places))

    def _leave(
        self, places: Sequence[str], values: Sequence[str], at: str, conds: Sequence[str] = ()
    ) -> None:
        mask = self.printer.mask("x", conds) or "None"
        for place, v in zip(places, values, strict=True):
            self.printer.top.emit(f"litz.leave({place} + {at}, {v}, rpiece, {mask})")

    def __call__(
        self,
        node: Scan,
        found: Sequence[str],
        left: Left,
        scan: str,
        line: Callable[[Sequence[str], Sequence[str], Sequence[str]], str],
        first: Sequence[str],
    ) -> tuple[str, ...]:
        """The names of scans of a row from its beginning.

        found: of scans of a block; left: what it comes to.  scan: template of
        the scan of some states; line: that combines two, from names for both.
        first: what comes before the row; nothing where a function has no such state.
        """
        p = self.printer
        assert p.made.words is not None
        number, last, home = p.pids["r"], p.made.words[1] - 1, p.top
        (ends, places), (together, more) = left, self.together()
        kinds = [TRITON_TYPES[e.dtype.name] for e in node.elements]

        def block(prefix: str, texts: Sequence[str]) -> tuple[str, ...]:
            names = tuple(p.fresh(prefix) for _ in texts)
            for n, text in zip(names, texts, strict=True):
                home.emit(f"{n} = {text}")
            return names

        def both(a: Sequence[str], b: Sequence[str]) -> tuple[str, ...]:
            names = tuple(p.fresh() for _ in a)
            home.emit(line(names, a, b))
            return names

        def chosen(cond: str, a: Sequence[str], b: Sequence[str]) -> tuple[str, ...]:
            pairs = zip(a, b, strict=True)
            return block("v", [f"tl.where({cond}, {x}, {y})" for x, y in pairs])

        def look(prefix: str, at: str, cond: str, end: str) -> Callable[[], tuple[str, ...]]:
            """Peeks at words; and what makes of them, once they are there, all up to the last."""
            mask, texts = p.mask("x", (cond,)), []
            for place, kind in zip(places, kinds, strict=True):
                words, given = f"{p.fresh('low')}, {p.fresh('high')}", f"{place} + {at}, rpiece"
                home.emit(f"{words} = litz.peek({given}, {mask}, {kind})")
                texts.append(f"litz.look({words}, {given}, {mask}, {kind})")

            def seen() -> tuple[str, ...]:
                scanned = [p.fresh(prefix) for _ in texts]
                words = ", ".join(block(prefix, texts))
                home.emit(f"{', '.join(scanned)}, = {scan.format(words)}")
                return block(prefix, [f"litz.element({n}, {self.axis}, {end})" for n in scanned])

            return seen

        def groups(start: str = "") -> Callable[[], tuple[str, ...]]:
            at, count = f"(rblocks{start} + rgroups){self.step}", f"rgroup{start.replace('+', '-')}"
            end = f"tl.minimum({count}, {together}) - 1"
            return look("far", at, f"(rgroups < {count})", end)

        near = look("near", f"rbefore{self.step}", f"(rbefore < {number})", "rnear - 1")
        far = groups()
        before = near()
        whole = chosen("rnear > 0", both(before, ends), ends)
        self._leave(places, whole, f"(rblocks + rgroup){self.step}", (f"(rnear == {last})",))
        all_ = far()
        if more:
            home = Scope(2, p.top)
            for old, new in zip(all_, both(all_, groups(" + rstart")()), strict=True):
                home.emit(f"{old} = {new}")
            p.top.emit(f"for rstart in range({together}, rgroup, {together}):")
            p.top.lines += home.lines
            home = p.top
        if first:
            all_ = chosen("rgroup > 0", both(first, all_), first)
            before = chosen("rnear > 0", both(all_, before), all_)
            return both(before, found)
        before = chosen("rnear > 0", chosen("rgroup > 0", both(all_, before), before), all_)
        return chosen(f"{number} > 0", both(before, found), found)
