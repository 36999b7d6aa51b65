"""What a rewriter makes of a node depends on what its arguments have become."""

from __future__ import annotations

from dataclasses import replace

import pytest

from litz.index import const, var
from litz.ir.body import Rewriter, Store, load, op, reduce
from litz.ir.dtype import F32, F64
from litz.ir.program import Loops, with_stores_later


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


def test_stores_that_are_made_when_somebody_looks_at_them() -> None:
    x, made = var("x", 4), []

    def stores() -> tuple[Store, ...]:
        made.append(1)
        return (Store("b", x, load(F32, "a", x)),)

    plain = Loops("n", (x,), (), (Store("b", x, load(F32, "a", x)),), "cpu")
    later = with_stores_later(Loops("n", (x,), (), (), "cpu"), stores, ["a"], ["b"])
    assert (later.read_buffers(), later.write_buffers()) == (("a",), ("b",))
    assert not made
    assert later == plain
    assert (later.reads(), hash(later)) == (plain.reads(), hash(plain))
    assert replace(later, name="m") == replace(plain, name="m")
    assert len(made) == 1
    with pytest.raises(AttributeError, match="Loops has no other"):
        _ = later.other
