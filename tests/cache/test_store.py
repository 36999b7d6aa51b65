"""A graph that a process meets again: no stage runs, the results are the same to the bit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from counted import said, started

import litz
from litz import compiler
from litz.cache import store
from litz.compiler import compile_graph
from litz.options import make_options
from litz.runtime.cache import Cache
from litz.targets.tools import Tools

PROGRAM = """
import hashlib, os, sys, torch
from torch import nn

def digest(folder, **options):
    torch._dynamo.reset()
    os.environ["LITZ_CACHE_DIR"] = folder
    torch.manual_seed(0)
    body = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.5))
    x = torch.randn(4, 16)
    call = torch.compile(body, backend="litz", options=options)
    torch.manual_seed(1)
    results = []
    for _ in range(2):
        out = call(x)
        out.square().sum().backward()
        results += [out.detach(), *(p.grad for p in body.parameters())]
    with torch.no_grad():
        constant = lambda x: x.softmax(-1) + torch.tensor(2.5)
        results.append(torch.compile(constant, backend="litz", options=options)(x))
        torch._dynamo.reset()  # of another rank, and not dynamic
        image = torch.randn(2, 3, 8, 8)
        conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))
        results.append(torch.compile(conv, backend="litz", options=options)(image))
        results += [b.float() for b in conv.buffers()]
    digest = hashlib.sha256(b"".join(r.contiguous().numpy().tobytes() for r in results))
    print([tuple(r.stride()) for r in results], digest.hexdigest())

task, file, here, there = sys.argv[1:]
if task == "save":
    digest(here)
    digest(here, graph_cache=False)
    open(file, "wb").write(torch.compiler.save_cache_artifacts()[0])
else:
    os.environ["LITZ_CACHE_DIR"] = there
    torch.compile(nn.ReLU(), backend="litz")  # PyTorch does not know Litz before
    info = torch.compiler.load_cache_artifacts(open(file, "rb").read())
    assert len(info.artifacts["litz"]) > 8
    digest(there)
    digest(here)
print(len(compiled))
rooms = ("compiler", "lowering", "schedule", "kernel", "ir", "index", "verify", "regions.place")
found = [room for room in rooms if "litz." + room in sys.modules]
assert bool(found) == bool(compiled), found  # who compiles nothing imports no stage
"""


def built(folder: Path) -> set[str]:
    return {p.name for p in folder.glob("v1/cpp/*/*.so")}


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    """Nor where another folder got PyTorch's bundle of caches."""
    here, there = tmp_path / "here", tmp_path / "there"
    places = [str(tmp_path / "bundle"), str(here), str(there)]
    first, without, made = said(started(here, PROGRAM, "save", *places)).splitlines()
    assert first == without and made == "8"
    loaded, again, made = said(started(here, PROGRAM, "load", *places)).splitlines()
    assert (loaded, again, made) == (first, first, "0")
    assert built(there) == built(here) and built(here)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a graph went through the stages."""
    found: list[int] = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        found.append(1)
        return compile_graph(*args, **kwargs)

    monkeypatch.setattr(compiler, "compile_graph", counting)
    return found


def run(folder: Path, **options: Any) -> torch.Tensor:
    torch._dynamo.reset()
    given = {"cache_dir": str(folder), "check_calls": False, **options}
    Tools(make_options(given)).cache.recent.clear()  # as in another process
    for program in folder.glob("v1/program/*/*"):
        program.unlink()  # what follows is of graphs
    call = torch.compile(lambda x: x.softmax(-1) * 3, backend="litz", options=given)
    x = torch.arange(24.0).view(4, 6)
    out: torch.Tensor = call(x)
    torch.testing.assert_close(out, x.softmax(-1) * 3)
    return out


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("v1/graph/*/*.litz"))


def test_damaged_and_foreign_entries_are_misses(tmp_path: Path, count: list[int]) -> None:
    run(tmp_path)
    run(tmp_path)
    assert len(count) == 1
    (entry,) = entries(tmp_path)
    whole, key, cache = entry.read_bytes(), entry.stem, Cache(tmp_path)
    body = cache.get(store.GRAPH, key, ".litz")
    assert body is not None and store.load(cache, key) is not None
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for n, damaged in enumerate((b"", whole[:50], whole[:-1], bytes(flipped), b"litz" * 100)):
        entry.write_bytes(damaged)
        run(tmp_path)
        assert len(count) == n + 2 and entry.read_bytes() == whole
    # Sealed well, and yet not what the key stands for.
    other = "0" * 40
    for content in (body[:-1], body + body, body[8:], b"x" * 100, b"", bytes(8) + body):
        cache.put(store.GRAPH, other, content, ".litz")
        assert store.load(cache, other) is None
    place = cache.put(store.GRAPH, other, body, ".litz")
    place.write_bytes(whole)  # under another's name
    assert store.load(cache, other) is None
    cache.put(store.GRAPH, other, body, ".litz")
    assert store.load(cache, other) is not None


def test_a_hit_is_told(tmp_path: Path, count: list[int], caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path)
    with caplog.at_level(logging.INFO, logger="litz"):
        run(tmp_path)
    assert any("found in the cache" in r.getMessage() for r in caplog.records)
    with caplog.at_level(logging.INFO, logger="litz"):
        run(tmp_path, check_calls=True)
    assert any("not cached: the option 'check_calls'" in r.getMessage() for r in caplog.records)


def test_kernels_that_went_are_built_again(tmp_path: Path, count: list[int]) -> None:
    first = run(tmp_path)
    for path in tmp_path.glob("v1/*/*/*"):
        if path.suffix != ".litz":
            path.unlink()
    assert torch.equal(run(tmp_path), first) and len(count) == 1


def test_who_looks_at_stages_gets_them(tmp_path: Path, count: list[int]) -> None:
    run(tmp_path)
    torch._dynamo.reset()
    options = {"cache_dir": str(tmp_path), "check_calls": False}
    report = litz.explain(
        lambda x: x.softmax(-1) * 3, torch.arange(24.0).view(4, 6), options=options
    )
    assert report.kernels and len(count) == 2
    run(tmp_path, graph_cache=False)
    assert len(count) == 3 and len(entries(tmp_path)) == 1


def test_what_writes_its_inputs_does_so_from_the_cache(tmp_path: Path, count: list[int]) -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    options = {"cache_dir": str(tmp_path), "check_calls": False}
    for _ in range(2):
        torch._dynamo.reset()
        x = torch.ones(5)
        call = torch.compile(add, backend="litz", options=options)
        assert torch.equal(call(x, torch.ones(5)), torch.full((5,), 4.0))
        assert torch.equal(x, torch.full((5,), 2.0))
    assert len(count) == 1
    # Two parts of one memory.
    torch._dynamo.reset()
    x = torch.ones(6)
    call = torch.compile(add, backend="litz", options=options)
    expected = torch.ones(6)
    wanted = add(expected[:3], expected[3:])
    assert torch.equal(call(x[:3], x[3:]), wanted) and torch.equal(x, expected)
