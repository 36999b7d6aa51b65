"""Stand-ins for what a host program calls: kernels that interpret bodies on raw memory, and an
allocator that poisons what is freed."""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from collections.abc import Mapping, Sequence

import torch

from litz.host.lines import CallSegment, HostProgram
from litz.host.sizes import byte_size
from litz.index import Expr, const, evaluate
from litz.ir.body import Const, Index, Load, Masked, Node, Op, Reduce, Store, walk
from litz.ir.program import Buffer
from litz.schedule.groups import Group

C_TYPES = {
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    "i64": ctypes.c_int64,
    "bool": ctypes.c_bool,
}
POISON = 0xAB


class Arena:
    """Memory that is never unmapped: a stale pointer reads poison instead of crashing."""

    def __init__(self, size: int = 1 << 20) -> None:
        self.memory = (ctypes.c_uint8 * size)()
        self.next = -(-ctypes.addressof(self.memory) // 64) * 64
        self.end = ctypes.addressof(self.memory) + size
        self.live = self.peak = 0

    def take(self, nbytes: int) -> ctypes.Array[ctypes.c_uint8]:
        address = self.next
        self.next += -(-max(nbytes, 1) // 64) * 64
        assert self.next <= self.end, "the arena is too small"
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        ctypes.memset(address, POISON, nbytes)
        block = (ctypes.c_uint8 * max(nbytes, 1)).from_address(address)
        weakref.finalize(block, self.give_back, address, nbytes)
        return block

    def give_back(self, address: int, nbytes: int) -> None:
        self.live -= nbytes
        ctypes.memset(address, POISON, nbytes)

    def workspace(self, nbytes: int) -> torch.Tensor:
        return torch.frombuffer(self.take(nbytes), dtype=torch.uint8)

    def empty_strided(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        elements = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        elements = 0 if 0 in size else elements
        flat = torch.frombuffer(self.take(elements * dtype.itemsize), dtype=torch.uint8)
        whole = flat[: elements * dtype.itemsize].view(dtype)
        return torch.as_strided(whole, size, stride)


def prelude(arena: Arena) -> dict[str, object]:
    return {
        "empty_strided": arena.empty_strided,
        "empty_large": arena.empty_strided,
        "workspace": arena.workspace,
    }


_OPS = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b, "maximum": max, "neg": lambda a: -a}


class Interpreter:
    """Runs the stores of a group, as a kernel might: per point all loads before any store."""

    def __init__(self, group: Group, buffers: Mapping[str, Buffer]) -> None:
        self.group, self.buffers = group, buffers

    def run(self, pointers: Mapping[str, int], sizes: Mapping[Expr, int]) -> None:
        g = self.group
        inner = [
            s for s in g.stores if any(v in g.reduce_axes for v in (*s.index.free, *s.value.vars))
        ]
        outer = [s for s in g.stores if s not in inner]
        for point in self.points(g.axes, sizes):
            env = {**sizes, **point}
            reduced = self.reductions(pointers, env)
            values = [(s, self.value(s.value, pointers, env, reduced)) for s in outer]
            for below in self.points(g.reduce_axes, sizes) if inner else ():
                full = {**env, **below}
                found = [(s, self.value(s.value, pointers, full, reduced)) for s in inner]
                for s, v in found:
                    self.store(s, v, pointers, full)
            for s, v in values:
                self.store(s, v, pointers, env)

    def points(self, axes: Sequence[Expr], sizes: Mapping[Expr, int]):
        ranges = [range(evaluate(a.extent, sizes)) for a in axes]  # type: ignore[attr-defined]
        for values in itertools.product(*ranges):
            yield dict(zip(axes, values, strict=True))

    def reductions(self, pointers: Mapping[str, int], env: dict[Expr, int]) -> dict[Node, float]:
        done: dict[Node, float] = {}
        for n in walk(r for s in self.group.stores for r in s.roots()):
            if isinstance(n, Reduce):
                assert n.kind in ("sum", "max")
                values = [
                    self.value(n.args[0], pointers, {**env, **p}, done)
                    for p in self.points(n.axes, env)
                ]
                done[n] = math.fsum(values) if n.kind == "sum" else max(values)
        return done

    def value(
        self,
        n: Node,
        pointers: Mapping[str, int],
        env: Mapping[Expr, int],
        done: Mapping[Node, float],
    ) -> float:
        if n in done:
            return done[n]
        if isinstance(n, Load):
            assert not n.indirect
            return self.cell(n.buffer, n.index, pointers, env)[0]
        if isinstance(n, Const):
            return n.value
        if isinstance(n, Index):
            return evaluate(n.expr, env)
        args = [self.value(a, pointers, env, done) for a in n.args]
        if isinstance(n, Masked):
            return args[1] if args[0] else args[2]
        assert isinstance(n, Op)
        return _OPS[n.name](*args)

    def cell(self, buffer: str, index: Expr, pointers: Mapping[str, int], env: Mapping[Expr, int]):
        kind = C_TYPES[self.buffers[buffer].dtype.name]
        offset = evaluate(index, env)
        return (kind * 1).from_address(pointers[buffer] + offset * ctypes.sizeof(kind))

    def store(
        self, s: Store, v: float, pointers: Mapping[str, int], env: Mapping[Expr, int]
    ) -> None:
        assert s.mode == "set" and s.mask is None
        self.cell(s.buffer, s.index, pointers, env)[0] = v


def natives(host: HostProgram, groups: Mapping[str, Group]) -> dict[str, object]:
    """Doubles for the segments and loose kernels of a host program."""

    def kernel(call, buffers, ints):
        def run(*args: int) -> None:
            assert len(args) == len(buffers) + len(ints)
            assert all(type(a) is int for a in args)
            pointers = dict(zip(buffers, args, strict=False))
            sizes = dict(zip(ints, args[len(buffers) :], strict=True))
            for c in call:
                for t in c.temporaries:
                    nbytes = evaluate(byte_size(t), sizes)
                    ctypes.memset(pointers[t.name], POISON, nbytes)
                Interpreter(groups[c.group], host.buffers).run(pointers, sizes)

        return run

    found = {}
    for line in host.lines:
        if isinstance(line, CallSegment):
            found[line.name] = kernel(line.calls, line.buffers(), line.ints())
    for call in host.kernel_calls():
        found.setdefault(call.kernel, kernel((call,), call.buffers, call.ints))
    return found


def constant(value: int) -> Expr:
    return const(value)
