"""cuDNN as a library of convolutions: by ctypes on the one that PyTorch has loaded.

A convolution and what is behind it are a graph of operations there, of which cuDNN's heuristics
name engines: its own kernels, or such that it compiles for the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import lru_cache
from threading import Lock
from typing import Any, Final

import torch

from litz.runtime.convolutions import (
    OPERANDS,
    Apart,
    Convolution,
    Images,
    Library,
    is_plain,
    plain_strides,
)
from litz.runtime.cublaslt import Gpu, loaded
from litz.runtime.instance import Instance

# cudnnDataType_t of what is convolved; sums and what follows them are float32.
TYPES: Final = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 9}
SINGLE: Final = 0
# cudnnBackendAttributeType_t, by what holds a value.
HANDLE, DATA_TYPE, BOOL, INT, FLOAT, POINTER = 0, 1, 2, 3, 4, 6
CROSS, HEURISTIC, KNOB, NANS, NOTE, POINTWISE, DESCRIPTOR = 7, 8, 9, 10, 11, 14, 15
HELD: Final[dict[int, Any]] = {
    HANDLE: c_void_p, BOOL: c_bool, INT: c_int64, FLOAT: c_float,
    POINTER: c_void_p, DESCRIPTOR: c_void_p,
}  # fmt: skip
# cudnnBackendDescriptorType_t
KINDS: Final = {
    "pointwise": 0, "convolution": 1, "engine": 2, "way": 3, "heuristics": 4, "plan": 5,
    "knob": 7, "convolve": 10, "apply": 13, "graph": 15, "given": 16, "tensor": 17,
}  # fmt: skip
NUMBERS: Final = {name: k + 1 for k, name in enumerate(OPERANDS)}
ADD, MUL, RELU = 0, 1, 100  # cudnnPointwiseMode_t
MODES: Final = (3, 2)  # cudnnBackendHeurMode_t: A, and what is left where that has nothing
# cudnnBackendNumericalNote_t: transforms, which spread nan and infinities, and sums in any order.
TRANSFORMS, NONDETERMINISTIC = {3, 5, 6, 7, 8}, 4
ROOM = 1 << 28  # bytes of workspace at most
NONE = 3000, 4000  # statuses between which there is no such way

Attribute = tuple[int, int, Sequence[Any]]
"""Of a descriptor: its number, the type of its values, and these."""


def libraries(device: torch.device) -> tuple[Library, ...]:
    """The libraries of convolutions that there are on a device, ATen first."""
    dnn: Any = torch.backends.cudnn
    number = dnn.version() if device.type == "cuda" and dnn.enabled else None
    found = None if number is None else _cudnn(number // 10000, device.index or 0)
    return (Apart(), *(() if found is None else (found,)))


def is_there() -> bool:
    """Whether this process has a library beside ATen."""
    return len(libraries(torch.device("cuda"))) > 1


@lru_cache
def _cudnn(major: int, index: int) -> Cudnn | None:
    """The one that PyTorch has loaded, once for each device: a handle takes time and memory."""
    found = loaded(f"libcudnn.so.{major}")
    return None if found is None else Cudnn(found, Gpu(index))


class Cudnn:
    """cuDNN on one device.  library: what has its functions."""

    def __init__(self, library: Any, gpu: Gpu) -> None:
        self._library, self._gpu = library, gpu
        library.cudnnGetVersion.restype = c_size_t
        self.version = f"cudnn {int(library.cudnnGetVersion())}"
        self._handle = c_void_p()
        self._lock = Lock()
        self._recorded: set[_Bound] = set()

    def instances(self, problem: Convolution, most: int) -> Sequence[Instance]:
        if not takes(problem):
            return ()
        try:
            graph = _Graph(self, problem)
        except Refused:
            return ()
        for mode in MODES:
            with suppress(Refused):
                if found := graph.ways(mode, most):
                    return found
        return ()

    def bind(self, problem: Convolution, instance: Instance) -> _Bound:
        """Raises RuntimeError while a graph is recorded: handles and plans take memory."""
        if self._gpu.records():
            raise Refused("a graph is recorded")
        return _Bound(self, problem, instance)

    def told(self, problem: Convolution) -> None:
        return None

    # --- the library's functions --------------------------------------------------------------

    @property
    def handle(self) -> c_void_p:
        """One of Litz's own, made when first something is asked."""
        if not self._handle:
            with self._lock, self._gpu.current():
                if not self._handle:
                    self.call("cudnnCreate", byref(self._handle))
        return self._handle

    def call(self, name: str, *given: Any) -> None:
        """Raises Refused where there is no such thing, RuntimeError where it fails."""
        status = getattr(self._library, name)(*given)
        if NONE[0] <= status < NONE[1]:
            raise Refused(f"{name}: status {status}")
        if status:
            raise RuntimeError(f"{name} failed with status {status}")

    def execute(self, bound: _Bound, given: c_void_p) -> None:
        """Run a plan on the current stream."""
        handle = self.handle
        with self._lock, self._gpu.current():
            if self._gpu.records():  # graphs run kernels that are gone when their plan is
                self._recorded.add(bound)
            self.call("cudnnSetStream", handle, c_void_p(self._gpu.stream()))
            self.call("cudnnBackendExecute", handle, bound.plan, given)


class Refused(RuntimeError):
    """cuDNN has no such way."""


def takes(p: Convolution) -> bool:
    """Whether cuDNN may have a form for a problem: 16 bits, all channels of a place together."""
    rows = [x for x in p.operands.values() if len(x.shape) == 1]
    whole = [x for x in p.operands.values() if len(x.shape) > 1]
    kinds = {x.dtype for x in whole} | {x.dtype for x in rows} - {torch.float32}
    small = kinds == {p.out.dtype} and p.out.dtype in TYPES and p.out.dtype.itemsize == 2
    lies = all(is_plain(x.shape, x.strides) for x in whole)
    return small and lies and len(p.out.shape) in (4, 5) and all(0 not in x.shape for x in whole)


class _Descriptors:
    """What cuDNN is told; it is told no more when that is gone."""

    def __init__(self, library: Cudnn) -> None:
        self.library = library
        self.made: list[c_void_p] = []

    def new(self, kind: str, *attributes: Attribute, finish: bool = True) -> c_void_p:
        made, call = c_void_p(), self.library.call
        call("cudnnBackendCreateDescriptor", c_int(KINDS[kind]), byref(made))
        self.made.append(made)
        for name, of, values in attributes:
            held = (HELD.get(of, c_int) * len(values))(*values)
            count = c_int64(len(values))
            call("cudnnBackendSetAttribute", made, c_int(name), c_int(of), count, held)
        if finish:
            call("cudnnBackendFinalize", made)
        return made

    def values(self, what: c_void_p, name: int, of: int, most: int, fill: str = "") -> list[Any]:
        """Values of an attribute, ``most`` at most.  fill: the kind of descriptors that it has."""
        held, count = (HELD.get(of, c_int) * most)(), c_int64()
        if fill:
            held[:] = [self.new(fill, finish=False).value for _ in range(most)]
        self.library.call(
            "cudnnBackendGetAttribute", what, c_int(name), c_int(of), c_int64(most), byref(count),
            held,
        )  # fmt: skip
        return list(held[: count.value])

    def __del__(self) -> None:
        for made in reversed(self.made):
            self.library.call("cudnnBackendDestroyDescriptor", made)


class _Graph(_Descriptors):
    """The operations of a problem, whose operands have the numbers of ``OPERANDS``."""

    def __init__(self, library: Cudnn, p: Convolution) -> None:
        super().__init__(library)
        self._problem, self._inside = p, len(OPERANDS)
        rank = len(p.out.shape) - 2
        how = self.new(
            "convolution", (100, DATA_TYPE, [SINGLE]), (101, CROSS, [1]), (102, INT, p.dilation),
            (103, INT, p.stride), (104, INT, p.padding), (105, INT, p.padding), (106, INT, [rank]),
        )  # fmt: skip
        steps = [(MUL, "scale"), (ADD, "added"), (ADD, "bias"), (RELU, p.epilogue)]
        steps = [(mode, of) for mode, of in steps if of in p.operands or of == "relu"]
        value = self._tensor("" if steps else "out")
        ops = [self.new(
            "convolve", (700, FLOAT, [1.0]), (701, FLOAT, [0.0]), (702, DESCRIPTOR, [how]),
            (703, DESCRIPTOR, [self._tensor("weight")]),
            (704, DESCRIPTOR, [self._tensor("image")]), (705, DESCRIPTOR, [value]),
        )]  # fmt: skip
        for k, (mode, of) in enumerate(steps):
            result = self._tensor("" if k < len(steps) - 1 else "out")
            kind = self.new(
                "pointwise", (0, POINTWISE, [mode]), (1, DATA_TYPE, [SINGLE]),
                *([(2, NANS, [1])] if mode == RELU else []),
            )  # fmt: skip
            other = [] if mode == RELU else [(752, DESCRIPTOR, [self._tensor(of)])]
            ops.append(self.new(
                "apply", (750, DESCRIPTOR, [kind]), (751, DESCRIPTOR, [value]), *other,
                (753, DESCRIPTOR, [result]),
            ))  # fmt: skip
            value = result
        self.graph = self.new("graph", (800, HANDLE, [library.handle]), (801, DESCRIPTOR, ops))

    def _tensor(self, operand: str) -> c_void_p:
        """An operand, or, without a name, what goes from one operation to the next."""
        p = self._problem
        x = p.operands[operand or "out"]
        shape = x.shape if len(x.shape) > 1 else (1, *x.shape, *[1] * len(p.stride))
        self._inside += not operand
        return self.new(
            "tensor", (901, DATA_TYPE, [TYPES[x.dtype] if operand else SINGLE]),
            (902, INT, shape), (903, INT, plain_strides(shape)),
            (906, INT, [NUMBERS[operand] if operand else self._inside]),
            (900, INT, [x.aligned]), (907, BOOL, [not operand]),
        )  # fmt: skip

    def ways(self, mode: int, most: int) -> list[Instance]:
        """The heuristics' ways, but for transforms; ATen takes the first that it is named."""
        asked = self.new("heuristics", (201, DESCRIPTOR, [self.graph]), (200, HEURISTIC, [mode]))
        found = []
        for way in self.values(asked, 202, DESCRIPTOR, 2 * most, "way"):
            (engine,) = self.values(c_void_p(way), 300, DESCRIPTOR, 1, "engine")
            (index,) = self.values(c_void_p(engine), 1301, INT, 1)
            notes = {*self.values(c_void_p(engine), 1303, NOTE, 16)}
            if notes & TRANSFORMS or (self._problem.ordered and NONDETERMINISTIC in notes):
                continue
            knobs = []
            for knob in self.values(c_void_p(way), 302, DESCRIPTOR, 32, "knob"):
                (kind,) = self.values(c_void_p(knob), 600, KNOB, 1)
                (value,) = self.values(c_void_p(knob), 601, INT, 1)
                knobs.append(f"{kind}={value}")
            what = " ".join((str(index), *knobs))
            found.append(Instance(self.library.version, what))
        return found[:most]

    def plan(self, what: str) -> tuple[c_void_p, int]:
        """The plan of a way, and the bytes that it needs."""
        index, *knobs = what.split()
        engine = self.new("engine", (1300, DESCRIPTOR, [self.graph]), (1301, INT, [int(index)]))
        chosen = [
            self.new("knob", (600, KNOB, [int(kind)]), (601, INT, [int(value)])).value
            for kind, value in (k.split("=") for k in knobs)
        ]
        given: list[Attribute] = [(302, DESCRIPTOR, chosen)] if chosen else []
        way = self.new("way", (300, DESCRIPTOR, [engine]), *given)
        handle = self.library.handle
        plan = self.new("plan", (400, HANDLE, [handle]), (401, DESCRIPTOR, [way]))
        (size,) = self.values(plan, 402, INT, 1)
        if size > ROOM:
            raise Refused(f"{size} bytes of workspace")
        return plan, size


class _Bound:
    """A problem and a way to compute it, bound to each other."""

    def __init__(self, library: Cudnn, problem: Convolution, instance: Instance) -> None:
        self._library = library
        self._graph = _Graph(library, problem)
        self.plan, self._workspace = self._graph.plan(instance.what)

    def __call__(self, o: Images) -> None:
        room = torch.empty(self._workspace, dtype=torch.uint8, device=o.out.device)
        given = _Descriptors(self._library)
        held = {NUMBERS[k]: x.data_ptr() for k, x in o.operands.items()}
        pack = given.new(
            "given", (1000, INT, [*held]), (1001, POINTER, [*held.values()]),
            (1003, POINTER, [room.data_ptr()]),
        )  # fmt: skip
        self._library.execute(self, pack)
