"""``litz doctor``: each check of machines that lack something, and the command on this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from litz.options import Options
from litz.runtime.cache import Cache
from litz.runtime.cpu import Isa, detect_isa
from litz.runtime.triton.job import KernelJob
from litz.runtime.triton.pool import Triton
from litz.targets.cpp.toolchain import INSTALL, Toolchain
from litz.tools import machine
from litz.tools.doctor import CHECKS, Check, check_compiled, examine, look_here, refused, table
from litz.tools.machine import Compiled, Folder, Machine, Ran

GXX = Toolchain(("/usr/bin/g++",), "g++ 12.2.0", "avx2", 8, (), (), ())
AVX2 = Isa("avx2", 8)
H200 = "NVIDIA H200 (9.0, 139 GiB)"
WELL = Machine(
    python="3.11.7",
    backend=True,
    needs={"litz": ("torch>=2.11", "triton>=3.6; extra == 'triton'"), "torch": ("triton==3.7.1;",)},
    torch="2.13.0+cpu",
    threads=4,
    triton=Triton("folder", "3.7.1", "build"),
    isa=AVX2,
    best=AVX2,
    safe=True,
    compiler=GXX,
    ran=Ran(0.1, 4),
    executor=Path("litz_runtime.so"),
    openmp=("/torch/lib/libgomp.so.1",),
    gpus=(),
    driver=None,
    built=0.5,
    folder=Folder("/home/me/.cache/litz", 3 << 20, 1 << 30, True, mode=0o755),
    environment={},
    compiled={"cpu": Compiled(1.0, 1e-7, 2e-7)},
)
GPU: dict[str, Any] = {"gpus": (H200,), "driver": 12040}
RIGHT = Compiled(1.0, 1e-7, 2e-7)


def found(m: Machine, name: str) -> Check:
    (check,) = (c for c in examine(m) if c.name == name)
    return check


def test_a_machine_that_has_all() -> None:
    for m in (WELL, replace(WELL, **GPU, compiled={"cpu": RIGHT, "cuda": RIGHT})):
        checks = examine(m)
        assert len(checks) == len(CHECKS) + len(m.compiled)
        assert all(c.state == "ok" and c.found and not c.mend for c in checks)


@pytest.mark.parametrize(
    "changed, name, state, said, mend",
    [
        ({"backend": False}, "litz", "missing", "not installed", "pip install -e"),
        ({"torch": "2.10.1"}, "torch", "missing", "older than 2.11", "'torch>=2.11'"),
        ({"triton": "no"}, "triton", "ok", "CPUs do without it", ""),
        ({"triton": "no", **GPU}, "triton", "missing", "no", "'triton==3.7.1'"),
        ({"triton": Triton("", "3.5.0", "")}, "triton", "warning", "older than 3.6", "3.7.1"),
        ({"triton": Triton("", "", "")}, "triton", "warning", "unknown version, but", "3.7.1"),
        ({"triton": Triton("", "3.6.0", "")}, "triton", "warning", "wants 3.7.1", "3.7.1"),
        ({"compiler": f"found none. {INSTALL}"}, "C++ compiler", "missing", "found none", "g++"),
        ({"compiler": "none", **GPU}, "C++ compiler", "warning", "none", "g++"),
        ({"ran": "refused"}, "C++ compiler", "missing", "not make kernels: refused", "LITZ_CXX"),
        ({"ran": None}, "C++ compiler", "ok", "was not tried", ""),
        (
            {"executor": "no such function"},
            "native executor",
            "warning",
            "Python runs",
            "g++",
        ),
        ({"isa": "unknown"}, "instruction set", "missing", "unknown", "unset LITZ_ISA"),
        ({"isa": Isa("generic", 4)}, "instruction set", "warning", "has avx2", "unset LITZ_ISA"),
        (
            {"isa": Isa("avx512", 16), "safe": False},
            "instruction set",
            "missing",
            "has avx2",
            "unset LITZ_ISA",
        ),
        ({"openmp": ("/a/libgomp.so", "/b/libomp.so")}, "OpenMP", "warning", "/b/libomp.so", "LD_"),
        ({"ran": Ran(0.1, 1)}, "OpenMP", "warning", "4 threads, kernels on 1", "LITZ_CXX=g++"),
        ({"ran": None}, "OpenMP", "ok", "libgomp", ""),
        ({"driver": "failed with 999"}, "GPUs", "missing", "failed with 999", "nvidia-smi"),
        ({"driver": 12040}, "GPUs", "warning", "CUDA 12.4, but torch 2.13.0+cpu", "pip install"),
        ({"gpus": (H200,)}, "GPUs", "missing", "no CUDA driver", "LD_LIBRARY_PATH"),
        (GPU, "GPUs", "ok", "CUDA 12.4", ""),
        ({"built": None}, "Triton kernel", "ok", "without Triton", ""),
        ({"built": "broken"}, "Triton kernel", "warning", "broken", "pip install"),
        ({"built": "broken", **GPU}, "Triton kernel", "missing", "broken", "pip install"),
        ({"folder": None}, "cache folder", "warning", "no home", "LITZ_CACHE_DIR"),
        (
            {"folder": Folder("/x", 0, 0, False)},
            "cache folder",
            "warning",
            "without a limit; it cannot be written",
            "LITZ_CACHE_DIR",
        ),
        (
            {"folder": Folder("/x", 0, 1 << 20, True, False)},
            "cache folder",
            "warning",
            "another user's",
            "LITZ_CACHE_DIR",
        ),
        (
            {"folder": Folder("/x y", 0, 0, True, True, 0o775)},
            "cache folder",
            "warning",
            "others can write",
            "chmod -R go-w '/x y'",
        ),
        (
            {"environment": {"LITZ_FUEl": "1"}},
            "environment",
            "warning",
            "did you mean LITZ_FUEL?",
            "unset LITZ_FUEl",
        ),
        (
            {"environment": {"LITZ_JOBS": "2", "LITZ_MODE": "fast", "LITZ_X": ""}},
            "environment",
            "missing",
            "LITZ_JOBS=2\nLITZ_MODE=fast (option 'mode' has no value",
            "unset LITZ_MODE LITZ_X",
        ),
    ],
)
def test_a_machine_that_lacks(
    changed: dict[str, Any], name: str, state: str, said: str, mend: str
) -> None:
    check = found(replace(WELL, **changed), name)
    assert check.state == state
    assert said in check.found
    assert mend in check.mend and bool(check.mend) == (state != "ok")


@pytest.mark.parametrize(
    "made, gpu, states, said",
    [
        ("OptionError: no", (), ("missing",), "OptionError: no"),
        (Compiled(1, 0, 0, "litz: found none"), (), ("missing",), "through ATen: found none"),
        (Compiled(1, 0, 0, "none"), (H200,), ("warning", "missing"), "through ATen: none"),
        (Compiled(1, 1e-3, 1e-7), (), ("missing",), "WRONG: relative error 1.0e-03"),
    ],
)
def test_what_is_compiled(
    made: Compiled | str, gpu: tuple[str, ...], states: tuple[str, ...], said: str
) -> None:
    m = replace(WELL, gpus=gpu, compiled={"cpu": made, "cuda": made})
    for device, state in zip(m.compiled, states, strict=False):
        check = check_compiled(m, device)
        assert check.state == state and said in check.found and check.mend


def test_values_that_options_refuse() -> None:
    assert list(refused({"LITZ_JOBS": "many", "LITZ_FUEL": "3", "LITZ_SHOW": "plans"})) == [
        "LITZ_JOBS",
        "LITZ_SHOW",
    ]


def test_the_table_has_what_mends_below() -> None:
    checks = (Check("a", "ok", "one\ntwo"), Check("long", "missing", "no", "do it"))
    assert table(checks) == (
        "ok       a     one\n               two\nmissing  long  no\n               mend: do it"
    )


def test_the_cache_folder_as_it_lies(tmp_path: Path) -> None:
    at = tmp_path / "cache"
    options = Options(cache_dir=str(at), cache_size=1)
    assert machine._folder(options) == Folder(str(at), 0, 1 << 20, True)
    entry = at / "v1" / "cpp" / "ab" / "abc"
    entry.parent.mkdir(parents=True)
    entry.write_bytes(bytes(10))
    at.chmod(0o777)
    folder = machine._folder(options)
    assert folder is not None and folder.size == 10 and folder.mode & 0o022 == 0o022
    file = tmp_path / "file"
    file.touch()
    folder = machine._folder(Options(cache_dir=str(file)))
    assert folder is not None and not folder.writable


def test_what_the_processor_lacks_is_not_run() -> None:
    other = "avx512" if detect_isa().name == "neon" else "neon"
    m = machine.look(Options(isa=other), {})
    assert not m.safe and m.ran is None and "cpu" not in m.compiled
    assert found(m, "instruction set").state == "missing"


def test_an_unknown_instruction_set_says_nothing_of_the_compiler() -> None:
    m = machine.look(Options(isa="sse"), {})
    assert "unknown instruction set 'sse'" in found(m, "instruction set").found
    assert found(m, "C++ compiler").state == "ok"


def test_no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(machine.tempfile, "TemporaryDirectory", full)
    (check,) = look_here()
    assert check.name == "temporary folder" and "TMPDIR" in check.mend


def test_a_kernel_that_triton_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    bad = KernelJob("import nothing_such\n", "k", ())
    monkeypatch.setattr(machine, "TRITON", bad)
    assert "Triton refused" in str(machine._tried(lambda: machine._build(Cache(tmp_path), None)))


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command() -> None:
    before = os.times()
    done = run("litz.tools.doctor", "--json")
    after = os.times()
    # Not by the clock: other tests share the cores.
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    told = json.loads(done.stdout)
    assert told["ok"] == (done.returncode == 0)
    assert {c["name"]: c["state"] for c in told["checks"]}["torch.compile, cpu"] == "ok"
    assert set(told["checks"][0]) == {"name", "state", "found", "mend"}
    assert used < 10


def test_the_command_without_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    missing = {"LITZ_CXX": "nonesuch", "LITZ_CACHE_DIR": str(tmp_path / "file"), "LITZ_FUL": "1"}
    done = run("litz", "doctor", **missing)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    for words in (
        "'nonesuch' was not found",
        "apt install g++",
        "cannot be written",
        "did you mean LITZ_FUEL?",
        "runs through ATen",
    ):
        assert words in done.stdout


def test_the_command_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no such package')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = run("litz.tools.doctor", PYTHONPATH=path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stdout == (
        "missing  torch  cannot be imported: no such package\n"
        "                mend: pip install torch\n"
    )
