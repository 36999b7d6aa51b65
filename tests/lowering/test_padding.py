"""Products of uneven sizes, as GPUs get them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from evaluate import check
from evaluate import lower_fn as lower
from torch import Tensor

from litz.ir.program import Extern, Program, TensorRef
from litz.lowering.context import Settings

GPU = Settings(blocks=("cpu", "cuda"))
MM, ADDMM, BMM = "aten.mm.out", "aten.addmm.out", "aten.bmm.out"


def half(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).half()


def sizes(program: Program, name: str) -> list[str]:
    """Sizes and strides of the matrices that products called ``name`` read and write."""
    out = []
    for n in program.nodes:
        if isinstance(n, Extern) and n.target_name == name:
            made = [program.buffers[o] for o in n.outputs if o]
            for r in (*n.args, *made):
                assert isinstance(r, TensorRef) or r in made
                out.append(f"{'x'.join(map(str, r.shape))} by {','.join(map(str, r.strides))}")
    return out


def on_gpu(fn: Callable[..., object], *args: Tensor, externs: tuple[str, ...] = (MM,)) -> Program:
    check(fn, *args, settings=GPU, externs=externs)
    return lower(fn, *args, settings=GPU)


def loss(x: Tensor, w: Tensor) -> Tensor:
    return F.log_softmax((x @ w.t()).view(4, 100, -1)[:, :-1], -1).sum()


def test_an_uneven_last_size() -> None:
    args = half(400, 512), half(301, 512)
    assert sizes(on_gpu(loss, *args), MM) == [
        "400x512 by 512,1",
        "512x304 by 1,512",
        "400x304 by 304,1",
    ]
    assert "400x301 by 301,1" in sizes(lower(loss, *args), MM)  # the CPU's libraries do not care
    single = tuple(a.float() for a in args)
    assert "400x301 by 301,1" in sizes(lower(loss, *single, settings=GPU), MM)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: x @ w.t(),
        lambda x, w: (x @ w.t())[:, 3:],
        lambda x, w: (x @ w.t()).view(4, 100, -1)[1],
        lambda x, w: (x @ w.t()).t(),
    ],
)
def test_results_have_eagers_layout(fn: Callable[..., Tensor]) -> None:
    on_gpu(fn, half(400, 512), half(301, 512))


def test_kernels_give_results_eagers_layout() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w.t())[:, 3:].t()

    args = half(400, 512), half(301, 512)
    ours = torch.compile(fn, backend="litz", options={"target": "triton"})(*args)
    assert ours.stride() == fn(*args).stride()


def test_other_calls_get_eagers_layout() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.mode(x @ w.t(), 1).values

    program = on_gpu(fn, half(400, 512), half(301, 512), externs=(MM, "aten.mode.default"))
    assert "400x301 by 301,1" in sizes(program, MM)


def test_what_two_products_read_is_stored_once_with_zeros() -> None:
    """The gradient of a wide layer: summed over in one product, spread over in the other."""

    def fn(x: Tensor, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        grad = torch.relu(x) * 2
        return grad @ w, grad.t() @ h

    program = on_gpu(fn, half(512, 515), half(515, 512), half(512, 256))
    assert sizes(program, MM) == [
        "512x528 by 528,1",
        "528x512 by 512,1",
        "512x512 by 512,1",
        "528x512 by 1,528",
        "512x256 by 256,1",
        "528x256 by 256,1",
    ]
    loops = [n for n in program.nodes if not isinstance(n, Extern)]
    assert len(loops) == 2  # the gradient, and the weight with zeros below


def test_infinite_numbers_do_not_spread() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (torch.relu(x) @ w) + 1

    x = half(512, 515)
    x[3, 514] = torch.inf
    x[5] = torch.nan
    on_gpu(fn, x, half(515, 512))


def test_a_chain_of_products() -> None:
    """What lies behind the rows of a product's result is not known to be zero."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        return torch.mm(torch.mm(x, y), y.t()) * 2

    x = half(512, 512) / 16
    x[2, 7] = torch.inf
    on_gpu(fn, x, half(512, 333) / 16)


def test_small_products_and_those_of_odd_shape_stay() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x @ y)

    assert "300x515 by 515,1" in sizes(on_gpu(fn, half(300, 515), half(515, 8)), MM)
    assert "3x515 by 515,1" in sizes(on_gpu(fn, half(3, 515), half(515, 512)), MM)


def test_a_vector_is_added() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, b))

    program = on_gpu(fn, half(512, 512) / 8, half(301, 512) / 8, half(301), externs=(ADDMM,))
    assert sizes(program, ADDMM)[0] == "304 by 1"


def test_one_number_is_added_everywhere() -> None:
    def fn(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return F.gelu(torch.addmm(b, x, w))

    args = half(1) + 3, half(300, 304) / 8, half(304, 301) / 8
    program = on_gpu(fn, *args, externs=(ADDMM,))
    assert sizes(program, ADDMM)[0] == "304 by 1"
    on_gpu(fn, half(1) + 3, half(300, 301) / 8, half(301, 304) / 8, externs=(ADDMM,))


@pytest.mark.parametrize("top", [1.0, torch.inf, torch.nan])
def test_parts_of_rows_that_products_read(top: float) -> None:
    """Behind a part of a row there are no zeros, but the rest of the row."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(x) * x
        left = y[:, :290]
        return y @ w, left @ left.t()

    x = half(304, 300) / 4
    x[:, 295] = top
    program = on_gpu(fn, x, half(300, 304))
    assert "304x304 by 304,1" in sizes(program, MM)


def test_batches() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(torch.bmm(x, y), -1)

    program = on_gpu(fn, half(3, 512, 512), half(3, 512, 301), externs=(BMM,))
    assert sizes(program, BMM)[-1] == "3x512x304 by 155648,304,1"
