"""Triton kernels as an artifact has them, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from litz.index import Expr, Symbol, parse, symbol
from litz.ir import dtype as d
from litz.ir.dtype import DType
from litz.runtime.records import Leaf, Records
from litz.targets.triton.source import Launch, TritonKernel


def launches_of(kernel: TritonKernel) -> dict[str, object]:
    """The launches of a kernel as data, but for their sources (``kernel.sources()``).

    Expressions are texts; their symbols are declared beside them.
    """
    symbols: dict[str, Symbol] = {}

    def text(e: Expr) -> str:
        for s in e.free:
            assert isinstance(s, Symbol) and symbols.get(s.name, s) is s, s
            symbols[s.name] = s
        return str(e)

    records = Records({Expr: Leaf(text, str), DType: Leaf(str, str)})
    numbers = iter(range(len(kernel.sources())))
    numbered = _with_sources(kernel, map(str, numbers))
    data = records.write(numbered)
    return {"kernel": data, "symbols": {n: [s.lo, s.hi, s.hint] for n, s in symbols.items()}}


def kernel_of(launches: Mapping[str, Any], sources: Sequence[str]) -> TritonKernel:
    """The kernel of which ``launches_of`` gave the data."""
    scope = {name: symbol(name, *known) for name, known in launches["symbols"].items()}
    leaves = {
        Expr: Leaf(str, lambda text: parse(text, scope)),
        DType: Leaf(str, d.BY_NAME.__getitem__),
    }
    records = Records(leaves)
    kernel: TritonKernel = records.read(TritonKernel, launches["kernel"])
    return _with_sources(kernel, iter(sources))


def _with_sources(kernel: TritonKernel, sources: Iterator[str]) -> TritonKernel:
    """The kernel with other sources, in the order of ``kernel.sources()``."""

    def filled(launch: Launch) -> Launch:
        own = replace(launch, source=next(sources))
        return own if own.narrow is None else replace(own, narrow=filled(own.narrow))

    own = replace(kernel, launches=tuple(map(filled, kernel.launches)))
    return replace(own, others=tuple(_with_sources(k, sources) for k in kernel.others))
