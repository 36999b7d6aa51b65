"""Compiling Triton kernels ahead of their first launch, in worker processes, by content.

A binary's key covers the job, the device functions that kernels call, Triton's version and the
environment variables that it heeds, so that what is in the cache is not compiled again, here or in
another process.  Nothing here needs a GPU, nor imports Triton or torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from functools import lru_cache
from pathlib import Path

from litz.errors import RefusedSourceError, ToolchainError
from litz.runtime.cache import Cache, content_key
from litz.runtime.jobs import default_jobs
from litz.runtime.triton.job import Binary, KernelJob
from litz.runtime.triton.pool import WorkerDied, find_triton, pool, worker_environment

KIND = "triton"
MOST = 16  # workers: each imports Triton
_MESSAGE_LINES = 60
# Variables that Triton or the tools below it heed, but for those that change no code.
_PREFIXES = ("TRITON_", "LLVM_", "MLIR_", "NVPTX_", "PTXAS_")
_NAMES = ("DISABLE_LLVM_OPT", "DISABLE_PTXAS_OPT", "USE_IR_LOC", "DISABLE_FAST_REDUCTION")
_SOURCES = (
    "atomics",
    "divide",
    "helpers",
    "hidden",
    "mathlib",
    "packed",
    "power",
    "random",
    "runs",
    "sorts",
    "table",
    "words",
    "worker",
    "job",
    "ptx",
)
_WITHOUT_EFFECT = (
    *("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_INTERPRET", "TRITON_DUMP_DIR"),
    "TRITON_BACKENDS_IN_TREE",
)


@lru_cache(maxsize=1)
def _surroundings() -> str:
    """What a binary depends on beside its job."""
    triton = find_triton()
    here = Path(__file__).parent
    heeded = {
        name: value
        for name, value in sorted(worker_environment().items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and name not in _WITHOUT_EFFECT
    }
    return content_key(
        triton.version,
        triton.build,
        json.dumps(heeded),
        *((here / f"{name}.py").read_bytes() for name in _SOURCES),
    )


def job_key(job: KernelJob) -> str:
    """The content key of a job's binary."""
    return content_key("triton binary", _surroundings(), job.to_json())


def default_workers() -> int:
    """How many workers there are where nobody says it."""
    return min(default_jobs(), MOST)


def start_workers(count: int | None = None) -> None:
    """Start compile workers now, so that they are ready when kernels are."""
    pool().grow(count or default_workers())


class CompilerDied(ToolchainError):
    """The compiler's process ended while it compiled a kernel, and again at a second try."""


class KernelBuild:
    """Jobs being compiled.  ``wait()`` gives their binaries, in the order of the jobs."""

    def __init__(self, jobs: Sequence[KernelJob], cache: Cache, workers: int) -> None:
        self._cache = cache
        self._order = [job_key(job) for job in jobs]
        self._jobs = dict(zip(self._order, jobs, strict=True))
        self._done: dict[str, Binary] = {}
        self._flying: dict[str, Future[Binary]] = {}
        for key in self._jobs:
            known = _cached(cache, key)
            if known is not None:
                self._done[key] = known
        missing = [key for key in self._jobs if key not in self._done]
        self.compiled = len(missing)
        """How many distinct jobs were not in the cache."""
        for key in missing:
            self._flying[key] = self._submit(key)
        if missing:
            pool().grow(min(workers, pool().flying))

    def _submit(self, key: str) -> Future[Binary]:
        job, cache = self._jobs[key], self._cache

        def finish(answer: bytes, messages: str) -> Binary:
            if answer[:1] == b"!":
                raise _broken(answer[1:].decode(errors="replace"))
            if answer[:1] != b"+":
                raise _refused(job, json.loads(answer[1:]), messages)
            binary = Binary.from_bytes(answer[1:])
            cache.put(KIND, key, answer[1:], ".bin")
            return binary

        # Builds of two cache folders each want the binary in theirs.
        return pool().submit((str(cache.root), key), job.to_json().encode(), finish)

    def wait(self) -> list[Binary]:
        """Block until all is built; the binaries.

        RefusedSourceError: Triton refused a kernel.  ToolchainError: a worker died of it twice, or
        workers were ended.
        """
        for key in self._jobs:
            if key not in self._done:
                self._done[key] = self._result(key)
        return [self._done[key] for key in self._order]

    def outcomes(self) -> list[Binary | ToolchainError]:
        """Like ``wait()``, with the error of each kernel that has no binary in its place.

        ToolchainError: nothing can be compiled at all, or workers were ended.
        """
        out: dict[str, Binary | ToolchainError] = {}
        for key in self._jobs:
            try:
                out[key] = self._done.get(key) or self._result(key)
            except (RefusedSourceError, CompilerDied) as error:
                out[key] = error
        return [out[key] for key in self._order]

    def _result(self, key: str) -> Binary:
        try:
            return self._flying[key].result()
        except CancelledError:
            raise ToolchainError("litz: the compile workers are closed") from None
        except WorkerDied as error:
            raise _died(self._jobs[key], error) from None


def submit(jobs: Sequence[KernelJob], cache: Cache, workers: int | None = None) -> KernelBuild:
    """Start to compile jobs and return at once; ``workers`` at a time (``default_jobs``).

    ToolchainError: Triton is not installed.
    """
    return KernelBuild(jobs, cache, workers or default_workers())


def build(jobs: Sequence[KernelJob], cache: Cache, workers: int | None = None) -> list[Binary]:
    """The binary of each job, compiled where the cache has none.

    RefusedSourceError: the message has Triton's words and the kernel's source.
    """
    return submit(jobs, cache, workers).wait()


def _cached(cache: Cache, key: str) -> Binary | None:
    data = cache.get(KIND, key, ".bin")
    if data is None:
        return None
    try:
        return Binary.from_bytes(data)
    except ValueError:
        return None


# --- messages ---


def _refused(job: KernelJob, fault: dict[str, object], messages: str) -> RefusedSourceError:
    line = fault.get("line")
    line = line if isinstance(line, int) and line else _line_in(messages, job)
    return RefusedSourceError(
        f"litz: Triton refused the kernel {job.name} ({fault.get('kind')})"
        + (f", line {line}" if line else "")
        + f":\n{_shortened(str(fault.get('said')))}\n{_details(job, line, messages)}"
    )


def _broken(said: str) -> ToolchainError:
    found = find_triton()
    return ToolchainError(
        f"litz: Triton {found.version} in {found.folder} cannot be imported\n{_shortened(said)}"
    )


def _died(job: KernelJob, error: WorkerDied) -> CompilerDied:
    how = f"signal {-error.status}" if error.status < 0 else f"exit status {error.status}"
    return CompilerDied(
        f"litz: the compiler process died of the kernel {job.name}, twice ({how})\n"
        + _details(job, 0, error.said)
    )


def _details(job: KernelJob, line: int, messages: str) -> str:
    options = ", ".join(f"{n}={v}" for n, v in (*job.options, *job.constants))
    types = ", ".join(f"{n}: {t}" for n, t in job.arguments)
    parts = [_shortened(messages)] if messages.strip() else []
    parts += [
        f"  triton: {find_triton().version}, for {':'.join(map(str, job.target))}",
        f"  arguments: {types}",
        f"  with: {options}",
        "  source:",
        numbered(job.source, line),
    ]
    return "\n".join(parts)


def numbered(source: str, marked: int = 0) -> str:
    """A source with the numbers of its lines, one of them marked."""
    lines = source.splitlines()
    width = len(str(len(lines)))
    return "\n".join(
        f"{'>' if i == marked else ' '} {i:{width}} | {text}".rstrip()
        for i, text in enumerate(lines, 1)
    )


def _line_in(messages: str, job: KernelJob) -> int:
    """The line that the compiler named on stderr, else 0."""
    mark = f"<litz kernel {job.name}>"
    for part in messages.split(mark)[1:]:
        number = part.lstrip('":').split(":")[0]
        if number.isdigit():
            return int(number)
    return 0


def _shortened(text: str) -> str:
    lines = text.rstrip().splitlines()
    if len(lines) > _MESSAGE_LINES:
        more = len(lines) - _MESSAGE_LINES
        lines = [*lines[:_MESSAGE_LINES], f"... and {more} more lines"]
    return "\n".join(lines)
