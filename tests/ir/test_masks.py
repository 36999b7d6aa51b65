from __future__ import annotations

from litz.index import symbol, var
from litz.ir import body
from litz.ir.body import Node
from litz.ir.dtype import F32
from litz.ir.masks import open_reduces

ROW, V = var("x0", 4), var("r0", 30)
MAX = body.reduce("max", (V,), body.load(F32, "a", ROW * 30 + V))
ZERO = body.const(F32, 0)


def holds(*conds: Node) -> Node:
    first, *rest = conds
    for c in rest:
        first = body.op("and_", first, c)
    return first


LEFT = body.op("lt", body.index(V), body.index(symbol("s")))
TOP = body.op("lt", body.index(ROW), body.index(symbol("s")))
SIZE = body.op("lt", body.index(symbol("t")), body.index(symbol("s")))


def test_a_mask_that_varies_along_the_row_holds_back_nothing() -> None:
    shown = body.op("add", MAX, body.load(F32, "b", V))
    assert open_reduces((body.masked(LEFT, shown, ZERO),)) == [MAX]


def test_a_mask_of_the_whole_row_does() -> None:
    for cond in (TOP, SIZE, holds(TOP, LEFT), holds(LEFT, SIZE)):
        assert open_reduces((body.masked(cond, MAX, ZERO),)) == []
    nested = body.masked(LEFT, body.masked(TOP, MAX, ZERO), ZERO)
    assert open_reduces((nested,)) == []
    assert open_reduces((nested, body.op("exp", MAX))) == [MAX]


def test_inside_of_another_reduction() -> None:
    centred = body.op("sub", body.load(F32, "a", ROW * 30 + V), MAX)
    total = body.reduce("sum", (V,), body.op("exp", centred))
    assert open_reduces((body.masked(LEFT, total, ZERO),)) == [total, MAX]
    assert open_reduces((body.masked(TOP, total, ZERO),)) == []
    padded = body.reduce("sum", (V,), body.masked(LEFT, body.op("exp", centred), ZERO))
    assert open_reduces((padded,)) == [padded, MAX]


def test_a_condition_on_both_may_guard() -> None:
    mixed = body.op("lt", body.index(ROW * 30 + V), body.index(symbol("s")))
    assert open_reduces((body.masked(mixed, MAX, ZERO),)) == []


def test_deep_masks_take_no_longer() -> None:
    value = body.op("add", MAX, body.load(F32, "b", V))
    for k in range(60):
        cond = body.op("lt", body.index(V), body.index(symbol(f"s{k}")))
        value = body.masked(cond, body.op("exp", value), value)
    assert open_reduces((value,)) == [MAX]
