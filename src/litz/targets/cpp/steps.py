"""A kernel of rows and sums of their columns in step: block by block of rows.

The gradients of a normalised layer: that of its input needs sums of each row, those of its weights
sums down the columns.  Both read the same matrices, which no cache holds; a block of rows is.
"""

from __future__ import annotations

from litz.index import Expr, coefficient, const, product
from litz.ir.body import Load, walk
from litz.kernel.build import BoundKernel
from litz.kernel.lanes.choose import choose
from litz.kernel.lanes.recipe import LanePlan, LaneRecipe
from litz.kernel.nodes import extent, int_value, roots
from litz.targets.cpp.functions import print_part, print_split
from litz.targets.cpp.render import build
from litz.targets.kernels import Kernel

LEAST = 1 << 20  # bytes that both read: less stays in a cache anyway
BLOCK = 1 << 19  # of them in a block of rows
ROWS = 16  # at least of a block: sums down fewer are not worth their room


def block_of(rows: BoundKernel, columns: BoundKernel, lanes: int) -> int:
    """The rows of a block in which both run; 0 where they share none, or too little."""
    if rows.plan.ints or columns.plan.ints or rows.plan.lane not in rows.plan.reduced:
        return 0
    if columns.plan.lane not in columns.plan.parallel or len(rows.plan.parallel) != 1:
        return 0
    across, down = rows.plan.parallel[0], columns.plan.reduced[0]
    if extent(across) is not extent(down):
        return 0
    mine, theirs = _strides(rows, across), _strides(columns, down)
    row = sum(mine[name] for name in mine if mine[name] == theirs.get(name))
    block = BLOCK // row // ROWS * ROWS if row else 0
    if not block or row * int_value(extent(down)) < LEAST:
        return 0
    a, b = (_alone(choose(k.plan, lanes)) for k in (rows, columns))
    if a is None or a.form != "rows" or a.divided is not None or a.space.units != (across,):
        return 0
    if b is None or b.form != "columns" or b.divided is not down or b.unit != 1:
        return 0
    return block


def _alone(recipe: LaneRecipe) -> LanePlan | None:
    return recipe.kernels[0] if len(recipe.kernels) == 1 else None


def _strides(k: BoundKernel, v: Expr) -> dict[str, int]:
    """The bytes from row to row of each buffer that is read, where rows fill them."""
    names = {p.name: name for p, name in zip(k.plan.params, k.buffers, strict=True)}
    found: dict[str, int] = {}
    for n in walk(roots(k.plan.stores)):
        if isinstance(n, Load) and not n.indirect:
            step = coefficient(n.index, v)
            row = product(extent(w) for w in n.vars if w is not v)
            if step is not None and step is row and step is not const(1):
                found[names[n.buffer]] = int_value(step) * n.dtype.bytes
    return found


def stepped(rows: Kernel, columns: Kernel, block: int, name: str) -> str:
    """The source of a kernel that does both: it takes the buffers of one, then the other's."""
    made = []
    for i, k in enumerate((rows, columns)):
        (recipe,) = k.recipe.kernels
        assert isinstance(recipe, LanePlan)
        made.append(build(recipe, f"{name}_{i}"))
    split = made[1].split
    assert split is not None and made[0].work is not None and made[1].work is not None
    own = len(rows.plan.params)
    cells = f"{len(split.slots)} * ({split.points})"
    work = made[0].work + made[1].work
    grain = max(k.recipe.grain for k in (rows, columns))  # type: ignore[union-attr]
    lines = [
        f'extern "C" int {name}(void* const* ptrs, const int64_t* ints) {{',
        f"  return litz::run_steps({name}_0_part, ptrs, {name}_1_part, {name}_1_end, ptrs + {own}, "
        f"ints, {split.units}, {block}, {cells}, {work}, {grain});",
        "}",
    ]
    return print_part(made[0]) + print_split(made[1]) + "\n".join(lines) + "\n"
