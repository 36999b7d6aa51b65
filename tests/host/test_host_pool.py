"""Packing of buffers with disjoint lifetimes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from litz.host.pool import ALIGNMENT, Item, MemoryRegion, aligned, pack

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


def test_a_chain_takes_two_places():
    items = [Item(f"i{k}", 256, k, k + 1) for k in range(9)]
    _, scratch = pack(items, [])
    assert scratch == 512


def test_memory_that_is_there_is_taken_before_more():
    host = MemoryRegion("out", 256, (8, 12))
    places, scratch = pack([Item(f"i{k}", 256, k, k + 1) for k in range(8)], [host])
    assert scratch == 256
    assert sorted({o for o, _ in places.values()}) == ["", "out"]
