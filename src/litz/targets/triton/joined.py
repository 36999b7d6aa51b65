"""One launch for many calls of kernels that depend on each other in nothing.

Its arguments are a table in the memory of parameters.  A program searches the row of its call by
the first program of each, and reads its pointers and sizes there: so a body is there once for all
its calls, whatever their sizes, and takes no more registers than by itself.  Programs that lie
inside of what they compute need no masks; those at an end run the same body with masks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from litz.dataclass import dataclass
from litz.index import TRITON, Expr, Substitution, Symbol, Var, ceildiv, product, render, symbol
from litz.ir.body import loads
from litz.kernel.blocks.reach import LIMIT
from litz.kernel.blocks.recipe import BlockPlan, BlockRecipe, Config, Style
from litz.kernel.nodes import int_value, roots
from litz.kernel.opened import SIZE
from litz.kernel.plan import KernelPlan, Param
from litz.runtime.cache import content_key
from litz.targets.kernels import Body
from litz.targets.triton.printer import HEADER
from litz.targets.triton.render import NAME
from litz.targets.triton.render import launch as print_launch
from litz.targets.triton.signature import pointer_type, scalar_type
from litz.targets.triton.source import Column, Launch, Row, Table, TritonKernel

CELL = 8  # bytes
ROWS = 8  # a table has room for a multiple of so many, so that kernels serve different counts
BODIES = 8  # in one kernel: all take the registers of the greediest
ACCESSES = 96  # loads and stores in one kernel: the time that Triton takes grows with their square
APART = ("lookback", "crossed")  # forms whose programs are no blocks of their axes alone
LARGE = 1 << 25  # points of the calls of one body beside which a launch takes no time
TABLE = 'TABLE: tl.constexpr = "{}_param_0"'

_TYPES = {"i1": "int1", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_TYPES |= {"fp64": "float64", **{f"u{b}": f"uint{b}" for b in (8, 16, 32, 64)}}
_TYPES |= {f"i{b}": f"int{b}" for b in (8, 16, 32, 64)}


def cells_of(recipe: BlockRecipe) -> int:
    """The cells of a table that a call takes at most."""
    return 1 + len(recipe.plan.params) + len(recipe.temporaries) + len(recipe.plan.ints)


def calls_in(room: int, recipe: BlockRecipe) -> int:
    """How many calls of a kernel can be a launch's, whose arguments may take ``room`` bytes.

    A kernel in parts, as few long rows have, is as many launches.
    """
    several = len(recipe.kernels) != 1
    if several and (not recipe.kernels or any(k.form in APART for k in recipe.kernels)):
        return 0
    if recipe.plan.skeleton is not None or recipe.style.block_pointers:
        return 0
    if part_of_source(recipe.plan) > 1:
        return 0
    return room // CELL // cells_of(recipe) // ROWS * ROWS if recipe.plan.params else 0


def part_of_source(plan: KernelPlan) -> float:
    """The part of what one kernel has of bodies that a plan's takes: it may be there twice."""
    accesses = len(plan.stores) + len(loads(roots(plan.stores)))
    return max(1 / BODIES, 2 * accesses / ACCESSES)


@dataclass(frozen=True)
class _Call:
    """What a call takes: names for its parameters, and its plan's integers in the kernel's."""

    suffix: str
    numbers: Mapping[Expr, Expr]


def joined(bodies: Sequence[Body], origins: str) -> TritonKernel:
    """The kernel of all calls of some bodies.

    Of bodies in parts all first parts are one launch, then all second ones; behind the parameters
    of all calls stands the memory between the parts of each.
    """
    params: list[Param] = []
    temporaries: list[Param] = []
    ints: list[Expr] = []
    recipes: list[BlockRecipe] = []
    calls: list[list[_Call]] = []
    for k, body in enumerate(bodies):
        recipe = body.kernel.recipe
        assert isinstance(recipe, BlockRecipe)
        recipes.append(recipe)
        calls.append([])
        plan = recipe.plan
        for row, values in enumerate(body.rows):
            suffix = f"_{k}_{row}"
            params += [replace(p, name=p.name + suffix) for p in plan.params]
            temporaries += [Param(t.name + suffix, t.dtype, "out") for t in recipe.temporaries]
            numbers = dict(zip(plan.ints, values, strict=True))
            for e in plan.ints[: len(values) - body.known]:
                assert isinstance(e, Symbol)
                numbers[e] = symbol(f"{e.name}{suffix}", e.lo, e.hi, e.hint)
                ints.append(numbers[e])
            calls[-1].append(_Call(suffix, numbers))
    launches = []
    for part in range(max(len(r.kernels) for r in recipes)):
        here = [(r, own) for r, own in zip(recipes, calls, strict=True) if part < len(r.kernels)]
        made = [r.kernels[part] for r, _ in here]
        launches.append(_of_widths(made, [own for _, own in here], origins))
    return TritonKernel((*params, *temporaries), tuple(ints), tuple(launches))


def in_memory(launch: Launch) -> str:
    """The source of a launch whose table lies in memory, at the address that it takes."""
    text = launch.source.replace("    " + TABLE.format(launch.name) + "\n", "")
    return text.replace(f"def {launch.name}(cells, ", f"def {launch.name}(TABLE, ")


def _of_widths(made: Sequence[BlockPlan], calls: Sequence[Sequence[_Call]], origins: str) -> Launch:
    """The launch; where sizes are open, also in 32 bits."""
    ends = {
        Substitution(call.numbers)(e)
        for m, own in zip(made, calls, strict=True)
        for e in m.reaches or ()
        for call in own
    }
    beyond = [e for e in ends if not e.is_const or int_value(e) >= LIMIT]
    short = [replace(m, wide=False) if m.reaches is not None else m for m in made]
    wide = _Form(made if beyond else short, calls).launch(origins)
    if not beyond or any(e.is_const for e in beyond):
        return wide
    narrow = _Form(short, calls).launch(origins)
    return replace(wide, narrow=narrow, reaches=tuple(sorted(beyond, key=str)))


@dataclass
class _Form:
    """A launch of several calls being printed."""

    made: Sequence[BlockPlan]
    calls: Sequence[Sequence[_Call]]
    parts: list[str] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)

    def launch(self, origins: str) -> Launch:
        bases: list[int] = []
        printed = []
        for k in range(len(self.made)):
            bases.append(len(Table(tuple(self.columns)).types))
            printed.append(self.body(k, bases[-1]))
        table = Table(tuple(self.columns))
        text = "\n\n".join([*self.parts, _entry(bases)])
        name = f"k{content_key(text)[:16]}"
        head = f"# {origins}\n" if origins else ""
        first = [m.configs[0] for m in self.made]
        return Launch(
            name,
            f"{head}{HEADER.partition('@triton.jit')[0].rstrip()}\n\n\n{text.replace(NAME, name)}",
            (),
            (),
            (),
            (),
            (Config((), max(c.warps for c in first), max(c.stages for c in first)),),
            checks=any(x.checks for x in printed),
            table=table,
            contract=all(x.contract for x in printed),
        )

    def body(self, k: int, base: int) -> Launch:
        """Print the functions of a body, and give its part of the table."""
        made, name = replace(self.made[k], reaches=None), f"{NAME}_{k}"
        sized = made.form == "once" and str(made.axes.all[-1].size) == SIZE
        if sized:  # the dispatch tells blocks that lie inside apart, so that neither part does
            made = replace(made, inside=False)
        one = print_launch(made, f"{name}_rest", Style())
        self.parts.append(_function(one))
        if sized:
            inner = replace(made, even=made.even | {"x"})
            self.parts.append(_function(print_launch(inner, f"{name}_whole", Style())))
        config = made.configs[0]
        counts = [ceildiv(e, config.block(axis)) for axis, e in one.grid]
        own = self.calls[k]
        rows = tuple(
            Row(
                Substitution(c.numbers)(product(counts)),
                tuple(p.name + c.suffix for p in (*one.pointers, *one.scalars)),
                tuple(c.numbers[e] for e in one.ints),
            )
            for c in own
        )
        room = -(-len(own) // ROWS) * ROWS
        run_along = _run_along(made.plan)
        types = ["*" if p.name in run_along else "u64" for p in one.pointers]
        types += [scalar_type(a.dtype) for a in one.scalars]
        self.columns.append(Column(rows, room, (*types, *["i64"] * len(one.ints))))
        self.parts.append(
            "\n".join(_dispatch(name, one, config, base, room, run_along, sized)) + "\n"
        )
        return one


def _function(one: Launch) -> str:
    """A kernel as a function that is told its program's number along each axis of its grid."""
    text = one.source.partition("@triton.jit\n")[2]
    axes = "".join(f"program_{i}, " for i in range(_axes(one)))
    text = text.replace(f"def {one.name}(", f"def {one.name}({axes}", 1)
    text = re.sub(r"\b(combine\d+)\b", rf"{one.name}_\1", text)  # of scans: each its own
    return "@triton.jit\n" + re.sub(r"tl\.program_id\((\d)\)", r"program_\1", text)


def _axes(one: Launch) -> int:
    return 1 if one.flat else max(1, len(one.grid))


def _run_along(plan: KernelPlan) -> frozenset[str]:
    """The parameters that are not one element at one place: where they lie matters to blocks."""
    places = [(n.buffer, n.index) for n in loads(roots(plan.stores))]
    places += [(s.buffer, s.index) for s in plan.stores]
    return frozenset(name for name, e in places if any(isinstance(v, Var) for v in e.free))


def _dispatch(
    name: str, one: Launch, config: Config, base: int, room: int, along: frozenset[str], sized: bool
) -> Iterator[str]:
    """A function that finds the row of a program and runs the body on what stands there."""
    yield "@triton.jit"
    yield f"def {name}(program, TABLE: tl.constexpr, ALIGNED: tl.constexpr):"
    yield "    row = program * 0"
    half = 1 << (room - 1).bit_length() - 1 if room > 1 else 0
    while half:
        yield f"    row = litz.later_row(TABLE, {base}, {room}, {half}, row, program)"
        half //= 2
    yield f"    program -= litz.cell(TABLE, {base} + row).to(tl.int32)"
    at = base
    args = []
    for p in one.pointers:
        at, kind = at + room, _TYPES[pointer_type(p.dtype)[1:]]
        aligned = "ALIGNED" if p.name in along else "False"
        yield f"    {p.name} = litz.pointer(TABLE, {at} + row, tl.{kind}, {aligned})"
    for p in one.scalars:
        at, kind = at + room, _TYPES[scalar_type(p.dtype)]
        yield f"    {p.name} = litz.scalar(TABLE, {at} + row, tl.{kind})"
    for e, kind in zip(one.ints, one.int_types, strict=True):
        at += room
        yield f"    {e} = litz.cell(TABLE, {at} + row).to(tl.{_TYPES[kind]})"
    rest = "program"
    axes = _axes(one)
    for i, (axis, size) in enumerate(one.grid[: axes if axes > 1 else 0]):
        count = f"({render(ceildiv(size, config.block(axis)), TRITON)})"
        last = i + 1 == axes
        yield f"    program_{i} = {rest}" + ("" if last else f" % {count}")
        rest = rest if last else f"{rest} // {count}"
        args.append(f"program_{i}")
    args = args or ["program"]
    args += [*(p.name for p in (*one.pointers, *one.scalars)), *map(str, one.ints)]
    text = ", ".join([*args, *(str(n) for _, n in config.blocks)])
    if not sized:
        yield f"    {name}_rest({text})"
        return
    yield f"    if (program + 1) * {config.block('x')} <= {SIZE}:"
    yield f"        {name}_whole({text})"
    yield "    else:"
    yield f"        {name}_rest({text})"


def _entry(bases: Sequence[int]) -> str:
    """The kernel itself: programs of each body follow those of the one before."""
    runs = [f"{NAME}_{k}(program, TABLE, ALIGNED)" for k in range(len(bases))]
    lines = [
        "@triton.jit",
        f"def {NAME}(cells, ALIGNED: tl.constexpr):",
        "    " + TABLE.format(NAME),
        "    program = tl.program_id(0)",
    ]
    indent = "    "
    for call, end in zip(runs, bases[1:], strict=False):
        lines += [f"{indent}if program < litz.cell(TABLE, {end}):", f"{indent}    {call}"]
        lines.append(f"{indent}else:")
        indent += "    "
    return "\n".join([*lines, f"{indent}{runs[-1]}"]) + "\n"
