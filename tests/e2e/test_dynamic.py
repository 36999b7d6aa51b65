"""Sizes that change from call to call: symbolic arithmetic, sizes from data, assertions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from e2e.test_dynamic_models import Counting
from torch._dynamo.testing import CompileCounterWithBackend

T = torch.tensor
Args = tuple[Any, ...]


@pytest.fixture(autouse=True)
def capture() -> Iterator[None]:
    """Sizes from data are part of the graph."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        yield


def compiles_once(fn: Callable[..., Any], *calls: Args, compiles: int = 1) -> None:
    """The results of eager in every call, without a fallback."""
    backend = Counting()
    compiled = torch.compile(fn, backend=backend, dynamic=True, fullgraph=True)
    for args in calls:
        torch.testing.assert_close(compiled(*args), fn(*args), equal_nan=True, rtol=2e-5, atol=2e-5)
    assert (len(backend.compiles), backend.fallbacks) == (compiles, [])


def fails_like_eager(fn: Callable[..., Any], good: Args, bad: Args, kind: type[Exception]) -> None:
    """Compiled for ``good``, a call with ``bad`` raises what eager raises."""
    backend = Counting()
    compiled = torch.compile(fn, backend=backend, dynamic=True, fullgraph=True)
    torch.testing.assert_close(compiled(*good), fn(*good))
    with pytest.raises(kind):
        fn(*bad)
    with pytest.raises(kind):
        compiled(*bad)
    assert (len(backend.compiles), backend.fallbacks) == (1, [])


TWO = ((torch.randn(5, 3),), (torch.randn(9, 30),))
MAPS = ((torch.randn(2, 3, 8, 9),), (torch.randn(3, 4, 11, 5),))


# --- floats from sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "scale"), [("bilinear", 1.7), ("nearest", (0.6, 2.3)), ("bicubic", 2.5)]
)
def test_interpolate_by_a_factor(mode: str, scale: Any) -> None:
    compiles_once(lambda x: F.interpolate(x, scale_factor=scale, mode=mode), *MAPS)


def test_arithmetic_of_sizes() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        n, m = x.shape
        y = x / n + (n / 3) ** 0.5 + x * math.sqrt(n * m) + math.ceil(n * 0.3)
        return y + math.floor(m / 2.5) + n // 2 + m % 3 + round(n * 0.7) + max(n, m)

    compiles_once(fn, *TWO)


def test_floats_as_arguments_of_operators() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, m = x.shape
        return (
            x.clamp(min=-n / 7, max=m / 10),
            torch.full((n,), m / 3),
            torch.add(x, x, alpha=n / 2),
            x.masked_fill(x > 0, n / 9),
            torch.where(x > 0, n * 0.1, x),
            x.abs().pow(n / 3.0),
            F.leaky_relu(x, n / 100),  # this one is ATen's
            F.hardtanh(x, -n / 3, n / 3),
        )

    compiles_once(fn, *TWO)


def test_shapes_that_are_rounded_floats() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, m = x.shape
        ones = torch.ones(int(n * 1.5), m) * 2
        return ones, torch.arange(int(m / 2.0 + 0.5)), x.new_zeros(math.ceil(n / 3 * 1.1), 2) + 1

    compiles_once(fn, *TWO)


def test_rounded_float_sizes_in_training() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (F.interpolate(x, scale_factor=1.3, mode="bilinear") * x.size(2) / 7).square().sum()

    backend = Counting()
    compiled = torch.compile(fn, backend=backend, dynamic=True, fullgraph=True)
    for (x,) in MAPS:
        a, b = (x.clone().requires_grad_() for _ in range(2))
        compiled(a).backward()
        fn(b).backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    assert (backend.compiles, backend.fallbacks) == (["forward", "backward"], [])


def test_python_numbers_round_as_eager_rounds_them() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.size(0)
        a = (x + 1.2347, x * 1.2347, x / 1.2347, 1.2347 - x, x % 1.2347, x // 1.2347)
        return (*a, x + n, x * (n * 1.001), x - n / 3)

    for dtype in (torch.bfloat16, torch.float16):
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend="litz", dynamic=True)
        for rows in (5, 301):
            x = (torch.randn(rows, 40) * 3).to(dtype)
            for actual, eager in zip(compiled(x), fn(x), strict=True):
                assert torch.equal(actual, eager)


def test_int_arguments() -> None:
    compiles_once(
        lambda x, n: (x * n, torch.ones(n * 2) + n / 3, x.repeat(n, 1)),
        (torch.randn(5, 3), 4),
        (torch.randn(9, 30), 7),
    )


def test_float_arguments_compile_as_often_as_without_litz() -> None:
    """Dynamo takes a float for a constant at first, and again where it cannot make it a tensor."""

    def fn(x: torch.Tensor, f: float) -> tuple[torch.Tensor, ...]:
        return x * f, torch.full((2,), f * 2)

    counts = []
    ours = Counting()
    theirs = CompileCounterWithBackend("aot_eager")
    for backend in (ours, theirs):
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend=backend, dynamic=True, fullgraph=True)
        for shape, f in (((5, 3), 2.5), ((9, 30), 3.5), ((7, 4), -0.5)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x, f), fn(x, f))
        counts.append(len(ours.compiles) if backend is ours else theirs.frame_count)
    assert counts[0] == counts[1] and not ours.fallbacks


# --- sizes and numbers from data ------------------------------------------------------------------


def test_sizes_that_data_decide() -> None:
    def fn(x: torch.Tensor) -> tuple[Any, ...]:
        found = x.nonzero()
        positive = x[x > 0]
        rows = x[x.sum(1) > 0]
        return found * 2, found.size(0), positive.sum(), rows.exp().sum(0), rows @ x[0]

    compiles_once(fn, *TWO, (-torch.ones(4, 4),), (torch.zeros(3, 5),))


def test_unique_masked_select_and_repeat_interleave() -> None:
    def fn(x: torch.Tensor, n: torch.Tensor) -> tuple[Any, ...]:
        values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
        repeated = torch.repeat_interleave(x, n)
        return values + 1, inverse, counts * 2, repeated * 2, x.masked_select(x > 1).float().exp()

    compiles_once(fn, (T([1, 2, 2, 5]), T([2, 0, 1, 1])), (T([3, 1, 1]), T([0, 0, 0])))


def test_reads_as_sizes_positions_and_values() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        n = y[0].item()
        torch._check(n >= 0)
        torch._check(n < x.size(0))
        z = x.narrow(0, 0, n)
        views = x[n:] * 2, x[n] + 1, x[:n] + 1, x[n // 2 : n]
        sums = z.sum(0), z.mean(1), z.softmax(1), z.t().contiguous()
        return (*views, *sums, x * n, torch.zeros(n, x.size(1)) + x[0])

    compiles_once(fn, (TWO[0][0], T([2])), (TWO[1][0], T([7])), (TWO[1][0], T([0])))


def test_reads_of_other_types() -> None:
    def fn(x: torch.Tensor, f: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
        g = f[0].item()
        return x * g + 1, torch.full((3,), g), F.leaky_relu(x, g), x * b[0].item()

    x = torch.randn(4, 4)
    compiles_once(fn, (x, T([1.5]), T([True])), (x, T([-2.25]), T([False])))


def test_split_by_sizes_from_data() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [t * 2 for t in x.split(y.tolist())]

    compiles_once(fn, (TWO[0][0], T([2, 3])), (TWO[1][0], T([0, 9])))


def test_views_matrix_products_and_writes_at_sizes_from_data() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        n = y[0].item()
        torch._check(n >= 1)
        torch._check(n < x.size(0))
        z = torch.arange(n * 6)
        w = torch.ones(x.size(1), n)
        x = x.clone()
        x[n] = 1.0
        x[n - 1 : n + 1] += 1
        shapes = z.view(n, 6) + 1, z.view(n, 2, 3).sum(0), z.view(-1, 3).float().softmax(0)
        return (*shapes, torch.cat([z, z[:1]]), (x @ w).relu().sum(0), x)

    compiles_once(fn, (TWO[0][0], T([4])), (TWO[1][0], T([5])))


def test_training_with_sizes_from_data() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x[x > 0] * x.size(0) / 3).sin().sum() + x[x.sum(1) > 0].square().sum()

    backend = Counting()
    compiled = torch.compile(fn, backend=backend, dynamic=True, fullgraph=True)
    for (x,) in TWO:
        a, b = (x.clone().requires_grad_() for _ in range(2))
        compiled(a).backward()
        fn(b).backward()
        torch.testing.assert_close(a.grad, b.grad)
    assert (backend.compiles, backend.fallbacks) == (["forward", "backward"], [])


# --- assertions -----------------------------------------------------------------------------------


def test_checks_hold_at_run_time() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = y[0].item()
        torch._check(n >= 2)
        torch._check(n < x.size(0))
        return x[n] * 2, torch.ones(n) + n

    x = torch.randn(5, 3)
    for bad in (1, 5, 10**9):
        torch._dynamo.reset()
        fails_like_eager(fn, (x, T([3])), (x, T([bad])), RuntimeError)


def test_a_check_is_not_folded_into_what_it_promises() -> None:
    def equal(x: torch.Tensor) -> torch.Tensor:
        found = x.nonzero().squeeze(1)
        torch._check(found.size(0) == x.size(0))
        return found + x

    fails_like_eager(equal, (torch.ones(5),), (T([1.0, 0, 1, 1, 1]),), RuntimeError)

    def three(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n = y[0].item()
        torch._check(n == 3)
        return x[:n] * n

    torch._dynamo.reset()
    x = torch.randn(5)
    fails_like_eager(three, (x, T([3])), (x, T([4])), RuntimeError)


def test_bad_positions_and_splits_raise() -> None:
    def pick(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[y[0].item()] * 2

    x = torch.randn(5, 3)
    fails_like_eager(pick, (x, T([2])), (x, T([9])), IndexError)
    torch._dynamo.reset()
    compiles_once(pick, (x, T([2])), (x, T([-2])))

    def split(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [t + 1 for t in x.split(y.tolist())]

    torch._dynamo.reset()
    fails_like_eager(split, (x, T([2, 3])), (x, T([6, -1])), RuntimeError)


def test_a_reduction_of_nothing_raises() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].max()

    fails_like_eager(fn, (torch.ones(4),), (-torch.ones(4),), RuntimeError)


def test_floats_from_data_are_checked() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        f = y[0].item()
        torch._check(f > 0.5)
        return x * f

    x = torch.randn(5)
    fails_like_eager(fn, (x, T([0.75])), (x, T([0.25])), RuntimeError)


# --- sizes 0 and 1 --------------------------------------------------------------------------------


def small(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.layer_norm(x, x.shape[-1:])
    return y.softmax(-1), x.sum(0), x.mean(1), torch.cat([x, y]), (x[:, None] + x).sum(0)


@pytest.mark.parametrize("shapes", [[(5, 3), (1, 3), (0, 3), (7, 1)], [(1, 4), (6, 4), (0, 4)]])
def test_sizes_zero_and_one(shapes: Sequence[tuple[int, int]]) -> None:
    """Dynamo compiles for 0 and 1 by itself; everything else shares one graph."""
    backend = Counting()
    compiled = torch.compile(small, backend=backend, dynamic=True, fullgraph=True)
    for shape in [*shapes, (8, 9), (11, 4), (3, 12)]:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), small(x), equal_nan=True)
    assert len(backend.compiles) <= 1 + sum(0 in s or 1 in s for s in shapes)
    assert not backend.fallbacks


def test_unbacked_dimensions_may_be_zero_or_one() -> None:
    backend = Counting()
    compiled = torch.compile(small, backend=backend, fullgraph=True)
    for rows in (5, 1, 0, 7):
        x = torch.randn(rows, 6)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        torch.testing.assert_close(compiled(x), small(x), equal_nan=True)
    assert (len(backend.compiles), backend.fallbacks) == (1, [])


def test_a_size_that_a_guard_found_divisible() -> None:
    """Channels that groups divide are a multiple of a symbol, not a quotient rounded down."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.unflatten(1, (4, -1)).softmax(2).sum(3)
        return F.silu(F.group_norm(x, 4)), y, x.view(x.size(0), x.size(1) // 4, 4, -1).amax(2)

    maps = [torch.randn(2, 8, 5, 6), torch.randn(3, 12, 4, 9), torch.randn(5, 20, 7, 3)]
    compiles_once(fn, *((x,) for x in maps))


def test_strides_of_sizes_that_may_be_zero() -> None:
    """A quotient of sizes may be 0, which PyTorch's strides take for 1: still no gaps."""

    def fn(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
        return x.view(k, -1).t() + 1, torch.cat([x.view(-1, k).t(), x.view(-1, k).t()], 1)

    compiled = torch.compile(fn, backend="litz", dynamic=True, fullgraph=True)
    for n, k in ((6, 2), (12, 3), (8, 4)):
        x = torch.randn(n)
        for actual, eager in zip(compiled(x, k), fn(x, k), strict=True):
            assert torch.equal(actual, eager) and actual.stride() == eager.stride()


# --- sizes of which nothing is known -------------------------------------------------------------


def unbacked(*shape: int) -> torch.Tensor:
    x = torch.randn(shape)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    return x


def test_a_size_that_a_check_makes_1_broadcasts() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch._check(x.size(0) == 1)
        rows = x.repeat(3, 1), torch.stack([x.expand(3, 5), y]), y.clone().copy_(x)
        return x.expand(3, 5) * 1, x * y, torch.where(x > 0, x, y), *rows

    compiles_once(fn, (unbacked(1, 5), torch.randn(3, 5)))
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", fullgraph=True)
    compiled(unbacked(1, 5), torch.randn(3, 5))
    with pytest.raises(RuntimeError, match="assertion"):
        compiled(unbacked(2, 5), torch.randn(3, 5))

    def found(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x.nonzero()
        torch._check(z.size(0) == 1)
        return z + torch.arange(3)[:, None], x[z[:, 0]].expand(3, x.size(1)) + 1

    compiles_once(found, (torch.diag(T([0.0, 2.0, 0.0])),))


@pytest.mark.parametrize(
    ("fn", "bad", "kind"),
    [
        (lambda x: x.max(0)[0] + 1, 0, IndexError),
        (lambda x: x.max() + 1, 0, RuntimeError),
        (lambda x: x[T([3])] + 1, 0, IndexError),
        (lambda x: F.embedding(T([3]), x) + 1, 0, RuntimeError),
        (lambda x: x.index_put((T([3]),), T(1.0)), 0, IndexError),
        (lambda x: x.gather(0, T([[3, 1]])) + 1, 2, RuntimeError),
        (lambda x: x.select_scatter(torch.ones(4), 0, 3) + 1, 2, IndexError),
        (lambda x: x.slice_scatter(torch.ones(2, 4), 0, 1, 3) + 1, 2, RuntimeError),
        (lambda x: F.interpolate(x.t()[None], size=7), 0, (RuntimeError, IndexError)),
        (lambda x: F.pad(x.t()[None], (1, 1), mode="replicate") + 1, 0, RuntimeError),
    ],
)
def test_what_needs_more_elements_raises(
    fn: Callable[..., Any], bad: int, kind: type[Exception]
) -> None:
    fails_like_eager(fn, (unbacked(5, 4),), (unbacked(bad, 4),), kind)


def test_positions_among_rows_that_data_decide() -> None:
    def fn(x: torch.Tensor, m: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[m][i] + 1

    x, i = torch.randn(5, 4), T([0, 1])
    fails_like_eager(fn, (x, x[:, 0] < 99, i), (x, x[:, 0] > 99, i), IndexError)


def test_sizes_that_only_a_guard_finds_equal() -> None:
    def pools(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 2) + F.adaptive_max_pool2d(x, (4, 4))

    def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 2).softmax(-1) * F.max_pool2d(y, 3) * F.adaptive_max_pool2d(y, 4)

    for fn, sizes in ((pools, [(8, 8)]), (mixed, [(8, 8), (12, 12)])):
        args = [torch.randn(2, 3, *s, requires_grad=True) for s in sizes]
        again = [x.detach().clone().requires_grad_() for x in args]
        fn(*args).sum().backward()
        compiled = torch.compile(fn, backend="litz", dynamic=True, fullgraph=True)
        compiled(*again).sum().backward()
        for x, y in zip(args, again, strict=True):
            torch.testing.assert_close(y.grad, x.grad)

    def unpooled(x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.max_unpool2d(x[:, :, ::2, ::2].sin() + 0 * w, i, 2)

    i = torch.arange(32).view(1, 2, 4, 4) % 16
    compiles_once(unpooled, (torch.randn(1, 2, 8, 8), i, torch.zeros(4)))


def test_writes_through_a_view_of_unknown_sizes() -> None:
    def fn(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        n = int(t.item())
        torch._check(n > 1)
        torch._check(n * 6 == x.numel())
        w = x.view(n, 6)
        w[T([0])] = 5.0
        w[1][1:].mul_(2)
        return x + 1

    x, y = (torch.arange(24.0).reshape(3, 8) for _ in range(2))
    # Looked for in the cache before tracing finds the size, and not kept.
    options = {"check_calls": False}
    compiled = torch.compile(fn, backend="litz", options=options, dynamic=True, fullgraph=True)
    assert torch.equal(compiled(x, T(4)), fn(y, T(4))) and torch.equal(x, y)


def test_sizes_that_are_1_here_leave_eager_s_strides() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x.permute(2, 0, 1)[:, :, : x.shape[1] // 2]
        return z * 2, y[..., : y.shape[-1] // 2] + 1, z.clone()

    x, y = torch.randn(3, 2, 4), torch.randn(3, 5, 4, 2)
    y = y.contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(fn, backend="litz", dynamic=True, fullgraph=True)
    for a, e in zip(compiled(x, y), fn(x, y), strict=True):
        assert torch.equal(a, e) and a.stride() == e.stride()


def test_a_slice_that_a_guard_drops() -> None:
    """Its size is another's, and still written as the slice's."""

    def fn(a: torch.Tensor) -> torch.Tensor:
        v = a * 2
        v.narrow(2, v.shape[2] // 3, v.shape[2] // 2).zero_()
        w = v[:, :, :, v.shape[3] // 3 : v.shape[3] - v.shape[3] // 3]
        return torch.cat([w[w.shape[0] - w.shape[0] // 2 :], -w[: w.shape[0] // 2]], 0)

    x, y = (torch.randn(4, 2, 4, 2, dtype=torch.float64) for _ in range(2))
    y.copy_(x).requires_grad_()
    x.requires_grad_()
    out = torch.compile(fn, backend="litz", dynamic=True, fullgraph=True)(x)
    assert torch.equal(out, fn(y))
    out.sum().backward()
    fn(y).sum().backward()
    assert torch.equal(x.grad, y.grad)


def test_comparisons_of_sizes_are_truths() -> None:
    """What a graph hands on of them to eager mode, which tells True from 1."""

    def fn(x: torch.Tensor, n: int, m: int) -> tuple[torch.Tensor, bool, bool]:
        same, more = n == m, n > m
        torch._dynamo.graph_break()
        return x * 2, same, more

    compiled = torch.compile(fn, backend="litz", dynamic=True)
    for n, m in ((5, 3), (4, 8), (7, 7)):
        _, same, more = compiled(torch.ones(5), n, m)
        assert (same, more) == (n == m, n > m)
        assert type(same) is type(more) is bool
