"""The replay corpus in packages: ``python -m tests.loading.package_corpus``.

Each CPU graph that can be packaged is run by ``torch.compile``, by ``litz.load`` and from C++; what
they give has to be equal to the bit, layouts and written inputs too.  Prints a line for each that
differs or cannot be packaged, with the reason; the exit status is 1 where one differs.
``--sanitize``: what runs from C++ is built with AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import litz
from litz import PackageError
from litz.runtime.strided import copy_as_it_is
from litz.runtime.torch_private import dtype_code
from tests.host.test_host_native import same
from tests.native import SANITIZED, built, called
from tests.replay.corpus import Entry, corpus

RUNNER = Path(__file__).with_name("run_packages.cpp")
NAMES = """bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64
complex64 complex128 float8_e4m3fn float8_e5m2""".split()
DTYPES = {dtype_code(d): d for d in (getattr(torch, name) for name in NAMES)}


def entries() -> dict[str, Entry]:
    """What is compiled on CPUs; a package has no gradients, so that each is here once."""
    found = corpus().items()
    real = {k: e for k, e in found if e.build and e.device == "cpu" and not e.fake}
    return {k: e for k, e in real.items() if not k.endswith("+training")}


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def copied(values: Any) -> Any:
    """Arguments of their own, of the same strides."""
    return pytree.tree_map_only(torch.Tensor, lambda x: copy_as_it_is(x.detach()), values)


def word(value: Any, path: Path) -> str:
    """An input as the runner takes it."""
    match value:
        case None:
            return "none"
        case bool() | int() | float() | str():
            kind = {str: "text"}.get(type(value), type(value).__name__)
            return f"{kind}:{int(value) if kind == 'bool' else value}"
    path.write_bytes(bytes_of(value.contiguous()))
    return f"{str(value.dtype).removeprefix('torch.')}:{'x'.join(map(str, value.shape))}:{path}"


def bytes_of(x: torch.Tensor) -> bytes:
    return x.reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


def read(line: str, path: Path) -> Any:
    """What the runner said."""
    kind, _, rest = line.partition(" ")
    if kind != "tensor":
        makes: dict[str, Any] = {"int": int, "float": float, "bool": lambda x: bool(int(x))}
        return None if kind == "none" else makes.get(kind, str)(rest)
    code, *dims = rest.split()
    sizes, strides = zip(*(map(int, d.split(":")) for d in dims), strict=True) if dims else ((), ())
    data = bytearray(path.read_bytes())
    if not data:
        return torch.empty_strided(sizes, strides, dtype=DTYPES[int(code)])
    return torch.frombuffer(data, dtype=DTYPES[int(code)]).as_strided(sizes, strides)


def equal(found: Sequence[Any], wanted: Sequence[Any], who: str) -> str:
    if len(found) != len(wanted):
        return f"{who} gives {len(found)} leaves, not {len(wanted)}"
    for n, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if not same(a, b):
            return f"leaf {n} of {who} differs: {_short(a)}, not {_short(b)}"
    return ""


def _short(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{x.dtype} {[*x.shape]} {[*x.stride()]} {x.flatten()[:4].tolist()}"
    return repr(x)


def from_cpp(run: Path, package: Path, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Results and inputs behind the call, from C++.  RuntimeError: what it said instead."""
    prefix = package.with_suffix("")
    inputs = [word(x, package.with_suffix(f".in{n}")) for n, x in enumerate(leaves)]
    (listed := package.with_suffix(".list")).write_text(
        "\t".join((*map(str, (package, prefix)), *inputs))
    )
    done = called(run, listed, ASAN_OPTIONS="detect_leaks=0")
    if done.returncode:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stderr[-3000:]}")
    lines = Path(f"{prefix}.out").read_text().splitlines()
    if lines[0].startswith("error "):
        raise RuntimeError(lines[0])
    at = lines.index("inputs")
    found = [None if n == at else read(x, Path(f"{prefix}.{n}")) for n, x in enumerate(lines)]
    return found[:at], found[at + 1 :]


def difference(entry: Entry, run: Path, folder: Path) -> str:
    """In what ways to run an entry differ; "" for none.  PackageError: it is not packaged."""
    assert entry.build
    torch.manual_seed(0)
    torch._dynamo.reset()
    fn, args = entry.build()
    module = fn if isinstance(fn, nn.Module) else Called(fn)
    args, path = copied(args), folder / "program.litz"
    shapes: Any = None
    if entry.dynamic:
        open_ = [
            dict.fromkeys(range(a.dim()), Dim.AUTO) if isinstance(a, torch.Tensor) else None
            for a in args
        ]
        shapes = tuple(open_) if isinstance(fn, nn.Module) else (tuple(open_),)
    with torch.no_grad():
        litz.package(copy.deepcopy(module), path, copied(args), dynamic_shapes=shapes)
        program = litz.load(path)
        mine, theirs = copied(args), copied(args)
        jit = torch.compile(
            module, backend="litz", dynamic=entry.dynamic, options={"host": "native"}
        )
        wanted = pytree.tree_leaves((jit(*theirs), theirs))
        found = pytree.tree_leaves((program(*mine), mine))
    if said := equal(found, wanted, "the package"):
        return said
    leaves = pytree.tree_leaves(args)
    try:
        results, inputs = from_cpp(run, path, leaves)
    except RuntimeError as e:
        return f"from C++: {e}"
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    behind = [x for x in pytree.tree_leaves(mine) if isinstance(x, torch.Tensor)]
    changed = [x.reshape(-1) for x, _ in zip(behind, tensors, strict=True)]
    flat = [x.reshape(-1) for x in inputs]  # they lay otherwise
    return equal([*results, *flat], [*found[: len(results)], *changed], "the package in C++")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="entries whose names have this in them")
    parser.add_argument("--sanitize", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # what runs from C++ adds up in the same order
    counts = {"equal": 0, "not packaged": 0, "different": 0}
    with tempfile.TemporaryDirectory(prefix="litz-corpus-") as name:
        run = built(Path(name), *(SANITIZED if given.sanitize else ()), main=RUNNER)
        for entry, e in entries().items():
            if given.only not in entry:
                continue
            try:
                said = difference(e, run, Path(name))
                kind = "different" if said else "equal"
            except PackageError as error:
                kind, said = "not packaged", str(error)
            counts[kind] += 1
            if said:
                print(f"{entry}: {kind}: {said}", flush=True)
    print(", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
