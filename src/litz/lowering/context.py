"""The builder that lowerings write to: buffers, loop nests and extern calls of one program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import islice
from typing import Any, Final

from litz.dataclass import dataclass
from litz.errors import EagerOnly as EagerOnly
from litz.errors import GraphUnsupported as GraphUnsupported
from litz.errors import Unsupported as Unsupported
from litz.errors import WrongMetadata as WrongMetadata
from litz.index import Const, Expr, Var, coefficient, contiguous_strides, symbol
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Node, Scalar, Store
from litz.ir.dtype import DType
from litz.ir.exact import rounded
from litz.ir.program import Buffer, Extern, HostFloat, Loops, ProgramNode, root_of
from litz.lowering import eight_bits
from litz.lowering.values import ONE, ZERO, Opaque, Shape, TensorValue, axes
from litz.runtime.numbers import float_bits

Operand = TensorValue | Scalar | Expr | HostFloat

NUMBER: Final = "a number that the host computes"
# A body larger than this is stored, so that substitution and code generation stay linear.
MAX_BODY_NODES = 160
# A value read more than once is stored if computing it again costs more than this (in additions).
RECOMPUTE_COST = 3
# Likewise on a GPU, of all of its readers but one: memory takes longer there.
RECOMPUTE_GPU = 16
# And on a CPU, of a value of more bytes than the caches near a core hold.
RECOMPUTE_FAR = 8
NEAR = 1 << 20


@dataclass(frozen=True)
class Settings:
    """What lowering needs to know of the options.

    eager_numerics: fp16/bf16 results are rounded where eager rounds them.
    eager_rng: random ops draw from torch's own stream (extern calls).
    keep_random: random numbers are stored, so that whoever checks a run can see them.
    inference: no backward graph belongs to it, so that nobody has merged equal calls.
    blocks: the kinds of devices whose kernels run as many programs over blocks.
    check_calls: what operators are handed is kept beside what the metadata says of it.
    floats: PyTorch's default dtype, which numbers have beside tensors of integers.
    """

    eager_numerics: bool = True
    eager_rng: bool = False
    keep_random: bool = False
    inference: bool = False
    blocks: tuple[str, ...] = ("cuda",)
    check_calls: bool = False
    floats: DType = d.F32

    def on_gpu(self, device: str) -> bool:
        """Whether what lies on ``device`` is computed by a GPU, or as on one."""
        return device.partition(":")[0] in self.blocks


@dataclass
class Builder:
    """Collects one program.  Every method that returns a ``TensorValue`` may add nodes to it."""

    settings: Settings
    buffers: dict[str, Buffer] = field(default_factory=dict)
    nodes: list[ProgramNode] = field(default_factory=list)
    constants: dict[str, object] = field(default_factory=dict)
    # Values that several lowerings of one program share, such as the random seed.
    shared: dict[str, TensorValue] = field(default_factory=dict)
    # The symbols that carry a float's bits to kernels, by the float's name.
    bits: dict[str, Expr] = field(default_factory=dict)
    origins: tuple[str, ...] = ()

    # --- elements ---------------------------------------------------------------------------

    def opmath(self, node: Node) -> Node:
        """The value in the type arithmetic runs in, rounded where eager would have rounded it."""
        to = node.dtype.opmath
        if to is node.dtype:
            return node
        if isinstance(node, body.Op) and node.name == "cast" and node.args[0].dtype is to:
            exact = node.args[0]
            return rounded(exact, node.dtype) if self.settings.eager_numerics else exact
        return body.cast(node, to)

    def user_cast(self, node: Node, to: DType) -> Node:
        """A cast that the user wrote: it rounds whatever ``numerics`` says."""
        if node.dtype is to:
            return node
        if node.dtype in d.STORED:
            return self.user_cast(eight_bits.widened(node), to)
        if to in d.STORED:
            return eight_bits.narrowed(self.user_cast(node, d.F32), to)
        if node.dtype.is_float and node.dtype.bits == 16:
            node = self.opmath(node)
        if to.is_float and to.bits == 16 and not self.settings.eager_numerics:
            node = body.op("round_to", body.cast(node, d.F32), to=to)
        return body.cast(node, to)

    def number(self, value: Expr | HostFloat) -> Node:
        """A number that is known when the program runs: an i64, or an f64."""
        if isinstance(value, Expr):
            return body.index(value)
        bits = self.bits.get(value.name)
        if bits is None:
            bits = self.bits[value.name] = symbol(f"{value.name}_bits")
            self.extern(
                float_bits, (value,), (None,), "cpu", NUMBER, name=f"number_{bits}",
                target_name="litz.float_bits", symbols=((0, bits),), origins=(),
            )  # fmt: skip
        return body.op("bitcast", body.index(bits), to=d.F64)

    # --- tensors ----------------------------------------------------------------------------

    def full(
        self, shape: Shape, value: Scalar | Expr | HostFloat, dtype: DType, device: str
    ) -> TensorValue:
        if isinstance(value, Expr | HostFloat):
            node = body.cast(self.number(value), dtype)
        else:
            node = body.const(dtype, value)
        return TensorValue(dtype, shape, device, lazy=node)

    def broadcast(self, tensors: Sequence[TensorValue]) -> tuple[Shape, list[Node]]:
        """The common shape of ``tensors`` and one node for each over its axes."""
        rank = max(t.ndim for t in tensors)
        shape: list[Expr] = [ONE] * rank
        for t in tensors:
            for k, s in enumerate(t.shape, rank - t.ndim):
                if shape[k] is ONE:
                    shape[k] = s
                elif s is not ONE and s is not shape[k] and s.is_const:
                    if shape[k].is_const:
                        raise Unsupported("shapes that do not broadcast")
                    shape[k] = s  # a guard has already made them equal: prefer the constant
        out = tuple(shape)
        own = axes(out)
        nodes = []
        for t in tensors:
            if t.shape == out:
                nodes.append(t.node)
            else:
                lead = rank - t.ndim
                nodes.append(
                    t.at([ZERO if s is ONE else own[lead + k] for k, s in enumerate(t.shape)])
                )
        return out, nodes

    def new_buffer(
        self,
        dtype: DType,
        shape: Shape,
        strides: Shape,
        device: str,
        kind: str = "temp",
        *,
        name: str = "",
        alias: str | None = None,
    ) -> Buffer:
        name = name or f"buf{len(self.buffers)}"
        buf = Buffer(name, dtype, shape, strides, device, kind, alias)
        self.buffers[name] = buf
        return buf

    def root(self, buffer: str) -> str:
        """The buffer that owns the memory of ``buffer``."""
        return root_of(self.buffers, buffer)

    def of_buffer(self, buf: Buffer) -> TensorValue:
        return TensorValue(buf.dtype, buf.shape, buf.device, ref=buf.whole)

    def allocate(
        self, dtype: DType, shape: Shape, device: str, strides: Shape | None = None
    ) -> TensorValue:
        """Memory that is still to be written (strides in elements, row-major by default)."""
        return self.of_buffer(
            self.new_buffer(dtype, shape, strides or contiguous_strides(shape), device)
        )

    def opaque(
        self, name: str, val: object, kind: str = "opaque", alias: str | None = None
    ) -> Opaque:
        """A buffer that has a name and a device but no layout; it's passed on whole."""
        device = str(getattr(val, "device", "cpu"))
        self.buffers[name] = made = Buffer(name, d.U8, (), (), device, kind, alias)
        return Opaque(made.whole)

    def extern(
        self,
        target: object,
        args: tuple[object, ...],
        outputs: tuple[str | None, ...],
        device: str,
        reason: str,
        *,
        name: str = "",
        target_name: str = "",
        kwargs: tuple[tuple[str, object], ...] = (),
        **more: Any,
    ) -> None:
        """Add a call of an operator.  more: further fields of ``Extern``."""
        name, target_name = name or f"extern{len(self.nodes)}", target_name or str(target)
        more = {"origins": self.origins, **more}
        self.nodes.append(
            Extern(name, target, target_name, args, kwargs, outputs, device, reason, **more)
        )

    def roll_back(self, mark: int) -> None:
        """Drop the nodes from number ``mark`` on, but for numbers, which others may use by now."""
        late = self.nodes[mark:]
        self.nodes[mark:] = [n for n in late if isinstance(n, Extern) and n.is_number]

    def add_loops(
        self,
        loop_axes: tuple[Expr, ...],
        reduce_axes: tuple[Expr, ...],
        stores: tuple[Store, ...],
        device: str,
    ) -> None:
        kept = tuple(a for a in loop_axes if a is not ZERO)
        if any(isinstance(a, Var) and a.extent is ZERO for a in reduce_axes):
            reduce_axes = ()  # a reduction of nothing is a constant
        self.nodes.append(
            Loops(f"loops{len(self.nodes)}", kept, reduce_axes, stores, device, self.origins)
        )

    def realize(self, v: TensorValue, strides: Shape | None = None) -> TensorValue:
        """Store a lazy value in a buffer (strides in elements, row-major by default)."""
        if v.ref is not None and (strides is None or strides == v.ref.strides):
            return v
        stored = self.allocate(v.dtype, v.shape, v.device, strides)
        self.store_into(v, stored)
        return stored

    def is_among(self, v: object) -> bool:
        """Whether a number of the host's is one of several in its memory, or computed from such.

        A kernel on another device takes what lies in the host's memory by value.
        """
        if not isinstance(v, TensorValue) or v.ndim or v.device != "cpu":
            return False
        several = (b for n in body.loads((v.node,)) if (b := self.buffers.get(n.buffer)))
        return any(s is not ONE for b in several for s in b.shape)

    def by_itself(self, v: Any) -> Any:
        """A value, in memory of its own where it ``is_among`` others."""
        if not self.is_among(v):
            return v
        stored = self.allocate(v.dtype, v.shape, v.device)
        self.store_into(v, stored)
        return stored

    def keep(self, v: TensorValue) -> TensorValue:
        """Store a lazy value in the order in which the elements lie that it is computed from."""
        if v.lazy is None:
            return v
        own = axes(v.shape)
        moving = [k for k, a in enumerate(own) if a is not ZERO]
        for n in body.loads((v.lazy,)):
            steps = [coefficient(n.index, own[k]) for k in moving]
            known = [c.value for c in steps if isinstance(c, Const)]
            if len(known) == len(moving) and all(c > 0 for c in known):
                inner = dict(zip(moving, known, strict=True))
                order = sorted(range(v.ndim), key=lambda k: -inner.get(k, 1 << 62))
                dense = contiguous_strides(tuple(v.shape[k] for k in order))
                return self.realize(v, tuple(dense[order.index(k)] for k in range(v.ndim)))
        return self.realize(v)

    def store_into(self, v: TensorValue, target: TensorValue) -> None:
        """Write the elements of ``v`` to the strided view ``target`` of the same shape."""
        own = axes(v.shape)
        self.add_loops(own, (), (target.memory.store(own, v.node),), v.device)

    def limit(self, v: TensorValue) -> TensorValue:
        """Store the value if its expression has grown too large to go on as one."""
        if v.lazy is None or v.lazy.size <= MAX_BODY_NODES:
            return v
        more = next(islice(body.walk((v.lazy,)), MAX_BODY_NODES, None), None)
        return v if more is None else self.realize(v)
