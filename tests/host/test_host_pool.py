"""Packing of buffers with disjoint lifetimes."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from litz.host.arena import _lenders
from litz.host.lifetimes import Block, Lifetimes, summed
from litz.host.memory import _Plan, _Spans
from litz.host.pool import ALIGNMENT, Item, MemoryRegion, aligned, pack
from litz.index import const

steps = st.integers(0, 12)
spans = st.tuples(steps, steps).map(lambda p: (min(p), max(p)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Item], list[MemoryRegion]]:
    items = [
        Item(f"i{k}", draw(st.sampled_from([0, 1, 64, 100, 256, 1000])), *draw(spans))
        for k in range(draw(st.integers(0, 12)))
    ]
    hosts = [
        MemoryRegion(f"h{k}", draw(st.sampled_from([0, 64, 200, 1024])), draw(spans))
        for k in range(draw(st.integers(0, 3)))
    ]
    return items, hosts


@settings(max_examples=300, deadline=None, derandomize=True)
@given(cases())
def test_nothing_overlaps(case):
    items, hosts = case
    places, scratch = pack(items, hosts)
    assert set(places) == {i.name for i in items}
    by_host = {h.name: h for h in hosts}
    for i in items:
        owner, offset = places[i.name]
        assert offset % ALIGNMENT == 0
        if owner:
            host = by_host[owner]
            assert offset + i.nbytes <= host.capacity
            assert i.death < host.busy[0] or host.busy[1] < i.birth
        else:
            assert offset + i.nbytes <= scratch
        for j in items:
            o, start = places[j.name]
            if j is not i and o == owner and i.birth <= j.death and j.birth <= i.death:
                assert offset + i.nbytes <= start or start + j.nbytes <= offset
    live = [sum(aligned(i.nbytes) for i in items if i.birth <= t <= i.death) for t in range(13)]
    if not hosts:
        assert max(live) <= scratch <= 2 * max(live)
    assert scratch <= sum(aligned(i.nbytes) for i in items)


SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 12), st.integers(-4, 4)))


@given(SPANS, st.integers(0, 9))
def test_sums_over_spans(spans, end):
    sums = [sum(n for first, last, n in spans if first <= t <= last) for t in range(end)]
    assert summed(spans, end) == sums


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(-1, 8), st.integers(0, 9)), max_size=12))
def test_segments_find_their_blocks(spans):
    """What a segment is told of blocks is what all of them say, by the steps they live in."""
    times = Lifetimes(steps=[None] * 8)
    for k, (birth, length, nbytes) in enumerate(spans):
        death = min(birth + length, times.end)
        times.blocks[f"b{k}"] = Block([f"b{k}"], const(nbytes), nbytes, birth, death, "cpu")
    blocks = list(times.blocks.values())
    found = _Spans(_Plan(None, times, blocks, []))
    for first in range(8):
        for last in range(first, 8):
            alive = [b for b in blocks if b.birth <= last and b.death >= first]
            assert found.held(first, last) == sum(b.nbytes for b in alive)
            partly = [b for b in alive if b.birth >= first or b.death <= last]
            inside = list(found.at(first, last))
            assert [b for b in inside if b in alive] == partly


def test_a_chain_takes_two_places():
    items = [Item(f"i{k}", 256, k, k + 1) for k in range(9)]
    _, scratch = pack(items, [])
    assert scratch == 512


def test_memory_that_is_there_is_taken_before_more():
    host = MemoryRegion("out", 256, (8, 12))
    places, scratch = pack([Item(f"i{k}", 256, k, k + 1) for k in range(8)], [host])
    assert scratch == 256
    assert sorted({o for o, _ in places.values()}) == ["", "out"]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([16, 24, 64, 160])), max_size=12),
    st.lists(st.integers(0, 99), min_size=10, max_size=10),
    st.integers(0, 400),
)
def test_results_are_allocated_early_as_long_as_they_fit(made, others, limit):
    results = [Item(f"r{k}", nbytes, birth, 10) for k, (birth, nbytes) in enumerate(made)]
    live, chosen = list(others), []
    for r in sorted(results, key=lambda r: -r.nbytes):
        early = live[: r.birth]
        if r.birth and r.nbytes % 16 == 0 and max(early) + r.nbytes <= limit:
            chosen.append(r)
            live[: r.birth] = [n + r.nbytes for n in early]
    assert _lenders(results, others, limit) == (tuple(chosen), tuple(live))


def test_choosing_results_grows_with_their_number():
    def lines(count: int) -> int:
        seen: list[object] = []

        def trace(*event: object) -> object:
            seen.append(event)
            return trace

        results = [Item(f"r{k}", 16, k, count) for k in range(count)]
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            _lenders(results, [0] * count, 16 * count)
        finally:
            sys.settrace(before)
        return len(seen)

    assert lines(400) < 3 * lines(200)
