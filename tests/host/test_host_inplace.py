"""When an output may lie in an input's memory."""

from __future__ import annotations

import pytest

from litz.host import inplace
from litz.host.inplace import inplace_pairs, takeovers
from litz.index import Expr, as_expr, floordiv, symbol, var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Store
from litz.ir.program import Buffer
from litz.kernel.build import KernelBuilder
from litz.schedule.groups import Group

S0 = symbol("s0", 2, None, 8)
I0, J0 = var("i", 8), var("j", 16)
R0 = var("r", 16)
AT, ROW = 16 * I0 + J0, 16 * I0 + R0


def buffer(name: str, rows: Expr | int = 8, dtype: d.DType = d.F32, kind: str = "temp", **kw):
    shape = (as_expr(rows), as_expr(16))
    return Buffer(name, dtype, shape, (as_expr(16), as_expr(1)), "cpu", kind, **kw)


BUFFERS = {
    b.name: b
    for b in (
        *(buffer(n) for n in "abcxyz"),
        buffer("int", dtype=d.I32),
        buffer("half", dtype=d.BF16),
        buffer("short", 7),
        buffer("arg", kind="input"),
        buffer("ext", kind="extern"),
        buffer("view", kind="temp", alias="a"),
        Buffer("dyn", d.F32, (S0,), (as_expr(1),), "cpu"),
        Buffer("dyn2", d.F32, (S0,), (as_expr(1),), "cpu"),
        Buffer("col", d.F32, (as_expr(8), as_expr(16)), (as_expr(1), as_expr(8)), "cpu"),
        Buffer("gap", d.F32, (as_expr(8), as_expr(16)), (as_expr(32), as_expr(1)), "cpu"),
        Buffer("gap2", d.F32, (as_expr(8), as_expr(16)), (as_expr(32), as_expr(1)), "cpu"),
    )
}


def x(name: str = "a", index: Expr = AT) -> Node:
    return body.load(BUFFERS[name].dtype, name, index)


def neg(n: Node) -> Node:
    return body.op("neg", n)


def pairs(*stores: Store, axes: tuple = (I0, J0), reduce_axes: tuple = ()) -> tuple:
    return inplace_pairs(Group("g", axes, reduce_axes, stores, "cpu", ("l",)), BUFFERS)


def test_same_index_everywhere():
    assert pairs(Store("x", AT, neg(x()))) == (("x", "a"),)
    both = body.op("add", x("a"), x("b"))
    assert pairs(Store("x", AT, both)) == (("x", "a"), ("x", "b"))
    assert pairs(Store("int", AT, body.cast(x(), d.I32))) == (("int", "a"),)


def test_groups_of_one_plan_share_the_answer(monkeypatch):
    asked = []

    def counted(group, buffers):
        asked.append(group.name)
        return inplace_pairs(group, buffers)

    monkeypatch.setattr(inplace, "inplace_pairs", counted)
    moves = {"g0": ("a", "x"), "g1": ("b", "y"), "g2": ("arg", "z"), "g3": ("c", "view")}
    groups = [
        Group(name, (I0, J0), (), (Store(new, AT, neg(x(old))),), "cpu", (name,))
        for name, (old, new) in moves.items()
    ]
    build = KernelBuilder(BUFFERS)
    bound = [build(g) for g in groups]
    assert len({b.plan for b in bound}) == 1
    plans = {g.name: ((b.plan, b.ints), b.buffers) for g, b in zip(groups, bound, strict=True)}
    found = takeovers(groups, plans, BUFFERS)
    assert found == {g.name: inplace_pairs(g, BUFFERS) for g in groups}
    assert found["g1"] == (("y", "b"),)
    assert asked == ["g0", "g2", "g3"]


def test_a_permuted_layout_is_dense_too():
    col = I0 + 8 * J0
    assert pairs(Store("col", col, neg(x("a", col)))) == (("col", "a"),)
    assert pairs(Store("col", col, neg(x()))) == ()


def test_symbolic_sizes():
    i = var("i", S0)
    assert pairs(Store("dyn", i, neg(x("dyn2", i))), axes=(i,)) == (("dyn", "dyn2"),)


@pytest.mark.parametrize(
    "store",
    [
        Store("x", AT, neg(x("a", 16 * I0 + 15 - J0))),  # read elsewhere
        Store("x", AT, body.op("add", x(), x("a", 16 * I0))),  # and read elsewhere
        Store("x", AT, neg(x("short"))),  # smaller
        Store("half", AT, body.cast(x(), d.BF16)),  # narrower
        Store("x", AT, neg(x("arg"))),  # the caller's
        Store("x", AT, neg(x("ext"))),  # an extern's
        Store("x", AT, neg(x("view"))),  # somebody's
        Store("ext", AT, neg(x())),
        Store("x", AT, neg(x()), mode="add"),
        Store("x", AT, neg(x()), mask=body.op("lt", x(), x("b"))),
        Store("x", AT, body.op("add", x(), x("x"))),
        Store("a", AT, neg(x())),  # in place already
        Store("gap", 32 * I0 + J0, neg(x("gap2", 32 * I0 + J0))),  # not all of the memory
        Store("x", floordiv(AT, 2), neg(x("a", floordiv(AT, 2)))),  # not one point an element
        Store("x", AT, body.masked(body.op("lt", body.index(I0), body.index(J0)), x(), x("b"))),
    ],
    ids=range(15),
)
def test_refusals(store: Store):
    assert pairs(store) == ()


def test_a_loop_that_the_index_lacks_runs_the_store_again():
    k = var("k", 3)
    assert pairs(Store("x", AT, neg(x())), axes=(I0, J0, k)) == ()
    assert pairs(Store("x", AT, neg(x())), axes=(I0, J0, var("k", 1))) == (("x", "a"),)


def test_the_store_must_be_the_last_to_need_the_input():
    total = body.op("add", x("a"), x("b"))
    first, second = Store("x", AT, total), Store("y", AT, neg(total))
    assert pairs(first, second) == (("x", "a"), ("x", "b"), ("y", "a"), ("y", "b"))
    other = Store("y", AT, body.op("mul", total, x("b")))  # needs b behind the sum
    assert ("x", "b") not in pairs(first, other) and ("x", "a") in pairs(first, other)
    assert pairs(first, Store("y", AT, x("a")))[:1] == (("x", "b"),)


def test_reductions_run_before_the_store():
    value = x("a", ROW)
    peak = body.reduce("max", (R0,), value)
    center = body.op("sub", value, peak)
    assert pairs(Store("x", ROW, center), axes=(I0,), reduce_axes=(R0,)) == (("x", "a"),)
    # A second reduction over what is stored may read the input again in a later pass.
    later = body.reduce("sum", (R0,), center)
    two = (Store("x", ROW, center), Store("y", 16 * I0, later))
    assert pairs(*two, axes=(I0,), reduce_axes=(R0,)) == ()
    # Two stores of the full space may run in different passes.
    both = (Store("x", ROW, center), Store("y", ROW, body.op("exp", center)))
    assert pairs(*both, axes=(I0,), reduce_axes=(R0,)) == ()
    # A store of a row's result is none of the full space.
    assert pairs(Store("x", 16 * I0, peak), axes=(I0,), reduce_axes=(R0,)) == ()
