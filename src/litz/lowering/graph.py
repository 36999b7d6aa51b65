"""The walk from an FX graph of ATen calls to a Program."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode

from litz.errors import CompilationError, LitzError
from litz.graph.aliasing import is_returned, is_view_op, readers, sharing, viewed
from litz.index import Expr
from litz.ir import body
from litz.ir.program import Buffer, HostFloat, Program
from litz.lowering import families, limits, values
from litz.lowering.bindings import Binding
from litz.lowering.context import (
    RECOMPUTE_COST,
    Builder,
    GraphUnsupported,
    Settings,
    Unsupported,
    WrongMetadata,
)
from litz.lowering.control_flow import Compile, has_bodies, is_body, lower_control_flow
from litz.lowering.externs import (
    Opaque,
    call_extern,
    has_opaque,
    opaque_buffer,
    settled,
    why_extern,
)
from litz.lowering.functional_calls import lower_functional_call
from litz.lowering.handed import Handed
from litz.lowering.numbers import (
    SCALAR_READS,
    graph_assertions,
    is_symbolic,
    number_call,
    require,
    solve_inputs,
)
from litz.lowering.outputs import Outputs, as_view, returned_views
from litz.lowering.overwriting import is_own_copy
from litz.lowering.padding import (
    PRODUCTS,
    feeds_product,
    padded_product,
    stored_with_zeros,
)
from litz.lowering.readers import Readers
from litz.lowering.registry import Call, Result, find
from litz.lowering.strides import (
    dense,
    in_order,
    plain_strides,
    spaced,
)
from litz.lowering.symbols import Symbols
from litz.lowering.torch_types import from_torch
from litz.lowering.user_kernel_calls import is_user_kernel, is_user_operator, picked_result
from litz.lowering.user_kernels import lower_user_kernel
from litz.lowering.values import Shape, TensorValue
from litz.runtime.control_flow import Body


@dataclass
class GraphLowering:
    """Lowers one graph; ``run`` returns the program."""

    gm: GraphModule
    settings: Settings
    compile_body: Compile | None = None
    b: Builder = field(init=False)
    env: dict[FxNode, Any] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    symbols: Symbols = field(default_factory=Symbols)
    asserted: set[str] = field(default_factory=set)
    layouts: list[Expr] = field(default_factory=list)
    uses_left: dict[FxNode, int] = field(default_factory=dict)
    readers: Readers = field(init=False)
    places: dict[FxNode, int] = field(default_factory=dict)
    bindings: list[Binding] = field(default_factory=list)
    handed: dict[str, Handed] = field(default_factory=dict)
    regions: dict[tuple[str, ...], Body] = field(default_factory=dict)
    # Graph nodes that are part of a value's expression: itself, and its inputs that are lazy.
    sources: dict[FxNode, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.b = Builder(self.settings)
        self.readers = Readers(self)

    def run(self) -> Program:
        for place, n in enumerate(self.gm.graph.nodes):
            self.places[n] = place
            self.uses_left[n] = len(n.users)
            self.symbols.taken.add(n.name)
        self.asserted = graph_assertions(self)
        outputs: tuple[object, ...] = ()
        for n in self.gm.graph.nodes:
            self.b.origins = self.sources[n] = self.source_names(n)
            try:
                if n.op != "placeholder":
                    self.end_of_inputs()
                if n.op == "placeholder":
                    self.bind(n, self.placeholder(n))
                elif n.op == "get_attr":
                    self.bind(n, self.attribute(n))
                elif n.op == "output":
                    outputs = Outputs(self).run(n)
                else:
                    self.bind(n, self.call(n))
            except (LitzError, GraphUnsupported):
                raise
            except Exception as e:
                raise CompilationError(
                    f"lowering failed: {type(e).__name__}: {e}",
                    op=n.format_node() or n.name,
                    user_stack=n.meta.get("stack_trace"),
                ) from e
            self.release(n)
        b = self.b
        return Program(
            tuple(self.inputs),
            b.buffers,
            tuple(b.nodes),
            outputs,
            tuple(self.symbols.inputs),
            b.constants,
        )

    def end_of_inputs(self) -> None:
        """Give a value to what inputs' layouts hold and no input is by itself."""
        if self.symbols.unsolved:
            solve_inputs(self)
        layouts, self.layouts = self.layouts, []
        require(self, *layouts)

    def bind(self, n: FxNode, value: Any) -> None:
        """Make ``value`` the node's, and note where it lies if it lies in memory."""
        self.env[n] = value
        self.readers.note(n)
        several = isinstance(value, tuple | list)
        for k, v in enumerate(value if several else (value,)):
            if isinstance(v, Opaque) or (isinstance(v, TensorValue) and v.ref is not None):
                self.note(n, v, k if several else None)

    def note(self, n: FxNode, v: TensorValue | Opaque, position: int | None = None) -> None:
        assert v.ref is not None
        whole = isinstance(v, Opaque)
        self.bindings.append(Binding(n.name, position, v.ref, len(self.b.nodes), whole))

    def source_names(self, n: FxNode) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for a in n.all_input_nodes:
            v = self.env.get(a)
            if isinstance(v, TensorValue) and v.lazy is not None:
                names.update(dict.fromkeys(self.sources[a]))
        if not is_view_op(n.target):
            names[n.name] = None
        return tuple(names)

    def release(self, n: FxNode) -> None:
        for a in n.all_input_nodes:
            self.uses_left[a] -= 1

    # --- arguments ----------------------------------------------------------------------------

    def result(self, val: torch.Tensor) -> Result | None:
        dtype = from_torch(val.dtype)
        # Memory of a lazily negated view (an imaginary part's) does not hold what the view does.
        if dtype is None or val.layout is not torch.strided or val.is_neg():
            return None
        shape = tuple(self.expr(s) for s in val.shape)
        strides = tuple(self.expr(s) for s in val.stride())
        return Result(dtype, shape, plain_strides(shape, strides), str(val.device))

    def expr(self, value: Any) -> Expr:
        return value if isinstance(value, Expr) else self.symbols.convert(value)

    def placeholder(self, n: FxNode) -> Any:
        val = n.meta.get("val")
        position = len(self.inputs)
        if isinstance(val, torch.SymInt | int) and not isinstance(val, bool):
            self.inputs.append(n.name)
            e = self.symbols.as_written(val)
            self.symbols.input(e, position, None)
            return e
        if isinstance(val, torch.SymFloat):
            self.inputs.append(n.name)
            out = HostFloat(n.name)
            self.symbols.floats[str(val.node.expr)] = out
            self.symbols.give(out)
            return out
        self.inputs.append(n.name)
        if not isinstance(val, torch.Tensor):
            if n.users:
                raise GraphUnsupported(f"an input of type {type(val).__name__}")
            return None
        return self.input_tensor(n, val, position)

    def input_tensor(self, n: FxNode, val: torch.Tensor, position: int) -> TensorValue | Opaque:
        name = n.name
        r = self.result(val)
        if r is None:
            return opaque_buffer(self.b, name, val)
        buf = body_buffer(self.b, name, r)
        for dim, s in enumerate(val.shape):
            self.symbols.input(self.symbols.as_written(s), position, dim)
        if n.users:
            self.layouts += [*r.shape, *r.strides]
        return self.b.of_buffer(buf)

    def attribute_value(self, n: FxNode) -> Any:
        """What the graph's module has under the node's name."""
        value: Any = self.gm
        for part in str(n.target).split("."):
            value = getattr(value, part)
        return value

    def attribute(self, n: FxNode) -> Any:
        if is_body(n):
            return None
        value = self.attribute_value(n)
        if not isinstance(value, torch.Tensor):
            raise GraphUnsupported(f"attribute {n.target} is a {type(value).__name__}")
        name = n.name
        self.b.constants[name] = value
        r = self.result(n.meta["val"] if "val" in n.meta else value)
        if r is None:
            return opaque_buffer(self.b, name, value)
        return self.b.of_buffer(body_buffer(self.b, name, r, kind="constant"))

    # --- calls --------------------------------------------------------------------------------

    def call(self, n: FxNode) -> Any:
        val = n.meta.get("val")
        if n.target is operator.getitem and isinstance(n.args[1], int):
            source, at = n.args
            assert isinstance(source, FxNode) and isinstance(at, int)
            if is_user_operator(source.target):
                return self.env[source][at]
            return self.pick(n, source, at)
        if is_user_kernel(n.target):
            return lower_user_kernel(self, n)
        if is_user_operator(n.target):
            return lower_functional_call(self, n)
        if has_bodies(n.target):
            return lower_control_flow(self, n)
        if (picked := picked_result(n)) is not None:
            source, at = picked
            return self.env[source][at]
        if is_own_copy(self, n):
            return self.map(n.args[0])
        if n.target in SCALAR_READS:
            return call_extern(self, n, "reads a number back from a tensor")
        if not isinstance(n.target, torch._ops.OpOverload) or is_symbolic(val):
            return number_call(self, n)
        return self.operator_call(n, val if isinstance(val, tuple | list) else (val,))

    def operator_call(self, n: FxNode, vals: Sequence[Any]) -> Any:
        fn = find(n.target)
        reason = why_extern(n.target)
        if fn is None:
            product = padded_product(self, n, reason) if n.target in PRODUCTS else None
            return call_extern(self, n, reason) if product is None else product
        results = tuple(self.result(v) if isinstance(v, torch.Tensor) else None for v in vals)
        used = frozenset(
            u.args[1]
            for u in n.users
            if u.target is operator.getitem and isinstance(u.args[1], int)
        )
        args, kwargs = self.map(n.args), self.map(dict(n.kwargs))
        given = (*args, *kwargs.values())
        last = partial(self.readers.is_last, n, given)
        call = Call(
            self.b, n, self.readers.before_mutation, results, len(list(readers(n))), used, last
        )
        mark = len(self.b.nodes)
        try:
            if any(
                r is None and isinstance(v, torch.Tensor)
                for r, v in zip(results, vals, strict=True)
            ):
                raise Unsupported("a type that only ATen handles")
            if has_opaque(given):
                raise Unsupported("an argument of a type that only ATen handles")
            if several_devices(given):
                raise Unsupported("tensors of several devices")
            if n.kwargs.get("pin_memory"):
                raise Unsupported("pinned memory")
            limits.check(self.symbols, n, given, results)
            require(self, *(e for r in results if r is not None for e in (*r.shape, *r.strides)))
            mark = len(self.b.nodes)
            return self.finish(n, fn(call, *args, **kwargs), call)
        except Unsupported as e:
            reason = str(e)
        except TypeError:
            if not limits.has_symbolic(given):
                raise
            # The lowering computes with a number that only the running program knows.
            reason = "a symbolic number"
        self.b.roll_back(mark)
        return call_extern(self, n, reason)

    def pick(self, n: FxNode, source: FxNode, at: int) -> Any:
        """One result of several, stored if it is shared."""
        v = self.env[source][at]
        r = self.result(n.meta["val"]) if isinstance(n.meta.get("val"), torch.Tensor) else None
        if not isinstance(v, TensorValue) or r is None or is_view_op(source.target):
            return v
        if v.lazy is None:
            return self.own(n, v, r, source)
        self.b.origins = self.sources[n] = self.sources[source]
        stored = self.settle(n, v, r, len(list(readers(n))))
        results = list(self.env[source])
        results[at] = stored
        self.bind(source, tuple(results))
        return stored

    def finish(self, n: FxNode, out: Any, call: Call) -> Any:
        if isinstance(out, TensorValue):
            promised = as_promised(n, out, call.result)
            if (base := viewed(n)) is not None:
                promised = as_view(self, n, base, promised)
            return self.settle(n, promised, call.result, call.n_users)
        if isinstance(out, tuple | list):
            return tuple(
                self.b.limit(as_promised(n, o, r)) if isinstance(o, TensorValue) else o
                for o, r in zip(out, call.results, strict=True)
            )
        return out

    def settle(self, n: FxNode, out: TensorValue, r: Result, n_users: int) -> TensorValue:
        """Store the value now if it will be wanted from memory, else keep it lazy."""
        if is_view_op(n.target):
            return out
        if out.lazy is None:
            return self.own(n, out, r)
        loads = len(body.loads((out.lazy,)))
        shared = n_users > 1 and (loads > 1 or body.cost(out.lazy) > RECOMPUTE_COST)
        wanted = shared or is_returned(n)
        wanted = wanted or (self.settings.keep_random and is_random(n.target))
        constant = loads + body.cost(out.lazy) == 0
        if (constant or not wanted) and self.shares_memory(n):
            return self.b.realize(out, r.strides if dense(r) else None)
        if wanted and loads + body.cost(out.lazy) > 0:
            if "eager_val" in n.meta and is_returned(n):
                r = self.result(n.meta["eager_val"]) or r
            return self.stored(n, out, r)
        return self.b.limit(out)

    def stored(self, n: FxNode, v: TensorValue, r: Result | None) -> TensorValue:
        """A lazy value in memory as eager has it, but for the rows of what products read."""
        seen = r is not None and (dense(r) or is_returned(n) and spaced(r))
        strides = r.strides if r is not None and seen else in_order(v.shape, r)
        if feeds_product(n) and self.stays_inside(n):
            wide = stored_with_zeros(self, v, strides)
            if wide is not None:
                return wide
        return self.b.realize(v, strides)

    def in_memory(self, n: Any) -> TensorValue:
        """The value of a node, stored if it was not."""
        v = self.env[n]
        assert isinstance(v, TensorValue)
        return settled(self, n, v) if v.ref is None else v

    def eager_strides(self, n: FxNode) -> Shape | None:
        """The strides that a node has in eager mode, where its layout has no gaps."""
        r = self.result(n.meta["val"])
        return r.strides if r is not None and dense(r) else None

    def stays_inside(self, n: FxNode, or_returned: bool = False) -> bool:
        """Whether products and kernels of Litz alone read ``n`` and views of it.

        or_returned: it and its views may be results of the graph besides.
        """
        return all(
            (u.op == "output" and or_returned)
            or u.target in PRODUCTS
            or (u.op == "call_function" and find(u.target) is not None)
            for u in readers(n)
        )

    def own(
        self, n: FxNode, out: TensorValue, r: Result, call: FxNode | None = None
    ) -> TensorValue:
        """Memory of its own, if results show it, for what lies in an argument's: ``trunc(int)``."""
        assert out.ref is not None
        given = (self.env.get(a) for a in (call or n).all_input_nodes)
        roots = [self.b.root(v.ref.buffer) for v in given if isinstance(v, TensorValue) and v.ref]
        passed = self.b.root(out.ref.buffer) in roots
        if not passed or sharing(n.target).shared or not self.shares_memory(n):
            return out
        lazy = out.without_memory()
        return self.b.realize(lazy, r.strides if dense(r) else None)

    def shares_memory(self, n: FxNode) -> bool:
        """Whether results show that they lie in this value's memory: several, or one with gaps.

        Or one that begins later: PyTorch makes views of arguments anew by the offset of a result.
        """
        views = returned_views(n)
        if len(views) != 1 or is_returned(n):
            return len(views) + is_returned(n) > 1
        val = views[0].meta.get("eager_val", views[0].meta.get("val"))
        if not isinstance(val, torch.Tensor) or (r := self.result(val)) is None:
            return False
        return not dense(r) or self.expr(val.storage_offset()) is not values.ZERO

    def map(self, value: Any) -> Any:
        """Arguments with graph nodes replaced by their values."""
        if isinstance(value, FxNode):
            return self.env[value]
        if isinstance(value, list | tuple):
            return (
                type(value)(self.map(v) for v in value)
                if type(value) in (list, tuple)
                else [self.map(v) for v in value]
            )
        if isinstance(value, dict):
            return {k: self.map(v) for k, v in value.items()}
        if isinstance(value, torch.SymInt):
            return self.expr(value)
        return value


def as_promised(n: FxNode, v: TensorValue, r: Result | None) -> TensorValue:
    """A result as the graph's metadata describes it: its device, and how sizes are written.

    Raises WrongMetadata where it is wrong, as PyTorch's is at times: what reads the
    result goes by it.
    """
    if r is None:
        return v
    pairs = list(zip(v.shape, r.shape, strict=False))
    if v.ndim != len(r.shape) or any(s is not t and s.is_const and t.is_const for s, t in pairs):
        own, other = (f"({', '.join(map(str, shape))})" for shape in (v.shape, r.shape))
        raise WrongMetadata(f"{n.target} gives shape {own} and not {other}, as PyTorch says")
    if v.lazy is not None and v.device != r.device:
        v = replace(v, device=r.device)
    return values.written_as(v, r.shape)


def several_devices(given: Sequence[Any]) -> bool:
    """Whether tensors lie on several devices; a number of the host's goes to any."""
    flat = [x for v in given for x in (v if isinstance(v, list | tuple) else (v,))]
    return len({v.device for v in flat if isinstance(v, TensorValue) and v.ndim}) > 1


def body_buffer(b: Builder, name: str, r: Result, kind: str = "input") -> Buffer:
    buf = Buffer(name, r.dtype, r.shape, r.strides, r.device, kind)
    b.buffers[name] = buf
    return buf


def lower_graph(gm: GraphModule, settings: Settings) -> Program:
    """Lower ``gm`` (ATen calls, fake-tensor metadata in ``meta["val"]``) to a program.

    Raises CompilationError with the op and the user's line where a lowering fails.
    """
    return lower_with_bindings(gm, settings).program


@dataclass(frozen=True)
class Lowered:
    """A program, and what checkers of its runs want to know.

    bindings: where the graph's values lie in its memory.  handed: what operators are handed, by the
    name of the ``Extern``, where the settings ask for it.
    """

    program: Program
    bindings: tuple[Binding, ...]
    handed: Mapping[str, Handed]


def lower_with_bindings(
    gm: GraphModule, settings: Settings, compile_body: Compile | None = None
) -> Lowered:
    """``lower_graph`` with what checkers want to know.

    compile_body: compiles a body of control flow; None: graphs that have any are not lowered.
    """
    families.load()
    lowering = GraphLowering(gm, settings, compile_body)
    return Lowered(lowering.run(), tuple(lowering.bindings), lowering.handed)


def check_devices(program: Program) -> None:
    """GraphUnsupported where a tensor lies on a device that Litz has no target for."""
    for device in sorted({b.device for b in program.buffers.values()}):
        if device.partition(":")[0] not in DEVICES:
            raise GraphUnsupported(f"device {device}: Litz compiles for {' and '.join(DEVICES)}")


def drawn_buffers(graph: Graph, bindings: tuple[Binding, ...]) -> frozenset[str]:
    """The buffers that hold random numbers."""
    random = {n.name for n in graph.nodes if is_random(n.target)}
    return frozenset(b.ref.buffer for b in bindings if b.node in random)


def is_random(target: object) -> bool:
    """Whether an operator draws random numbers."""
    tags = target.tags if isinstance(target, torch._ops.OpOverload) else ()
    return torch.Tag.nondeterministic_seeded in tags


DEVICES = ("cpu", "cuda")
