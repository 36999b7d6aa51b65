"""Memory for the arguments that an opaque call writes: in place wherever nothing can tell.

AOTAutograd makes the calls of users' Triton kernels, and of users' operators that write arguments,
functional: of each argument that is written they return a changed copy.  The copy is left out where
nobody reads the old value any more and the memory is the program's own, or an input's that the
graph overwrites in the end; memory without a value (``torch.empty``) is neither filled nor copied.
"""

from __future__ import annotations

import operator
from dataclasses import field
from typing import Final

import torch
from torch.fx import Node as FxNode

from litz.dataclass import dataclass
from litz.graph.calls import leaves
from litz.ir.program import TensorRef
from litz.lowering.context import GraphUnsupported
from litz.lowering.creation import EMPTY, MEMORY, unfilled
from litz.lowering.layouts import stored_as
from litz.lowering.numbers import require
from litz.lowering.registry import Result
from litz.lowering.state import GraphLowering
from litz.lowering.strides import same_layout, with_idle_strides
from litz.lowering.user_kernel_calls import is_user_kernel
from litz.lowering.values import ONE, ZERO, Opaque, TensorValue
from litz.runtime.strided import copy_as_it_is

aten = torch.ops.aten
# Their results are memory of their own, whatever the type.
OWN: Final = frozenset({
    *EMPTY, aten.clone.default, aten.zeros.default, aten.zeros_like.default, aten.ones.default,
    aten.ones_like.default, aten.full.default, aten.full_like.default,
})  # fmt: skip


@dataclass
class Arguments:
    """The tensors that the call of node ``n`` reads and writes.

    what: the call, for messages.  refs: the memory of each argument that has been asked for, by a
    name of the caller's.  written: the buffers that the call writes.
    """

    low: GraphLowering
    n: FxNode
    what: str
    refs: dict[str, TensorRef] = field(default_factory=dict)
    written: dict[str, None] = field(default_factory=dict)

    def read(self, name: str, arg: FxNode) -> TensorRef:
        """The argument in memory, laid out as eager has it: such calls rely on its strides."""
        self.refs[name] = ref = self._read(arg)
        return ref

    def _read(self, arg: FxNode) -> TensorRef:
        low, v = self.low, self.low.env[arg]
        if isinstance(v, Opaque):
            return v.ref
        r = low.result(arg.meta["val"])
        if not isinstance(v, TensorValue) or r is None:
            raise GraphUnsupported(f"{self.what}: an argument that is no tensor")
        if v.ref is not None and same_layout(v.ref, r.strides):
            return with_idle_strides(v.ref, r.strides)
        outer, low.b.origins = low.b.origins, low.sources[arg]
        stored = stored_as(low.b, v, r)
        low.b.origins = outer
        low.bind(arg, stored)
        return with_idle_strides(stored.memory, r.strides)

    def write(self, name: str, arg: FxNode) -> TensorRef:
        """Memory with the argument's old value, which nobody else will look at."""
        self.refs[name] = ref = self._to_write(name, arg)
        self.written[self.low.b.root(ref.buffer)] = None
        return ref

    def result(self, ref: TensorRef) -> TensorValue | Opaque:
        """What the graph's node is whose value lies there after the call."""
        buffer = self.low.b.buffers[ref.buffer]
        if buffer.kind == "opaque":
            return Opaque(ref)
        return TensorValue(ref.dtype, ref.shape, buffer.device, ref=ref)

    def _to_write(self, name: str, arg: FxNode) -> TensorRef:
        low, v = self.low, self.low.env[arg]
        r = low.result(arg.meta["val"])
        if isinstance(v, Opaque):
            return v.ref if self._overwrites(v.ref, name, arg) else self._opaque_copy(arg, v)
        if not isinstance(v, TensorValue) or r is None:
            raise GraphUnsupported(f"{self.what}: it writes an argument that is no tensor")
        if arg.target in EMPTY and v.lazy is not None:
            return self.empty(r)
        ref = v.ref
        if ref is not None and same_layout(ref, r.strides) and self._overwrites(ref, name, arg):
            return with_idle_strides(ref, r.strides)
        return with_idle_strides(stored_as(low.b, v, r).memory, r.strides)

    def empty(self, r: Result) -> TensorRef:
        """New memory without a value."""
        require(self.low, *r.shape, *r.strides)
        return unfilled(self.low.b, r).whole

    def _opaque_copy(self, arg: FxNode, v: Opaque) -> TensorRef:
        """A copy of a tensor whose type or layout only ATen handles."""
        b = self.low.b
        copy = b.opaque(f"buf{len(b.buffers)}", arg.meta["val"]).ref
        device, name = b.buffers[copy.buffer].device, "litz.copy_as_it_is"
        b.extern(copy_as_it_is, (v.ref,), (copy.buffer,), device, MEMORY, target_name=name)
        return copy

    # --- whether the old value is needed ------------------------------------------------------

    def _overwrites(self, ref: TensorRef, name: str, arg: FxNode) -> bool:
        """Whether the call may write where the old value lies; then it is read no more.

        What is computed from the old value and not stored yet is stored first: as much work as a
        copy, at most.
        """
        if not self._may_overwrite(ref, name, arg):
            return False
        self.low.readers.before_mutation(self.low.b.root(ref.buffer), self.n)
        return True

    def _may_overwrite(self, ref: TensorRef, name: str, arg: FxNode) -> bool:
        b = self.low.b
        root = b.root(ref.buffer)
        others = [b.root(r.buffer) for k, r in self.refs.items() if k != name]
        if root in self.written or (root in others and not self.low.settings.inference):
            return False
        if not _written_once(ref):
            return False
        owner = next((x for x in self.low.env if x.op == "placeholder" and x.name == root), None)
        if owner is not None:
            if self._last_copies(owner) == 0:
                return False
        elif not self._is_own_memory(root, arg):
            return False
        live = (v for x, v in self.low.env.items() if self._is_live(x, owner))
        refs = (v.ref for v in leaves(list(live)) if isinstance(v, TensorValue | Opaque))
        return not any(r is not None and b.root(r.buffer) == root for r in refs)

    def _is_own_memory(self, root: str, arg: FxNode) -> bool:
        """Whether the program alone holds it; operators may return what others hold."""
        if self.low.b.buffers[root].kind in ("temp", "fresh") or arg.target in OWN:
            return True
        source = arg.args[0] if arg.target is operator.getitem else None
        return isinstance(source, FxNode) and is_user_kernel(source.target)

    def _last_copies(self, x: FxNode) -> int:
        """Calls still to come that overwrite all of ``x`` with another value."""
        return sum(
            u.target is aten.copy_.default and u.args[0] is x and u.args[1] is not x
            for u in x.users
            if u not in self.low.env
        )

    def _is_live(self, x: FxNode, owner: FxNode | None) -> bool:
        left = self.low.readers.wanted(x, self.n)
        return left > (self._last_copies(x) if x is owner else 0)


def is_own_copy(low: GraphLowering, n: FxNode) -> bool:
    """Whether a call copies memory onto itself: an earlier one has written it in place already."""
    if n.target is not aten.copy_.default or len(n.args) < 2:
        return False
    to, value = (low.env.get(a) if isinstance(a, FxNode) else None for a in n.args[:2])
    both = (to, value)
    if all(isinstance(v, TensorValue | Opaque) for v in both):
        refs = [getattr(v, "ref", None) for v in both]
        return refs[0] is not None and refs[0] == refs[1]
    return False


def _written_once(ref: TensorRef) -> bool:
    """Whether no two elements of a view lie in one place, as far as expanding goes."""
    return not any(
        st is ZERO and s is not ONE for s, st in zip(ref.shape, ref.strides, strict=True)
    )
