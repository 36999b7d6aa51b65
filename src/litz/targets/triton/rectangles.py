"""Printing with block pointers: an access that is a rectangle of memory says so.

A pointer is made once for a buffer and its rectangle, where it is first needed.  Loops over the
reduced axis move it by a block each turn, and a pass behind them moves it back to the row's start.
Accesses of any other form, and those under conditions, are printed as without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litz.dataclass import dataclass
from litz.index import TRITON, Expr, const, render, size_hint, split_linear, var
from litz.ir.body import Load, Store
from litz.kernel.blocks.reach import LIMIT
from litz.kernel.blocks.recipe import Axis, BlockPlan
from litz.kernel.nodes import int_value
from litz.kernel.values import Value
from litz.targets.triton.passes import PassPrinter


@dataclass(frozen=True, slots=True)
class Rectangle:
    """The axes of a block, the elements between neighbours along each, and where it begins."""

    axes: tuple[Axis, ...]
    steps: tuple[Expr, ...]
    start: Expr


class RectanglePrinter(PassPrinter):
    """Prints a plan with block pointers wherever an access is a rectangle."""

    def __init__(self, made: BlockPlan, name: str) -> None:
        super().__init__(made, name)
        self.pointers: dict[tuple[str, Expr], str] = {}  # names of pointers
        self.moved: dict[str, str] = {}  # how each that the loop at hand uses moves in a turn

    # --- pointers ---------------------------------------------------------------------------------

    def rectangle(self, e: Expr) -> Rectangle | None:
        """The rectangle that an index describes; None if it is another form."""
        flat = self.flat(e)
        places = [(a, var(f"{a.name}index", a.size)) for a in self.blocked]
        found = split_linear(flat, [v for _, v in places])
        if found is None:
            return None
        steps, start = found
        # A step that may be 0, but need not be, is one.
        own = [(a, steps[v]) for a, v in places if steps[v] is not const(0)]
        forward = all(s.lo is not None and s.lo >= 0 for _, s in own)
        known = all(a.size.is_const and 0 < int_value(a.size) < LIMIT for a, _ in own)
        if not own or not forward or not known:
            return None
        return Rectangle(tuple(a for a, _ in own), tuple(s for _, s in own), start)

    def block_pointer(self, buffer: str, e: Expr) -> tuple[str, Rectangle] | None:
        """The pointer of an access and its rectangle."""
        rectangle = None if self.plan.dtype(buffer).kind == "bool" else self.rectangle(e)
        if rectangle is None:
            return None
        name = self.pointers.get((buffer, e))
        if name is None:
            name = self.pointers[buffer, e] = self.fresh("block")
            self.top.emit(f"{name} = {self.spelled_pointer(buffer, rectangle)}")
        if self.loop is not None and any(a.name == "r" for a in rectangle.axes):
            self.moved[name] = self.move(rectangle, "RBLOCK")
        return name, rectangle

    def spelled_pointer(self, buffer: str, r: Rectangle) -> str:
        start = render(r.start, TRITON)
        base = buffer if start == "0" else f"{buffer} + ({start})"
        sizes = ", ".join(self.index(a.size) for a in r.axes)
        steps = ", ".join(render(s, TRITON) for s in r.steps)
        places = ", ".join(
            "0" if a.name == "r" else f"({self.pids[a.name]} * {a.block}).to(tl.int32)"
            for a in r.axes
        )
        blocks = ", ".join(f"{a.block}" for a in r.axes)
        order = sorted(range(len(r.axes)), key=lambda k: size_hint(r.steps[k]))
        return (
            f"tl.make_block_ptr({base}, ({_tuple(sizes)}), ({_tuple(steps)}), ({_tuple(places)}), "
            f"({_tuple(blocks)}), ({_tuple(', '.join(map(str, order)))}))"
        )

    def move(self, r: Rectangle, by: str) -> str:
        return ", ".join(by if a.name == "r" else "0" for a in r.axes)

    def bounds(self, r: Rectangle) -> str:
        """The dims of a block that may reach beyond the end."""
        open_ = [k for k, a in enumerate(r.axes) if a.name not in self.covered]
        return f", boundary_check=({_tuple(', '.join(map(str, open_)))})" if open_ else ""

    # --- loops ------------------------------------------------------------------------------------

    def end_of_turn(self) -> None:
        for name, by in self.moved.items():
            self.scope.emit(f"{name} = tl.advance({name}, ({_tuple(by)}))")

    def sweep(self, body: Callable[[], None]) -> None:
        self.moved = {}
        super().sweep(body)
        axis = self.axes.reduced
        assert axis is not None
        moved, self.moved = self.moved, {}
        span = f"tl.cdiv({self.index(axis.size)}, RBLOCK) * RBLOCK"
        for name, by in moved.items():
            back = by.replace("RBLOCK", f"-({span})")
            self.top.emit(f"{name} = tl.advance({name}, ({_tuple(back)}))")

    # --- accesses ---------------------------------------------------------------------------------

    def load(self, v: Value, node: Load, args: Sequence[str]) -> str:
        plain = node.buffer in self.scalars or bool(node.indirect) or bool(v.conds)
        found = None if plain else self.block_pointer(node.buffer, node.index)
        if found is None:
            return super().load(v, node, args)
        self.wait(node.buffer)
        name, rectangle = found
        bounds = self.bounds(rectangle)
        tail = f'{bounds}, padding_option="zero"' if bounds else ""
        if any(a.name == "r" for a in rectangle.axes):
            tail += self.eviction()
        text = f"tl.load({name}{tail})"
        if len(rectangle.axes) < len(self.blocked):
            text = f"tl.reshape({text}, {self.extents(a.name for a in rectangle.axes)})"
        return text

    def put(self, s: Store, texts: Sequence[str]) -> None:
        axes = self.axes_written(s)
        plain = s.mode != "set" or s.mask is not None or bool(s.indirect)
        rectangle = None if plain else self.rectangle(s.index)
        whole = rectangle is not None and [a.name for a in rectangle.axes] == [
            a.name for a in self.blocked if a.name in axes
        ]
        found = self.block_pointer(s.buffer, s.index) if whole else None
        if found is None:
            super().put(s, texts)
            return
        self.wait()
        name, r = found
        block = f"[{', '.join(f'{a.block}' for a in r.axes)}]"
        full = f"tl.broadcast_to({texts[0]}, {self.extents(axes)})"
        value = full if len(r.axes) == len(self.blocked) else f"tl.reshape({full}, {block})"
        self.scope.emit(f"tl.store({name}, {value}{self.bounds(r)})")


def _tuple(parts: str) -> str:
    """The inside of a tuple, of one element too."""
    return f"{parts}," if parts and ", " not in parts else parts
