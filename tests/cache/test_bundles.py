"""``torch.compiler.save_cache_artifacts`` carries Litz's entries to where there are none."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from litz import entry
from litz.cache import portable, store
from litz.runtime import torch_private
from litz.runtime.cache import Cache, content_key

PROGRAM = """
import os, sys, torch
from litz import backend
from litz.targets.cpp import toolchain

compiled = []
inner = backend.compile_and_bind
def counting(*args, **kwargs):
    compiled.append(1)
    return inner(*args, **kwargs)
backend.compile_and_bind = counting

body = torch.compile(lambda x, w: (x * w).softmax(-1), backend="litz")
file = sys.argv[1]
if os.path.exists(file):
    info = torch.compiler.load_cache_artifacts(open(file, "rb").read())
    print(len(info.artifacts["litz"]), "loaded")
x = torch.arange(12.0).view(3, 4)
w = torch.linspace(-1, 1, 4).requires_grad_()
out = body(x, w)
out.square().sum().backward()
if not os.path.exists(file):
    data, info = torch.compiler.save_cache_artifacts()
    print(len(info.artifacts["litz"]), "saved")
    open(file, "wb").write(data)
print(len(compiled), out.tolist(), w.grad.tolist())
rooms = ("compiler", "lowering", "schedule", "kernel", "ir", "index", "verify")
found = [room for room in rooms if "litz." + room in sys.modules]
assert bool(found) == bool(compiled), found  # who compiles nothing imports no stage
"""


def in_process(folder: Path, file: Path) -> list[str]:
    given = {"LITZ_CACHE_DIR": str(folder), "LITZ_CHECK_CALLS": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)],
        env={**os.environ, **given, "LITZ_CHECK_IR": "0"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def kernels(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in folder.glob("v1/cpp/*/*.so")}


def test_a_bundle_is_found_by_a_process_with_a_folder_of_its_own(tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "bundle"
    saved, first = in_process(here, file)
    loaded, again = in_process(there, file)
    assert saved.split()[0] == loaded.split()[0] and loaded.endswith("loaded")
    count, _, results = first.partition(" ")
    assert int(count) == 2 and again == f"0 {results}"
    assert kernels(there) == kernels(here) and kernels(here)


def test_nothing_of_a_bundle_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "there"))
    key = content_key("something")
    good = Cache(tmp_path / "here").put("cpp", key, b"code", ".so").read_bytes()
    graph = Cache(tmp_path / "here").put("graph", key, b"no artifact", ".litz").read_bytes()
    bad = {
        f"../{key[:2]}/{key}.so": good,
        f"/cpp/{key[:2]}/{key}.so": good,
        f"cpp/{key[:2]}/{key[:2]}{'0' * 38}.so": good,  # another's name
        f"cpp/{key[:2]}/{key}": good,
        f"graph/{key[:2]}/{key}.litz": graph,
    }
    name = f"cpp/{key[:2]}/{key}.so"
    with caplog.at_level(logging.WARNING, logger="litz"):
        for other, data in bad.items():
            portable.arrived(other, data)
        portable.arrived(name, good[:-1])
    assert sum("passed over" in r.getMessage() for r in caplog.records) == len(bad) + 1
    assert not list((tmp_path / "there").rglob("*.*"))
    portable.arrived(name, good)
    assert Cache(tmp_path / "there").get("cpp", key, ".so") == b"code"
    assert store.load(Cache(tmp_path / "there"), key) is None


def test_a_pytorch_that_carries_no_other_caches(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert torch_private.bundled_entries("litz", portable.arrived) is None  # it is registered
    with caplog.at_level(logging.INFO, logger="litz"):
        entry._bundle_entries()
    assert any("litz cache export" in r.getMessage() for r in caplog.records)
    monkeypatch.delattr(torch.compiler._cache, "CacheArtifact")
    assert torch_private.bundled_entries("litz_other", portable.arrived) is None
