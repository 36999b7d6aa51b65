"""The native library that is built when the package is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hook(tmp_path: Path) -> Any:
    """``hatch_build.py`` in a checkout with what it needs and nothing else."""
    runtime = tmp_path / "src" / "litz" / "runtime"
    runtime.mkdir(parents=True)
    here = ROOT / "src" / "litz" / "runtime"
    shutil.copy(here / "shipped.py", runtime)
    shutil.copytree(here / "csrc", runtime / "csrc")
    shutil.copytree(here.parent / "native", runtime.parent / "native")
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    spec = importlib.util.spec_from_file_location("hook", tmp_path / "hatch_build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(hook: Any, version: str) -> tuple[dict[str, Any], list[str]]:
    """What the hook says of a wheel, and its warnings."""
    said: list[str] = []
    data: dict[str, Any] = {"force_include": {}}
    self = SimpleNamespace(app=SimpleNamespace(display_warning=said.append))
    hook.NativeLibrary.initialize(self, version, data)
    return data, said


def test_a_wheel_has_the_library(hook: Any) -> None:
    data, said = run(hook, "standard")
    assert not said and data["tag"].startswith("cp310-abi3-linux_") and not data["pure_python"]
    ((path, inside),) = data["force_include"].items()
    assert inside.startswith("litz/runtime/lib/litz_runtime.")
    library = ctypes.PyDLL(path)
    assert library.litz_program and library.litz_run_segment
    editable, _ = run(hook, "editable")
    assert editable == {"force_include": {}}


def test_without_a_compiler_the_wheel_is_pure(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    data, (said,) = run(hook, "standard")
    assert data == {"force_include": {}} and "no-such-compiler" in said
    monkeypatch.setenv("CXX", "false")
    assert "false failed" in run(hook, "standard")[1][0]


def test_a_library_of_older_sources_is_not_taken(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"  # writes an empty file
    compiler.write_text('#!/bin/sh\nfor out; do :; done\n: > "$out"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    first = hook.build()
    assert hook.build() == first
    source = hook.ROOT / "src" / "litz" / "runtime" / "csrc" / "litz_rt.cpp"
    source.write_text(source.read_text() + "// changed\n")
    spec = importlib.util.spec_from_file_location("shipped", hook.ROOT / hook.SHIPPED)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.shipped() is None
    second = module.build_library()
    assert second != first and module.shipped() == second and not first.exists()
