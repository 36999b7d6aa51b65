"""What a rewriter makes of a node depends on what its arguments have become."""

from __future__ import annotations

from litz.index import const, var
from litz.ir.body import Rewriter, load, op, reduce
from litz.ir.dtype import F32, F64


def test_what_takes_a_place_may_depend_on_other_dims() -> None:
    x, r = var("x", 4), var("r", 4)
    top = reduce("max", (r,), load(F32, "a", r))
    low = op("sub", load(F32, "a", r), top)
    assert low.vars == (r,)
    stored = Rewriter(memo={top: load(F32, "m", x)})(low)
    assert set(stored.vars) == {r, x}


def test_what_takes_a_place_may_be_of_another_type() -> None:
    a, b = load(F32, "a", const(0)), load(F64, "b", const(0))
    assert Rewriter(memo={a: b})(op("neg", a)).dtype is F64
