"""Printing host lines as a plan for the native executor (``litz.runtime.plan``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType

import torch

from litz.artifact import Constant, Live, Named, Scripted, Value
from litz.host import lines
from litz.host.aliasing import holder, looked_into, taken_by_value
from litz.host.lines import HostProgram, Line
from litz.host.sizes import LARGE_BYTES, byte_size
from litz.host.stable import direct_number, stable_arguments
from litz.host.targets import Target, out_target, plain_target
from litz.host.values import describe
from litz.host.words import Unplanned, Words
from litz.index import Expr, as_expr, size_hint
from litz.ir.dtype import U8, DType
from litz.ir.program import Extern, HostFloat, TensorRef, made_numbers
from litz.ir.text import is_whole
from litz.lowering.bindings import ALIGNED, Handed
from litz.lowering.torch_types import to_torch
from litz.runtime.checks import check_call
from litz.runtime.looking import look
from litz.runtime.plan import VALUE_OF, Plan, packed
from litz.runtime.shipped import BY_VALUE, ELSEWHERE


class _Printer(Words):
    def __init__(
        self, host: HostProgram, values: Mapping[str, Value], origins: Mapping[str, Sequence[str]]
    ) -> None:
        super().__init__()
        self.origins = origins
        self.host = host
        self.buffers = host.buffers
        self.tensors: dict[str, int] = {name: i for i, name in enumerate(host.inputs)}
        self.count = len(host.inputs)
        self.symbols: dict[str, int] = {}
        self.temporaries: list[int] = []
        self.objects: dict[tuple[str, str], int] = {}
        self.names = {_identity(v): name for name, v in values.items()}
        self.owner: dict[str, tuple[str, int]] = {}
        externs = [line.extern for line in host.lines if isinstance(line, lines.CallExtern)]
        self.late = {name for e in externs for name in made_numbers(e)}
        self.unchecked: list[str] = []
        self.segments = {s.name: i for i, s in enumerate(host.segments())}
        self.kernels: dict[str, int] = {}

    # --- registers and objects ---------------------------------------------------------------

    def fresh(self) -> int:
        self.count += 1
        return self.count - 1

    def tensor(self, name: str) -> int:
        """The register of a buffer; a constant is loaded where it is first used."""
        if name not in self.tensors:
            self.tensors[name] = self.fresh()
            if name in self.host.constants:
                self.emit("load", self.tensors[name], self.thing(self.host.constants[name]))
        return self.tensors[name]

    def entry(self, kind: str, text: str) -> int:
        return self.objects.setdefault((kind, text), len(self.objects))

    def thing(self, value: object) -> int:
        if value is None or value is Ellipsis or type(value) in (bool, int, str):
            return self.entry("literal", repr(value))
        if isinstance(value, float):
            return self.entry("float", value.hex())
        if isinstance(value, torch.device):
            return self.entry("device", str(value))
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return self.entry("torch", str(value).removeprefix("torch."))
        found = describe(value)
        name = self.names.get(_identity(found))
        if name is not None:
            return self.entry("value", name)
        if isinstance(found, Named):
            return self.entry("name", f"{found.module}:{found.path}")
        raise Unplanned(f"an object of the type {type(value).__name__}")

    def dtype(self, dtype: DType) -> int:
        return self.thing(to_torch(dtype))

    def defined(self, symbol: Expr) -> int:
        """A register for a symbol that an instruction gives its value."""
        self.symbols[str(symbol)] = self.register()
        return self.symbols[str(symbol)]

    def symbol(self, name: str) -> int:
        if name not in self.symbols:
            if name not in self.host.inputs:
                raise Unplanned(f"the number {name}")
            self.symbols[name] = self.register()
            self.emit("number", self.symbols[name], self.host.inputs.index(name))
        return self.symbols[name]

    # --- values ------------------------------------------------------------------------------

    def ref(self, r: TensorRef) -> int:
        """The register of a view; one that is not the buffer's own is made for it."""
        base = self.tensor(r.buffer)
        if is_whole(r, self.buffers):
            return base
        own = self.buffers[r.buffer]
        if r.dtype is not own.dtype:
            retyped = self._temporary()
            self.emit("retype", retyped, base, self.dtype(r.dtype))
            same = (r.shape, r.strides, r.offset) == (own.shape, own.strides, as_expr(0))
            if same and r.dtype.bits == own.dtype.bits:
                return retyped
            base = retyped
        view = self._temporary()
        self._view_of(view, base, r.shape, r.strides, r.offset)
        return view

    def _temporary(self) -> int:
        """A register that is free behind the line."""
        self.temporaries.append(self.fresh())
        return self.temporaries[-1]

    def _view_of(
        self, view: int, base: int, shape: Iterable[Expr], strides: Iterable[Expr], offset: Expr
    ) -> None:
        sizes, steps, at = self.dims(shape), self.dims(strides), self.number(offset)
        self.emit("view", view, base, sizes, steps, at)

    def value(self, value: object) -> list[int]:
        if isinstance(value, TensorRef):
            return [VALUE_OF["tensor"], self.ref(value)]
        if isinstance(value, HostFloat):
            return [VALUE_OF["tensor"], self.tensor(value.name)]
        if isinstance(value, Expr):
            return [VALUE_OF["number"], self.number(value)]
        if isinstance(value, (tuple, list)):
            items = [w for v in value for w in self.value(v)]
            return [VALUE_OF["list" if isinstance(value, list) else "tuple"], len(value), *items]
        return [VALUE_OF["object"], self.thing(value)]

    # --- lines -------------------------------------------------------------------------------

    def line(self, line: Line) -> None:
        match line:  # what there is most of first: each case is asked in turn
            case lines.Free(name):
                self.emit("free", self.tensor(name))
            case lines.CallExtern(extern):
                self._extern(extern)
            case lines.Allocate(name):
                self._allocate(name)
            case lines.CallSegment(name):
                self._segment(line)
            case lines.CallKernel(kernel):
                self._launch(kernel, line.group, line.buffers, line.ints)
            case lines.Place(name, owner, offset):
                self.owner[name] = (owner, offset)
            case lines.View(name, owner, offset):
                self._view(name, owner, offset)
            case lines.Reuse(new, old):
                self._reuse(new, old)
            case lines.Align(name, ref):
                self.emit("aligned", self.tensor(name), self.ref(ref))
            case lines.Comment():
                pass
            case lines.BindSize(symbol, arg, dim):
                if dim is None:
                    self.emit("number", self.defined(symbol), arg)
                else:
                    self.emit("size", self.defined(symbol), arg, dim)
            case lines.Workspace(name, nbytes, device):
                self._workspace(name, nbytes, device)
            case lines.EnterDevice(device):
                self.emit("enter", self.device(device))
            case lines.LeaveDevice():
                self.emit("leave")
            case lines.Return(outputs):
                value = self.value(tuple(outputs))
                self.emit("return", value)
            case lines.CheckCall(extern, handed):
                self._check_call(extern, handed)
            case lines.Look():
                self._python(look, [self.value(v) for v in line.given()])
            case lines.Probe():
                raise Unplanned("its runs are checked")
            case _:
                raise Unplanned(f"a line {type(line).__name__}")
        if self.temporaries:
            if not isinstance(line, lines.Return):
                for register in self.temporaries:
                    self.emit("free", register)
            self.temporaries.clear()

    def _check_call(self, e: Extern, handed: Handed) -> None:
        stated = [
            (t.node, t.ref, t.dtype, torch.device(t.device), t.strides, ALIGNED if t.aligned else 1)
            for t in handed.tensors
        ]
        given = e.target_name, e.origins, handed.stack, *stated
        self._python(check_call, [self.value(v) for v in given])

    def _python(self, function: Callable[..., None], values: Sequence[list[int]]) -> None:
        """Call a function of Litz's that returns nothing."""
        name = self.entry("name", f"{function.__module__}:{function.__name__}")
        self.emit("call", name, len(values), [w for v in values for w in v], 0, 0, 0)

    def device(self, device: str) -> int:
        return self.thing(torch.device(self.allowed(device)))

    def allowed(self, device: str) -> str:
        if device.partition(":")[0] not in ("cpu", "cuda"):
            raise Unplanned(f"it works on {device}")
        return device

    def _workspace(self, name: str, nbytes: int, device: str) -> None:
        size = self.number(as_expr(nbytes))
        if self.allowed(device).startswith("cpu"):
            self.emit("workspace", self.tensor(name), size)
        else:
            like = self.dtype(U8), self.device(device)
            self.emit("allocate", self.tensor(name), *like, [1, size], self.dims([as_expr(1)]))

    def _allocate(self, name: str) -> None:
        b = self.buffers[name]
        sizes, strides = self.dims(b.shape), self.dims(b.strides)
        large = size_hint(byte_size(b)) >= LARGE_BYTES
        if self.allowed(b.device).startswith("cpu") and large:
            self.emit("recycled", self.tensor(name), self.dtype(b.dtype), sizes, strides)
        else:
            like = self.dtype(b.dtype), self.device(b.device)
            self.emit("allocate", self.tensor(name), *like, sizes, strides)

    def _view(self, name: str, owner: str, offset: int) -> None:
        b = self.buffers[name]
        own = self.buffers.get(owner)
        base = self.tensor(owner)
        if own is not None and own.dtype is b.dtype:
            elements = as_expr(offset // b.dtype.bytes)
            self._view_of(self.tensor(name), base, b.shape, b.strides, elements)
            return
        sizes, strides = self.dims(b.shape), self.dims(b.strides)
        self.emit("place", self.tensor(name), base, self.dtype(b.dtype), sizes, strides, offset)

    def _reuse(self, new: str, old: str) -> None:
        a, b = self.buffers[new], self.buffers[old]
        base = self.tensor(old)
        if (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides):
            self.emit("move", self.tensor(new), base)
        else:
            source = base
            if a.dtype is not b.dtype:
                source = self._temporary()
                self.emit("retype", source, base, self.dtype(a.dtype))
            self._view_of(self.tensor(new), source, a.shape, a.strides, as_expr(0))
            self.emit("free", base)
        self.owner[old] = (new, 0)

    def _segment(self, line: lines.CallSegment) -> None:
        mark = ", ".join(self._mark(c.kernel, c.group) for c in line.calls)
        self._kernels("segment", mark, self.segments[line.name], line.buffers(), line.ints())

    def _mark(self, kernel: str, group: str) -> str:
        """How profilers show a kernel: with the nodes of the graph that it computes."""
        return f"{kernel}({', '.join(self.origins.get(group, ()))})"

    def _launch(
        self, kernel: str, group: str, buffers: Sequence[str], ints: Iterable[Expr]
    ) -> None:
        number = self.kernels.setdefault(kernel, len(self.kernels))
        by_value = taken_by_value(buffers, self.buffers)
        self._kernels("launch", self._mark(kernel, group), number, buffers, ints, by_value)

    def _kernels(
        self,
        op: str,
        mark: str,
        which: int,
        buffers: Sequence[str],
        ints: Iterable[Expr],
        by_value: Sequence[bool] = (),
    ) -> None:
        """A call of kernels.  by_value: buffers in the host's memory, if others are elsewhere."""
        pointers = []
        for name, value in zip(buffers, by_value or [False] * len(buffers), strict=True):
            owner, offset = holder(name, self.owner)
            b = self.buffers.get(owner)
            foreign = b is not None and b.kind in ("input", "extern", "opaque")
            how = BY_VALUE if value else ELSEWHERE if foreign else 0
            pointers += [self.tensor(owner), offset, how]
        self.emit(op, self.thing(mark), which, len(buffers), pointers, self.dims(ints))

    def _target(self, t: Target) -> int:
        if t.path is not None:
            return self.entry("torch", t.path.removeprefix("torch."))
        return self.thing(t.value)

    def _call(
        self,
        t: Target,
        e: Extern,
        kwargs: dict[str, object],
        results: list[int],
    ) -> None:
        target = self._target(t)
        if self._dispatched(target, t.value, e, kwargs, results):
            return
        values = [self.value(a) for a in e.args]
        named = [[self.thing(k), *self.value(v)] for k, v in kwargs.items()]
        flat = [w for v in values for w in v], [w for v in named for w in v]
        counts = len(values), len(named)
        self.emit(
            "call", target, counts[0], flat[0], counts[1], flat[1], len(results), results, e.single
        )

    def _dispatched(
        self,
        target: int,
        overload: object,
        e: Extern,
        kwargs: Mapping[str, object],
        results: list[int],
    ) -> bool:
        """Emit a call of an operator through PyTorch's dispatcher, if that takes its arguments."""
        found = stable_arguments(overload, e.args, kwargs)
        if found is None:
            return False
        words: tuple[list[int], list[int]] = [], []
        counts = [0, 0]
        for a in found:
            named = a.name is not None
            counts[named] += 1
            if a.name is not None:
                words[named].append(self.thing(a.name))
            words[named].extend([a.type, *self.value(a.value)])
        assert isinstance(overload, torch._ops.OpOverload)
        name, part, returns = _spelled(overload)
        direct = direct_number(overload, e.args, e.device)
        operator = [self.thing(name), self.thing(part), target, direct]
        self.emit("aten", operator, counts[0], words[0], counts[1], words[1], returns)
        self.words += [len(results), *results, e.single]
        return True

    def _extern(self, e: Extern) -> None:
        self.allowed(e.device)
        if e.is_assertion:
            condition, message = e.args
            if not isinstance(condition, Expr):
                raise Unplanned("an assertion on a float")
            self.emit("assert", self.number(condition), self.thing(message))
            return
        if e.out_variant:
            self._extern_out(e)
            return
        results = [-1 if o is None else self.tensor(o) for o in e.outputs]
        for position, number in e.symbols:
            results += [-1] * (position + 1 - len(results))
            results[position] = self._result(number)
        if all(r == -1 for r in results):
            results = []
        self._call(plain_target(e), e, dict(e.kwargs), results)
        self._sizes_of(e)
        self.unchecked += [o for o in e.outputs if o is not None]
        waiting, self.unchecked = self.unchecked, []
        for output in waiting:
            layout = (*self.buffers[output].shape, *self.buffers[output].strides)
            if any(str(s) in self.late for x in layout for s in x.free):
                self.unchecked.append(output)
            else:
                self._expect(output)

    def _result(self, number: Expr | HostFloat) -> int:
        """Where a number goes that an operator makes: a float stays Python's."""
        if isinstance(number, HostFloat):
            return self.tensor(number.name)
        return -2 - self.defined(number)

    def _sizes_of(self, e: Extern) -> None:
        for symbol, position, dim in e.sizes:
            output = e.outputs[position]
            assert output is not None
            self.emit("size", self.defined(symbol), self.tensor(output), dim)
        self.late.difference_update(made_numbers(e))
        for expected, position, dim in e.checks:
            output = e.outputs[position]
            assert output is not None
            size = self.register()
            self.emit("size", size, self.tensor(output), dim)
            message = f"Runtime assertion failed: size {dim} of {e.target_name} is not {expected}"
            self.emit("equal", size, self.number(expected), self.thing(message))

    def _extern_out(self, e: Extern) -> None:
        outputs = [(o, self._whole(o)) for o in e.outputs if o is not None]
        target = out_target(e)
        if target is not None:
            outs = zip(target.out, (r for _, r in outputs), strict=True) if e.part is None else ()
            self._call(target, e, dict((*e.kwargs, *outs)), [])
            return
        results = [-1 if o is None else self._temporary() for o in e.outputs]
        self._call(plain_target(e), e, dict(e.kwargs), results)
        copy = self.entry("torch", "Tensor.copy_")
        made = [r for r in results if r != -1]
        for (_, whole), register in zip(outputs, made, strict=True):
            target_words = [*self.value(whole), VALUE_OF["tensor"], register]
            self.emit("call", copy, 2, target_words, 0, 0, 0)

    def _whole(self, name: str) -> TensorRef:
        b = self.buffers[name]
        return TensorRef(name, b.dtype, b.shape, b.strides, as_expr(0))

    def _expect(self, output: str) -> None:
        b = self.buffers[output]
        if b.alias is not None or output not in self.by_strides:
            return
        sizes, strides = self.dims(b.shape), self.dims(b.strides)
        self.emit("expect", self.tensor(output), self.dtype(b.dtype), sizes, strides)

    @cached_property
    def by_strides(self) -> frozenset[str]:
        """Buffers that a kernel reads or that someone reinterprets."""
        return looked_into(self.host)

    def run(self, named: bool) -> Plan:
        after = (*self.host.lines[1:], None)
        for line, following in zip(self.host.lines, after, strict=True):
            # What is left dies with the call.
            if not (isinstance(line, lines.Free) and isinstance(following, lines.Return)):
                self.line(line)
        called = {register: name for name, register in self.tensors.items()}
        names = tuple(called.get(n, "") for n in range(self.count)) if named else ()
        return Plan(
            len(self.host.inputs),
            self.count,
            tuple(self.numbers),
            tuple(self.objects),
            tuple(self.segments),
            tuple(self.kernels),
            packed(self.words),
            names,
        )


@lru_cache(maxsize=1024)
def _spelled(overload: torch._ops.OpOverload) -> tuple[str, str, int]:
    """An operator's name and its overload's, and how many results it has."""
    name, _, part = overload.name().partition(".")  # type: ignore[no-untyped-call]
    return name, part, len(overload._schema.returns)


def _identity(value: Value) -> object:
    """By which two descriptions are of one object."""
    if isinstance(value, Constant):
        return id(value.tensor)
    return id(value.value) if isinstance(value, Live | Scripted) else value


def plan_native(
    host: HostProgram,
    values: Mapping[str, Value],
    named: bool = False,
    origins: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Plan | str:
    """The plan of a host program, or why it has none.

    values: what the printed program names and cannot spell; the plan names the same.
    named: whether it says what its registers are called.  origins: nodes of the graph, by groups.
    """
    try:
        return _Printer(host, values, origins).run(named)
    except Unplanned as e:
        return str(e)
