"""One parallel region for the calls of kernels that depend on each other in nothing."""

from __future__ import annotations

from collections.abc import Sequence

from litz.kernel.lanes.recipe import LanePlan, LaneRecipe
from litz.targets.cpp.functions import print_part
from litz.targets.cpp.render import build
from litz.targets.kernels import Body

MOST = 1 << 16  # calls: a function's arrays lie on the stack
BODIES = 16  # one translation unit has them all


def may_join(recipe: LaneRecipe) -> bool:
    """Whether calls of a kernel can be some of a parallel region's."""
    if len(recipe.kernels) != 1 or recipe.plan.skeleton is not None:
        return False
    (made,) = recipe.kernels
    return made.divided is None and made.form in ("rows", "columns", "tiles")


def joined(bodies: Sequence[Body], name: str) -> str:
    """The source of a kernel that does all calls.

    Each call's work is known when it runs; threads divide all of it, so that one may do the end of
    a call and the beginning of the next.
    """
    parts: list[str] = []
    own: list[str] = []
    loops: list[str] = []
    pointers = count = ints = 0
    for k, body in enumerate(bodies):
        (made,) = body.kernel.recipe.kernels
        assert isinstance(made, LanePlan)
        parts.append(print_part(build(made, f"{name}_{k}")))
        rows, each = len(body.rows), len(made.plan.params)
        wide = len(made.plan.ints)
        loops.append(
            f"  for (int64_t k = 0; k < {rows}; ++k) calls[{count} + k] = "
            f"{name}_{k}_call(ptrs + {pointers} + {each} * k, own + {len(own)} + {wide} * k);"
        )
        for row in body.rows:
            given = len(row) - body.known
            own += [f"ints[{i}]" for i in range(ints, ints + given)]
            own += map(str, row[given:])
            ints += given
        pointers, count = pointers + each * rows, count + rows
    grain = max(b.kernel.recipe.grain for b in bodies)  # type: ignore[union-attr]
    lines = [
        f'extern "C" int {name}(void* const* ptrs, const int64_t* ints) {{',
        f"  const int64_t own[] = {{{', '.join(own or ['0'])}}};",
        f"  litz::Call calls[{count}];",
        *loops,
        f"  return litz::run_calls(calls, {count}, {grain});",
        "}",
    ]
    return "".join(parts) + "\n".join(lines) + "\n"
