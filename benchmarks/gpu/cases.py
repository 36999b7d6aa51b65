"""A process that runs the Triton tests' cases on a device, one at a time, and answers requests.

``python -m benchmarks.gpu.cases DEVICE litz 0``.  On "cuda" kernels are compiled and launched; on
"cpu" they are interpreted, as in the tests.  A case is a kind and a name: "corpus softmax".
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.stand_in import import_pytest
from benchmarks.worker import reason, serve

TESTS = Path(__file__).resolve().parents[2] / "tests"
FOLDERS = (TESTS, TESTS / "triton", TESTS / "ops")
SAID_AT_MOST = 300


class Cases:
    """The cases of the corpus, of the op table's rows and of the runtime."""

    def __init__(self, device: str) -> None:
        # Triton decides at import whether kernels are interpreted.
        os.environ["TRITON_INTERPRET"] = "0" if device == "cuda" else "1"
        torch.ones(2, device=device)  # a context for what goes past PyTorch
        sys.path[:0] = map(str, FOLDERS)
        self.device = device
        self.skipped: type[BaseException] = import_pytest().skip.Exception
        backend_called("litz")
        self.corpus: Any = importlib.import_module("test_interpreted")
        self.rows: Any = importlib.import_module("test_rows")
        self.row_cases = [case.values for case in self.rows.CASES]
        self.options = dict(self.corpus.TRITON)
        self.kinds: dict[str, tuple[Iterable[str], Callable[[str], None]]] = {
            "corpus": (self.corpus.CORPUS, self.run_corpus),
            "dynamic": (self.corpus.DYNAMIC, partial(self.run_corpus, dynamic=True)),
            "gradients": (self.corpus.GRADIENTS, self.run_gradients),
            "row": (dict.fromkeys(row.name for row, _ in self.row_cases), self.run_row),
            "cast": (map(str, self.rows.CASTS), self.run_cast),
        }
        interpreted = vars(self.rows)["bind_interpreted"]
        bind = on_device if device == "cuda" else interpreted
        vars(self.rows)["bind_interpreted"] = partial(staged, bind, device)
        if device == "cuda":
            self.options = {}
            self.runtime: Any = importlib.import_module("test_triton_gpu")
            tests = [name for name in vars(self.runtime) if runnable(self.runtime, name)]
            self.kinds["runtime"] = (tests, self.run_runtime)

    def names(self) -> dict[str, list[str]]:
        return {"names": [f"{kind} {n}" for kind, (some, _) in self.kinds.items() for n in some]}

    def run(self, name: str) -> dict[str, Any]:
        """Run a case: whether it is right, or why not, and what it printed."""
        kind, _, rest = name.partition(" ")
        said, start, why = io.StringIO(), time.perf_counter(), None
        with contextlib.redirect_stdout(said):
            try:
                self.kinds[kind][1](rest)
                self.synchronize()
            except self.skipped as skipped:
                return {"seconds": 0.0, "why": None, "skipped": str(skipped), "said": ""}
            except Exception as error:
                sys.excepthook(type(error), error, error.__traceback__)
                why = reason(error)
        seconds = time.perf_counter() - start
        text = said.getvalue().strip()[:SAID_AT_MOST]
        return {"seconds": seconds, "why": why, "skipped": None, "said": text}

    def alive(self) -> dict[str, Any]:
        """Fails where the device no longer works for this process."""
        torch.ones(2, device=self.device).sum().item()
        return {}

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def arguments(self, name: str) -> tuple[Any, list[Tensor]]:
        fn, args = self.corpus.CORPUS[name]
        return fn, [a.to(self.device) for a in args]

    def run_corpus(self, name: str, dynamic: bool | None = None) -> None:
        fn, args = self.arguments(name)
        self.corpus.check(fn, *args, runs=2, dynamic=dynamic, **self.options)

    def run_gradients(self, name: str) -> None:
        fn, args = self.arguments(name)
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend="litz", options=self.options)
        ours, eager = gradients(compiled, args), gradients(fn, args)
        exact = gradients(fn, [a.double() for a in args])
        for got, base, true in zip(ours, eager, exact, strict=True):
            rounding = torch.finfo(got.dtype).eps * true.abs().max()
            error, limit = ((x.double() - true).norm() for x in (got, base))
            if not error <= 2 * limit + rounding:
                raise AssertionError(f"error {error:.3e}, eager's {limit:.3e}")

    def run_row(self, name: str) -> None:
        some = [(row, dtype) for row, dtype in self.row_cases if row.name == name]
        self.each((dtype, partial(self.rows.test_row, row, dtype)) for row, dtype in some)

    def run_cast(self, name: str) -> None:
        (source,) = (d for d in self.rows.CASTS if str(d) == name)
        self.each((to, partial(self.rows.test_cast, source, to)) for to in self.rows.CASTS)

    def each(self, tests: Iterable[tuple[object, Callable[[], None]]]) -> None:
        """Run a test a type; those that fail are named together."""
        failed = []
        for dtype, test in tests:
            try:
                test()
            except self.skipped:
                pass
            except Exception as error:
                self.synchronize()
                failed.append(f"{dtype}: {reason(error)}")
        if failed:
            raise AssertionError("; ".join(failed))

    def run_runtime(self, name: str) -> None:
        test = getattr(self.runtime, name)
        with tempfile.TemporaryDirectory() as folder:
            test(*(Path(folder) for _ in signature(test).parameters))


def runnable(module: Any, name: str) -> bool:
    """Whether it is a test that wants at most a folder."""
    if not name.startswith("test_"):
        return False
    return set(signature(getattr(module, name)).parameters) <= {"tmp_path"}


def gradients(fn: Any, args: list[Tensor]) -> list[Tensor]:
    """Gradients of a weighted sum with respect to all arguments."""
    leaves = [a.clone().requires_grad_() for a in args]
    out = fn(*leaves)
    weights = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64, device=out.device)
    (out * weights.view_as(out).to(out.dtype)).sum().backward()
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def on_device(kernel: Any) -> Callable[..., None]:
    """The launcher of a kernel on the current CUDA device."""
    from litz.runtime.cache import Cache
    from litz.targets.triton.cuda import bind_cuda, cuda_site

    return bind_cuda(kernel, cuda_site(0, Cache(None)))


def staged(bind: Any, device: str, kernel: Any) -> Callable[..., None]:
    """A launcher that takes host addresses: arrays go to the device and results come back.

    The kernel is one loop over arrays of one length.
    """
    launch = bind(kernel)
    ((_, length),) = kernel.launches[0].grid
    sizes = [int(str(length)) * p.dtype.bytes for p in kernel.params]

    def call(*addresses: int) -> None:
        hosts = [view(a, n) for a, n in zip(addresses, sizes, strict=True)]
        copies = [host.to(device, copy=True) for host in hosts]
        launch(*(copy.data_ptr() for copy in copies))
        for param, host, copy in zip(kernel.params, hosts, copies, strict=True):
            if param.mode != "in":
                host.copy_(copy)

    return call


def view(address: int, nbytes: int) -> Tensor:
    """Bytes of the host's memory as a tensor."""
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)


def main() -> None:
    serve(partial(Cases, sys.argv[1]))


if __name__ == "__main__":
    main()
