"""Attention on a GPU, whose operators count on layouts and pass state along; skips without one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MODES = [None, "reduce-overhead"]


def inputs(dtype: torch.dtype, keys: int, batch: int = 2) -> list[Tensor]:
    shapes = [(batch, 4, 11, 16), (batch, 4, keys, 16), (batch, 4, keys, 16)]
    return [torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in shapes]


def gradients(f: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
    out = f(*args)
    weights = torch.linspace(-1, 1, out.numel(), device="cuda").view_as(out).to(out.dtype)
    wanted = [a for a in args if a.requires_grad]
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), wanted)]


def widened(a: Tensor) -> Tensor:
    return a.detach().double().requires_grad_(a.requires_grad) if a.is_floating_point() else a


def judge(
    f: Callable[..., Tensor],
    options: dict[str, object],
    *args: Tensor,
    exact_f: Callable[..., Tensor] | None = None,
) -> None:
    """Three steps against float64, beside eager's own error.  exact_f: ``f`` in float64."""
    exact = [widened(a) for a in args]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        reference = gradients(exact_f or f, *exact)
    eager = gradients(f, *args)
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="litz", **options)
    for _ in range(3):
        for mine, e, r in zip(gradients(compiled, *args), eager, reference, strict=True):
            assert (mine.dtype, mine.stride(), mine.device) == (e.dtype, e.stride(), e.device)
            noise = torch.finfo(mine.dtype).eps * 4 * r.norm()
            assert (mine - r).norm() <= 2 * (e - r).norm() + noise


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dtype", "keys"), itertools.product(DTYPES, (13, 15, 16)))
def test_float_masks(dtype: torch.dtype, keys: int, mode: str | None) -> None:
    mask = torch.randn(2, 1, 11, keys, device="cuda", dtype=dtype)
    attention = F.scaled_dot_product_attention
    judge(lambda q, k, v, m: attention(q, k, v, attn_mask=m), {"mode": mode},
          *inputs(dtype, keys), mask)  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dtype", "keys"), itertools.product(DTYPES, (13, 15)))
def test_padding_masks(dtype: torch.dtype, keys: int, mode: str | None) -> None:
    mask = torch.arange(keys, device="cuda")[None] < torch.tensor([[keys], [7]], device="cuda")
    attention = F.scaled_dot_product_attention
    judge(lambda q, k, v, m: attention(q, k, v, attn_mask=m[:, None, None]), {"mode": mode},
          *inputs(dtype, keys), mask)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_causal(dtype: torch.dtype, dynamic: bool) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True)

    judge(attention, {"dynamic": dynamic}, *inputs(dtype, 11))


@pytest.mark.parametrize("mode", MODES)
def test_a_model_in_float32(mode: str | None) -> None:
    """Its backward graph takes attention's random state, which eager keeps on the CPU."""
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True).cuda()
    padding = torch.arange(13, device="cuda")[None] >= torch.tensor([[13], [7]], device="cuda")
    exact = copy.deepcopy(layer).double()
    x = torch.randn(2, 13, 32, device="cuda", requires_grad=True)
    judge(
        lambda x: layer(x, src_key_padding_mask=padding),
        {"mode": mode},
        x,
        exact_f=lambda x: exact(x, src_key_padding_mask=padding),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_query(dtype: torch.dtype) -> None:
    """Its strides count although it is one: CaiT's attention of a class token."""
    x = torch.randn(2, 17, 4, 16, device="cuda", dtype=dtype, requires_grad=True)

    def attention(x: Tensor) -> Tensor:
        q = (x * 2)[:, 0].unsqueeze(1).transpose(1, 2)
        return F.scaled_dot_product_attention(q, *[x.transpose(1, 2)] * 2)

    judge(attention, {}, x)


def test_dropout_repeats_with_the_seed() -> None:
    args = inputs(torch.float16, 13)
    compiled = torch.compile(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), backend="litz"
    )
    runs = []
    for _ in range(3):
        torch.manual_seed(3)
        runs.append(gradients(compiled, *args))
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))
