"""What a compiled graph is, as data: all that binding it needs, and what reports tell of it.

``litz.compiler.compile_graph`` makes an artifact, ``litz.binding.bind`` makes a callable of one, in
this process or in another: then it went through ``to_bytes`` and ``from_bytes``.

The bytes::

    litz-artifact 9\\n          the version of this form
    64 hex digits \\n           SHA-256 of all that follows
    8 bytes                    length of the header, little-endian
    header                     JSON: {"sections": lengths, "artifact": the record}
    sections                   the bytes of long texts and of tensors, one after the other

The record is a tree of objects whose key "is" names the class below and whose other keys are its
fields.  ``{"text": n}`` stands for the UTF-8 text of section n, ``{"bytes": n}`` for its bytes.
Reading makes the classes of this module alone; it imports and runs nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from litz.dataclass import dataclass
from litz.errors import ArtifactError
from litz.runtime.arguments import Argument
from litz.runtime.plan import Plan
from litz.runtime.records import Leaf, Records
from litz.runtime.script_objects import Stored, stored
from litz.runtime.strided import memory_of

FORM = b"litz-artifact "
VERSION = 9
_DIGEST = 64
_LONG = 120  # characters of a text that lies in a section


@dataclass(frozen=True)
class Kernel:
    """A kernel's sources and how it is launched.

    language: "c++" or "triton".  sources: one for C++; for Triton those of all its launches, the
    forms of a launch after each other.  headers: what C++ includes.  launches: of Triton, as
    ``litz.targets.triton.record`` writes it.  groups: the schedule's groups that it computes, with
    the graph nodes that these came from.
    """

    name: str
    language: str
    device: str
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    launches: Mapping[str, object]
    groups: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Native:
    """What C++ kernels were written for: an instruction set, f32 lanes of its vectors, flags."""

    isa: str
    lanes: int
    flags: tuple[str, ...]
    compiler: str


@dataclass(frozen=True)
class SegmentTable:
    """What a segment takes and which of it each kernel takes: (kernel, pointers, integers)."""

    name: str
    n_ptrs: int
    n_ints: int
    steps: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class Named:
    """What a module of PyTorch, Litz's runtime or Python itself has under a name."""

    module: str
    path: str


@dataclass(frozen=True)
class Number:
    """A complex number: others stand in the host program's text."""

    value: complex


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor.  tensor: the graph's own where this process compiled it; else on the CPU, as read.

    device: where it belongs.
    """

    tensor: torch.Tensor
    device: torch.device


@dataclass(frozen=True, eq=False)
class Live:
    """An object that only this process has.  reason: why it cannot be described."""

    value: object
    reason: str


@dataclass(frozen=True)
class BoundBody:
    """The callable of one of the artifact's bodies."""

    name: str


@dataclass(frozen=True)
class UsersKernel:
    """A Triton kernel of the user's that the graph launches: whoever binds has the object.

    name: by which ``bind`` is given it (``litz.runtime.user_kernels.kernel_name``).  written: names
    of the arguments that it writes.
    """

    name: str
    written: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Scripted:
    """A script object.  value: the graph's own where this process compiled it; else its data."""

    value: torch.ScriptObject | Stored


Value = Named | Number | Constant | BoundBody | UsersKernel | Scripted | Live


@dataclass(frozen=True)
class Host:
    """The host program: the text of a Python module, what it names, and its native calls.

    plan: the same for the native executor, or why there is none.
    """

    source: str
    values: Mapping[str, Value]
    segments: tuple[SegmentTable, ...]
    plan: Plan | str = ""


@dataclass(frozen=True)
class Recording:
    """What recording the graph as a CUDA graph needs.

    reason: why it cannot be recorded; "" if it can.  gpu: the index of its GPU.
    varying: positions of arguments whose sizes, strides or (for numbers) values differ from call to
    call.  written: of those that the graph writes into.  groups: of processes that it communicates
    with.
    """

    reason: str
    gpu: int = 0
    varying: tuple[int, ...] = ()
    written: frozenset[int] = frozenset()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExternCall:
    """An operator that ATen runs, why, and the graph nodes that it stands for."""

    op: str
    reason: str
    origins: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Artifact:
    """A compiled graph.

    native: of its C++ kernels, if there are any.  count: of its arguments; arguments: what the
    tensors among them must look like.  always: whether that is checked in each call, or in the
    first one alone.  options: those that are not the default and that code depends on.
    bodies: of control flow, by their names.  versions: of the packages that made it.
    not_portable: why it cannot leave its process, or "".  notes: what the user is told of it, where
    it is compiled and where it is found.
    """

    kernels: tuple[Kernel, ...]
    native: Native | None
    host: Host
    count: int
    arguments: tuple[Argument, ...]
    always: bool
    recording: Recording
    externs: tuple[ExternCall, ...]
    options: Mapping[str, str | int | bool]
    versions: Mapping[str, str]
    bodies: Mapping[str, Artifact]
    not_portable: str = ""
    notes: tuple[str, ...] = ()


# --- bytes ---------------------------------------------------------------------------------------


def to_bytes(artifact: Artifact) -> bytes:
    """The artifact's bytes: the same for equal artifacts.  Raises ArtifactError if it has none."""
    if artifact.not_portable:
        raise ArtifactError(f"litz: this artifact cannot be written: {artifact.not_portable}")
    sections: list[bytes] = []
    texts: dict[str, int] = {}

    def text(value: str) -> object:
        if len(value) < _LONG:
            return value
        if value not in texts:
            texts[value] = len(sections)
            sections.append(value.encode())
        return {"text": texts[value]}

    def content(value: bytes) -> object:
        sections.append(value)
        return {"bytes": len(sections) - 1}

    def tensor(value: torch.Tensor) -> object:
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "strides": list(value.stride()),
            "content": content(tensor_bytes(value)),
        }

    record = _records(text, content, tensor).write(artifact)
    header = {"sections": [len(s) for s in sections], "artifact": record}
    head = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    rest = b"".join([len(head).to_bytes(8, "little"), head, *sections])
    digest = hashlib.sha256(rest).hexdigest().encode()
    return b"%s%d\n%s\n%s" % (FORM, VERSION, digest, rest)


def from_bytes(data: bytes) -> Artifact:
    """The artifact that ``to_bytes`` wrote.

    Raises ArtifactError for bytes of another version, damaged ones, and those of something else.
    """
    first, _, rest = data.partition(b"\n")
    if not first.startswith(FORM):
        raise ArtifactError("litz: these bytes are no artifact")
    version = first.removeprefix(FORM).decode(errors="replace")
    if version != str(VERSION):
        raise ArtifactError(
            f"litz: an artifact of version {version}; this Litz reads version {VERSION}: "
            "compile the graph again"
        )
    digest, rest = rest[:_DIGEST], rest[_DIGEST + 1 :]
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        raise ArtifactError("litz: an artifact's bytes are damaged: compile the graph again")
    try:
        return _read(rest)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ArtifactError(f"litz: an artifact that cannot be read: {error}") from error


def _read(rest: bytes) -> Artifact:
    end = 8 + int.from_bytes(rest[:8], "little")
    lengths = json.loads(rest[8:end])["sections"]
    starts = [end]
    for n in lengths:
        starts.append(starts[-1] + n)

    def section(found: dict[str, Any]) -> object:
        if found.keys() == {"text"}:
            return rest[starts[found["text"]] : starts[found["text"] + 1]].decode()
        if found.keys() == {"bytes"}:
            return rest[starts[found["bytes"]] : starts[found["bytes"] + 1]]
        return found

    record = json.loads(rest[8:end], object_hook=section)["artifact"]
    found: Artifact = _records().read(Artifact, record)
    return found


def _records(text: Any = None, content: Any = None, tensor: Any = None) -> Records:
    leaves: dict[type, Leaf] = {
        torch.dtype: Leaf(lambda t: str(t).removeprefix("torch."), dtype_of),
        torch.device: Leaf(str, torch.device),
        torch.Tensor: Leaf(tensor, _tensor),
        torch.ScriptObject: Leaf(lambda x: records.write(stored(x)), _no_object),
        complex: Leaf(
            lambda z: [z.real.hex(), z.imag.hex()],
            lambda d: complex(float.fromhex(d[0]), float.fromhex(d[1])),
        ),
        str: Leaf(text, _text),
        bytes: Leaf(content, _bytes),
    }
    records = Records(leaves)
    return records


def _no_object(data: object) -> torch.ScriptObject:
    raise ValueError(f"{data!r} is no script object's data")


def _bytes(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise ValueError(f"{data!r} are no bytes")
    return data


def _text(data: object) -> str:
    if not isinstance(data, str):
        raise ValueError(f"{data!r} is no text")
    return data


def dtype_of(name: str) -> torch.dtype:
    """An element type by its name without ``torch.``; ValueError where there is none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"no element type {name!r}")
    return found


def tensor_bytes(x: torch.Tensor) -> bytes:
    """All that lies between a tensor's first element and its last."""
    flat = memory_of(x).cpu()
    return ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b""


def _tensor(data: Mapping[str, Any]) -> torch.Tensor:
    content, dtype = data["content"], dtype_of(data["dtype"])
    flat = torch.empty(len(content) // dtype.itemsize, dtype=dtype, device="cpu")
    ctypes.memmove(flat.data_ptr(), content, flat.nbytes)
    return flat.as_strided(data["shape"], data["strides"])
