"""What a cubin says of its kernel: registers and local memory of a thread.

A cubin is an ELF file; its section ``.nv.info`` holds attributes of the module's functions.  This
tells without a GPU, and without a tool, whether a kernel spills.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["resources"]

_REGISTERS = 0x2F  # attributes: number of a function's symbol, then the value
_FRAME = 0x11
_SIZED = 0x04  # form of an attribute whose bytes follow
_NO_BYTES = 8  # type of a section without bytes in the file


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of local memory) of a thread; -1 for what the file does not tell."""
    try:
        info = dict(_sections(cubin)).get(b".nv.info", b"")
        known = list(_attributes(info))
    except (struct.error, IndexError, ValueError, OverflowError):
        return -1, -1
    # Functions that the kernel calls count as well: the most is what a thread needs.
    registers = [value for attribute, value in known if attribute == _REGISTERS]
    frames = [value for attribute, value in known if attribute == _FRAME]
    return max(registers, default=-1), max(frames, default=-1)


def _sections(elf: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and contents."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    names = heads[names_at][4]
    for name, kind, _, _, offset, length in heads:
        at = names + name
        body = b"" if kind == _NO_BYTES else elf[offset : offset + length]
        yield elf[at : elf.index(b"\0", at)], body


def _attributes(data: bytes) -> Iterator[tuple[int, int]]:
    """The attributes that are a number of a symbol."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            if size == 8:
                yield attribute, struct.unpack_from("<II", data, at)[1]
            at += size
