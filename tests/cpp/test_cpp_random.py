"""Random small plans against the reference: any nest of loops, any lane, masks, reductions."""

from __future__ import annotations

import torch
from cpp_plans import call, check, make_plan
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litz.index import Expr, Var, const, symbol, var
from litz.ir import body as B
from litz.ir.body import Node, Store
from litz.ir.dtype import BF16, BOOL, F32, I64

SIZES = (1, 2, 3, 7, 16, 17, 32, 37)
EXACT = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def row_major(dims: list[Expr]) -> Expr:
    at: Expr = const(0)
    for v in dims:
        at = at * v.extent + v  # type: ignore[attr-defined]
    return at


class Maker:
    """Draws nodes of f32 values over ``dims``."""

    def __init__(self, draw: st.DrawFn, dims: list[Expr]) -> None:
        self.draw = draw
        self.dims = dims
        self.loads = 0
        self.sizes: dict[str, int] = {}

    def index(self, dims: list[Expr]) -> Expr:
        """Row-major over some of the dims in some order, perhaps reversed or merged and split."""
        chosen = [v for v in dims if self.draw(st.booleans())] or dims[:1]
        order = list(self.draw(st.permutations(chosen)))
        at = row_major(order)
        total = 1
        for v in order:
            assert isinstance(v, Var)
            total *= int(v.extent)  # type: ignore[call-overload]
        way = self.draw(st.sampled_from(["plain", "plain", "reversed", "wrapped", "spread"]))
        if way == "reversed":
            at = (total - 1) - at
        elif way == "wrapped":
            at = (at + self.draw(st.integers(0, 40))) % max(total - 1, 1)
        elif way == "spread":
            at = at * 3 + 1
            total = total * 3 + 1
        self.size = total
        return at

    def load(self, dims: list[Expr]) -> Node:
        self.loads += 1
        name = f"b{self.loads}"
        dtype = self.draw(st.sampled_from([F32, F32, F32, BF16]))
        at = self.index(dims)
        self.sizes[name] = self.size
        if self.draw(st.integers(0, 7)) == 0:
            t = symbol(f"t{self.loads}", 0, self.size - 1)
            inner = B.op("mod", B.index(at), B.const(I64, self.size))
            return B.cast(B.load(dtype, name, t, ((t, inner),)), F32)
        return B.cast(B.load(dtype, name, at), F32)

    def cond(self, dims: list[Expr]) -> Node:
        v = self.draw(st.sampled_from(dims))
        bound = self.draw(st.sampled_from([0, 1, 3, 8, 16, 20]))
        name = self.draw(st.sampled_from(["lt", "le", "gt", "ge", "eq"]))
        return B.op(name, B.index(v), B.const(I64, bound))

    def value(self, dims: list[Expr], depth: int) -> Node:
        if depth <= 0:
            return self.load(dims)
        kind = self.draw(st.sampled_from(["load", "unary", "binary", "binary", "where", "masked"]))
        if kind == "load":
            return self.load(dims)
        a = self.value(dims, depth - 1)
        if kind == "unary":
            name = self.draw(st.sampled_from(["abs", "neg", "sigmoid", "tanh"]))
            return B.op(name, a)
        b = self.value(dims, depth - 1)
        if kind == "binary":
            return B.op(self.draw(st.sampled_from(["add", "sub", "mul", "maximum"])), a, b)
        cond = self.cond(dims)
        if kind == "masked":
            return B.masked(cond, a, b)
        return B.op("where", cond, a, b)


@st.composite
def plans(draw: st.DrawFn) -> tuple[object, dict[str, int]]:
    parallel: list[Expr] = [
        var(f"x{i}", n) for i, n in enumerate(draw(st.lists(st.sampled_from(SIZES), max_size=3)))
    ]
    least = 0 if parallel else 1
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=least, max_size=2))
    reduced: list[Expr] = [var(f"r{i}", n) for i, n in enumerate(sizes)]
    dims = parallel + reduced
    m = Maker(draw, dims)
    value = m.value(dims, draw(st.integers(0, 3)))
    stores = []
    if reduced:
        kinds = draw(st.lists(st.sampled_from(["sum", "max", "min"]), min_size=1, max_size=2))
        results = [B.reduce(k, tuple(reduced), value) for k in kinds]  # type: ignore[arg-type]
        for i, r in enumerate(results):
            stores.append(Store(f"c{i}", row_major(parallel), r))
        if draw(st.booleans()):
            other = B.op("sub", m.value(dims, 1), results[0])
            if draw(st.booleans()):
                again = B.reduce("sum", tuple(reduced), B.op("tanh", other))
                other = B.op("add", other, again)
                stores.append(Store("e", row_major(parallel), again))
            stores.append(Store("d", row_major(dims), other))
    else:
        stores.append(Store("c", row_major(dims), value))
        turned = row_major(list(draw(st.permutations(dims))))
        stores.append(Store("d", turned, m.value(dims, 1)))
    lane = draw(st.sampled_from([*dims, *dims, None]))
    tile = None
    if not reduced and lane is not None and len(dims) > 1 and draw(st.booleans()):
        tile = draw(st.sampled_from([v for v in dims if v is not lane]))
    return make_plan(parallel, reduced, stores, lane, tile), m.sizes


@EXACT
@given(plans(), st.sampled_from([8, 16]))
def test_random_plans(drawn: tuple[object, dict[str, int]], lanes: int) -> None:
    plan, sizes = drawn
    torch.manual_seed(0)
    buffers = {}
    for p in plan.params:  # type: ignore[attr-defined]
        dtype = torch.bfloat16 if p.dtype is BF16 else torch.float32
        n = sizes.get(p.name, 1)
        for d in plan.dims if p.name not in sizes else ():  # type: ignore[attr-defined]
            n *= int(d.var.extent)
        buffers[p.name] = (torch.rand(n + 1) - 0.5).to(dtype)
    check(plan, buffers, lanes=lanes, rtol=1e-4, atol=1e-4, threads=(2,))


def test_index_check_reports_only_what_is_used() -> None:
    """Indices out of range are a fault, but not those that masks or the ends of rows leave out."""
    x0 = var("x0", 37)
    size = B.const(I64, 9)
    index = B.op("check_index", B.load(I64, "i", x0), size)
    t0 = symbol("t0", 0, 8)
    value = B.load(F32, "a", t0, ((t0, index),))
    some = B.masked(B.load(BOOL, "m", x0), value, B.const(F32, 0.0))
    buffers = {"i": torch.arange(37) % 9, "a": torch.rand(9), "c": torch.zeros(37)}
    buffers["m"] = torch.ones(37, dtype=torch.bool)
    for lane in (x0, None):
        every = make_plan([x0], [], [Store("c", x0, value)], lane)
        masked = make_plan([x0], [], [Store("c", x0, some)], lane)
        check(every, buffers)
        for bad in (9, -1):
            broken = buffers["i"].clone()
            broken[20] = bad
            assert call(every, {**buffers, "i": broken}) == 1
            assert call(masked, {**buffers, "i": broken}) == 1
            mask = buffers["m"].clone()
            mask[20] = False
            assert call(masked, {**buffers, "i": broken, "m": mask}) == 0
