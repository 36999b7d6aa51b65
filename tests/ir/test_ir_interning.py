"""Nodes of bodies are interned: of one value there is one node, whichever threads make it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
from threads import hurried

from litz.index import interning, lt, var
from litz.ir import body
from litz.ir.dtype import F32, I64

COUNT = 6


@pytest.fixture(autouse=True)
def in_a_hurry() -> Iterator[None]:
    with hurried():
        yield


def in_threads(work: Callable[[int], None]) -> None:
    """Run ``work`` in several threads that begin at once, each with its number."""
    barrier = threading.Barrier(COUNT)
    failed: list[BaseException] = []

    def run(k: int) -> None:
        barrier.wait()
        try:
            work(k)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(COUNT)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def nodes(tag: str, n: int) -> list[body.Node]:
    """One node of each class that no other ``n`` has."""
    i = var(f"{tag}{n}", 1000 + n)
    x = body.load(F32, tag, i)
    c = body.const(F32, 0.5 + n)
    total = body.op("add", x, c)
    where = body.index(lt(i, n + 2))
    cond = body.op("ne", where, body.const(I64, 0))
    return [x, c, total, where, cond, body.masked(cond, total, c), body.reduce("sum", (i,), total)]


def test_threads_agree_on_identity() -> None:
    found: list[list[body.Node]] = [[] for _ in range(COUNT)]

    def work(k: int) -> None:
        for n in range(400):
            found[k] += nodes("agreed", n)

    in_threads(work)
    assert [k for k, same in enumerate(zip(*found, strict=True)) if len(set(same)) > 1] == []


def test_nodes_that_die_while_others_make_them() -> None:
    """What comes and goes in many threads is one node at each moment, and none in the end."""
    kept: list[weakref.ref[body.Node]] = []

    def work(k: int) -> None:
        for n in range(600):
            first = nodes("passing", n % 3)
            again = nodes("passing", n % 3)
            assert all(a is b for a, b in zip(first, again, strict=True))
            kept.append(weakref.ref(first[-1]))

    in_threads(work)
    gc.collect()
    assert all(ref() is None for ref in kept)
    assert not [e for e in interning._TABLE if "passing" in e]
