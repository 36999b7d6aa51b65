"""Looking at tensors while a program runs: printed, checked, summed up or saved.

Host programs call ``look`` around the steps that were chosen (option ``inspect``), compiled ones
and packages alike.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from litz.runtime.meeting import rank

RECORDS: Final = "records.jsonl"


def look(
    step: int,
    after: bool,
    kernel: str,
    nodes: Sequence[str],
    line: str,
    how: str,
    folder: str,
    names: Sequence[str],
    *tensors: torch.Tensor,
) -> None:
    """Look at what a step reads, before it, or at what it writes, after it.

    step: its number in the host program; kernel, nodes, line: the kernel or operator, its graph
    nodes and the user's line.  names, tensors: of the buffers, as many of each.
    how: ``print`` (to stderr), ``check``, ``sum`` (append a record to ``records.jsonl`` in the
    folder, of several processes in a folder ``rankN`` of each in it), ``save`` (the same, and the
    tensor beside it).
    Raises FloatingPointError under ``check`` for the first tensor with a nan or an infinity.
    """
    when = "after" if after else "before"
    mine = "" if (n := rank()) is None else f"rank{n}"
    where = {"step": step, "when": when, "kernel": kernel, "nodes": list(nodes), "line": line}
    with torch.no_grad():
        for name, value in zip(names, tensors, strict=True):
            x = value.detach().cpu()
            if how == "check":
                _check(name, x, f"{when} {kernel} ({', '.join(nodes)}; {line or 'no line'})")
            elif how == "print":
                about = " ".join(f"{k}={v}" for k, v in facts(x).items())
                said = f"litz: {when} {step} {kernel} {line}: {name} {about}"
                print(f"[{mine}]: {said}" if mine else said, file=sys.stderr, flush=True)
            else:
                _keep({**where, "buffer": name, **facts(x)}, Path(folder, mine), x, how == "save")


def facts(x: torch.Tensor) -> dict[str, Any]:
    """What a record says of a CPU tensor.

    sha256: the first 16 digits of its contents' hash, row by row.  nan, inf: how many; min, max: of
    what is finite, None without any.
    """
    plain = x.contiguous()
    contents = (ctypes.c_char * plain.nbytes).from_address(plain.data_ptr() or 1)
    numbers = _numbers(x)
    finite = numbers[numbers.isfinite()]
    some = finite.numel() > 0
    return {
        "dtype": str(x.dtype).removeprefix("torch."),
        "shape": list(x.shape),
        "nan": int(numbers.isnan().sum()),
        "inf": int(numbers.isinf().sum()),
        "min": float(finite.min()) if some else None,
        "max": float(finite.max()) if some else None,
        "sha256": hashlib.sha256(contents).hexdigest()[:16],
    }


def _numbers(x: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).double().flatten()


def _check(name: str, x: torch.Tensor, where: str) -> None:
    if not (x.is_floating_point() or x.is_complex()):
        return
    numbers = _numbers(x)
    nans, infinities = int(numbers.isnan().sum()), int(numbers.isinf().sum())
    if nans or infinities:
        raise FloatingPointError(
            f"litz: {nans} nan and {infinities} infinities among {numbers.numel()} numbers of "
            f"{name} {where}"
        )


def _keep(record: dict[str, Any], folder: Path, x: torch.Tensor, whole: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / RECORDS).open("a") as out:
        fcntl.flock(out, fcntl.LOCK_EX)  # threads and processes write into one file
        out.seek(0, 2)
        if whole:  # the place in the file makes a name that no other has
            record["file"] = f"{out.tell()}-{record['buffer']}.pt"
            torch.save(x, folder / record["file"])
        out.write(json.dumps(record) + "\n")
