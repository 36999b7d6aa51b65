"""The walk from an FX graph of ATen calls to a Program."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from litz.errors import CompilationError, LitzError
from litz.index import Expr, Symbol
from litz.ir import body
from litz.ir.program import Buffer, Program, TensorRef
from litz.lowering import families, symbols, values
from litz.lowering.context import RECOMPUTE_COST, Builder, GraphUnsupported, Settings, Unsupported
from litz.lowering.externs import Opaque, call_extern, is_view_op, opaque_buffer, why_extern
from litz.lowering.registry import Call, Result, find
from litz.lowering.torch_types import from_torch
from litz.lowering.values import TensorValue


@dataclass
class GraphLowering:
    """Lowers one graph; ``run`` returns the program."""

    gm: GraphModule
    settings: Settings
    b: Builder = field(init=False)
    env: dict[FxNode, Any] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    sizes: list[tuple[Expr, int, int | None]] = field(default_factory=list)
    uses_left: dict[FxNode, int] = field(default_factory=dict)
    # Graph nodes that are part of a value's expression: itself, and its inputs that are lazy.
    sources: dict[FxNode, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.b = Builder(self.settings)

    def run(self) -> Program:
        for n in self.gm.graph.nodes:
            self.uses_left[n] = len(n.users)
        outputs: tuple[object, ...] = ()
        for n in self.gm.graph.nodes:
            self.b.origins = self.sources[n] = self.source_names(n)
            try:
                if n.op == "placeholder":
                    self.env[n] = self.placeholder(n)
                elif n.op == "get_attr":
                    self.env[n] = self.attribute(n)
                elif n.op == "output":
                    outputs = self.output(n)
                else:
                    self.env[n] = self.call(n)
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
            tuple(self.sizes),
            b.constants,
        )

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
        if dtype is None or val.layout is not torch.strided:
            return None
        return Result(
            dtype,
            tuple(self.expr(s) for s in val.shape),
            tuple(self.expr(s) for s in val.stride()),
            str(val.device),
        )

    def expr(self, value: Any) -> Expr:
        return value if isinstance(value, Expr) else symbols.convert(value, self.b.scope)

    def placeholder(self, n: FxNode) -> Any:
        val = n.meta.get("val")
        position = len(self.inputs)
        if isinstance(val, torch.SymInt | int):
            self.inputs.append(n.name)
            e = self.expr(val)
            if isinstance(e, Symbol):
                self.sizes.append((e, position, None))
            return e
        self.inputs.append(n.name)
        if not isinstance(val, torch.Tensor):
            if n.users:
                raise GraphUnsupported(f"an input of type {type(val).__name__}")
            return None
        return self.input_tensor(n.name, val, position)

    def input_tensor(self, name: str, val: torch.Tensor, position: int) -> TensorValue | Opaque:
        r = self.result(val)
        if r is None:
            return opaque_buffer(self.b, name, val)
        buf = body_buffer(self.b, name, r)
        for dim, s in enumerate(r.shape):
            if isinstance(s, Symbol):
                self.sizes.append((s, position, dim))
        return self.b.of_buffer(buf)

    def attribute(self, n: FxNode) -> Any:
        value: Any = self.gm
        for part in str(n.target).split("."):
            value = getattr(value, part)
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
        if isinstance(val, torch.SymInt | torch.SymBool | torch.SymFloat):
            return self.scalar_call(n, val)
        if n.target is operator.getitem:
            source, at = n.args
            assert isinstance(source, FxNode) and isinstance(at, int)
            return self.pick(n, source, at)
        fn = find(n.target)
        reason = why_extern(n.target)
        if fn is not None:
            n_users = self.count_users(n)
            results = tuple(
                self.result(v) if isinstance(v, torch.Tensor) else None
                for v in (val if isinstance(val, tuple | list) else (val,))
            )
            known = all(
                r is not None or not isinstance(v, torch.Tensor)
                for r, v in zip(
                    results, val if isinstance(val, tuple | list) else (val,), strict=True
                )
            )
            used = frozenset(
                u.args[1]
                for u in n.users
                if u.target is operator.getitem and isinstance(u.args[1], int)
            )
            call = Call(self.b, n, self.before_mutation, results, n_users, used)
            mark = len(self.b.nodes)
            try:
                if not known:
                    raise Unsupported("a type that only ATen handles")
                args, kwargs = self.map(n.args), self.map(dict(n.kwargs))
                if has_opaque((args, kwargs)):
                    raise Unsupported("an argument of a type that only ATen handles")
                out = fn(call, *args, **kwargs)
                return self.finish(n, out, call)
            except Unsupported as e:
                del self.b.nodes[mark:]
                reason = str(e)
        return call_extern(self, n, reason)

    def pick(self, n: FxNode, source: FxNode, at: int) -> Any:
        """One result of several, stored if it is shared."""
        v = self.env[source][at]
        r = self.result(n.meta["val"]) if isinstance(n.meta.get("val"), torch.Tensor) else None
        if (
            not isinstance(v, TensorValue)
            or v.lazy is None
            or r is None
            or is_view_op(source.target)
        ):
            return v
        self.b.origins = self.sources[n] = self.sources[source]
        stored = self.settle(n, v, r, self.count_users(n))
        results = list(self.env[source])
        results[at] = stored
        self.env[source] = tuple(results)
        return stored

    def count_users(self, n: FxNode) -> int:
        """Reads of the value by what is not itself a view of it."""
        total = 0
        for u in n.users:
            total += self.count_users(u) if is_view_op(u.target) else 1
        return total

    def finish(self, n: FxNode, out: Any, call: Call) -> Any:
        if isinstance(out, TensorValue):
            return self.settle(n, out, call.result, call.n_users)
        if isinstance(out, tuple | list):
            return tuple(self.b.limit(o) if isinstance(o, TensorValue) else o for o in out)
        return out

    def settle(self, n: FxNode, out: TensorValue, r: Result, n_users: int) -> TensorValue:
        """Store the value now if it will be wanted from memory, else keep it lazy."""
        if out.lazy is None or is_view_op(n.target):
            return out
        loads = len(body.loads((out.lazy,)))
        shared = n_users > 1 and (loads > 1 or body.cost(out.lazy) > RECOMPUTE_COST)
        wanted = shared or any(u.op == "output" for u in n.users)
        if wanted and loads + body.cost(out.lazy) > 0:
            if "eager_val" in n.meta and any(u.op == "output" for u in n.users):
                r = self.result(n.meta["eager_val"]) or r
            strides = r.strides if dense(r) else None
            return self.b.realize(out, strides)
        return self.b.limit(out)

    def scalar_call(self, n: FxNode, val: Any) -> Any:
        if isinstance(val, torch.SymInt) and n.target not in SCALAR_READS:
            return self.expr(val)
        if n.target in SCALAR_READS:
            return call_extern(self, n, "reads a number back from a tensor")
        raise GraphUnsupported(f"a symbolic {type(val).__name__}")

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

    # --- effects ------------------------------------------------------------------------------

    def before_mutation(self, root: str, by: FxNode) -> None:
        """Copy or compute every live value that reads ``root`` before its memory changes."""
        for n, v in list(self.env.items()):
            left = self.uses_left[n] - (1 if n in by.all_input_nodes else 0)
            if left <= 0:
                continue
            if isinstance(v, TensorValue):
                self.env[n] = self.detach(v, root, n)
            elif isinstance(v, tuple):
                self.env[n] = tuple(
                    self.detach(x, root, n) if isinstance(x, TensorValue) else x for x in v
                )

    def detach(self, v: TensorValue, root: str, n: FxNode) -> TensorValue:
        if v.lazy is not None:
            reads = {self.b.root(x.buffer) for x in body.loads((v.lazy,))}
            return self.b.realize(v) if root in reads else v
        assert v.ref is not None
        if self.b.root(v.ref.buffer) != root or n.op == "placeholder":
            return v
        lazy = TensorValue(v.dtype, v.shape, v.device, lazy=v.node)
        return self.b.realize(lazy)

    # --- results ------------------------------------------------------------------------------

    def output(self, n: FxNode) -> tuple[object, ...]:
        (results,) = n.args
        assert isinstance(results, tuple | list)
        out: list[object] = []
        done: dict[FxNode, object] = {}
        for r in results:
            if not isinstance(r, FxNode):
                out.append(r)
                continue
            if r not in done:
                done[r] = self.returned(r)
            out.append(done[r])
        return tuple(out)

    def returned(self, n: FxNode) -> object:
        v = self.env[n]
        if isinstance(v, Opaque):
            return v.ref
        if not isinstance(v, TensorValue):
            return v
        self.b.origins = self.sources[n]
        meta = n.meta.get("eager_val", n.meta.get("val"))
        strides = None
        if isinstance(meta, torch.Tensor) and (r := self.result(meta)) is not None and dense(r):
            strides = r.strides
        if v.ref is not None and strides is not None and not same_layout(v.ref, strides):
            v = TensorValue(v.dtype, v.shape, v.device, lazy=v.node)
        return self.b.realize(v, strides).ref if v.lazy is not None else v.ref


def has_opaque(value: Any) -> bool:
    if isinstance(value, Opaque):
        return True
    if isinstance(value, list | tuple):
        return any(has_opaque(v) for v in value)
    if isinstance(value, dict):
        return any(has_opaque(v) for v in value.values())
    return False


def same_layout(ref: TensorRef, strides: tuple[Expr, ...]) -> bool:
    return all(
        a is b
        for a, b, s in zip(ref.strides, strides, ref.shape, strict=True)
        if s is not values.ONE
    )


def dense(r: Result) -> bool:
    """Strides of a permuted row-major layout: every element once, no gaps."""
    pairs = sorted(
        ((st, s) for st, s in zip(r.strides, r.shape, strict=True) if s is not values.ONE),
        key=lambda p: (p[0].hi if p[0].hi is not None else 1 << 62, p[0].key),
    )
    # Compare symbolically: each stride is the product of the sizes inside it.
    step: Expr = values.ONE
    left = list(pairs)
    while left:
        for k, (st, s) in enumerate(left):
            if st is step:
                step = step * s
                del left[k]
                break
        else:
            return False
    return True


def body_buffer(b: Builder, name: str, r: Result, kind: str = "input") -> Buffer:
    buf = Buffer(name, r.dtype, r.shape, r.strides, r.device, kind)
    b.buffers[name] = buf
    return buf


def lower_graph(gm: GraphModule, settings: Settings) -> Program:
    """Lower ``gm`` (ATen calls, fake-tensor metadata in ``meta["val"]``) to a program.

    Raises CompilationError with the op and the user's line where a lowering fails.
    """
    families.load()
    return GraphLowering(gm, settings).run()


SCALAR_READS = frozenset({torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default})
