"""Printing a host program as a ``torch.fx`` graph, for who looks at it or changes it by FX's means.

It is made of the plan (``litz.runtime.plan``), which says all that host lines say, so that it can
be made of any artifact: one that was found on disk too.  Operators of ATen are called as
themselves, kernels and segments by ``launch``; each call of these has the records of its kernels
under ``meta["kernels"]`` (``litz.artifact.Kernel``).  ``meta["line"]`` is the instruction's name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node, has_side_effect
from torch.fx.graph import CodeGen

from litz.artifact import Kernel, SegmentTable
from litz.loading.values import is_known
from litz.options import GraphHook
from litz.runtime import memory
from litz.runtime.arguments import BoxedCall
from litz.runtime.executor import object_of
from litz.runtime.launchers import in_python
from litz.runtime.plan import Plan, instructions
from litz.runtime.prelude import aligned, empty_large, reinterpret, retype, workspace
from litz.runtime.shipped import BY_VALUE, ELSEWHERE

_NUMBERS: Final = {
    **{op: getattr(operator, op) for op in ("add", "mul", "floordiv", "mod")},
    **{op: getattr(operator, op) for op in ("eq", "ne", "lt", "le")},
    **{"min": min, "max": max, "and": operator.and_, "or": operator.or_, "not": operator.not_},
}


# --- what the graph calls ------------------------------------------------------------------------


class Native:
    """A kernel or a segment of kernels.  records: of these kernels."""

    def __init__(self, call: Callable[..., None], records: tuple[Kernel, ...]) -> None:
        self.call, self.records = call, records

    def __deepcopy__(self, memo: object) -> Native:
        return self  # a copy of the graph calls the same code


@has_side_effect
def launch(native: Native, pointers: Sequence[Any], numbers: Sequence[int]) -> None:
    """Run a kernel.  pointers: tensors, (tensor, bytes behind its start), or values."""
    native.call(*map(_address, pointers), *numbers)


def _address(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.data_ptr()
    return x[0].data_ptr() + x[1] if isinstance(x, (tuple, list)) else x


@has_side_effect
def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what has no name in PyTorch or Litz."""
    return function(*args, **kwargs)


@has_side_effect
def free(x: object) -> None:
    """The last use of a tensor: FX's code lets it go behind it."""


@has_side_effect
def require(condition: object, message: str) -> None:
    """Raise RuntimeError where a condition does not hold."""
    if not condition:
        raise RuntimeError(message)


def in_memory(x: torch.Tensor) -> torch.Tensor:
    """A tensor that comes from elsewhere, with memory behind it."""
    return x if x.data_ptr() else memory.in_memory(x)


def laid_out(
    x: torch.Tensor, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """A result as kernels read it, laid out anew where it is not."""
    if x.stride() == tuple(strides) and x.dtype is dtype:
        return x
    return torch.empty_strided(sizes, strides, dtype=dtype, device=x.device).copy_(x)


@has_side_effect
def enter_device(device: torch.device) -> torch.cuda.device:
    """Make a GPU current up to ``leave_device``."""
    entered = torch.cuda.device(device.index or 0)
    entered.__enter__()  # type: ignore[no-untyped-call]
    return entered


@has_side_effect
def leave_device(entered: torch.cuda.device) -> None:
    """End of what ``enter_device`` began."""
    entered.__exit__(None, None, None)


# --- the graph -----------------------------------------------------------------------------------


class _Boxed(CodeGen):
    """Code of a graph that takes its arguments as a list and empties that."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **_: Any) -> str:
        names = [v.partition(":")[0].partition("=")[0].strip() for v in free_vars if v != "self"]
        taken = f"\n    {', '.join(names)}, = args_list" if names else ""
        head = f"def {self._func_name}(self, args_list){maybe_return_annotation}:"
        return f"{head}{taken}\n    args_list.clear()"


class _Printer:
    def __init__(
        self,
        plan: Plan,
        values: Mapping[str, object],
        natives: Mapping[str, Native],
    ) -> None:
        self.plan, self.values, self.natives = plan, values, natives
        self.names = plan.names or [f"t{n}" for n in range(plan.tensors)]
        self.graph = Graph()
        self.attributes: dict[str, object] = {}
        self.gets: dict[str, Node] = {}
        self.tensors: dict[int, Node] = {}
        self.numbers: dict[int, Any] = dict(enumerate(plan.numbers))
        self.in_memory: set[Node] = set()
        self.entered: list[Node] = []
        self.op = ""

    # --- operands ----------------------------------------------------------------------------

    def node(
        self,
        target: Callable[..., Any],
        *args: Any,
        to: int = -1,
        kwargs: dict[str, Any] | None = None,
    ) -> Node:
        """A call.  to: the tensor register that its result goes to."""
        name = self.names[to] if to >= 0 else ""
        made = self.graph.create_node("call_function", target, args, kwargs, name or None)
        made.meta["line"] = self.op
        if to >= 0:
            self.tensors[to] = made
        return made

    def attribute(self, name: str, value: object) -> Node:
        """A value that the module holds."""
        if name not in self.gets:
            self.attributes[name] = value
            first = next((n for n in self.graph.nodes if n.op != "placeholder"), None)
            with self.graph.inserting_before(first) if first else nullcontext():
                self.gets[name] = self.graph.create_node("get_attr", name)
        return self.gets[name]

    def thing(self, n: int) -> Any:
        kind, text = self.plan.objects[n]
        if kind == "value":
            return self.attribute(text, self.values[text])
        found = object_of(kind, text, self.values)
        return self.attribute(re.sub(r"\W", "_", text), found) if callable(found) else found

    def value(self, value: tuple[str, Any]) -> Any:
        match value:
            case "tensor", n:
                return self.tensors[n]
            case "number", n:
                return self.numbers[n]
            case "object", n:
                return self.thing(n)
            case kind, items:
                return (tuple if kind == "tuple" else list)(map(self.value, items))

    def dims(self, registers: Sequence[int]) -> tuple[Any, ...]:
        return tuple(self.numbers[n] for n in registers)

    def pointer(self, place: tuple[int, int, int]) -> Any:
        register, offset, how = place
        x = self.tensors[register]
        if how & BY_VALUE:
            return self.graph.call_method("item", (x,))
        if how & ELSEWHERE and x not in self.in_memory:
            x = self.node(in_memory, x, to=register)
            self.in_memory.add(x)
        return (x, offset) if offset else x

    # --- instructions ------------------------------------------------------------------------

    def instruction(self, op: str, x: list[Any]) -> None:
        self.op = op
        match op:
            case "number":
                self.numbers[x[0]] = self.tensors[x[1]]
            case "size":
                size = torch.ops.aten.sym_size.int
                self.numbers[x[0]] = self.node(size, self.tensors[x[1]], x[2])
            case "load":
                self.tensors[x[0]] = self.thing(x[1])
            case "allocate":
                like = {"dtype": self.thing(x[1]), "device": self.thing(x[2])}
                sizes = self.dims(x[3]), self.dims(x[4])
                empty = torch.ops.aten.empty_strided.default
                self.node(empty, *sizes, to=x[0], kwargs=like)
            case "recycled":
                sizes = self.dims(x[2]), self.dims(x[3])
                self.node(empty_large, *sizes, self.thing(x[1]), to=x[0])
            case "workspace":
                self.node(workspace, self.numbers[x[1]], to=x[0])
            case "view":
                at = self.dims(x[2]), self.dims(x[3]), self.numbers[x[4]]
                self.node(reinterpret, self.tensors[x[1]], *at, to=x[0])
            case "place":
                dtype = self.thing(x[2])
                flat = self.node(retype, self.tensors[x[1]], dtype)
                at = self.dims(x[3]), self.dims(x[4]), x[5] // dtype.itemsize
                self.node(reinterpret, flat, *at, to=x[0])
            case "retype":
                view = torch.ops.aten.view.dtype
                self.node(view, self.tensors[x[1]], self.thing(x[2]), to=x[0])
            case "aligned":
                self.node(aligned, self.tensors[x[1]], to=x[0])
            case "move":
                self.tensors[x[0]] = self.tensors.pop(x[1])
            case "free":
                self.node(free, self.tensors.pop(x[0]))
            case "segment" | "launch":
                x = x[1:]  # what profilers call it
                names = self.plan.segments if op == "segment" else self.plan.kernels
                native = self.natives[names[x[0]]]
                get = self.attribute(names[x[0]], native)
                call = self.node(launch, get, list(map(self.pointer, x[1])), list(self.dims(x[2])))
                call.meta["kernels"] = native.records
            case "enter":
                self.entered.append(self.node(enter_device, self.thing(x[0])))
            case "leave":
                self.node(leave_device, self.entered.pop())
            case "call":
                self.call(*x)
            case "aten":
                _, _, target, _, args, named, _, results, single = x
                self.call(target, args, named, results, single)
            case "expect":
                layout = self.thing(x[1]), self.dims(x[2]), self.dims(x[3])
                self.node(laid_out, self.tensors[x[0]], *layout, to=x[0])
            case "equal":
                equal = self.node(operator.eq, self.numbers[x[0]], self.numbers[x[1]])
                self.node(require, equal, self.thing(x[2]))
            case "assert":
                self.node(require, self.numbers[x[0]], self.thing(x[1]))
            case "return":
                self.graph.output(self.value(x[0]))
            case _:
                args = [self.numbers[n] for n in x[1:]]
                self.numbers[x[0]] = self.node(_NUMBERS[op], *args)

    def call(
        self,
        target: int,
        args: Sequence[Any],
        named: Sequence[tuple[int, Any]],
        results: Sequence[int],
        single: int,
    ) -> None:
        given = [self.value(v) for v in args]
        kwargs = {self.thing(k): self.value(v) for k, v in named}
        to = results[0] if single and results else -1
        function = _overload(object_of(*self.plan.objects[target], self.values), "out" in kwargs)
        operator_ = isinstance(function, torch._ops.OperatorBase)
        if operator_ or (results and is_known(str(getattr(function, "__module__", "")))):
            made = self.node(function, *given, to=to, kwargs=kwargs)
        else:
            made = self.node(run, self.thing(target), *given, to=to, kwargs=kwargs)
        for i, register in enumerate(results):
            if register != -1:
                one = made if single else self.node(operator.getitem, made, i, to=register)
                if register < -1:
                    self.numbers[-2 - register] = one

    def print(self) -> GraphModule:
        for register in range(self.plan.inputs):
            self.tensors[register] = self.graph.placeholder(self.names[register])
        for op, operands in instructions(self.plan):
            self.instruction(op, operands)
        self.graph.set_codegen(_Boxed())
        return GraphModule(self.attributes, self.graph, "HostProgram")


def _overload(target: Any, out: bool) -> Any:
    """The overload behind PyTorch's own bindings of an operator, by which FX knows what writes."""
    if target is torch.Tensor.copy_:
        return torch.ops.aten.copy_.default
    packet = getattr(torch.ops.aten, getattr(target, "__name__", ""), None)
    if packet is not None and getattr(torch, target.__name__, None) is target:
        return packet.out if out else packet.default
    return target


class FxHost:
    """Runs plans as FX graphs, in the place of the native executor.

    kernels, segments: those of the artifact whose plan is run.  hooks: what looks at its graph, or
    changes it in place.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        segments: Sequence[SegmentTable],
        hooks: Sequence[GraphHook] = (),
    ) -> None:
        self._records: dict[str, tuple[Kernel, ...]] = {k.name: (k,) for k in kernels}
        for s in segments:
            self._records[s.name] = tuple(r for k, *_ in s.steps for r in self._records[k])
        self._hooks = hooks

    def program(
        self, plan: Plan, values: Mapping[str, object], natives: Mapping[str, Any]
    ) -> BoxedCall:
        """A callable of a plan, which takes the list of arguments and empties it."""
        own = {n: Native(f, self._records.get(n, ())) for n, f in in_python(natives).items()}
        module = _Printer(plan, values, own).print()
        enters = module.graph.find_nodes(op="call_function", target=enter_device)
        for hook in self._hooks:
            hook(module)
            module.recompile()

        def call(args: list[Any]) -> Any:
            # Errors leave the device that was current.
            device = torch.cuda.device(torch.cuda.current_device()) if enters else nullcontext()
            with device:
                return module.forward(args)  # by the attribute: it may be changed later

        return call
