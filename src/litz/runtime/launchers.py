"""Launchers of GPU kernels, for Python and for the native executor.

What the executor reads lies in structs of C, which mirror those of ``native/plan.h``.  A
launch has up to three variants (see ``litz.targets.triton.cuda``); one that is not loaded yet, or
whose launch fails, goes by Python, which loads it, or says what is wrong.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

from litz.runtime.plan import packed

Key = TypeVar("Key")
VariantName = Literal["even", "aligned", "general"]
VARIANTS: Final[tuple[VariantName, ...]] = ("even", "aligned", "general")


class Variant(ctypes.Structure):
    """function: the driver's handle, 0 while it is not loaded.  threads: of a block.  shared:
    bytes of shared memory.  hidden: pointers that follow the arguments.  attributes: the address of
    a launch attribute, or 0."""

    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("function", "threads", "shared", "hidden", "attributes")
    )


class Form(ctypes.Structure):
    """A launch in one width of integers.

    call: the Python function, of grid and arguments.  launch: cuLaunchKernelEx.  device: PyTorch's
    index.  variants: those of ``VARIANTS``.
    """

    _fields_ = (
        ("call", ctypes.py_object),
        ("launch", ctypes.c_void_p),
        ("device", ctypes.c_int64),
        ("variants", Variant * 3),
    )


class _Launcher(ctypes.Structure):
    _fields_ = (
        ("words", ctypes.c_char_p),
        ("numbers", ctypes.c_char_p),
        ("n_numbers", ctypes.c_int64),
        ("forms", ctypes.c_void_p),
    )


class Launcher:
    """A kernel's launches as a plan (``litz.runtime.plan``).

    words: instructions.  numbers: registers, the first for the kernel's integers.  forms: of its
    launches, by their places.
    """

    def __init__(
        self, words: Sequence[int], numbers: Sequence[int | None], forms: Sequence[Form]
    ) -> None:
        text = packed(words)
        registers = struct.pack(f"={len(numbers)}q", *(n or 0 for n in numbers))
        table = (ctypes.c_void_p * max(len(forms), 1))(*map(ctypes.addressof, forms))
        self._keep = (text, registers, table, tuple(forms))
        self._own = _Launcher(text, registers, len(numbers), ctypes.addressof(table))

    @property
    def address(self) -> int:
        return ctypes.addressof(self._own)


class Bound:
    """A kernel that is bound.

    call: a Python function of addresses, then integers.  launcher: makes the same for the executor;
    without it, it is unknown so far, or there is none.
    """

    def __init__(
        self, call: Callable[..., None], launcher: Callable[[], Launcher] | None = None
    ) -> None:
        self.call = call
        self._launcher = launcher
        self._made: list[Launcher] = []
        self._cell: ctypes.c_void_p | None = None

    def __call__(self, *args: int) -> None:
        self.call(*args)

    @property
    def cell(self) -> ctypes.c_void_p:
        """Where the executor looks for the launcher's address at each call: null until it is known.

        Only who asks has the launcher made.
        """
        if self._cell is None:
            self._cell = ctypes.c_void_p()
            self._fill()
        return self._cell

    def follow(self, other: Bound) -> None:
        """From now on launch as ``other`` does."""
        self._launcher = other._launcher
        if self._cell is not None:
            self._fill()

    def _fill(self) -> None:
        if self._cell is not None and self._launcher is not None:
            # The one before stays: the executor may be in it, in a thread without Python's lock.
            self._made.append(self._launcher())
            self._cell.value = self._made[-1].address


def cell_of(kernel: object) -> ctypes.c_void_p:
    """The cell of a kernel; of one that only Python can call, one that stays null."""
    return kernel.cell if isinstance(kernel, Bound) else ctypes.c_void_p()


def in_python(natives: Mapping[Key, Any]) -> dict[Key, Any]:
    """What Python calls of segments and kernels, by their names."""
    return {name: f.call if isinstance(f, Bound) else f for name, f in natives.items()}
