"""The loop tree as text, and what the sources of small plans look like."""

from __future__ import annotations

import pytest
from cpp_plans import make_plan, source
from tree_text import text

from litz.index import Expr, const, symbol, var
from litz.ir import body as B
from litz.ir.body import Store
from litz.ir.dtype import BF16, F32, I64
from litz.kernel.lanes.choose import choose, in_lanes, width
from litz.kernel.lanes.space import prepare
from litz.kernel.plan import KernelPlan
from litz.targets.cpp.render import build, render, unit
from litz.targets.cpp.tree import Kernel


def tree_of(plan: KernelPlan) -> Kernel:
    return build(in_lanes(*prepare(plan), 16), "k")


def shown(plan: KernelPlan) -> str:
    return text(tree_of(plan))


def softmax(p: Expr | int, r: Expr | int, lane: str) -> KernelPlan:
    x0, r0 = var("x0", p), var("r0", r)
    at = x0 * r + r0 if lane == "r0" else r0 * p + x0
    a = B.load(F32, "b0", at)
    e = B.op("exp", B.op("sub", a, B.reduce("max", (r0,), a)))
    y = B.op("div", e, B.reduce("sum", (r0,), e))
    return make_plan([x0], [r0], [Store("b1", at, y)], {"x0": x0, "r0": r0}[lane])


def test_rows() -> None:
    """Three passes; the costly exponentials of the second are kept for the third."""
    want = """\
kernel k lanes 16 units x0
  array m7: f32[768]
  part x0 < 64
    a1: f32v x4 = max of none
    lanes r0 < 768 unroll 4 exact
      t0: f32v = load b0[r0 + 768*x0]
      a1 max= t0
    t2 = fold a1
    a6: f32v x2 = sum of none
    lanes r0 < 768 unroll 2 exact
      t3: f32v = load b0[r0 + 768*x0]
      t4: f32v = sub t3 t2
      t5: f32v = exp t4
      a6 sum= t5
      keep m7 = t5
    t8 = fold a6
    lanes r0 < 768 exact
      t9: f32v = div litz::load<16>(m7 + (r0)) t8
      store b1[r0 + 768*x0] = t9
"""
    assert shown(softmax(64, 768, "r0")) == want


def test_columns() -> None:
    """A block of lanes, whose accumulators are arrays; a value of a lane is computed once."""
    x0, r0 = var("x0", 100), var("r0", 16)
    a = B.load(F32, "b0", r0 * 100 + x0)
    value = B.op("mul", a, B.op("exp", B.load(F32, "b1", x0)))
    plan = make_plan([x0], [r0], [Store("b2", x0, B.reduce("sum", (r0,), value))], x0)
    want = """\
kernel k lanes 16 units x0
  array m3: f32[4096]
  array m5: f32[4096]
  range x0 < 100
    blocks x0 < 100 of 4096
      lanes x0 < 100 x0_b .. x0_e
        t1: f32v = load b1[x0]
        t2: f32v = exp t1
        keep m3 = t2
      m5: f32v = sum of none
      for r0 < 16 together 4
        lanes x0 < 100 x0_b .. x0_e
          t0: f32v = load b0[100*r0 + x0]
          t4: f32v = mul t0 litz::load<16>(m3 + (x0 - x0_b))
          m5 sum= t4
      lanes x0 < 100 x0_b .. x0_e
        store b2[x0] = litz::load<16>(m5 + (x0 - x0_b))
"""
    assert shown(plan) == want


def test_rows_of_columns_that_share_a_vector_are_fetched_ahead() -> None:
    """Their number goes by what they compute; what all rows share is not fetched."""
    x0 = var("x0", 128)

    def printed(rows: int, term: str) -> str:
        r0 = var("r0", rows)
        a = B.op(term, B.load(F32, "b0", r0 * 128 + x0))
        value = B.op("mul", a, B.load(F32, "b1", x0))
        return source(make_plan([x0], [r0], [Store("b2", x0, B.reduce("sum", (r0,), value))], x0))

    four = printed(18, "neg")
    assert four.count("__builtin_prefetch(b0 + (128*(r0 + 4) + x0), 0, 2);") == 4
    assert four.count("__builtin_prefetch") == 4 and "for (; r0 < " in four
    assert "for (; r0 < " not in printed(16, "neg")
    assert "prefetch" not in printed(18, "lgamma") and "prefetch" not in printed(1, "neg")


def test_split() -> None:
    """One sum of everything: threads divide it, in chunks of bounded length."""
    r0 = var("r0", 1 << 20)
    total = B.reduce("sum", (r0,), B.load(F32, "b0", r0))
    plan = make_plan([], [r0], [Store("b1", const(0), B.op("sqrt", total))], r0)
    want = """\
kernel k lanes 16
  split r0 by 512 room p0_: f64
  const int64_t each_ = (to_ - from_) / 256 * 64;
  a2: f64 = sum of none
  for r0_c < each_ + from_ from from_ step 512
    a1: f32v x8 = sum of none
    lanes r0 < min(each_ + from_, r0_c + 512) from r0_c unroll 2 exact
      4 turns of r0 step each_
        t0: f32v = load b0[r0]
        a1 sum= t0
    a2 sum= a1
  a5: f64 = sum of none
  for r0_c < to_ from 4*each_ + from_ step 1024
    a4: f32v x4 = sum of none
    lanes r0 < min(to_, r0_c + 1024) from r0_c unroll 4 exact
      t3: f32v = load b0[r0]
      a4 sum= t3
    a5 sum= a4
  a2 sum= a5
  t6 = a2
  store p0_[0] = t6
end
  t0 = sum of all p0_[0]
  t1: f32 = sqrt litz::cast<float>(t0)
  store b1[0] = t1
"""
    assert shown(plan) == want


def test_tiles() -> None:
    x0, x1 = var("x0", 256), var("x1", 128)
    value = B.op("add", B.load(F32, "b0", x0 * 128 + x1), B.load(F32, "b1", x1 * 256 + x0))
    plan = make_plan([x0, x1], [], [Store("b2", x0 * 128 + x1, value)], x1, tile=x0)
    want = """\
kernel k lanes 16 units x0 x1
  array m1: f32[256]
  part x0 < 256
    part x1 < 128
      tiles x0 by x1 exact load b1[x0 + 256*x1] as m1
        t0: f32v = load b0[128*x0 + x1]
        t2: f32v = add t0 litz::load<16>(m1 + (x0 - x0_t) * 16)
        store b2[128*x0 + x1] = t2
"""
    assert shown(plan) == want


def test_values_go_to_the_loop_of_what_they_depend_on() -> None:
    x0, x1, x2 = var("x0", 4), var("x1", 8), var("x2", 64)
    row = B.op("exp", B.load(F32, "b1", x0))
    cell = B.op("add", row, B.load(F32, "b2", x0 * 8 + x1))
    value = B.op("mul", B.load(F32, "b0", x0 * 512 + x1 * 64 + x2), cell)
    plan = make_plan([x0, x1, x2], [], [Store("b3", x0 * 512 + x1 * 64 + x2, value)], x2)
    want = """\
kernel k lanes 16 units x0 x1 x2
  part x0 < 4
    t1: f32 = load b1[x0]
    t2: f32 = exp t1
    part x1 < 8
      t3: f32 = load b2[8*x0 + x1]
      t4: f32 = add t2 t3
      range x2 < 64
        lanes x2 < 64 exact x2_lo .. x2_hi
          t0: f32v = load b0[512*x0 + 64*x1 + x2]
          t5: f32v = mul t0 t4
          store b3[512*x0 + 64*x1 + x2] = t5
"""
    assert shown(plan) == want


def test_scatter_gives_threads_only_what_cannot_meet() -> None:
    x0, x1, x2 = var("x0", 4), var("x1", 30), var("x2", 64)
    t0 = symbol("t0", 0, 9)
    rows = ((t0, B.load(I64, "i", x1)),)
    a = B.load(F32, "a", x0 * 1920 + x1 * 64 + x2)
    add = Store("c", x0 * 640 + t0 * 64 + x2, a, "add", rows)
    assert tree_of(make_plan([x0, x1, x2], [], [add], x2)).units == (x0, x2)
    far = symbol("t0")  # nothing is known of the rows: they may reach into the next x0
    add = Store("c", x0 * 640 + far * 64 + x2, a, "add", ((far, B.load(I64, "i", x1)),))
    assert tree_of(make_plan([x0, x1, x2], [], [add], x2)).units == (x2,)
    odd = Store("c", x0 * 640 + far * 60 + x2, a, "add", ((far, B.load(I64, "i", x1)),))
    assert tree_of(make_plan([x0, x1, x2], [], [odd], x2)).units == ()


def test_no_tail_where_the_size_is_divisible() -> None:
    x0 = var("x0", 1 << 16)
    plan = make_plan([x0], [], [Store("b1", x0, B.op("exp", B.load(F32, "b0", x0)))], x0)
    assert source(plan).count("litz::exp") == 1
    x0 = var("x0", (1 << 16) + 1)
    plan = make_plan([x0], [], [Store("b1", x0, B.op("exp", B.load(F32, "b0", x0)))], x0)
    assert source(plan).count("litz::exp") == 2


def test_lanes_follow_the_widest_need() -> None:
    x0 = var("x0", 64)
    wide = make_plan([x0], [], [Store("c", x0, B.load(I64, "a", x0))], x0)
    narrow = make_plan([x0], [], [Store("c", x0, B.cast(B.load(BF16, "a", x0), F32))], x0)
    assert (width(wide, 16), width(narrow, 16), width(wide, 8)) == (8, 16, 8)


def test_a_unit_includes_what_its_kernels_need() -> None:
    x0 = var("x0", 64)
    one = make_plan([x0], [], [Store("c", x0, B.load(F32, "a", x0))], x0)
    two = make_plan([x0], [], [Store("c", x0, B.op("exp", B.load(F32, "a", x0)))], x0)
    text_one = render(choose(one, 16), "one", "clone\nof a")
    assert text_one.startswith("// clone\n// of a\nstatic int one_part(")
    assert "math" not in unit([(one, text_one)])
    both = unit([(one, text_one), (two, render(choose(two, 16), "two"))])
    assert "#include <litz/math.h>" in both
    assert 'extern "C" int one(' in both and 'extern "C" int two(' in both


def test_unbound_variables_are_refused() -> None:
    x0, x1 = var("x0", 4), var("x1", 4)
    plan = make_plan([x0], [], [Store("c", x0, B.load(F32, "a", x1))], x0)
    with pytest.raises(ValueError, match="x1 is used outside"):
        shown(plan)


def test_scatter_into_rows_of_unknown_size() -> None:
    s0 = symbol("s0", 1)
    x0, x1 = var("x0", 30), var("x1", s0)
    t0 = symbol("t0")
    add = Store(
        "c", t0 * s0 + x1, B.load(F32, "a", x0 * s0 + x1), "add", ((t0, B.load(I64, "i", x0)),)
    )
    assert tree_of(make_plan([x0, x1], [], [add], x1, ints=[s0])).units == (x1,)
