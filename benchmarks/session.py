"""The parent's end of a worker process: start it, ask it, end it with all it started."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 900.0

# Each backend's caches move into the folder of its measurement.
CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "LITZ_CACHE_DIR", "TRITON_CACHE_DIR")


class WorkerError(Exception):
    """A worker failed, died or took too long; the message is one line."""


class WorkerLost(WorkerError):
    """The worker died: it answers no more."""


class WorkerLate(WorkerLost):
    """The worker took too long."""


class Session:
    """A fresh process for one workload on one backend; its caches live in ``cache``."""

    def __init__(
        self,
        name: str,
        backend: str,
        quick: bool,
        cache: Path,
        module: str = "benchmarks.worker",
        within: float = TIMEOUT,
    ) -> None:
        """module: what to run; within: seconds that it may take to be ready."""
        cache.mkdir(parents=True, exist_ok=True)
        self.log = cache / f"{name}-{backend}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, name, backend, str(int(quick))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=environment(cache),
                start_new_session=True,
            )
        try:
            self.facts = self.receive(within)
        except BaseException:
            self.kill()
            raise

    def ask(self, do: str, within: float = TIMEOUT, **arguments: Any) -> dict[str, Any]:
        """Have the worker do something; its reply.

        within: seconds to wait for it.  Raises ``WorkerError``; ``WorkerLost`` where the worker
        answers no more.
        """
        assert self.process.stdin is not None
        request = json.dumps({"do": do, "with": arguments}) + "\n"
        try:
            self.process.stdin.write(request.encode())
            self.process.stdin.flush()
        except OSError:
            raise WorkerLost(self.obituary()) from None
        return self.receive(within)

    def receive(self, within: float = TIMEOUT) -> dict[str, Any]:
        assert self.process.stdout is not None
        fd, data, until = self.process.stdout.fileno(), b"", time.monotonic() + within
        while not data.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise WorkerLate(f"no answer within {within:.0f} s")
            piece = os.read(fd, 1 << 16)
            if not piece:
                raise WorkerLost(self.obituary())
            data += piece
        reply: dict[str, Any] = json.loads(data)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def obituary(self) -> str:
        """Why a worker that is gone may have gone."""
        code = self.process.wait()
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"worker ended with status {code}: {lines[-1].strip() if lines else ''}"[:300]

    def kill(self) -> None:
        """End the worker and every process it started at once, whatever it is doing."""
        self.end_group()
        self.close()

    def end_group(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """End the worker and every process it started."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass  # an unsent request to a worker that is gone
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass
        self.end_group()
        self.process.wait()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def environment(cache: Path) -> dict[str, str]:
    """The environment of a worker: caches in ``cache``, nothing from the network."""
    env = dict(os.environ)
    for variable in CACHE_VARIABLES:
        env[variable] = str(cache / variable.lower())
    env["XDG_CACHE_HOME"] = str(cache)
    env["LITZ_REPRO_DIR"] = str(cache / "repros")
    if find_spec("litz") is None:
        # Not installed: taken from the checkout, by what the worker starts too.
        path = [str(ROOT / "src"), *filter(None, [env.get("PYTHONPATH")])]
        env["PYTHONPATH"] = os.pathsep.join(path)
    env["HF_HUB_OFFLINE"] = "1"
    env["TOKENIZERS_PARALLELISM"] = "false"
    return env
