"""Litz's stages and provenance in PyTorch's structured trace, which tlparse and others show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from litz.report.gather import Gathered
from litz.report.lines import from_root
from litz.report.record import Graph, Kernel, Line
from litz.runtime.records import Records
from litz.runtime.torch_private import trace_artifact
from litz.stages import Compiled


def trace(found: Compiled) -> None:
    """Write a graph's texts and sources, and the record that leads from them to the user's lines.

    The record, ``litz_provenance``, is an object of ``graph``, ``kernels`` and ``lines`` in the
    forms that ``schema.json`` gives them; its graph is called ``g``, and its texts stand beside it.
    """
    gathered = Gathered("g", found.kind, found.graph, found.stages)
    for name, text in gathered.graph.texts.items():
        trace_artifact(f"litz_{name}", "string", lambda text=text: text)  # type: ignore[misc]
    sources = "\n".join(k.source for k in gathered.kernels.values())
    if sources:
        trace_artifact("litz_kernels", "string", lambda: sources)
    trace_artifact("litz_provenance", "json", lambda: provenance(gathered))


def provenance(g: Gathered, whole: bool = True) -> str:
    """A graph's steps, nodes and memory, its kernels and the user's lines, as JSON.

    whole: with code, theirs and the user's, with seconds, which differ each time, and with files'
    whole paths, which differ by machine.
    """
    kernels: tuple[Kernel, ...] = tuple(g.kernels.values())
    lines: tuple[Line, ...] = tuple(g.lines.values())
    graph: Graph = g.graph
    record = Records({}).write({"graph": graph, "kernels": kernels, "lines": lines})
    record["graph"]["texts"] = {}
    if not whole:
        record["graph"]["seconds"] = {}
        for x in (*record["kernels"], *record["lines"]):
            x |= dict.fromkeys({"source", "text"} & x.keys(), "")
        short = {x.file: from_root(x.file) for x in lines}
        short |= {x.id: f"{short[x.file]}:{x.number}" for x in lines}
        return json.dumps(_renamed(record, short))
    return json.dumps(record)


def _renamed(found: Any, names: Mapping[str, str]) -> Any:
    if isinstance(found, dict):
        return {k: _renamed(x, names) for k, x in found.items()}
    if isinstance(found, list):
        return [_renamed(x, names) for x in found]
    return names.get(found, found) if isinstance(found, str) else found
