"""Loading compiled kernels and calling them from Python.

The kernel convention
---------------------
Every generated CPU kernel has one signature::

    extern "C" int name(void** ptrs, const int64_t* ints)

`ptrs` are the addresses of its buffers, `ints` its runtime integers (sizes, strides, seeds); a
runtime float is one too, by the bits of a double (`litz.runtime.numbers`).  Both tables belong to
the caller: a kernel may read them, and nothing else of them.

The result is 0, or the 1-based number of a fault.  Whoever generates the kernel numbers its fault
sites (an index out of bounds, a failed assertion) and hands the messages to `Step.faults`, in that
order; a `Segment` raises `IndexError`, or the class that stands with the message.  A kernel that
meets a fault must stay within its buffers (clamp the index or skip the access), may leave anything
in its outputs, and needs no exit from the loop: threads store the number into one shared int
(`__atomic_store_n(&fault, k, __ATOMIC_RELAXED)`), and the kernel returns it at the end.

Segments -------- A segment is a fixed sequence of kernels, run by one native call that holds no
GIL.  Each step says which of the segment's pointers and integers its kernel takes.  Arguments are
packed into one bytes object with `struct`, which is several times cheaper than ctypes' conversion
of each argument.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from litz.dataclass import dataclass
from litz.errors import ToolchainError

_OPENMP = ("libgomp", "libiomp5", "libomp")
Fault = str | tuple[type[Exception], str]


@dataclass(frozen=True)
class Function:
    """A kernel in a loaded library."""

    library: Library
    name: str
    address: int


class Library:
    """A loaded shared object.  It stays loaded: its OpenMP threads may outlive any caller."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        ensure_openmp()
        try:
            self._handle = ctypes.CDLL(str(path))
        except OSError as error:
            raise ToolchainError(f"litz: cannot load the compiled kernels: {error}") from error

    def function(self, name: str) -> Function:
        """The kernel of that name; ToolchainError where there is none."""
        try:
            symbol = self._handle[name]
        except AttributeError as error:
            raise ToolchainError(f"litz: {self.path} has no kernel {name!r}") from error
        address = ctypes.cast(symbol, ctypes.c_void_p).value
        assert address is not None
        return Function(self, name, address)

    def __repr__(self) -> str:
        return f"Library({str(self.path)!r})"


class Runtime(Library):
    """The runtime support library, loaded: what runs segments."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self.function("litz_run_segment")
        # A char pointer accepts a bytes object as it is, without a copy.
        self.run_segment = self._handle["litz_run_segment"]
        self.run_segment.argtypes = [ctypes.c_char_p]
        self.run_segment.restype = ctypes.c_int64


@dataclass(frozen=True)
class Step:
    """One kernel call of a segment.

    `ptrs` and `ints` are positions among the segment's pointers and integers, in the order in which
    the kernel takes them.  `faults`: see the top of this module.
    """

    function: Function
    ptrs: tuple[int, ...]
    ints: tuple[int, ...] = ()
    faults: tuple[Fault, ...] = ()


class _CStep(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("n_ptrs", ctypes.c_int64),
        ("n_ints", ctypes.c_int64),
    )


class _CPlan(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_void_p),
        ("n_steps", ctypes.c_int64),
        ("n_ptrs", ctypes.c_int64),
        ("max_ptrs", ctypes.c_int64),
        ("max_ints", ctypes.c_int64),
    )


class Segment:
    """A fixed sequence of kernels, run by one call.

    Call it with `n_ptrs` addresses, then `n_ints` integers.  It returns None, raises what a
    kernel's fault stands for, and may be called by several threads at once.  The caller keeps the
    buffers alive during the call.
    """

    __slots__ = ("_keep", "_pack", "_plan", "_run", "_threads", "steps")

    def __init__(
        self, runtime: Runtime, steps: Sequence[Step], n_ptrs: int, n_ints: int = 0
    ) -> None:
        self.steps = tuple(steps)
        _check(self.steps, n_ptrs, n_ints)
        tables = [(ctypes.c_int32 * len(t))(*t) for t in (s.ptrs + s.ints for s in self.steps)]
        c_steps = (_CStep * len(self.steps))(
            *(
                _CStep(
                    step.function.address, ctypes.addressof(table), len(step.ptrs), len(step.ints)
                )
                for step, table in zip(self.steps, tables, strict=True)
            )
        )
        plan = _CPlan(
            ctypes.addressof(c_steps),
            len(self.steps),
            n_ptrs,
            max((len(step.ptrs) for step in self.steps), default=0),
            max((len(step.ints) for step in self.steps), default=0),
        )
        self._keep = (runtime, tables, c_steps, plan)
        self._plan = ctypes.addressof(plan)
        self._pack = struct.Struct(f"={1 + n_ptrs + n_ints}q").pack
        self._run = runtime.run_segment
        self._threads = torch.get_num_threads

    def __call__(self, *args: int) -> None:
        # PyTorch hands set_num_threads() on to OpenMP lazily in each thread: asking makes it do so.
        self._threads()
        status = self._run(self._pack(self._plan, *args))
        if status:
            self.raise_fault(status)

    @property
    def address(self) -> int:
        """Of the plan that the runtime's function for segments takes."""
        return self._plan

    def raise_fault(self, status: int) -> None:
        """Raise what a status other than 0 stands for."""
        step, number = self.steps[status >> 32], status & 0xFFFFFFFF
        name = step.function.name
        if number > len(step.faults):
            raise RuntimeError(f"kernel {name} reported fault {number}, which has no message")
        fault = step.faults[number - 1]
        kind, message = (IndexError, fault) if isinstance(fault, str) else fault
        raise kind(message)

    def __repr__(self) -> str:
        return f"Segment({', '.join(step.function.name for step in self.steps)})"


def _check(steps: tuple[Step, ...], n_ptrs: int, n_ints: int) -> None:
    for step in steps:
        if not all(0 <= p < n_ptrs for p in step.ptrs) or not all(
            0 <= i < n_ints for i in step.ints
        ):
            raise ValueError(f"step {step.function.name} takes an argument the segment has not")


@lru_cache(maxsize=1)
def ensure_openmp() -> bool:
    """Make the OpenMP runtime that PyTorch loaded the one that kernels bind to.

    Kernels are linked without an OpenMP library, so that GOMP's functions resolve in the process's
    global scope, where `import torch` puts its own copy: kernels and PyTorch then share one thread
    pool and `torch.set_num_threads`.  Where the copy is loaded but not global, it is made so.
    False: there is none to find.
    """
    if _has_openmp():
        return True
    for path in _openmp_candidates():
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        if _has_openmp():
            return True
    return False


def _has_openmp() -> bool:
    return hasattr(ctypes.CDLL(None), "GOMP_parallel")


def mapped_openmp() -> tuple[str, ...]:
    """OpenMP libraries that this process has mapped."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ()
    paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines())
    return tuple(dict.fromkeys(p for p in paths if Path(p).name.startswith(_OPENMP)))


def _openmp_candidates() -> list[str]:
    """OpenMP libraries that this process has mapped, then those that PyTorch brought."""
    found = list(mapped_openmp())
    home = Path(torch.__file__).parent
    for folder in (home / "lib", home.parent / "torch.libs"):
        found.extend(str(p) for p in sorted(folder.glob("lib*omp*")) if str(p) not in found)
    return found
