"""Build and run kernels of hand-made plans, and a reference that evaluates plans with torch."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import torch

from litz.index import Expr, Symbol, Var, as_expr, evaluate
from litz.ir.body import Const, Index, Load, Masked, Node, Op, Reduce, Store, walk
from litz.ir.dtype import BY_NAME, DType
from litz.kernel.lanes.choose import choose
from litz.kernel.plan import Dim, KernelPlan, Param
from litz.targets.cpp.render import render, unit

INCLUDE = Path(render.__code__.co_filename).parent / "include"
FLAGS = (
    "-std=c++17 -O2 -fPIC -fopenmp -ffp-contract=off -fno-math-errno -fno-trapping-math "
    "-fno-exceptions -fno-rtti -march=native -DLITZ_GATHERS -Wall -Werror=return-type"
).split()
TORCH = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
LITZ = {v: BY_NAME[k] for k, v in TORCH.items()}
GUARD = 256  # bytes behind a temporary


@lru_cache(maxsize=1)
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="litz-cpp-tests-"))


@cache
def library(source: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    key = hashlib.sha256((source + str(flags)).encode()).hexdigest()[:16]
    cpp, obj, so = (folder() / f"{key}.{e}" for e in ("cpp", "o", "so"))
    cpp.write_text(source)
    done = subprocess.run(
        ["g++", *FLAGS, *flags, f"-I{INCLUDE}", "-c", str(cpp), "-o", str(obj)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000] + "\n" + source
    subprocess.run(["ld", "-shared", str(obj), "-o", str(so)], check=True)
    return ctypes.CDLL(str(so))


def source(plan: KernelPlan, lanes: int = 16) -> str:
    """The source; threads share all work, however little it is."""
    return unit([(plan, render(replace(choose(plan, lanes), grain=1), "kernel"))])


_together: dict[str, ctypes._NamedFuncPointer] = {}


def build_together(plans: Sequence[KernelPlan], lanes: int = 16) -> None:
    """One run of g++ for all, which `check` and `call` find: to start it and to read the headers
    takes as long as a small kernel."""
    drawn = [
        (p, render(replace(choose(p, lanes), grain=1), f"kernel{i}")) for i, p in enumerate(plans)
    ]
    made = library(unit(drawn))
    for i, plan in enumerate(plans):
        _together[source(plan, lanes)] = getattr(made, f"kernel{i}")


def compiled(
    plan: KernelPlan, lanes: int = 16, flags: tuple[str, ...] = ()
) -> ctypes._NamedFuncPointer:
    text = source(plan, lanes)
    return (not flags and _together.get(text)) or library(text, flags).kernel


def call(
    plan: KernelPlan,
    buffers: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] | None = None,
    lanes: int = 16,
    flags: tuple[str, ...] = (),
) -> int:
    """Run the kernel of ``plan`` on flat buffers, in place.

    It must not write beyond its temporaries.
    """
    fn = compiled(plan, lanes, flags)
    known = {s: (sizes or {})[str(s)] for s in plan.ints}
    used = [evaluate(t.size, known) * t.dtype.bytes for t in choose(plan, lanes).temporaries]
    own = [torch.full((n + GUARD,), 0xAB, dtype=torch.uint8) for n in used]
    memory = [*(buffers[p.name] for p in plan.params), *own]
    ptrs = (ctypes.c_void_p * max(len(memory), 1))(*(m.data_ptr() for m in memory))
    ints = (ctypes.c_int64 * max(len(known), 1))(*known.values())
    fault = int(fn(ptrs, ints))
    assert all((m[n:] == 0xAB).all() for m, n in zip(own, used, strict=True))
    return fault


# --- plans --------------------------------------------------------------------------------------


def make_plan(
    parallel: Sequence[Expr],
    reduced: Sequence[Expr],
    stores: Sequence[Store],
    lane: Expr | None,
    tile: Expr | None = None,
    dtypes: Mapping[str, DType] | None = None,
    ints: Sequence[Expr] = (),
) -> KernelPlan:
    """A plan whose params are found from its loads and stores."""
    found: dict[str, DType] = dict(dtypes or {})
    read: set[str] = set()
    for n in walk(r for s in stores for r in s.roots()):
        if isinstance(n, Load):
            found[n.buffer] = n.dtype
            read.add(n.buffer)
    written = {s.buffer for s in stores}
    for s in stores:
        found[s.buffer] = s.value.dtype
        if s.mode != "set":
            read.add(s.buffer)
    params = []
    for name in sorted(found):
        mode = "inout" if name in written and name in read else "out" if name in written else "in"
        params.append(Param(name, found[name], mode))  # type: ignore[arg-type]
    dims = (*(Dim(v, "p") for v in parallel), *(Dim(v, "r") for v in reduced))
    return KernelPlan(dims, tuple(params), tuple(ints), tuple(stores), lane, tile)


# --- the reference ------------------------------------------------------------------------------


class Reference:
    """Evaluates a plan on grids: every node is a tensor over all dims (size 1 where constant)."""

    def __init__(
        self, plan: KernelPlan, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
    ) -> None:
        self.plan = plan
        self.buffers = buffers
        self.dims = [d.var for d in plan.dims]
        self.sizes: dict[Expr, int] = {s: sizes[str(s)] for s in plan.ints}
        self.extents = []
        for v in self.dims:
            assert isinstance(v, Var)
            self.extents.append(evaluate(as_expr(v.extent), self.sizes))
        self.memo: dict[Node, torch.Tensor] = {}

    def grid(self, v: Expr) -> torch.Tensor:
        i = self.dims.index(v)
        shape = [1] * len(self.dims)
        shape[i] = self.extents[i]
        return torch.arange(self.extents[i]).reshape(shape)

    def index(self, e: Expr, data: Mapping[Expr, torch.Tensor]) -> torch.Tensor:
        from litz.index import PYTHON
        from litz.index import render as render_expr

        env: dict[str, object] = {str(s): v for s, v in self.sizes.items()}
        for v in e.free:
            if v in data:
                env[str(v)] = data[v]
            elif isinstance(v, Var):
                env[str(v)] = self.grid(v)
        env["min"] = lambda *a: _fold(torch.minimum, a)
        env["max"] = lambda *a: _fold(torch.maximum, a)
        text = render_expr(e, PYTHON).replace(" and ", " & ").replace(" or ", " | ")
        value = eval(text, {"__builtins__": {}}, env)  # noqa: S307
        return torch.as_tensor(value, dtype=torch.int64)

    def full(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.as_tensor(x)
        return x.reshape([1] * (len(self.dims) - x.dim()) + list(x.shape))

    def value(self, root: Node) -> torch.Tensor:
        for n in walk((root,)):
            if n not in self.memo:
                self.memo[n] = self._value(n)
        return self.memo[root]

    def _value(self, n: Node) -> torch.Tensor:
        args = [self.memo[a] for a in n.args]
        if isinstance(n, Const):
            return self.full(torch.tensor(n.value, dtype=wide(n.dtype)))
        if isinstance(n, Index):
            return self.full(self.index(n.expr, {}))
        if isinstance(n, Load):
            data = {s: a for (s, _), a in zip(n.indirect, args, strict=True)}
            at = self.full(self.index(n.index, data))
            flat = self.buffers[n.buffer]
            # Outside of masks an index is in range; under one, what is out of range is unused.
            return flat[at.clamp(0, max(flat.numel() - 1, 0))].to(wide(n.dtype))
        if isinstance(n, Masked):
            return torch.where(*args)
        if isinstance(n, Reduce):
            return self.reduce(n, args[0])
        assert isinstance(n, Op)
        return apply(n, args)

    def reduce(self, n: Reduce, x: torch.Tensor) -> torch.Tensor:
        axes = [self.dims.index(a) for a in n.axes]
        shape = list(x.shape)
        for a in axes:
            shape[a] = self.extents[a]
        x = x.expand(shape)
        if n.kind in ("argmax", "argmin"):
            kept = [i for i in range(len(shape)) if i not in axes]
            rows = x.permute(*kept, *axes).reshape(*(shape[i] for i in kept), -1)
            out = getattr(torch, n.kind)(rows, -1)
            return out.reshape([1 if i in axes else shape[i] for i in range(len(shape))])
        if n.kind in ("any", "all"):
            for a in axes:
                x = getattr(torch, n.kind)(x, a, keepdim=True)
            return x
        if n.kind == "sum":
            return x.sum(axes, keepdim=True, dtype=x.dtype)
        if n.kind == "prod":
            for a in axes:
                x = x.prod(a, keepdim=True, dtype=x.dtype)
            return x
        if n.kind in ("max", "min"):
            return getattr(torch, "a" + n.kind)(x, axes, keepdim=True)
        mean = x.mean(axes, keepdim=True)
        return mean if n.kind == "welford_mean" else ((x - mean) ** 2).sum(axes, keepdim=True)

    def run(self) -> dict[str, torch.Tensor]:
        """What every written buffer holds afterwards, in the wide type of its elements."""
        out = {
            s.buffer: self.buffers[s.buffer].clone().to(wide(s.value.dtype))
            for s in self.plan.stores
        }
        for s in self.plan.stores:
            data = {sym: self.value(v) for sym, v in s.indirect}
            at, value = self.full(self.index(s.index, data)), self.value(s.value)
            mask = torch.ones((), dtype=torch.bool) if s.mask is None else self.value(s.mask)
            used = set(s.index.free).union(*(n.vars for n in s.roots()))
            full = any(v in used for v in self.plan.reduced)
            shape = [
                size if v in self.plan.parallel or full else 1
                for v, size in zip(self.dims, self.extents, strict=True)
            ]
            at, value, keep = (t.expand(shape).reshape(-1) for t in (at, value, self.full(mask)))
            _scatter(out[s.buffer], at[keep], value[keep], s.mode)
        return out


def _fold(f: object, args: Sequence[object]) -> object:
    out = torch.as_tensor(args[0])
    for a in args[1:]:
        out = f(out, torch.as_tensor(a))  # type: ignore[operator]
    return out


def _scatter(out: torch.Tensor, at: torch.Tensor, value: torch.Tensor, mode: str) -> None:
    if mode == "set":
        for i in range(0, at.numel(), max(at.numel(), 1)):
            out[at[i:]] = value[i:].to(out.dtype)
        return
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    out.scatter_reduce_(0, at, value.to(out.dtype), names[mode])


def wide(dtype: DType) -> torch.dtype:
    return torch.float64 if dtype.is_float else TORCH[dtype.name]


_OPS = {
    "and_": torch.bitwise_and,
    "or_": torch.bitwise_or,
    "not_": torch.bitwise_not,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "mod": torch.remainder,
    "isnan": torch.isnan,
    "fma": lambda a, b, c: a * b + c,
    "check_index": lambda i, size: i,
    "check_divisor": lambda b: b,
}


def apply(n: Op, args: list[torch.Tensor]) -> torch.Tensor:
    if n.name == "cast":
        assert n.param is not None
        x = args[0]
        if n.param.bits == 16 and n.param.is_float:
            return x.to(TORCH[n.param.name]).to(torch.float64)
        return x.to(wide(n.param))
    if n.name == "round_to":
        assert n.param is not None
        return args[0].to(TORCH[n.param.name]).to(torch.float64)
    fn = _OPS.get(n.name) or getattr(torch, n.name)
    return fn(*args)


def check(
    plan: KernelPlan,
    buffers: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] | None = None,
    lanes: int = 16,
    rtol: float = 2e-6,
    atol: float = 1e-6,
    threads: Sequence[int] = (1, 2),
    shared: Sequence[str] = (),
) -> None:
    """The kernel's results agree with the reference, with one thread and with two.

    shared: buffers that the kernel gets themselves, not in copies.
    """
    expected = Reference(plan, buffers, sizes or {}).run()
    for nt in threads:
        before = torch.get_num_threads()
        torch.set_num_threads(nt)
        try:
            mine = {k: v if k in shared else v.clone() for k, v in buffers.items()}
            assert call(plan, mine, sizes, lanes) == 0
        finally:
            torch.set_num_threads(before)
        for name, want in expected.items():
            got = mine[name]
            low = got.dtype in (torch.float16, torch.bfloat16)
            if got.dtype.is_floating_point:
                eps = {torch.bfloat16: 2**-8, torch.float16: 2**-10}.get(got.dtype, rtol)
                torch.testing.assert_close(
                    got.to(torch.float64),
                    want.to(torch.float64),
                    rtol=eps,
                    atol=1e-3 if low else atol,
                    equal_nan=True,
                )
            else:
                assert torch.equal(got, want.to(got.dtype)), (name, got, want)


def symbol_names(plan: KernelPlan) -> list[str]:
    return [str(s) for s in plan.ints if isinstance(s, Symbol)]
