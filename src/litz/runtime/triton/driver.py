"""The CUDA driver through ctypes: no C compiler, no Python headers, no Triton.

PyTorch makes a device's primary context current in the threads in which it works; kernels are
loaded into that context and launched on PyTorch's streams.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from litz.dataclass import dataclass
from litz.errors import LitzError, ToolchainError
from litz.runtime.triton.job import Binary

LIBRARY: Final = "libcuda.so.1"
SHARED_WITHOUT_ASKING: Final = 48 << 10
PARAMETERS: Final = 32764  # bytes that the arguments of a launch may take
PARAMETERS_BEFORE: Final = 4096  # with a driver before CUDA 12.1

# CUdevice_attribute
_WARP_SIZE, _MAJOR, _MINOR, _SHARED_MAX = 10, 75, 76, 97
# CUfunction_attribute
_MAX_THREADS, _STATIC_SHARED, _DYNAMIC_SHARED = 0, 1, 8
_PREFER_SHARED = 1  # CUfunc_cache
INVALID_CONTEXT, INVALID_HANDLE = 201, 400

_USED = (
    "cuInit cuDeviceGet cuDeviceGetName cuDeviceGetAttribute cuDevicePrimaryCtxRetain "
    "cuCtxGetCurrent cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuModuleLoadData "
    "cuModuleGetFunction cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig "
    "cuLaunchKernelEx cuGetErrorName cuGetErrorString"
).split()


class CudaError(LitzError, RuntimeError):
    """A call of the CUDA driver failed.  ``code`` is its CUresult."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Properties:
    """What kernels are chosen by.  shared: most bytes of shared memory that a block can have."""

    name: str
    capability: tuple[int, int]
    shared: int
    warp_size: int

    @property
    def target(self) -> tuple[str, int, int]:
        """The target of jobs for this device."""
        return ("cuda", 10 * self.capability[0] + self.capability[1], self.warp_size)


class Driver:
    """The driver's entry points.  ``library`` is what ``ctypes.CDLL`` gives, or a stand-in.

    Calls release the interpreter's lock: a launch waits where the device's queue is full, and what
    it waits for may need another thread of this process.
    """

    def __init__(self, library: Any) -> None:
        # Functions of this object's own: argument types set elsewhere do not reach them.
        self._calls = {name: _own(library, name) for name in _USED}
        self._devices: dict[int, Device] = {}
        self._lock = threading.RLock()
        self("cuInit", 0)

    def __call__(self, name: str, *args: Any, doing: str = "") -> None:
        """Call an entry point.  CudaError: it failed."""
        code = self._calls[name](*args)
        if code:
            raise self.error(code, name, doing)

    @property
    def launch(self) -> Any:
        """``cuLaunchKernelEx`` itself."""
        return self._calls["cuLaunchKernelEx"]

    @property
    def launch_address(self) -> int:
        """The address of ``cuLaunchKernelEx``."""
        return ctypes.cast(self.launch, ctypes.c_void_p).value or 0

    def error(self, code: int, call: str, doing: str = "") -> CudaError:
        """The error that a result of a call stands for."""
        name, text = (self._text(f, code) for f in ("cuGetErrorName", "cuGetErrorString"))
        what = f"{doing}: {call}" if doing else call
        said = f"{name or code} ({text})" if text else f"{name or code}"
        return CudaError(f"litz: {what} failed with {said}", code)

    def _text(self, function: str, code: int) -> str:
        out = ctypes.c_char_p()
        if self._calls[function](code, ctypes.byref(out)) or out.value is None:
            return ""
        return out.value.decode(errors="replace")

    def device(self, index: int) -> Device:
        """A device by PyTorch's index."""
        found = self._devices.get(index)
        if found is None:
            with self._lock:
                found = self._devices.get(index) or Device(self, index)
                self._devices[index] = found
        return found

    def current(self) -> int:
        """The current context; 0 where this thread has none."""
        context = ctypes.c_void_p()
        self("cuCtxGetCurrent", ctypes.byref(context))
        return context.value or 0


def _own(library: Any, name: str) -> Any:
    try:
        # Subscripting makes a new function object each time; a stand-in offers attributes alone.
        found = library[name] if isinstance(library, ctypes.CDLL) else getattr(library, name)
    except AttributeError as error:
        said = (
            f"litz: the CUDA driver is too old: it has no {name}; install one of CUDA 12 or later"
        )
        raise ToolchainError(said) from error
    found.restype = ctypes.c_int
    return found


class Device:
    """A device: its properties, its primary context, and the kernels loaded into that."""

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver = driver
        self.index = index
        handle = ctypes.c_int()
        driver("cuDeviceGet", ctypes.byref(handle), index, doing=f"finding CUDA device {index}")
        self._handle = handle.value
        context = ctypes.c_void_p()
        driver(
            "cuDevicePrimaryCtxRetain",
            ctypes.byref(context),
            self._handle,
            doing=f"taking the context of CUDA device {index}",
        )
        assert context.value
        self.context: int = context.value
        self.properties = self._properties()
        self._functions: dict[Binary, Function] = {}
        self._lock = threading.Lock()

    def _properties(self) -> Properties:
        name = ctypes.create_string_buffer(256)
        self.driver("cuDeviceGetName", name, 256, self._handle)
        return Properties(
            name.value.decode(errors="replace"),
            (self._attribute(_MAJOR), self._attribute(_MINOR)),
            self._attribute(_SHARED_MAX),
            self._attribute(_WARP_SIZE),
        )

    def _attribute(self, number: int) -> int:
        out = ctypes.c_int()
        self.driver("cuDeviceGetAttribute", ctypes.byref(out), number, self._handle)
        return out.value

    @contextmanager
    def active(self) -> Iterator[None]:
        """This device's context is current; afterwards again what was, if anything."""
        driver, current = self.driver, self.driver.current()
        if current == self.context:
            yield
        elif current == 0:
            # Nothing to go back to: PyTorch would make this very context current itself.
            driver("cuCtxSetCurrent", ctypes.c_void_p(self.context))
            yield
        else:
            driver("cuCtxPushCurrent_v2", ctypes.c_void_p(self.context))
            try:
                yield
            finally:
                driver("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def load(self, binary: Binary) -> Function:
        """The kernel of a binary, loaded once.  CudaError: it cannot run on this device."""
        with self._lock:
            found = self._functions.get(binary)
            if found is None:
                with self.active():
                    found = self._functions[binary] = self._load(binary)
            return found

    def _load(self, binary: Binary) -> Function:
        driver, doing = self.driver, f"loading the kernel {binary.entry}"
        module, handle = ctypes.c_void_p(), ctypes.c_void_p()
        driver("cuModuleLoadData", ctypes.byref(module), binary.code, doing=doing)
        name = binary.entry.encode()
        driver("cuModuleGetFunction", ctypes.byref(handle), module, name, doing=doing)
        assert handle.value
        threads = binary.num_warps * binary.warp_size
        most = self._function_attribute(handle, _MAX_THREADS)
        if threads > most:
            raise CudaError(
                f"litz: {doing} failed: it needs {threads} threads a block, and its registers "
                f"leave room for {most}",
                -1,
            )
        if binary.shared > SHARED_WITHOUT_ASKING:
            self._want_shared(binary, handle, doing)
        return Function(self, binary, handle.value)

    def _want_shared(self, binary: Binary, handle: ctypes.c_void_p, doing: str) -> None:
        room = self.properties.shared - self._function_attribute(handle, _STATIC_SHARED)
        if binary.shared > room:
            raise CudaError(
                f"litz: {doing} failed: it needs {binary.shared} bytes of shared memory, and "
                f"{self.properties.name} has {room}",
                -1,
            )
        driver = self.driver
        driver("cuFuncSetCacheConfig", handle, _PREFER_SHARED, doing=doing)
        driver("cuFuncSetAttribute", handle, _DYNAMIC_SHARED, binary.shared, doing=doing)

    def _function_attribute(self, handle: ctypes.c_void_p, number: int) -> int:
        out = ctypes.c_int()
        self.driver("cuFuncGetAttribute", ctypes.byref(out), number, handle)
        return out.value


@dataclass(frozen=True)
class Function:
    """A kernel on a device.  It stays loaded: launches may still be under way at any time."""

    device: Device
    binary: Binary
    handle: int


@lru_cache(maxsize=1)
def _driver_of(pid: int) -> Driver:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise ToolchainError(
            f"litz: cannot load the CUDA driver ({error}): install the driver of the GPU, or let "
            f"the loader find {LIBRARY} (LD_LIBRARY_PATH)"
        ) from error
    return Driver(library)


@lru_cache(maxsize=1)
def driver_version() -> int:
    """The version of CUDA that the driver has (12040: 12.4); 0 where there is none."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return number.value


def parameter_bytes() -> int:
    """The bytes that the arguments of a launch may take here; where there is no GPU, anywhere."""
    return PARAMETERS_BEFORE if 0 < driver_version() < 12010 else PARAMETERS


def overlaps() -> bool:
    """Whether a kernel may begin before another has ended, in recorded graphs too."""
    return not 0 < driver_version() < 12030


def cuda_driver() -> Driver:
    """The CUDA driver of this process.  ToolchainError: there is none, or an old one.

    A forked child asks anew, and learns from the driver that CUDA does not survive a fork.
    """
    return _driver_of(os.getpid())
