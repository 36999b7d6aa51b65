"""From a schedule to host lines: allocate as late as possible, free after the last use.

Segments and shared memory come after, as rewrites (``litz.host.segment``, ``litz.host.memory``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from litz.host.aliasing import touched
from litz.host.lines import (
    Allocate,
    BindSize,
    CallExtern,
    CallKernel,
    EnterDevice,
    Free,
    HostProgram,
    LeaveDevice,
    Line,
    Return,
)
from litz.index import Expr
from litz.ir.program import Buffer, Extern, Nest, Program
from litz.lowering.values import exprs
from litz.runtime.collectives import is_start, is_wait
from litz.schedule.groups import Schedule, Step


def plan(schedule: Schedule, kernels: Mapping[str, CallKernel]) -> HostProgram:
    """Host lines of a schedule, one kernel call a step that starts one.

    kernels: the call of each group that starts a kernel, by the group's name.
    """
    program = schedule.program
    temporaries = {b.name: b for call in kernels.values() for b in call.temporaries}
    buffers = {**program.buffers, **temporaries}
    steps = schedule.started
    used = _until_waited(program, steps, [_used(step, kernels) for step in steps])
    dying = _dying(program, used)
    lines: list[Line] = []
    allocated: set[str] = set()
    device = "cpu"
    guarded = not all(map(_guards_itself, steps))
    for i, step in enumerate(steps):
        if guarded and _needs_guard(step.device) and step.device != device:
            lines += [LeaveDevice(device)] if _needs_guard(device) else []
            lines.append(EnterDevice(step.device))
            device = step.device
        for name in _to_allocate(step, used[i], buffers):
            if name not in allocated:
                allocated.add(name)
                lines.append(Allocate(name))
        lines.append(CallExtern(step) if isinstance(step, Extern) else kernels[step.name])
        lines += [Free(name) for name in dying[i]]
    if _needs_guard(device):
        lines.append(LeaveDevice(device))
    lines.append(Return(program.outputs))
    unused = [Free(name) for name in dying[-1]]
    head = [*_binds(program, lines, buffers), *unused]
    return HostProgram(program.inputs, buffers, (*head, *lines), constants=program.constants)


def _needs_guard(device: str) -> bool:
    return not device.startswith(("cpu", "meta"))


def _guards_itself(step: Step) -> bool:
    """Whether a step enters its device by itself, as ATen's operators do."""
    return isinstance(step, Extern) and getattr(step.target, "namespace", "") == "aten"


def _used(step: Step, kernels: Mapping[str, CallKernel]) -> tuple[str, ...]:
    """The buffers that a step uses, each once, in a fixed order."""
    if isinstance(step, Nest):
        return tuple(dict.fromkeys(kernels[step.name].buffers))
    return touched(step)


def _until_waited(
    program: Program, steps: Sequence[Step], used: list[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """What steps use, where asynchronous collectives use their arguments until they are waited for.

    One that nobody waits for uses them to the end.
    """
    under_way: dict[str, tuple[str, ...]] = {}  # by the roots of results
    out = list(used)
    for i, step in enumerate(steps):
        if not isinstance(step, Extern):
            continue
        if is_wait(step.target):
            for name in used[i]:
                out[i] += under_way.pop(program.root(name), ())
        elif is_start(step.target):
            made = [program.root(name) for name in step.outputs if name is not None]
            under_way.update(dict.fromkeys(made, step.read_buffers()))
    if out:
        out[-1] += tuple(name for names in under_way.values() for name in names)
    return [tuple(dict.fromkeys(names)) for names in out]


def _to_allocate(step: Step, used: Iterable[str], buffers: Mapping[str, Buffer]) -> Iterable[str]:
    # Of a call, what it writes into memory that is there already.
    out = () if isinstance(step, Nest) or not step.out_variant else step.outputs
    names = used if isinstance(step, Nest) else (o for o in out if o is not None)
    return (n for n in names if buffers[n].kind == "temp")


def _dying(program: Program, used: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """For each step the buffers whose last use it is; the last entry: inputs that nothing uses.

    A tensor keeps its own memory, so that an alias needs no care here, only where memory is reused.
    """
    last: dict[str, int] = {n: -1 for n in program.inputs if n in program.buffers}
    for i, names in enumerate(used):
        for name in names:
            last[name] = i
    for name in {r.buffer: None for r in program.output_refs()}:
        last.pop(name, None)
    for name in program.constants:  # they belong to the program and outlive the call
        last.pop(name, None)
    dying: list[list[str]] = [[] for _ in range(len(used) + 1)]
    for name, i in last.items():
        dying[i].append(name)
    return [tuple(d) for d in dying]


def _binds(program: Program, lines: Iterable[Line], buffers: Mapping[str, Buffer]) -> list[Line]:
    """A binding of each size symbol that some line needs."""
    if not program.symbols:
        return []
    needed: dict[Expr, None] = {}
    for line in lines:
        for e in line_exprs(line, buffers):
            for s in e.free:
                needed[s] = None
    bound: dict[Expr, BindSize] = {}
    for symbol, arg, dim in program.symbols:
        if symbol in needed:
            known = bound.get(symbol)
            # An integer argument is there already; a size costs a call.
            if known is None or (dim is None and known.dim is not None):
                bound[symbol] = BindSize(symbol, arg, dim)
    return list(bound.values())


def line_exprs(line: Line, buffers: Mapping[str, Buffer]) -> Iterable[Expr]:
    """The index expressions that running a line evaluates."""
    match line:
        case Allocate(name):
            b = buffers[name]
            return (*b.shape, *b.strides)
        case CallKernel(ints=ints):
            return ints
        case CallExtern(extern):
            args = (*extern.args, *(v for _, v in extern.kwargs))
            made = [buffers[o] for o in extern.outputs if o is not None]
            layouts = [e for b in made for e in (*b.shape, *b.strides)]
            return (*exprs(args), *layouts, *(e for e, _, _ in extern.checks))
        case Return(outputs):
            return tuple(exprs(outputs))
    return ()
