"""Users' operators that write arguments (``torch.library``, ``mutates_args``).

AOTAutograd wraps their calls: the wrapper takes the memory that is written (a *base*, of which the
argument may be a view), and returns the operator's own results followed by the changed bases.  Here
the operator is called itself, on the bases where nothing can tell, else on copies of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import torch
from torch.fx import Node as FxNode

from litz.dataclass import dataclass
from litz.graph.aliasing import offset_of
from litz.graph.calls import leaves
from litz.index import Expr
from litz.ir.program import TensorRef
from litz.lowering.context import EagerOnly, GraphUnsupported
from litz.lowering.externs import add_call
from litz.lowering.numbers import assert_not_negative, require
from litz.lowering.overwriting import Arguments
from litz.lowering.registry import Result
from litz.lowering.state import GraphLowering
from litz.lowering.strides import same_place
from litz.lowering.torch_types import from_torch
from litz.lowering.values import Opaque, exprs, last, strided
from litz.lowering.versions import states_before
from litz.runtime.torch_private import slices_count_from_storage, takes_anything

REASON: Final = "a user's operator that writes its arguments"


def lower_functional_call(low: GraphLowering, n: FxNode) -> Any:
    """Add the call that wrapper ``n`` stands for; what the wrapper returns.

    Raises GraphUnsupported for what is no operator's call, or views that cannot be had.
    """
    op = n.args[0]
    if not isinstance(op, torch._ops.OpOverload):
        raise GraphUnsupported(f"a call of {n.target} with {op}")
    return _Call(low, n, op).run()


@dataclass
class _Call:
    low: GraphLowering
    n: FxNode
    op: torch._ops.OpOverload
    given: Mapping[str, Any] = field(init=False)
    memory: Arguments = field(init=False)
    # The memory of the bases, in their order.
    bases: list[TensorRef | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.given = dict(self.n.kwargs)
        self.memory = Arguments(self.low, self.n, str(self.op))

    def run(self) -> Any:
        low, schema = self.low, self.op._schema
        if any(takes_anything(a.type) for a in schema.arguments):
            raise GraphUnsupported(f"a call of {self.op}, which takes a graph")
        written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        found = {
            a.name: self.passed(a.name, self.given.get(a.name, a.default_value))
            for a in schema.arguments
            if a.name not in written
        }
        whole = "_all_bases" not in self.given  # the older wrapper: arguments are bases
        nodes = [self.given[w] for w in written] if whole else self.given["_all_bases"]
        flat = leaves(nodes)
        self.bases = [self.base(i, x) for i, x in enumerate(flat)]
        if low.settings.inference:  # else equal calls are one node, which may be two tensors
            same = {a: flat.index(v) for a, v in self.given.items() if v in flat and a in found}
            found.update((a, self.bases[i]) for a, i in same.items())
        refs = iter(self.bases)
        for w in written:
            found[w] = _filled(self.given[w], refs) if whole else self.view_or_list(w)
        shown = [r for w in written for r in leaves(found[w]) if isinstance(r, TensorRef)]
        for name, v in found.items():
            if isinstance(v, TensorRef):
                found[name] = next((place for place in shown if same_place(place, v)), v)
        args = tuple(found[a.name] for a in schema.arguments if not a.kwarg_only)
        kwargs = tuple((a.name, found[a.name]) for a in schema.arguments if a.kwarg_only)
        require(low, *exprs((args, tuple(v for _, v in kwargs))))
        aliases = self.aliases(found)
        made = add_call(
            low, self.n, self.op, args, kwargs, self.own_results(aliases), REASON,
            mutates=tuple(self.memory.written), single=len(schema.returns) < 2,
        )  # fmt: skip
        own = [
            m if a is None else self.memory.result(a) for m, a in zip(made, aliases, strict=True)
        ]
        results = (*own, *self.changed(nodes, whole))
        return results if isinstance(self.n.meta["val"], tuple | list) else results[0]

    # --- arguments --------------------------------------------------------------------------

    def passed(self, name: str, v: Any) -> object:
        """An argument that the operator does not write."""
        if isinstance(v, FxNode):
            if isinstance(v.meta.get("val"), torch.Tensor):
                return self.memory.read(f"{name} {v.name}", v)
            v = self.low.env[v]
        if isinstance(v, list | tuple):
            return tuple(self.passed(name, x) for x in v)
        return self.low.expr(v) if isinstance(v, torch.SymInt) else v

    def base(self, i: int, x: FxNode | None) -> TensorRef | None:
        """Memory that the operator may write, with the old value of the base number ``i``."""
        if x is None:
            return None
        return self.memory.write(f"base {i}", x)

    def view_or_list(self, name: str) -> object:
        if f"_{name}_dtype" in self.given:
            return self.empty(name)
        if f"_{name}_length" not in self.given:
            return self.view(f"_{name}")
        length = self.given[f"_{name}_length"]
        if length is None:
            return None
        return tuple(self.view(f"_{name}_{i}") for i in range(length))

    def empty(self, name: str) -> TensorRef:
        """Memory for an ``out=`` argument, which the operator only writes."""
        dtype = from_torch(self.given[f"_{name}_dtype"])
        if dtype is None:
            raise GraphUnsupported(f"{self.op}: a result of type {self.given[f'_{name}_dtype']}")
        shape, strides = (
            tuple(self.low.expr(self.low.map(x)) for x in self.given[f"_{name}_{what}"])
            for what in ("size", "stride")
        )
        r = Result(dtype, shape, strides, str(self.given[f"_{name}_device"]))
        ref = self.memory.empty(r)
        self.memory.written[self.low.b.root(ref.buffer)] = None
        return ref

    def view(self, prefix: str) -> TensorRef | None:
        """The argument, as the part of a base that it is."""
        at = self.given[f"{prefix}_base_index"]
        if at is None:
            return None
        ref: TensorRef | None = self.bases[at]
        node = self.given["_all_bases"][at]
        assert ref is not None
        if f"{prefix}_storage_offset" in self.given:
            names = ("size", "stride", "storage_offset")
            size, stride, offset = (self.given[f"{prefix}_{what}"] for what in names)
        elif f"{prefix}_slice_dim" in self.given:
            names = ("slice_dim", "slice_start", "slice_end")
            dim, start, end = (self.low.map(self.given[f"{prefix}_{w}"]) for w in names)
            own = node.meta["val"]
            size, stride = list(own.shape), own.stride()
            size[dim] = self.low.expr(end) - self.low.expr(start)
            offset = self.low.expr(start) * self.low.expr(stride[dim])
            if not slices_count_from_storage():
                return self.part(ref, size, stride, [offset])
        else:
            return ref
        offset = self.low.expr(self.low.map(offset))
        begins = dict.fromkeys(self.low.expr(o) for o in _offsets(node))
        return self.part(ref, size, stride, [offset - begin for begin in begins])

    def part(
        self, ref: TensorRef, size: Any, stride: Any, begins: Sequence[Expr]
    ) -> TensorRef | None:
        """The view of a base that begins at one of these of its elements.

        Raises EagerOnly where more than one may be meant.
        """
        low = self.low
        v = self.memory.result(ref)
        if isinstance(v, Opaque):
            raise GraphUnsupported(f"{self.op}: it writes a view of a type only ATen handles")
        sizes, strides = (tuple(low.expr(low.map(x)) for x in xs) for xs in (size, stride))
        room = last(ref.shape, ref.strides) - last(sizes, strides)
        inside = [(b, room - b) for b in begins if not (_is_negative(b) or _is_negative(room - b))]
        if not inside:
            raise GraphUnsupported(f"{self.op}: it writes a view that reaches beyond its base")
        if len(inside) > 1:
            raise EagerOnly(
                f"{self.op} writes a part of an argument that the graph has changed before, and "
                "PyTorch's graph does not tell which part: such graphs run in eager mode"
            )
        for e in inside[0]:
            assert_not_negative(low, e, f"{self.op} writes a view that reaches beyond its base")
        begin, _ = inside[0]
        return strided(v, sizes, strides, ref.offset + begin).ref

    # --- results ----------------------------------------------------------------------------

    def aliases(self, found: Mapping[str, object]) -> list[TensorRef | None]:
        """For each of the operator's own results the argument that it is again, if it is one."""
        refs: list[TensorRef | None] = []
        for r in self.op._schema.returns:
            sets = r.alias_info.before_set if r.alias_info else set()
            same = [
                found[a.name]
                for a in self.op._schema.arguments
                if a.alias_info and sets & a.alias_info.before_set
            ]
            refs += [x if isinstance(x, TensorRef) else None for x in same[:1] or [None]]
        return refs or [None]  # an operator without results returns None

    def own_results(self, aliases: Sequence[TensorRef | None]) -> list[Any]:
        """What the call itself gives, as metadata: nothing new where it is an argument again."""
        val = self.n.meta["val"]
        vals = val if isinstance(val, tuple | list) else [val]
        return [v if a is None else None for v, a in zip(vals, aliases, strict=False)]

    def changed(self, nodes: Sequence[Any], whole: bool) -> list[Any]:
        """The bases after the call, nested as the wrapper's results are."""
        values = [None if r is None else self.memory.result(r) for r in self.bases]
        if not whole:
            return values
        left = iter(values)
        return [_filled(x, left) for x in nodes]


def _offsets(base: FxNode) -> list[Any]:
    """Where a base may begin in its memory when a view of it was made.

    PyTorch counts from where the memory of the state began of which it was made, be it the
    argument itself or one of the values that have taken its place since.
    """
    return [offset_of(s) for s in states_before(base) or [base]]


def _is_negative(e: Expr) -> bool:
    return e.hi is not None and e.hi < 0


def _filled(pattern: Any, values: Iterator[Any]) -> Any:
    """The next values, nested as ``pattern``."""
    if isinstance(pattern, list | tuple):
        return tuple(_filled(x, values) for x in pattern)
    return next(values)
