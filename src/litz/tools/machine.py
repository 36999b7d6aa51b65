"""What a machine has of what Litz needs, as one value; ``litz.tools.doctor`` judges it."""

from __future__ import annotations

import ctypes
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import torch

from litz.dataclass import dataclass
from litz.errors import LitzError, ToolchainError
from litz.options import Options
from litz.runtime.cache import LAYOUT, Cache, default_root
from litz.runtime.cpu import Isa, detect_isa
from litz.runtime.eviction import entries
from litz.runtime.native import Library, mapped_openmp
from litz.runtime.triton.build import build as build_triton
from litz.runtime.triton.driver import CudaError, cuda_driver, driver_version
from litz.runtime.triton.job import KernelJob
from litz.runtime.triton.launch import bind
from litz.runtime.triton.pool import Triton, find_triton
from litz.targets.cpp.toolchain import (
    SourceUnit,
    Toolchain,
    find_toolchain,
    submit,
)
from litz.targets.tools import Tools
from litz.targets.triton.cuda import Site, cuda_site
from litz.tools.demo import relative_error

T = TypeVar("T")

NO_DEVICE = 100  # CUresult
NAME = "litz_doctor"
CPP = f"""\
extern "C" int {NAME}(void** ptrs, const long long*) {{
  long long threads = 0;
#pragma omp parallel reduction(+ : threads)
  threads += 1;
  *(long long*)ptrs[0] = threads;
  return 0;
}}
"""
TRITON_SOURCE = f"""\
import triton
import triton.language as tl

@triton.jit
def {NAME}(x):
    tl.store(x, 42)
"""
TRITON = KernelJob(TRITON_SOURCE, NAME, (("x", "*i32"),), options=(("num_warps", 1),))


@dataclass(frozen=True)
class Ran:
    """A C++ kernel that ran: seconds with its build, and the threads that it had."""

    seconds: float
    threads: int


@dataclass(frozen=True)
class Folder:
    """The cache folder.  size, limit: in bytes (limit 0: none).  mine: not another user's."""

    path: str
    size: int
    limit: int
    writable: bool
    mine: bool = True
    mode: int = 0


@dataclass(frozen=True)
class Compiled:
    """One ``torch.compile``.  Errors are beside float64; fallback: why ATen ran it, or ''."""

    seconds: float
    error: float
    eager_error: float
    fallback: str = ""


@dataclass(frozen=True)
class Machine:
    """A string in place of another value says why there is none; None: it was not tried.

    backend: whether PyTorch knows the name.  needs: requirements of the packages litz and torch.
    threads: PyTorch's.  openmp: libraries that are loaded once a kernel ran.  best: what the
    processor can at most; safe: whether it can run `isa`.  driver: of CUDA (12040: 12.4), None
    without one.  built: seconds that a Triton kernel took.  compiled: by device.
    """

    python: str
    backend: bool
    needs: Mapping[str, tuple[str, ...]]
    torch: str
    threads: int
    triton: Triton | str
    isa: Isa | str
    best: Isa
    safe: bool
    compiler: Toolchain | str
    ran: Ran | str | None
    executor: Path | str
    openmp: tuple[str, ...]
    gpus: tuple[str, ...]
    driver: int | str | None
    built: float | str | None
    folder: Folder | None
    environment: Mapping[str, str]
    compiled: Mapping[str, Compiled | str]


def look(options: Options, environment: Mapping[str, str]) -> Machine:
    """Look at this machine; builds and runs small kernels.  environment: reported as it is."""
    best, isa = detect_isa(), _tried(lambda: detect_isa(options.isa or None))
    # Of what it lacks, the processor would kill this process.
    safe = isinstance(isa, Isa) and (
        isa.name in ("generic", best.name) or (isa.name, best.name) == ("avx2", "avx512")
    )
    chosen = isa.name if isinstance(isa, Isa) else None
    compiler = _tried(lambda: find_toolchain(options.cxx or None, chosen))
    triton = _tried(find_triton)
    gpus = _gpus()
    ran: Ran | str | None = None
    built: float | str | None = None
    with tempfile.TemporaryDirectory() as name:
        cache = Cache(name)
        if isinstance(compiler, Toolchain) and safe:
            ran = _tried(lambda: _run(compiler, cache))
        if isinstance(triton, Triton):
            built = _tried(lambda: _build(cache, cuda_site(0, cache) if gpus else None))
    return Machine(
        python=platform.python_version(),
        backend=any(e.name == "litz" for e in metadata.entry_points(group="torch_dynamo_backends")),
        needs={name: _needs(name) for name in ("litz", "torch")},
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        triton=triton,
        isa=isa,
        best=best,
        safe=safe,
        compiler=compiler,
        ran=ran,
        executor=_tried(lambda: Tools(options).executor.path),
        openmp=mapped_openmp(),
        gpus=gpus,
        driver=_driver(),
        built=built,
        folder=_folder(options),
        environment=environment,
        compiled={d: _compile(d) for d in (["cpu"] if safe else []) + (["cuda"] if gpus else [])},
    )


def _tried(call: Callable[[], T]) -> T | str:
    try:
        return call()
    except (LitzError, OSError, RuntimeError) as error:  # torch's are RuntimeErrors
        return str(error).removeprefix("litz: ")


def _needs(package: str) -> tuple[str, ...]:
    try:
        return tuple(metadata.requires(package) or ())
    except metadata.PackageNotFoundError:
        return ()


def _run(toolchain: Toolchain, cache: Cache) -> Ran:
    start = time.perf_counter()
    (path,) = submit([SourceUnit(NAME, CPP)], toolchain, cache, seconds=60).wait()
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
        Library(path).function(NAME).address
    )
    torch.get_num_threads()  # hands set_num_threads() on to OpenMP
    out = ctypes.c_int64()
    call((ctypes.c_void_p * 1)(ctypes.addressof(out)), None)
    return Ran(time.perf_counter() - start, out.value)


def _build(cache: Cache, site: Site | None, device: str = "cuda:0") -> float:
    """Seconds to build a Triton kernel and run it; without a GPU it is built for another's."""
    start = time.perf_counter()
    job = replace(TRITON, target=site.device.properties.target) if site else TRITON
    (binary,) = build_triton([job], cache, 1)
    if site:
        out = torch.zeros(1, dtype=torch.int32, device=device)
        bind(site.device.load(binary), job, site.stream)(1, 1, 1, out.data_ptr())
        if (said := int(out)) != 42:
            raise ToolchainError(f"a Triton kernel that stores 42 stored {said}")
    return time.perf_counter() - start


def _gpus() -> tuple[str, ...]:
    if not torch.cuda.is_available():
        return ()
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return tuple(f"{p.name} ({p.major}.{p.minor}, {p.total_memory >> 30} GiB)" for p in found)


def _driver() -> int | str | None:
    try:
        cuda_driver()
    except LitzError as error:
        absent = isinstance(error.__cause__, OSError)
        if absent or (isinstance(error, CudaError) and error.code == NO_DEVICE):
            return None
        return str(error).removeprefix("litz: ")
    return driver_version()


def _folder(options: Options) -> Folder | None:
    root = Path(os.path.expanduser(options.cache_dir)) if options.cache_dir else default_root()
    if root is None:
        return None
    root = root.absolute()
    stats = [p.stat() for p in (root, root / LAYOUT) if p.is_dir()]
    # Folders are made as they are needed.
    there = next(p for p in (root / LAYOUT, root, *root.parents) if p.exists())
    return Folder(
        str(root),
        sum(size for _, _, size in entries(root / LAYOUT)),
        options.cache_size << 20,
        _tried(lambda: os.rmdir(tempfile.mkdtemp(dir=there))) is None,
        all(s.st_uid == os.getuid() for s in stats),
        stats[0].st_mode | stats[-1].st_mode if stats else 0,
    )


def sample(x: torch.Tensor) -> torch.Tensor:
    """What is compiled."""
    return torch.softmax(torch.nn.functional.gelu(x) * 2 + 1, -1)


def _compile(device: str) -> Compiled | str:
    try:
        x = torch.linspace(-3, 3, 64_000, device=device).reshape(64, 1000)
        with warnings.catch_warnings(record=True) as seen, torch.no_grad():
            warnings.simplefilter("always")
            start = time.perf_counter()
            out = torch.compile(sample, backend="litz")(x)
            seconds = time.perf_counter() - start
            expected, reference = sample(x), sample(x.double())
    except Exception as raised:  # whatever it is, it is what this machine does
        cause = getattr(raised, "inner_exception", raised)
        return f"{type(cause).__name__}: {cause}"
    said = [str(w.message).partition("\n")[0] for w in seen if "through ATen" in str(w.message)]
    error, eager_error = relative_error(out, reference), relative_error(expected, reference)
    return Compiled(seconds, error, eager_error, said[0].partition(". ")[0] if said else "")
