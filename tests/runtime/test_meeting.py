"""What processes tell each other through a store: here, threads through a store in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist
from torch.fx import Graph, GraphModule

from litz.errors import CompilationError
from litz.ranks import Agreement
from litz.runtime import meeting
from litz.runtime.meeting import Group

if not dist.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)


def groups(count: int) -> list[Group]:
    store, ranks = dist.HashStore(), tuple(range(3, 3 + count))
    return [Group("g", ranks, rank, store, None) for rank in ranks]


def at_once(members: list[Group], run: Callable[[Group], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(members)) as pool:
        return [*pool.map(run, members)]


def test_words_meet_turn_by_turn() -> None:
    members = groups(3)
    for turn in range(2):
        said = at_once(members, lambda g, t=turn: meeting.exchange(g, "step", f"{t} {g.rank}", 20))
        assert said == [{rank: f"{turn} {rank}" for rank in (3, 4, 5)}] * 3


def test_who_does_not_come_is_waited_for_once() -> None:
    first, second, _ = groups(3)
    seconds = []
    for _ in range(2):
        start = time.monotonic()
        assert [*meeting.exchange(first, "step", "here", 0.2)] == [3]
        seconds.append(time.monotonic() - start)
    assert seconds[0] >= 0.2 > seconds[1]
    assert [*meeting.exchange(second, "step", "late", 0.2)] == [3, 4]
    assert [*meeting.exchange(second, "another step", "late", 0)] == [4]


def test_ranks_that_did_not_meet_are_warned_of_what_differs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One of them compiled once more than the other, so that its words are of other turns."""
    first, second = (Agreement(GraphModule({}, Graph()), "f", "cpu", (g,), 0.05) for g in groups(2))
    for size in (4, 5):
        first.reached({"g": [["all_reduce", ["sum"], [["float32", size]]]]})
    second.reached({"g": [["all_reduce", ["sum"], [["float32", 7]]]]})
    assert "float32[4], 'sum') of rank 3 and all_reduce(float32[7]" in caplog.text
    new = [Agreement(first.graph, "f", "cpu", (g,), 20) for g in groups(2)]
    new[0].reached({"g": []}, "out of luck")
    with pytest.raises(CompilationError, match="rank 3 could not compile f: out of luck"):
        new[1].reached({"g": []})


def test_a_group_is_measured_by_its_first_rank_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_measured", lambda group, kind: 1000 + group.rank)
    members = groups(2)
    assert at_once(members, lambda g: meeting.bandwidth(g, "cpu", "", 20)) == [1003, 1003]
    monkeypatch.setattr(meeting, "_measured", lambda group, kind: 1 / 0)
    assert meeting.bandwidth(members[1], "cpu", "", 20) == 1003


def test_all_ranks_have_the_figure_where_they_did_not_meet_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those whose figures differ would join other transfers, and wait for each other."""

    def measured(group: Group, kind: str) -> int:
        time.sleep(0.05 if group.rank == group.ranks[0] else 0)
        return 1000 + group.rank

    monkeypatch.setattr(meeting, "_measured", measured)
    members = groups(2)
    meeting.exchange(members[0], "step", "alone", 0.01)
    for g in members:
        g.store.set(g.key("ready", "cpu", g.rank), "yes")
    assert members[0].first(members[0].key("measure", "cpu"), "yes") == "yes"
    assert at_once(members, lambda g: meeting.bandwidth(g, "cpu", "step", 20)) == [1003, 1003]


@pytest.mark.parametrize("who", [0, 1])
def test_a_group_that_does_not_meet_has_no_figure(
    who: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_measured", lambda group, kind: 1 / 0)
    members = groups(2)
    assert meeting.bandwidth(members[who], "cpu", "", 0.05) == 0
    assert meeting.bandwidth(members[1 - who], "cpu", "", 20) == 0


def test_each_group_has_its_own_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of one group are in others of each its own, whose figures are none of the first's."""
    store, figures = dist.HashStore(), {"rows": 512, "a": 64, "b": 1024}
    monkeypatch.setattr(meeting, "_measured", lambda group, kind: figures[group.name])
    mesh = {0: {"rows": (0, 1), "a": (0, 2)}, 1: {"rows": (0, 1), "b": (1, 3)}}
    mesh |= {2: {"a": (0, 2)}, 3: {"b": (1, 3)}}

    def found(rank: int) -> dict[str, int]:
        groups = tuple(Group(n, r, rank, store, None) for n, r in sorted(mesh[rank].items()))
        graph = GraphModule({}, Graph())
        return Agreement(graph, "f", "cpu", groups, 20).bandwidths(0)

    with ThreadPoolExecutor(4) as pool:
        all_of = [*pool.map(found, range(4))]
    assert all_of == [{n: figures[n] for n in mesh[rank]} for rank in range(4)]
