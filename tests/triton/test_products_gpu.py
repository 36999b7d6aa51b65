"""Products by libraries on a GPU: every way of cuBLASLt against float64; whose is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
from litz.runtime.cache import Cache
from litz.runtime.cublaslt import CublasLt, libraries
from litz.runtime.products import Aten, Operands, Products, problem_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
Tensor = torch.Tensor
E4 = torch.float8_e4m3fn


def rand(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    gen = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(*shape, generator=gen, device="cuda").to(dtype)


def plain(m: int, n: int, k: int, dtype: torch.dtype, added: str, *batch: int) -> Operands:
    rows = {"row": (n,), "whole": (m, n), "": None}[added]
    bias = None if rows is None else rand(*rows, dtype=dtype)
    left, right = rand(*batch, m, k, dtype=dtype), rand(*batch, n, k, dtype=dtype).transpose(-1, -2)
    return Operands(left, right / k**0.5, bias, torch.empty(*batch, m, n, dtype=dtype).cuda())


def small(m: int, n: int, k: int, by_rows: bool) -> Operands:
    left, right = rand(m, k).to(E4), rand(n, k).to(E4).t()
    a, b = ((m, 1), (1, n)) if by_rows else ((), ())
    scales = tuple(torch.rand(x, device="cuda") + 0.5 for x in (a, b))
    return Operands(left, right, None, torch.empty(m, n, dtype=torch.bfloat16).cuda(), scales)  # type: ignore[arg-type]


def exact(o: Operands, epilogue: str) -> Tensor:
    value = o.left.double() @ o.right.double()
    if o.scales is not None:
        value = value * o.scales[0].double() * o.scales[1].double()
    value = value if o.added is None else value + o.added.double()
    if epilogue == "gelu":
        return F.gelu(value, approximate="tanh")
    if epilogue == "gelu_backward":
        assert o.aux is not None
        return torch.ops.aten.gelu_backward(value, o.aux.double(), approximate="tanh")
    return value.relu() if epilogue else value


def kept(m: int, n: int, k: int, dtype: torch.dtype, added: str) -> Operands:
    return replace(plain(m, n, k, dtype, added), aux=rand(m, n, dtype=dtype))


CASES: dict[str, tuple[Callable[[], Operands], str]] = {
    "plain": (lambda: plain(512, 384, 256, torch.bfloat16, ""), ""),
    "half_row_relu": (lambda: plain(256, 512, 1024, torch.float16, "row"), "relu"),
    "row_gelu": (lambda: plain(300, 504, 704, torch.bfloat16, "row"), "gelu"),
    "row_gelu_kept": (lambda: kept(304, 504, 704, torch.bfloat16, "row"), "gelu"),
    "gelu_kept": (lambda: kept(256, 512, 1024, torch.float16, ""), "gelu"),
    "slope": (lambda: kept(304, 504, 704, torch.bfloat16, ""), "gelu_backward"),
    "whole": (lambda: plain(128, 256, 512, torch.bfloat16, "whole"), ""),
    "single": (lambda: plain(128, 256, 512, torch.float32, "row"), "relu"),
    "single_apart": (lambda: plain(128, 256, 512, torch.float32, "row"), "gelu"),
    "thin": (lambda: plain(16, 4096, 4096, torch.bfloat16, "row"), ""),
    "uneven": (lambda: plain(33, 127, 65, torch.float16, ""), ""),
    "batches": (lambda: plain(64, 96, 128, torch.bfloat16, "", 5), ""),
    "small": (lambda: small(512, 512, 1024, False), ""),
    "small_rows": (lambda: small(256, 512, 512, True), ""),
}


@pytest.mark.parametrize("name", CASES)
def test_all_ways_are_right(name: str) -> None:
    make, epilogue = CASES[name]
    o = make()
    aten, *more = libraries(o.out.device)
    (lt,) = more
    assert isinstance(lt, CublasLt)
    p, wanted = problem_of(o, epilogue=epilogue), exact(o, epilogue)
    first, *_ = aten.instances(p, 1)
    aten.bind(p, first)(o)
    own = (o.out.double() - wanted).norm() / wanted.norm()
    ways = lt.instances(p, 8)
    assert bool(ways) == (name != "single_apart") or name == "small_rows"
    for way in ways:
        o.out.fill_(torch.nan)
        call = lt.bind(p, way)
        call(o)
        error = (o.out.double() - wanted).norm() / wanted.norm()
        assert error <= 2 * own + 1e-7, way
        other = replace(o, out=torch.empty_like(o.out))  # other addresses, and in a graph
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(other)
        graph.replay()
        assert torch.equal(other.out, o.out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("epilogue", ["relu", "gelu"])
def test_what_is_not_finite_stays_so(epilogue: str, dtype: torch.dtype, tmp_path: Path) -> None:
    o = plain(64, 64, 64, dtype, "row")
    made = Products(libraries, Cache(tmp_path), 2.0)
    made.product(o.left, o.right, o.added, out=o.out, epilogue=epilogue)
    assert o.added is not None
    o.added[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    made.product(o.left, o.right, o.added, out=o.out, epilogue=epilogue)
    wanted = exact(o, epilogue)
    for test in (torch.isnan, torch.isinf):
        assert torch.equal(test(o.out[:, :3]), test(wanted[:, :3]))


def test_the_choice_is_kept(tmp_path: Path) -> None:
    o = plain(512, 512, 512, torch.bfloat16, "row")
    for seconds in (2.0, 0.0):
        made = Products(libraries, Cache(tmp_path), seconds)
        made.product(o.left, o.right, o.added, out=o.out, epilogue="gelu")
        assert len(list(tmp_path.rglob("products/*/*.json"))) == 1
        wanted = exact(o, "gelu")
        assert (o.out.double() - wanted).norm() <= 0.01 * wanted.norm()


def mlp(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return F.relu(F.linear(F.gelu(F.linear(x, w, b), approximate="tanh"), v)) @ w


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs", "max-autotune"])
def test_compiled(mode: str) -> None:
    x, w, b, v = rand(2048, 1024), rand(4096, 1024) / 32, rand(4096), rand(4096, 4096) / 64
    compiled: Any = torch.compile(mlp, backend="litz", options={"mode": mode})
    wide = [t.double() for t in (x, w, b, v)]
    wanted, own = mlp(*wide), mlp(x, w, b, v)
    for _ in range(3):
        found = compiled(x, w, b, v)
        error, other = ((t.double() - wanted).norm() / wanted.norm() for t in (found, own))
        assert error <= 2 * other
    names = {e.op for e in litz.explain(mlp, x, w, b, v, options={"mode": mode}).externs}
    assert any("product" in n for n in names) is (mode != "default")


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_gradients(mode: str) -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
        y = F.gelu(F.linear(x, w, b), approximate="tanh") @ v
        return y.to(torch.promote_types(y.dtype, torch.float32)).square().mean()

    made = rand(2048, 512), rand(2048, 512) / 32, rand(2048), rand(2048, 512) / 64
    given = [t.requires_grad_() for t in made]
    wide = [t.detach().double().requires_grad_() for t in given]
    seconds = {} if mode == "default" else {"autotune": 10}
    compiled: Any = torch.compile(loss, backend="litz", options={"mode": mode, **seconds})
    wanted = torch.autograd.grad(loss(*wide), wide)
    own = torch.autograd.grad(loss(*given), given)
    found = torch.autograd.grad(compiled(*given), given)
    for a, b, c in zip(found, own, wanted, strict=True):
        error, other = ((t.double() - c).norm() / c.norm() for t in (a, b))
        assert error <= 2 * other


def test_aten_is_first() -> None:
    assert isinstance(libraries(torch.device("cuda", 0))[0], Aten)


def test_products_that_count_for_nothing() -> None:
    """Whatever they are; and what is added, where it does not count."""

    def fn(start: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        row, three = start[0].sin(), m.expand(2, -1, -1) * 1
        return (
            torch.addmv(start[:, 0], m, v, alpha=0),
            torch.addmv(start[:, 0] / 0, m, v, beta=0, alpha=0),
            torch.addmm(row, m, m.mT, alpha=0).relu(),
            torch.addmm(row / 0, m, m.mT, beta=0, alpha=0).sin() + 1,
            torch.addmm(start[:, :1], m, v[:, None], alpha=0, beta=2),
            torch.baddbmm(row, three, three.mT, alpha=0).sin(),
        )

    start, m, v = (rand(*s, dtype=torch.float32) for s in ((64, 64), (64, 48), (48,)))
    m[3, 5], v[7] = torch.inf, torch.nan
    wanted = fn(start, m, v)
    assert not any(t.isnan().any() for t in wanted)
    compiled: Any = torch.compile(fn, backend="litz")
    torch.testing.assert_close(compiled(start, m, v), wanted, rtol=1e-5, atol=1e-5)
