"""Matrix products as templates: interpreted, against eager and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
from litz.artifact import from_bytes, to_bytes
from litz.binding import bind
from litz.ir.parse import parse
from litz.ir.program import Program, Template
from litz.ir.text import program_text
from litz.kernel.parse import parse_recipe
from litz.kernel.verify import verify as verify_recipe
from litz.options import make_options
from litz.passes import epilogues
from litz.stages import Stages
from litz.targets.triton.source import Launch
from tests.quick import some

pytest.importorskip("triton")

Tensor = torch.Tensor
TRITON = {"target": "triton", "check_ir": True}


def rand(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*shape: int, dtype: torch.dtype = torch.int8, least: int = -128) -> Tensor:
    gen = torch.Generator().manual_seed(7)
    return torch.randint(least, least + 255, shape, generator=gen).to(dtype)


def int8(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * s


def int8_upright(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return x @ w.to(x.dtype) * s


def int8_zero_points(x: Tensor, w: Tensor, s: Tensor, z: Tensor) -> Tensor:
    return F.linear(x, ((w - z[:, None]).to(x.dtype) * s[:, None])) + 1


def int4(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """Two in a byte, the lower bits first; scales of groups."""
    n, half = w.shape
    low, high = (w & 15).to(torch.int8) - 8, (w >> 4).to(torch.int8) - 8
    wide = torch.stack([low, high], -1).reshape(n, 2 * half).to(x.dtype)
    return F.linear(x, (wide.view(n, s.shape[1], -1) * s[:, :, None]).view(n, 2 * half))


def signed_int4(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """The upper bits first, with a sign; one scale for a row."""
    wide = torch.stack([w >> 4, (w << 4) >> 4], -1).reshape(w.shape[0], -1)
    return F.linear(x, wide.to(x.dtype) * s[:, None])


def int4_words(x: Tensor, w: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """Eight in a word, down the columns; zero points of groups of 32, packed along rows: GPTQ's."""
    by = torch.arange(0, 32, 4, dtype=torch.int32)
    wide = ((w[:, None] >> by[None, :, None]) & 15).view(-1, w.shape[1])
    zeros = ((z[:, :, None] >> by) & 15).view(len(z), -1)
    wide = (wide.view(len(z), 32, -1) - zeros[:, None]) * s[:, None]
    return x @ wide.view(x.shape[1], -1).to(x.dtype)


def gathered(x: Tensor, rows: Tensor, w: Tensor) -> Tensor:
    return F.relu(x[rows] @ w)


def several(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    h = F.linear(x, w, b)
    return h, F.gelu(h), (h * 2).float()


def residual(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.sigmoid(x @ w) * r + r


def scaled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x, w, beta=0.5, alpha=2).tanh()


def turned(x: Tensor, w: Tensor) -> Tensor:
    return (x.t() @ w.t()).t().contiguous() * 2


def heads(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).view(x.shape[0], 4, -1).transpose(0, 1).contiguous() * 3


def batches(x: Tensor, w: Tensor) -> Tensor:
    return F.silu(torch.bmm(x, w))


def added_batches(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(torch.baddbmm(b, x, w))


def one_for_all(x: Tensor, w: Tensor) -> Tensor:
    return F.silu(torch.matmul(x, w)) + 1


HALF = torch.float16
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "int8": (int8, (rand(16, 256), ints(96, 256), rand(96))),
    "int8_one_row": (int8, (rand(1, 64, dtype=HALF), ints(40, 64), rand(40, dtype=HALF))),
    "int8_odd": (int8, (rand(13, 70), ints(33, 70), rand(33))),
    "int8_single": (int8, (rand(5, 40, dtype=torch.float32), ints(20, 40), rand(20).float())),
    "int8_upright": (int8_upright, (rand(34, 48), ints(48, 80), rand(80))),
    "int8_long": (int8, (rand(16, 4096), ints(32, 4096), rand(32))),
    "int8_zero_points": (
        int8_zero_points,
        (rand(9, 64), ints(24, 64, dtype=torch.int16), rand(24), ints(24, dtype=torch.int16)),
    ),
    "int4": (int4, (rand(16, 256), ints(48, 128, dtype=torch.uint8, least=0), rand(48, 2))),
    "int4_odd": (int4, (rand(3, 64), ints(5, 32, dtype=torch.uint8, least=0), rand(5, 2))),
    "int4_half": (
        int4,
        (rand(5, 128).half(), ints(9, 64, dtype=torch.uint8, least=0), rand(9, 2).half()),
    ),
    "int4_signed": (signed_int4, (rand(5, 96), ints(9, 48), rand(9))),
    "int4_words": (
        int4_words,
        (
            rand(5, 64),
            ints(8, 96, least=-127).view(torch.int32),
            rand(2, 24),
            ints(2, 12, least=-127).view(torch.int32),
        ),
    ),
    "gathered": (gathered, (rand(50, 64), torch.tensor([3, 49, 3, 0, 7]), rand(64, 40))),
    "several": (several, (rand(20, 64), rand(72, 64), rand(72))),
    "several_half": (several, (rand(20, 63, dtype=HALF), rand(31, 63).half(), rand(31).half())),
    "residual": (residual, (rand(130, 100), rand(100, 65), rand(130, 65))),
    "residual_row": (residual, (rand(130, 32), rand(32, 64), rand(64))),
    "scaled": (scaled, (rand(40, 64), rand(64, 32), rand(40, 1))),
    "turned": (turned, (rand(64, 30), rand(50, 64))),
    "heads": (heads, (rand(24, 32), rand(32, 64))),
    "batches": (batches, (rand(3, 20, 48), rand(3, 48, 24))),
    "added_batches": (added_batches, (rand(3, 20, 48), rand(3, 48, 24), rand(24))),
    "one_for_all": (one_for_all, (rand(3, 20, 48), rand(48, 24))),
}


def stages(fn: Callable[..., Any], *args: Any) -> tuple[Any, Stages]:
    report = litz.explain(fn, *args, options=TRITON)
    (graph,) = report.graphs
    return report.result, graph.stages


def several_of(x: Any) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def wide(args: tuple[Tensor, ...]) -> list[Tensor]:
    return [a.double() if a.is_floating_point() else a for a in args]


def check(found: Any, fn: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    for a, own, exact in zip(*map(several_of, (found, fn(*args), fn(*wide(args)))), strict=True):
        assert a.dtype is own.dtype and a.shape == own.shape and a.stride() == own.stride()
        assert error(a, exact.double()) <= 2 * error(own, exact.double()) + 1e-7


def templates(s: Stages) -> list[Template]:
    assert s.schedule is not None
    return [n for n in s.schedule.steps if isinstance(n, Template)]


@pytest.mark.parametrize("name", CASES)
def test_a_product_is_one_kernel_with_what_is_around_it(name: str) -> None:
    fn, args = CASES[name]
    result, s = stages(fn, *args)
    check(result, fn, args)
    (step,) = templates(s)
    assert s.schedule is not None and s.schedule.steps == (step,)
    assert step.skeleton.kind == "matmul" and not s.externs()
    program = s.program
    assert isinstance(program, Program)
    assert program_text(parse(program_text(program))) == program_text(program)
    for k in s.kernels:
        verify_recipe(k.recipe)
        assert parse_recipe(k.recipe.text) == k.recipe


def test_long_sums_are_shared() -> None:
    fn, args = CASES["int8_long"]
    _, s = stages(fn, *args)
    (kernel,) = s.kernels
    first, second = kernel.recipe.kernels
    assert (first.form, second.plan.skeleton) == ("matmul", None)  # type: ignore[union-attr]


@pytest.mark.parametrize("packed", [True, False])
def test_the_last_part_of_a_sum_may_be_shorter(packed: bool) -> None:
    """Blocks do not divide the sum into equal parts: a program's loop ends where the sum does."""
    if packed:
        fn, *args = int4, rand(16, 1408), ints(64, 704, dtype=torch.uint8, least=0), rand(64, 11)
    else:
        fn, *args = int8, rand(7, 2816), ints(64, 2816), rand(64)
    result, s = stages(fn, *args)
    check(result, fn, tuple(args))
    (kernel,) = s.kernels
    first, second = kernel.recipe.kernels
    assert first.form == "matmul" and second.plan.skeleton is None  # type: ignore[union-attr]
    assert "rend = tl.minimum(" in kernel.source and "for rstart in range(0, rend" in kernel.source
    assert "rmask" not in kernel.source
    verify_recipe(kernel.recipe)
    assert parse_recipe(kernel.recipe.text) == kernel.recipe


def test_scales_are_read_once_a_block_and_bytes_once() -> None:
    _, s = stages(*_flat(CASES["int4"]))
    (kernel,) = s.kernels
    assert kernel.source.count("tl.load(b2") == 1 and "s64 = rstart // 64" in kernel.source
    assert kernel.source.count("tl.load(b1") == 1 and "tl.split" in kernel.source


def _flat(case: tuple[Callable[..., Any], tuple[Tensor, ...]]) -> tuple[Any, ...]:
    return (case[0], *case[1])


@pytest.mark.parametrize("name", ["int4", "int4_half", "int4_signed"])
def test_packed_numbers_are_converted_together(name: str) -> None:
    """Scales multiply sums in bfloat16, whose range is theirs: of a group, or of the whole sum."""
    (kernel,) = stages(*_flat(CASES[name]))[1].kernels
    assert kernel.source.count("litz.small_float(") == 2
    each = kernel.source.count("litz.times16(")
    assert (each, kernel.source.count("litz.of_sums(")) == ((2, 0) if "half" in name else (0, 1))
    assert ("acc = litz.fma(own" in kernel.source) is (name == "int4")


MANY = [(f, t) for f in (int4, signed_int4) for t in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize("case", some(MANY, 2))
def test_many_rows_of_packed_numbers(
    case: tuple[Callable[..., Tensor], torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packed factor stands left and is read in words, in bytes where addresses are odd."""
    packed, dtype = case
    w = ints(33, 128, dtype=torch.uint8 if packed is int4 else torch.int8, least=0)
    scales = rand(33, 2, dtype=dtype) if packed is int4 else rand(33, dtype=dtype)
    x = rand(70, 256, dtype=dtype)
    result, s = stages(packed, x, w, scales)
    check(result, packed, (x, w, scales))
    (kernel,) = s.kernels
    assert kernel.source.count("litz.small_word(") == 4 and "ALIGNED" in kernel.source
    assert parse_recipe(kernel.recipe.text) == kernel.recipe
    verify_recipe(kernel.recipe)
    monkeypatch.setattr(Launch, "constants", lambda self, c, _: (*c.constants, ("ALIGNED", False)))
    torch._dynamo.reset()
    odd = torch.cat([w.flatten()[:1], w.flatten()])[1:].view(w.shape)
    assert torch.equal(stages(packed, x, odd, scales)[0], result)


def test_open_rows_of_packed_numbers() -> None:
    compiled = torch.compile(int4, backend="litz", dynamic=True, options=TRITON)
    w, s = ints(32, 64, dtype=torch.uint8, least=0), rand(32, 1)
    for m in (70, 33):
        args = rand(m, 128), w, s
        check(compiled(*args), int4, args)


def test_scales_that_are_not_finite_stay_so() -> None:
    x, w, s = rand(3, 64), ints(5, 32, dtype=torch.uint8, least=0), rand(5, 2)
    x[1, 7], s[2, 0], s[3, 1], s[4, 0] = torch.inf, torch.nan, torch.inf, 0
    result, made = stages(int4, x, w, s)
    assert templates(made)
    torch.testing.assert_close(result, int4(x, w, s), equal_nan=True, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16])
def test_all_bytes_are_converted_exactly(to: torch.dtype) -> None:
    w = torch.arange(256, dtype=torch.uint8).repeat(1, 16).reshape(16, 256)
    eye = torch.eye(512, dtype=to)

    def unsigned(x: Tensor, w: Tensor) -> Tensor:
        wide = torch.stack([w & 127, w >> 1], -1).reshape(16, 512)
        return F.linear(x, (wide.to(torch.int16) - 100).to(x.dtype))

    def signed(x: Tensor, w: Tensor) -> Tensor:
        own = w.view(torch.int8)
        return F.linear(x, torch.stack([own >> 3, (own << 2) >> 2], -1).reshape(16, 512).to(to))

    for fn in (unsigned, signed):
        found, s = stages(fn, eye, w)
        assert torch.equal(found, fn(eye, w)) and templates(s)


def test_what_is_not_finite_stays_so() -> None:
    x, w, s = rand(20, 70), ints(33, 70), rand(33)
    x[3, 5], x[7, 69], s[4], s[5] = torch.nan, torch.inf, torch.inf, 0
    result, made = stages(int8, x, w, s)
    assert templates(made)
    # Some libraries' products of bfloat16 have a row's nan in the row before it.
    wanted = int8(x.double(), w, s.double()).to(x.dtype)
    torch.testing.assert_close(result, wanted, equal_nan=True, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("fn", [int8, several])
def test_open_sizes(fn: Callable[..., Any]) -> None:
    compiled = torch.compile(fn, backend="litz", dynamic=True, options=TRITON)
    for m, n, k in ((20, 48, 64), (7, 33, 50)):
        args = rand(m, k), rand(n, k) if fn is several else ints(n, k), rand(n)
        check(compiled(*args), fn, args)


def test_gradients() -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, b)).float().square().sum()

    def gradients(fn: Callable[..., Tensor], args: list[Tensor]) -> list[Tensor]:
        own = [a.clone().requires_grad_() for a in args]
        fn(*own).backward()
        return [a.grad for a in own if a.grad is not None]

    args = [rand(20, 64), rand(72, 64), rand(72)]
    found = gradients(torch.compile(loss, backend="litz", options=TRITON), args)
    own, exact = gradients(loss, args), gradients(loss, wide(tuple(args)))
    for a, b, c in zip(found, own, exact, strict=True):
        assert error(a, c) <= 2 * error(b, c)


def test_a_result_over_what_is_read_stays_apart() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        x.copy_((x @ w).relu())
        return x

    x, w = rand(32, 32), rand(32, 32)
    own = x.clone()
    found = torch.compile(fn, backend="litz", options=TRITON)(own, w)
    assert found is own
    check(found, lambda x, w: (x @ w).relu(), (x, w))


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x, w: (x @ w).relu(), (rand(20, 32).double(), rand(32, 24).double())),
        (lambda x, w: (x @ w).relu(), (rand(20, 32).float(), rand(32, 24).float())),
        (lambda x, w: x @ w, (rand(20, 32), rand(32, 24))),
    ],
)
def test_products_that_libraries_do_better(fn: Any, args: tuple[Tensor, ...]) -> None:
    result, s = stages(fn, *args)
    check(result, fn, args)
    assert not templates(s) and [e.target_name for e in s.externs()] == ["aten.mm.out"]


@pytest.mark.parametrize(
    "args",
    [(rand(1, 32), rand(24, 32).t()), (rand(20, 32), rand(32, 1)), (rand(1, 32), rand(32, 1))],
)
def test_products_of_a_vector_are_reductions(args: tuple[Tensor, ...]) -> None:
    """Where a matrix's rows are read as they lie; with what follows."""
    result, s = stages(lambda x, w: (x @ w).relu(), *args)
    check(result, lambda x, w: (x @ w).relu(), args)
    assert not templates(s) and not list(s.externs()) and len(s.kernels) == 1


def test_what_lies_between_products_is_computed_once() -> None:
    def fn(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.linear(F.linear(x, w).relu(), v).relu()

    result, s = stages(fn, *(args := (rand(20, 64), rand(72, 64), rand(40, 72))))
    check(result, fn, args)
    assert s.schedule is not None and [len(n.nodes) for n in templates(s)] == [2, 2]
    assert len(s.schedule.steps) == 2


def test_a_nest_is_behind_one_product() -> None:
    def fn(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.silu(F.linear(x, w)) * F.linear(x, v)

    result, s = stages(fn, *(args := (rand(20, 64), rand(72, 64), rand(72, 64, seed=1))))
    check(result, fn, args)
    assert s.schedule is not None and len(s.schedule.steps) == 2
    assert len(templates(s)) == len(s.externs()) == 1


def test_costly_values_are_stored() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.linear(torch.erf(torch.lgamma(x)), w, b).relu()

    result, s = stages(fn, *(args := (rand(20, 64), rand(72, 64), rand(72))))
    check(result, fn, args)
    assert s.schedule is not None and len(s.schedule.steps) == 2
    assert "much would be computed again" in str(s.schedule.refused)


def test_open_rows_have_blocks_for_many() -> None:
    fn, args = CASES["int8"]
    torch._dynamo.mark_dynamic(x := args[0].clone(), 0)
    result, s = stages(fn, x, *args[1:])
    check(result, fn, args)
    (kernel,) = s.kernels
    assert kernel.recipe.kernels[0].configs[0].block("y") == 64  # type: ignore[union-attr]


def test_libraries_do_open_sizes_that_save_nothing() -> None:
    fn, args = CASES["several"]
    torch._dynamo.mark_dynamic(x := args[0].clone(), 0)
    _, s = stages(fn, x, *args[1:])
    (call,) = s.externs()
    assert not templates(s) and "open sizes" in call.reason


def test_max_autotune_measures_libraries() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, w, b), torch.addmm(b, x, w.t(), beta=0.5)

    args = rand(20, 64), rand(72, 64), rand(72)
    options = {**TRITON, "mode": "max-autotune-no-cudagraphs"}
    report = litz.explain(fn, *args, options=options)
    check(report.result, fn, args)
    (row,) = report.externs
    assert row.calls == 2 and row.op == "litz.runtime.products.product"
    (graph,) = report.graphs
    assert graph.stages.artifact is not None
    call = bind(from_bytes(to_bytes(graph.stages.artifact)), make_options(options))
    check(tuple(call(list(args))), fn, args)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", ["gelu", "by_hand", "relu"])
def test_activations_are_part_of_measured_products(
    name: str, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu": lambda h: F.gelu(h, approximate="tanh"),
        "by_hand": lambda h: 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h**3))),
        "relu": F.relu,
    }

    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return acts[name](F.linear(x, w, b))

    monkeypatch.setattr(epilogues, "KIND", "cpu")
    args = rand(2, 32, 64), rand(72, 64), rand(72)
    options = {**TRITON, "mode": "max-autotune-no-cudagraphs", "verify": verify}
    report = litz.explain(fn, *args, options=options)
    check(report.result, fn, args)
    (row,) = report.externs
    (graph,) = report.graphs
    assert row.op == "litz.runtime.products.product" and not graph.stages.kernels
