"""Recipes: their text, and the rules that they have to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litz.errors import VerifyError
from litz.index import Expr, const, symbol, var
from litz.ir import body, updates
from litz.ir.body import Op, Store, walk
from litz.ir.dtype import BF16, F32, I64, DType
from litz.ir.parse import ParseError
from litz.ir.program import Skeleton
from litz.kernel.blocks import choose as blocks
from litz.kernel.blocks.recipe import BlockPlan, BlockRecipe, Config, Style
from litz.kernel.lanes import choose as lanes
from litz.kernel.lanes.recipe import Chunk, Copies, LaneRecipe, Limit
from litz.kernel.nodes import extent, roots
from litz.kernel.parse import parse_recipe
from litz.kernel.passes import Pass
from litz.kernel.plan import Dim, KernelPlan, Param
from litz.kernel.verify import verify
from litz.targets.cpp.render import render

ROWS, LONG = 512, 100_000


def log_softmax(size: int = LONG, rows: int = ROWS) -> KernelPlan:
    """``b1 = b0 - max - log(sum(exp(b0 - max)))``, and the square of each row's sum in ``b2``."""
    x, r = var("x0", rows), var("r0", size)
    at = x * size + r
    value = body.load(F32, "b0", at)
    less = body.op("sub", value, body.reduce("max", (r,), value))
    total = body.reduce("sum", (r,), body.op("exp", less))
    out = body.op("sub", less, body.op("log", total))
    whole = body.reduce("sum", (r,), value)
    stores = (Store("b1", at, out), Store("b2", x, body.op("mul", whole, whole)))
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"), Param("b2", F32, "out"))
    return KernelPlan((Dim(x, "p"), Dim(r, "r")), params, (), stores, r)


def scanned_rows(size: int, rows: int = 2, down: bool = False) -> KernelPlan:
    """``b1 = b0 * cumsum(b0)`` along rows, or down columns."""
    x, r = var("x0", rows), var("r0", size)
    at = r * rows + x if down else x * size + r
    value = body.load(F32, "b0", at)
    found = body.op("mul", value, body.scan("sum", "value", r, r, (value,)))
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    return KernelPlan(
        (Dim(x, "p"), Dim(r, "r")), params, (), (Store("b1", at, found),), x if down else r
    )


def lines_of(recipe: BlockRecipe | LaneRecipe) -> list[str]:
    """Of its last kernel, less the plan."""
    return recipe.text.rpartition("\nruns\n")[2].splitlines()


def test_text_of_passes() -> None:
    recipe = blocks.choose(log_softmax())
    assert [k.form for k in recipe.kernels] == ["passes"]
    assert [line.strip() for line in lines_of(recipe) if "configs" not in line] == [
        "form: passes",
        "axes: {parallel: [{name: x, dims: [x0]}], reduced: {name: r, dims: [r0]}}",
        "even: [x]",
        "wide: False",
        "passes: {groups: [[0, 1], [2]], stores: [], reads: again}",
        "passes: {groups: [], stores: [0], reads: last}",
        "totals: [[1, 0]]",
        "neighbours: 4",
    ]


def test_forms() -> None:
    def form(size: int, rows: int = ROWS) -> str:
        (made,) = blocks.choose(log_softmax(size, rows)).kernels
        return made.form

    assert (form(LONG), form(1000)) == ("passes", "persistent")
    few = blocks.choose(log_softmax(1 << 20, 2))
    assert len(few.kernels) == 2 and few.temporaries
    on_cpu = lanes.choose(log_softmax(1 << 20, 2), 16)
    assert len(on_cpu.kernels) == 3 and on_cpu.temporaries
    plan = log_softmax(1000)
    assert lines_of(lanes.choose(plan, 16)) == [
        "  space: {units: [x0], reduced: [r0], lane: r0}",
        "  form: rows",
        "  lanes: 16",
        "  work: 18432000",
        "  reductions: [%1, %7, %4]",
        "  passes: {groups: [[0], [1]], stores: [], reads: again}",
        "  passes: {groups: [[2]], stores: [], reads: again}",
        "  passes: {groups: [], stores: [0], reads: last}",
        "  ahead: 1",
        "  copies: {of: [%4], count: 2}",
        "  copies: {of: [%1, %7], count: 4}",
    ]
    (log,) = (n for n in walk(roots(plan.stores)) if isinstance(n, Op) and n.name == "log")
    (power,) = (n for n in walk(roots(plan.stores)) if isinstance(n, Op) and n.name == "exp")
    quotient = body.op("div", power, log.args[0])
    softmax = replace(plan, stores=(replace(plan.stores[0], value=quotient),))
    assert "  kept: [%3]" in lines_of(lanes.choose(softmax, 16))


@pytest.mark.parametrize("rows", [1, 2, ROWS])
@pytest.mark.parametrize("size", [3, 1000, LONG, 1 << 20])
def test_what_is_chosen_keeps_the_rules(size: int, rows: int) -> None:
    plan = log_softmax(size, rows)
    for made in (blocks.choose(plan, Style(widely=True)), lanes.choose(plan, 16)):
        verify(made)
        again = parse_recipe(made.text)
        assert again == made and again.text == made.text


@pytest.mark.parametrize("down", [False, True])
def test_scans_of_few_long_rows_look_back(down: bool) -> None:
    made = blocks.choose(scanned_rows(1 << 20, 64 if down else 2, down))
    verify(made)
    assert [k.form for k in made.kernels] == ["once", "lookback"]
    assert parse_recipe(made.text) == made
    clear, scan = made.kernels
    for wrong in (
        replace(scan, words=None),
        replace(scan, words=("b1", 4)),
        replace(scan, words=("words", 6)),
        replace(scan, flat=False),
        replace(scan, configs=(replace(scan.configs[0], blocks=(("x", 1), ("r", 64))),)),
    ):
        with pytest.raises(VerifyError, match="words|look back"):
            verify(replace(made, kernels=(clear, wrong)))
    with pytest.raises(VerifyError, match="words is read before it is written"):
        verify(replace(made, kernels=(scan,)))
    rows = 1 << 14
    assert [k.form for k in blocks.choose(scanned_rows(1 << 17, rows, down)).kernels] == ["passes"]


@pytest.mark.parametrize(("size", "rows"), [(1000, ROWS), (LONG, 1 << 14), (1 << 20, 1)])
def test_scans_of_rows_that_lie_the_other_way(size: int, rows: int) -> None:
    x, r = var("x0", rows), var("r0", size)
    value = body.load(F32, "b0", x * size + size - 1 - r)
    found = body.scan("sum", "value", r, r, (value,))
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    store = Store("b1", x * size + size - 1 - r, found)
    plan = KernelPlan((Dim(x, "p"), Dim(r, "r")), params, (), (store,), r)
    made = blocks.choose(plan)
    verify(made)
    assert made.kernels[-1].backward and parse_recipe(made.text) == made
    ahead = blocks.choose(replace(plan, stores=(replace(store, index=x * size + r),)))
    assert not ahead.kernels[-1].backward
    once = blocks.choose(log_softmax()).kernels[0]
    with pytest.raises(VerifyError, match="from its end"):
        verify(replace(made, plan=once.plan, kernels=(replace(once, backward=True),)))


def test_columns_are_scanned_in_runs() -> None:
    """A thread of a block has elements of one column one after the other."""
    for size in (1000, LONG):
        made = blocks.choose(scanned_rows(size, 1 << 10, True))
        verify(made)
        scan = made.kernels[-1]
        c = scan.configs[0]
        assert scan.run == c.block("x") * c.block("r") // (32 * c.warps) // 4 > 1
        assert parse_recipe(made.text) == made
        wrong = replace(scan, run=c.block("r"))
        with pytest.raises(VerifyError, match="runs"):
            verify(replace(made, kernels=(*made.kernels[:-1], wrong)))
    assert blocks.choose(scanned_rows(1000, 1 << 10, False)).kernels[-1].run == 1


def test_texts_that_are_no_recipes() -> None:
    text = lanes.choose(log_softmax(1000), 16).text
    for old, new, words in (
        ("recipe in lanes", "recipe in rows", "line 1: not a recipe"),
        ("[%1, %7, %4]", "[%1, %77]", "line 20: %77 is not defined"),
        ("  lanes: 16", "  lanes: wide", "line 18: invalid literal"),
        ("  lanes: 16", "  width: 16", "line 18: .*width"),
        ("  form: rows\n", "", "form"),
        ("  form: rows\n", "form: row\n", "line 17: 'row' is none of rows, columns, tiles"),
        ("load b0", "lode b0", "line 3: not a node"),
        (" lane r0 {", " lane r0", "line 2: not a plan"),
    ):
        assert old in text
        with pytest.raises(ParseError, match=words):
            parse_recipe(text.replace(old, new))


def passes(*changed: Pass) -> Callable[[BlockPlan], BlockPlan]:
    return lambda k: replace(k, passes=changed)


def config(*made: tuple[str, int]) -> Callable[[BlockPlan], BlockPlan]:
    return lambda k: replace(k, configs=(Config(made, 4),))


FIRST, LAST = Pass(((0, 1), (2,)), (), "again"), Pass((), (0,), "last")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (passes(FIRST), "not every store is done in one pass"),
        (passes(FIRST, LAST, LAST), "not every store is done in one pass"),
        (passes(Pass(((2,),), (), "once"), LAST), "not every reduction"),
        (passes(replace(FIRST, stores=(0,))), "store 0 runs in pass 0, before a reduction"),
        (config(("x", 1)), "no block for each of"),
        (config(("x", 1), ("r", 1000)), "no power of two"),
        (config(("x", 1024), ("r", 1024)), "do not divide x"),
        (lambda k: replace(k, form="persistent", configs=k.configs[:1]), "does not hold all of r"),
        (lambda k: replace(k, form="once"), "not in passes"),
        (lambda k: replace(k, totals=()), "reduction 1 runs in pass 0, before one that it needs"),
    ],
)
def test_broken_recipes(change: Callable[[BlockPlan], BlockPlan], words: str) -> None:
    recipe = blocks.choose(log_softmax())
    verify(recipe)
    with pytest.raises(VerifyError, match=words):
        verify(replace(recipe, kernels=tuple(map(change, recipe.kernels))))


def test_rows_beyond_the_cache_have_softmax_online() -> None:
    """Where nothing else is reduced, and they are read again after it."""
    plan = log_softmax()
    softmax = replace(plan, stores=plan.stores[:1], params=plan.params[:2])
    recipe = lanes.choose(softmax, 16)
    (made,) = recipe.kernels
    assert made.totals == ((1, 0),)
    assert made.passes == (Pass(((0, 1),), (), "again"), Pass((), (0,), "last"))
    verify(recipe)
    with pytest.raises(VerifyError, match="reduction 1 runs in pass 0, before one that it needs"):
        verify(replace(recipe, kernels=(replace(made, totals=()),)))
    for other in (plan, log_softmax(1000)):
        assert not lanes.choose(other, 16).kernels[0].totals


def test_passes_over_cached_rows_fetch_the_next() -> None:
    """Not of rows that are in reach of the next one anyway, nor where there is no room for it."""
    x, r = var("x0", ROWS), var("r0", 1000)
    a = body.load(F32, "b0", x * 1000 + r)
    off = body.op("sub", a, body.reduce("sum", (r,), a))
    squares = Store("b1", x, body.reduce("sum", (r,), body.op("mul", off, off)))
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    cheap = KernelPlan((Dim(x, "p"), Dim(r, "r")), params, (), (squares,), r)
    plans = (log_softmax(1000), log_softmax(100), log_softmax(20_000), cheap)
    assert [lanes.choose(p, 16).kernels[0].ahead for p in plans] == [1, 0, 0, 1]
    text = render(lanes.choose(plans[0], 16), "k")
    assert "__builtin_prefetch(b0 + (r0 + 1000*(x0 + 1))" in text
    assert "a1_0 = litz::maximum(t0, a1_0);" in text  # which asks the value whether it is nan


def moved(at: Expr, to: Expr, loops: tuple[Expr, ...], dtype: DType = F32) -> KernelPlan:
    """``b1[to] = b0[at]``; the last of the loops is the lane."""
    params = (Param("b0", dtype, "in"), Param("b1", dtype, "out"))
    stores = (Store("b1", to, body.load(dtype, "b0", at)),)
    return KernelPlan(tuple(Dim(v, "p") for v in loops), params, (), stores, loops[-1])


def test_threads_share_long_rows_and_few() -> None:
    """Of short ones each has some, and walks along them as a whole."""
    found = []
    for rows, size in ((ROWS, 64), (ROWS, 5000), (100, 64)):
        x, y = var("x0", rows), var("x1", size)
        at = x * (size + 1) + y
        space = lanes.choose(moved(at, at, (x, y)), 16).kernels[0].space
        found.append((space.units, space.serial))
    assert [len(serial) for _, serial in found] == [1, 0, 0]


def test_short_rows_side_by_side_are_fetched_ahead() -> None:
    """As far as memory needs; of those that are read again later, the one that comes last."""
    x, y, size = var("x0", 1 << 14), var("x1", 64), 128

    def added(*starts: int, step: int = size) -> list[str]:
        index = x * step + y
        value = body.const(F32, 0)
        for start in starts:
            value = body.op("add", value, body.load(F32, "b0", index + start))
        plan = replace(moved(index, index, (x, y)), stores=(Store("b1", index, value),))
        fetches = lanes.choose(plan, 16).kernels[0].fetches
        return [str(f.index - index - 2 * size) for f in fetches]

    assert added(0) == []  # one row after the other is a stream
    assert added(64, 0, 1 << 21) == ["64", "0", str(1 << 21)]
    assert added(64, 0, -64, (1 << 21) + 64, (1 << 21) - 64) == ["64", "0", str((1 << 21) + 64)]
    assert added(*(i << 21 for i in range(9))) == []  # more lines than may be asked for


def test_windows_over_rows_fetch_what_comes_next() -> None:
    """In memory's order; not where windows are of one row, leave gaps or are far apart."""
    x, y, size = var("x0", 1 << 12), var("x1", 181), 362

    def pooled(step: int, *starts: int) -> list[str]:
        value = body.const(F32, 0)
        for start in starts:
            at = x * step + y * 2 + start
            value = body.op("add", value, body.load(F32, "b0", at))
        at = x * 181 + y
        plan = replace(moved(at, at, (x, y)), stores=(Store("b1", at, value),))
        recipe = lanes.choose(plan, 16)
        verify(recipe)
        assert parse_recipe(recipe.text) == recipe
        return [str(f.index - x * step - 4 * y) for f in recipe.kernels[0].fetches]

    lines = [str(2 * size + at) for at in (0, 16, 32, 48)]
    assert pooled(2 * size, 0, 1, size, size + 1) == lines
    assert pooled(2 * size, 0, 1) == []
    assert pooled(3 * size, 0, 1, size, size + 1) == []
    assert pooled(2 * size, 0, 1, 1 << 20, (1 << 20) + 1) == []
    assert pooled(2 * size + 2, 0, 1, size + 1, size + 2) != []  # a column that no window has


def test_streams_beside_arithmetic_are_fetched_ahead() -> None:
    """Large ones; what goes past the caches is read ahead alone."""
    found = []
    for size, name in ((1 << 18, "erf"), (1 << 22, "erf"), (1 << 18, "neg"), (1 << 17, "erf")):
        x = var("x0", size)
        plan = moved(x, x, (x,))
        store = Store("b1", x, body.op(name, body.load(F32, "b0", x)))
        found.append(lanes.choose(replace(plan, stores=(store,)), 16).kernels[0].fetches)
    assert [[(f.buffer, f.written) for f in some] for some in found] == [
        [("b0", False), ("b1", True)],
        [("b0", False)],
        [],
        [],
    ]


def test_places_that_are_data_are_fetched_ahead() -> None:
    """Beyond the nearest cache; of a row's numbers as many are left as are behind the next ones."""
    x = var("x0", ROWS)
    for size in (1 << 12, 1 << 14):
        y, data = var("x1", 100), symbol("t0", 0, size - 1)
        at = x * 100 + y
        value = body.op("check_index", body.load(I64, "b1", at), body.const(I64, size))
        store = Store("b2", 3 * data + y, body.load(F32, "b0", at), "add", ((data, value),))
        params = (Param("b0", F32, "in"), Param("b1", I64, "in"), Param("b2", F32, "inout"))
        plan = KernelPlan((Dim(x, "p"), Dim(y, "p")), params, (), (store,), y)
        (kernel,) = lanes.choose(plan, 16).kernels
        assert [str(f.left) for f in kernel.fetches] == (["68 - x1"] if size > 1 << 12 else [])
        again = parse_recipe(lanes.choose(plan, 16).text)
        assert isinstance(again, LaneRecipe) and again.kernels[0].fetches == kernel.fetches
        inside = body.op("lt", body.index(y), body.const(I64, 50))
        masked = body.masked(inside, value, body.const(I64, 0))
        cast = body.cast(body.load(F32, "b0", at), I64)  # no places until they are computed
        for other in (masked, body.op("check_index", cast, body.const(I64, size))):
            stores = (replace(store, indirect=((data, other),)),)
            assert lanes.choose(replace(plan, stores=stores), 16).kernels[0].fetches == ()


def test_two_registers_where_operations_wait() -> None:
    found = []
    for size, name, dtype in ((1 << 14, "erf", F32), (1 << 13, "erf", F32), (1 << 14, "neg", F32)):
        x = var("x0", size)
        store = Store("b1", x, body.op(name, body.load(dtype, "b0", x)))
        found.append(lanes.width(replace(moved(x, x, (x,), dtype), stores=(store,)), 16))
    assert found == [32, 16, 16]


def test_vectors_are_no_wider_than_their_dim() -> None:
    """Elements of 16 bits that are but moved fill registers."""
    found = []
    for size, dtype in ((100, F32), (10, F32), (7, F32), (100, BF16), (20, BF16), (100, I64)):
        x, y = var("x0", ROWS), var("x1", size)
        at = x * (size + 1) + y
        found.append(lanes.width(moved(at, at, (x, y), dtype), 16))
    assert found == [16, 8, 8, 32, 16, 8]
    wide = body.cast(body.load(BF16, "b0", y), F32)
    computed = replace(moved(y, y, (x, y), BF16), stores=(Store("b1", y, wide),))
    assert lanes.width(computed, 16) == 16


def test_loops_run_as_memory_is_read_where_it_is_written_past_the_caches() -> None:
    """Heads side by side; not where a loop writes parts of lines, or reads disagree."""
    x, y = var("x0", 64), var("x1", 2048)
    found = []
    for size in (64, 56, 20):
        z = var("x2", size)
        at, to = y * (64 * size) + x * size + z, x * (2048 * size) + y * size + z
        for plan in (moved(at, to, (x, y, z)), moved(to, to, (x, y, z))):
            space = lanes.choose(plan, 16).kernels[0].space
            found.append("".join(str(v) for v in (*space.units, *space.serial)))
    assert found == ["x1x0x2", "x0x1x2", "x0x1x2", "x0x1x2", "x0x1x2", "x0x1x2"]


def test_next_rows_within_which_data_says_what_is_read_are_fetched() -> None:
    """Rows in reach, of which a line or some come to each vector."""

    def fetched(row: int, size: int, scattered: bool = False) -> list[str]:
        x, y, s = var("x0", ROWS), var("x1", size), symbol("t0", 0, row - 1)
        data = body.op("check_index", body.load(I64, "b2", x * size + y), body.const(I64, row))
        plan = moved(x * size + y, x * size + y, (x, y))
        (store,) = plan.stores
        where = ((s, data),)
        if scattered:
            store = replace(store, index=x * row + s, indirect=where)
        else:
            store = replace(store, value=body.load(F32, "b0", x * row + s, where))
        params = (*plan.params, Param("b2", I64, "in"))
        recipe = lanes.choose(replace(plan, stores=(store,), params=params), 16)
        verify(recipe)
        assert parse_recipe(recipe.text) == recipe
        text = render(recipe, "k").splitlines()
        return [line.strip() for line in text if "prefetch" in line]

    assert fetched(2048, 2048) == ["__builtin_prefetch(b0 + (2048*x0 + x1 + 2048), 0, 2);"]
    assert fetched(2048, 2048, True) == ["__builtin_prefetch(b1 + (2048*x0 + x1 + 2048), 1, 3);"]
    assert len(fetched(2048, 512)) == 4
    assert [len(fetched(*c)) for c in ((100, 2048), (2048, 100), (100_000, 100_000))] == [0, 0, 0]


def updated(row: int, within: bool = False) -> KernelPlan:
    """``b2 = bfloat16(1 + all of b0 that b1 says)``, within rows or whole rows of it."""
    x, y, r = var("x0", ROWS), var("x1", row), var("r0", LONG)
    at, number, place = (x * LONG + r, x * LONG + r, y) if within else (r * row + y, r, x)
    data = body.op("check_index", body.load(I64, "b1", number), body.index(extent(place)))
    value = updates.value(body.const(F32, 1.0), data, body.load(F32, "b0", at), place, (r,), "add")
    params = (Param("b0", F32, "in"), Param("b1", I64, "in"), Param("b2", BF16, "out"))
    dims = Dim(x, "p"), Dim(y, "p"), Dim(r, "r")
    stores = (Store("b2", x * row + y, body.cast(value, BF16)),)
    return KernelPlan(dims, params, (), stores, None, None, Skeleton(updates.KIND))


@pytest.mark.parametrize(("columns", "wide"), [(160, False), (1024, True)])
def test_updates_of_rows_that_data_picks(columns: int, wide: bool) -> None:
    """In the order of the rows; threads divide each if it is wide."""
    recipe = lanes.choose(updated(columns), 8)
    verify(recipe)
    assert parse_recipe(recipe.text) == recipe
    last = recipe.kernels[-1]
    assert (last.form, bool(last.space.units)) == ("sorted", wide)
    with pytest.raises(VerifyError):
        verify(replace(recipe, kernels=(*recipe.kernels[:-1], replace(last, form="room"))))


@pytest.mark.parametrize(("row", "streamed"), [(1031, False), (LONG, True)])
def test_updates_within_rows(row: int, streamed: bool) -> None:
    """Row by row in memory of the thread, which is rounded as it is stored."""
    recipe = lanes.choose(updated(row, within=True), 16)
    verify(recipe)
    assert parse_recipe(recipe.text) == recipe
    (made,) = recipe.kernels
    assert (made.form, bool(made.streamed)) == ("room", streamed)
    text = render(recipe, "k")
    assert (
        "litz::update_each<litz::update::add>(room_, " in text and ("_stream(" in text) is streamed
    )
    with pytest.raises(VerifyError):
        verify(replace(recipe, kernels=(replace(made, form="sorted"),)))


def test_the_next_row_that_data_picks_is_fetched() -> None:
    """Of large tables, and of rows that are not short."""

    def fetched(rows: int, columns: int) -> int:
        x, y, s = var("x0", LONG), var("x1", columns), symbol("t0", 0, rows - 1)
        data = body.op("check_index", body.load(I64, "b1", x), body.const(I64, rows))
        value = body.load(F32, "b0", s * columns + y, ((s, data),))
        params = (Param("b0", F32, "in"), Param("b1", I64, "in"), Param("b2", F32, "out"))
        store = Store("b2", x * columns + y, value)
        recipe = lanes.choose(KernelPlan((Dim(x, "p"), Dim(y, "p")), params, (), (store,), y), 8)
        verify(recipe)
        assert parse_recipe(recipe.text) == recipe
        return render(recipe, "k").count("prefetch")

    assert [fetched(*c) for c in ((ROWS, 4096), (ROWS, 32), (64, 1024))] == [1, 0, 0]


def test_broken_recipes_of_loops() -> None:
    recipe = lanes.choose(log_softmax(1000), 16)
    (made,) = recipe.kernels
    value, x = body.load(F32, "b0", const(5)), var("x0", ROWS)
    for changed, words in (
        (replace(made, divided=var("x0", ROWS)), "which is not reduced"),
        (replace(made, form="columns"), "blocks of"),
        (replace(made, kept=(value,)), "named, but not computed"),
        (replace(made, copies=(Copies(made.reductions[:1], 3),)), "3 accumulators do not come"),
        (replace(made, limits=(Limit((), (4,)),)), "are no limits"),
        (replace(made, chunks=(Chunk(made.reductions, x, 4),)), "over x0, which some of"),
        (replace(made, chunks=(Chunk(made.reductions, x, 4),)), "of other reductions than"),
        (replace(made, called=("sin",)), "sin is called, but not computed"),
        (replace(made, passes=made.passes[1:]), "not every reduction"),
        (replace(made, passes=made.passes[::-1]), "before one that it needs"),
        (replace(made, space=replace(made.space, units=())), "parallel loops over"),
    ):
        with pytest.raises(VerifyError, match=words):
            verify(replace(recipe, kernels=(changed,)))


def test_memory_between_kernels_is_written_first() -> None:
    recipe = blocks.choose(log_softmax(1 << 20, 2))
    turned: BlockRecipe = replace(recipe, kernels=recipe.kernels[::-1])
    with pytest.raises(VerifyError, match="is read before it is written"):
        verify(turned)


def running(size: int, rows: int = ROWS) -> KernelPlan:
    """The running sum of each row, less its maximum."""
    x, r = var("x0", rows), var("r0", size)
    value = body.load(F32, "b0", x * size + r)
    total = body.scan("sum", "value", r, r, (value,))
    out = body.op("sub", total, body.reduce("max", (r,), value))
    params = (Param("b0", F32, "in"), Param("b1", F32, "out"))
    dims = (Dim(x, "p"), Dim(r, "r"))
    return KernelPlan(dims, params, (), (Store("b1", x * size + r, out),), r)


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("size", [1000, LONG, 1 << 20])
def test_recipes_of_scans(size: int, rows: int) -> None:
    plan = running(size, rows)
    for made in (blocks.choose(plan, Style(widely=True)), lanes.choose(plan, 16)):
        verify(made)
        assert parse_recipe(made.text) == made


def test_scans_that_are_not_walked_from_the_beginning() -> None:
    made = blocks.choose(running(LONG))
    (k,) = made.kernels
    (axis,) = k.plan.reduced
    late = replace(made, kernels=(replace(k, rows=(axis, 4)),))
    with pytest.raises(VerifyError, match="beginnings come last"):
        verify(late)
    (store,) = k.plan.stores
    ahead = body.scan("sum", "value", axis, axis + 1, (body.load(F32, "b0", axis),))
    wrong = replace(k.plan, stores=(replace(store, value=ahead),))
    with pytest.raises(VerifyError, match="another loop"):
        verify(replace(made, kernels=(replace(k, plan=wrong),)))
    (lane,) = lanes.choose(running(1000), 16).kernels
    cut = replace(lane, divided=axis)
    with pytest.raises(VerifyError, match="not walked from their beginnings"):
        verify(replace(lanes.choose(running(1000), 16), kernels=(cut,)))
