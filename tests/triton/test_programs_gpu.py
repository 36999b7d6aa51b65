"""Programs that only a GPU shows to be right; skips itself without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
Tensor = torch.Tensor


def errors(out: Tensor, ref: Tensor) -> tuple[float, float]:
    """The largest and the mean relative error."""
    found = ((out.double() - ref) / ref).abs()
    return found.max().item(), found.mean().item()


@pytest.mark.parametrize(
    "fn",
    [torch.pow, torch.atan2, torch.asin, torch.acos, torch.atan, torch.acosh, torch.asinh],
    ids=lambda f: f.__name__,
)
def test_cudas_math_is_as_exact_as_in_eager_mode(fn: Callable[..., Tensor]) -> None:
    """Triton has a CUDA library of its own, which may be an older one."""
    torch.manual_seed(0)
    x = torch.rand(1 << 18, device="cuda") * 0.98 + 0.01
    x = x + 1 if fn is torch.acosh else x
    args = (x, torch.randn_like(x)) if fn in (torch.pow, torch.atan2) else (x,)
    out = torch.compile(fn, backend="litz")(*args)
    ref = fn(*(a.double() for a in args))
    for mine, eager in zip(errors(out, ref), errors(fn(*args), ref), strict=True):
        assert mine <= (1.1 if fn is torch.pow else 2.0) * eager


def test_sums_of_open_sizes_that_wrap_around() -> None:
    """The sizes of a strided convolution's result, of which products have large constants."""

    def fn(x: Tensor, w: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.float16):
            y = F.conv2d(x, w, stride=3, padding=2, groups=3)
            return F.batch_norm(y, mean, var.abs() + 0.5, mean, var, False)

    compiled = torch.compile(fn, backend="litz", dynamic=True)
    w, mean, var = (torch.randn(*s, device="cuda") for s in ((12, 6, 2, 2), (12,), (12,)))
    for n, height, width in ((2, 3, 14), (5, 7, 29), (3, 5, 20)):
        x = torch.randn(n, 18, height, width, device="cuda").to(memory_format=torch.channels_last)
        assert torch.allclose(compiled(x, w, mean, var), fn(x, w, mean, var), atol=1e-3)


def test_quotients_of_open_sizes_in_a_loops_end() -> None:
    """PyTorch bounds the kernel's size by 2^31 - 1."""
    compiled = torch.compile(
        lambda x, w: F.conv1d(x, w, stride=3, padding=2) * 0.125, backend="litz", dynamic=True
    )
    for size, taps in ((1, 1), (15, 3), (40, 9)):
        x, w = torch.randn(1, 1, size, device="cuda"), torch.randn(1, 1, taps, device="cuda")
        assert torch.allclose(compiled(x, w), F.conv1d(x, w, stride=3, padding=2) * 0.125)


@pytest.mark.parametrize("as_result", [False, True])
def test_attention_after_eager_mode(as_result: bool) -> None:
    """Plans that eager mode made for another layout of the gradient are not met."""
    torch.manual_seed(0)
    shape = (3, 37 + as_result, 2, 32)  # not the other case's plans either
    leaves = [torch.randn(*shape, device="cuda").half().transpose(1, 2) for _ in range(3)]
    leaves = [x.requires_grad_() for x in leaves]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    weights = torch.randn(*shape, device="cuda").half().transpose(1, 2)
    weights = weights if as_result else weights.contiguous()
    attend = F.scaled_dot_product_attention
    wanted = torch.autograd.grad(attend(*exact), exact, weights.double())
    torch.autograd.grad(attend(*leaves), leaves, weights)
    compiled = torch.compile(lambda *x: attend(*x), backend="litz")
    found = torch.autograd.grad(compiled(*leaves), leaves, weights)
    for mine, right in zip(found, wanted, strict=True):
        assert (mine.double() - right).norm() <= 3e-3 * right.norm()


def test_attention_whose_gradients_lie_in_two_ways() -> None:
    """Plans of PyTorch 2.11 for cuDNN do not tell them apart; eager mode is wrong here, or ends."""

    def fn(q: Tensor, k: Tensor, v: Tensor, w: Tensor, exact: bool = False) -> Tensor:
        def attention(q: Tensor) -> Tensor:
            if exact:
                out = F.scaled_dot_product_attention(q, k, v)
            else:
                attend = torch.ops.aten._scaled_dot_product_cudnn_attention
                out = attend(q, k, v, None, True, 0.0, False, False)[0]
            return out.transpose(1, 2).flatten(2)

        wide = torch.cat((attention(q), attention(2 * q).sin(), attention(3 * q)), 2)
        last = attention(wide[..., :32].unflatten(2, (2, 16)).transpose(1, 2))
        return last @ w + wide @ torch.cat((w, w, w))

    torch.manual_seed(0)
    values = [torch.randn(*s, device="cuda") for s in ((3, 2, 23, 16),) * 3 + ((32, 8),)]
    leaves = [x.bfloat16().requires_grad_() for x in values]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    weights = torch.randn(3, 23, 8, device="cuda")
    compiled = torch.compile(fn, backend="litz")
    for _ in range(3):
        out = compiled(*leaves)
        found = torch.autograd.grad((out.float() * weights).sum(), leaves)
        ref = fn(*exact, exact=True)
        wanted = torch.autograd.grad((ref * weights).sum(), exact)
        for mine, right in zip((out, *found), (ref, *wanted), strict=True):
            assert (mine.double() - right).norm() <= 0.03 * right.norm()


def test_bfloat16_beyond_what_float16_holds() -> None:
    """LLVM takes bfloat16 for a part of float16: see ``test_ptx``."""
    half = torch.tensor([0.25, -0.4272, 6e-5, 1.0], device="cuda").half()
    wide = torch.tensor([65536.0, -65536.0, 1e9, 1e-9], device="cuda").bfloat16()
    for fn in (
        lambda x, y: x.clone().mul_(y),
        lambda x, y: (y * 0.25).half() + 0 * x,
        lambda x, y: (y.float() * y.float().reciprocal()).half(),
    ):
        assert torch.equal(torch.compile(fn, backend="litz")(half, wide), fn(half, wide))


@pytest.mark.parametrize("shown", [False, True], ids=["saved", "returned"])
def test_logits_of_an_uneven_vocabulary(shown: bool) -> None:
    """Saved with padded rows, unless the caller sees them."""

    def loss(h: Tensor, w: Tensor, y: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        logits = F.linear(h, w)
        found = F.cross_entropy(logits.float(), y)
        return (found, logits) if shown else found

    def step(fn: Callable[..., object], dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(0)
        h, w = (torch.randn(*s, device="cuda").bfloat16() for s in ((512, 320), (5003, 320)))
        h, w = (t.to(dtype).requires_grad_() for t in (h, w))
        found = fn(h, w, torch.arange(512, device="cuda"))
        first = found[0] if isinstance(found, tuple) else found
        assert isinstance(first, Tensor)
        return [first.detach(), *torch.autograd.grad(first, (h, w))]

    exact, eager = step(loss, torch.float64), step(loss, torch.bfloat16)
    made = step(torch.compile(loss, backend="litz"), torch.bfloat16)
    for a, e, x in zip(made, eager, exact, strict=True):
        assert (a.double() - x).norm() <= 2 * (e.double() - x).norm() + 1e-6 * x.norm()
