"""Finding the C++ compiler, and building kernels with it.

A unit is compiled into one shared object, content-addressed: the key covers the source, every
header of the include folder, the compiler's version and the flags, so that a unit in the cache is
not compiled again, here or in another process.  Units compile in parallel, in processes that run by
themselves from `submit` on.

Linking goes straight to `ld`, which takes 2 ms where the compiler driver takes 17.  OpenMP and libm
are not linked in: their functions resolve in the running process, see `litz.runtime.native`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import platform
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO

from litz.dataclass import dataclass
from litz.errors import RefusedSourceError, ToolchainError
from litz.runtime.cache import Cache, content_key
from litz.runtime.cpu import Isa, detect_isa
from litz.runtime.jobs import default_jobs, memory_bound, slots
from litz.runtime.shipped import library_source, runtime_source
from litz.runtime.unbroken import unbroken
from litz.targets.cpp.faults import Failure, diagnose

INCLUDE = Path(__file__).parent / "include"
KIND = "cpp"
_OWN_NAMES = ("g++", "clang")
_MESSAGE_LINES = 60
_ASK_SECONDS = 60
BUILD_SECONDS = 600.0
_FOREVER = 1e6

# Each named, none of them changes a nan, an infinity, a signed zero or a rounding.
#   -ffp-contract=off     a*b+c rounds twice, as eager does, unless the kernel asks for fma
#   -fno-math-errno       sqrt and friends become instructions
#   -fno-trapping-math    nobody reads the floating-point exception flags: selects need no branch
# The others only save time: what exceptions, unwinding, interposition and hardening would cost.
BASE_FLAGS = tuple(
    (
        "-std=c++17 -O2 -fPIC -pipe -w -ffp-contract=off -fno-math-errno -fno-trapping-math "
        "-fno-exceptions -fno-rtti -fno-asynchronous-unwind-tables -fno-unwind-tables "
        "-fno-stack-protector -fno-semantic-interposition -fno-plt -fno-ident -fno-strict-aliasing "
        "-fmax-errors=20"
    ).split()
)
_CLANG_FLAGS = {"-fmax-errors=20": "-ferror-limit=20"}

INSTALL = (
    "Litz needs a C++17 compiler for CPU kernels. Install one (Debian and Ubuntu: apt install g++; "
    "Fedora: dnf install gcc-c++; conda: conda install gxx; macOS: xcode-select --install) "
    "or name one in the environment variable LITZ_CXX."
)


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler with the flags for this machine.  All of it but `cxx` stands in cache keys.

    cxx:        the command, with leading arguments (a compiler cache, for instance).
    version:    what the compiler says of itself.
    isa:        'generic', 'avx2', 'avx512' or 'neon'; `features` are its further abilities.
    lanes_f32:  float32 lanes of a vector register.
    flags:      all compile flags but include folders.
    link:       the command that makes a shared object, up to ` object... -o output`.
    link_tail:  what stands at its end: libraries.
    """

    cxx: tuple[str, ...]
    version: str
    isa: str
    lanes_f32: int
    features: tuple[str, ...]
    flags: tuple[str, ...]
    link: tuple[str, ...]
    link_tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceUnit:
    """One translation unit: a name for people (no part of the key), its text, further flags."""

    name: str
    text: str
    flags: tuple[str, ...] = ()


def find_toolchain(
    cxx: str | None = None, isa: str | Isa | None = None, cache: Cache | None = None
) -> Toolchain:
    """The C++ compiler to use: `cxx` where given, else $CXX, else g++, c++ or clang++.

    `isa` is or names an instruction set other than this machine's best.  `cache` saves asking the
    compiler for its version in each process (5 ms).

    ToolchainError: there is no compiler, or it does not run.
    """
    named = cxx or os.environ.get("CXX")
    for candidate in [named] if named else ["g++", "c++", "clang++"]:
        command = shlex.split(candidate)
        path = shutil.which(command[0]) if command else None
        if path:
            full = (path, *command[1:])
            found = isa if isinstance(isa, Isa) else detect_isa(isa)
            return _toolchain(full, _answers(full, cache), found)
    if named:
        raise ToolchainError(f"litz: the C++ compiler {named!r} was not found. {INSTALL}")
    raise ToolchainError(f"litz: found no C++ compiler (g++, c++, clang++). {INSTALL}")


@dataclass(frozen=True)
class _Answers:
    """What a compiler said when asked."""

    version: str
    ld: str
    libgcc: str


def _toolchain(cxx: tuple[str, ...], said: _Answers, isa: Isa) -> Toolchain:
    flags = BASE_FLAGS
    clang = "clang" in said.version
    if clang:
        # Clang's OpenMP needs a library beside PyTorch's; without it, kernels run on one thread.
        flags = tuple(_CLANG_FLAGS.get(flag, flag) for flag in flags)
    else:
        flags = (*flags, "-fopenmp")
    link: tuple[str, ...]
    tail: tuple[str, ...] = ()
    if sys.platform == "darwin":
        link = (*cxx, "-dynamiclib", "-undefined", "dynamic_lookup")
    elif clang or not said.ld or not said.libgcc:
        link = (*cxx, "-shared", "-nostartfiles")
    else:
        # The compiler's own helpers (128-bit division, for one) are in no global scope.
        link = (said.ld, "-shared", "--hash-style=gnu", "--build-id=none", "-s")
        tail = (said.libgcc,)
    flags = (*flags, *isa.flags)
    return Toolchain(cxx, said.version, isa.name, isa.lanes_f32, isa.features, flags, link, tail)


def _answers(cxx: tuple[str, ...], cache: Cache | None) -> _Answers:
    """What the compiler says of itself; out of the cache as long as its file stays as it is."""
    file = Path(cxx[0]).resolve()
    stat = file.stat()
    key = content_key(*cxx, str(file), str(stat.st_size), str(stat.st_mtime_ns))
    # A wrapper's file says nothing of the compiler behind it.
    stored = cache if file.name.startswith(_OWN_NAMES) or "-g++" in file.name else None
    answers = _parsed(stored.get_text("toolchain", key)) if stored is not None else None
    if answers is not None:
        if all(not p or Path(p).is_file() for p in (answers.ld, answers.libgcc)):
            return answers
    answers = _ask_all(cxx)
    if stored is not None:
        stored.put("toolchain", key, json.dumps(dataclasses.asdict(answers)))
    return answers


def _parsed(text: str | None) -> _Answers | None:
    """Stored answers; None for what another version of Litz has written."""
    try:
        said = json.loads(text or "")
        return _Answers(**{f.name: str(said[f.name]) for f in dataclasses.fields(_Answers)})
    except (ValueError, TypeError, LookupError):
        return None


@lru_cache(maxsize=16)
def _ask_all(cxx: tuple[str, ...]) -> _Answers:
    version = " ".join(_ask(cxx, "--version").split("\n", 1)[0].split())
    ld = shutil.which(_ask(cxx, "-print-prog-name=ld")) or ""
    libgcc = _ask(cxx, "-print-libgcc-file-name")
    return _Answers(version, ld, libgcc if Path(libgcc).is_file() else "")


def _ask(cxx: tuple[str, ...], question: str) -> str:
    try:
        done = subprocess.run(
            [*cxx, question],
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=_ASK_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None)
        detail = said if isinstance(said, str) and said else str(error)
        raise ToolchainError(
            f"litz: the C++ compiler {shlex.join(cxx)} does not run: {detail.strip()}. {INSTALL}"
        ) from error
    return done.stdout.strip()


def unit_key(unit: SourceUnit, toolchain: Toolchain) -> str:
    """What a unit is stored under."""
    return content_key(
        unit.text,
        headers_key(),
        # Folders are shared among machines, and compilers for two of them may say the same.
        sys.platform,
        platform.machine(),
        toolchain.version,
        shlex.join((*toolchain.cxx[1:], *toolchain.flags, *unit.flags)),
        # By name: where a linker lies differs among machines and says nothing.
        shlex.join((Path(toolchain.link[0]).name, *toolchain.link[1:])),
    )


def headers_key() -> str:
    """The key of all headers that a unit may include."""
    files = sorted(p for p in INCLUDE.rglob("*") if p.is_file())
    stamps = tuple((str(p), (s := p.stat()).st_mtime_ns, s.st_size) for p in files)
    return _headers_key(stamps)


@lru_cache(maxsize=8)
def _headers_key(stamps: tuple[tuple[str, int, int], ...]) -> str:
    parts: list[str | bytes] = []
    for name, _, _ in stamps:
        path = Path(name)
        parts += [path.relative_to(INCLUDE).as_posix(), path.read_bytes()]
    return content_key(*parts)


class _Job:
    """A unit on its way: waiting, running or done (`path` is set)."""

    def __init__(self, unit: SourceUnit, key: str) -> None:
        self.unit = unit
        self.key = key
        self.path: Path | None = None
        self.source: Path | None = None
        self.scratch: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.said = b""
        self.started = 0.0
        self.retried = False


class BuildHandle:
    """Units being compiled.  `wait()` gives their shared objects, in the order of the units.

    At most `jobs` compilers run at once; those beyond start when `wait()` finds that others
    ended.  One that was killed, or found no room or no folder, is started once more; one
    that runs for more than `seconds` is stopped.  `fresh`: do not take units out of the cache.
    """

    def __init__(
        self,
        units: Sequence[SourceUnit],
        toolchain: Toolchain,
        cache: Cache,
        jobs: int,
        seconds: float = BUILD_SECONDS,
        fresh: bool = False,
    ) -> None:
        self._toolchain = toolchain
        self._cache = cache
        self._limit = max(jobs, 1)
        self._seconds = seconds if seconds > 0 else _FOREVER
        self._owner = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._scratches: list[Path] = []
        by_key: dict[str, _Job] = {}
        self._order = [unit_key(unit, toolchain) for unit in units]
        for unit, key in zip(units, self._order, strict=True):
            if key not in by_key:
                by_key[key] = job = _Job(unit, key)
                job.path = None if fresh else cache.get_file(KIND, key, ".so")
        self._jobs = by_key
        self._waiting = [job for job in by_key.values() if job.path is None]
        self._running: list[_Job] = []
        self.compiled = len(self._waiting)
        """How many units were not in the cache."""
        try:
            self._start_waiting()
        except BaseException:
            self.cancel()
            raise

    def wait(self) -> list[Path]:
        """Block until all is built; the shared objects.  ToolchainError: a unit was refused."""
        while self._running:
            self._advance(None)
        self._close()
        paths = [path for key in self._order if (path := self._jobs[key].path) is not None]
        if len(paths) < len(self._order):
            raise ToolchainError("litz: the build was cancelled, or a unit of it refused before")
        return paths

    def cancel(self) -> None:
        """Stop the compilers that still run.  What is built already stays in the cache."""
        self._waiting.clear()
        for job in self._running:
            assert job.process is not None
            # The shell, the driver and what it started are one session, led by the shell.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(job.process.pid, signal.SIGKILL)
            with job.process:  # closes its pipes and waits for it
                pass
            slots().give(self)
        self._running.clear()
        self._close()

    def __del__(self) -> None:
        # A forked child has a copy of the handle, but the compilers are its parent's.
        if self.__dict__.get("_running") and os.getpid() == self._owner:
            self.cancel()

    def _close(self) -> None:
        self._selector.close()
        for folder in self._scratches:
            shutil.rmtree(folder, ignore_errors=True)
        self._scratches.clear()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            if not slots().take(self, self._limit):
                break  # who has none running is never refused
            job = self._waiting.pop(0)
            try:
                self._start(job)
            except BaseException:
                if job not in self._running:
                    slots().give(self)
                raise

    def _start(self, job: _Job) -> None:
        if not self._scratches or not self._scratches[-1].is_dir():
            self._scratches.append(self._cache.scratch())
        job.scratch = self._scratches[-1]
        # The source stays beside the shared object, for whoever wants to read it.
        job.source = self._cache.put_source(KIND, job.key, job.unit.text, ".cpp")
        compile_, link = _commands(self._toolchain, job.unit, job.source, job.scratch / job.key)
        # One shell for both steps: linking follows without a word from this process.  Beside them
        # it waits for the end of this process, whatever that may be, to stop them with it.
        job.said = b""
        job.started = time.monotonic()
        bound = memory_bound(self._limit) >> 10
        limit = f"ulimit -S -d {bound} 2>/dev/null; " if bound else ""  # where the system has one
        command = limit + _WITH_PARENT % f"{shlex.join(compile_)} && {shlex.join(link)}"

        def start() -> None:
            job.process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.append(job)
            assert job.process.stderr is not None
            self._selector.register(job.process.stderr, selectors.EVENT_READ, job)

        unbroken(start)  # a compiler that runs is known, so that it can be stopped

    def _advance(self, timeout: float | None) -> None:
        """Read what compilers say; the end of a compiler's messages is its end.

        timeout: 0 to return at once, None to wait for something.
        """
        if not self._running:
            return
        try:
            oldest = min(self._running, key=lambda job: job.started)
            left = oldest.started + self._seconds - time.monotonic()
            ready = self._selector.select(max(left, 0.0) if timeout is None else timeout)
            if not ready and left <= 0:
                raise _hangs(oldest, self._toolchain, self._seconds)
            for selected, _ in ready:
                stream: IO[bytes] = selected.fileobj  # type: ignore[assignment]
                data = os.read(stream.fileno(), 1 << 16)
                if data:
                    selected.data.said += data
                    continue
                self._selector.unregister(stream)
                stream.close()
                self._finish(selected.data)
            self._start_waiting()
        except BaseException:
            self.cancel()
            raise

    def _finish(self, job: _Job) -> None:
        assert job.process is not None and job.scratch is not None
        with job.process:  # closes its pipes
            status = job.process.wait()
        self._running.remove(job)
        slots().give(self)
        if status:
            failure = diagnose(status, job.said.decode(errors="replace"))
            if not job.retried and self._may_retry(job, failure):
                self._retry(job)
                return
            raise _failed(job, status, failure, self._toolchain)
        try:
            job.path = self._cache.put_file(KIND, job.key, job.scratch / f"{job.key}.so", ".so")
        except FileNotFoundError as error:
            if job.retried:
                raise ToolchainError(
                    f"litz: files of the build vanish while it runs: {error}"
                ) from error
            self._retry(job)

    def _may_retry(self, job: _Job, failure: Failure) -> bool:
        """Whether another try may succeed; makes ready for it."""
        assert job.source is not None and job.scratch is not None
        if failure is Failure.FULL:
            self._cache.leave(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            self._scratches.append(self._cache.scratch())
            return True
        # The cache folder was removed under the compiler.
        lost = not (job.source.is_file() and job.scratch.is_dir())
        return lost or failure is Failure.KILLED

    def _retry(self, job: _Job) -> None:
        job.retried = True
        self._waiting.insert(0, job)


# The other end of fd 3 is this process's alone, and closes however that ends.
_WITH_PARENT = (
    "exec 3<&0 </dev/null; { read -r x <&3; kill -9 -$$; } 2>/dev/null & "
    "%s; status=$?; kill -9 $!; exit $status"
)


def _commands(
    toolchain: Toolchain, unit: SourceUnit, source: Path, stem: Path
) -> tuple[list[str], list[str]]:
    """The command that compiles and the one that links; they write `stem`.o and `stem`.so."""
    compiled, linked = f"{stem}.o", f"{stem}.so"
    flags = (*toolchain.flags, *unit.flags, "-I", str(INCLUDE))
    return (
        [*toolchain.cxx, *flags, "-c", str(source), "-o", compiled],
        [*toolchain.link, compiled, *toolchain.link_tail, "-o", linked],
    )


def _failed(job: _Job, status: int, failure: Failure, toolchain: Toolchain) -> ToolchainError:
    text = (
        f"litz: the C++ compiler {failure.value} (the kernels of {job.unit.name}, "
        f"exit status {status}).\n{_report(job, toolchain)}"
    )
    match failure:
        case Failure.REFUSED:
            return RefusedSourceError(text)
        case Failure.GONE:
            return ToolchainError(f"{text}\n{INSTALL}")
        case Failure.KILLED:
            return ToolchainError(f"{text}\n  Is there memory enough? `jobs=1` takes the least.")
        case Failure.FULL:
            return ToolchainError(f"{text}\n  Make room, or set LITZ_CACHE_DIR to where there is.")


def _hangs(job: _Job, toolchain: Toolchain, seconds: float) -> ToolchainError:
    return ToolchainError(
        f"litz: the C++ compiler did not end within {seconds:g} s (the kernels of "
        f"{job.unit.name}) and was stopped; the option cxx_timeout sets the limit.\n"
        f"{_report(job, toolchain)}"
    )


def _report(job: _Job, toolchain: Toolchain) -> str:
    """What the compiler said, and how to run it again."""
    lines = job.said.decode(errors="replace").rstrip().splitlines()
    if len(lines) > _MESSAGE_LINES:
        more = len(lines) - _MESSAGE_LINES
        lines = [*lines[:_MESSAGE_LINES], f"... and {more} more lines"]
    said = "\n".join(lines) or "(it said nothing)"
    flags = shlex.join((*toolchain.flags, *job.unit.flags, "-I", str(INCLUDE)))
    return (
        f"{said}\n"
        f"  source: {job.source}\n"
        f"  compiler: {shlex.join(toolchain.cxx)} ({toolchain.version})\n"
        f"  flags: {flags}"
    )


def submit(
    units: Sequence[SourceUnit],
    toolchain: Toolchain,
    cache: Cache,
    jobs: int | None = None,
    *,
    seconds: float = BUILD_SECONDS,
    fresh: bool = False,
) -> BuildHandle:
    """Start to build units and return at once; `jobs` compilers at a time (`default_jobs`).

    seconds: how long one compiler may run (0: as long as it wants).  fresh: do not take units out
    of the cache.
    """
    return BuildHandle(units, toolchain, cache, jobs or default_jobs(), seconds, fresh)


def build(
    units: Sequence[SourceUnit], toolchain: Toolchain, cache: Cache, jobs: int | None = None
) -> list[Path]:
    """The shared object of each unit, compiled where the cache has none.

    ToolchainError: a source was refused; the message has the compiler's words and the path.
    """
    return submit(units, toolchain, cache, jobs).wait()


def runtime_unit() -> SourceUnit:
    """The runtime support library: build it with a program's units, then `Runtime(path)`."""
    return SourceUnit("the runtime support library", runtime_source())


def executor_unit() -> SourceUnit:
    """The native executor: build it, then `Executor(path)`."""
    return SourceUnit("the native executor", library_source())
