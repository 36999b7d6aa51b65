"""The record of a compilation: plain data, JSON both ways; ``schema.json`` beside it says the form.

Ids are stable: the same program compiled again with the same options has the same.  A graph's are
``g0``, ``g1`` in the order of compiling; those of nodes, steps and buffers are ``g0.mul``: the
graph's, and the name that all texts of it use; a kernel's is its name, a hash of what it does;
a line's is ``FILE:NUMBER``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from litz.dataclass import dataclass
from litz.runtime.records import KIND, Records

VERSION: Final = 1

FindingKind = Literal[
    "graph break",
    "recompile",
    "fallback",
    "transposed copy",
    "no CUDA graph",
    "slow kernel",
]


@dataclass(frozen=True)
class Line:
    """A line of the user's.  id: ``file:number``; function: that it is in; text: what it says.

    Number 0: a module that no line of the user's calls; file: its name, text: its type.
    """

    id: str
    file: str
    number: int
    function: str
    text: str


@dataclass(frozen=True)
class Break:
    """Where Dynamo stopped tracing.  line: the id of the user's line, or ''.

    reason: in one line; detail: all that Dynamo says, hints too.
    """

    line: str
    reason: str
    detail: str


@dataclass(frozen=True)
class Recompile:
    """A graph that was compiled because a guard of an earlier one failed.

    graph: its id.  guard: the condition.  line: that asked for it, or ''.
    """

    graph: str
    guard: str
    line: str


@dataclass(frozen=True)
class GraphNode:
    """A node of the FX graph that Litz lowers.  line: the id of the user's line, or ''."""

    id: str
    op: str
    line: str


@dataclass(frozen=True)
class Step:
    """What the host program calls: a kernel, or an operator of ATen.

    name: the kernel's id, or the operator.  nodes: ids of the graph nodes that it computes; lines:
    those of the user's lines they come from.  reads, writes: buffers.  bytes: that it moves;
    apart: that its nodes would move one by one, of which the difference is what fusing saves.
    ops: arithmetic operations.  reason: why ATen runs it, '' for a kernel.  transposed: the line
    of a copy in it that lays out anew across dimensions, or ''.  launches: kernels started on the
    device.  seconds: measured, of one call without what launching takes; None where it was not.
    """

    id: str
    kind: Literal["kernel", "aten"]
    name: str
    nodes: tuple[str, ...]
    lines: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes: int
    apart: int
    ops: int
    reason: str = ""
    transposed: str = ""
    launches: int = 1
    seconds: float | None = None


@dataclass(frozen=True)
class Refused:
    """Two steps that touch the same memory and are not one kernel.

    bytes: that one kernel would not have moved, at most.
    """

    one: str
    other: str
    reason: str
    bytes: int


@dataclass(frozen=True)
class Living:
    """Memory at the peak.  line: that allocated it, or ''.  argument: the caller's, not Litz's."""

    buffer: str
    bytes: int
    line: str
    argument: bool


@dataclass(frozen=True)
class Memory:
    """What a call holds beside its arguments: ``held[i]`` bytes during step i, as planned.

    peak: the step that uses most; living: what is in use then, Litz's own and the largest first.
    """

    held: tuple[int, ...]
    peak: int
    living: tuple[Living, ...]


@dataclass(frozen=True)
class Graph:
    """One compiled graph.

    kind: inference, forward, backward or eager.  line: where its program begins.  operators: its
    calls as AOTAutograd made them.  fallback: why ATen runs all of it.  regions: what was traced
    once.  cuda_graph: what became of recording it, or ''.  host: why Python runs the host program.
    seconds: of compiling, by stage in order, ``total`` last.  texts: each stage's, by the names
    that LITZ_SHOW has.
    """

    id: str
    kind: str
    line: str
    operators: int
    fallback: str
    regions: str
    cuda_graph: str
    host: str
    seconds: Mapping[str, float]
    texts: Mapping[str, str]
    nodes: tuple[GraphNode, ...] = ()
    steps: tuple[Step, ...] = ()
    refused: tuple[Refused, ...] = ()
    memory: Memory | None = None


@dataclass(frozen=True)
class Kernel:
    """A distinct kernel: language, device, recipe and source as text; ways: a choice measured."""

    id: str
    language: str
    device: str
    recipe: str
    source: str
    ways: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something to look at.  line: the user's that causes it, or ''.

    what: in one line; advice: what helps.  cost: seconds, as an estimate to rank by.
    step: the id of the step it is about, or ''.
    """

    kind: FindingKind
    line: str
    what: str
    advice: str
    cost: float
    step: str = ""


@dataclass(frozen=True)
class Roofline:
    """What this machine can do at most: bytes and operations a second."""

    device: str
    bytes_per_second: float
    ops_per_second: float


@dataclass(frozen=True)
class Report:
    """All that is known of the compilation of one program.

    options: those that differ from their defaults.  versions: of litz and torch.  sources: text of
    the user's files that lines are of, by file.  roofline: None where nothing was measured.
    """

    title: str
    versions: Mapping[str, str]
    options: Mapping[str, str | int | bool]
    findings: tuple[Finding, ...]
    breaks: tuple[Break, ...]
    recompiles: tuple[Recompile, ...]
    graphs: tuple[Graph, ...]
    kernels: tuple[Kernel, ...]
    lines: tuple[Line, ...]
    sources: Mapping[str, str]
    roofline: Roofline | None = None
    version: int = VERSION

    @cached_property
    def by_line(self) -> Mapping[str, Line]:
        """Lines by their ids."""
        return {x.id: x for x in self.lines}

    def steps_of_line(self, line: str) -> tuple[Step, ...]:
        """What computes a line of the user's."""
        return tuple(s for g in self.graphs for s in g.steps if line in s.lines)

    def steps_of_kernel(self, kernel: str) -> tuple[Step, ...]:
        """The calls of a kernel; their ``nodes`` and ``lines`` are where it comes from."""
        return tuple(s for g in self.graphs for s in g.steps if s.name == kernel)

    def to_json(self, indent: int | None = None) -> str:
        """The record as a JSON object of the form that ``schema`` describes."""
        return json.dumps(Records({}).write(self), indent=indent)


def from_json(text: str) -> Report:
    """The record that ``to_json`` wrote.  Raises ValueError for anything else."""
    report: Report = Records({}).read(Report, json.loads(text))
    return report


# --- the schema -----------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of ``to_json``; the file ``schema.json`` has it for others."""
    found: dict[str, Any] = {}
    root = _schema(Report, found)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "litz report",
        **root,
        "$defs": dict(sorted(found.items())),
    }


_PLAIN: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def _schema(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    origin, of = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin is Literal:
        return {"enum": list(of)}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(k, found) for k in of]}
    if origin is tuple:
        return {"type": "array", "items": _schema(of[0], found)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(of[1], found)}
    if kind.__name__ not in found:
        found[kind.__name__] = {}
        hints = get_type_hints(kind)
        parts = {f.name: _schema(hints[f.name], found) for f in fields(kind)}
        found[kind.__name__] = {
            "description": (kind.__doc__ or "").split("\n")[0],
            "type": "object",
            "properties": {KIND: {"const": kind.__name__}, **parts},
            "required": [KIND, *parts],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}
