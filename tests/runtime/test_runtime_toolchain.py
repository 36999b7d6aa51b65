from __future__ import annotations

import dataclasses
import gc
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from litz.errors import OptionError, RefusedSourceError, ToolchainError
from litz.runtime.cache import Cache
from litz.runtime.cpu import cpu_flags, detect_isa
from litz.runtime.native import Library
from litz.targets.cpp import toolchain as module
from litz.targets.cpp.toolchain import (
    SourceUnit,
    Toolchain,
    build,
    find_toolchain,
    runtime_unit,
    submit,
)
from tests.runtime import kernels


def counting_compiler(folder: Path) -> tuple[Path, Path]:
    """A g++ that notes each compilation in a file."""
    log = folder / "log"
    script = folder / "g++"
    script.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *" -c "*) echo "$$" >> {log};; esac\n'
        f'exec {find_toolchain().cxx[0]} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script, log


def compilations(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_what_is_found(toolchain: Toolchain) -> None:
    assert Path(toolchain.cxx[0]).is_file()
    assert toolchain.lanes_f32 == {"generic": 4, "neon": 4, "avx2": 8, "avx512": 16}[toolchain.isa]
    assert find_toolchain() == toolchain
    assert hash(find_toolchain()) == hash(toolchain)


def test_flags_keep_special_values(toolchain: Toolchain) -> None:
    forbidden = {"-ffast-math", "-Ofast", "-ffinite-math-only", "-fno-signed-zeros"}
    forbidden |= {"-funsafe-math-optimizations", "-fassociative-math", "-freciprocal-math"}
    assert not forbidden & set(toolchain.flags)
    assert "-ffp-contract=off" in toolchain.flags
    assert "-march=native" not in toolchain.flags


def test_instruction_sets_by_name(cache: Cache) -> None:
    assert detect_isa("avx2").lanes_f32 == 8
    assert detect_isa("generic").flags == ()
    with pytest.raises(OptionError, match="avx2"):
        detect_isa("avx1024")
    native = detect_isa()
    assert detect_isa(native.name) == native
    # Code that gathers needs no ability: it is only slower on other processors.
    quick = native.name == "avx512" and "avx512_fp16" in cpu_flags()
    assert ("-DLITZ_GATHERS" in native.flags) == quick and "avx512_fp16" not in native.features
    keys = {
        module.unit_key(SourceUnit("x", kernels.ADD), find_toolchain(isa=i))
        for i in ("generic", "avx2", "avx512")
    }
    assert len(keys) == 3


@pytest.mark.parametrize("isa", ["generic", None])
def test_every_instruction_set_builds(cache: Cache, isa: str | None) -> None:
    (path,) = build([SourceUnit("add", kernels.ADD)], find_toolchain(isa=isa), cache)
    assert Library(path).function("add").address


def test_the_answers_are_kept(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_toolchain(cache=cache)
    monkeypatch.setattr(module, "_ask_all", lambda cxx: pytest.fail("asked again"))
    assert find_toolchain(cache=cache) == first


def test_a_wrapper_is_asked_each_time(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "my-ccache"
    wrapper.write_text(f'#!/bin/sh\nexec {find_toolchain().cxx[0]} "$@"\n')
    wrapper.chmod(0o755)
    found = find_toolchain(str(wrapper), cache=cache)
    assert found.version == find_toolchain().version
    assert not (cache.root / "v1" / "toolchain").exists()


def test_arguments_of_the_compiler_stand_in_the_key() -> None:
    unit = SourceUnit("x", kernels.ADD)
    plain = find_toolchain().cxx[0]
    assert module.unit_key(unit, find_toolchain(plain)) == module.unit_key(unit, find_toolchain())
    with_more = find_toolchain(f"{plain} -DEXTRA")
    assert module.unit_key(unit, with_more) != module.unit_key(unit, find_toolchain())


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolchainError, match=r"g\+\+.*Install one.*LITZ_CXX"):
        find_toolchain()
    with pytest.raises(ToolchainError, match="'nosuch'.*not found"):
        find_toolchain("nosuch")
    monkeypatch.setenv("CXX", "fromenv")
    with pytest.raises(ToolchainError, match="'fromenv'.*not found"):
        find_toolchain()


def test_a_compiler_that_does_not_run(tmp_path: Path) -> None:
    bad = tmp_path / "g++"
    bad.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
    bad.chmod(0o755)
    with pytest.raises(ToolchainError, match="does not run: out of order"):
        find_toolchain(str(bad))


def test_a_compiler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "g++"
    bad.write_text("#!/bin/sh\nexec sleep 60\n")
    bad.chmod(0o755)
    monkeypatch.setattr(module, "_ASK_SECONDS", 0.2)
    with pytest.raises(ToolchainError, match="does not run.*timed out"):
        find_toolchain(str(bad))


def test_machines_are_told_apart_in_the_key(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = SourceUnit("x", kernels.ADD)
    here = module.unit_key(unit, toolchain)
    monkeypatch.setattr(module.platform, "machine", lambda: "another")
    assert module.unit_key(unit, toolchain) != here


def test_a_refused_source(toolchain: Toolchain, cache: Cache) -> None:
    with pytest.raises(ToolchainError) as caught:
        build([SourceUnit("kernel 7", kernels.BROKEN)], toolchain, cache)
    message = str(caught.value)
    assert "kernel 7" in message and "nosuchname" in message
    (line,) = (line for line in message.splitlines() if line.startswith("  source: "))
    assert Path(line.removeprefix("  source: ")).read_text() == kernels.BROKEN
    assert list((cache.root / "v1" / "tmp").iterdir()) == []


def test_a_refused_source_among_good_ones(toolchain: Toolchain, cache: Cache) -> None:
    units = [SourceUnit(f"n{i}", kernels.numbered(i)) for i in range(3)]
    with pytest.raises(ToolchainError, match="nosuchname"):
        build([*units, SourceUnit("bad", kernels.BROKEN)], toolchain, cache)
    assert len(build(units, toolchain, cache)) == 3


def test_a_link_error_is_reported(toolchain: Toolchain, cache: Cache) -> None:
    bad = dataclasses.replace(toolchain, link_tail=("/nonexistent/lib.a",))
    with pytest.raises(ToolchainError, match=r"nonexistent/lib\.a"):
        build([SourceUnit("x", kernels.ADD)], bad, cache)


def test_units_are_compiled_once(tmp_path: Path, cache: Cache) -> None:
    compiler, log = counting_compiler(tmp_path)
    toolchain = find_toolchain(str(compiler))
    units = [SourceUnit("a", kernels.ADD), SourceUnit("g", kernels.GATHER)]
    handle = submit([*units, SourceUnit("same as a", kernels.ADD)], toolchain, cache)
    assert handle.compiled == 2
    first = handle.wait()
    assert len(first) == 3 and first[0] == first[2] != first[1]
    assert compilations(log) == 2
    again = submit(units, toolchain, Cache(cache.root))
    assert again.compiled == 0
    assert again.wait() == first[:2]
    assert compilations(log) == 2


def test_a_damaged_object_is_compiled_again(toolchain: Toolchain, cache: Cache) -> None:
    unit = SourceUnit("add", kernels.ADD)
    (path,) = build([unit], toolchain, cache)
    whole = path.read_bytes()
    path.write_bytes(whole[:3000])
    handle = submit([unit], toolchain, cache)
    assert handle.compiled == 1
    assert handle.wait() == [path]
    assert path.read_bytes() == whole
    assert Library(path).function("add").address


def test_headers_stand_in_the_key(
    toolchain: Toolchain, tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INCLUDE", tmp_path / "include")
    header = tmp_path / "include" / "litz" / "answer.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define ANSWER 41\n")
    unit = SourceUnit("x", '#include <litz/answer.h>\nextern "C" { int answer = ANSWER; }\n')
    (first,) = build([unit], toolchain, cache)
    header.write_text("#define ANSWER 42\n#define MORE\n")
    (second,) = build([unit], toolchain, cache)
    assert first != second


def test_a_hit_in_another_process(tmp_path: Path, cache: Cache) -> None:
    compiler, log = counting_compiler(tmp_path)
    toolchain = find_toolchain(str(compiler))
    (path,) = build([SourceUnit("add", kernels.ADD)], toolchain, cache)
    program = (
        "import sys; from pathlib import Path\n"
        "from litz.runtime.cache import Cache\n"
        "from litz.targets.cpp.toolchain import SourceUnit, build, find_toolchain\n"
        "source = Path(sys.argv[3]).read_text()\n"
        "print(build([SourceUnit('add', source)], find_toolchain(sys.argv[1]), "
        "Cache(sys.argv[2]))[0])\n"
    )
    source = tmp_path / "add.cpp"
    source.write_text(kernels.ADD)
    done = subprocess.run(
        [sys.executable, "-c", program, str(compiler), str(cache.root), str(source)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert done.stdout.strip() == str(path)
    assert compilations(log) == 1


def test_many_processes_build_the_same(toolchain: Toolchain, cache: Cache) -> None:
    program = (
        "import ctypes, os, sys; sys.path.insert(0, sys.argv[2])\n"
        "from tests.runtime import kernels\n"
        "from litz.runtime.cache import Cache\n"
        "from litz.targets.cpp.toolchain import SourceUnit, build, find_toolchain\n"
        "units = [SourceUnit(str(i), kernels.numbered(i)) for i in range(3)]\n"
        # Forked with everything imported, so that they arrive together.
        "parent = os.fork() and os.fork()\n"
        "for i, path in enumerate(build(units, find_toolchain(), Cache(sys.argv[1]))):\n"
        "    out = ctypes.c_int64(-1)\n"
        "    table = (ctypes.c_void_p * 1)(ctypes.addressof(out))\n"
        "    ctypes.CDLL(str(path)).numbered(table, None)\n"
        "    assert out.value == i\n"
        "if parent: assert {os.wait()[1], os.wait()[1]} == {0}\n"
    )
    here = str(Path(__file__).parents[2])
    run = subprocess.run([sys.executable, "-c", program, str(cache.root), here], timeout=200)
    assert run.returncode == 0
    assert list((cache.root / "v1" / "tmp").iterdir()) == []


def test_submit_returns_at_once_and_keeps_to_its_jobs(tmp_path: Path, cache: Cache) -> None:
    slow = tmp_path / "g++"
    real = find_toolchain().cxx[0]
    slow.write_text(
        '#!/bin/sh\ncase "$*" in *" -c "*)\n'
        f"  echo start >> {tmp_path}/log; sleep 0.2; echo end >> {tmp_path}/log;; esac\n"
        f'exec {real} "$@"\n'
    )
    slow.chmod(0o755)
    toolchain = find_toolchain(str(slow))
    units = [SourceUnit(str(i), kernels.numbered(i)) for i in range(5)]
    began = time.perf_counter()
    handle = submit(units, toolchain, cache, jobs=2)
    assert time.perf_counter() - began < 0.2
    assert len(set(handle.wait())) == 5
    running = most = 0
    for line in (tmp_path / "log").read_text().splitlines():
        running += 1 if line == "start" else -1
        most = max(most, running)
    assert most == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count other memory")
def test_a_compiler_takes_no_more_memory_than_is_free(
    toolchain: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litz.targets.cpp.toolchain.memory_bound", lambda jobs: 96 << 20)
    double = "".join(f"#define A{i + 1} A{i} A{i}\n" for i in range(24))
    large = SourceUnit("large", f"#define A0 int f(int);\n{double}A24\n")
    with pytest.raises(ToolchainError, match="memory") as caught:
        build([large], toolchain, cache)
    assert not isinstance(caught.value, RefusedSourceError)
    assert build([SourceUnit("x", kernels.ADD)], toolchain, cache)


def test_cancel_stops_the_compilers(tmp_path: Path, cache: Cache) -> None:
    slow = tmp_path / "g++"
    slow.write_text(
        '#!/bin/sh\ncase "$*" in *" -c "*) exec sleep 60;; esac\n'
        f'exec {find_toolchain().cxx[0]} "$@"\n'
    )
    slow.chmod(0o755)
    handle = submit([SourceUnit("x", kernels.ADD)], find_toolchain(str(slow)), cache)
    began = time.perf_counter()
    handle.cancel()
    assert time.perf_counter() - began < 10
    assert list((cache.root / "v1" / "tmp").iterdir()) == []
    with pytest.raises(ToolchainError, match="cancelled"):
        handle.wait()


def test_compilers_end_with_their_process(tmp_path: Path, cache: Cache) -> None:
    """Whatever ends it: nobody is left to tell them."""
    slow = tmp_path / "g++"
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *" -c "*) echo $$ > {tmp_path}/pid; exec sleep 60;; esac\n'
        f'exec {find_toolchain().cxx[0]} "$@"\n'
    )
    slow.chmod(0o755)
    code = (
        "import os, pathlib, time; from litz.runtime.cache import Cache; "
        "from litz.targets.cpp.toolchain import SourceUnit, find_toolchain, submit; "
        f"t = find_toolchain({str(slow)!r}); c = Cache({str(cache.root)!r}); "
        "b = submit([SourceUnit('x', 'int x;')], t, c); "
        f"p = pathlib.Path({str(tmp_path / 'pid')!r})\n"
        "while not p.exists() or not p.read_text(): time.sleep(0.01)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    pid, until = int((tmp_path / "pid").read_text()), time.monotonic() + 20
    while running(pid):
        assert time.monotonic() < until, "a compiler is left"
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether a process is there, and not only its exit status."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_leaves_the_compilers_alone(toolchain: Toolchain, cache: Cache) -> None:
    handle = submit([SourceUnit("x", kernels.ADD)], toolchain, cache)
    child = os.fork()
    if child == 0:
        del handle
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    (path,) = handle.wait()
    assert Library(path).function("add").address


def test_a_cache_that_cannot_be_written_still_builds(toolchain: Toolchain, tmp_path: Path) -> None:
    root = tmp_path / "a file, not a folder"
    root.write_text("")
    cache = Cache(root)
    with pytest.warns(RuntimeWarning, match="cannot write its cache folder"):
        (path,) = build([SourceUnit("add", kernels.ADD)], toolchain, cache)
    assert Library(path).function("add").address
    assert submit([SourceUnit("add", kernels.ADD)], toolchain, cache).compiled == 0


def test_paths_with_spaces(toolchain: Toolchain, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "a folder's name $HOME")
    (path,) = build([runtime_unit()], toolchain, cache)
    assert Library(path).function("litz_run_segment").address
