"""The native library that comes with the package: the executor of plans, and what runs segments.

``hatch_build.py`` builds it when the package is installed, where a C++ compiler is.  It needs no
headers and links with nothing: of Python it takes the limited API, so that one library serves all
versions, and PyTorch's functions are handed to it (``litz.runtime.executor``).  Its name has a hash
of its sources, so that a library which is older than a checkout is not taken.

This module runs before anything is installed: it imports nothing of Litz.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

OPS: Final = {
    "number": "it",  # the number that an argument is
    "size": "itn",  # the size of a dimension
    "load": "to",  # a constant
    "allocate": "too*i*i",  # by type, device, sizes, strides
    "recycled": "to*i*i",  # the same of a large buffer, by Litz's allocator
    "workspace": "ti",
    "view": "tt*i*ii",  # sizes, strides, elements behind the other's first
    "place": "tto*i*in",  # of another type: sizes, strides, bytes from where the storage begins
    "retype": "tto",  # the elements' bits as another type
    "aligned": "tt",  # the other, or a copy if that begins at no multiple of 16 bytes
    "move": "tt",
    "free": "t",
    "segment": "on*p*i",  # what profilers call it, and which
    "launch": "on*p*i",  # the same of a kernel of ``kernels``
    "enter": "o",  # make a device current
    "leave": "",  # the one that was before is current again
    "call": "o*v*k*rn",  # a Python callable; 1 at the end: it returns the one result itself
    "aten": "ooon*s*qn*rn",  # an operator: its name, overload and callable; how many results it has
    "expect": "to*i*i",  # lay out anew what is not of the type, sizes and strides
    "equal": "iio",  # or RuntimeError with the message
    "assert": "io",
    "return": "v",
    "add": "iii", "mul": "iii", "floordiv": "iii", "mod": "iii", "min": "iii", "max": "iii",
    "eq": "iii", "ne": "iii", "lt": "iii", "le": "iii", "and": "iii", "or": "iii", "not": "ii",
    "skip": "in",  # that many words, if the number is zero; in launchers alone, as what follows
    "start": "iiin*c",  # on a grid x, y, z, unless it is empty: a form, with cells
    "end": "",
}  # fmt: skip
"""The instructions of plans and the kinds of their operands (``litz.runtime.plan``)."""
VALUES: Final = {"tensor": "t", "number": "i", "object": "o", "tuple": "*v", "list": "*v"}
OPTIONAL, LIST, OPTIONAL_LIST = 8, 16, 32
ELSEWHERE, BY_VALUE = 1, 2
"""Of a pointer: what it leads to may have no memory of its own; a kernel takes it by its value."""
CELLS: Final = ("plain", "number", "small", "pointer", "address", "int", "f32", "f64")
"""What a launch's argument is: a number that counts for no variant, one that does, one that does
and must fit 32 bits, an address that counts and one that does not, values from the host."""

NOT_BUILT: Final = "the native executor was not built when Litz was installed"

_HERE: Final = Path(__file__).parent
_FOLDER: Final = _HERE / "lib"
_FLAGS: Final = tuple(
    (
        "-std=c++17 -O2 -fPIC -shared -w -fno-exceptions -fno-rtti -fno-strict-aliasing "
        "-fno-stack-protector -fno-plt"
    ).split()
)


def executor_source() -> str:
    """The C++ source of the executor: what it shares with packages stands before it."""
    return _text("../native/plan.h") + _text("csrc/litz_executor.cpp")


def runtime_source() -> str:
    """The C++ source of what runs segments, which is also all that kernels need by themselves."""
    return _text("csrc/litz_rt.cpp")


def _text(name: str) -> str:
    return (_HERE / name).read_text()


@lru_cache(maxsize=1)
def _place() -> Path:
    made_of = "\n".join((*_FLAGS, platform.machine(), library_source()))
    return _FOLDER / f"litz_runtime.{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"


def library_source() -> str:
    """The C++ source of the whole library."""
    return runtime_source() + executor_source()


@lru_cache(maxsize=1)
def shipped() -> Path | None:
    """The library of these very sources; None where it was not built."""
    return _place() if _place().is_file() else None


def build_library(cxx: str = "") -> Path:
    """Build the library into the package, and remove older ones.

    cxx: the compiler's command, else $CXX, g++, c++ or clang++.
    Raises RuntimeError without a compiler, where it fails, and where no such library can be.
    """
    if sys.platform != "linux" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise RuntimeError("it is for Linux, and for Pythons with the interpreter's lock")
    place = _place()
    if not place.is_file():
        command = _compiler(cxx or os.environ.get("CXX", ""))
        _FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_FOLDER) as scratch:
            source, made = Path(scratch, "litz_runtime.cpp"), Path(scratch, place.name)
            source.write_text(library_source())
            done = subprocess.run(
                [*command, *_FLAGS, str(source), "-o", str(made)], capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr.rstrip()}")
            made.replace(place)
    for other in _FOLDER.glob("litz_runtime.*.so"):
        if other != place:
            other.unlink(missing_ok=True)
    shipped.cache_clear()
    return place


def _compiler(named: str) -> list[str]:
    for candidate in [named] if named else ["g++", "c++", "clang++"]:
        command = shlex.split(candidate)
        if shutil.which(command[0]):
            return command
    raise RuntimeError(f"no C++ compiler ({named or 'g++, c++, clang++'}) was found")
