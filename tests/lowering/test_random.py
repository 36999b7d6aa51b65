"""Random operators: distributions, reproducibility, streams that never overlap, dropout's mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_function, make_boxed_func

from litz.ir import body
from litz.ir.program import Extern, Loops, Program
from litz.lowering import families
from litz.lowering.context import Builder, Settings, Unsupported
from litz.lowering.graph import lower_graph
from litz.lowering.registry import find
from tests.lowering.evaluate import extern_names, lower_fn, run_program

Fn = Callable[..., Any]
Tensor = torch.Tensor
aten = torch.ops.aten
X = torch.randn(100, 200)
SEED = "aten.randint.low"


def bits(seed: Tensor, offset: Tensor, salt: int = 0) -> Any:
    """64 bits for each (seed, offset): the splitmix64 finaliser, twice."""
    seed, offset = torch.broadcast_tensors(seed, offset)
    z = offset.contiguous().numpy().astype(np.uint64) + np.uint64(salt)
    for key in (seed.contiguous().numpy().astype(np.uint64), np.uint64(0x9E3779B97F4A7C15)):
        z = (z ^ key) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return z


def rand(seed: Tensor, offset: Tensor, salt: int = 0) -> Tensor:
    top = bits(seed, offset, salt) >> np.uint64(40)
    return torch.from_numpy((top.astype(np.float64) * 2.0**-24).astype(np.float32))


def randn(seed: Tensor, offset: Tensor) -> Tensor:
    u, v = rand(seed, offset, 1), rand(seed, offset, 2)
    return torch.sqrt(-2 * torch.log(1 - u)) * torch.cos(2 * math.pi * v)


def randint(seed: Tensor, offset: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    drawn = torch.from_numpy((bits(seed, offset) >> np.uint64(1)).astype(np.int64))
    return lo + drawn % (hi - lo)


OPS = {"rand": rand, "randn": randn, "randint": randint}


def run(fn: Fn, *args: Tensor, settings: Settings | None = None) -> list[Tensor]:
    program = lower_fn(fn, *args, settings=settings)
    assert all(name.startswith(SEED) for name in extern_names(program)), extern_names(program)
    return run_program(program, args, OPS)


def seeds(program: Program) -> int:
    return sum(isinstance(n, Extern) and n.target_name == SEED for n in program.nodes)


# --- distributions --------------------------------------------------------------------------------

NORMAL = (0.0, 1.0)
UNIFORM = (0.5, 1 / math.sqrt(12))


@pytest.mark.parametrize("fn, mean, std", [
    (lambda x: torch.rand(100, 200), *UNIFORM),
    (lambda x: torch.rand_like(x), *UNIFORM),
    (lambda x: torch.randn(100, 200), *NORMAL),
    (lambda x: torch.randn_like(x), *NORMAL),
    (lambda x: aten.uniform(x, -2.0, 4.0), 1.0, 6 / math.sqrt(12)),
    (lambda x: aten.normal_functional(x, 3.0, 0.5), 3.0, 0.5),
    (lambda x: torch.normal(2.0, 3.0, (100, 200)), 2.0, 3.0),
    (lambda x: torch.normal(x * 0 + 2, 3.0), 2.0, 3.0),
    (lambda x: aten.exponential(x, 2.0), 0.5, 0.5),
    (lambda x: aten.log_normal(x, 0.0, 0.25), math.exp(0.03125), 0.257),
    (lambda x: aten.geometric(x, 0.4), 2.5, math.sqrt(0.6) / 0.4),
    (lambda x: aten.cauchy(x).clamp(-1, 1), 0.0, math.sqrt(2 / math.pi)),
    (lambda x: aten.bernoulli(x, 0.3), 0.3, math.sqrt(0.21)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_moments(fn: Fn, mean: float, std: float, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    (out,) = run(lambda x: fn(x), X.to(dtype))
    assert out.shape == (100, 200)
    got = out.double()
    assert abs(got.mean() - mean) < 5 * std / math.sqrt(got.numel()) + 0.004 * std
    assert abs(got.std() - std) < 0.03 * std


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_uniform_numbers_stay_below_one(dtype: torch.dtype) -> None:
    (out,) = run(lambda x: torch.rand(300, 200, dtype=dtype), X)
    assert out.dtype == dtype and bool((out >= 0).all()) and bool((out < 1).all())
    assert len(out.unique()) >= (200 if dtype == torch.bfloat16 else 1500)


def test_double_precision_has_more_than_24_bits() -> None:
    (out,) = run(lambda x: torch.rand(4000, dtype=torch.float64), X)
    assert bool(((out * 2**24) % 1 != 0).any())


def test_exponential_never_gives_zero() -> None:
    program = lower_fn(lambda x: aten.exponential(x), X)
    zeros = {**OPS, "rand": lambda s, o: torch.zeros(torch.broadcast_shapes(s.shape, o.shape))}
    (out,) = run_program(program, [X], zeros)
    assert bool((out > 0).all())


@pytest.mark.parametrize("fn, low, high", [
    (lambda x: torch.randint(10, (100, 200)), 0, 10),
    (lambda x: torch.randint(-5, 3, (100, 200), dtype=torch.int32), -5, 3),
    (lambda x: torch.randint_like(x, 4), 0, 4),
    (lambda x: torch.randint_like(x, 2, 6, dtype=torch.int64), 2, 6),
])  # fmt: skip
def test_integers(fn: Fn, low: int, high: int) -> None:
    (out,) = run(fn, X)
    assert out.dtype == fn(X).dtype
    assert out.unique().tolist() == list(range(low, high))


# --- streams --------------------------------------------------------------------------------------


def test_one_seed_for_all_and_another_stream_for_each() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return torch.rand(50), torch.rand(50), torch.randn(50), torch.rand(50, dtype=torch.float64)

    program = lower_fn(fn, X)
    assert seeds(program) == 1
    a, b, _, d = run_program(program, [X], OPS)
    assert not torch.equal(a, b) and not torch.equal(a, d.float())


def test_positions_of_different_calls_lie_apart() -> None:
    seen: list[set[int]] = []

    def record(seed: Tensor, offset: Tensor) -> Tensor:
        seen.append(set(offset.flatten().tolist()))
        return rand(seed, offset)

    program = lower_fn(lambda x: (torch.rand(50), torch.rand(40, dtype=torch.float64)), X)
    run_program(program, [X], {**OPS, "rand": record})
    assert len(seen) == 3  # f64 draws twice
    assert [len(s) for s in seen] in ([50, 40, 40], [40, 40, 50])
    assert not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]


def test_few_numbers_that_nothing_is_fused_with_are_eager_mode_s() -> None:
    def filled(x: Tensor) -> None:
        x.exponential_()

    made = torch.compile(filled, backend="litz")
    for shape in ((7, 5), (300, 5)):
        x = torch.ones(shape)
        torch.manual_seed(3)
        made(x)
        torch.manual_seed(3)
        assert torch.equal(x, torch.ones(shape).exponential_())
    (call,) = (n for n in lower_fn(lambda x: torch.rand(50), X).nodes if isinstance(n, Extern))
    assert call.target_name == "aten.rand.default" and "in one call" in call.reason
    few = torch.ones(30)
    for program, drawn in (
        (lower_fn(lambda x: torch.normal(x, 2.0), few), "aten.normal.Tensor_float"),
        (lower_fn(lambda x: torch.normal(x.exp(), 2.0), few), SEED),
    ):
        assert [n.target_name for n in program.nodes if isinstance(n, Extern)] == [drawn]
    program = lower_fn(lambda x: torch.rand(5000), X)
    assert [n.target_name for n in program.nodes if isinstance(n, Extern)] == [SEED]


def test_manual_seed_reproduces_and_runs_differ() -> None:
    program = lower_fn(lambda x: torch.rand(5000), X)
    torch.manual_seed(3)
    first, second = run_program(program, [X], OPS)[0], run_program(program, [X], OPS)[0]
    torch.manual_seed(3)
    again = run_program(program, [X], OPS)[0]
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_a_value_read_twice_is_one_value() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        r = torch.rand(100, 200)
        return r, r * x, r.sum(0), r.t().clone()

    r, scaled, total, flipped = run(fn, X)
    assert torch.equal(scaled, r * X) and torch.equal(flipped, r.t())
    assert torch.allclose(total, r.sum(0))


def test_eager_rng_leaves_the_draw_to_aten() -> None:
    settings = Settings(eager_rng=True)
    program = lower_fn(lambda x: torch.rand(50) + F.dropout(x, 0.5)[0, 0], X, settings=settings)
    names = extern_names(program)
    assert any("aten.rand.default" in n and "asked for" in n for n in names)
    assert seeds(program) == 0


def test_numbers_of_eager_are_drawn_into_new_memory() -> None:
    settings = Settings(eager_rng=True)
    for fn in (
        lambda x: x.clone().uniform_(-1, 2),
        lambda x: x.clone().exponential_(2.0),
        lambda x: x.contiguous().clone().bernoulli_(0.25),
        lambda x: x.clone().geometric_(0.5),
    ):
        program = lower_fn(fn, X.t(), settings=settings)
        assert len(program.nodes) == 2 and all(isinstance(n, Extern) for n in program.nodes)
        torch.manual_seed(3)
        (out,) = run_program(program, [X.t()], OPS)
        torch.manual_seed(3)
        assert torch.equal(out, fn(X.t())) and out.stride() == fn(X.t()).stride()


def test_a_range_that_ends_before_it_begins_is_refused_as_eager_refuses_it() -> None:
    with pytest.raises(RuntimeError, match="from=2 > to=1"):
        torch.compile(lambda x: aten.uniform(x, 2.0, 1.0) + 1, backend="litz")(X)


def test_a_generator_of_ones_own_is_left_to_aten() -> None:
    # make_fx bakes such a call in as a constant, so the lowering is asked directly.
    node = SimpleNamespace(kwargs={"generator": torch.Generator().manual_seed(3)})
    call: Any = SimpleNamespace(b=Builder(Settings()), node=node, value=None)
    families.load()
    fn = find(aten.rand.generator)
    assert fn is not None
    with pytest.raises(Unsupported, match="generator"):
        fn(call, [8], **node.kwargs)


def test_random_slopes() -> None:
    x = torch.cat((X, torch.full((1, 200), math.nan), torch.zeros(1, 200)))

    def fn(x: Tensor) -> Any:
        return aten.rrelu_with_noise_functional(x, torch.empty_like(x), 0.2, 0.6, True)

    out, noise = run(fn, x)
    slopes = noise[x <= 0]
    assert bool(((slopes >= 0.2) & (slopes < 0.6)).all()) and abs(slopes.mean() - 0.4) < 0.01
    assert bool((noise[~(x <= 0)] == 1).all())
    assert torch.equal(out[:-2], (x * noise)[:-2]) and bool(out[-2].isnan().all())


# --- dropout --------------------------------------------------------------------------------------


def test_native_dropout() -> None:
    out, mask = run(lambda x: aten.native_dropout(x, 0.3, True), X)
    assert mask.dtype == torch.bool and abs(mask.double().mean() - 0.7) < 0.02
    expected = X * mask * (1 / 0.7)
    assert torch.equal(out, expected)
    out, mask = run(lambda x: aten.native_dropout(x, 0.3, False), X)
    assert torch.equal(out, X) and bool(mask.all())
    out, mask = run(lambda x: aten.native_dropout(x, 1.0, True), X)
    assert not bool(mask.any()) and not bool(out.any())
    out, mask = run(lambda x: aten.native_dropout(x, 0.0, True), X)
    assert bool(mask.all()) and torch.equal(out, X)


def test_native_dropout_of_bf16_rounds_as_eager() -> None:
    x = X.bfloat16()
    out, mask = run(lambda x: aten.native_dropout(x, 0.1, True), x)
    assert torch.equal(out, x.mul(mask).mul(1 / 0.9))
    grad = torch.randn_like(x)
    (back,) = run(lambda g, m: aten.native_dropout_backward(g, m, 1 / 0.9), grad, mask)
    assert torch.equal(back, aten.native_dropout_backward(grad, mask, 1 / 0.9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_uses_one_mask_forwards_and_backwards(dtype: torch.dtype) -> None:
    programs: list[Program] = []

    def compiler(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        programs.append(lower_graph(gm, Settings()))
        program = programs[-1]
        return make_boxed_func(lambda *xs: run_program(program, xs, OPS))

    x = torch.ones(60, 70, dtype=dtype, requires_grad=True)
    out = aot_function(lambda x: F.dropout(x, 0.25) * 2, compiler)(x)
    out.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, out)
    assert abs((out == 0).double().mean() - 0.25) < 0.03
    assert sum(seeds(p) for p in programs) == 1
    assert not [n for p in programs for n in extern_names(p) if not n.startswith(SEED)]


def test_dropout_in_front_of_a_reduction_draws_once() -> None:
    program = lower_fn(lambda x: F.dropout(x, 0.5).softmax(-1), X)
    roots = [r for n in program.nodes if isinstance(n, Loops) for s in n.stores for r in s.roots()]
    draws = {n for n in body.walk(roots) if isinstance(n, body.Op) and n.name == "rand"}
    assert len(draws) == 1
