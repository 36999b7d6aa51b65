"""The loop trees of C++ kernels as text, one statement a line."""

from __future__ import annotations

from litz.ir.body import Const, Index, Load, Op, Reduce
from litz.targets.cpp.tree import (
    Blocks,
    Branch,
    Clear,
    Combine,
    Counted,
    Finish,
    For,
    Keep,
    Kernel,
    Lanes,
    Let,
    Line,
    Merge,
    MergeMoments,
    Put,
    Range,
    Rescale,
    Stmt,
    Tiles,
    Turns,
    Update,
)  # fmt: skip


def text(kernel: Kernel) -> str:
    """The tree as text, one statement a line."""
    head = f"kernel {kernel.name} lanes {1 if kernel.lane is None else kernel.lanes}"
    if kernel.units:
        head += " units " + " ".join(str(v) for v in kernel.units)
    arrays = [f"  array {a.name}: {a.dtype}[{a.size}]" for a in kernel.arrays]
    lines = [head, *arrays, *_block(kernel.body, "  ")]
    if kernel.split is not None:
        slots = " ".join(f"{s.name}: {s.dtype}" for s in kernel.split.slots)
        lines.insert(1, f"  split {kernel.split.by} by {kernel.split.size} room {slots}")
        lines += ["end", *_block(kernel.split.end.body, "  ")]
    return "\n".join(lines) + "\n"


def children(s: Stmt) -> list[Stmt]:
    """The statements inside ``s``."""
    if isinstance(s, Tiles):
        return [*s.rows, *s.body]
    return s.body if isinstance(s, (For, Lanes, Blocks, Range, Branch, Turns)) else []


def _block(body: list[Stmt], pad: str) -> list[str]:
    out: list[str] = []
    for s in body:
        out.append(pad + _line(s))
        out.extend(_block(children(s), pad + "  "))
        if isinstance(s, Branch):
            out.append(f"{pad}  {s.name} = {s.then.text}")
    return out


def _line(s: Stmt) -> str:
    if isinstance(s, Let):
        v = "v" if s.vec else ""
        mask = f" if {s.mask.text}" if s.mask else ""
        return f"{s.name}: {s.node.dtype}{v} = {_node(s)}{mask}"
    if isinstance(s, Put):
        mask = f" if {s.mask.text}" if s.mask else ""
        mode = "" if s.store.mode == "set" else s.store.mode + " "
        stream = " stream" if s.stream else ""
        return f"store{stream} {mode}{s.store.buffer}[{s.store.index}] = {s.value.text}{mask}"
    if isinstance(s, Branch):
        return f"{s.name} = {s.other.text} unless {s.cond.text}"
    if isinstance(s, Clear):
        v = "v" if s.acc.vec else ""
        copies = f" x{s.acc.copies}" if s.acc.copies > 1 else ""
        return f"{s.acc.name}: {s.acc.dtype}{v}{copies} = {s.acc.row.name} of none"
    if isinstance(s, Update):
        return f"{s.acc.name} {s.acc.row.name}= {s.value.text}"
    if isinstance(s, Merge):
        return f"{s.into.name} {s.into.row.name}= {s.acc.name}"
    if isinstance(s, Rescale):
        return f"{s.acc.name} rescaled from {s.top.name} to {s.part.text}"
    if isinstance(s, Finish):
        return f"{s.name} = {'fold ' if s.acc.folded else ''}{s.acc.name}"
    if isinstance(s, MergeMoments):
        return f"{s.acc.name} moments= {s.mean.text}, {s.m2.text} of {s.terms}"
    if isinstance(s, Combine):
        return f"{s.name} = {s.row.name} of all {' '.join(x.name for x in s.slots)}[{s.index}]"
    if isinstance(s, Counted):
        return f"{s.acc.name} counts {s.terms}"
    if isinstance(s, Keep):
        return f"keep {s.array} = {s.value.text}"
    if isinstance(s, Line):
        return s.text
    if isinstance(s, Turns):
        return f"{s.count} turns of {s.var} step {s.step}"
    return _loop(s)


def _loop(s: For | Lanes | Blocks | Tiles | Range) -> str:
    if isinstance(s, Tiles):
        turns = [f" load {t.buffer}[{t.index}] as {t.array}" for t in s.loads]
        turns += [f" store {t.buffer}[{t.index}] from {t.array}" for t in s.stores]
        return f"tiles {s.down} by {s.across}{' exact' if s.exact else ''}" + ",".join(turns)
    if isinstance(s, Blocks):
        return f"blocks {s.var} < {s.stop} of {s.size}"
    if isinstance(s, Range):
        return f"range {s.var} < {s.stop}"
    start = f" from {s.start}" if s.start is not None else ""
    if isinstance(s, For):
        step = f" step {s.step}" if s.step != 1 else ""
        rows = f" together {s.together}" if s.together > 1 else ""
        return f"{'part' if s.part else 'for'} {s.var} < {s.stop}{start}{step}{rows}"
    unroll = f" unroll {s.unroll}" if s.unroll > 1 else ""
    tail = " exact" if s.exact else ""
    between = " " + " .. ".join(s.between) if s.between else ""
    return f"lanes {s.var} < {s.stop}{start}{unroll}{tail}{between}"


def _node(s: Let) -> str:
    n = s.node
    args = "".join(" " + a.text for a in s.args)
    if isinstance(n, Load):
        return f"load {n.buffer}[{n.index}]{args}"
    if isinstance(n, Index):
        return f"index {n.expr}"
    if isinstance(n, Const):
        return f"const {n.value}"
    if isinstance(n, Op):
        return n.name + args + (f" to {n.param}" if n.param else "")
    if isinstance(n, Reduce):
        return n.kind + args
    return "where" + args
