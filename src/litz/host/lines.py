"""The host program: what happens between kernels, as typed lines of data.

Lines say nothing of a target language; ``litz.host.python`` prints them.  Names of buffers refer to
``HostProgram.buffers``.  Memory plans are rewrites of lines (``litz.host.memory``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from itertools import chain

from litz.dataclass import dataclass
from litz.index import Expr
from litz.ir.program import Buffer, Extern, TensorRef, root_of
from litz.ir.text import ValuePrinter, buffer_text, extern_text
from litz.lowering.bindings import Handed


class Line:
    """A line of a host program."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Comment(Line):
    """A remark in the printed source."""

    text: str


@dataclass(frozen=True, slots=True)
class BindSize(Line):
    """``symbol`` is the size of dimension ``dim`` of argument ``arg``, or the argument itself."""

    symbol: Expr
    arg: int
    dim: int | None


@dataclass(frozen=True, slots=True)
class Allocate(Line):
    """Fresh memory for ``buffer``."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Reuse(Line):
    """``new`` takes over the memory of ``old``, which is dead: of the same size in bytes."""

    new: str
    old: str


@dataclass(frozen=True, slots=True)
class Workspace(Line):
    """Scratch memory of ``nbytes`` bytes that several buffers share (see ``Place``)."""

    name: str
    nbytes: int
    device: str


@dataclass(frozen=True, slots=True)
class Place(Line):
    """``buffer`` lies ``offset`` bytes into the memory of ``owner``; only kernels ever see it.

    owner: a workspace, or a buffer whose own life begins later.
    """

    buffer: str
    owner: str
    offset: int


@dataclass(frozen=True, slots=True)
class View(Line):
    """``buffer`` is a tensor ``offset`` bytes into the memory of ``owner`` (see ``Place``)."""

    buffer: str
    owner: str
    offset: int


@dataclass(frozen=True, slots=True)
class Align(Line):
    """``buffer`` is what ``ref`` views, or a copy if that begins at no multiple of 16 bytes."""

    buffer: str
    ref: TensorRef


@dataclass(frozen=True, slots=True)
class Free(Line):
    """The last use of a buffer, input or workspace has passed."""

    buffer: str


@dataclass(frozen=True, slots=True)
class CallKernel(Line):
    """A call of a generated kernel.

    buffers: pointer arguments; ints: integer arguments, in the kernel's order.
    group: the fused group that the kernel computes.
    temporaries: the last of the buffers, whose contents nobody needs before or after.
    """

    kernel: str
    buffers: tuple[str, ...]
    ints: tuple[Expr, ...] = ()
    group: str = ""
    temporaries: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class CallSegment(Line):
    """Kernel calls that run as one native call, in order."""

    name: str
    calls: tuple[CallKernel, ...]

    def buffers(self) -> tuple[str, ...]:
        """The buffers of all calls, each once, in order of first use."""
        return tuple({b: None for c in self.calls for b in c.buffers})

    def ints(self) -> tuple[Expr, ...]:
        """The integers of all calls, each once, in order of first use."""
        return tuple({e: None for c in self.calls for e in c.ints})


@dataclass(frozen=True, slots=True)
class CallExtern(Line):
    """A call of an operator; its outputs are bound, or written into memory allocated before."""

    extern: Extern


@dataclass(frozen=True, slots=True)
class CheckCall(Line):
    """A look at what the next operator is handed: it must be as the graph's metadata has it."""

    extern: Extern
    handed: Handed


@dataclass(frozen=True, slots=True)
class Probe(Line):
    """Shows buffers to the checker of a run, before or after number ``step`` of its calls.

    numbers: integers that the call has made.
    """

    step: int
    after: bool
    buffers: tuple[str, ...]
    numbers: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Look(Line):
    """A look at tensors before or after a step (``litz.runtime.looking.look``, whose arguments
    these are)."""

    step: int
    after: bool
    kernel: str
    nodes: tuple[str, ...]
    line: str
    how: str
    folder: str
    names: tuple[str, ...] = ()
    refs: tuple[TensorRef, ...] = ()

    def given(self) -> tuple[object, ...]:
        """The arguments, tensors last."""
        head = (self.step, self.after, self.kernel, self.nodes, self.line, self.how, self.folder)
        return (*head, self.names, *self.refs)


@dataclass(frozen=True, slots=True)
class EnterDevice(Line):
    """Make ``device`` current up to the matching ``LeaveDevice``."""

    device: str


@dataclass(frozen=True, slots=True)
class LeaveDevice(Line):
    """End of what ``EnterDevice`` began."""

    device: str


@dataclass(frozen=True, slots=True)
class Return(Line):
    """The end: views, integer expressions, Python scalars and None."""

    outputs: tuple[object, ...]


def calls_of(line: Line) -> tuple[CallKernel | CallExtern, ...]:
    """What a line calls, in order; the host's own arithmetic is no call."""
    if isinstance(line, CallSegment):
        return line.calls
    if isinstance(line, CallExtern) and (line.extern.is_number or line.extern.is_assertion):
        return ()
    return (line,) if isinstance(line, CallKernel | CallExtern) else ()


@dataclass(frozen=True)
class HostProgram:
    """A whole host program.

    inputs: argument names in order (a buffer, or a symbol's name).
    constants: opaque Python values that extern calls take, by name.
    strided: ``litz.host.aliasing.looked_into``, once somebody has asked.
    """

    inputs: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    lines: tuple[Line, ...]
    constants: Mapping[str, object] = field(default_factory=dict)
    strided: frozenset[str] | None = field(default=None, init=False, compare=False, repr=False)

    def with_lines(self, lines: tuple[Line, ...] | list[Line]) -> HostProgram:
        return replace(self, lines=tuple(lines))

    def kernel_calls(self) -> Iterator[CallKernel]:
        """Every kernel call in order, those inside segments too."""
        return (c for c in self.calls() if isinstance(c, CallKernel))

    def calls(self) -> Iterator[CallKernel | CallExtern]:
        """What is called, in order, in segments too; the host's own arithmetic is none."""
        return chain.from_iterable(map(calls_of, self.lines))

    def segments(self) -> tuple[CallSegment, ...]:
        return tuple(line for line in self.lines if isinstance(line, CallSegment))

    def root(self, buffer: str) -> str:
        """The buffer that owns the memory of ``buffer``, by the aliases of the program."""
        return root_of(self.buffers, buffer)


def _call_text(c: CallKernel) -> str:
    return f"{c.kernel}({', '.join([*c.buffers, *map(str, c.ints)])})"


def line_text(line: Line, values: ValuePrinter) -> str:
    """One line as text."""
    match line:
        case Comment(text):
            return f"# {text}"
        case BindSize(symbol, arg, dim):
            return f"bind {symbol} = {arg}" + ("" if dim is None else f".{dim}")
        case Allocate(name):
            buffer = values.buffers.get(name)
            return f"allocate {name if buffer is None else buffer_text(buffer)}"
        case Reuse(new, old):
            return f"reuse {new} = {old}"
        case Workspace(name, nbytes, device):
            return f"workspace {name}: {nbytes} bytes @{device}"
        case Place(name, owner, offset):
            return f"place {name} = {owner}+{offset}"
        case View(name, owner, offset):
            buffer = values.buffers.get(name)
            return f"view {name if buffer is None else buffer_text(buffer)} = {owner}+{offset}"
        case Align(name, ref):
            return f"align {name} = {values(ref)}"
        case Free(name):
            return f"free {name}"
        case CallKernel():
            return f"kernel {_call_text(line)}"
        case CallSegment(name, calls):
            return "\n".join([f"segment {name} {{", *(f"  {_call_text(c)}" for c in calls), "}"])
        case CallExtern(extern):
            return extern_text(extern, values)
        case CheckCall(extern, handed):
            return f"check {extern.target_name}({', '.join(t.node for t in handed.tensors)})"
        case Probe(step, after, buffers, _):
            return f"probe {'after' if after else 'before'} {step}: {', '.join(buffers)}"
        case Look():
            when = "after" if line.after else "before"
            return f"look {when} {line.step} {line.kernel}: {', '.join(line.names)}"
        case EnterDevice(device):
            return f"enter {device}"
        case LeaveDevice(device):
            return f"leave {device}"
        case Return(outputs):
            return f"return {values(outputs)}"
    raise AssertionError(line)


def host_text(p: HostProgram) -> str:
    """The host program as text, for people and for tests."""
    values = ValuePrinter(p.buffers, p.constants)
    lines = "\n".join(line_text(line, values) for line in p.lines)
    body = "\n".join("  " + line for line in lines.split("\n"))
    return f"host({', '.join(p.inputs)}) {{\n{body}\n}}"
