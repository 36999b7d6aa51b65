"""Faults of the machine and of the user: each is one clear message or a clean recovery."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from litz import dynamo
from litz.backend import compile_and_bind
from litz.errors import ToolchainError
from litz.options import make_options
from litz.runtime.cache import Cache
from litz.targets.cpp.faults import Failure, diagnose
from litz.targets.cpp.toolchain import find_toolchain


def fn(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).sum(-1) * 3


def compiled(f: Callable[..., Any], **options: object) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, backend="litz", options=options)


def same(call: Callable[..., Any], *args: torch.Tensor, f: Callable[..., Any] = fn) -> None:
    torch.testing.assert_close(call(*args), f(*args))


def warned(call: Callable[..., Any], *args: torch.Tensor, f: Callable[..., Any] = fn) -> list[str]:
    """Run, compare with eager, and return what Litz warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        same(call, *args, f=f)
        same(call, *args, f=f)
    return [str(w.message) for w in seen if "litz" in str(w.message)]


def objects(root: Path) -> list[Path]:
    return sorted((root / "v1" / "cpp").rglob("*.so"))


def unfinished(root: Path) -> list[Path]:
    """What nobody goes on with; files that processes lock stay, for others may wait for them."""
    return [p for p in (root / "v1" / "tmp").iterdir() if p.suffix != ".lock"]


def wrapper(folder: Path, on_compile: str) -> str:
    """A g++ that runs some lines of shell before each compilation."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "g++"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *" -c "*)\n{on_compile}\n;; esac\n'
        f'exec {find_toolchain().cxx[0]} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def python(code: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("LITZ_CACHE_DIR", "XDG_CACHE_HOME")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**env, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]
    return out + err


PROGRAM = """
import torch
def fn(x):
    return (x.sin() + 1).sum(-1) * 3
call = torch.compile(fn, backend="litz")
x = torch.randn(16, 64)
torch.testing.assert_close(call(x), fn(x))
"""

# One process for all: it begins as XDG_CACHE_HOME says, and each part has a folder of its own.
ELSEWHERE = (
    PROGRAM
    + """
import os, resource, sys
from litz.targets.tools import cache_of
root = sys.argv[1]

def part(name, **environ):
    print("==", name, file=sys.stderr, flush=True)
    os.environ.update(environ)
    cache_of.cache_clear()  # which knows where the default folder was
    torch._dynamo.reset()
    torch.testing.assert_close(call(x), fn(x))

os.environ.pop("HOME")
part("no home", XDG_CACHE_HOME=root + "/home")
part("fork", LITZ_CACHE_DIR=root + "/fork")
child = os.fork() if hasattr(os, "fork") else None
if child == 0:
    torch.set_num_threads(1)
    torch.testing.assert_close(call(x), fn(x))
    other = torch.compile(lambda x: x.cos() * 2 + x, backend="litz")
    torch.testing.assert_close(other(x), x.cos() * 2 + x)
    os._exit(7)
if child:
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    torch.testing.assert_close(call(x), fn(x))
    print("both", file=sys.stderr)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
part("no file", LITZ_CACHE_DIR=root + "/small")
"""
)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process says of each part, and the root of the folders."""
    root = str(tmp_path_factory.mktemp("elsewhere"))
    said = finished(python(ELSEWHERE, root, XDG_CACHE_HOME="/proc/nowhere"))
    first, *others = said.split("== ")
    parts = (text.partition("\n") for text in others)
    return {"root": root, "no folder": first, **{name: rest for name, _, rest in parts}}


# --- the cache folder ---


def test_a_folder_that_cannot_be_written_warns_once(tmp_path: Path) -> None:
    # /proc refuses root too.
    for folder in ("/proc/litz", str(tmp_path / "file" / "cache")):
        (tmp_path / "file").write_text("")
        said = warned(compiled(fn, cache_dir=folder), torch.randn(3, 5))
        assert len(said) == 1 and "cannot write its cache folder" in said[0], said
        assert "LITZ_CACHE_DIR" in said[0]


def test_the_default_folder_cannot_be_written(elsewhere: dict[str, str]) -> None:
    said = elsewhere["no folder"]
    assert said.count("RuntimeWarning") == 1 and "/proc/nowhere/litz" in said


def test_no_home_variable(elsewhere: dict[str, str]) -> None:
    assert "Warning" not in elsewhere["no home"]
    assert objects(Path(elsewhere["root"]) / "home" / "litz")


def test_the_disk_is_full_for_the_compiler(tmp_path: Path) -> None:
    """The compiler finds no room in the cache folder: it goes on in a temporary one."""
    root = tmp_path / "cache"
    full = f'case "$*" in *" -o {root}"*) echo "x.s: No space left on device" >&2; exit 1;; esac'
    call = compiled(fn, cache_dir=str(root), cxx=wrapper(tmp_path / "bin", full))
    said = warned(call, torch.randn(3, 5))
    assert len(said) == 1 and "No space left on device" in said[0], said
    assert "temporary folder" in said[0] and not objects(root)


def test_no_file_can_be_written(elsewhere: dict[str, str]) -> None:
    """Files of a kilobyte at most: not even a temporary folder helps, and ATen runs the graph."""
    assert "This graph runs through ATen" in elsewhere["no file"]
    assert not objects(Path(elsewhere["root"]) / "small")


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "folder"])
def test_a_damaged_kernel_is_built_again(tmp_path: Path, damage: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    same(compiled(fn, cache_dir=str(first)), torch.randn(3, 5))
    shutil.copytree(first, second)
    for path in objects(second):
        data = path.read_bytes()
        path.unlink()
        if damage == "folder":
            (path / "something").mkdir(parents=True)
            continue
        left = {"truncated": data[: len(data) // 2], "garbage": b"\x7fELF" * 999, "empty": b""}
        path.write_bytes(left[damage])
    said = warned(compiled(fn, cache_dir=str(second)), torch.randn(3, 5))
    if damage != "folder":
        assert not said
        assert [p.read_bytes() for p in objects(second)] == [p.read_bytes() for p in objects(first)]


@pytest.mark.parametrize("foreign", ["no library", "another machine's"])
def test_a_foreign_kernel_is_built_again(tmp_path: Path, foreign: str) -> None:
    """Whole entries with a right seal that this machine cannot load."""
    first, second = tmp_path / "first", tmp_path / "second"
    same(compiled(fn, cache_dir=str(first)), torch.randn(3, 5))
    shutil.copytree(first, second)
    cache = Cache(second)
    for path in objects(second):
        body = cache.get("cpp", path.stem, ".so")
        assert body is not None
        machine = 18  # e_machine in the ELF header; 0xFFFF is none
        other = body[:machine] + b"\xff\xff" + body[machine + 2 :]
        cache.put("cpp", path.stem, b"no library" if foreign == "no library" else other, ".so")
    assert not warned(compiled(fn, cache_dir=str(second)), torch.randn(3, 5))
    assert [p.read_bytes() for p in objects(second)] == [p.read_bytes() for p in objects(first)]


def test_answers_of_another_version_are_asked_again(tmp_path: Path) -> None:
    same(compiled(fn, cache_dir=str(tmp_path / "a")), torch.randn(3, 5))
    (stored,) = (p for p in (tmp_path / "a" / "v1" / "toolchain").rglob("*") if p.is_file())
    for n, text in enumerate(('{"version": "1", "more": 2}', "no json", "[]", '{"version"')):
        Cache(tmp_path / str(n)).put("toolchain", stored.name, text)
        assert not warned(compiled(fn, cache_dir=str(tmp_path / str(n))), torch.randn(3, 5))


def test_the_folder_goes_while_the_program_runs(tmp_path: Path) -> None:
    first = compiled(fn, cache_dir=str(tmp_path))
    same(first, torch.randn(3, 5))
    shutil.rmtree(tmp_path)
    same(first, torch.randn(3, 5))

    def other(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 2 + x

    second = torch.compile(other, backend="litz", options={"cache_dir": str(tmp_path)})
    assert not warned(second, torch.randn(3, 5), f=other)
    assert objects(tmp_path)


def test_the_folder_goes_under_the_compiler(tmp_path: Path) -> None:
    root, mark = tmp_path / "cache", tmp_path / "mark"
    go = f"[ -e {mark} ] || {{ touch {mark}; rm -rf {root}; }}"
    call = compiled(fn, cache_dir=str(root), cxx=wrapper(tmp_path / "bin", go), jobs=1)
    assert not warned(call, torch.randn(3, 5))
    assert mark.exists() and objects(root)


def test_a_tiny_cache_still_works(tmp_path: Path) -> None:
    """What is in use stays, whatever the limit."""
    assert not warned(compiled(fn, cache_dir=str(tmp_path), cache_size=1), torch.randn(3, 5))
    assert objects(tmp_path)


# --- the compiler ---


def test_a_compiler_killed_once_is_started_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    cxx = wrapper(tmp_path / "bin", f"[ -e {mark} ] || {{ touch {mark}; kill -9 $$; }}")
    call = compiled(fn, cache_dir=str(tmp_path / "cache"), cxx=cxx)
    assert not warned(call, torch.randn(3, 5))
    assert mark.exists() and objects(tmp_path / "cache")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("kill -9 $$", "was killed"),
        ("echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1", "killed"),
        ("exit 127", "Install one"),
        ("exec sleep 1000", "did not end within 1 s"),
    ],
)
def test_a_compiler_that_fails_for_good(tmp_path: Path, act: str, words: str) -> None:
    call = compiled(
        fn, cache_dir=str(tmp_path / "cache"), cxx=wrapper(tmp_path / "bin", act), cxx_timeout=1
    )
    began = time.monotonic()
    said = warned(call, torch.randn(3, 5))
    assert time.monotonic() - began < 30
    assert len(said) == 1 and words in said[0] and "runs through ATen" in said[0], said
    assert not objects(tmp_path / "cache") and not unfinished(tmp_path / "cache")


def test_a_compiler_that_goes_between_two_compiles(tmp_path: Path) -> None:
    options = {"cxx": wrapper(tmp_path / "bin", ":"), "cache_dir": str(tmp_path / "cache")}
    same(compiled(fn, **options), torch.randn(3, 5))
    (tmp_path / "bin" / "g++").unlink()

    def other(x: torch.Tensor) -> torch.Tensor:
        return x.tanh() - x

    said = warned(compiled(other, **options), torch.randn(3, 5), f=other)
    assert len(said) == 1 and "Install one" in said[0], said


def test_a_refused_source_is_an_error_with_a_repro(tmp_path: Path) -> None:
    """A compiler that works and refuses a kernel: a bug, and no silent fallback."""
    cxx = wrapper(tmp_path / "bin", "echo 'k.cpp:1: error: expected unqualified-id' >&2; exit 1")
    call = compiled(
        fn, cache_dir=str(tmp_path / "cache"), cxx=cxx, repro_dir=str(tmp_path / "repros")
    )
    with pytest.raises(Exception, match=r"refused the source[\s\S]*unqualified-id[\s\S]*repro.py"):
        call(torch.randn(3, 5))


@pytest.mark.parametrize(
    ("status", "said", "failure"),
    [
        (1, "k.cpp:3:1: error: 'x' was not declared in this scope", Failure.REFUSED),
        (4, "internal compiler error: Segmentation fault", Failure.REFUSED),
        (137, "", Failure.KILLED),
        (-9, "", Failure.KILLED),
        (1, "g++: fatal error: Killed signal terminated program cc1plus", Failure.KILLED),
        (
            1,
            "cc1plus: out of memory allocating 65536 bytes\nCannot allocate memory",
            Failure.KILLED,
        ),
        (1, "fatal error: error writing to /tmp/a.s: No space left on device", Failure.FULL),
        (1, "ld: cannot open output file x.so: Read-only file system", Failure.FULL),
        (127, "/bin/sh: 1: g++: not found", Failure.GONE),
        (126, "", Failure.GONE),
    ],
)
def test_why_a_compiler_failed(status: int, said: str, failure: Failure) -> None:
    assert diagnose(status, said) is failure


def test_a_fallback_returns_eagers_strides(tmp_path: Path) -> None:
    """Graph passes change layouts before the compiler turns out to be of no use."""

    def conv(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w).relu()

    x, w = torch.randn(2, 8, 9, 9), torch.randn(16, 8, 3, 3)
    cxx = wrapper(tmp_path / "bin", "exit 127")
    with torch.no_grad(), pytest.warns(UserWarning, match="Install one"):
        out = compiled(conv, cache_dir=str(tmp_path / "cache"), cxx=cxx)(x, w)
    torch.testing.assert_close(out, conv(x, w))
    assert out.stride() == conv(x, w).stride()


# --- processes and threads ---


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_runs_and_compiles(elsewhere: dict[str, str]) -> None:
    assert "both" in elsewhere["fork"]


def test_threads_compile_at_once(tmp_path: Path) -> None:
    torch._dynamo.reset()
    fns = [eval(f"lambda x: (x * {n}).sin() + x.sum(0) * {n}") for n in range(2, 8)]
    calls = [torch.compile(f, backend="litz", options={"cache_dir": str(tmp_path)}) for f in fns]
    failed: list[BaseException] = []
    start = threading.Barrier(len(fns))

    def work(f: Callable[..., Any], call: Callable[..., Any]) -> None:
        x = torch.randn(7, 9)
        start.wait()
        try:
            for _ in range(3):
                same(call, x, f=f)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(fns, calls, strict=True)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed


INTERRUPTED = """
import signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
def fn(x):
    return (x.sin() + 1).sum(-1) * 3
x = torch.randn(16, 64)
slow, plain = (
    torch.compile(fn, backend="litz", options={"cxx": cxx}) for cxx in (sys.argv[1], "")
)
try:
    slow(x)
    sys.exit("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
torch._dynamo.reset()
torch.testing.assert_close(plain(x), fn(x))
print("again")
"""


def test_an_interrupt_leaves_nothing_broken(tmp_path: Path) -> None:
    root, mark = tmp_path / "cache", tmp_path / "mark"
    cxx = wrapper(tmp_path / "bin", f"echo $$ >> {mark}; exec sleep 1000")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, cxx],
        env={**os.environ, "LITZ_CACHE_DIR": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not mark.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert finished(process).split()[:2] == ["interrupted", "again"]
    for pid in mark.read_text().split():
        assert (
            not Path(f"/proc/{pid}/cmdline").exists()
            or not Path(f"/proc/{pid}/cmdline").read_bytes()
        ), "a compiler goes on"
    assert objects(root) and not unfinished(root)
    cache = Cache(root)
    assert all(cache.get_file("cpp", p.stem, ".so") for p in objects(root))


# --- devices and inputs ---


def test_a_device_without_a_target_runs_through_aten(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="litz"):
        out = compiled(fn)(torch.empty(3, 5, device="meta"))
    assert out.device.type == "meta" and out.shape == (3,)
    assert "device meta" in caplog.text


def test_mixed_devices_run_through_aten() -> None:
    def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() + 1, y * 2

    x = torch.randn(4)
    a, b = compiled(mixed)(x, torch.empty(3, device="meta"))
    assert torch.equal(a, x.sin() + 1) and b.device.type == "meta"


def test_a_mix_that_eager_refuses_is_refused() -> None:
    call = compiled(lambda x, y: x + y)
    with pytest.raises(RuntimeError, match="device"):
        call(torch.randn(3), torch.empty(3, device="meta"))


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.double(),
        lambda x: x.to(torch.bfloat16).float().half(),
        lambda x: x.t(),
        lambda x: x[::2],
        lambda x: x[:, :0],
        lambda x: x[0],
        lambda x: torch.randn(9, 3, 5),
        lambda x: x.to("meta"),
        lambda x: x.expand(4, 6, 5),
        lambda x: torch.nn.Parameter(x),
        lambda x: x.long(),
    ],
)
def test_inputs_that_change_after_the_compile(other: Callable[[torch.Tensor], Any]) -> None:
    call = compiled(fn)
    x = torch.randn(6, 5)
    same(call, x)
    y = other(x)
    if y.device.type == "meta":
        assert call(y).shape == fn(y).shape
    else:
        same(call, y)
    same(call, x)


def graph_of(f: Callable[..., Any], *args: torch.Tensor) -> torch.fx.GraphModule:
    found: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.append(graph)
        return dynamo.boxed(dynamo.interpreted(graph))

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return dynamo.compile_through_aot(gm, inputs, forward=keep, backward=keep, inference=keep)

    torch._dynamo.reset()
    torch.compile(f, backend=backend)(*args)
    return found[0]


WRONG: dict[str, tuple[Callable[[torch.Tensor], list[Any]], str]] = {
    "too few": (lambda x: [x], "2 arguments, not 1"),
    "too many": (lambda x: [x, x, x], "2 arguments, not 3"),
    "type": (lambda x: [x, x.double()], r"argument 1 \(.*\) .*float64, not torch.float32"),
    "shape": (lambda x: [x[:3], x], r"argument 0 .*shape \[3, 5\], not \[6, 5\]"),
    "rank": (lambda x: [x, x[0]], r"shape \[5\], not \[6, 5\]"),
    "strides": (lambda x: [x, x.t().contiguous().t()], r"strides \[1, 6\], not \[5, 1\]"),
    "device": (lambda x: [x, x.to("meta")], "on meta, not on cpu"),
    "kind": (lambda x: [x, 3], "int, not a tensor"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_raw_artifact_refuses_wrong_arguments(case: str) -> None:
    x = torch.randn(6, 5)
    call = compile_and_bind(
        graph_of(lambda a, b: a.sin() + b, x, torch.randn(6, 5)), make_options()
    )
    make, words = WRONG[case]
    for _ in range(2):
        torch.testing.assert_close(call([x, x])[0], x.sin() + x)
        with pytest.raises(TypeError, match=words):
            call(make(x))


def test_strides_of_one_element_say_nothing() -> None:
    x = torch.randn(1, 5)
    call = compile_and_bind(graph_of(lambda a: a.sin(), x), make_options())
    other = torch.empty_strided((1, 5), (77, 1)).copy_(x)
    torch.testing.assert_close(call([other])[0], x.sin())


def test_an_argument_laid_out_otherwise_than_promised_is_laid_out_anew() -> None:
    """Behind Dynamo's guards: an operator whose results are not laid out as its meta says."""
    x = torch.randn(6, 5)
    graph = graph_of(lambda a: a.sin() + 1, x)
    call = compile_and_bind(graph, make_options(), guarded=True)
    turned = x.t().contiguous().t()
    for _ in range(2):
        torch.testing.assert_close(call([turned])[0], x.sin() + 1)


def test_no_folder_at_all_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ToolchainError, match="neither to its cache folder"):
        Cache("/proc/litz").put("cpp", "aa", b"x")
