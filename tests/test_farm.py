"""Workers that do not come back, and what is left of a run that ended early."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.farm import Farm, Lost, Row, append, lines


class Work(NamedTuple):
    number: int
    only: int | None = None


# 2 hangs with a child of its own, 4 is killed as by a fault of memory, 6 fails in eager; none heeds
# that its input has ended.
WORKER = """
import json, os, signal, subprocess, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in iter(sys.stdin.readline, None):
    if not line:
        time.sleep(600)
    number, only = json.loads(line)
    stage = "eager" if number == 6 else "litz"
    print(json.dumps({"stage": f"{stage} 1:{number}"}), flush=True)
    if number == 2:
        child = subprocess.Popen(["sleep", "600"])
        print(json.dumps({"child": child.pid}), flush=True)
        time.sleep(600)
    if number in (4, 6) and only in (None, 1):
        os.kill(os.getpid(), signal.SIGSEGV)
    print(json.dumps({"done": True, "count": 1}), flush=True)
"""


def command_of(pid: int) -> bytes:
    """Empty of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_run_ends_whatever_its_workers_do() -> None:
    heard: list[tuple[Work, Row]] = []
    gone: list[Lost[Work]] = []

    def lost(what: Lost[Work]) -> list[Work]:
        gone.append(what)
        return [Work(4, 0), Work(4, 1)] if what.work == Work(4) else []

    farm = Farm(
        [sys.executable, "-c", WORKER],
        (Work(n) for n in range(9)),
        3,
        lambda work, row: heard.append((work, row)),
        lost,
        limit=1.0,
    )
    begin = time.monotonic()
    assert farm.run()
    assert time.monotonic() - begin < 20
    done = {w for w, row in heard if "count" in row}
    assert done == {*(Work(n) for n in (0, 1, 3, 5, 7, 8)), Work(4, 0)}
    why = {x.work: (x.stage, x.why.partition(":")[0]) for x in gone}
    assert why[Work(4)] == why[Work(4, 1)] == ("litz 1:4", "status -11")
    assert why[Work(6)] == ("eager 1:6", "status -11")
    assert why[Work(2)][0] == "litz 1:2" and why[Work(2)][1].startswith("no end after")
    assert len(gone) == 4
    (child,) = (row["child"] for _, row in heard if "child" in row)
    until = time.monotonic() + 5  # it is killed, and ends when it is next run
    while command_of(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not command_of(child)


def test_a_run_ends_in_time() -> None:
    farm = Farm(
        [sys.executable, "-c", WORKER],
        (Work(2) for _ in range(100)),
        2,
        lambda work, row: None,
        lambda what: [],
        seconds=2.0,
        grace=0.5,
    )
    begin = time.monotonic()
    assert not farm.run()
    assert farm.unfinished == [Work(2)] * 2
    assert time.monotonic() - begin < 10


def test_workers_that_never_start() -> None:
    farm = Farm(
        [sys.executable, "-c", "raise SystemExit(3)"],
        (Work(n) for n in range(100)),
        2,
        lambda work, row: None,
        lambda what: [],
    )
    assert not farm.run() and farm.broken


# Puts 1 back once, leaves after 2, and says how many pieces it has done; 3 ends it the first time.
LEAVING = """
import json, sys
from tests.farm import serve, speaker
say = speaker()
count = 0
def answer(work):
    global count
    count += 1
    print("not JSON")
    if work["n"] == 3 and "again" not in work:
        print("some Error", file=sys.stderr, flush=True)
        raise SystemExit(5)
    if work["n"] == 2:
        say({"n": 2, "done": True, "last": True})
        sys.stdin.readline()
    if work["n"] == 1 and "again" not in work:
        return {"more": {**work, "again": 1}}
    return {"n": work["n"], "count": count}
serve(say, answer)
"""


def test_work_that_is_put_back_and_workers_that_leave() -> None:
    heard: dict[int, Row] = {}
    why: list[str] = []

    def lost(what: Lost[Row]) -> list[Row]:
        why.append(what.why)
        return [{**what.work, "again": 1}]

    farm = Farm(
        [sys.executable, "-c", LEAVING],
        ({"n": n} for n in range(6)),
        1,
        lambda work, row: heard.update({work["n"]: row}),
        lost,
        limit=30.0,
    )
    assert farm.run()
    assert set(heard) == set(range(6))
    assert why == ["status 5: some Error"]
    assert heard[1]["count"] == 3  # 0, 1, and 1 again
    assert heard[3]["count"] == 1  # by a fresh worker


def test_results_that_were_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert lines(path) == []
    append(path, {"a": 1})
    with path.open("a") as f:
        f.write('{"b": ')
    append(path, {"c": 2})
    assert lines(path) == [{"a": 1}, {"c": 2}]
