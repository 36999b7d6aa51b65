"""Users' Triton kernels: calls of their own objects, writing in place wherever nothing can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Final

import torch
from torch.fx import Node as FxNode

from litz.dataclass import dataclass
from litz.index import Expr
from litz.ir import dtype as d
from litz.ir.program import Extern, HostFloat, TensorRef
from litz.lowering.context import GraphUnsupported
from litz.lowering.numbers import require
from litz.lowering.overwriting import Arguments
from litz.lowering.state import GraphLowering
from litz.lowering.user_kernel_calls import Descriptor, KernelCall, kernel_call
from litz.lowering.values import Opaque, TensorValue, exprs
from litz.runtime.user_kernels import UserKernel, tensor_descriptor, tma_descriptor

REASON: Final = "a user's Triton kernel"


def lower_user_kernel(low: GraphLowering, n: FxNode) -> tuple[TensorValue | Opaque, ...]:
    """Add the launch that ``n`` stands for; its results, in the order of ``tensors_to_clone``."""
    return _Launch(low, n, kernel_call(n)).run()


@dataclass
class _Launch:
    low: GraphLowering
    n: FxNode
    call: KernelCall
    memory: Arguments = field(init=False)

    def __post_init__(self) -> None:
        self.memory = Arguments(self.low, self.n, self.call.name)

    def run(self) -> tuple[TensorValue | Opaque, ...]:
        low, call, memory = self.low, self.call, self.memory
        nodes = call.nodes()
        tensors = {k: a for k, a in nodes.items() if isinstance(a.meta.get("val"), torch.Tensor)}
        self.check(tensors)
        repeated = self.repeated(tensors)
        for name, arg in tensors.items():
            if name not in call.written and name not in repeated:
                memory.read(name, arg)
        for name in call.written:
            if name not in repeated:
                memory.write(name, tensors[name])
        memory.refs.update((name, memory.refs[first]) for name, first in repeated.items())
        args = tuple(self.value(k, v) for k, v in call.args)
        kwargs = tuple((k, self.value(k, v)) for k, v in call.kwargs)
        grids = self.grids()
        require(low, *exprs((grids, args, tuple(v for _, v in kwargs))))
        devices = [str(a.meta["val"].device) for a in tensors.values()]
        target = UserKernel(call.kernel, call.configs, call.written)
        low.b.extern(
            target, (grids, *args), (), devices[0] if devices else "cpu", REASON, kwargs=kwargs,
            target_name=f"triton.{call.name}", mutates=tuple(memory.written),
        )  # fmt: skip
        return tuple(memory.result(memory.refs[k]) for k in call.written)

    def check(self, tensors: dict[str, FxNode]) -> None:
        for name in (*self.call.written, *self.call.descriptors):
            if name not in tensors:
                raise GraphUnsupported(f"{self.call.name}: its argument {name} is no tensor")
        tried = len(self.call.configs) > 1
        old = [k for k, how in self.call.descriptors.items() if not how.plain]
        if tried and any(k in self.call.written for k in old):
            raise GraphUnsupported(f"{self.call.name}: tuning it would write {old[0]} many times")

    # --- other arguments --------------------------------------------------------------------

    def grids(self) -> tuple[object, ...]:
        """One grid a configuration, or a single one where all are equal."""
        grids = tuple(tuple(self.number(x) for x in g) for g in self.call.grids)
        return grids[:1] if all(g == grids[0] for g in grids) else grids

    def number(self, v: Any) -> object:
        found = self.low.map(v)
        if isinstance(found, bool | int | Expr | HostFloat | float):
            return found
        raise GraphUnsupported(f"{self.call.name}: a size of type {type(found).__name__}")

    def value(self, name: str, v: Any) -> object:
        if name in self.call.descriptors:
            return self.descriptor(self.memory.refs[name], self.call.descriptors[name])
        if name in self.memory.refs:
            return self.memory.refs[name]
        if isinstance(v, FxNode | torch.SymInt):
            return self.number(v)
        if isinstance(v, list | tuple):
            return tuple(self.value("", x) for x in v)
        return v

    def descriptor(self, ref: TensorRef, how: Descriptor) -> TensorRef:
        """A descriptor of a view, built once for all launches; it keeps the view's memory alive."""
        b = self.low.b
        make: Callable[..., object] = tensor_descriptor if how.plain else tma_descriptor
        sizes = tuple(
            tuple(self.number(x) for x in s) if isinstance(s, list | tuple) else self.number(s)
            for s in how.sizes
        )
        args = (ref, *sizes)
        require(self.low, *exprs(args))
        for known in b.nodes:
            if isinstance(known, Extern) and known.target is make and known.args == args:
                (name,) = known.outputs
                assert name is not None
                return b.buffers[name].whole
        device = b.buffers[ref.buffer].device
        made = b.new_buffer(d.U8, (), (), device, "opaque", alias=ref.buffer)
        why = "a descriptor for a user's Triton kernel"
        b.extern(make, args, (made.name,), device, why, target_name=f"litz.{make.__name__}")
        return made.whole

    def repeated(self, tensors: dict[str, FxNode]) -> dict[str, str]:
        """Arguments that are, in eager, the tensor of another one that is written, by that.

        Where a graph is one of two, the partitioner has merged equal calls: one node may be two
        tensors.
        """
        if not self.low.settings.inference:
            return {}
        first = {tensors[w]: w for w in reversed(self.call.written)}
        return {k: first[a] for k, a in tensors.items() if first.get(a, k) != k}
