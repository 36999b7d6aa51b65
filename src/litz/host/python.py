"""Printing host lines as a Python module: straight code in one function ``call(args)``.

The module imports torch and ``litz.runtime.prelude`` alone.  ``args`` is a list that ``call`` takes
over and clears, so that inputs die with their last use.  The code costs what Python charges for a
line: names are locals, callables and dtypes are globals of the module (the interpreter caches
them), and constant tuples need no hoisting because the bytecode compiler folds them.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Final

from litz.artifact import Value
from litz.dataclass import dataclass
from litz.host import lines
from litz.host.aliasing import holder, looked_into, taken_by_value
from litz.host.lines import HostProgram, Line
from litz.host.sizes import LARGE_BYTES, byte_size
from litz.host.targets import Target, number_text, out_target, plain_target
from litz.host.values import describe
from litz.index import PYTHON, Expr, as_expr, render, size_hint
from litz.ir.dtype import U8, DType
from litz.ir.program import Buffer, Extern, HostFloat, TensorRef, made_numbers, number_name
from litz.ir.text import is_whole
from litz.loading.values import PROBE, namespace
from litz.lowering.bindings import ALIGNED, Handed
from litz.lowering.torch_types import to_torch
from litz.runtime.prelude import __all__ as PRELUDE

_BUILTINS: Final = ("abs", "float", "int", "max", "min", "round", "RuntimeError")
_RESERVED: Final = frozenset((*PRELUDE, "torch", "args", "call", PROBE, *_BUILTINS))


@dataclass(frozen=True)
class HostSource:
    """A printed host program.

    source: the module's text.  values: what the text names and cannot spell (constants, callables
    that are no torch op).  segments and kernels: the names of the native calls that the loader must
    supply.
    """

    source: str
    values: Mapping[str, Value]
    segments: tuple[str, ...]
    kernels: tuple[str, ...]

    def namespace(self) -> dict[str, object]:
        """The values themselves."""
        return namespace(self.values)


class _Names:
    """Local names of the printed function: the program's own where they are fit for Python."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = {*_RESERVED, *keyword.kwlist, *taken}
        self.local: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        found = self.local.get(name)
        if found is None:
            found = name
            if not name.isidentifier() or name.startswith("_") or name in self.taken:
                clean = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
                found, n = f"v_{clean}", 0
                while found in self.taken:
                    found, n = f"v{n}_{clean}", n + 1
            self.taken.add(found)
            self.local[name] = found
        return found

    def __getitem__(self, name: str) -> str:
        return self(name)


@dataclass
class _Module:
    """The module's globals, each defined once; all begin with an underscore."""

    names: dict[str, str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    by_identity: dict[int, str] = field(default_factory=dict)

    def define(self, kind: str, text: str) -> str:
        """The global that holds the value of the expression ``text``."""
        found = self.names.get(text)
        if found is None:
            found = self.names[text] = f"_{kind}{len(self.names)}"
        return found

    def bind(self, value: object, hint: str = "v") -> str:
        """The global through which the loader hands in ``value``."""
        found = self.by_identity.get(id(value))
        if found is None:
            found = f"_{hint}_{len(self.values)}"
            self.by_identity[id(value)] = found
            self.values[found] = describe(value)
        return found

    def dtype(self, dtype: DType) -> str:
        return self.define("t", str(to_torch(dtype)))


class _Printer:
    def __init__(self, host: HostProgram) -> None:
        self.host = host
        self.buffers = host.buffers
        self.segments = tuple(s.name for s in host.segments())
        loose = [line.kernel for line in host.lines if isinstance(line, lines.CallKernel)]
        self.kernels = tuple(dict.fromkeys(loose))
        self.name = _Names((*self.segments, *self.kernels))
        self.module = _Module()
        for name, value in host.constants.items():
            self.name.local[name] = self.module.bind(value)
        self.pointer: dict[str, str] = {}
        self.owner: dict[str, tuple[str, int]] = {}
        self.typed: dict[str, list[str]] = {}
        self.tuples: dict[tuple[Expr, ...], str] = {}
        self.used: set[str] = set()
        externs = [line.extern for line in host.lines if isinstance(line, lines.CallExtern)]
        # Numbers that lines still to come give a value, and results whose layout waits for them.
        self.late = {name for e in externs for name in made_numbers(e)}
        self.unchecked: list[str] = []
        self.body: list[str] = []
        self.depth = 1

    # --- expressions -----------------------------------------------------------------------

    def expr(self, e: Expr) -> str:
        if e.is_const:
            return str(e)
        return render(e, PYTHON, {str(s): self.name(str(s)) for s in e.free})

    def sizes(self, exprs: Iterable[Expr]) -> str:
        key = tuple(exprs)
        if (known := self.tuples.get(key)) is None:
            texts = [self.expr(e) for e in key]
            known = f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
            self.tuples[key] = known
        return known

    def ref(self, r: TensorRef) -> str:
        """A view of a buffer: the buffer's own name where nothing differs."""
        base = self.name(r.buffer)
        if is_whole(r, self.buffers):
            return base
        if r.dtype is not self.buffers[r.buffer].dtype:
            base = f"{base}.view({self.module.dtype(r.dtype)})"
            own = self.buffers[r.buffer]
            same = (r.shape, r.strides, r.offset) == (own.shape, own.strides, as_expr(0))
            if same and r.dtype.bits == own.dtype.bits:
                return base
        sizes, strides = self.sizes(r.shape), self.sizes(r.strides)
        view = self.prelude("reinterpret")
        return f"{view}({base}, {sizes}, {strides}, {self.expr(r.offset)})"

    def value(self, value: object) -> str:
        """A Python value of an extern call or of the outputs."""
        if isinstance(value, TensorRef):
            return self.ref(value)
        if isinstance(value, Expr):
            return self.expr(value)
        if isinstance(value, HostFloat):
            return self.name(value.name)
        if isinstance(value, float):
            return self._float(value)
        if value is None or value is Ellipsis or type(value) in (bool, int, str):
            return repr(value)
        if isinstance(value, (tuple, list)):
            items = ", ".join(map(self.value, value))
            if isinstance(value, list):
                return f"[{items}]"
            return f"({items},)" if len(value) == 1 else f"({items})"
        return self._object(value)

    def _float(self, value: float) -> str:
        if value != value or value in (float("inf"), float("-inf")):
            return self.module.define("f", f'float("{value}")')
        return repr(value)

    def _object(self, value: object) -> str:
        kind = type(value)
        if kind.__module__ == "torch" and id(value) not in self.module.by_identity:
            if kind.__name__ == "device":
                return self.module.define("d", f'torch.device("{value}")')
            if kind.__name__ in ("dtype", "layout", "memory_format"):
                return self.module.define("t", str(value))
        return self.module.bind(value)

    def prelude(self, name: str) -> str:
        self.used.add(name)
        return name

    def target(self, t: Target) -> str:
        if t.path is None:
            return self.module.bind(t.value, "call")
        return self.module.define("op", t.path)

    # --- lines -----------------------------------------------------------------------------

    def emit(self, text: str) -> None:
        self.body.append("    " * self.depth + text)

    def line(self, line: Line) -> None:
        match line:  # what there is most of first: each case is asked in turn
            case lines.CallExtern(extern):
                self._extern(extern)
            case lines.Allocate(name):
                self.emit(f"{self.name(name)} = {self._allocation(self.buffers[name])}")
            case lines.CallKernel(kernel, buffers, ints):
                self._call(kernel, buffers, ints)
            case lines.CallSegment(name):
                self._call(name, line.buffers(), line.ints())
            case lines.Comment(text):
                for part in text.splitlines():
                    self.emit(f"# {part}")
            case lines.BindSize(symbol, arg, dim):
                self._bind(symbol, arg, dim)
            case lines.Workspace(name, nbytes, device):
                self._workspace(name, nbytes, device)
            case lines.Place(name, owner, offset):
                self.owner[name] = (owner, offset)
            case lines.View(name, owner, offset):
                self._view(name, owner, offset)
            case lines.Reuse(new, old):
                self._reuse(new, old)
            case lines.Align(name, ref):
                self.emit(f"{self.name(name)} = {self.prelude('aligned')}({self.ref(ref)})")
            case lines.CheckCall(extern, handed):
                self._check_call(extern, handed)
            case lines.Probe(step, after, buffers, numbers):
                places = [holder(b, self.owner) for b in buffers]
                shown = [f"({self.name(owner)}, {offset})" for owner, offset in places]
                self.emit(f"{PROBE}({step}, {after}, [{', '.join(shown)}], {self.sizes(numbers)})")
            case lines.Look():
                given = ", ".join(self.value(v) for v in line.given())
                self.emit(f"{self.prelude('look')}({given})")
            case lines.EnterDevice(device):
                index = device.partition(":")[2] or "0"
                self.emit(f"with torch.cuda.device({index}):")
                self.depth += 1
            case lines.LeaveDevice():
                self.depth -= 1
            case lines.Return(outputs):
                self.emit(f"return {self.value(tuple(outputs))}")
            case lines.Free():
                raise AssertionError("frees are printed together")

    def _bind(self, symbol: Expr, arg: int, dim: int | None) -> None:
        source = self.name(self.host.inputs[arg])
        target = self.name(str(symbol))
        text = source if dim is None else f"{source}.shape[{dim}]"
        if text != target:
            self.emit(f"{target} = {text}")

    def _allocation(self, b: Buffer) -> str:
        sizes, strides = self.sizes(b.shape), self.sizes(b.strides)
        dtype = self.module.dtype(b.dtype)
        if not b.device.startswith("cpu"):
            device = self.module.define("d", f'torch.device("{b.device}")')
            empty = self.module.define("empty", "torch.empty_strided")
            return f"{empty}({sizes}, {strides}, dtype={dtype}, device={device})"
        large = size_hint(byte_size(b)) >= LARGE_BYTES
        empty = self.prelude("empty_large" if large else "empty_strided")
        return f"{empty}({sizes}, {strides}, {dtype})"

    def _workspace(self, name: str, nbytes: int, device: str) -> None:
        if device.startswith("cpu"):
            text = f"{self.prelude('workspace')}({nbytes})"
        else:
            where = self.module.define("d", f'torch.device("{device}")')
            text = f"torch.empty({nbytes}, dtype={self.module.dtype(U8)}, device={where})"
        self.emit(f"{self.name(name)} = {text}")
        pointer = self.name(f"{name}.ptr")
        self.emit(f"{pointer} = {self.name(name)}.data_ptr()")
        self.pointer[name] = pointer

    def _view(self, name: str, owner: str, offset: int) -> None:
        b = self.buffers[name]
        own = self.buffers.get(owner)
        base = self.name(owner)
        if own is None or own.dtype is not b.dtype:
            typed = self.name(f"{owner}.{b.dtype.name}")
            if typed not in self.typed.setdefault(owner, []):
                self.typed[owner].append(typed)
                retype = self.prelude("retype")
                self.emit(f"{typed} = {retype}({base}, {self.module.dtype(b.dtype)})")
            base = typed
        sizes, strides = self.sizes(b.shape), self.sizes(b.strides)
        view = self.prelude("reinterpret")
        self.emit(
            f"{self.name(name)} = {view}({base}, {sizes}, {strides}, {offset // b.dtype.bytes})"
        )

    def _reuse(self, new: str, old: str) -> None:
        a, b = self.buffers[new], self.buffers[old]
        if (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides):
            text = self.name(old)
        else:
            base = self.name(old)
            if a.dtype is not b.dtype:
                base = f"{base}.view({self.module.dtype(a.dtype)})"
            view = self.prelude("reinterpret")
            text = f"{view}({base}, {self.sizes(a.shape)}, {self.sizes(a.strides)}, 0)"
        self.emit(f"{self.name(new)} = {text}")
        self.emit(f"del {self.name(old)}")
        self.owner[old] = (new, 0)

    def _pointer(self, owner: str) -> str:
        """The address of a tensor; one that comes from elsewhere may have no memory behind it."""
        name = self.name(owner)
        address = f"{name}.data_ptr()"
        if self.buffers[owner].kind in ("input", "extern", "opaque"):
            return f"({address} or ({name} := {self.prelude('in_memory')}({name})).data_ptr())"
        return address

    def _call(self, name: str, buffers: Iterable[str], ints: Iterable[Expr]) -> None:
        buffers = tuple(buffers)
        values = taken_by_value(buffers, self.buffers)
        places = [holder(b, self.owner) for b in buffers]
        owners = [owner for owner, _ in places]
        pointers = dict(self.pointer)
        for owner in dict.fromkeys(owners):
            if owner in pointers:
                continue
            pointers[owner] = self._pointer(owner)
            if owners.count(owner) > 1:
                local = self.name(f"{owner}.ptr")
                self.emit(f"{local} = {pointers[owner]}")
                pointers[owner] = local
        args = [pointers[o] + (f" + {offset}" if offset else "") for o, offset in places]
        for i, by_value in enumerate(values):
            if by_value:
                args[i] = f"{self.name(owners[i])}.item()"
        args += [self.expr(e) for e in ints]
        self.emit(f"{name}({', '.join(args)})")

    def _extern(self, e: Extern) -> None:
        args = [self.value(a) for a in e.args]
        args += [f"{k}={self.value(v)}" for k, v in e.kwargs]
        if e.out_variant:
            self._extern_out(e, args)
            return
        if e.is_assertion:
            self._assert(*args)
            return
        call = number_text(e.target, args)
        if call is None:
            call = f"{self.target(plain_target(e))}({', '.join(args)})"
        results = [None if o is None else self.name(o) for o in e.outputs]
        for position, number in e.symbols:
            results += [None] * (position + 1 - len(results))
            results[position] = self.name(number_name(number))
        if not any(results):
            self.emit(call)
        elif e.single:
            self.emit(f"{results[0]} = {call}")
        else:
            left = ", ".join(r or "_" for r in results) + ("," if len(results) == 1 else "")
            self.emit(f"{left} = {call}")
        self._sizes_of(e)
        self.unchecked += [o for o in e.outputs if o is not None]
        waiting, self.unchecked = self.unchecked, []
        for output in waiting:
            layout = (*self.buffers[output].shape, *self.buffers[output].strides)
            if any(str(s) in self.late for x in layout for s in x.free):
                self.unchecked.append(output)
            else:
                self._check_strides(output)

    def _check_call(self, e: Extern, handed: Handed) -> None:
        texts = []
        for t in handed.tensors:
            strides = ", ".join("None" if s is None else self.expr(s) for s in t.strides)
            device = self.module.define("d", f'torch.device("{t.device}")')
            alignment = ALIGNED if t.aligned else 1
            dtype = self.module.define("t", str(t.dtype))
            layout = f"({strides},)" if t.strides else "()"
            value = self.ref(t.ref)
            texts.append(f"({t.node!r}, {value}, {dtype}, {device}, {layout}, {alignment})")
        check = self.prelude("check_call")
        head = f"{e.target_name!r}, {e.origins!r}, {handed.stack!r}"
        self.emit(f"{check}({head}, {', '.join(texts)})")

    def _sizes_of(self, e: Extern) -> None:
        """Take numbers from the sizes of results, and check those that must be as they say."""
        for symbol, position, dim in e.sizes:
            output = e.outputs[position]
            assert output is not None
            self.emit(f"{self.name(str(symbol))} = {self.name(output)}.shape[{dim}]")
        self.late.difference_update(made_numbers(e))
        for expected, position, dim in e.checks:
            output = e.outputs[position]
            assert output is not None
            text, size = self.expr(expected), f"{self.name(output)}.shape[{dim}]"
            message = f"Runtime assertion failed: size {dim} of {e.target_name} is not {expected}"
            self.emit(f"if {size} != {text}:")
            self.emit(f"    raise RuntimeError({message!r})")

    def _assert(self, condition: str, message: str) -> None:
        self.emit(f"if not {condition}:")
        self.emit(f"    raise RuntimeError({message})")

    def _extern_out(self, e: Extern, args: list[str]) -> None:
        outputs = [self.name(o) for o in e.outputs if o is not None]
        target = out_target(e)
        if target is not None:
            if e.part is None:
                args += [f"{k}={o}" for k, o in zip(target.out, outputs, strict=True)]
            self.emit(f"{self.target(target)}({', '.join(args)})")
            return
        call = f"{self.target(plain_target(e))}({', '.join(args)})"
        if e.single:
            self.emit(f"{outputs[0]}.copy_({call})")
            return
        results = [None if o is None else f"r{i}_{self.name(o)}" for i, o in enumerate(e.outputs)]
        self.emit(f"{', '.join(r or '_' for r in results)} = {call}")
        for output, result in zip(e.outputs, results, strict=True):
            if output is not None:
                self.emit(f"{self.name(output)}.copy_({result})")
        self.emit(f"del {', '.join(r for r in results if r)}")

    def _check_strides(self, output: str) -> None:
        """Kernels read a result by the strides and type that its meta function promised."""
        b = self.buffers[output]
        if b.alias is not None or output not in self.by_strides:
            return
        name, sizes, strides = self.name(output), self.sizes(b.shape), self.sizes(b.strides)
        dtype = self.module.dtype(b.dtype)
        self.emit(f"if {name}.stride() != {strides} or {name}.dtype is not {dtype}:")
        empty = self.module.define("empty", "torch.empty_strided")
        like = f"{empty}({sizes}, {strides}, dtype={dtype}, device={name}.device)"
        self.emit(f"    {name} = {like}.copy_({name})")

    @cached_property
    def by_strides(self) -> frozenset[str]:
        """Buffers that a kernel reads or that someone reinterprets."""
        return looked_into(self.host)

    # --- the module ------------------------------------------------------------------------

    def run(self) -> HostSource:
        inputs = [self.name(i) for i in self.host.inputs]
        if inputs:
            self.emit(f"{', '.join(inputs)}{',' if len(inputs) == 1 else ''} = args")
        self.emit("args.clear()")
        dead: list[str] = []
        for line in self.host.lines:
            if isinstance(line, lines.Free):
                dead += [self.name(line.buffer), *self.typed.get(line.buffer, ())]
                continue
            if dead and not isinstance(line, lines.Return):  # what is left dies with the frame
                self.emit(f"del {', '.join(dead)}")
            dead = []
            self.line(line)
        return HostSource(self._text(), self.module.values, self.segments, self.kernels)

    def _text(self) -> str:
        body = "\n".join(self.body)
        head = ["import torch"]
        used = ", ".join(n for n in PRELUDE if n in self.used)
        head += [f"from litz.runtime.prelude import {used}"] if used else []
        head.append("")
        head += [f"{name} = {text}" for text, name in self.module.names.items()]
        return "\n".join([*head, "", "", "def call(args):", body, ""])


def print_host(host: HostProgram) -> HostSource:
    """The Python module of a host program; the same program gives the same bytes everywhere.

    An extern's result whose strides are not those that the program was compiled for is copied,
    where a kernel or a view depends on them.
    """
    return _Printer(host).run()
