"""Reductions of rows and of columns of one matrix, in programs that go over rows."""

from __future__ import annotations


import pytest
import torch
import torch.nn.functional as F
from judge import check
from traces import floats, trace

from tests.quick import some

pytest.importorskip("triton.language")

from litz.kernel.parse import parse_recipe  # noqa: E402
from litz.kernel.verify import verify  # noqa: E402

Tensor = torch.Tensor


def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A layer norm of what a bias was added to: the gradients of all three sum columns."""
    return F.layer_norm(x + b, x.shape[-1:], w, b)


def scaled(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w)


def extremes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.softmax(-1), x.amax(0) * 2, (x * x.sum(-1, keepdim=True)).sum(0)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


CASES = {
    "short rows": (normed, (leaf(1152, 48), leaf(48), leaf(48))),
    "odd": (scaled, (leaf(1031, 67), leaf(67))),
    "sliced": (lambda x, w: scaled(x[:, 1:91], w), (leaf(1027, 99), leaf(90))),
    "several loops of rows": (normed, (leaf(3, 350, 64), leaf(64), leaf(64))),
    "half": (scaled, (leaf(1100, 40, dtype=torch.bfloat16), leaf(40, dtype=torch.bfloat16))),
}


@pytest.mark.parametrize("name", some(list(CASES), 2))
def test_gradients(name: str) -> None:
    fn, args = CASES[name]
    check(fn, *args, grad=True, runs=1, target="triton")


def test_other_reductions() -> None:
    check(extremes, torch.randn(1030, 50), runs=1, target="triton")


@pytest.mark.parametrize("fn", [normed, scaled])
def test_a_gradient_reads_its_matrices_once(fn: object) -> None:
    vectors = [floats(256)] * (2 if fn is normed else 1)
    _, made = trace(fn, floats(8192, 256), *vectors)  # type: ignore[arg-type]
    (kernel,) = made.stages.kernels
    rows, columns = kernel.recipe.kernels
    assert rows.form == "crossed" and columns.form == "passes"
    verify(kernel.recipe)
    assert parse_recipe(kernel.recipe.text) == kernel.recipe
