"""The ways in which a plan can reduce, and which of them are worth measuring.

A program holds its rows in registers (persistent), goes over them in a loop (looped), or many
programs share a row: in several kernels (split), or in one that scans (lookback).  The rules of
``litz.kernel.blocks.choose`` say which comes first.
Where the model cannot tell whether another is quicker, that one is a candidate too, and the first
run measures them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from litz.dataclass import dataclass
from litz.index import product, size_hint
from litz.ir.scans import scans_of
from litz.kernel.blocks.choose import choose, in_way
from litz.kernel.blocks.estimate import Estimate, estimate
from litz.kernel.blocks.recipe import BlockRecipe, Style
from litz.kernel.blocks.sizes import HELD_COLUMN, PERSISTENT, PROGRAMS, streams
from litz.kernel.blocks.split import LONG, TALL, WIDTH
from litz.kernel.nodes import extent
from litz.kernel.plan import KernelPlan
from litz.passes.costs import Costs

WAYS: Final = ("persistent", "looped", "split", "lookback")
GAIN = 0.95  # of the first way's time, that another could take at best for it to be measured
WIDELY = 4.0  # the same where all that could serve is measured
COLUMNS = 1 << 8  # elements of columns that a block could hold


@dataclass(frozen=True, slots=True)
class Way:
    """name: one of ``WAYS``, or empty where there is no choice.

    estimate: of its time; zero where rules alone have decided.
    """

    name: str
    recipe: BlockRecipe
    estimate: Estimate = Estimate()


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
            mark = " (chosen)" if i == chosen else ""
            known = [f"estimated at {w.estimate}"] if w.estimate.high else []
            if i < len(seconds) and (measured := seconds[i]) is not None:
                known.append(f"measured at {1e6 * measured:.1f} us")
            out.append(f"{w.name}{mark}" + (f": {', '.join(known)}" if known else ""))
        return [*out, *(f"{name}: no: {why}" for name, why in self.others)]


def ways(plan: KernelPlan, style: Style, costs: Costs) -> Ways:
    """The ways to run a plan.  Under ``style.widely`` all that could serve are candidates."""
    first = choose(plan, style)
    name, wanted = name_of(first), style.reduction
    if not name or wanted:
        forced = plan.reduced and wanted not in ("", name)
        why = in_way(plan, style, wanted) if forced else ""
        return Ways((Way(name, first),), ((wanted, why),) if why and isinstance(why, str) else ())
    possible = WAYS if scans_of(plan.stores) else WAYS[:-1]
    made = {way: _useless(plan, way) or in_way(plan, style, way) for way in possible if way != name}
    others = [(way, x) for way, x in made.items() if isinstance(x, str)]
    rivals = [
        Way(way, x, estimate(x, costs)) for way, x in made.items() if isinstance(x, BlockRecipe)
    ]
    if not rivals:
        return Ways((Way(name, first),), tuple(others))
    one = Way(name, first, estimate(first, costs))
    most = one.estimate.high * (WIDELY if style.widely else GAIN)
    others += [(w.name, f"estimated at {w.estimate}") for w in rivals if w.estimate.low > most]
    found = [w for w in rivals if w.estimate.low <= most]
    found.sort(key=lambda w: w.estimate.likely)
    return Ways((one, *found), tuple(others))


def name_of(recipe: BlockRecipe) -> str:
    """The way of a recipe; empty for what reduces nothing, or in loops of its own."""
    if recipe.plan.skeleton is not None or not recipe.kernels:
        return ""
    if len(recipe.kernels) > 1:
        alone = len(recipe.kernels) == 2 and recipe.kernels[-1].form == "lookback"
        return "lookback" if alone else "split"
    return {"persistent": "persistent", "passes": "looped"}.get(recipe.kernels[0].form, "")


def _useless(plan: KernelPlan, way: str) -> str:
    """Why a way is slower without doubt: rows too long for it, too short, or too many."""
    size = size_hint(product(extent(v) for v in plan.reduced))
    rows = size_hint(product(extent(v) for v in plan.parallel), default=1 << 10)
    values = size * streams(plan)
    if way == "looped":
        held = size <= HELD_COLUMN if plan.down else values < PERSISTENT
        return f"a block holds rows of {size} elements with ease" if held else ""
    if way == "persistent":
        long = size > COLUMNS if plan.down else values > 4 * PERSISTENT
        return f"its rows of {size} elements are too long" if long else ""
    if way in ("split", "lookback"):
        if size < (TALL if plan.down else LONG) // 2:
            return f"its rows of {size} elements are too short"
        many = rows > 2 * PROGRAMS * (WIDTH if plan.down else 1)
        return f"its {rows} rows keep all programs busy" if many else ""
    return ""
