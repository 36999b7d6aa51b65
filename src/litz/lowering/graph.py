"""The walk from an FX graph of ATen calls to a Program."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode
from torch.utils._pytree import tree_map

from litz.dataclass import dataclass
from litz.errors import CompilationError, LitzError
from litz.graph.aliasing import is_view_op, readers, viewed
from litz.graph.calls import (
    CALL_METHOD,
    DRAWN_TWICE,
    higher_order_name,
    is_random,
    leaves,
    takes_objects,
)
from litz.graph.values import attribute_value
from litz.ir.program import HostFloat, Program
from litz.lowering import eight_bits, families, limits, values
from litz.lowering.alone import check_alone
from litz.lowering.associative import lower_associative_scan
from litz.lowering.attention import lower_attention
from litz.lowering.attention_gradient import lower_attention_gradient
from litz.lowering.bindings import Handed
from litz.lowering.context import GraphUnsupported, Settings, Unsupported, WrongMetadata
from litz.lowering.contractions import contraction
from litz.lowering.control_flow import has_bodies, is_body, lower_control_flow
from litz.lowering.drawn_twice import lower_drawn_twice
from litz.lowering.externs import call_extern, why_extern
from litz.lowering.functional_calls import lower_functional_call
from litz.lowering.layouts import CONTRACTIONS
from litz.lowering.number_calls import number_call
from litz.lowering.numbers import (
    SCALAR_READS,
    graph_assertions,
    is_symbolic,
    require,
    solve_inputs,
)
from litz.lowering.outputs import Outputs, as_view
from litz.lowering.overwriting import is_own_copy
from litz.lowering.readers import Readers
from litz.lowering.refused import check_types
from litz.lowering.registry import Call, Result, find
from litz.lowering.script_objects import lower_method_call
from litz.lowering.state import Compile, GraphLowering
from litz.lowering.storing import own, settle
from litz.lowering.user_kernel_calls import is_user_kernel, is_user_operator, picked_result
from litz.lowering.user_kernels import lower_user_kernel
from litz.lowering.values import Opaque, TensorValue


@dataclass
class _Walk(GraphLowering):
    """inputs: names of the program's, in order."""

    inputs: list[str] = field(default_factory=list)

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
            self.bodies,
            tuple(self.bindings),
        )

    def end_of_inputs(self) -> None:
        """Give a value to what inputs' layouts hold and no input is by itself."""
        if self.symbols.unsolved:
            solve_inputs(self)
        layouts, self.layouts = self.layouts, []
        require(self, *layouts)

    def source_names(self, n: FxNode) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for a in n.all_input_nodes:
            v = self.env.get(a)
            if isinstance(v, TensorValue) and v.lazy is not None:
                names.update(dict.fromkeys(self.sources[a]))
        if not is_view_op(n.target) or not names:  # ATen makes some views
            names[n.name] = None
        return tuple(names)

    def release(self, n: FxNode) -> None:
        for a in n.all_input_nodes:
            self.uses_left[a] -= 1

    # --- what the graph is given ----------------------------------------------------------------

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
            if any(u.op != "output" and not takes_objects(u.target) for u in n.users):
                raise GraphUnsupported(f"an input of type {type(val).__name__}")
            return self.b.opaque(n.name, val) if n.users else None  # a mesh of devices, say
        return self.input_tensor(n, val, position)

    def input_tensor(self, n: FxNode, val: torch.Tensor, position: int) -> TensorValue | Opaque:
        name = n.name
        r = self.result(val)
        if r is None:
            return self.b.opaque(name, val)
        buf = self.b.new_buffer(r.dtype, r.shape, r.strides, r.device, "input", name=name)
        for dim, s in enumerate(val.shape):
            self.symbols.input(self.symbols.as_written(s), position, dim)
        if n.users:
            self.layouts += [*r.shape, *r.strides]
        return self.b.of_buffer(buf)

    def attribute(self, n: FxNode) -> Any:
        if is_body(self.gm, n):
            return None
        value = attribute_value(self.gm, n)
        name = n.name
        if isinstance(value, torch.ScriptObject):
            self.b.constants[name] = value
            return self.b.opaque(name, value)
        if not isinstance(value, torch.Tensor):
            raise GraphUnsupported(f"attribute {n.target} is a {type(value).__name__}")
        self.b.constants[name] = value
        r = self.result(n.meta["val"] if "val" in n.meta else value)
        if r is None:
            return self.b.opaque(name, value)
        buf = self.b.new_buffer(r.dtype, r.shape, r.strides, r.device, "constant", name=name)
        return self.b.of_buffer(buf)

    # --- calls --------------------------------------------------------------------------------

    def inline(self, gm: GraphModule, given: Sequence[Any]) -> list[Any]:
        """The results of a graph of calls on values; what it computes stays an expression."""
        inner = _Inline(gm, self.settings)
        inner.b, inner.symbols = self.b, self.symbols
        inner.readers = Readers(self.b, inner.env, inner.uses_left, inner.places, inner.bind)
        values = iter(given)
        for place, n in enumerate(gm.graph.nodes):
            inner.places[n], inner.uses_left[n] = place, len(n.users)
            inner.sources[n] = self.b.origins
            if n.op == "output":
                return [inner.env[a] for a in n.args[0]]
            inner.bind(n, next(values) if n.op == "placeholder" else inner.call(n))
            inner.release(n)
        raise AssertionError("a graph without an output")

    def call(self, n: FxNode) -> Any:
        val = n.meta.get("val")
        if n.target is operator.getitem and isinstance(n.args[1], int):
            source, at = n.args
            assert isinstance(source, FxNode) and isinstance(at, int)
            if is_user_operator(source.target) or not isinstance(val, torch.Tensor):
                return self.env[source][at]
            return self.pick(n, source, at)
        if is_user_kernel(n.target):
            return lower_user_kernel(self, n)
        if is_user_operator(n.target):
            return lower_functional_call(self, n)
        if higher_order_name(n.target) in DRAWN_TWICE:
            return lower_drawn_twice(self, n)
        if has_bodies(n.target):
            for template in (lower_attention, lower_attention_gradient, lower_associative_scan):
                if (found := template(self, n, self.inline)) is not None:
                    return found
            return lower_control_flow(self, n)
        if higher_order_name(n.target) == CALL_METHOD:
            return lower_method_call(self, n)
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
        source, key = self.view_key(n)
        if key in self.views:
            return values.strided(source, *self.views[key])
        fn = find(n.target)
        if fn is None:
            product = contraction(self, n) if n.target in CONTRACTIONS else None
            return product or call_extern(self, n, why_extern(n.target))
        results = tuple(self.result(v) if isinstance(v, torch.Tensor) else None for v in vals)
        used = frozenset(
            u.args[1]
            for u in n.users
            if u.target is operator.getitem and isinstance(u.args[1], int)
        )
        args, kwargs = self.map(n.args), self.map(dict(n.kwargs))
        given = (*args, *kwargs.values())
        parts = leaves(given)
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
            if any(isinstance(v, Opaque) for v in parts):
                raise Unsupported("an argument of a type that only ATen handles")
            if eight_bits.in_arithmetic(n.target, (*parts, *results)):
                raise Unsupported("arithmetic on floats of 8 bits")
            if several_devices(parts):
                raise Unsupported("tensors of several devices")
            if n.kwargs.get("pin_memory"):
                raise Unsupported("pinned memory")
            limits.check(self.symbols, n, parts, results)
            check_types(n, given, results)
            check_alone(n, results, self.settings)
            require(self, *(e for r in results if r is not None for e in (*r.shape, *r.strides)))
            mark = len(self.b.nodes)
            if any(map(self.b.is_among, parts)) and any(r and r.device != "cpu" for r in results):
                args, kwargs = tree_map(self.b.by_itself, (args, kwargs))
            out = fn(call, *args, **kwargs)
            if key is not None and out.ref is not None:
                layout = call.shape, call.result.strides, out.ref.offset
                if out == values.strided(given[0], *layout):
                    self.views[key] = layout
            return self.finish(n, out, call)
        except Unsupported as e:
            reason = str(e)
        except TypeError:
            if not limits.has_symbolic(parts):
                raise
            # The lowering computes with a number that only the running program knows.
            reason = "a symbolic number"
        self.b.roll_back(mark)
        return call_extern(self, n, reason)

    def view_key(self, n: FxNode) -> tuple[Any, tuple[Any, ...] | None]:
        """What a call views, and its key if that lies in a buffer and its own layout is known."""
        base = viewed(n)
        v = None if base is None else self.env[base]
        val = n.meta.get("val")
        if not isinstance(v, TensorValue) or v.ref is None or not isinstance(val, torch.Tensor):
            return v, None
        r = self.result(val)
        if r is None or id(val) not in self.seen:
            return v, None
        own = v.dtype, v.shape, v.ref.strides, v.ref.offset
        return v, (n.target, n.args[1:], tuple(n.kwargs.items()), r, own)

    def pick(self, n: FxNode, source: FxNode, at: int) -> Any:
        """One result of several, stored if it is shared."""
        v = self.env[source][at]
        r = self.result(n.meta["val"]) if isinstance(n.meta.get("val"), torch.Tensor) else None
        if not isinstance(v, TensorValue) or r is None or is_view_op(source.target):
            return v
        if v.lazy is None:
            return own(self, n, v, r, source)
        self.b.origins = self.sources[n] = self.sources[source]
        stored = settle(self, n, v, r, len(list(readers(n))))
        results = list(self.env[source])
        results[at] = stored
        self.bind(source, tuple(results), at)
        return stored

    def finish(self, n: FxNode, out: Any, call: Call) -> Any:
        if isinstance(out, TensorValue):
            promised = as_promised(n, out, call.result)
            if (base := viewed(n)) is not None:
                promised = as_view(self, n, base, promised)
            return settle(self, n, promised, call.result, call.n_users)
        if isinstance(out, tuple | list):
            return tuple(
                self.b.limit(as_promised(n, o, r)) if isinstance(o, TensorValue) else o
                for o, r in zip(out, call.results, strict=True)
            )
        return out


class _Inline(_Walk):
    """Lowers calls to expressions: nothing is stored because it is large or read often."""

    def finish(self, n: FxNode, out: Any, call: Call) -> Any:
        return as_promised(n, out, call.result) if isinstance(out, TensorValue) else out


def as_promised(n: FxNode, v: TensorValue, r: Result | None) -> TensorValue:
    """A result as the graph's metadata describes it: its device, and how sizes are written.

    Raises WrongMetadata where it is wrong, as PyTorch's is at times: what reads the
    result goes by it.
    """
    if r is None:
        return v
    if v.lazy is not None and v.device != r.device:
        v = replace(v, device=r.device)
    if v.shape == r.shape:
        return v
    pairs = list(zip(v.shape, r.shape, strict=False))
    if v.ndim != len(r.shape) or any(s is not t and s.is_const and t.is_const for s, t in pairs):
        own, other = (f"({', '.join(map(str, shape))})" for shape in (v.shape, r.shape))
        raise WrongMetadata(f"{n.target} gives shape {own} and not {other}, as PyTorch says")
    return values.written_as(v, r.shape)


def several_devices(given: Sequence[Any]) -> bool:
    """Whether tensors lie on several devices; a number of the host's goes to any."""
    tensors = (v for v in leaves(given) if isinstance(v, TensorValue))
    return len({v.device for v in tensors if v.ndim}) > 1


def lower_graph(gm: GraphModule, settings: Settings) -> Program:
    """Lower ``gm`` (ATen calls, fake-tensor metadata in ``meta["val"]``) to a program.

    Raises CompilationError with the op and the user's line where a lowering fails.
    """
    return lower(gm, settings).program


@dataclass(frozen=True)
class Lowered:
    """A program, and what operators are handed, by the name of the node, if the settings ask."""

    program: Program
    handed: Mapping[str, Handed]


def lower(gm: GraphModule, settings: Settings, compile_body: Compile | None = None) -> Lowered:
    """``lower_graph`` with what checkers want to know.

    compile_body: compiles a body of control flow under its name; None: graphs that have any are
    not lowered.
    """
    families.load()
    lowering = _Walk(gm, settings, compile_body)
    return Lowered(lowering.run(), lowering.handed)


def check_devices(program: Program) -> None:
    """GraphUnsupported where a tensor lies on a device that Litz has no target for."""
    for device in sorted({b.device for b in program.buffers.values()}):
        if device.partition(":")[0] not in DEVICES:
            raise GraphUnsupported(f"device {device}: Litz compiles for {' and '.join(DEVICES)}")


def drawn_buffers(graph: Graph, program: Program) -> frozenset[str]:
    """The buffers that hold random numbers."""
    random = {n.name for n in graph.nodes if is_random(n.target)}
    return frozenset(b.ref.buffer for b in program.bindings if b.node in random)


DEVICES = ("cpu", "cuda")
