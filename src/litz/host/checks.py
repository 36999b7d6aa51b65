"""A host program that checks what it hands to operators of ATen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from litz.host.lines import CallExtern, CheckCall, HostProgram, Line
from litz.lowering.bindings import Handed


def with_checks(host: HostProgram, handed: Mapping[str, Handed]) -> HostProgram:
    """``host`` with a ``CheckCall`` before each call of an operator.

    handed: what each is handed, by the name of its ``Extern``.
    """
    return host.with_lines(tuple(_checked(host, handed)))


def _checked(host: HostProgram, handed: Mapping[str, Handed]) -> Iterator[Line]:
    for line in host.lines:
        known = handed.get(line.extern.name) if isinstance(line, CallExtern) else None
        if isinstance(line, CallExtern) and known is not None and known.tensors:
            refs = set(line.extern.refs())  # a pass may have laid out something otherwise
            if all(t.ref in refs for t in known.tensors):
                yield CheckCall(line.extern, known)
        yield line
