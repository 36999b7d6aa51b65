"""The user's lines, read off the stack traces that graph nodes keep."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch.fx import Node

from litz.graph.frames import FRAME, is_own
from litz.report.record import Line

_LARGE = 1 << 20  # characters of a file that a report carries whole


def lines_of(trace: str) -> tuple[Line, ...]:
    """The frames of a printed stack trace, outermost first."""
    return tuple(
        line(m["file"], int(m["number"]), m["function"] or "") for m in FRAME.finditer(trace)
    )


def line(file: str, number: int, function: str = "") -> Line:
    """A line by its place; its text is what the file says now."""
    text = linecache.getline(file, number).strip()
    name = re.sub(r"torch_dynamo_resume_in_(\w+)_at_\d+", r"\1", function.strip())
    return Line(f"{file}:{number}", file, number, name, text)


def from_root(file: str) -> str:
    """The path of a file from where Python imports it, or its name where Python does not.

    Says nothing of the machine.  What is no file, ``<stdin>``, stays as it is.
    """
    path = Path(file)
    if not path.is_absolute():
        return file
    roots = [r for r in map(Path.absolute, map(Path, sys.path)) if path.is_relative_to(r)]
    return str(path.relative_to(max(roots, key=lambda r: len(r.parts), default=path.parent)))


def users_line(frames: Iterable[Line]) -> Line | None:
    """The innermost frame that is the user's own; of a library's code alone, the innermost."""
    found = tuple(frames)
    own = [x for x in found if is_own(x.file)]
    return (own or found or (None,))[-1]


def node_line(n: Node) -> Line | None:
    """The user's line that a graph node comes from, if it is known.

    What modules of PyTorch's own call, as ``Sequential`` does, has none: the module stands for it.
    """
    return users_line(lines_of(n.meta.get("stack_trace") or "")) or _module(n)


def _module(n: Node) -> Line | None:
    stack = n.meta.get("nn_module_stack") or n.meta.get("fwd_nn_module_stack") or {}
    path, kind = next(reversed(stack.values()), ("", None))
    if kind is None:
        return None
    inner = ".".join(re.findall(r"\w+", re.sub(r"L\['\w+'\]|_modules|getattr", "", str(path))))
    name = f"module {inner or '(all)'}"
    return Line(f"{name}:0", name, 0, "", str(getattr(kind, "__name__", kind)).rpartition(".")[2])


def sources_of(lines: Iterable[Line]) -> Mapping[str, str]:
    """The text of the files that lines are of; '' where one cannot be read or is very large."""
    found = {}
    for file in sorted({x.file for x in lines if x.number}):
        text = "".join(linecache.getlines(file))
        found[file] = text if len(text) < _LARGE else ""
    return found
