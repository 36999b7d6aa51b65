"""cuBLASLt as a library of products: by ctypes on the one that PyTorch has loaded.

Matrices of cuBLASLt lie column by column.  ``out = left @ right`` row by row is its transpose that
way: ``right`` stands left there, and a row that is added to all is a vector along columns.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from ctypes import byref, c_float, c_int, c_int8, c_int64, c_size_t, c_uint64, c_void_p
from threading import Lock
from typing import Any, Final

import torch

from litz.dataclass import dataclass
from litz.runtime.instance import Instance, Matrix, Problem, Told
from litz.runtime.products import Aten, Call, Library, Operands
from litz.runtime.torch_private import current_raw_stream

# cudaDataType_t, cublasComputeType_t, and what types products sum in.
TYPES: Final = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
SMALL: Final = {torch.float8_e4m3fn: 28, torch.float8_e5m2: 29}
SINGLE, FAST_TF32 = 68, 77
# cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreference...
TRANS_A, TRANS_B, EPILOGUE, BIAS_POINTER, BIAS_TYPE = 3, 4, 7, 8, 26
SCALES, FAST, SCALE_MODES, OF_ROWS = (17, 18), 25, (31, 32), 3
BATCHES, BATCH_STEP = 5, 6
WORKSPACE, REDUCTIONS, ALIGNED_A = 1, 3, 5
# cublasLtEpilogue_t: what follows the sum, and that a vector is added in front of it.
EPILOGUES: Final = {"": 1, "relu": 2, "gelu": 32, "gelu_backward": 64}
BIAS, AUX = 4, 128
AUX_POINTER, AUX_STEP = 11, 12
IN_SUMS = 2  # of cublasLtReductionScheme_t: parts of a sum are added in the type of sums
ROOM = 32 << 20  # bytes of workspace at most: what the heuristics are made for
ANSWERS = 15, 7  # statuses that say that there is no such way
INTEGERS: Final[Mapping[int, Any]] = {1: c_int8, 4: c_int, 8: c_int64}
NEWER = 120900  # the version from which rows and columns have scales of their own


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque, valid for this version of the library."""

    _fields_ = (("data", c_uint64 * 8),)


class Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


def loaded_library(version: str | None = torch.version.cuda) -> Any:
    """The cuBLASLt that PyTorch has loaded, for its version of CUDA; None without one."""
    return None if version is None else loaded(f"libcublasLt.so.{version.partition('.')[0]}")


def loaded(name: str) -> Any:
    """A library that the process has loaded; None without it."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class _Side:
    """A matrix column by column: rows, columns, elements from column to column and batch to batch.

    turned: whether it is the transpose of what it stands for.
    """

    rows: int
    columns: int
    step: int
    batch: int
    turned: bool


def _side(x: Matrix) -> _Side | None:
    """A matrix that lies row by row (its transpose lies column by column) or column by column."""
    *batch, rows, columns = x.shape
    *over, down, across = x.strides
    step = over[0] if batch else 0
    if across == 1 and down >= columns:
        return _Side(columns, rows, down, step, False)
    if down == 1 and across >= rows:
        return _Side(rows, columns, across, step, True)
    return None


def libraries(device: torch.device) -> tuple[Library, ...]:
    """The libraries that there are on a device, ATen first."""
    found = loaded_library() if device.type == "cuda" else None
    more = () if found is None else (CublasLt(found, Gpu(device.index or 0)),)
    return (Aten(device.type == "cuda"), *more)


@dataclass(frozen=True)
class Gpu:
    """A device as the library is told of it."""

    index: int

    def current(self) -> AbstractContextManager[Any]:
        """Where it is the current device."""
        return torch.cuda.device(self.index)

    def handle(self) -> int:
        """PyTorch's handle of cuBLAS, which is one of cuBLASLt too."""
        return int(torch.cuda.current_blas_handle())  # type: ignore[no-untyped-call]

    def stream(self) -> int:
        return current_raw_stream(self.index)

    def records(self) -> bool:
        """Whether what the current stream is given becomes part of a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()


class CublasLt:
    """cuBLASLt on one device.  library: what has its functions."""

    def __init__(self, library: Any, gpu: Gpu) -> None:
        self._library = library
        self._gpu = gpu
        library.cublasLtGetVersion.restype = c_size_t
        self.number = int(library.cublasLtGetVersion())
        self.version = f"cublasLt {self.number}"

    def instances(self, problem: Problem, most: int) -> Sequence[Instance]:
        if not takes(problem) or (_by_rows(problem) and self.number < NEWER):
            return ()
        made, preference = _Descriptors(self, problem), self.create("cublasLtMatmulPreference")
        self.set("cublasLtMatmulPreference", preference, WORKSPACE, c_uint64(ROOM))
        self.set("cublasLtMatmulPreference", preference, REDUCTIONS, c_int(IN_SUMS))
        # A and B are right and left; C and D the result, and what is added to it if that is whole.
        sides = problem.right, problem.left, problem.added or problem.out, problem.out
        for k, x in enumerate(sides):
            aligned = c_int(x.aligned if len(x.shape) > 1 else problem.out.aligned)
            self.set("cublasLtMatmulPreference", preference, ALIGNED_A + k, aligned)
        found, count = (Found * most)(), c_int()
        with self._gpu.current():
            status = self._library.cublasLtMatmulAlgoGetHeuristic(
                c_void_p(self._gpu.handle()), made.product, *made.layouts, preference, c_int(most),
                found, byref(count),
            )  # fmt: skip
        if status not in ANSWERS:
            self.check("cublasLtMatmulAlgoGetHeuristic", status)
        self.call("cublasLtMatmulPreferenceDestroy", preference)
        right = [f for f in found[: count.value] if f.state == 0]
        return [Instance(self.version, bytes(f.algorithm).hex(), int(f.workspace)) for f in right]

    def bind(self, problem: Problem, instance: Instance) -> Call:
        return _Bound(self, problem, instance)

    def told(self, problem: Problem) -> Told:
        return told(problem)

    # --- the library's functions --------------------------------------------------------------

    def create(self, kind: str, *given: Any) -> c_void_p:
        made = c_void_p()
        self.call(f"{kind}Create", byref(made), *given)
        return made

    def set(self, kind: str, what: c_void_p, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        self.call(f"{kind}SetAttribute", what, c_int(attribute), byref(value), size)

    def call(self, name: str, *given: Any) -> None:
        self.check(name, getattr(self._library, name)(*given))

    def check(self, name: str, status: int) -> None:
        if status:
            raise RuntimeError(f"{name} failed with status {status}")

    def run(self, *given: Any) -> None:
        """``cublasLtMatmul`` between the handle and the stream."""
        with self._gpu.current():
            handle, stream = c_void_p(self._gpu.handle()), c_void_p(self._gpu.stream())
            self.call("cublasLtMatmul", handle, *given, stream)


def takes(p: Problem) -> bool:
    """Whether cuBLASLt has a form for a problem."""
    kinds = {p.left.dtype, p.right.dtype, p.out.dtype}
    alike = len(kinds) == 1 and kinds <= TYPES.keys()
    if not (alike if p.scales is None else _is_scaled(p)) or 0 in (*p.out.shape, *p.left.shape):
        return False
    sides = [_side(p.left), _side(p.right), _side(p.out)]
    out = sides[-1]
    if None in sides or out is None or out.turned or p.epilogue not in EPILOGUES:
        return False
    if p.epilogue and not p.fusable:
        return False
    if p.aux is not None and not _is_aux(p, p.aux):
        return False
    if p.added is None:
        return True
    if p.added.dtype is not p.out.dtype:
        return False
    if len(p.added.shape) == 1:
        row = p.added.shape == p.out.shape[-1:] and p.added.strides == (1,)
        return row and p.beta == 1 and p.alpha == 1
    other = _side(p.added) if p.added.shape == p.out.shape else None
    return other is not None and not other.turned


def _is_aux(p: Problem, aux: Matrix) -> bool:
    """Whether the input of an activation lies as the result does, its rows of whole 16 bytes."""
    side, plain = _side(aux), len(aux.shape) == 2 and aux.dtype is p.out.dtype
    whole = side is not None and side.step * aux.dtype.itemsize % 16 == 0 == aux.aligned % 16
    only = p.epilogue == "gelu" or (p.added is None and p.alpha == 1)
    return plain and whole and only and side is not None and not side.turned


def _is_scaled(p: Problem) -> bool:
    """Whether 8-bit floats lie as they have to, with scales of both, or of rows and columns."""
    assert p.scales is not None
    left, right = _side(p.left), _side(p.right)
    factors = {p.left.dtype, p.right.dtype}
    small = factors <= SMALL.keys() and factors != {torch.float8_e5m2}
    lies = left is not None and right is not None and right.turned and not left.turned
    plain = (p.alpha, p.beta) == (1, 1) and len(p.out.shape) == 2 and p.out.dtype in TYPES
    kinds = all(x.dtype is torch.float32 for x in p.scales)
    whole = all(s % 16 == 0 for s in (*p.left.shape[1:], *p.right.shape))
    one = all(math.prod(x.shape) == 1 for x in p.scales)
    return small and lies and plain and kinds and whole and (one or _by_rows(p))


def _by_rows(p: Problem) -> bool:
    """Whether each row of the left factor, and each column of the right one, has a scale."""
    if p.scales is None or len(p.out.shape) != 2:
        return False
    (m, n), (a, b) = p.out.shape, p.scales
    return a.shape == (m, 1) and b.shape == (1, n) and (m, n) != (1, 1) and (
        a.strides[0] == 1 and b.strides[1] == 1
    )  # fmt: skip


def told(p: Problem) -> Told:
    """What cuBLASLt is told of a problem that it ``takes``."""
    row = p.added is not None and len(p.added.shape) == 1
    epilogue = EPILOGUES[p.epilogue] if p.epilogue or not row else 0
    epilogue |= (BIAS if row else 0) | (0 if p.aux is None else AUX)
    settings: list[tuple[int, int, int]]
    settings = [(a, side(x).turned, 4) for a, x in ((TRANS_A, p.right), (TRANS_B, p.left))]
    settings += [(EPILOGUE, epilogue, 4)]
    pointers = []
    if p.aux is not None:
        settings += [(AUX_STEP, p.aux.strides[0], 8)]
        pointers += [(AUX_POINTER, "aux")]
    if row:
        settings += [(BIAS_TYPE, TYPES[p.out.dtype], 4)]
        pointers += [(BIAS_POINTER, "added")]
    if p.scales is not None:
        settings += [(FAST, p.fast, 1)]
        settings += [(mode, OF_ROWS, 4) for mode in SCALE_MODES if _by_rows(p)]
        pointers += list(zip(SCALES, ("right scale", "left scale"), strict=True))
    whole = p.out if row or p.added is None else p.added
    layouts = tuple(_layout(x) for x in (p.right, p.left, whole, p.out))
    numbers = tuple((a, int(value), size) for a, value, size in settings)
    compute = FAST_TF32 if p.tf32 else SINGLE
    return Told(compute, numbers, layouts, tuple(pointers), p.added is not None and not row)


def _layout(x: Matrix) -> tuple[int, ...]:
    lies = side(x)
    batches = (x.shape[0], lies.batch) if len(x.shape) == 3 else (0, 0)
    return ({**TYPES, **SMALL}[x.dtype], lies.rows, lies.columns, lies.step, *batches)


def side(x: Matrix) -> _Side:
    """``_side`` of a matrix that cuBLASLt takes."""
    found = _side(x)
    assert found is not None
    return found


class _Descriptors:
    """What cuBLASLt is told of a problem; it is told no more when that is gone."""

    def __init__(self, lt: CublasLt, p: Problem) -> None:
        self._lt = lt
        self._made: list[tuple[str, c_void_p]] = []
        self.told = told(p)
        self.product = self._new("cublasLtMatmulDesc", c_int(self.told.compute), c_int(0))
        self.layouts = [self._layout(*x) for x in self.told.layouts]
        for attribute, value, size in self.told.settings:
            self._set(attribute, INTEGERS[size](value))
        for attribute, name in self.told.pointers:  # heuristics look at how these are aligned
            self._set(attribute, c_void_p(_operand(p, name).aligned))

    def point(self, o: Operands) -> None:
        """Say where the operands are that are part of what all calls share."""
        for attribute, name in self.told.pointers:
            self._set(attribute, c_void_p(_operand(o, name).data_ptr()))

    def _set(self, attribute: int, value: Any) -> None:
        self._lt.set("cublasLtMatmulDesc", self.product, attribute, value)

    def _new(self, kind: str, *given: Any) -> c_void_p:
        made = self._lt.create(kind, *given)
        self._made.append((kind, made))
        return made

    def _layout(
        self, dtype: int, rows: int, columns: int, step: int, batches: int, batch: int
    ) -> c_void_p:
        sizes = c_uint64(rows), c_uint64(columns), c_int64(step)
        made = self._new("cublasLtMatrixLayout", c_int(dtype), *sizes)
        if batches:
            self._lt.set("cublasLtMatrixLayout", made, BATCHES, c_int(batches))
            self._lt.set("cublasLtMatrixLayout", made, BATCH_STEP, c_int64(batch))
        return made

    def __del__(self) -> None:
        for kind, made in self._made:
            self._lt.call(f"{kind}Destroy", made)


def _operand(o: Any, name: str) -> Any:
    """Of a problem or of a call what a pointer leads to."""
    if name.endswith("scale"):
        return o.scales[name == "right scale"]
    return getattr(o, name)


class _Bound:
    """One way to compute a problem, with everything that does not change from call to call."""

    def __init__(self, lt: CublasLt, p: Problem, instance: Instance) -> None:
        self._lt = lt
        self._made = _Descriptors(lt, p)
        self._algorithm = Algorithm.from_buffer_copy(bytes.fromhex(instance.what))
        self._workspace = instance.workspace
        self._whole = self._made.told.whole
        self._alpha, self._beta = c_float(p.alpha), c_float(p.beta if self._whole else 0.0)
        self._lock = Lock()

    def __call__(self, o: Operands) -> None:
        a, b, c, d = self._made.layouts
        under = o.added if self._whole and o.added is not None else o.out
        # On the stream that uses it, so that it may be another's as soon as that has.
        room = torch.empty(self._workspace, dtype=torch.uint8, device=o.out.device)
        with self._lock:
            self._made.point(o)
            self._lt.run(
                self._made.product,
                byref(self._alpha), c_void_p(o.right.data_ptr()), a, c_void_p(o.left.data_ptr()), b,
                byref(self._beta), c_void_p(under.data_ptr()), c, c_void_p(o.out.data_ptr()), d,
                byref(self._algorithm), c_void_p(room.data_ptr()), c_size_t(self._workspace),
            )  # fmt: skip
