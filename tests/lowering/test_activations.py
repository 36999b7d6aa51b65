"""Activations against eager: values, special values, roundings, gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.evaluate import check, check_training

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 0.5, -0.5, 25.0, -25.0, 1e-6, -1e-6)
EXTREME = (math.nan, math.inf, -math.inf)

UNARY = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.7),
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "elu": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.celu(x, 1.3),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 1.7, 15),
    "softplus_default": F.softplus,
    "logsigmoid": F.logsigmoid,
    "logit": torch.logit,
    "logit_eps": lambda x: torch.logit(x, 0.1),
    "threshold": lambda x: F.threshold(x, 0.3, 7.0),
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "nan_to_num": torch.nan_to_num,
    "nan_to_num_given": lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0),
    "sinc": torch.sinc,
    "frac": torch.frac,
    "deg2rad": torch.deg2rad,
    "rad2deg": torch.rad2deg,
    "entr": torch.special.entr,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "glu": lambda x: F.glu(x.view(4, -1), 0),
}

BINARY = {
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "heaviside": torch.heaviside,
    "gelu_backward": aten.gelu_backward,
    "gelu_tanh_backward": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "silu_backward": aten.silu_backward,
    "mish_backward": aten.mish_backward,
    "sigmoid_backward": aten.sigmoid_backward,
    "tanh_backward": aten.tanh_backward,
    "hardsigmoid_backward": aten.hardsigmoid_backward,
    "hardswish_backward": aten.hardswish_backward,
    "hardtanh_backward": lambda g, x: aten.hardtanh_backward(g, x, -0.3, 0.7),
    "leaky_relu_backward": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "threshold_backward": lambda g, x: aten.threshold_backward(g, x, 0.3),
    "hardshrink_backward": lambda g, x: aten.hardshrink_backward(g, x, 0.3),
    "softshrink_backward": lambda g, x: aten.softshrink_backward(g, x, 0.3),
    "elu_backward": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, False, x),
    "elu_backward_result": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, True, x),
    "softplus_backward": lambda g, x: aten.softplus_backward(g, x, 1.7, 15.0),
    "log_sigmoid_backward": lambda g, x: aten.log_sigmoid_backward(g, x, (-x.abs()).exp()),
    "logit_backward": aten.logit_backward,
    "logit_backward_eps": lambda g, x: aten.logit_backward(g, x, 0.1),
    "prelu": lambda x, w: F.prelu(x.view(1, -1), w),
}


def values(dtype: torch.dtype, seed: int, extreme: bool = True) -> torch.Tensor:
    """128 elements (whole vectors in ATen's kernels), special ones among them."""
    gen = torch.Generator().manual_seed(seed)
    special = torch.tensor(SPECIAL + EXTREME if extreme else SPECIAL)
    noise = torch.randn(128 - len(special), generator=gen) * 2
    x = torch.cat([special, noise])
    return x[torch.randperm(128, generator=gen)].to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: torch.dtype) -> None:
    # ATen's vectorised erf is nan at infinity and loses digits in the tail; the scalar one not.
    erf = name == "gelu"
    # 16-bit results are eager's to the bit: the arithmetic and its roundings are the same.
    exact = dtype.itemsize == 2 and not erf
    check(UNARY[name], values(dtype, 0, extreme=not erf), exact=exact, as_called=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: torch.dtype) -> None:
    exact = dtype.itemsize == 2
    check(BINARY[name], values(dtype, 1), values(dtype, 2), exact=exact, as_called=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("eps", (None, 0.2))
def test_logit_inside_its_domain(dtype: torch.dtype, eps: float | None) -> None:
    x = torch.linspace(0, 1, 128).to(dtype)
    check(lambda x: torch.logit(x, eps), x, exact=dtype.itemsize == 2)
    g = values(dtype, 3, extreme=False)
    check(lambda g, x: aten.logit_backward(g, x, eps), g, x, exact=dtype.itemsize == 2)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("limit", (0.1, 0.3, 0.7))
def test_thresholds_that_16_bits_cannot_hold(dtype: torch.dtype, limit: float) -> None:
    near = torch.tensor([limit, -limit]).to(dtype)
    steps = [near, torch.nextafter(near, near * 2), torch.nextafter(near, near * 0)]
    x = torch.cat(steps).repeat(16)
    g = torch.ones_like(x)
    for fn in (F.hardshrink, F.softshrink, lambda x, v: F.threshold(x, v, 5.0)):
        check(lambda x, fn=fn: fn(x, limit), x, exact=True, as_called=True)
    for back in (aten.hardshrink_backward, aten.softshrink_backward, aten.threshold_backward):
        check(lambda g, x, back=back: back(g, x, limit), g, x, exact=True, as_called=True)
    check(lambda g, x: aten.hardtanh_backward(g, x, -limit, limit), g, x, exact=True)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("dim", (0, 1, -1))
def test_glu_and_its_gradient(dtype: torch.dtype, dim: int) -> None:
    x = torch.randn(4, 6, 8).to(dtype).requires_grad_()
    check_training(lambda x: F.glu(x, dim), x)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_training(dtype: torch.dtype) -> None:
    x = torch.randn(4, 8).to(dtype).requires_grad_()
    w = torch.rand(8).to(dtype).requires_grad_()

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        smooth = F.gelu(x), F.silu(x), F.mish(x), F.logsigmoid(x), F.softplus(x), F.elu(x)
        return *smooth, F.prelu(x, w), F.selu(x), F.celu(x), F.hardswish(x), F.relu6(x)

    check_training(fn, x, w)


def test_rrelu() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    check_training(lambda x: F.rrelu(x, 0.1, 0.4), x)
    g, noise = torch.randn(4, 8), torch.rand(4, 8)

    def random_slopes(g: torch.Tensor, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return aten.rrelu_with_noise_backward(g, x, noise, 0.1, 0.4, True, False)

    check(random_slopes, g, x, noise, as_called=True)


def test_integers() -> None:
    x = torch.arange(-8, 8)
    check(lambda x: (F.threshold(x, 2, 9), F.relu6(x), torch.nan_to_num(x)), x)
    check(lambda x: (torch.isposinf(x), torch.isneginf(x)), x)
    check(lambda x: (torch.deg2rad(x), torch.sinc(x), torch.xlogy(x, 3), torch.xlogy(2, x)), x)
    check(lambda x: torch.heaviside(x, x + 1), x)


def test_dynamic_shapes() -> None:
    x = torch.randn(6, 10)
    program = check(lambda x: F.glu(F.gelu(x), 1), x, dynamic=True)
    assert program.symbols


@pytest.mark.parametrize(("shape", "dim"), [((0, 4, 6, 3), 2), ((0, 4), 1), ((4, 0), 0)])
def test_the_gradient_of_an_empty_glu(shape: tuple[int, ...], dim: int) -> None:
    x = torch.randn(*shape, requires_grad=True)
    torch._dynamo.reset()
    fn = torch.compile(lambda x: F.glu(x, dim), backend="litz", options={"check_ir": True})
    (grad,) = torch.autograd.grad(fn(x).sum(), x)
    assert grad.shape == x.shape and grad.stride() == x.stride()
