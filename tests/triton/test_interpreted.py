"""A corpus of graphs as Triton kernels: interpreted on the CPU, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from judge import check

from tests.quick import some

pytest.importorskip("triton")
TRITON = {"target": "triton"}


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g).to(dtype)


POINTWISE = {
    "gelu_bias": (lambda x, b: F.gelu(x + b), (rand(33, 70), rand(70))),
    "gelu_bf16": (lambda x: F.gelu(x), (rand(40, 70, dtype=torch.bfloat16),)),
    "chain_f16": (lambda x, y: (x * y + y).sigmoid() * x, (rand(7, 65).half(), rand(65).half())),
    "transposed": (lambda x, y: x + y.t(), (rand(70, 90), rand(90, 70))),
    "permuted": (lambda x: x.permute(2, 0, 1).contiguous() * 2, (rand(20, 30, 40),)),
    "strided": (lambda x: x[::2, 1:] * 3, (rand(31, 40),)),
    "pad": (lambda x: F.pad(x, (2, 3, 1, 0), value=1.5) * x.sum(), (rand(8, 9),)),
    "cat": (lambda x, y: torch.cat([x * 2, y + 1], 1), (rand(8, 9), rand(8, 20))),
    "where": (lambda x: torch.where(x > 0, x, torch.exp(x)), (rand(100),)),
    "ints": (lambda x: (x // 3, x % 5, x << 2, -x), (torch.arange(-50, 50),)),
    "small_ints": (lambda x: (x // 3, x % 5, x * 77, -x), (torch.arange(-50, 50).to(torch.int8),)),
    "bools": (lambda x, y: ((x > 0) & (y < 0), (x > 0) < (y > 0)), (rand(70), rand(70, seed=1))),
    "scalar": (lambda x: x * 2 + 1, (torch.tensor(3.0),)),
    "double": (lambda x: torch.tanh(x) / 3, (rand(50).double(),)),
    "rounding": (lambda x: (x.floor(), x.round(), x.trunc()), (rand(50) * 5,)),
    "powers": (lambda x, y: (x.abs() ** y, 0.999**y, y**2.5), (rand(70), rand(70, seed=1))),
    "flip": (lambda x: x.flip(1) + x, (rand(5, 60),)),
    "empty": (lambda x: x + 1, (rand(0, 5),)),
    "rotary": (
        lambda q, c, s: q * c + torch.cat([-q[..., 16:], q[..., :16]], -1) * s,
        (rand(2, 4, 10, 32), rand(10, 32), rand(10, 32)),
    ),
}
REDUCTIONS = {
    "of_nothing": (
        lambda x: (x.sum(1), x.prod(1), x.any(1), x.logsumexp(1), x.mean(1) * 2),
        (rand(3, 0),),
    ),
    "no_deviation": (
        lambda x: torch.std_mean(x, unbiased=False),
        (rand(0, dtype=torch.bfloat16),),
    ),
    "softmax": (lambda x: F.softmax(x, -1), (rand(10, 70),)),
    "softmax_of_a_column": (lambda x: F.softmax(x.expand(6, 9), 0), (rand(6, 1),)),
    "softmax_wide": (lambda x: F.softmax(x, -1), (rand(3, 20000),)),
    # Five values of a row are more than a program keeps, and a row is too short to be divided.
    "softmax_long_rows": (
        lambda x: F.softmax(x[0] + x[1] * x[2] - x[3] * x[4], -1),
        (rand(5, 3, 8100),),
    ),
    "log_softmax_infinite": (
        lambda x: F.log_softmax(
            torch.where(x[0] > 1, float("-inf"), x[1] + x[2] * x[3] - x[4]), -1
        ),
        (rand(5, 3, 8100),),
    ),
    "rows_and_all": (
        lambda g, x: (torch.var_mean(x * x, -1)[0] * g, (g * x).sum(), (x * x).mean() + g),
        (rand(2, 5), rand(5)),
    ),
    "softmax_first": (lambda x: F.softmax(x, 0), (rand(70, 40),)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (rand(4, 300, dtype=torch.bfloat16),)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (96,), w), (rand(12, 96), rand(96))),
    "layer_norm_bf16": (
        lambda x, r: F.layer_norm(x + r, (96,)),
        (rand(12, 96, dtype=torch.bfloat16), rand(12, 96, dtype=torch.bfloat16)),
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, (96,), w), (rand(12, 96), rand(96))),
    "group_norm": (
        lambda x: F.silu(F.group_norm(x, 4)),
        (rand(2, 16, 9, 9).to(memory_format=torch.channels_last),),
    ),
    "rows": (lambda x: x.sum(1), (rand(30, 300),)),
    "columns": (lambda x: x.sum(0), (rand(300, 30),)),
    "columns_long": (lambda x: x.sum(0), (rand(9000, 8),)),
    "everything": (lambda x: x.sum(), (rand(300, 300),)),
    "everything_max": (lambda x: (x.amax(), x.mean()), (rand(200, 300),)),
    "long_var": (lambda x: torch.var_mean(x), (rand(120, 300) + 5,)),
    "long_argmax": (lambda x: (x.argmax(), x.argmin()), (rand(120, 300),)),
    "long_softmax": (lambda x: F.softmax(x.flatten(), 0), (rand(120, 300),)),
    "long_what_follows": (
        lambda x: (x - x.amax(), x * (x.amax() * 0.5).exp(), x.amax() * 2, x.sum() - x.amax()),
        (rand(120, 300),),
    ),
    "var_mean": (lambda x: torch.var_mean(x, 1), (rand(20, 70) + 3,)),
    "var_mean_first": (lambda x: torch.var_mean(x, 0), (rand(70, 40) + 3,)),
    "argmax": (lambda x: (x.argmax(1), x.argmin(1)), (rand(20, 70),)),
    "argmax_first": (lambda x: (x.argmax(0), x.argmin(0)), (rand(90, 20),)),
    "any_all": (lambda x: ((x > 1).any(1), (x > -3).all(1)), (rand(20, 70),)),
    "prod": (lambda x: x.prod(1), (rand(20, 70),)),
    "mv": (
        lambda a, x, y: (
            *(a @ x, y.addmv(a, x, beta=0.5), (y / 0).addmv(a, x, beta=0, alpha=2)),
            *(F.linear(x.exp()[None], a, y), a @ x[:, None]),
        ),
        (rand(20, 70), rand(70), rand(20)),
    ),
    "int_sum": (lambda x: (x.sum(1), x.amax(0)), (torch.arange(600).reshape(20, 30),)),
    "nan_max": (lambda x: x.amax(1), (torch.tensor([[1.0, float("nan"), 2.0], [1, 2, 3]]),)),
    "inf_softmax": (lambda x: F.softmax(x, -1), (torch.tensor([[0.0, float("-inf")], [1, 2]]),)),
    "twice": (lambda x: (x.sum(1) * 2).sum(), (rand(30, 40),)),
    # NVIDIA's assembler loses signs here.
    "largest_negated": (
        lambda *xs: [f(-x, 1) for x in xs for f in (torch.amax, torch.amin)],
        tuple(
            (torch.arange(81) * 7 % 19 - 9).reshape(3, 3, 9).to(t)
            for t in (
                torch.int8,
                torch.int16,
                torch.int32,
                torch.int64,
            )
        ),
    ),
    # Copies of a mean are stored behind what is computed from it.
    "copies_late": (
        lambda x: (lambda m: (m.abs() + 1, m.flip(0), m + m))(x.mean(0, keepdim=True)),
        (rand(17, 1),),
    ),
    "two_dims": (lambda x: x.sum((1, 3)), (rand(4, 9, 5, 17),)),
    "block32": (
        lambda x: (x.reshape(-1, 32).abs().amax(1), x * 2),
        (rand(64, 64, dtype=torch.bfloat16),),
    ),
    "block32_transposed": (
        lambda x: x.t().contiguous().reshape(-1, 32) / x.t().reshape(-1, 32).amax(1, True),
        (rand(64, 64).abs() + 1,),
    ),
    "sums_under_conditions": (
        lambda x: (
            torch.slice_scatter(x + x.sum(), (x + x.sum())[1:] * 2, 0, 1),
            torch.slice_scatter(x / x.sum(1, True), (x / x.sum(1, True))[:, 5:] * 2, 1, 5),
        ),
        (rand(20, 70) + 3,),
    ),
    "any_of_one": (
        lambda x: (x.sum(1), ((x[0, 0] - x[1, 1]) > (x[2, 2] - 1)).expand(20, 70).any(1)),
        (rand(20, 70),),
    ),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), (rand(20, 70),)),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), (rand(20, 70),)),
}
MEMORY = {
    "embedding": (lambda w, i: F.embedding(i, w), (rand(50, 16), torch.arange(20) * 2)),
    "gather": (lambda x, i: x.gather(1, i), (rand(5, 30), torch.arange(20).reshape(5, 4))),
    "index": (lambda x, i: x[i] * 2, (rand(30, 7), torch.tensor([3, 1, -1, 7]))),
    "scatter_add": (
        lambda x, i, s: x.scatter_add(0, i, s),
        (rand(10, 6), torch.arange(24).reshape(4, 6) % 5, rand(4, 6)),
    ),
    "scatter_prod": (
        lambda x, i, s: x.scatter_reduce(0, i, s, "prod"),
        (rand(10, 6), torch.arange(24).reshape(4, 6) % 5, rand(4, 6)),
    ),
    "scatter_best": (
        lambda x, i, s: tuple(x.scatter_reduce(0, i, s, how) for how in ("amax", "amin")),
        (rand(10, 6), torch.arange(24).reshape(4, 6) % 5, rand(4, 6)),
    ),
    "scatter_best_double": (
        lambda x, i, s: tuple(x.scatter_reduce(0, i, s, how) for how in ("amax", "amin")),
        (rand(90).double(), torch.arange(70) % 40, rand(70).double()),
    ),
    "scatter_rows": (
        lambda x, i, y: [
            y.scatter_reduce(0, i[:, None].expand(8, 17), x.sum(1)[:, None].expand(8, 17), how)
            for how in ("sum", "amin", "amax")
        ],
        (rand(8, 17), torch.arange(8) % 5, rand(10, 17)),
    ),
    "index_put": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (rand(10, 6), torch.tensor([1, 1, 3]), rand(3, 6)),
    ),
    "index_put_int8": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (torch.ones(10, 6, dtype=torch.int8), torch.tensor([1, 1, 3]), torch.ones(3, 6).char()),
    ),
    "masked_scatter": (
        lambda x, i, s: x.masked_scatter(i > 0, s),
        (rand(10, 6), torch.arange(60).reshape(10, 6) % 5 - 2, rand(24)),
    ),
    "pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (rand(2, 3, 11, 12),)),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (rand(2, 3, 11, 12),)),
    "upsample": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (rand(1, 2, 5, 6),)),
}
CORPUS = {**POINTWISE, **REDUCTIONS, **MEMORY}


@pytest.mark.parametrize("name", some(CORPUS, 40))
def test_corpus(name: str) -> None:
    fn, args = CORPUS[name]
    check(fn, *args, runs=1, **TRITON)


@pytest.mark.parametrize("name", some(CORPUS, 15))
def test_corpus_by_block_pointers(name: str) -> None:
    fn, args = CORPUS[name]
    check(fn, *args, runs=1, **{**TRITON, "block_pointers": True})


GRADIENTS = ("gelu_bias", "softmax", "layer_norm", "group_norm", "pool", "log_softmax")


def gradients(fn, args: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [a.clone().requires_grad_() for a in args]
    out = fn(*leaves)
    weights = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).view_as(out)
    (out * weights.to(out.dtype)).sum().backward()
    return [x.grad for x in leaves]


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    fn, args = CORPUS[name]
    torch._dynamo.reset()
    ours = gradients(torch.compile(fn, backend="litz", options=TRITON), list(args))
    eager = gradients(fn, list(args))
    exact = gradients(fn, [a.double() for a in args])
    for got, base, true in zip(ours, eager, exact, strict=True):
        rounding = torch.finfo(got.dtype).eps * true.abs().max()
        error, limit = ((x.double() - true).norm() for x in (got, base))
        assert error <= 2 * limit + rounding, (name, error, limit)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_updates_keep_nan_of_either_sign(dtype: torch.dtype) -> None:
    nan = torch.tensor(float("nan")).to(dtype)
    nan = nan.copysign(torch.tensor([1, -1]).to(dtype))
    assert nan.signbit().tolist() == [False, True]
    place = (torch.arange(12) // 2).expand(10, 12).contiguous()
    new = torch.tensor([1, 0, 0, -2, -1, 0, 0, 0, 3, -3, -0.0, 0.0]).to(dtype)
    holes = torch.tensor([1, 2, 5, 6, 7])
    firsts = torch.cat([nan, torch.tensor([0.0, -5.0, 5.0]).to(dtype)])
    # A row for each first value and each nan.
    x = firsts.repeat_interleave(2)[:, None].repeat(1, 8)
    s = torch.stack([new.index_put((holes,), nan[k]) for _ in firsts for k in range(2)])

    def updated(x: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.scatter_reduce(1, place, s, how, include_self=include)
            for how in ("amax", "amin")
            for include in (True, False)
        ]

    check(updated, x, s, runs=1, judge=False, **TRITON)


def test_an_index_out_of_range_is_found() -> None:
    compiled = torch.compile(lambda w, i: F.embedding(i, w), backend="litz", options=TRITON)
    with pytest.raises(IndexError, match="out of range"):
        compiled(rand(5, 3), torch.tensor([1, 5]))


DYNAMIC = ("gelu_bias", "softmax", "columns", "layer_norm", "cat", "permuted", "index", "argmax")


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_sizes(name: str) -> None:
    fn, args = CORPUS[name]
    check(fn, *args, runs=1, dynamic=True, **TRITON)


def test_equal_sources_over_unequal_sizes() -> None:
    """Where every block divides the size, the size is in the grid alone."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_zeros(64), y.new_zeros(4096)

    check(fn, rand(4), rand(4), runs=1, **TRITON)
    check(lambda x, y: (x * 2, y * 2), rand(256), rand(8192), runs=1, **TRITON)


def test_equal_sources_over_unequal_types() -> None:
    """What a kernel reads has its type from the arguments alone."""
    f16, bf16, i32 = rand(64).half(), rand(64, dtype=torch.bfloat16), torch.arange(-32, 32).int()
    check(lambda x, y: (x.float() * 2, y.float() * 2), f16, bf16, runs=1, **TRITON)
    check(lambda x, y: (x.abs(), y.abs()), rand(64), i32, runs=1, judge=False, **TRITON)
    check(lambda x, y: (x.max(), y.max()), rand(64).double(), i32.long(), runs=1, **TRITON)


@pytest.mark.parametrize("fn", [lambda x: F.dropout(x, 0.3), torch.rand_like, torch.randn_like])
def test_random_numbers_are_those_of_the_other_target(fn) -> None:
    x = rand(50, 70)
    out = []
    for options in (TRITON, {}):
        torch._dynamo.reset()
        torch.manual_seed(3)
        out.append(torch.compile(fn, backend="litz", options=options)(x))
    torch.testing.assert_close(*out, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["scatter_prod", "index_put_int8", "rows_and_all"])
def test_counters_of_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from litz.kernel.blocks import choose

    monkeypatch.setattr(choose, "is_wide", lambda plan: True)
    fn, args = CORPUS[name]
    check(fn, *args, runs=1, **TRITON)


def test_what_is_divided_may_need_64_bits() -> None:
    """The position in the input is a quotient of what 32 bits do not hold."""
    check(lambda x: F.adaptive_avg_pool1d(x, 90001), rand(1, 1, 130003), runs=1, **TRITON)


def test_what_loops_replace_is_read_before() -> None:
    """Reductions of a loop over all points and of one over some: a kernel of loops in loops."""

    def f(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + m[:, None]
        mean = y.mean()
        found = (mean - m).clamp(-1, 1).prod()
        x.copy_(y)
        return found, (y * mean).amax()

    check(f, rand(16, 32), rand(16), **TRITON)
