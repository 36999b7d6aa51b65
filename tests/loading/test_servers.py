"""Loaded programs as servers have them: many threads, many calls, many loads."""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from package_cases import CASES
from torch.export import Dim

import litz
from benchmarks.soak import Wide
from litz import PackageError


@pytest.fixture(scope="module", autouse=True)
def what_others_left_is_not_looked_at() -> None:
    """Each collection goes through a million objects of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("servers") / "wide.litz"
    x = torch.randn(1200, 64)  # what is large here goes through the pool
    litz.package(Wide(), path, (x,), dynamic_shapes=({0: Dim("b", max=4096)},))
    return path


def at_once(count: int, run: Callable[[int], None]) -> None:
    """Run something in many threads; an error in one is an error here."""
    errors: list[BaseException] = []

    def guarded(n: int) -> None:
        try:
            run(n)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors


def held() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("rounds", [3, pytest.param(300, marks=pytest.mark.slow)])
def test_threads_call_one_program_at_once(wide: Path, rounds: int) -> None:
    """Each with sizes of its own, small and large, while one replaces constants by their equals."""
    program = litz.load(wide)
    sizes = (1, 3, 64, 1500)
    inputs = [torch.randn(n, 64) for n in sizes]
    wanted = [program(x) for x in inputs]
    same = {name: x.clone() for name, x in program.constants.items()}

    def run(n: int) -> None:
        for k in range(rounds):
            at = (n + k) % len(sizes)
            for mine, theirs in zip(program(inputs[at]), wanted[at], strict=True):
                assert torch.equal(mine, theirs), (n, k)
            if n == 0:
                program.update_constants(same)
            with pytest.raises(PackageError):
                program(inputs[at].double())

    at_once(8, run)


@pytest.mark.parametrize("gradients", [False, True])
def test_autocast_changes_nothing_and_gradients_stay_as_they_were(
    wide: Path, gradients: bool
) -> None:
    program, x = litz.load(wide), torch.randn(3, 64, requires_grad=True)
    wanted = program(x)
    with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16):
        found = program(x)
        assert torch.is_grad_enabled() == gradients and torch.is_autocast_enabled("cpu")
        with pytest.raises(PackageError):
            program(x.double())
        assert torch.is_grad_enabled() == gradients and torch.is_autocast_enabled("cpu")
    assert all(map(torch.equal, found, wanted)) and not any(y.requires_grad for y in found)


@pytest.mark.parametrize("calls", [320, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_calls_leave_nothing_behind(wide: Path, calls: int) -> None:
    program = litz.load(wide)
    x, large = torch.randn(2, 64), torch.randn(2000, 64)

    def run(n: int) -> None:
        for k in range(calls // 32):
            program(large if k % 250 == n else x)

    def turns(count: int) -> int:
        """The most held behind a turn: the C library's share for a thread comes and goes."""
        most = 0
        for _ in range(count):
            at_once(4, run)
            most = max(most, held())
        return most

    before, objects = turns(4), len(gc.get_objects())
    assert turns(4) - before < 32 << 20
    assert len(gc.get_objects()) - objects < 1000


def test_loading_again_and_again_leaves_nothing_behind(wide: Path) -> None:
    def load(count: int) -> tuple[int, int]:
        for _ in range(count):
            litz.load(wide)(torch.ones(1, 64))
        return held(), len(Path("/proc/self/maps").read_text().splitlines())

    load(20)
    counts = [load(1), load(100), load(100)]
    # What leaks grows each time; a process that has run other tests may grow once.
    grown = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(counts)]
    assert min(size for size, _ in grown) < 8 << 20 and min(maps for _, maps in grown) < 20


def test_buffers_belong_to_one_load(tmp_path: Path) -> None:
    case = CASES["writes"]
    (args, kwargs), *_ = case.calls()
    litz.package(case.make(), tmp_path / "w.litz", args, kwargs, dynamic_shapes=case.shapes)
    programs: list[Any] = [litz.load(tmp_path / "w.litz") for _ in range(3)]

    def run(n: int) -> None:
        for _ in range(20 * n):
            programs[n](torch.ones(1, 4), pair=(torch.ones(1, 4), torch.ones(3)))

    at_once(3, run)
    assert [p.constants["seen"].tolist() for p in programs] == [[20.0 * n] * 4 for n in range(3)]
