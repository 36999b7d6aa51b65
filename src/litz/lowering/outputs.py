"""What a graph returns: memory with eager's strides, shared just where eager shares it."""

from __future__ import annotations

import operator
from dataclasses import field, replace
from typing import Final

import torch
from torch.fx import Node as FxNode

from litz.dataclass import dataclass
from litz.graph.aliasing import offset_of, owner, roles, viewed
from litz.graph.values import eager_value
from litz.index import ONE, ZERO, Expr
from litz.ir import body
from litz.ir.program import HostFloat, TensorRef
from litz.ir.text import is_whole
from litz.lowering import values
from litz.lowering.layouts import stored_as
from litz.lowering.numbers import emit
from litz.lowering.state import GraphLowering
from litz.lowering.strides import dense, laid_otherwise, same_layout, with_idle_strides
from litz.lowering.values import Opaque, TensorValue
from litz.runtime.torch_private import same_memory

aten = torch.ops.aten

DETACH: Final = aten.detach.default
AS_STRIDED: Final = aten.as_strided.default
SLICE: Final = aten.slice.Tensor
WHY_DETACHED: Final = "a result is a view of all of another"
WHY_FOREIGN: Final = "a result is no view in autograd's eyes"
WHY_COUNTED: Final = "PyTorch counts who writes what the backward pass reads"


@dataclass
class Outputs:
    """The results of one graph.

    owners: which node's value a piece of memory is, by the buffer that owns it: what eager keeps
    apart must not share it.
    """

    low: GraphLowering
    owners: dict[str, FxNode] = field(default_factory=dict)

    def run(self, output: FxNode) -> tuple[object, ...]:
        """The results that the graph's output node names, as programs have them."""
        (results,) = output.args
        assert isinstance(results, tuple | list)
        nodes = [r for r in results if isinstance(r, FxNode)]
        self.own(nodes)
        done = {r: self.returned(r) for r in dict.fromkeys(nodes)}
        if not self.low.settings.inference:
            self.detach_views(done)
            self.count_writes(output, done)
        return tuple(done[r] if isinstance(r, FxNode) else r for r in results)

    def detach_views(self, done: dict[FxNode, object]) -> None:
        """Views that are all of a later result are tensors of their own, as are ATen's views.

        The later one may be what AOTAutograd makes other results from, as its views with
        gradients, and autograd knows results without gradients by their identity.
        """
        buffers = self.low.b.buffers
        later: set[object] = set()
        for n, ref in reversed(done.items()):
            if not isinstance(ref, TensorRef) or viewed(n) is None:
                later.add(ref)
                continue
            own = buffers[ref.buffer]
            if own.kind == "opaque" or own.alias is not None and is_whole(ref, buffers):
                done[n] = self.call(n, DETACH, ref, (), ref, WHY_FOREIGN)
            elif ref in later and is_whole(ref, buffers):
                done[n] = self.call(n, DETACH, ref, (), ref, WHY_DETACHED)
            later.add(ref)

    def count_writes(self, output: FxNode, done: dict[FxNode, object]) -> None:
        """What shares memory with a saved value is told to PyTorch where PyTorch hands it out.

        They are views in its eyes too, so that it counts writes to any of them, and refuses a
        backward pass that would read what somebody has written meanwhile.
        """
        b = self.low.b
        kinds: dict[FxNode, set[str]] = {}
        together: dict[str, list[tuple[FxNode, TensorRef]]] = {}
        for n, kind in zip(output.args[0], roles(output), strict=True):  # type: ignore[arg-type]
            if isinstance(n, FxNode):
                kinds.setdefault(n, set()).add(kind)
        for n, ref in done.items():
            if isinstance(ref, TensorRef):
                together.setdefault(b.root(ref.buffer), []).append((n, ref))
        for root, views in together.items():
            given = b.buffers[root].kind == "input"
            shown = any(kinds[n] != {"saved"} for n, _ in views)
            several = sum(len(kinds[n]) for n, _ in views) > 1
            for n, ref in views if shown and several else ():
                anew = kinds[n] == {"made anew"} or given and not _handed_out(n, kinds[n])
                alike = ref.dtype is b.buffers[ref.buffer].dtype
                if alike and not anew and not is_whole(ref, b.buffers):
                    done[n] = self.view(n, ref)

    def view(self, n: FxNode, ref: TensorRef) -> TensorRef:
        """A view by PyTorch's own calls, one after which it is no more than memory with strides.

        None of them asks where the buffer begins in its storage.
        """
        base = self.low.b.buffers[ref.buffer].whole
        if ref.offset is not ZERO:
            ahead = replace(base, shape=(ref.offset,), strides=(ONE,))
            base = self.call(n, AS_STRIDED, base, (ahead.shape, ahead.strides), ahead, WHY_COUNTED)
            none = replace(ahead, shape=(ZERO,))
            base = self.call(n, SLICE, base, (0, ref.offset, ref.offset), none, WHY_COUNTED)
        base = self.call(n, AS_STRIDED, base, (ref.shape, ref.strides), ref, WHY_COUNTED)
        return self.call(n, DETACH, base, (), ref, WHY_COUNTED)

    def call(
        self,
        n: FxNode,
        op: object,
        of: TensorRef,
        args: tuple[object, ...],
        like: TensorRef,
        why: str,
    ) -> TensorRef:
        """A view that an operator makes, with the layout of ``like``."""
        b = self.low.b
        own = b.buffers[of.buffer]
        kind = "opaque" if own.kind == "opaque" else "extern"
        made = b.new_buffer(of.dtype, like.shape, like.strides, own.device, kind, alias=own.name)
        b.origins = self.low.sources[n]
        b.extern(op, (of, *args), (made.name,), own.device, why)
        return made.whole

    def own(self, results: list[FxNode]) -> None:
        """Inputs and constants own their memory; else it is that of what was computed first."""
        low = self.low
        for n in low.gm.graph.nodes:
            if n.op in ("placeholder", "get_attr") and n.name in low.b.buffers:
                self.owners[n.name] = n
        computed = dict.fromkeys(map(owner, results))
        for n in sorted(computed, key=low.places.__getitem__):
            v = low.env[n]
            if isinstance(v, TensorValue) and v.ref is not None:
                self.owners.setdefault(low.b.root(v.ref.buffer), n)

    def returned(self, n: FxNode) -> object:
        """Where a result lies, in memory of its own unless it is a view of another's in eager."""
        v = self.low.env[n]
        if isinstance(v, Opaque):
            return v.ref
        if isinstance(v, Expr) and isinstance(n.meta.get("val"), torch.SymBool):
            truth = HostFloat(self.low.symbols.fresh("truth"))
            emit(self.low, bool, (v,), truth)  # the number 0 or 1 so far
            return truth
        if not isinstance(v, TensorValue):
            return v
        self.low.b.origins = self.low.sources[n]
        meta = eager_value(n)
        strides, r = None, self.low.result(meta) if isinstance(meta, torch.Tensor) else None
        if r is not None and dense(r):
            strides = r.strides
        own = owner(n)
        base = n
        while (source := viewed(base)) is not None:
            base = source
        v = as_view(self.low, n, base, v)
        foreign = False
        if v.ref is not None:
            root = self.low.b.root(v.ref.buffer)
            foreign = self.owners.setdefault(root, own) is not own
            # A part of what lies otherwise than in eager mode is nobody's view.
            foreign |= r is not None and laid_otherwise(v.ref, r.strides)
            if foreign or strides is not None and not same_layout(v.ref, strides):
                v = v.without_memory()
        if v.lazy is None:
            return v.ref if v.ref is None or r is None else with_idle_strides(v.ref, r.strides)
        if foreign and strides is None and r is not None:
            v = stored_as(self.low.b, v, r)
        else:
            v = self.low.b.realize(v, strides)
        self.low.note(n, v)
        self.owners[self.low.b.root(v.memory.buffer)] = own
        return v.memory


def _handed_out(n: FxNode, kinds: set[str]) -> bool:
    """Whether PyTorch hands out a view of an argument: it makes all anew but parts of ``chunk``."""
    while (source := viewed(n)) is not None and n.target is not operator.getitem:
        n = source
    return source is not None and kinds != {"saved"}


def as_view(low: GraphLowering, n: FxNode, base: FxNode, v: TensorValue) -> TensorValue:
    """The value ``v`` of ``n``, a view of a stored node, with eager's strides and offset.

    What lowering could not prove to be a strided view, of sizes that nobody can compare, is one
    by PyTorch's word; a copy of it would be returned as memory of its own.  (PyTorch makes a view
    that is returned anew, by these numbers.)  What is a copy by now stays one: the node's memory
    may have been written since.
    """
    own, val = low.env[base], n.meta["val"]
    if base is n or not isinstance(own, TensorValue) or own.ref is None:
        return v
    r = low.result(val)
    if r is None or v.dtype is not own.dtype or v.dtype is not r.dtype:
        return v
    root = low.b.root(own.ref.buffer)
    if v.ref is not None and (low.b.root(v.ref.buffer) != root or same_layout(v.ref, r.strides)):
        return v
    # Where a pass has put an argument in the place of its update, the strides are the update's.
    if not same_memory(val, base.meta["val"]):
        return v
    whole = low.result(base.meta["val"])
    if whole is None or not same_layout(own.ref, whole.strides):
        return v
    if v.ref is not None:
        return values.strided(v, v.shape, r.strides, v.ref.offset)
    assert v.lazy is not None
    if any(low.b.root(x.buffer) != root for x in body.loads((v.lazy,))):
        return v
    gap = low.expr(offset_of(n)) - low.expr(offset_of(base))
    return values.strided(own, v.shape, r.strides, own.ref.offset + gap)
