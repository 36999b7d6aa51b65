"""What eager refuses, though PyTorch's metadata has a result, ATen refuses in programs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.lowering.context import Settings
from tests.lowering.evaluate import extern_names, lower_fn, run_program

aten = torch.ops.aten
X, PLACES = torch.rand(5, 7), torch.tensor([0, 2, 1, 3, 4])
B, N, H = X > 0.5, (X * 9).long(), X.half()
Fn = Callable[..., Any]

TYPES: list[tuple[Fn, torch.Tensor]] = [
    *((fn, B) for fn in (
        torch.argmax, torch.argmin, torch.median, torch.trace, torch.abs, torch.floor, torch.round,
        lambda x: torch.median(x, 0)[0], lambda x: torch.nanmedian(x, 1)[0], F.relu,
        lambda x: x.kthvalue(2)[1], lambda x: x.topk(2)[0], lambda x: torch.fmod(x, x),
        lambda x: torch.remainder(x, x), lambda x: torch.clamp(x, x, x),
        lambda x: torch.bitwise_left_shift(x, x),
        lambda x: torch.addcmul(x, x, x), lambda x: torch.dot(x[0], x[0]),
        lambda x: F.threshold(x, 0, 1), lambda x: x.cumsum(0, dtype=torch.bool),
        lambda x: x.cumprod(0, dtype=torch.bool), lambda x: x.mvlgamma(1),
        lambda x: F.pad(x[None], (1, 1), mode="reflect"),
        lambda x: torch.linalg.cross(x[:, :3], x[:, :3]),
    )),
    *((fn, N) for fn in (
        lambda x: x.softmax(1), lambda x: x.log_softmax(1), torch.std, lambda x: x.var(1), F.gelu,
        F.silu, F.mish, lambda x: F.glu(x[:, 1:]), F.celu, F.softplus, F.logsigmoid,
        F.hardswish, F.hardsigmoid,
        torch.frac, lambda x: torch.hypot(x, x), lambda x: torch.lerp(x, x, 0.5),
        lambda x: torch.nextafter(x, x), lambda x: x.logcumsumexp(0),
        lambda x: torch.logaddexp(x, x),
        lambda x: F.adaptive_max_pool2d(x[None], 2), lambda x: F.unfold(x[None], 2),
        lambda x: F.nll_loss(x, x[:, 0] % 7),
    )),
    *((fn, X) for fn in (
        torch.bitwise_not, lambda x: x & x, lambda x: x ^ x,
        lambda x: torch.bitwise_right_shift(x, x),
    )),
    *((fn, H) for fn in (
        torch.special.bessel_j0, torch.special.erfcx, torch.special.log_ndtr, torch.special.ndtri,
        lambda x: F.avg_pool3d(x[None, None, None], (1, 2, 2)), lambda x: torch.cdist(x, x, 3),
    )),
]  # fmt: skip
SHAPES: list[tuple[Fn, torch.Tensor]] = [
    (lambda x, y, i: x.index_add(0, i, y), torch.rand(5, 1)),
    (lambda x, y, i: x.index_add(0, i, y), torch.rand(5)),
    (lambda x, y, i: x.index_add(1, i, y), torch.rand(3, 5, 7)),
    (lambda x, y, i: x.index_reduce(0, i, y, "amax"), torch.rand(7)),
    (lambda x, y, i: x.index_reduce(0, i, y, "prod"), torch.rand(1, 7)),
    (lambda x, y, i: x.index_put((i,), y), torch.rand(5)),
    (lambda x, y, i: x.index_put((i,), y), torch.rand(1, 5, 7)),
    (lambda x, y, i: x.index_put((i[:3], i[:3]), y), torch.rand(5)),
    (lambda x, y, i: x.put(i, y), torch.rand(7)),
    (lambda x, y: x.index_select(0, y.long()), torch.rand(1, 1)),
    (lambda x, y: x.index_select(0, y.long()), torch.rand(0, 7)),
    (lambda x, y: torch.bucketize(x, y), torch.rand(5, 1)),
    (lambda x, y: x.select_scatter(y, 0, 1), torch.rand(5)),
    (lambda x, y: x.select_scatter(y, 0, 1), torch.rand(0)),
    (lambda x, y: x.slice_scatter(y), torch.rand(5, 1)),
    (lambda x, y: x.slice_scatter(y, 1, 2, 6, 2), torch.rand(5, 3)),
    (lambda x, y: x.slice_scatter(y), torch.rand(3, 5, 7)),
    (lambda x, y: x.diagonal_scatter(y), torch.rand(7)),
    (lambda x, y: F.binary_cross_entropy_with_logits(x, x, pos_weight=y), torch.rand(3, 1, 7)),
    (lambda x, y: y.sort(1)[0], torch.rand(5)),
    (lambda x, y: y.cummax(1)[0], torch.rand(())),
]  # fmt: skip
D, W = X.double(), torch.rand(7)
MIXED: list[tuple[Fn, tuple[torch.Tensor, ...]]] = [
    *((fn, (X, D, PLACES)) for fn in (
        lambda x, y, i: x.index_add(0, i, y), lambda x, y, i: x.index_copy(0, i, y),
        lambda x, y, i: x.index_put((i,), y), lambda x, y, i: x.put(i, y[0, :5]),
        lambda x, y, i: x.index_reduce(0, i, y, "amax"), lambda x, y, i: torch.heaviside(x, y),
        lambda x, y, i: torch.cross(x[:, :3], y[:, :3], 1),
        lambda x, y, i: F.binary_cross_entropy(x, y), lambda x, y, i: F.nll_loss(x, i, y[0]),
        lambda x, y, i: F.layer_norm(x, (7,), y[0]), lambda x, y, i: F.group_norm(x, 7, y[0]),
        lambda x, y, i: F.batch_norm(x, y[0], y[0]),
    )),
    *((fn, (X, PLACES.int())) for fn in (
        lambda x, i: x.index_copy(0, i, x), lambda x, i: x.index_fill(0, i, 1), torch.take,
        lambda x, i: F.cross_entropy(x, i),
    )),
    *((fn, (X, PLACES.short())) for fn in (
        lambda x, i: x.index_select(0, i), lambda x, i: x.index_add(0, i, x),
    )),
    (F.soft_margin_loss, (N, X)), (F.binary_cross_entropy_with_logits, (N, X)),
    (lambda x: torch.full_like(x, -1.5), (N.byte(),)), (lambda x: F.threshold(x, 2.0, -3.0),
    (N.byte(),)), (lambda x, i: x.scatter(0, i, float("inf")), (N, N % 5)),
]  # fmt: skip
TRACED: list[tuple[Fn, torch.Tensor]] = [
    (F.hardshrink, N), (lambda x: F.multi_margin_loss(x, N[:, 0] % 7), H),
    (lambda x: F.interpolate(x[None], size=3), N), (lambda x: F.one_hot(x, 300), N.byte()),
    (lambda x: F.interpolate(x[None], size=3, mode="linear"), N.byte()),
    (lambda x: x.clone().clamp_(0.5, 2.5), N), (lambda x: x.clone().mul_(0.5), N),
    (lambda x: x.clone().addcmul_(x, x * 0.5), N), (lambda x: x.clone().logit_(), N),
]  # fmt: skip
ADDED: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((5,), (5, 4), (4, 1)), ((1, 7), (5, 4), (4, 1)), ((5, 7), (1, 4), (4, 7)),
    ((1, 5, 7), (5, 4), (4, 7)),
]  # fmt: skip


def refused(fn: Fn, *args: torch.Tensor, settings: Settings | None = None) -> None:
    with pytest.raises((RuntimeError, IndexError)) as eager:
        fn(*args)
    with pytest.raises((RuntimeError, IndexError)) as ours:  # some already when they are traced
        run_program(lower_fn(fn, *args, settings=settings), args)
    # Older versions call the shape of a diagonal by two names.
    assert str(ours.value).split()[:8] == str(eager.value).split()[:8]


@pytest.mark.parametrize("fn, x", TYPES)
def test_types_that_eager_has_no_kernel_for(fn: Fn, x: torch.Tensor) -> None:
    refused(fn, x)


@pytest.mark.parametrize("fn, given", MIXED)
def test_types_that_eager_does_not_take_together(fn: Fn, given: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        fn(*given)
    with pytest.raises((RuntimeError, IndexError)):
        run_program(lower_fn(fn, *given), given)


@pytest.mark.parametrize("fn, x", TRACED)
def test_types_that_traces_of_other_operators_take(fn: Fn, x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError):
        fn(x)
    with pytest.raises(RuntimeError):
        torch.compile(fn, backend="litz")(x)


@pytest.mark.parametrize("fn, given", [
    (lambda x, w: F.layer_norm(x, (7,), w), (H, W)),
    (lambda x, i: x.scatter(0, i, float("-inf")), (X, N % 5)),
    (lambda x, i: x.clamp(-1.5, 3), (N, PLACES)),
])  # fmt: skip
def test_types_that_eager_takes_together_are_ours(fn: Fn, given: tuple[torch.Tensor, ...]) -> None:
    program = lower_fn(fn, *given)
    assert extern_names(program) == []
    torch.testing.assert_close(run_program(program, given)[0], fn(*given))


@pytest.mark.parametrize("fn, y", SHAPES)
def test_shapes_that_eager_does_not_join(fn: Fn, y: torch.Tensor) -> None:
    refused(fn, X, y, *([PLACES] if fn.__code__.co_argcount == 3 else []))


@pytest.mark.parametrize("blocks", [("cuda",), ("cpu", "cuda")])
@pytest.mark.parametrize("shapes", ADDED)
def test_what_does_not_broadcast_to_a_product(
    shapes: tuple[tuple[int, ...], ...], blocks: tuple[str, ...]
) -> None:
    """As kernels of either kind of device read it."""
    given = [torch.rand(s) for s in shapes]
    refused(lambda *xs: torch.addmm(*xs).sin(), *given, settings=Settings(blocks=blocks))


@pytest.mark.parametrize("fn", [
    lambda x: x.clamp(0, 1), lambda x: x.clamp_max(~x), lambda x: x.clamp(min=~x),
    lambda x: torch.fmod(x, 2), lambda x: x.cumsum(0), lambda x: x & x,
    lambda x: torch.logaddexp(x, x * 0.5), lambda x: x.softmax(1, dtype=torch.float32),
])  # fmt: skip
def test_bools_that_eager_takes_are_ours(fn: Fn) -> None:
    program = lower_fn(fn, B)
    assert extern_names(program) == []
    torch.testing.assert_close(run_program(program, [B])[0], fn(B))
