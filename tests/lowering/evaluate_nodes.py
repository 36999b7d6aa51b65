"""The meaning of loop nests in torch: a broadcast tensor a node, a dimension a loop variable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from litz.index import Expr
from litz.index import expr as ix
from litz.ir import body
from litz.ir.program import HostFloat, Loops, Program, Template, TensorRef
from litz.lowering.torch_types import to_torch

Tensor = torch.Tensor
Value = Any  # an int or an integer tensor

POISON = {torch.bool: True, torch.uint8: 0xA5}


def evaluate_index(e: Expr, env: Mapping[Expr, Value]) -> Value:
    """An index expression on integer tensors (or ints)."""
    if e in env:
        return env[e]
    if isinstance(e, ix.Const):
        return e.value
    parts = [evaluate_index(c, env) for c in e.children()]
    if isinstance(e, ix.Sum):
        total: Value = e.const
        for (_, coef), p in zip(e.terms, parts, strict=True):
            total = total + coef * p
        return total
    if isinstance(e, ix.Product):
        out: Value = 1
        for p in parts:
            out = out * p
        return out
    if isinstance(e, ix.FloorDiv):
        return parts[0] // parts[1]
    if isinstance(e, ix.Mod):
        return parts[0] % parts[1]
    if isinstance(e, ix.Min | ix.Max):
        pick = torch.minimum if isinstance(e, ix.Min) else torch.maximum
        first = torch.as_tensor(parts[0])
        for p in parts[1:]:
            first = pick(first, torch.as_tensor(p))
        return first
    return _evaluate_logic(e, parts)


def _evaluate_logic(e: Expr, parts: Sequence[Value]) -> Value:
    if isinstance(e, ix.Cmp):
        a, b = (torch.as_tensor(p) for p in parts)
        compare = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le}[e.op]
        return compare(a, b).to(torch.int64)
    truths = [torch.as_tensor(p) != 0 for p in parts]
    if isinstance(e, ix.Not):
        return (~truths[0]).to(torch.int64)
    if isinstance(e, ix.And | ix.Or):
        out = truths[0]
        for t in truths[1:]:
            out = out & t if isinstance(e, ix.And) else out | t
        return out.to(torch.int64)
    raise NotImplementedError(f"index expression {type(e).__name__}: {e}")


# --- memory --------------------------------------------------------------------------------------


def size_of(e: Expr, sizes: Mapping[Expr, int]) -> int:
    """A size expression as a number."""
    return int(evaluate_index(e, sizes))


@dataclass
class Memory:
    """The tensors behind a program's buffers, and the values of its size symbols."""

    program: Program
    tensors: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[Expr, int] = field(default_factory=dict)
    floats: dict[HostFloat, float] = field(default_factory=dict)

    def bind(self, name: str, value: Tensor) -> None:
        self.tensors[name] = value.detach()

    def size(self, e: Expr) -> int:
        return size_of(e, self.sizes)

    def whole(self, name: str) -> Tensor:
        """The tensor of a buffer; a temporary is made, full of poison, when first wanted."""
        if name not in self.tensors:
            buf = self.program.buffers[name]
            assert buf.kind == "temp", f"{name} ({buf.kind}) is used before it exists"
            shape, strides = ([self.size(e) for e in es] for es in (buf.shape, buf.strides))
            t = torch.empty_strided(shape, strides, dtype=to_torch(buf.dtype))
            span = 1 + sum((s - 1) * st for s, st in zip(shape, strides, strict=True))
            if 0 not in shape:
                poison = float("nan") if t.is_floating_point() else POISON.get(t.dtype, 0x5A)
                t.as_strided((span,), (1,), 0).fill_(poison)
            self.tensors[name] = t
        return self.tensors[name]

    def flat(self, name: str) -> Tensor:
        """All elements from the buffer's first one on, as a 1-d tensor on the same memory."""
        t = self.whole(name)
        count = t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()
        return t.as_strided((count,), (1,), t.storage_offset())

    def resolve(self, value: Any) -> Any:
        """An argument or output of the program as a Python value."""
        if isinstance(value, TensorRef):
            if self.program.buffers[value.buffer].kind == "opaque":
                return self.whole(value.buffer)
            t = self.whole(value.buffer)
            if t.dtype != to_torch(value.dtype):
                t = t.view(to_torch(value.dtype))
            shape, strides = ([self.size(e) for e in es] for es in (value.shape, value.strides))
            return t.as_strided(shape, strides, t.storage_offset() + self.size(value.offset))
        if isinstance(value, Expr):
            return self.size(value)
        if isinstance(value, HostFloat):
            return self.floats[value]
        if isinstance(value, tuple | list):
            return [self.resolve(v) for v in value]
        return value


# --- ops -----------------------------------------------------------------------------------------


def _check_index(i: Tensor, size: Tensor) -> Tensor:
    if bool(((i < 0) | (i >= size)).any()):
        raise IndexError("index out of range")
    return i


def _check_divisor(b: Tensor) -> Tensor:
    if bool((b == 0).any()):
        raise RuntimeError("ZeroDivisionError")
    return b


DIRECT = (
    "add sub mul neg abs sign reciprocal sqrt rsqrt maximum minimum fmax fmin fmod eq ne lt le gt "
    "ge where isnan isinf floor ceil trunc round exp exp2 expm1 log log2 log10 log1p sin cos "
    "tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma "
    "sigmoid signbit copysign nextafter hypot pow div"
).split()
TABLE: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in DIRECT},
    "mostly": torch.where,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder,
    "ipow": torch.pow,
    "fma": lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype),
    "and_": torch.bitwise_and,
    "or_": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not_": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "check_index": _check_index,
    "check_divisor": _check_divisor,
}


def _reduce(kind: str, x: Tensor, dims: list[int]) -> Tensor:
    """One reduction with the dimensions kept, computed in float64 and rounded to x's type."""
    if kind in ("argmax", "argmin"):
        rest = [d for d in range(x.ndim) if d not in dims]
        y = x.permute(*rest, *dims).flatten(len(rest)) if dims else x.unsqueeze(-1)
        y = y.to(torch.uint8) if y.dtype == torch.bool else y
        found = (torch.argmax if kind == "argmax" else torch.argmin)(y, dim=-1)
        return found.reshape([1 if d in dims else s for d, s in enumerate(x.shape)])
    if kind in ("max", "min"):
        return (torch.amax if kind == "max" else torch.amin)(x, dims, keepdim=True)
    if kind in ("any", "all"):
        assert x.dtype == torch.bool, f"{kind} of {x.dtype}"
        return (torch.any if kind == "any" else torch.all)(x, dims, keepdim=True)
    wide = x.double() if x.is_floating_point() else x
    if kind == "sum":
        return wide.sum(dims, keepdim=True, dtype=wide.dtype).to(x.dtype)
    if kind == "prod":
        for d in dims:
            wide = wide.prod(d, keepdim=True, dtype=wide.dtype)
        return wide.to(x.dtype)
    mean = wide.mean(dims, keepdim=True)
    if kind == "welford_mean":
        return mean.to(x.dtype)
    assert kind == "welford_m2", kind
    return ((wide - mean) ** 2).sum(dims, keepdim=True).to(x.dtype)


# --- nests ---------------------------------------------------------------------------------------


SCANS: Mapping[str, Callable[..., tuple[Tensor, ...]]] = {
    "sum": lambda a, b: (a + b,),
    "prod": lambda a, b: (a * b,),
    "max": lambda a, b: (torch.maximum(a, b),),
    "min": lambda a, b: (torch.minimum(a, b),),
    "logaddexp": lambda a, b: (torch.logaddexp(a, b),),
    "cummax": lambda a, i, b, j: _later((b >= a) | (b != b), (a, i), (b, j)),
    "cummin": lambda a, i, b, j: _later((b <= a) | (b != b), (a, i), (b, j)),
}


def _later(take: Tensor, a: Sequence[Tensor], b: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.where(take, y, x) for x, y in zip(a, b, strict=True))


def run_scan(
    combine: Callable[..., Any], parts: Sequence[Tensor], start: Sequence[Tensor]
) -> list[Tensor]:
    """The running states along the last dimension, part by part."""
    found = []
    state = tuple(start)
    for i in range(parts[0].shape[-1]):
        now = tuple(p[..., i] for p in parts)
        state = combine(*state, *now) if state else now
        found.append(state)
    return [torch.stack(some, -1) for some in zip(*found, strict=True)]


@dataclass
class Nest:
    """Evaluates the nodes of one nest; dimension k of every value is loop variable k."""

    memory: Memory
    variables: tuple[Expr, ...]
    ops: Mapping[str, Callable[..., Tensor]]
    env: dict[Expr, Value] = field(default_factory=dict)
    # Masks are kept alive by the memo, so that their ids stay distinct.
    memo: dict[tuple[body.Node, int], tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env.update(self.memory.sizes)
        rank = len(self.variables)
        for k, v in enumerate(self.variables):
            assert isinstance(v, ix.Var)
            shape = [1] * rank
            shape[k] = self.memory.size(v.extent)
            self.env[v] = torch.arange(shape[k]).reshape(shape)

    def full(self, value: Value, dtype: torch.dtype) -> Tensor:
        t = value if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
        assert t.dtype == dtype, f"an index of {t.dtype}"
        return t.reshape([1] * len(self.variables)) if t.ndim == 0 else t

    def value(self, node: body.Node, active: Tensor | None) -> Tensor:
        key = (node, id(active))
        if key not in self.memo:
            out = self.compute(node, active)
            want = to_torch(node.dtype)
            assert out.dtype == want, f"{node}: computed {out.dtype}, declared {want}"
            self.memo[key] = (out, active)
        return self.memo[key][0]

    def compute(self, node: body.Node, active: Tensor | None) -> Tensor:
        if isinstance(node, body.Load):
            return self.load(node, active)
        if isinstance(node, body.Const):
            return self.full(node.value, to_torch(node.dtype))
        if isinstance(node, body.Index):
            return self.full(evaluate_index(node.expr, self.env), torch.int64)
        if isinstance(node, body.Masked):
            cond = self.value(node.args[0], active)
            inner = cond if active is None else cond & active
            return torch.where(
                cond, self.value(node.args[1], inner), self.value(node.args[2], active)
            )
        if isinstance(node, body.Reduce):
            x = self.value(node.args[0], active)
            dims = [self.variables.index(a) for a in node.axes]
            sizes = [
                self.memory.size(v.extent) if k in dims else x.shape[k]  # type: ignore[attr-defined]
                for k, v in enumerate(self.variables)
            ]
            return _reduce(node.kind, x.expand(sizes), dims)
        if isinstance(node, body.Scan):
            return self.scan(node, active)
        assert isinstance(node, body.Op)
        return self.apply(node, [self.value(a, active) for a in node.args])

    def apply(self, node: body.Op, args: Sequence[Tensor]) -> Tensor:
        if node.name in self.ops:
            return self.ops[node.name](*args)
        if node.name == "cast":
            return args[0].to(to_torch(node.dtype))
        if node.name == "round_to":
            assert node.param is not None
            return args[0].to(to_torch(node.param)).to(args[0].dtype)
        if node.name == "bitcast":
            return args[0].contiguous().view(to_torch(node.dtype))
        return TABLE[node.name](*args)

    def function(self, combine: Sequence[body.Node], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """A scan's own function of two states."""
        known: dict[body.Node, Tensor] = {}
        for n in body.walk(combine):
            args = [known[a] for a in n.args]
            if isinstance(n, body.Given):
                known[n] = given[n.number]
            elif isinstance(n, body.Const):
                known[n] = torch.tensor(n.value, dtype=to_torch(n.dtype))
            elif isinstance(n, body.Masked):
                known[n] = torch.where(*args)
            else:
                assert isinstance(n, body.Op)
                known[n] = self.apply(n, args)
        return tuple(known[n] for n in combine)

    def scan(self, node: body.Scan, active: Tensor | None) -> Tensor:
        """All running states along the axis, then those at the places that are asked for."""
        k = self.variables.index(node.axis)
        size = self.memory.size(node.axis.extent)  # type: ignore[attr-defined]
        args = [self.value(a, active) for a in node.args]
        shape = list(torch.broadcast_shapes(*(a.shape for a in args)))
        shape[k] = size
        count = len(node.elements)
        parts = [a.expand(shape).movedim(k, -1) for a in args[:count]]
        shape[k] = 1
        start = [a.expand(shape).movedim(k, -1)[..., 0] for a in args[count:]]
        if node.kind == "sort":
            states = [parts[0].sort(-1).values]
        elif node.combine:
            states = run_scan(lambda *s: self.function(node.combine, s), parts, start)
        else:
            states = run_scan(SCANS[node.kind], parts, start)
        found = states[[p.name for p in node.row.state].index(node.part)].movedim(-1, k)
        at = self.full(evaluate_index(node.at, self.env), torch.int64)
        both = torch.broadcast_shapes(at.shape, [1 if i == k else n for i, n in enumerate(shape)])
        wide = [size if i == k else n for i, n in enumerate(both)]
        if at.shape[k] == 1:
            return found.expand(wide).gather(k, at.expand(both))
        return found.expand(wide)

    def indices(self, index: Expr, indirect: Any, active: Tensor | None) -> Tensor:
        env = dict(self.env)
        for sym, n in indirect:
            env[sym] = self.value(n, active)
        return self.full(evaluate_index(index, env), torch.int64)

    def load(self, node: body.Load, active: Tensor | None) -> Tensor:
        flat = self.memory.flat(node.buffer)
        at = self.indices(node.index, node.indirect, active)
        outside = (at < 0) | (at >= flat.numel())
        if active is not None:
            outside = outside & active
        assert not bool(outside.any()), f"{node}: reads outside of {node.buffer}"
        if flat.numel() == 0:
            return torch.zeros(at.shape, dtype=flat.dtype)
        return flat[at.clamp(0, flat.numel() - 1)]


def run_loops(
    nest: Loops | Template, memory: Memory, ops: Mapping[str, Callable[..., Tensor]]
) -> None:
    """Evaluate a nest: all of its values first, then its stores in order."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20000))
    n = Nest(memory, (*nest.axes, *nest.reduce_axes), ops)
    rank = len(nest.axes)
    shape = [memory.size(v.extent) for v in nest.axes]  # type: ignore[attr-defined]
    work = []
    for s in nest.stores:
        parts = [n.indices(s.index, s.indirect, None), n.value(s.value, None)]
        parts.append(torch.ones(()) > 0 if s.mask is None else n.value(s.mask, None))
        for p in parts[:2]:
            assert all(d == 1 for d in p.shape[rank:]), f"{s.buffer}: a reduced variable is free"
        at, value, mask = (
            p.reshape(p.shape[:rank]).expand(shape).reshape(-1) if p.ndim else p for p in parts
        )
        if mask.ndim:
            at, value = at[mask], value[mask]
        work.append((s, at, value))
    for s, at, value in work:
        _store(s, memory.flat(s.buffer), at, value)


def _store(s: body.Store, flat: Tensor, at: Tensor, value: Tensor) -> None:
    assert value.dtype == flat.dtype, f"{s.buffer}: stores {value.dtype} into {flat.dtype}"
    assert not bool(((at < 0) | (at >= flat.numel())).any()), f"writes outside of {s.buffer}"
    if s.mode == "set":
        if not s.indirect and s.mask is None:
            assert at.unique().numel() == at.numel(), f"{s.buffer}: an element is set twice"
        # numpy gives a repeated index the last value, as a serial loop does.
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
        out: Any = flat.view(bits).numpy()
        out[at.numpy()] = value.contiguous().view(bits).numpy()
        return
    if s.mode == "add" and flat.dtype != torch.bool:
        flat.index_put_((at,), value, accumulate=True)
        return
    names = {"add": "amax", "max": "amax", "min": "amin", "mul": "prod"}
    flat.scatter_reduce_(0, at, value, names[s.mode])
