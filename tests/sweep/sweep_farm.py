"""What the operators' and attention's sweeps share, in workers and where these are led (``farm``).

A piece of work is a dictionary.  One that ended its process is run again in a fresh one by itself,
after eager and ``aot_eager`` have run it, to see which of them ends it: ``alone`` says why it did.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.farm import Farm, Lost

GRACE = 15.0  # a worker stops a task that takes too long itself; one that hangs is killed after it

Task = dict[str, Any]


class Late(BaseException):
    """A task takes too long."""


def _late(*_: Any) -> None:
    raise Late


def within(seconds: int, work: Callable[[], Any]) -> Any:
    """What ``work`` returns; Late where that takes longer and Python is asked in between."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(seconds)
    try:
        return work()
    finally:
        signal.alarm(0)


def intact(said: str = "") -> None:
    """End the process, with what CUDA says, where the GPU serves it no longer."""
    import torch

    if not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > 2 << 30:
            torch.cuda.empty_cache()  # the others need it too
    except RuntimeError as e:
        print(" ".join(f"{str(e).strip()[:200]} {said}".split()), file=sys.stderr, flush=True)
        os._exit(1)


def where(device: str, target: str = "") -> dict[str, str]:
    """What a result is of: kind of device, its name, the versions and the date."""
    import torch

    from litz.runtime.triton.pool import find_triton

    kind = device.split(":")[0]
    name = torch.cuda.get_device_name() if kind == "cuda" else _processor()
    versions = [f"torch {torch.__version__}"]
    if kind == "cuda" or target:
        versions.append(f"Triton {find_triton().version}")
    return {
        "device": kind_of(device, target),
        "machine": name,
        "versions": ", ".join(versions),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def kind_of(device: str, target: str) -> str:
    return device.split(":")[0] + (f"-{target}" if target else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [x.partition(":")[2].strip() for x in lines if x.startswith("model name")]
    return names[0] if names else platform.machine()


# --- where workers are led -----------------------------------------------------------------------


def again(gone: Lost[Task]) -> list[Task]:
    """What to do instead of a task that ended its worker: a second time it is not tried."""
    if "alone" in gone.work or gone.status is None:
        return []
    return [{**gone.work, "alone": gone.why}]


def verdict(gone: Lost[Task], refused: str) -> dict[str, str]:
    """State and detail of a task that is not tried again.  refused: the state where eager ends."""
    if gone.status is not None and gone.stage.startswith("eager"):
        traced = gone.stage != "eager"
        who = "aot_eager" if traced else "eager"
        state = "upstream" if traced else refused
        return {"state": state, "detail": f"{who} ends its process: {gone.why}"}
    return {"state": "FAIL", "detail": gone.why}


def settled(task: Task, row: dict[str, Any]) -> dict[str, Any]:
    """A row; that of a task that ended its process, which none of it does alone, is no good one."""
    if "alone" not in task or row["state"] == "FAIL":
        return row
    why = f"ends its process, though not by itself: {task['alone']}"
    return {**row, "state": "FAIL", "detail": why}


def lead(
    args: argparse.Namespace,
    command: Sequence[str],
    work: Iterable[Task],
    heard: Callable[[Task, dict[str, Any]], None],
    lost: Callable[[Lost[Task]], Sequence[Task]],
    *,
    limit: float,
    started: float,
) -> None:
    """Let workers do the work, as the options say.  Exits where none of them starts.

    limit: seconds for a task; started: when the time that the options give began.
    """
    farm = Farm(
        command,
        work,
        args.jobs,
        heard,
        lost,
        device=args.device,
        environment={"TRITON_INTERPRET": "1" if args.target else "0"},
        threads=1 if args.jobs > 1 else 0,
        limit=limit + GRACE,
        seconds=started + args.seconds - time.monotonic(),
        grace=args.closing,
    )
    farm.run()
    if farm.broken:
        sys.exit(1)
