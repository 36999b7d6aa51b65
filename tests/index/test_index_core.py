"""Interning, lifetime and cost."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from functools import partial

from threads import together

from litz import index as ix


def test_nodes_nobody_holds_are_freed() -> None:
    e = ix.Symbol("held by this test alone", 0, 12345)
    ref = weakref.ref(e)
    again = ix.Symbol("held by this test alone", 0, 12345)
    assert again is e
    del e, again
    gc.collect()
    assert ref() is None
    assert ix.Symbol("held by this test alone", 0, 12345).hi == 12345


def test_pickled_nodes_intern_again() -> None:
    i, s = ix.var("i", ix.symbol("s", 1, 9, 4)), ix.symbol("s", 1, 9, 4)
    b = ix.symbol("b", 0, 1)
    e = ix.max_((i * s + 3) // 4 % 5, ix.min_(i, 7)) + ix.lt(i, 3)
    e = e * ix.or_(ix.and_(ix.lt(i, 2), ix.ne(s, 3)), ix.not_(b))
    assert pickle.loads(pickle.dumps(e)) is e


def test_threads_agree_on_identity() -> None:
    """Many threads build the same fresh expressions at once; each must get the same objects."""
    count, rounds = 8, 200
    results: list[list[ix.Expr]] = [[] for _ in range(count)]
    barrier = threading.Barrier(count)

    def work(out: list[ix.Expr]) -> None:
        barrier.wait()
        for n in range(rounds):
            i = ix.var(f"thread_i{n}", 1000 + n)
            out.append((i * (n + 3) + 5) // 7 + i % 11)

    together(partial(work, out) for out in results)
    for column in zip(*results, strict=True):
        assert len(set(column)) == 1
    assert all(len(out) == rounds for out in results)


def test_the_attributes_of_a_node() -> None:
    i = ix.var("i", 5)
    assert (i.name, i.extent, i.lo, i.hi) == ("i", ix.const(5), 0, 4)
    q = (i + 3) // 4
    assert isinstance(q, ix.FloorDiv) and q.num is i + 3 and q.den is ix.const(4)
    total = 3 * i + 2
    assert isinstance(total, ix.Sum) and (total.const, total.terms) == (2, ((i, 3),))
    square = i * i
    assert isinstance(square, ix.Product) and square.factors == (i, i)
    less = ix.lt(i, 3)
    assert isinstance(less, ix.Cmp) and (less.op, less.a, less.b) == ("lt", i, ix.const(3))
    assert less.is_bool and not i.is_bool


def test_proofs_over_many_divisions_end_soon() -> None:
    """The search takes one way at every step: without that this takes hours."""
    sizes = [ix.symbol(f"z{n}", 0) for n in range(14)]
    e = ix.sum_([(s + n) // 3 for n, s in enumerate(sizes)])
    e = e - ix.sum_([ix.min_(s, 5) % (t + 7) for s, t in zip(sizes, sizes[1:], strict=False)])
    start = time.process_time()
    assert ix.bounds(e)[1] is None
    few = ix.sum_([(s + n) // 3 for n, s in enumerate(sizes[:8])])
    assert ix.provably_le(few, ix.sum_(sizes) + 99)
    assert time.process_time() - start < 5


def test_thousands_of_expressions_take_tens_of_milliseconds() -> None:
    """A bound loose enough for a loaded machine; sharper figures are a benchmark's business."""
    i, j = ix.var("i", 32), ix.var("j", 768)
    start = time.process_time()
    for n in range(3000):
        flat = (i * 768 + j) * 64 + n
        flat // 64 % 12  # noqa: B018
    assert time.process_time() - start < 2
