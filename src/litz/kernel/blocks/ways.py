"""The ways in which a plan can reduce, and which of them are worth measuring.

A program holds its rows in registers (persistent), goes over them in a loop (looped), or many
programs share a row (split).  The rules of ``litz.kernel.blocks.choose`` say which comes first.
Where the model cannot tell whether another is quicker, that one is a candidate too, and the first
run measures them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from litz.dataclass import dataclass
from litz.index import product, size_hint
from litz.kernel.blocks.choose import choose, in_way
from litz.kernel.blocks.estimate import Estimate, estimate
from litz.kernel.blocks.recipe import BlockRecipe, Style
from litz.kernel.blocks.sizes import PERSISTENT, PROGRAMS, streams
from litz.kernel.blocks.split import LONG, TALL, WIDTH
from litz.kernel.nodes import extent
from litz.kernel.plan import KernelPlan
from litz.passes.costs import Costs

WAYS: Final = ("persistent", "looped", "split")
GAIN = 0.95  # of the first way's time, that another could take at best for it to be measured
COLUMNS = 1 << 8  # elements of columns that a block could hold


@dataclass(frozen=True, slots=True)
class Way:
    """name: one of ``WAYS``, or empty where there is no choice."""

    name: str
    estimate: Estimate
    recipe: BlockRecipe


@dataclass(frozen=True, slots=True)
class Ways:
    """candidates: the first is the model's; with others where it is unsure.

    others: the ways that are none, each with the reason.
    """

    candidates: tuple[Way, ...]
    others: tuple[tuple[str, str], ...] = ()

    @property
    def first(self) -> BlockRecipe:
        return self.candidates[0].recipe

    def lines(self, chosen: int = 0, seconds: Sequence[float | None] = ()) -> list[str]:
        """The table of the choice, a line for each way; none where nothing is to be chosen.

        seconds: measured, of each candidate.
        """
        out = []
        for i, w in enumerate(w for w in self.candidates if w.name):
            measured = seconds[i] if i < len(seconds) else None
            found = "" if measured is None else f", measured at {1e6 * measured:.1f} us"
            mark = " (chosen)" if i == chosen else ""
            out.append(f"{w.name}{mark}: estimated at {w.estimate}{found}")
        return [*out, *(f"{name}: no: {why}" for name, why in self.others)]


def ways(plan: KernelPlan, style: Style, costs: Costs) -> Ways:
    """The ways to run a plan.  Under ``style.widely`` all that could serve are candidates."""
    first = choose(plan, style)
    name = name_of(first)
    wanted = style.reduction
    if not name:
        return Ways((Way("", Estimate(), first),))
    time = estimate(first, costs)
    one = Way(name, time, first)
    if wanted:
        why = in_way(plan, style, wanted) if wanted != name else ""
        return Ways((one,), ((wanted, str(why)),) if why else ())
    found, others = [], []
    for way in (w for w in WAYS if w != name):
        made = _useless(plan, way) or in_way(plan, style, way)
        if isinstance(made, str):
            others.append((way, made))
            continue
        rival = Way(way, estimate(made, costs), made)
        if name == "persistent" and way == "looped" and _is_whole(made):
            others.append((way, "a block of its loop would hold a whole row"))
        elif rival.estimate.low > GAIN * time.high and not style.widely:
            others.append((way, f"estimated at {rival.estimate}"))
        else:
            found.append(rival)
    found.sort(key=lambda w: w.estimate.likely)
    return Ways((one, *found), tuple(others))


def name_of(recipe: BlockRecipe) -> str:
    """The way of a recipe; empty for what reduces nothing, or in loops of its own."""
    if recipe.plan.skeleton is not None or not recipe.kernels:
        return ""
    if len(recipe.kernels) > 1:
        return "split"
    return {"persistent": "persistent", "passes": "looped"}.get(recipe.kernels[0].form, "")


def _useless(plan: KernelPlan, way: str) -> str:
    """Why a way is slower without doubt: rows too long for it, too short, or too many."""
    size = size_hint(product(extent(v) for v in plan.reduced))
    rows = size_hint(product(extent(v) for v in plan.parallel), default=1 << 10)
    down = plan.lane is not None and plan.lane in plan.parallel
    if way == "persistent":
        held = size > COLUMNS if down else size * streams(plan) > 4 * PERSISTENT
        return f"its rows of {size} elements are too long" if held else ""
    if way == "split":
        if size < (TALL if down else LONG) // 2:
            return f"its rows of {size} elements are too short"
        many = rows > 2 * PROGRAMS * (WIDTH if down else 1)
        return f"its {rows} rows keep all programs busy" if many else ""
    return ""


def _is_whole(recipe: BlockRecipe) -> bool:
    (k,) = recipe.kernels
    size = k.axes.reduced.size if k.axes.reduced is not None else None
    return size is not None and size.is_const and k.configs[0].block("r") >= size_hint(size)
