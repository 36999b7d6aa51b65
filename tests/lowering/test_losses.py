"""Losses and their gradients against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.evaluate import check, check_training, nests, run_program

aten = torch.ops.aten
Tensor = torch.Tensor
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
REDUCTIONS = ("none", "mean", "sum")

PAIRS: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": lambda x, t, reduction: F.smooth_l1_loss(x, t, reduction=reduction, beta=0.7),
    "huber": lambda x, t, reduction: F.huber_loss(x, t, reduction=reduction, delta=0.7),
    "soft_margin": F.soft_margin_loss,
    "kl_div": F.kl_div,
    "bce": lambda x, t, reduction: F.binary_cross_entropy(
        x.sigmoid(), t.sigmoid(), reduction=reduction
    ),
    "bce_logits": lambda x, t, reduction: F.binary_cross_entropy_with_logits(
        x, t.sigmoid(), reduction=reduction
    ),
}


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype).requires_grad_()


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str, dtype: torch.dtype) -> None:
    x, t = sample(4, 32, dtype=dtype), sample(4, 32, dtype=dtype, seed=6)
    if name == "kl_div":
        t = t.detach().abs()
    loss = PAIRS[name]

    def fn(x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        return tuple(loss(x, t, reduction=r) for r in REDUCTIONS)

    # bf16 sums of hundreds of gradients lose what eager loses: a few units in the last place.
    check_training(fn, x, t.detach(), ulps=4)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_elementwise_losses_round_as_eager_does(dtype: torch.dtype) -> None:
    x, t, g = (sample(256, dtype=dtype, seed=s).detach() for s in (1, 2, 3))
    for name in ("mse", "smooth_l1", "huber", "soft_margin"):
        check(lambda x, t, f=PAIRS[name]: f(x, t, reduction="none"), x, t, exact=True)
    p, q = x.sigmoid(), t.sigmoid()
    logits = F.binary_cross_entropy_with_logits
    check(lambda x, q: logits(x, q, reduction="none"), x, q, exact=True)
    check(lambda x, q, g: logits(x, q, g, pos_weight=g, reduction="none"), x, q, g, exact=True)
    check(lambda p, q: F.binary_cross_entropy(p, q, reduction="none"), p, q, exact=True)
    check(lambda p, q, w: F.binary_cross_entropy(p, q, w, reduction="none"), p, q, g, exact=True)
    for back in (aten.mse_loss_backward, aten.soft_margin_loss_backward):
        check(lambda g, x, t, f=back: f(g, x, t, 0), g, x, t, exact=True)
    check(lambda g, x, t: aten.smooth_l1_loss_backward(g, x, t, 0, 0.7), g, x, t, exact=True)
    check(lambda g, p, q: aten.binary_cross_entropy_backward(g, p, q, None, 0), g, p, q, exact=True)


def test_binary_cross_entropy_at_the_edges() -> None:
    x, t = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5]), torch.tensor([0.0, 1.0, 1.0, 0.0, 0.5])
    check(lambda x, t: F.binary_cross_entropy(x, t, reduction="none"), x, t)
    check(lambda x, t: aten.binary_cross_entropy_backward(x, x, t, t, 1), x, t)
    y = torch.tensor([1e3, -1e3, 88.0, -88.0, 0.0])
    check(lambda y, t: F.binary_cross_entropy_with_logits(y, t, reduction="none"), y, t)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights(dtype: torch.dtype) -> None:
    x, t = sample(4, 8, dtype=dtype), sample(4, 8, dtype=dtype, seed=2).detach().sigmoid()
    w, p = (sample(8, dtype=dtype, seed=s).detach().abs() for s in (3, 4))

    def fn(x: Tensor, t: Tensor, w: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        return (
            F.binary_cross_entropy(x.sigmoid(), t, w),
            F.binary_cross_entropy_with_logits(x, t, w, pos_weight=p),
            F.binary_cross_entropy_with_logits(x, t, pos_weight=p, reduction="sum"),
        )

    check_training(fn, x, t, w, p)


# --- classes -------------------------------------------------------------------------------------


def classes(*shape: int, n: int) -> Tensor:
    return torch.randint(0, n, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("weighted", (False, True))
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_cross_entropy(dtype: torch.dtype, reduction: str, weighted: bool) -> None:
    x, t = sample(6, 8, dtype=dtype), classes(6, n=8)
    w = sample(8, dtype=dtype, seed=4).detach().abs()

    def fn(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
        kept = w if weighted else None
        return F.cross_entropy(x, t, kept, reduction=reduction, ignore_index=int(ignored))

    for ignored in (-100, 2):
        t[3] = ignored
        check_training(fn, x, t, w)


def test_cross_entropy_of_images_and_single_samples() -> None:
    x, t = sample(2, 5, 3, 4), classes(2, 3, 4, n=5)
    t[0, 1] = -100
    for reduction in REDUCTIONS:
        check_training(lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r), x, t)
    check_training(lambda x, t: F.cross_entropy(x, t), sample(5), torch.tensor(3))
    check_training(
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), sample(4, 5), classes(4, n=5)
    )
    soft = sample(4, 5, seed=8).detach().softmax(1)
    check_training(lambda x, t: F.cross_entropy(x, t), sample(4, 5), soft)


def test_everything_ignored() -> None:
    x, t = sample(4, 5).detach(), torch.full((4,), -100)
    check(lambda x, t: F.nll_loss(x, t), x, t)
    check(lambda x, t: F.nll_loss(x, t, reduction="sum"), x, t)
    zero = torch.zeros(())
    check(lambda x, t, z: aten.nll_loss_backward(z + 1, x, t, None, 1, -100, z), x, t, zero)


def test_a_class_out_of_range_is_an_error() -> None:
    x, t = sample(4, 5).detach(), torch.tensor([0, 1, 5, 2])
    good = torch.tensor([0, 1, 4, 2])
    program = check(lambda x, t: F.nll_loss(x, t), x, good)
    with pytest.raises(IndexError):
        run_program(program, [x, t])


@pytest.mark.parametrize("ignored", (-100, 7))
def test_large_vocabulary_is_few_nests(ignored: int) -> None:
    x, t = sample(64, 3200), classes(64, n=3200)
    t[5:9] = ignored

    def fn(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(x, t, ignore_index=ignored)

    forward, backward = check_training(fn, x, t)
    # max, log-sum-exp, log-softmax (which the backward reads), the mean; the gradient, whose rows
    # are one-hot before: their sums take no loop
    assert nests(forward) == 4 and nests(backward) == 1
    assert nests(check(fn, x.detach(), t)) == 3  # without a backward nothing of full size is stored


def test_dynamic_shapes() -> None:
    x, t = sample(6, 8).detach(), classes(6, n=8)
    assert check(lambda x, t: F.cross_entropy(x, t), x, t, dynamic=True).symbols
    y = sample(6, 8, seed=3).detach()
    assert check(lambda x, y: (F.mse_loss(x, y), F.huber_loss(x, y)), x, y, dynamic=True).symbols
