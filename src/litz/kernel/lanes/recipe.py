"""The recipe of a plan in lanes: what is chosen of how it runs on a CPU, before it is spelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from litz.index import Expr
from litz.ir.body import Node, Op, Store
from litz.ir.text import axes_text
from litz.kernel.lanes.space import Space
from litz.kernel.passes import Pass, pass_text
from litz.kernel.phases import Temporary
from litz.kernel.plan import KernelPlan
from litz.kernel.text import plan_text

Form = Literal["rows", "columns", "tiles"]


@dataclass(frozen=True, slots=True)
class LanePlan:
    """A plan as one kernel of loops.

    form: ``rows``: vectors along the lane, one after the other; ``columns``: reductions whose lane
    is not reduced, in blocks of ``block`` lanes that have their accumulators in arrays; ``tiles``:
    transposed in registers, in blocks of ``block`` rows and lanes.
    lanes: elements of every vector.  divided: the reduced dim that threads divide, if they do.
    passes: over reduced dims, in order; reductions by their places in ``space.reductions``.
    kept: values that more than one pass needs, which the first of them keeps for a row.
    streamed: stores that go past the caches.
    """

    plan: KernelPlan
    space: Space
    form: Form
    lanes: int
    block: tuple[int, ...] = ()
    divided: Expr | None = None
    passes: tuple[Pass, ...] = ()
    kept: tuple[Node, ...] = ()
    streamed: frozenset[Store] = frozenset()


@dataclass(frozen=True, slots=True)
class LaneRecipe:
    """How a plan runs: kernels in order, and the memory between them."""

    plan: KernelPlan
    kernels: tuple[LanePlan, ...]
    temporaries: tuple[Temporary, ...] = ()

    @property
    def text(self) -> str:
        lines = [f"temporary {t.name}: {t.dtype}[{t.size}]" for t in self.temporaries]
        return "\n".join([*lines, *(line for k in self.kernels for line in _lines(k))])


def _lines(k: LanePlan) -> Iterator[str]:
    yield plan_text(k.plan)
    space = k.space
    spans = {"threads": space.units, "one thread": space.serial, "reduced": space.reduced}
    dims = [f"{name} [{axes_text(vs)}]" for name, vs in spans.items() if vs]
    block = " in blocks of " + " by ".join(map(str, k.block)) if k.block else ""
    yield f"runs {k.form}{block}, {k.lanes} lanes of {space.lane}" + "".join(f", {d}" for d in dims)
    if k.divided is not None:
        yield f"  threads divide {k.divided}"
    for p in k.passes:
        yield f"  {pass_text(p)}"
    for n in k.kept:
        yield f"  keeps {n.name if isinstance(n, Op) else 'a value'} of every point: {n.dtype}"
    for s in k.plan.stores:
        if s in k.streamed:
            yield f"  streams {s.buffer}[{s.index}]"
