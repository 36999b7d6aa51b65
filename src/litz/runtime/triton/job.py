"""What a compile worker is asked for and what it answers; imports neither Triton nor torch."""

from __future__ import annotations

import json
from dataclasses import asdict

from litz.dataclass import dataclass

Value = int | float | bool | str

_FORMAT = "litz-binary-2"


@dataclass(frozen=True, slots=True)
class KernelJob:
    """One kernel to compile ahead of its first launch.

    source:     a Python module that defines the ``@triton.jit`` function ``name``.
    signature:  every argument with its type: "*bf16", "i32", "i64", "fp32", ..., "constexpr"; the
                first can be "i64[100]", so many numbers in the memory of parameters.
    constants:  the values of the constexpr arguments.
    divisible:  arguments that are multiples of 16 at every launch.
    options:    Triton's: num_warps, num_stages, enable_fp_fusion, debug, ...
    target:     backend, architecture, threads of a warp.
    form:       "cubin", or "ptx": what the drivers of later GPUs than the target make cubins of.
    """

    source: str
    name: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Value], ...] = ()
    divisible: tuple[str, ...] = ()
    options: tuple[tuple[str, Value], ...] = ()
    target: tuple[str, int, int] = ("cuda", 90, 32)
    form: str = "cubin"

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """The arguments of a launch: all but the constexprs."""
        return tuple((name, type_) for name, type_ in self.signature if type_ != "constexpr")

    def to_json(self) -> str:
        """Text from which ``from_json`` makes an equal job; equal jobs have equal texts."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> KernelJob:
        d = json.loads(text)
        backend, arch, warp = d["target"]
        return cls(
            d["source"],
            d["name"],
            tuple((n, t) for n, t in d["signature"]),
            tuple((n, v) for n, v in d["constants"]),
            tuple(d["divisible"]),
            tuple((n, v) for n, v in d["options"]),
            (backend, arch, warp),
            d["form"],
        )


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel.

    entry:      the function's name in the code.
    params:     bytes of each parameter, those that Triton adds at the end included.
    shared:     bytes of shared memory that a launch asks for.
    scratch, profile_scratch: (bytes a program, alignment) of the memory that a launch hands over.
    """

    code: bytes
    entry: str
    params: tuple[int, ...]
    shared: int
    num_warps: int
    warp_size: int = 32
    scratch: tuple[int, int] = (0, 1)
    profile_scratch: tuple[int, int] = (0, 1)

    def to_bytes(self) -> bytes:
        head = {n: getattr(self, n) for n in self.__slots__ if n != "code"}
        return json.dumps({"format": _FORMAT, **head}).encode() + b"\n" + self.code

    @classmethod
    def from_bytes(cls, data: bytes) -> Binary:
        """ValueError: these are no bytes that ``to_bytes`` wrote."""
        head, _, code = data.partition(b"\n")
        try:
            d = json.loads(head)
            if d.pop("format", None) != _FORMAT:
                raise ValueError("not a compiled kernel of this version")
            for name in ("params", "scratch", "profile_scratch"):
                d[name] = tuple(d[name])
            return cls(code=code, **d)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a compiled kernel: {error}") from error
