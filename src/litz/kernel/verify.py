"""The rules of recipes: what has to hold before one is spelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from litz.errors import VerifyError
from litz.index import Expr, const
from litz.ir import attention, matmul
from litz.ir.body import Load, Node, Op, Reduce, Store, walk
from litz.ir.scans import run_along, scans_of
from litz.kernel.blocks.lookback import why_not, words_of
from litz.kernel.blocks.matmul import LEAST
from litz.kernel.blocks.places import pairs_of
from litz.kernel.blocks.recipe import BlockPlan, BlockRecipe
from litz.kernel.lanes import updates
from litz.kernel.lanes.nests import around, point
from litz.kernel.lanes.pieces import unordered_loops
from litz.kernel.lanes.recipe import LanePlan, LaneRecipe
from litz.kernel.lanes.space import reductions_of
from litz.kernel.nodes import below, int_value, is_draw, loaded, loops_of, roots
from litz.kernel.passes import Pass, reductions
from litz.kernel.plan import KernelPlan
from litz.kernel.values import Values

# Forms that run along some dims by themselves.
SOME_DIMS = ("nest", "serial", "attention", "gradient")


def verify(recipe: BlockRecipe | LaneRecipe) -> None:
    """Raises VerifyError with the rule that is broken, and the recipe as text."""
    faults = list(_order(recipe))
    for k in recipe.kernels:
        faults += _blocks(k) if isinstance(k, BlockPlan) else _lanes(k)
    if faults:
        raise VerifyError(f"a recipe is wrong: {'; '.join(faults)}\n{recipe.text}")


def _order(recipe: BlockRecipe | LaneRecipe) -> Iterator[str]:
    """Kernels read what is a parameter, or what an earlier one has left."""
    temporary = {t.name for t in recipe.temporaries}
    known = {p.name for p in recipe.plan.params}
    for k in recipe.kernels:
        names = {p.name for p in k.plan.params}
        reads = loaded(roots(k.plan.stores))
        if isinstance(k, BlockPlan) and k.words is not None:
            reads |= {k.words[0]}
            size = {t.name: t.size for t in recipe.temporaries}.get(k.words[0])
            if size is not words_of(k.plan, k.configs):
                yield f"{k.words[0]} are {size} words, not those of all blocks"
        yield from (f"{n} is no parameter" for n in sorted(reads - names))
        yield from (f"{n} is read before it is written" for n in sorted(reads - known))
        written = {s.buffer for s in k.plan.stores}
        yield from (f"{n} is unknown memory" for n in sorted(written - known - temporary))
        known |= written


def _blocks(k: BlockPlan) -> Iterator[str]:
    dims = [*(v for a in k.axes.all for v in a.dims), *k.unrolled, *_of_groups(k)]
    wanted = [d.var for d in k.plan.dims if k.form not in SOME_DIMS or d.var in dims]
    if sorted(map(str, dims)) != sorted(map(str, wanted)):
        yield f"axes are over {dims}, the plan over {wanted}"
    sizes = {a.name: a.size for a in k.axes.blocked}
    for c in k.configs:
        if [name for name, _ in c.blocks] != list(sizes) or not 1 <= c.warps <= 32:
            yield f"{c} has no block for each of {list(sizes)}, or too many warps"
            continue
        for name, n in c.blocks:
            size = int_value(sizes[name]) if sizes[name].is_const else None
            if n < 1 or n & (n - 1):
                yield f"a block of {n} along {name} is no power of two"
            if name in k.even and n > 1 and (size is None or size % n):
                yield f"blocks of {n} do not divide {name}"
            if name == "r" and k.persistent and n < (sizes[name].hi or n + 1):
                yield f"a block of {n} does not hold all of r"
    if scans_of(k.plan.stores):
        yield from _scans(k.plan)
        if k.form not in ("persistent", "passes", "lookback") or k.rows is not None:
            yield f"scans in {k.form}, or along rows whose beginnings come last"
    elif k.backward:
        yield "blocks hold an axis from its end, but nothing is scanned"
    if k.run > 1 and (not k.plan.down or any(c.block("r") < 2 * k.run for c in k.configs)):
        yield f"runs of {k.run}, but no scans down columns of two such runs"
    yield from _words(k)
    if k.form == "passes":
        reduces = [v.node for v in reductions(Values(k.axes.of_dims), k.plan.stores)]
        yield from _passes(k.passes, reduces, k.plan.stores, k.plan.reduced, dict(k.totals))
    elif k.form == "matmul":
        yield from _matmul(k)
    elif k.form == "once" and k.plan.reduced:
        yield "something is reduced, but not in passes"
    elif k.ahead and k.form != "crossed":
        yield f"the next turn's loads in {k.form}, which has no loop over axis x"
    elif k.pairs and (k.form != "once" or not any(pairs_of(k.plan))):
        yield f"accesses of two neighbours in {k.form}, or where there are none"
    elif k.inside and (k.form != "once" or "x" in k.even):
        yield "blocks inside of x run apart, but those of the form or the size need no masks"
    elif k.form in ("nest", "serial"):
        if sorted(i for p in k.passes for i in p.stores) != list(range(len(k.plan.stores))):
            yield "not every store is done in one pass"
    elif k.late:
        yield f"stores of {k.form} come late, as those of a nest alone do"
    if k.neighbours < 1 or k.neighbours & (k.neighbours - 1):
        yield f"{k.neighbours} neighbours share a maximum, which is no power of two"
    yield from _known(
        frozenset(walk(roots(k.plan.stores))), (*k.narrow, *k.flushed, *(n for n, _ in k.shared))
    )
    if not all(is_draw(n) for n, _ in k.shared):
        yield "what neighbours draw together is no random number"
    if not set(k.flushed) <= set(k.narrow):
        yield "what is flushed is not in a cheaper form"


def _words(k: BlockPlan) -> Iterator[str]:
    if (k.words is not None) != (k.form == "lookback") or (k.early and k.words is None):
        yield f"{k.form} with or without words"
    elif k.words is not None:
        name, group = k.words
        if not any(p.name == name and p.mode == "inout" for p in k.plan.params):
            yield f"{name} is no parameter that programs leave something in"
        if group < 2 or group & (group - 1) or not k.flat or why_not(k.plan):
            yield f"programs in groups of {group} do not look back: {why_not(k.plan)}"


def _of_groups(k: BlockPlan) -> list[Expr]:
    """The dim over which a product's program looks for its group of rows."""
    sums = [n for n in walk(roots(k.plan.stores)) if isinstance(n, Reduce)]
    return [v for n in sums if k.form == "matmul" and matmul.is_number(n) for v in n.axes]


def _scans(plan: KernelPlan) -> Iterator[str]:
    if not run_along(plan.stores, plan.reduced):
        yield "a scan runs along another loop than the one reduced loop"


def _known(nodes: frozenset[Node], named: Sequence[Node]) -> Iterator[str]:
    yield from (f"{n} is named, but not computed" for n in named if n not in nodes)


def _matmul(k: BlockPlan) -> Iterator[str]:
    try:
        p = matmul.parts(k.plan.stores, k.plan.parallel)
    except ValueError as e:
        yield f"no product: {e}"
        return
    wanted = (p.batch, p.rows, p.columns, p.inner)
    *parallel, reduced = (a.dims for a in k.axes.all)
    if (*parallel, (*reduced, *k.unrolled)) != wanted:
        yield f"axes are {k.axes}, a product's {wanted}"
    if any(n < LEAST for c in k.configs for _, n in c.blocks) or k.together < 1:
        yield f"a matrix unit takes no side of less than {LEAST}"


def _passes(
    passes: Sequence[Pass],
    reduces: Sequence[Node],
    stores: Sequence[Store],
    reduced: Sequence[Expr],
    totals: Mapping[int, int],
) -> Iterator[str]:
    at = {i: n for n, p in enumerate(passes) for group in p.groups for i in group}
    if sorted(i for p in passes for g in p.groups for i in g) != list(range(len(reduces))):
        yield "not every reduction is done in one pass"
        return
    full = [i for i, s in enumerate(stores) if loops_of(s, reduced)]
    if sorted(i for p in passes for i in p.stores) != full:
        yield "not every store is done in one pass"
        return
    done: dict[Node, int] = {}  # under any conditions
    for i, n in at.items():
        done[reduces[i]] = min(n, done.get(reduces[i], n))
    for i, n in at.items():
        for r in below(reduces[i].args):
            if done.get(r, -1) >= n and not (i in totals and reduces[totals[i]] is r):
                yield f"reduction {i} runs in pass {n}, before one that it needs"
    for n, p in enumerate(passes):
        for s in p.stores:
            if any(done.get(r, -1) >= n for r in below(stores[s].roots())):
                yield f"store {s} runs in pass {n}, before a reduction that it needs"
            later = [reduces[i].args[0] for i, m in at.items() if m > n]
            if stores[s].buffer in loaded([x for x in below(later) if isinstance(x, Load)]):
                yield f"store {s} runs in pass {n}, before what it replaces is read"


def _lanes(k: LanePlan) -> Iterator[str]:
    space, plan = k.space, k.plan
    yield from _same("parallel", (*space.units, *space.serial), plan.parallel)
    yield from _same("reduced", space.reduced, plan.reduced)
    if k.form in ("attention", "gradient"):
        yield from _attention(k)
        return
    if (of := updates.parts(plan)) is not None:
        by_rows = updates.ORDER in {p.name for p in plan.params}
        if of.within == by_rows or k.form != ("sorted" if by_rows else "room"):
            yield f"updates in {k.form}, with or without their order"
        return
    yield from _scans(plan)
    if scans_of(plan.stores) and (k.divided is not None or k.totals or k.form == "tiles"):
        yield "scans of rows that are not walked from their beginnings"
    if k.divided is not None and k.divided not in space.reduced:
        yield f"threads divide {k.divided}, which is not reduced"
    if (k.form == "rows") != (not k.block) or any(n < 1 for n in k.block):
        yield f"blocks of {k.block} for {k.form}"
    if k.reductions != reductions_of(plan.stores):
        yield f"{len(k.reductions)} reductions are not those of the plan, in order"
    yield from _passes(k.passes, k.reductions, plan.stores, space.reduced, dict(k.totals))
    yield from _nests(k)
    nodes = frozenset(walk(roots(plan.stores)))
    if k.late and k.form != "columns":
        yield f"stores of {k.form} come late, as those of columns alone do"
    if (k.turned or k.turned_stores) and k.form != "tiles":
        yield f"accesses of {k.form} go through tiles"
    if not {*k.unordered} <= {*unordered_loops(plan.stores, space.lane, k.cuts)}:
        yield "lanes in whatever order, where something asks for theirs"
    if k.rows > 1 and (k.form != "rows" or len(k.passes) > 1):
        yield f"{k.rows} rows are reduced at once, where more is done than to reduce them"
    if k.past is not const(0) and not k.streamed:
        yield f"{k.past} bytes go past the caches, but no store"
    given = (*k.streamed, *k.turned_stores)
    yield from (f"store {i} is named, but there is none" for i in given if i >= len(plan.stores))
    yield from _cuts(k, nodes)
    named = [x.of for x in k.chunks] + [x.of for x in k.copies]
    yield from _known(nodes, (*k.kept, *k.turned, *k.branches, *(n for of in named for n in of)))
    params = {p.name for p in plan.params}
    named_there = (x for f in k.fetches for x in (f.buffer, f.data) if x)
    strange = (x for x in named_there if x not in params)
    yield from (f"{name} is fetched, but no parameter" for name in strange)
    ops = {n.name for n in nodes if isinstance(n, Op)}
    yield from (f"{name} is called, but not computed" for name in k.called if name not in ops)


def _nests(k: LanePlan) -> Iterator[str]:
    """Reductions of a pass run in the same loops; stores along with them at every point."""
    every = point(k.space)[-1:]
    for n, p in enumerate(k.passes):
        some = [k.reductions[i] for g in p.groups for i in g if i < len(k.reductions)]
        within = {(around(r, k.space), frozenset(r.axes)) for r in some}
        if len(within) > 1:
            yield f"reductions of pass {n} run within other loops"
        if p.stores and some and within != {(frozenset(every), frozenset(some[0].axes))}:
            yield f"stores of pass {n} run along with what is not reduced at every point"


def _attention(k: LanePlan) -> Iterator[str]:
    skeleton = k.plan.skeleton
    limits = skeleton.sizes if skeleton is not None and skeleton.sizes else k.block
    if any(n < 1 or n & (n - 1) or most % n for n, most in zip(k.block, limits, strict=True)):
        yield f"blocks of {k.block} do not divide those of the mask, {limits}"
    elif k.block[1] % k.lanes or k.tile[0] < 1 or k.tile[1] < 1:
        yield f"tiles of {k.tile} in blocks of {k.block}"
    if k.form == "gradient":
        return
    p = attention.parts(k.plan.stores, k.plan.parallel)
    if k.kept != tuple(n for n in (p.query, p.key, p.value) if n is p.query or n in k.kept):
        yield "what is kept are not query, key and value"


def _cuts(k: LanePlan, nodes: frozenset[Node]) -> Iterator[str]:
    paired = {k.reductions[i] for pair in k.totals for i in pair if i < len(k.reductions)}
    wanted = {n for n in nodes if isinstance(n, Reduce) and n.row.counts} | paired
    if wanted != {n for c in k.chunks for n in c.of}:
        yield f"chunks of other reductions than {wanted}"
    for c in k.chunks:
        if c.size < 1 or not all(c.by in n.axes for n in c.of):
            yield f"chunks of {c.size} over {c.by}, which some of {c.of} do not reduce"
    for x in k.limits:
        if len(x.most) != len(x.dims) or min(x.most) < 1:
            yield f"{x.most} are no limits of {x.dims}"
    for some in k.copies:
        if some.count < 2 or some.count & (some.count - 1):
            yield f"{some.count} accumulators do not come together in pairs"


def _same(name: str, found: tuple[object, ...], wanted: tuple[object, ...]) -> Iterator[str]:
    if sorted(map(str, found)) != sorted(map(str, wanted)):
        yield f"{name} loops over {found}, the plan over {wanted}"
