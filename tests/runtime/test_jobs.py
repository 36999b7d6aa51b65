"""How many compilers run at once: by processors, and by memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from litz.runtime import jobs
from litz.runtime.jobs import EACH, Slots, default_jobs, free_memory, memory_bound


def machine(root: Path, available: int, group: dict[str, str] | None = None) -> Path:
    """The files of a system with so many bytes to spare."""
    (root / "proc").mkdir()
    text = f"MemTotal: 99999999 kB\nMemAvailable:   {available >> 10} kB\nHugePages_Total: 0\n"
    (root / "proc/meminfo").write_text(text)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for name, said in (group or {}).items():
        (root / "sys/fs/cgroup" / name).write_text(said)
    return root


def test_what_the_system_has_to_spare(tmp_path: Path) -> None:
    assert free_memory(machine(tmp_path, 3 << 30)) == 3 << 30


def test_a_group_of_processes_may_have_less(tmp_path: Path) -> None:
    group = {
        "memory.max": f"{2 << 30}\n",
        "memory.current": f"{3 << 29}\n",
        "memory.stat": f"anon 7\ninactive_file {1 << 28}\n",
    }
    assert free_memory(machine(tmp_path, 9 << 30, group)) == (1 << 29) + (1 << 28)


def test_a_group_without_a_limit(tmp_path: Path) -> None:
    group = {"memory.max": "max\n", "memory.current": "5\n"}
    assert free_memory(machine(tmp_path, 1 << 30, group)) == 1 << 30


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None


@pytest.mark.parametrize(
    ("free", "count"), [(None, 8), (0, 1), (-1, 1), (EACH, 1), (3 * EACH, 3), (99 * EACH, 8)]
)
def test_short_memory_means_fewer(
    free: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "free_memory", lambda: free)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert default_jobs() == count


def test_builds_share_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may have one; more only while all together keep to what the asker may have."""
    monkeypatch.setattr(jobs, "free_memory", lambda: None)
    slots, cpp, triton = Slots(), object(), object()
    assert slots.take(cpp, 2) and slots.take(cpp, 2) and not slots.take(cpp, 2)
    assert slots.take(triton, 2) and not slots.take(triton, 2)
    slots.give(cpp)
    assert not slots.take(triton, 2)
    slots.give(cpp)
    assert slots.take(triton, 2) and slots.take(cpp, 2)


def test_no_second_compiler_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [EACH - 1]
    monkeypatch.setattr(jobs, "free_memory", lambda: free[0])
    slots, build = Slots(), object()
    assert slots.take(build, 8) and not slots.take(build, 8)
    free[0] = EACH
    assert slots.take(build, 8)


def test_who_waits_for_a_slot_gets_the_one_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "free_memory", lambda: None)
    slots, build = Slots(), object()
    running: list[int] = []
    most = 0

    def one() -> None:
        nonlocal most
        with slots.one(build, 2):
            running.append(0)
            most = max(most, len(running))
            time.sleep(0.01)
            running.pop()

    threads = [threading.Thread(target=one) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(10)
    assert most == 2 and not any(t.is_alive() for t in threads) and slots.take(build, 1)


@pytest.mark.parametrize(
    ("free", "bound"), [(None, 0), (0, 2 * EACH), (EACH, 2 * EACH), (16 * EACH, 4 * EACH)]
)
def test_compilers_share_what_is_free(
    free: int | None, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "free_memory", lambda: free)
    assert memory_bound(4) == bound
