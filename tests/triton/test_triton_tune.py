"""Picking the fastest candidate, on a clock of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from litz.runtime.cache import Cache, content_key
from litz.runtime.tune import BATCH, FEW, choose, known, private_copies


class Simulated:
    """A clock on which a run takes what its candidate says, and waiting costs nothing else."""

    def __init__(self, overhead: float = 0.0) -> None:
        self.time = 100.0
        self.overhead = overhead
        self.last = 0.0
        self.runs = 0

    def now(self) -> float:
        return self.time

    def measure(self, run: Callable[[], None], times: int) -> list[float]:
        out = []
        for _ in range(times):
            run()
            self.runs += 1
            self.time += self.last + self.overhead
            out.append(self.last)
        return out

    def candidate(
        self, *seconds: float, first: float = 0.0, calls: list[Any] | None = None
    ) -> Callable[[Sequence[Any]], None]:
        """Takes each of ``seconds`` in turn, and ``first`` besides at its first run."""
        count = [0]

        def run(args: Sequence[Any]) -> None:
            self.last = seconds[count[0] % len(seconds)]
            if count[0] == 0:
                self.time += first
            count[0] += 1
            if calls is not None:
                calls.append(args)

        return run


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def pick(clock: Simulated, cache: Cache, *candidates: Any, budget: float = 10.0) -> Any:
    return choose(["k"], candidates, [], [], clock, cache, budget)


def test_the_fastest_wins_and_is_remembered(cache: Cache) -> None:
    clock = Simulated()
    found = pick(clock, cache, clock.candidate(3e-3), clock.candidate(1e-3), clock.candidate(2e-3))
    assert (found.index, found.measured) == (1, True)
    assert found.seconds == (3e-3, 1e-3, 2e-3)
    runs = clock.runs
    again = pick(clock, cache, *[clock.candidate(1.0)] * 3)
    assert again.index == 1 and not again.measured and clock.runs == runs


def test_what_is_clearly_behind_is_not_measured_further(cache: Cache) -> None:
    clock = Simulated()
    counts: list[list[Any]] = [[], [], []]
    times = (1e-3, 1.1e-3, 5e-3)
    pick(clock, cache, *(clock.candidate(t, calls=c) for t, c in zip(times, counts, strict=True)))
    assert [len(c) for c in counts] == [2 + FEW] * 2 + [2 + BATCH]


@pytest.mark.parametrize(
    ("other", "index"),
    [((0.9e-3,), 1), ((0.99e-3,), 0), ((1.02e-3, 1e-3), 0), ((0.94e-3, 0.96e-3), 1)],
)
def test_what_is_clear_is_not_measured_further(
    cache: Cache, other: tuple[float, ...], index: int
) -> None:
    clock = Simulated()
    assert pick(clock, cache, clock.candidate(1e-3), clock.candidate(*other)).index == index
    assert clock.runs == 2 * (2 + FEW)


def test_what_is_not_clear_is_measured_further(cache: Cache) -> None:
    clock = Simulated()
    noisy = clock.candidate(1.02e-3, 0.92e-3, 0.98e-3)
    assert pick(clock, cache, clock.candidate(1e-3), noisy).index == 0
    assert clock.runs > 2 * (2 + 2 * FEW)


def test_the_default_stays_unless_another_is_faster_by_more_than_noise(cache: Cache) -> None:
    clock = Simulated()
    assert pick(clock, cache, clock.candidate(1e-3), clock.candidate(0.99e-3)).index == 0
    cache.clear()
    assert pick(clock, cache, clock.candidate(1e-3), clock.candidate(0.9e-3)).index == 1


def test_an_outlier_does_not_decide(cache: Cache) -> None:
    clock = Simulated()
    # One run in five is very quick, as when an event is lost; the median does not see it.
    lucky = clock.candidate(2e-3, 2e-3, 1e-6, 2e-3, 2e-3)
    assert pick(clock, cache, clock.candidate(1e-3), lucky).index == 0


def test_one_run_decides_only_what_is_clear(cache: Cache) -> None:
    """Where no time is left for turns: the one lucky run of a slow candidate is no reason."""
    for lucky, index in ((0.9e-3, 0), (0.5e-3, 1)):
        clock = Simulated(overhead=1.0)
        found = pick(clock, cache, clock.candidate(1e-3), clock.candidate(2e-3, lucky), budget=4.5)
        assert found.index == index and found.seconds == (1e-3, lucky)
        cache.clear()


@pytest.mark.parametrize("noise", [0.02, 0.2, 0.5])
def test_what_is_chosen_is_not_slower_than_the_default(cache: Cache, noise: float) -> None:
    """Under noise, and whatever the time is that there is."""
    draw = random.Random(0)
    for budget in (0.02, 0.1, 0.5, 5.0):
        clock = Simulated(overhead=1e-3)
        true = [1e-3, *(1e-3 * draw.uniform(1.0, 1.5) for _ in range(6))]
        taken = [[t * (1 + noise * draw.random() ** 4) for _ in range(97)] for t in true]
        found = pick(clock, cache, *(clock.candidate(*t) for t in taken), budget=budget)
        assert true[found.index] <= 1.02 * true[0], (budget, true, found)
        cache.clear()


@pytest.mark.parametrize("budget", [0.05, 0.3, 1.0])
def test_the_budget_is_kept(cache: Cache, budget: float) -> None:
    clock = Simulated(overhead=1e-3)
    start = clock.time
    candidates = [clock.candidate(1e-3 * (1 + 0.01 * i)) for i in range(20)]
    found = pick(clock, cache, *candidates, budget=budget)
    assert clock.time - start <= 1.1 * budget
    assert found.seconds[0] is not None


def test_a_slow_first_run_does_not_spend_the_rest(cache: Cache) -> None:
    clock = Simulated()
    slow = clock.candidate(1e-3, first=0.4)
    found = pick(clock, cache, slow, clock.candidate(0.5e-3, first=0.4), budget=1.0)
    assert found.index == 1
    # Both were ready at 0.8 of 1.0: there was time for turns.
    assert clock.runs > 10


def test_no_time_at_all_runs_the_default(cache: Cache) -> None:
    clock = Simulated()
    found = pick(clock, cache, clock.candidate(1e-3), clock.candidate(1e-6), budget=0.0)
    assert found.index == 0 and found.seconds[1] is None


def test_a_search_goes_on_only_with_more_time(cache: Cache) -> None:
    """None: what a search of 2 seconds had no time to compile."""
    clock = Simulated()
    some = [clock.candidate(2e-3), clock.candidate(1e-3), None]
    found = choose(["k"], some, [], [], clock, cache, 1.0, within=2.0)
    assert found.measured and found.seconds == (2e-3, 1e-3, None)
    for within in (0.0, 1.0, 2.0):
        again = known(["k"], 3, cache, within)
        assert again is not None and again.index == 1 and not again.measured
    assert known(["k"], 3, cache, 60.0) is None
    all_ = [clock.candidate(t) for t in (2e-3, 1e-3, 0.5e-3)]
    found = choose(["k"], all_, [], [], clock, cache, 1.0, within=60.0)
    assert found.measured and found.index == 2
    found = choose(["k"], all_[::-1], [], [], clock, cache, 1.0)  # all were compiled
    assert found.measured and found.index == 0
    choose(["w"], all_, [], [], clock, cache, 1.0)
    assert known(["w"], 3, cache, 60.0) is not None  # no search is left unfinished


def failing(args: Sequence[Any]) -> None:
    raise RuntimeError("too many registers")


def test_candidates_that_fail_are_out(cache: Cache) -> None:
    clock = Simulated()
    found = pick(clock, cache, failing, clock.candidate(2e-3), failing, clock.candidate(1e-3))
    assert found.index == 3 and found.seconds[0] is None is found.seconds[2]
    cache.clear()
    with pytest.raises(RuntimeError, match="registers"):
        pick(clock, cache, failing, failing)
    assert pick(clock, cache, clock.candidate(1e-3), failing).index == 0


def test_what_is_known_not_to_run_keeps_its_place(cache: Cache) -> None:
    clock = Simulated()
    assert known(["k"], 3, cache) is None
    found = pick(clock, cache, clock.candidate(2e-3), None, clock.candidate(1e-3))
    assert found.index == 2 and found.seconds == (2e-3, None, 1e-3)
    again = known(["k"], 3, cache)
    assert again is not None and again.index == 2 and not again.measured
    assert known(["k"], 2, cache) is None


def test_one_candidate_is_not_measured(cache: Cache) -> None:
    clock = Simulated()
    assert pick(clock, cache, clock.candidate(1.0)).index == 0
    assert clock.runs == 0


@pytest.mark.parametrize(
    "damage",
    ["", "rubbish", "[]", '{"index": 5, "seconds": [1, 2]}', '{"index": "1", "seconds": [1, 2]}'],
)
def test_damaged_entries_are_measured_again(cache: Cache, damage: str) -> None:
    clock = Simulated()
    cache.put("tuned", content_key("k", "2"), damage, ".json")
    found = pick(clock, cache, clock.candidate(2e-3), clock.candidate(1e-3))
    assert found.index == 1 and found.measured
    text = cache.get_text("tuned", content_key("k", "2"), ".json")
    assert text is not None and json.loads(text)["index"] == 1


def test_keys_are_apart(cache: Cache) -> None:
    clock = Simulated()
    pick(clock, cache, clock.candidate(2e-3), clock.candidate(1e-3))
    assert choose(
        ["other"], [clock.candidate(1e-3), clock.candidate(2e-3)], [], [], clock, cache, 1.0
    ).measured


# --- arguments ---


def test_only_what_is_mutated_is_copied(cache: Cache) -> None:
    clock = Simulated()
    x, y, n = torch.arange(12.0), torch.zeros(12), 12
    seen: list[Any] = []

    def run(args: Sequence[Any]) -> None:
        a, b, size = args
        b.add_(a)
        assert size == n
        seen.append((a.data_ptr(), b.data_ptr()))
        clock.last = 1e-3

    choose(["k"], [run, run], [x, y, n], [1], clock, cache, 1.0)
    assert not y.any()
    assert {a for a, _ in seen} == {x.data_ptr()}
    assert y.data_ptr() not in {b for _, b in seen}


def test_copies_keep_strides_values_and_sharing() -> None:
    base = torch.arange(120.0)
    window = base[3:63].view(6, 10).t()  # dense in another order
    rows = base[40:80].view(4, 10)[:, ::3]  # overlaps it
    apart = base[100:110]
    wide = torch.arange(4.0).expand(3, 4)  # one row under three
    args = [window, rows, apart, wide, 7, torch.empty(0)]
    copies = private_copies(args, [0, 3])
    for a, c in zip(args, copies, strict=True):
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, c) and a.stride() == c.stride() and a.dtype == c.dtype
    assert copies[2] is apart and copies[4] == 7
    # What shared memory still does.
    assert copies[1].data_ptr() - copies[0].data_ptr() == rows.data_ptr() - window.data_ptr()
    copies[0].fill_(-1)
    assert (copies[1] == -1).any() and not (base < 0).any()
    copies[3][0, 0] = 5
    assert copies[3][2, 0] == 5 and wide[0, 0] == 0


@pytest.mark.parametrize("shift", [0, 1, 3, 4])
def test_copies_are_aligned_alike(shift: int) -> None:
    base = torch.zeros(64)
    t = base[shift : shift + 20]
    (copy,) = private_copies([t], [0])
    assert copy.data_ptr() % 16 == t.data_ptr() % 16
