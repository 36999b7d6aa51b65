"""Users' Triton kernels: calls of their own objects, writing in place wherever nothing can tell.

AOTAutograd's call is functional: of each argument that the kernel writes it returns a changed copy.
The copy is left out where nobody reads the old value any more and the memory is the program's own,
or an input's that the graph overwrites in the end; memory without a value (``torch.empty``) is
neither filled nor copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx import Node as FxNode

from litz.index import Expr
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.program import Buffer, Extern, HostFloat, TensorRef
from litz.lowering import values
from litz.lowering.context import GraphUnsupported
from litz.lowering.externs import Opaque, opaque_buffer
from litz.lowering.numbers import require
from litz.lowering.registry import Result
from litz.lowering.strides import dense
from litz.lowering.torch_types import to_torch
from litz.lowering.user_kernel_calls import (
    Descriptor,
    KernelCall,
    is_user_kernel,
    kernel_call,
)
from litz.lowering.values import ONE, ZERO, TensorValue
from litz.runtime.user_kernels import (
    UserKernel,
    copy_as_it_is,
    tensor_descriptor,
    tma_descriptor,
)

if TYPE_CHECKING:
    from litz.lowering.graph import GraphLowering

aten = torch.ops.aten
REASON: Final = "a user's Triton kernel"
MEMORY: Final = "memory for a user's Triton kernel to fill"
EMPTY: Final = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.empty_permuted.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)

# Their results are memory of their own, whatever the type.
OWN: Final = EMPTY | {
    aten.clone.default,
    aten.zeros.default,
    aten.zeros_like.default,
    aten.ones.default,
    aten.ones_like.default,
    aten.full.default,
    aten.full_like.default,
}


def lower_user_kernel(low: GraphLowering, n: FxNode) -> tuple[TensorValue | Opaque, ...]:
    """Add the launch that ``n`` stands for; its results, in the order of ``tensors_to_clone``."""
    return _Launch(low, n, kernel_call(n)).run()


def is_own_copy(low: GraphLowering, n: FxNode) -> bool:
    """Whether a call copies memory onto itself: a kernel has written it in place already."""
    if n.target is not aten.copy_.default or len(n.args) < 2:
        return False
    to, value = (low.env.get(a) if isinstance(a, FxNode) else None for a in n.args[:2])
    both = (to, value)
    if all(isinstance(v, TensorValue | Opaque) for v in both):
        refs = [getattr(v, "ref", None) for v in both]
        return refs[0] is not None and refs[0] == refs[1]
    return False


@dataclass
class _Launch:
    low: GraphLowering
    n: FxNode
    call: KernelCall
    # The memory of each tensor argument, by the argument's name.
    refs: dict[str, TensorRef] = field(default_factory=dict)
    written: dict[str, None] = field(default_factory=dict)

    def run(self) -> tuple[TensorValue | Opaque, ...]:
        low, b, call = self.low, self.low.b, self.call
        nodes = call.nodes()
        tensors = {k: a for k, a in nodes.items() if isinstance(a.meta.get("val"), torch.Tensor)}
        self.check(tensors)
        shared = self.shared(tensors)
        for name, arg in tensors.items():
            if name not in call.written and name not in shared:
                self.refs[name] = self.read(arg)
        for name in call.written:
            first = self.first_of(name, tensors)
            ref = self.refs[first] if first else self.to_write(name, tensors[name])
            self.refs[name] = ref
            self.written[b.root(ref.buffer)] = None
        for name, other in shared.items():
            self.refs[name] = self.refs[other]
        args = tuple(self.value(k, v) for k, v in call.args)
        kwargs = tuple((k, self.value(k, v)) for k, v in call.kwargs)
        grids = self.grids()
        require(low, *_exprs((grids, args, tuple(v for _, v in kwargs))))
        devices = [str(a.meta["val"].device) for a in tensors.values()]
        b.extern(
            Extern(
                f"extern{len(b.nodes)}",
                UserKernel(call.kernel, call.configs, call.written),
                f"triton.{call.name}",
                (grids, *args),
                kwargs,
                (),
                devices[0] if devices else "cpu",
                REASON,
                mutates=tuple(self.written),
                origins=b.origins,
            )
        )
        return tuple(self.result(tensors[k], self.refs[k]) for k in call.written)

    def check(self, tensors: dict[str, FxNode]) -> None:
        for name in (*self.call.written, *self.call.descriptors):
            if name not in tensors:
                raise GraphUnsupported(f"{self.call.name}: its argument {name} is no tensor")
        tried = len(self.call.configs) > 1
        old = [k for k, how in self.call.descriptors.items() if not how.plain]
        if tried and any(k in self.call.written for k in old):
            raise GraphUnsupported(f"{self.call.name}: tuning it would write {old[0]} many times")

    def result(self, arg: FxNode, ref: TensorRef) -> TensorValue | Opaque:
        buffer = self.low.b.buffers[ref.buffer]
        if buffer.kind == "opaque":
            return Opaque(ref)
        return TensorValue(ref.dtype, ref.shape, buffer.device, ref=ref)

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
            return self.descriptor(self.refs[name], self.call.descriptors[name])
        if name in self.refs:
            return self.refs[name]
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
        require(self.low, *_exprs(args))
        for known in b.nodes:
            if isinstance(known, Extern) and known.target is make and known.args == args:
                (name,) = known.outputs
                assert name is not None
                return TensorRef(name, d.U8, (), (), ZERO)
        device = b.buffers[ref.buffer].device
        made = b.new_buffer(d.U8, (), (), device, "opaque", alias=ref.buffer)
        why = "a descriptor for a user's Triton kernel"
        self.extern(make, f"litz.{make.__name__}", args, (), made, why)
        return TensorRef(made.name, made.dtype, (), (), ZERO)

    # --- tensors that are read --------------------------------------------------------------

    def read(self, arg: FxNode) -> TensorRef:
        """The argument in memory, laid out as eager has it: kernels are told its strides apart."""
        low, v = self.low, self.low.env[arg]
        if isinstance(v, Opaque):
            return v.ref
        r = low.result(arg.meta["val"])
        if not isinstance(v, TensorValue) or r is None:
            raise GraphUnsupported(f"{self.call.name}: an argument that is no tensor")
        if v.ref is not None and _same_strides(v.ref, r):
            return v.ref
        outer, low.b.origins = low.b.origins, low.sources[arg]
        stored = stored_as(low, v, r)
        low.b.origins = outer
        low.bind(arg, stored)
        assert stored.ref is not None
        return stored.ref

    # --- tensors that are written -----------------------------------------------------------

    def shared(self, tensors: dict[str, FxNode]) -> dict[str, str]:
        """Arguments that are only read and are, in eager, the tensor of one that is written.

        Where a graph is one of two, the partitioner has merged equal calls: one node may be two
        tensors.
        """
        if not self.low.settings.inference:
            return {}
        found: dict[str, str] = {}
        for name, arg in tensors.items():
            same = [w for w in self.call.written if tensors[w] is arg]
            if name not in self.call.written and same:
                found[name] = same[0]
        return found

    def first_of(self, name: str, tensors: dict[str, FxNode]) -> str | None:
        """An earlier written argument that is the same tensor in eager."""
        earlier = self.call.written[: self.call.written.index(name)]
        if not self.low.settings.inference:
            return None
        return next((w for w in earlier if tensors[w] is tensors[name]), None)

    def to_write(self, name: str, arg: FxNode) -> TensorRef:
        """Memory with the argument's old value, which nobody else will look at."""
        low, v = self.low, self.low.env[arg]
        r = low.result(arg.meta["val"])
        if isinstance(v, Opaque):
            return v.ref if self.may_overwrite(v.ref, name, arg) else self.opaque_copy(arg, v)
        if not isinstance(v, TensorValue) or r is None:
            raise GraphUnsupported(f"{self.call.name}: it writes an argument that is no tensor")
        if arg.target in EMPTY and v.lazy is not None:
            return self.empty(r)
        if v.ref is not None and _same_strides(v.ref, r) and self.may_overwrite(v.ref, name, arg):
            return v.ref
        ref = stored_as(low, v, r).ref
        assert ref is not None
        return ref

    def empty(self, r: Result) -> TensorRef:
        buf = self.low.b.new_buffer(r.dtype, r.shape, r.strides, r.device, "fresh")
        require(self.low, *r.shape, *r.strides)
        options = (("dtype", to_torch(r.dtype)), ("device", torch.device(r.device)))
        target = torch.empty_strided
        self.extern(target, "empty_strided", (r.shape, r.strides), options, buf, MEMORY)
        return TensorRef(buf.name, r.dtype, r.shape, r.strides, ZERO)

    def opaque_copy(self, arg: FxNode, v: Opaque) -> TensorRef:
        """A copy of a tensor whose type or layout only ATen handles."""
        b = self.low.b
        copy = opaque_buffer(b, f"buf{len(b.buffers)}", arg.meta["val"]).ref
        made = b.buffers[copy.buffer]
        self.extern(copy_as_it_is, "litz.copy_as_it_is", (v.ref,), (), made, MEMORY)
        return copy

    def extern(
        self,
        target: object,
        name: str,
        args: tuple[object, ...],
        kwargs: tuple[tuple[str, object], ...],
        made: Buffer,
        reason: str,
    ) -> None:
        """Add a call that makes a buffer."""
        b = self.low.b
        b.extern(
            Extern(
                f"extern{len(b.nodes)}", target, name, args, kwargs, (made.name,), made.device,
                reason, origins=b.origins,
            )
        )  # fmt: skip

    def may_overwrite(self, ref: TensorRef, name: str, arg: FxNode) -> bool:
        """Whether the kernel may write where the old value lies."""
        b = self.low.b
        root = b.root(ref.buffer)
        others = [b.root(r.buffer) for k, r in self.refs.items() if k != name]
        if root in self.written or (root in others and not self.low.settings.inference):
            return False
        if not _written_once(ref):
            return False
        owner = next((x for x in self.low.env if x.op == "placeholder" and x.name == root), None)
        if owner is not None:
            if self.last_copies(owner) == 0:
                return False
        elif not self.is_own_memory(root, arg):
            return False
        return not any(
            root in self.roots(v) for x, v in self.low.env.items() if self.is_live(x, owner)
        )

    def is_own_memory(self, root: str, arg: FxNode) -> bool:
        """Whether the program alone holds it; operators may return what others hold."""
        if self.low.b.buffers[root].kind in ("temp", "fresh") or arg.target in OWN:
            return True
        source = arg.args[0] if arg.target is operator.getitem else None
        return isinstance(source, FxNode) and is_user_kernel(source.target)

    def last_copies(self, x: FxNode) -> int:
        """Calls still to come that overwrite all of ``x`` with another value."""
        return sum(
            u.target is aten.copy_.default and u.args[0] is x and u.args[1] is not x
            for u in x.users
            if u not in self.low.env
        )

    def is_live(self, x: FxNode, owner: FxNode | None) -> bool:
        left = self.low.uses_left[x] - (1 if x in self.n.all_input_nodes else 0)
        return left - (self.last_copies(x) if x is owner else 0) > 0

    def roots(self, v: object) -> Iterator[str]:
        """The memory under a value."""
        b = self.low.b
        if isinstance(v, tuple | list):
            for x in v:
                yield from self.roots(x)
        elif isinstance(v, TensorValue) and v.lazy is not None:
            yield from (b.root(x.buffer) for x in body.loads((v.lazy,)))
        elif isinstance(v, TensorValue | Opaque) and v.ref is not None:
            yield b.root(v.ref.buffer)


def stored_as(low: GraphLowering, v: TensorValue, r: Result) -> TensorValue:
    """``v`` in memory of its own with exactly the strides of ``r``, gaps and overlaps included."""
    b = low.b
    if dense(r):
        return b.realize(_lazy(v), r.strides)
    span = ONE
    for size, stride in zip(r.shape, r.strides, strict=True):
        span = span + (size - ONE) * stride
    if ZERO in r.shape:
        span = ZERO
    if v.ref is not None and _same_strides(v.ref, r):  # gaps may hold something too
        flat = b.realize(_lazy(values.strided(v, (span,), (ONE,), v.ref.offset)))
        assert flat.ref is not None
        return values.strided(flat, r.shape, r.strides, ZERO)
    buf = b.new_buffer(v.dtype, (span,), (ONE,), v.device)
    ref = TensorRef(buf.name, v.dtype, r.shape, r.strides, ZERO)
    # An expanded dimension lies in memory once.
    kept = tuple(ONE if st is ZERO else s for s, st in zip(r.shape, r.strides, strict=True))
    once = values.viewed(v, kept, values.axes(kept))
    where = TensorRef(buf.name, v.dtype, kept, r.strides, ZERO)
    b.store_into(once, TensorValue(v.dtype, kept, v.device, ref=where))
    return TensorValue(v.dtype, r.shape, v.device, ref=ref)


def _lazy(v: TensorValue) -> TensorValue:
    """The same elements as a value without memory."""
    return TensorValue(v.dtype, v.shape, v.device, lazy=v.node)


def _same_strides(ref: TensorRef, r: Result) -> bool:
    return all(a is b or s is ONE for a, b, s in zip(ref.strides, r.strides, r.shape, strict=True))


def _written_once(ref: TensorRef) -> bool:
    """Whether no two elements of a view lie in one place, as far as expanding goes."""
    return not any(
        st is ZERO and s is not ONE for s, st in zip(ref.shape, ref.strides, strict=True)
    )


def _exprs(value: object) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, TensorRef):
        yield from (*value.shape, *value.strides, value.offset)
    elif isinstance(value, tuple | list):
        for v in value:
            yield from _exprs(v)
