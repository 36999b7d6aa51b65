"""A stand-in for the CUDA driver: the same entry points, which keep what they were given."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

NAMES = {1: "CUDA_ERROR_INVALID_VALUE", 201: "CUDA_ERROR_INVALID_CONTEXT", 700: "CUDA_ERROR_BROKEN"}
TEXTS = {1: "invalid argument", 201: "invalid device context", 700: "something broke"}
ATTRIBUTES = {
    10: 32,  # threads of a warp
    16: 132,  # multiprocessors
    38: 50 << 20,  # bytes of L2
    75: 9,  # compute capability
    76: 0,
    81: 228 << 10,  # shared memory of a multiprocessor
    97: 227 << 10,  # and of a block
}
FUNCTION = {0: 1024, 1: 0, 3: 0, 4: 40}


class Config(ctypes.Structure):
    """CUlaunchConfig, as cuda.h declares it."""

    _fields_ = (
        ("gridDimX", ctypes.c_uint),
        ("gridDimY", ctypes.c_uint),
        ("gridDimZ", ctypes.c_uint),
        ("blockDimX", ctypes.c_uint),
        ("blockDimY", ctypes.c_uint),
        ("blockDimZ", ctypes.c_uint),
        ("sharedMemBytes", ctypes.c_uint),
        ("hStream", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
        ("numAttrs", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Launched:
    """What one launch was given.  early: whether it may begin before the one in front has ended."""

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int
    arguments: tuple[int, ...]
    context: int
    early: bool = False


@dataclass
class FakeCuda:
    """types: of the parameters that launches read.  fail: result codes by entry point.

    Contexts are 1000 + device; a thread has the context that it made current.
    """

    types: tuple[Any, ...] = ()
    fail: dict[str, list[int]] = field(default_factory=dict)
    function: dict[int, int] = field(default_factory=lambda: dict(FUNCTION))
    launches: list[Launched] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    loaded: list[bytes] = field(default_factory=list)
    wanted: dict[int, int] = field(default_factory=dict)
    strict_context: bool = True
    seen: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._local = threading.local()
        self._keep: list[Any] = []
        p, i, n, s = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p
        for name, types in {
            "cuInit": (i,),
            "cuDeviceGet": (p, i),
            "cuDeviceGetName": (p, i, i),
            "cuDeviceGetAttribute": (p, i, i),
            "cuDevicePrimaryCtxRetain": (p, i),
            "cuCtxGetCurrent": (p,),
            "cuCtxSetCurrent": (p,),
            "cuCtxPushCurrent_v2": (p,),
            "cuCtxPopCurrent_v2": (p,),
            "cuModuleLoadData": (p, s),
            "cuModuleGetFunction": (p, p, n),
            "cuFuncGetAttribute": (p, i, p),
            "cuFuncSetAttribute": (p, i, i),
            "cuFuncSetCacheConfig": (p, i),
            "cuLaunchKernelEx": (p, p, p, p),
            "cuGetErrorName": (i, p),
            "cuGetErrorString": (i, p),
        }.items():
            setattr(self, name, ctypes.CFUNCTYPE(i, *types)(self._entry(name)))

    def _entry(self, name: str) -> Callable[..., int]:
        body = getattr(self, "_" + name)

        def entry(*args: Any) -> int:
            self.calls.append(name)
            waiting = self.fail.get(name)
            if waiting:
                code = waiting.pop(0)
                if code:
                    return code
            return body(*args) or 0

        return entry

    @property
    def stack(self) -> list[int]:
        """This thread's contexts, the current one last."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[int] = self._local.stack
        return stack

    @staticmethod
    def put(address: int, value: int, kind: Any = ctypes.c_uint64) -> None:
        kind.from_address(address).value = value

    def _cuInit(self, flags: int) -> int:
        return 0 if flags == 0 else 1

    def _cuDeviceGet(self, out: int, index: int) -> int:
        if not 0 <= index < 2:
            return 1
        self.put(out, index, ctypes.c_int)
        return 0

    def _cuDeviceGetName(self, out: int, size: int, device: int) -> None:
        ctypes.memmove(out, b"Fake H200\0", 10)

    def _cuDeviceGetAttribute(self, out: int, number: int, device: int) -> None:
        self.put(out, ATTRIBUTES[number], ctypes.c_int)

    def _cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        self.put(out, 1000 + device)

    def _cuCtxGetCurrent(self, out: int) -> None:
        self.put(out, self.stack[-1] if self.stack else 0)

    def _cuCtxSetCurrent(self, context: int) -> None:
        self.stack[-1:] = [context]

    def _cuCtxPushCurrent_v2(self, context: int) -> None:
        self.stack.append(context)

    def _cuCtxPopCurrent_v2(self, out: int) -> None:
        self.put(out, self.stack.pop())

    def _cuModuleLoadData(self, out: int, code: bytes) -> int:
        if not self.stack:
            return 201
        self.loaded.append(code)
        self.put(out, len(self.loaded))
        return 0

    def _cuModuleGetFunction(self, out: int, module: int, name: bytes) -> None:
        # Above 32 bits, as addresses are.
        self.put(out, (self.stack[-1] << 32) + module)

    def _cuFuncGetAttribute(self, out: int, number: int, function: int) -> None:
        self.put(out, self.function[number], ctypes.c_int)

    def _cuFuncSetAttribute(self, function: int, number: int, value: int) -> None:
        self.wanted[number] = value

    def _cuFuncSetCacheConfig(self, function: int, config: int) -> None:
        pass

    def _cuLaunchKernelEx(self, config: int, function: int, params: int, extra: int) -> int:
        context = self.stack[-1] if self.stack else 0
        if self.strict_context and context != function >> 32:
            return 400 if context else 201
        c = Config.from_address(config)
        table = ctypes.cast(params, ctypes.POINTER(ctypes.c_void_p))
        arguments = tuple(
            t.from_address(table[i] or 0).value or 0 for i, t in enumerate(self.types)
        )
        self.seen()
        again = tuple(t.from_address(table[i] or 0).value or 0 for i, t in enumerate(self.types))
        assert arguments == again, "another launch wrote into these arguments"
        assert extra is None and c.numAttrs == (c.attrs is not None)
        early = (ctypes.c_uint64 * 9).from_address(c.attrs)[:] if c.attrs else [6, 0, *[0] * 7]
        assert early[0] == 6 and not any(early[2:])
        self.launches.append(
            Launched(
                function,
                (c.gridDimX, c.gridDimY, c.gridDimZ),
                (c.blockDimX, c.blockDimY, c.blockDimZ),
                c.sharedMemBytes,
                c.hStream or 0,
                arguments,
                context,
                bool(early[1]),
            )
        )
        return 0

    def _text(self, texts: dict[int, str], code: int, out: int) -> int:
        if code not in texts:
            return 1
        held = ctypes.c_char_p(texts[code].encode())
        self._keep.append(held)
        self.put(out, ctypes.cast(held, ctypes.c_void_p).value or 0)
        return 0

    def _cuGetErrorName(self, code: int, out: int) -> int:
        return self._text(NAMES, code, out)

    def _cuGetErrorString(self, code: int, out: int) -> int:
        return self._text(TEXTS, code, out)


class Timed:
    """A clock on which a run takes the seconds that ``taken`` says of its launches."""

    device_name = "fake"

    def __init__(self, fake: FakeCuda, taken: Callable[[list[Launched]], float]) -> None:
        self.fake, self.taken, self.time, self.runs = fake, taken, 0.0, 0

    def now(self) -> float:
        return self.time

    def measure(self, run: Callable[[], None], times: int) -> list[float]:
        out = []
        for _ in range(times):
            before = len(self.fake.launches)
            run()
            self.runs += 1
            out.append(self.taken(self.fake.launches[before:]))
            self.time += out[-1]
        return out
