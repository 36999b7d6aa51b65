"""One graph while it is lowered: its values so far, and the program that is being built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from litz.dataclass import dataclass
from litz.index import Expr
from litz.ir.program import Binding, Program, Subgraph
from litz.lowering.bindings import Handed
from litz.lowering.context import Builder, GraphUnsupported, Settings
from litz.lowering.readers import Readers
from litz.lowering.registry import Result
from litz.lowering.strides import plain_strides
from litz.lowering.symbols import Symbols
from litz.lowering.torch_types import from_torch
from litz.lowering.values import Opaque, Shape, TensorValue

Compile = Callable[[str, GraphModule], Program]


@dataclass
class GraphLowering:
    """What every step of a lowering reads, and adds to.

    compile_body: compiles a body of control flow under its name.  env: values by graph node.
    asserted: what is asserted by now, as text.  layouts: what inputs' layouts hold, until they all
    are there.
    uses_left: users of each node that are still to come.  places: the nodes' order.
    declined: why calls with bodies are no nests of the program's.
    bodies: compiled, by their names.  regions: those of regions, by what they were compiled for.
    described: results by their metadata.  seen: by its identity, each tensor of metadata and its.
    views: layouts of calls that view buffers, by ``view_key``.
    sources: graph nodes that are part of a value's expression: itself, and its inputs that are
    lazy.
    """

    gm: GraphModule
    settings: Settings
    compile_body: Compile | None = None
    b: Builder = field(init=False)
    env: dict[FxNode, Any] = field(default_factory=dict)
    symbols: Symbols = field(default_factory=Symbols)
    asserted: set[str] = field(default_factory=set)
    layouts: list[Expr] = field(default_factory=list)
    uses_left: dict[FxNode, int] = field(default_factory=dict)
    places: dict[FxNode, int] = field(default_factory=dict)
    readers: Readers = field(init=False)
    bindings: list[Binding] = field(default_factory=list)
    handed: dict[str, Handed] = field(default_factory=dict)
    declined: dict[FxNode, str] = field(default_factory=dict)
    bodies: dict[str, Program] = field(default_factory=dict)
    regions: dict[tuple[str, ...], Subgraph] = field(default_factory=dict)
    sources: dict[FxNode, tuple[str, ...]] = field(default_factory=dict)
    described: dict[object, Result] = field(default_factory=dict)
    seen: dict[int, tuple[torch.Tensor, Result]] = field(default_factory=dict)
    views: dict[object, tuple[Shape, Shape, Expr]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.b = Builder(self.settings)
        self.readers = Readers(self.b, self.env, self.uses_left, self.places, self.bind)

    def bind(self, n: FxNode, value: Any, only: int | None = None) -> None:
        """Make ``value`` the node's, and note where it lies if it lies in memory.

        only: the one of several that is another one than before.
        """
        self.env[n] = value
        self.readers.note(n)
        several = isinstance(value, tuple | list)
        parts: Iterable[int | None] = range(len(value)) if several and only is None else (only,)
        for k in parts:
            v = value if k is None else value[k]
            if isinstance(v, Opaque) or (isinstance(v, TensorValue) and v.ref is not None):
                self.note(n, v, k)

    def note(self, n: FxNode, v: TensorValue | Opaque, position: int | None = None) -> None:
        assert v.ref is not None
        whole = isinstance(v, Opaque)
        behind = self.b.nodes[-1].name if self.b.nodes else None
        self.bindings.append(Binding(n.name, position, v.ref, behind, whole))

    def subgraph(self, gm: GraphModule) -> Subgraph:
        """A body of control flow, compiled.  Raises GraphUnsupported where nobody compiles it."""
        if self.compile_body is None:
            raise GraphUnsupported("control flow, whose bodies nobody checks")
        found = Subgraph(f"body{len(self.bodies)}")
        self.bodies[found.name] = self.compile_body(found.name, gm)
        return found

    # --- from torch's terms to the program's -------------------------------------------------

    def result(self, val: torch.Tensor) -> Result | None:
        """What a tensor's metadata say; None for one that only ATen handles."""
        known = self.seen.get(id(val))
        if known is not None:
            return known[1]
        dtype = from_torch(val.dtype)
        # Memory of a lazily negated view (an imaginary part's) does not hold what the view does.
        if dtype is None or val.layout is not torch.strided or val.is_neg():
            return None
        sizes, steps = val.shape, val.stride()
        # Sizes that are known mean the same everywhere; open ones have no hash.
        key = (dtype, sizes, steps, val.device) if _known(sizes) and _known(steps) else None
        found = self.described.get(key) if key is not None else None
        if found is None:
            shape = tuple(self.expr(s) for s in sizes)
            strides = plain_strides(shape, tuple(self.expr(s) for s in steps))
            found = Result(dtype, shape, strides, str(val.device))
            if key is not None:
                self.described[key] = found
        if key is not None:
            self.seen[id(val)] = val, found
        return found

    def expr(self, value: Any) -> Expr:
        return value if isinstance(value, Expr) else self.symbols.convert(value)

    def map(self, value: Any) -> Any:
        """Arguments with graph nodes replaced by their values."""
        if isinstance(value, FxNode):
            return self.env[value]
        if isinstance(value, list | tuple):
            return (tuple if type(value) is tuple else list)(self.map(v) for v in value)
        if isinstance(value, dict):
            return {k: self.map(v) for k, v in value.items()}
        if isinstance(value, torch.SymInt):
            return self.expr(value)
        return value


def _known(sizes: Iterable[Any]) -> bool:
    return {int}.issuperset(map(type, sizes))
