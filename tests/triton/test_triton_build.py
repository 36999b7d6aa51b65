"""Compiling kernels in workers: results, the cache, faults, and workers that die."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cubin import resources
from traces import data, trace
from triton_samples import ADD_JOB, altered

pytest.importorskip("triton.language")

from litz import backend  # noqa: E402
from litz.errors import RefusedSourceError, ToolchainError  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton import build as building  # noqa: E402
from litz.runtime.triton import worker  # noqa: E402
from litz.runtime.triton.build import build, job_key, numbered, submit  # noqa: E402
from litz.runtime.triton.job import Binary, KernelJob  # noqa: E402
from litz.runtime.triton.pool import (  # noqa: E402
    Pool,
    Triton,
    WorkerDied,
    find_triton,
    pool,
    worker_environment,
)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_workers_look_for_no_plugins_of_tritons_unless_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for given, found in (("", "1"), ("0", "0")):
        monkeypatch.delenv("TRITON_BACKENDS_IN_TREE", raising=False)
        if given:
            monkeypatch.setenv("TRITON_BACKENDS_IN_TREE", given)
        assert worker_environment.__wrapped__()["TRITON_BACKENDS_IN_TREE"] == found


def test_a_kernel_builds_without_a_gpu(cache: Cache) -> None:
    (binary,) = build([ADD_JOB], cache)
    assert binary.code[:4] == b"\x7fELF"
    assert binary.entry == "add"
    # Three pointers, one i32, and Triton's two pointers to scratch memory.
    assert binary.params == (8, 8, 8, 4, 8, 8)
    assert (binary.num_warps, binary.warp_size) == (4, 32)
    registers, local = resources(binary.code)
    assert 0 < registers < 256 and local == 0


def test_what_cuobjdump_says_of_registers(cache: Cache, tmp_path: Path) -> None:
    tool = Path(find_triton().folder) / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("no cuobjdump")
    # Few registers for a large block: the kernel has to spill.
    options = (("num_warps", 1), ("maxnreg", 24))
    jobs = [ADD_JOB, replace(ADD_JOB, constants=(("XBLOCK", 2048),), options=options)]
    for binary in build(jobs, cache):
        path = tmp_path / "kernel.cubin"
        path.write_bytes(binary.code)
        said = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True).stdout
        found = re.search(r"REG:(\d+) STACK:(\d+)", said)
        assert found is not None
        used = resources(binary.code)
        assert used == (int(found[1]), int(found[2]))
    assert used[1] > 0


def test_resources_of_anything_else_are_unknown() -> None:
    assert resources(b"") == (-1, -1)
    assert resources(b"\x7fELF\x02" + bytes(20)) == (-1, -1)
    assert resources(b"\x7fELF\x02" + b"\xff" * 500) == (-1, -1)


def test_divisible_arguments_make_wide_accesses(cache: Cache) -> None:
    even = replace(ADD_JOB, divisible=("a", "b", "out", "n"))
    plain, wide = build([replace(ADD_JOB, divisible=()), even], cache)
    assert plain.code != wide.code
    disassembler = Path(find_triton().folder) / "backends/nvidia/bin/nvdisasm"
    if not disassembler.exists():
        pytest.skip("no nvdisasm")
    assert "STG.E.128" in disassembled(disassembler, wide, cache.root)
    assert "STG.E.128" not in disassembled(disassembler, plain, cache.root)


def disassembled(tool: Path, binary: Binary, folder: Path) -> str:
    path = folder / "kernel.cubin"
    path.write_bytes(binary.code)
    return subprocess.run([tool, path], capture_output=True, text=True, check=True).stdout


COMPARE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from litz.runtime.triton import worker
from triton_samples import ADD_JOB as job
fn = worker.load(job)
attrs = {(fn.arg_names.index(name),): [["tt.divisibility", 16]] for name in job.divisible}
source = ASTSource(fn, dict(job.signature), dict(job.constants), attrs)
theirs = compile(source, target=GPUTarget(*job.target), options=dict(job.options))
mine = worker.compile_job(job)
assert mine.code == theirs.asm["cubin"]
assert (mine.entry, mine.shared) == (theirs.metadata.name, theirs.metadata.shared)
print("equal")
"""


def test_the_code_is_what_triton_compile_makes(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPARE], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "equal", done.stderr


def test_sizes_of_parameters(cache: Cache) -> None:
    types = ("i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "fp32", "fp64", "*bf16")
    names = [f"v{i}" for i in range(len(types))]
    lines = [f"    tl.store(out + {i}, {name})" for i, name in enumerate(names[:-1])]
    head = (
        f"import triton\nimport triton.language as tl\n@triton.jit\ndef k({', '.join(names)}, out):"
    )
    signature = (*zip(names, types, strict=True), ("out", "*fp64"))
    job = KernelJob("\n".join([head, *lines, ""]), "k", signature)
    (binary,) = build([job], cache)
    assert binary.params == (1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 8, 8, 8, 8)


def test_equal_jobs_compile_once(cache: Cache) -> None:
    other = replace(ADD_JOB, constants=(("XBLOCK", 256),))
    made = submit([ADD_JOB, other, ADD_JOB], cache, 2)
    assert made.compiled == 2
    first, second, third = made.wait()
    assert first == third != second
    again = submit([other, ADD_JOB], cache, 2)
    assert again.compiled == 0
    assert again.wait() == [second, first]


def test_another_process_finds_them(cache: Cache) -> None:
    build([ADD_JOB], cache)
    code = (
        "import sys; from litz.runtime.cache import Cache; "
        "from litz.runtime.triton.build import submit; from triton_samples import ADD_JOB; "
        f"b = submit([ADD_JOB], Cache({str(cache.root)!r})); b.wait(); "
        "print(b.compiled, 'torch' in sys.modules, 'triton' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "False", "False"], done.stderr


@pytest.mark.parametrize("damage", [b"", b"rubbish", b'{"format": "litz-binary-2"}\n'])
def test_damaged_entries_are_misses(cache: Cache, damage: bytes) -> None:
    (binary,) = build([ADD_JOB], cache)
    cache.put("triton", job_key(ADD_JOB), damage, ".bin")
    again = submit([ADD_JOB], cache)
    assert again.compiled == 1
    assert again.wait() == [binary]


def test_keys_cover_all_of_a_job() -> None:
    changes = [
        {"source": ADD_JOB.source + "\n"},
        {"constants": (("XBLOCK", 1024),)},
        {"divisible": ("a",)},
        {"options": (("num_warps", 8),)},
        {"target": ("cuda", 80, 32)},
        {"signature": tuple((n, t.replace("32", "64")) for n, t in ADD_JOB.signature)},
    ]
    keys = {job_key(replace(ADD_JOB, **c)) for c in changes}  # type: ignore[arg-type]
    assert len(keys | {job_key(ADD_JOB)}) == len(changes) + 1


def test_jobs_and_binaries_survive_the_wire() -> None:
    assert KernelJob.from_json(ADD_JOB.to_json()) == ADD_JOB
    binary = Binary(b"\n\x00{code", "k", (8, 4), 3, 8, 32, (16, 128), (0, 1))
    assert Binary.from_bytes(binary.to_bytes()) == binary
    for text in (b"", b"{}\n", b"[]\n", b'{"format": "litz-binary-2", "x": 1}\n'):
        with pytest.raises(ValueError):
            Binary.from_bytes(text)


# --- faults ---


def test_a_refused_kernel_is_shown_with_its_line(cache: Cache) -> None:
    bad = altered("tl.load(b + x, inside, other=0)", "nothing(b)")
    with pytest.raises(RefusedSourceError) as caught:
        build([ADD_JOB, bad], cache)
    text = str(caught.value)
    assert "refused the kernel add" in text and "nothing" in text
    marked = [line for line in text.splitlines() if line.startswith("> ")]
    assert len(marked) == 1 and "nothing(b)" in marked[0] and "10 |" in marked[0]
    assert "num_warps=4" in text and "a: *fp32" in text and "cuda:90:32" in text


def test_a_fault_in_a_device_function_marks_the_kernels_line(cache: Cache) -> None:
    bad = altered("tl.store(out + x, v, inside)", "tl.store(out + x, litz.sum(v, 7), inside)")
    with pytest.raises(RefusedSourceError) as caught:
        build([bad], cache)
    text = str(caught.value)
    (marked,) = (line for line in text.splitlines() if line.startswith("> "))
    assert "litz.sum(v, 7)" in marked
    assert "keep_dims" in text  # the line in the device function


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("def add(", "def add((", "SyntaxError"),
        ("import triton\n", "import nothing_of_this_name\n", "nothing_of_this_name"),
        ("@triton.jit\ndef add", "@triton.jit\ndef sub", "KeyError"),
        ("XBLOCK)\n    inside", "513)\n    inside", "power of 2"),
    ],
)
def test_other_faults(cache: Cache, old: str, new: str, words: str) -> None:
    with pytest.raises(RefusedSourceError, match=words):
        build([altered(old, new)], cache)
    # The worker goes on.
    assert build([ADD_JOB], cache)


def test_a_kernel_that_tritons_passes_break_is_built_for_other_warps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def breaks_below(job: KernelJob, options: dict[str, int]) -> Binary:
        tried.append(options["num_warps"])
        if tried[-1] < least:
            raise RuntimeError(said)
        return Binary(b"", job.name, (), 0, tried[-1])

    monkeypatch.setattr(worker, "compile_as", breaks_below)
    least, said = 8, "PassManager::run failed"
    assert worker.compile_job(ADD_JOB).num_warps == 8
    assert tried == [4, 2, 8]
    least = 16
    with pytest.raises(RuntimeError, match="PassManager"):
        worker.compile_job(ADD_JOB)
    assert sorted(tried[3:]) == [1, 2, 4, 8]
    said = "something else"
    with pytest.raises(RuntimeError, match="something else"):
        worker.compile_job(ADD_JOB)
    assert len(tried) == 8


def test_a_kernel_that_tritons_passes_break_hides_its_reductions(
    monkeypatch: pytest.MonkeyPatch, cache: Cache
) -> None:
    def breaks_in_the_open(job: KernelJob, options: dict[str, int]) -> Binary:
        if worker.HIDDEN not in job.source:
            raise RuntimeError("PassManager::run failed")
        return Binary(job.source.encode(), job.name, (), 0, options["num_warps"])

    monkeypatch.setattr(worker, "compile_as", breaks_in_the_open)
    jobs = [sum_job(dtype) for dtype in ("fp32", "fp64", "i32", "i64", "u8", "fp16")]
    hidden = [worker.compile_job(job) for job in jobs]
    assert {b.num_warps for b in hidden} == {2}
    for b in build(
        [replace(j, source=h.code.decode()) for j, h in zip(jobs, hidden, strict=True)], cache
    ):
        assert b.code[:4] == b"\x7fELF"


def sum_job(dtype: str) -> KernelJob:
    """The sum of a block, as the printer writes it."""
    source = """\
import triton
import triton.language as tl
from litz.runtime.triton import helpers as litz


@triton.jit
def total(b0, b1, RBLOCK: tl.constexpr):
    rindex = tl.arange(0, RBLOCK)[None, :]
    v0 = tl.load(b0 + (rindex))
    v1 = litz.sum(v0, 1)
    tl.store(b1 + (tl.zeros([1, 1], tl.int32) + (0)), v1)
"""
    types = (("b0", f"*{dtype}"), ("b1", f"*{dtype}"), ("RBLOCK", "constexpr"))
    return KernelJob(source, "total", types, (("RBLOCK", 64),), options=(("num_warps", 2),))


def test_unknown_arguments_and_options_are_refused(cache: Cache) -> None:
    for bad in (
        replace(ADD_JOB, divisible=("nobody",)),
        replace(ADD_JOB, options=(("num_ctas", 2),)),
        replace(ADD_JOB, signature=ADD_JOB.signature[1:]),
        replace(ADD_JOB, signature=(*ADD_JOB.signature[2::-1], *ADD_JOB.signature[3:])),
    ):
        with pytest.raises(RefusedSourceError):
            build([bad], cache)


def test_outcomes_are_of_each_kernel(cache: Cache) -> None:
    bad = altered("tl.load(b + x, inside, other=0)", "nothing(b)")
    made = submit([ADD_JOB, bad, ADD_JOB], cache)
    first, second, third = made.outcomes()
    assert isinstance(first, Binary) and first is third
    assert isinstance(second, RefusedSourceError)


KILL = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"


def test_a_worker_that_dies_is_replaced_once(cache: Cache, tmp_path: Path) -> None:
    mark = tmp_path / "seen"
    once = (
        f"import os, signal, pathlib\np = pathlib.Path({str(mark)!r})\n"
        "if not p.exists():\n    p.write_text('')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    survivor = replace(ADD_JOB, source=once + ADD_JOB.source)
    assert build([survivor], cache, 1)[0].entry == "add"
    assert mark.exists()


def test_a_worker_that_dies_twice_is_an_error(cache: Cache) -> None:
    words = "print('last words')\n"
    deadly = replace(ADD_JOB, source=words + "import sys\nsys.stdout.flush()\n" + KILL)
    with pytest.raises(ToolchainError, match="died of the kernel add, twice") as caught:
        build([deadly], cache, 1)
    assert "last words" in str(caught.value) and "signal 9" in str(caught.value)
    assert build([ADD_JOB], cache, 1)


def test_outcomes_name_what_the_compiler_died_of(cache: Cache) -> None:
    deadly = replace(ADD_JOB, source=KILL)
    first, second = submit([deadly, ADD_JOB], cache, 1).outcomes()
    assert isinstance(first, ToolchainError) and "died of the kernel add" in str(first)
    assert isinstance(second, Binary)


def test_a_worker_killed_while_idle(cache: Cache) -> None:
    own = Pool()
    own.grow(1)
    request = ADD_JOB.to_json().encode()
    assert own.submit("a", request, lambda answer, said: answer[:1]).result() == b"+"
    (pid,) = own.pids
    os.kill(pid, signal.SIGKILL)
    assert own.submit("b", request, lambda answer, said: answer[:1]).result() == b"+"
    assert own.pids != (pid,)
    own.close()


def test_what_is_printed_does_not_disturb(cache: Cache) -> None:
    noisy = replace(ADD_JOB, source="print('x' * 200000, flush=True)\n" + ADD_JOB.source)
    assert build([noisy], cache)[0].entry == "add"


# --- the pool ---


def test_a_closed_pool() -> None:
    own = Pool()
    own.grow(2)
    late = own.submit("slow", sleeping(30), lambda answer, said: answer)
    queued = [own.submit(i, sleeping(30), lambda answer, said: answer) for i in range(4)]
    while not late.running():
        time.sleep(0.01)
    pids = own.pids
    own.close()
    with pytest.raises(WorkerDied):
        late.result(20)
    assert any(q.cancelled() for q in queued)
    wait_gone(pids)
    with pytest.raises(ToolchainError):
        own.submit("late", b"", lambda answer, said: answer)


def sleeping(seconds: int) -> bytes:
    source = f"import time\ntime.sleep({seconds})\n" + ADD_JOB.source
    return replace(ADD_JOB, source=source).to_json().encode()


def wait_gone(pids: tuple[int, ...]) -> None:
    end = time.monotonic() + 20
    while any(alive(p) for p in pids):
        assert time.monotonic() < end, "workers are left"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_workers_end_with_their_process() -> None:
    code = (
        "import sys, time, os; from litz.runtime.triton.build import start_workers; "
        "from litz.runtime.triton.pool import pool; start_workers(2)\n"
        "while len(pool().pids) < 2: time.sleep(0.01)\n"
        "print(*pool().pids, flush=True)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for tail in ("", "os.kill(os.getpid(), 9)"):
        done = subprocess.run(
            [sys.executable, "-c", code + tail], env=env, capture_output=True, text=True
        )
        pids = tuple(map(int, done.stdout.split()))
        assert len(pids) == 2, done.stderr
        wait_gone(pids)


STARTS = """
import os, pathlib, subprocess, time
p = pathlib.Path({path!r})
child = subprocess.Popen(["sleep", "60"])
p.write_text(f"{{os.getppid()}} {{os.getpid()}} {{child.pid}} ")
time.sleep(60)
"""


def test_workers_that_are_busy_end_with_a_killed_process(tmp_path: Path) -> None:
    """So do what imported Triton for them, and the assembler that one has started."""
    path = tmp_path / "pids"
    busy = replace(ADD_JOB, source=STARTS.format(path=str(path)) + ADD_JOB.source)
    code = (
        "import os, pathlib, sys, time; from litz.runtime.triton.pool import pool\n"
        "pool().grow(1); pool().submit(0, sys.stdin.buffer.read(), print)\n"
        f"while not (p := pathlib.Path({str(path)!r})).exists() or not p.read_text(): "
        "time.sleep(0.01)\n"
        "os.kill(os.getpid(), 9)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=env, input=busy.to_json().encode())
    assert done.returncode == -signal.SIGKILL
    pids = tuple(map(int, path.read_text().split()))
    assert len(pids) == 3
    wait_gone(pids)


def test_triton_is_imported_once_for_all_workers() -> None:
    own = Pool()
    own.grow(3)
    who = "import os\nraise ValueError(os.getppid())\n"
    request = replace(ADD_JOB, source=who).to_json().encode()
    answers = [own.submit(i, request, lambda answer, said: answer) for i in range(9)]
    assert len({a.result() for a in answers}) == 1
    first = own.pids
    own.grow(4)
    while len(own.pids) < 4:
        time.sleep(0.001)
    assert set(first) < set(own.pids)
    own.close()


def test_what_imported_triton_is_replaced_with_its_workers(cache: Cache) -> None:
    own = Pool()
    own.grow(1)
    request = ADD_JOB.to_json().encode()
    assert own.submit("a", request, lambda answer, said: answer[:1]).result() == b"+"
    assert own._server is not None
    own._server._process.kill()
    assert own.submit("b", request, lambda answer, said: answer[:1]).result() == b"+"
    own.close()


def test_workers_start_before_a_graph_on_a_gpu_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    through_aot = backend.dynamo.compile_through_aot

    def traced(*args: Any, **kwargs: Any) -> Any:
        told.append("AOTAutograd")
        return through_aot(*args, **kwargs)

    monkeypatch.setattr(backend, "start_workers", lambda count: told.append("workers"))
    monkeypatch.setattr(backend.dynamo, "compile_through_aot", traced)
    trace(lambda x: x * 2, data(64), training=False)
    assert told[:2] == ["workers", "AOTAutograd"]
    told.clear()
    with torch.no_grad():
        torch.compile(lambda x: x * 3, backend="litz")(torch.ones(3))
    assert told == ["AOTAutograd"]


def test_the_exit_status_of_a_worker_is_told(cache: Cache) -> None:
    leaving = replace(ADD_JOB, source="import os\nos.write(2, b'bye')\nos._exit(7)\n")
    with pytest.raises(ToolchainError, match=r"twice \(exit status 7\)") as caught:
        build([leaving], cache, 1)
    assert "bye" in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count other memory")
def test_workers_take_no_more_memory_than_is_free(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Pool()
    monkeypatch.setattr("litz.runtime.triton.pool.memory_bound", lambda jobs: 1 << 30)
    own.grow(1)
    greedy = replace(ADD_JOB, source="x = bytearray(1 << 30)\n" + ADD_JOB.source)
    answer = own.submit(0, greedy.to_json().encode(), lambda answer, said: answer).result()
    assert b"MemoryError" in answer
    request = ADD_JOB.to_json().encode()
    assert own.submit(1, request, lambda answer, said: answer[:1]).result() == b"+"
    own.close()


def test_a_forked_child_has_its_own_pool(cache: Cache) -> None:
    assert build([ADD_JOB], cache, 1)
    mine = pool().pids
    child = os.fork()
    if child == 0:
        status = 1
        try:
            other = replace(ADD_JOB, constants=(("XBLOCK", 64),))
            ok = build([other], cache, 1)[0].entry == "add"
            status = 0 if ok and not set(pool().pids) & set(mine) else 2
            pool().close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert build([replace(ADD_JOB, constants=(("XBLOCK", 128),))], cache, 1)
    assert set(mine) <= set(pool().pids)


def test_threads_share_what_is_under_way(tmp_path: Path) -> None:
    own = Pool()
    own.grow(1)
    answers: list[bytes] = []

    def finish(answer: bytes, said: str) -> int:
        answers.append(answer)
        return len(answers)

    request = ADD_JOB.to_json().encode()
    blocker = own.submit("blocker", request, lambda answer, said: 0)
    futures = []
    threads = [
        threading.Thread(target=lambda: futures.append(own.submit("same", request, finish)))
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [f.result() for f in futures] == [1] * 4
    assert blocker.result() == 0 and len(answers) == 1
    own.close()


def test_triton_is_found_without_importing_it() -> None:
    found = find_triton()
    library = next((Path(found.folder) / "_C").glob("libtriton*.so"))
    assert f"{library.stat().st_size}:" in found.build
    assert re.match(r"\d+\.\d+", found.version)


def test_a_triton_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, cache: Cache, tmp_path: Path
) -> None:
    broken = tmp_path / "triton"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('libsomething.so is missing')\n")
    own = Pool(Triton(str(broken), "9", ""))
    monkeypatch.setattr(building, "pool", lambda: own)
    with pytest.raises(ToolchainError, match="libsomething.so is missing") as caught:
        build([ADD_JOB], cache, 1)
    assert not isinstance(caught.value, RefusedSourceError)
    own.close()


def test_no_triton(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    find_triton.cache_clear()
    try:
        with pytest.raises(ToolchainError, match="pip install triton"):
            find_triton()
    finally:
        monkeypatch.undo()
        find_triton.cache_clear()


def test_the_line_that_the_compiler_names() -> None:
    assert building._line_in('"<litz kernel add>":11:4: error: so', ADD_JOB) == 11
    assert building._line_in("<litz kernel add>:9: error", ADD_JOB) == 9
    assert building._line_in("nothing of this", ADD_JOB) == 0
    assert numbered("a\nb", 2) == "  1 | a\n> 2 | b"
