"""Complex numbers in kernels: results, memory and the calls that are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quick import some
from torch import Tensor

import litz

aten = torch.ops.aten


def compiled(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[str], int]:
    """What a function gives, the calls of ATen that are left, and how many kernels it takes."""
    from litz.backend import compile_with
    from litz.options import make_options

    calls: list[str] = []
    kernels = 0

    def observe(kind: str, graph: Any, stages: Any) -> None:
        nonlocal kernels
        assert stages.fallback in ("", "it makes views alone")
        calls.extend(x.target_name for x in stages.externs())
        kernels += len(stages.kernels)

    def backend(gm: Any, inputs: Any) -> Any:
        return compile_with(gm, inputs, make_options({"check_ir": True}), observe)

    torch._dynamo.reset()
    out = torch.compile(fn, backend=backend, **options)(*args)
    return out, calls, kernels


def complexes(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)


ROPE = ["aten.view_as_real.default"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rotary_embeddings_are_one_kernel(dtype: torch.dtype) -> None:
    x = torch.randn(2, 8, 3, 32).to(dtype)
    turn = torch.polar(torch.ones(8, 1, 16), torch.randn(8, 1, 16))
    got, calls, kernels = compiled(rotated, x, turn)
    assert torch.equal(got, rotated(x, turn))
    assert (calls, kernels) == (ROPE, 1)


def filled(x: Tensor, y: Tensor) -> Tensor:
    out = x.new_zeros(x.shape)
    out[1] = y
    return out * x


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "product": (lambda x, y: (x * y).real * 2, (complexes(5, 7), complexes(5, 7))),
    "product of a real one": (
        lambda x, y: (x * y + y).imag.relu(),
        (complexes(5, 7), torch.randn(7)),
    ),
    "number": (
        lambda x: (x * (2 - 1j) - 3 + 2j * x).abs(),
        (complexes(9, dtype=torch.complex128),),
    ),
    "returned whole": (lambda x, y: x * y + x.conj(), (complexes(4, 6), complexes(4, 6))),
    "turned": (lambda x, y: x.t() * y.t() - x.t(), (complexes(4, 6), complexes(4, 6))),
    "conjugate of what is computed": (lambda x: (x * x + 1).conj(), (complexes(6),)),
    "views": (
        lambda x: (x[1:, ::2].transpose(0, 1).reshape(-1) * 2j).view(3, -1).sum(0).abs(),
        (complexes(5, 6),),
    ),
    "polar": (
        lambda r, a: torch.polar(r, a) * torch.complex(a, r),
        (torch.rand(8), torch.randn(8)),
    ),
    "joined": (
        lambda x, y: torch.view_as_real(torch.cat([x * y, torch.stack([y, x])[0]], -1)),
        (complexes(3, 4), complexes(3, 4)),
    ),
    "spectrum": (
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.arange(9) * 1j),
        (torch.randn(2, 16),),
    ),
    "where": (
        lambda x, y: torch.view_as_real(torch.where(x.abs() > 1, x * y, 0) + y),
        (complexes(12), complexes(12)),
    ),
    "written": (lambda x, y: x.mul_(y).add_(1).angle(), (complexes(12), complexes(12))),
    "constants": (
        lambda x: (x * -torch.full((3,), 2 + 1j), -torch.full((3,), 2 + 1j).conj()),
        (complexes(3),),
    ),
    "parts of two shapes": (
        lambda x, y: (torch.complex(x[:, None], y).reshape(-1) * 2, torch.complex(x[:1], y)[3]),
        (torch.randn(5), torch.randn(7)),
    ),
    "joined with integers": (
        lambda x, i: (torch.cat([x * 2, i]) * 1j, torch.slice_scatter(x * 2, i, 0, 1, 3) * 1j),
        (complexes(4), torch.arange(1, 3)),
    ),
    "returned view": (lambda x: (x[1], x * x + 1), (complexes(3, 4),)),
    "written into zeros": (
        lambda x, r: (filled(x, x[0] * 2j), filled(x, r), filled(x * 1j, x[0])),
        (complexes(3, 4), torch.randn(4)),
    ),
    "padded": (
        lambda x: (F.pad(x * 2j, (1, 2)), F.pad(x * 2j, (1, 2), value=1.5)), (complexes(3, 4),)
    ),
    "numbers of operators": (
        lambda x: (aten.mul.Scalar(x.t() * x.t(), 2) * 1j, aten.add.Scalar(x * x, 2, 3) * x),
        (complexes(3, 4),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", some(list(CASES), 7))
def test_values_strides_and_memory_are_eagers(name: str) -> None:
    fn, args = CASES[name]
    given = [a.clone() for a in args]
    expected = fn(*given)
    mine = [a.clone() for a in args]
    got, _, _ = compiled(fn, *mine)
    several = isinstance(got, tuple)
    tolerance = {"rtol": 2e-6, "atol": 2e-6}  # the last lanes of eager's own loops round otherwise
    for g, e in zip(got if several else [got], expected if several else [expected], strict=True):
        assert (g.dtype, g.stride(), g.is_conj()) == (e.dtype, e.stride(), e.is_conj())
        torch.testing.assert_close(g, e, **tolerance)
    for g, e in zip(mine, given, strict=True):
        torch.testing.assert_close(g, e, **tolerance)
    if name == "returned view":
        assert got[0]._base is mine[0] or got[0].data_ptr() == mine[0][1].data_ptr()


def test_results_that_are_views_of_each_other_stay_so() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = x * x
        return y, torch.view_as_real(y), y.t().real, y.conj()

    x = complexes(3, 4)
    got, _, _ = compiled(fn, x)
    for g, e in zip(got, fn(x), strict=True):
        torch.testing.assert_close(g, e)
        assert g.untyped_storage().data_ptr() == got[0].untyped_storage().data_ptr()


def test_gradients() -> None:
    def loss(x: Tensor, turn: Tensor) -> Tensor:
        z = torch.view_as_complex(x.reshape(5, -1, 2)) * turn
        return (z * z.conj()).real.mean() + z.abs().sum()

    args = torch.randn(5, 8, dtype=torch.float64), complexes(4, dtype=torch.complex128)
    mine, eager = ([a.clone().requires_grad_() for a in args] for _ in range(2))
    got, _, _ = compiled(loss, *mine)
    got.backward()
    loss(*eager).backward()
    for m, e in zip(mine, eager, strict=True):
        torch.testing.assert_close(m.grad, e.grad)


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_spectral_convolutions_copy_no_spectrum() -> None:
    """Neither forward nor backward, where PyTorch's formulas write into parts of one."""
    x = torch.randn(2, 3, 8, 16, requires_grad=True)
    w = complexes(3, 3, 4, 5).requires_grad_()

    def fn(x: Tensor, w: Tensor) -> Tensor:
        modes = torch.fft.rfft2(x)
        out = torch.zeros_like(modes)
        out[..., :4, :5] = torch.einsum("bixy,ioxy->boxy", modes[..., :4, :5], w)
        return torch.fft.irfft2(out, s=(8, 16))

    got, calls, _ = compiled(lambda x, w: torch.autograd.grad(fn(x, w).sin().sum(), (x, w)), x, w)
    for g, e in zip(got, torch.autograd.grad(fn(x, w).sin().sum(), (x, w)), strict=True):
        torch.testing.assert_close(g, e)
        assert g.stride() == e.stride()
    assert not {"aten.copy.default", "aten.slice_scatter.default", "aten.mul.Scalar"} & {*calls}


def test_real_numbers_in_the_shape_of_complex_ones() -> None:
    real = {"dtype": torch.float32}

    def fn(x: Tensor) -> Tensor:
        y = x * x
        zeros = torch.zeros_like(y, **real) + y.new_zeros(y.shape, **real)
        return zeros + torch.full_like(y, 3, **real) * y.real

    x = complexes(4, 3)
    got, _, _ = compiled(fn, x)
    torch.testing.assert_close(got, fn(x))


def test_open_numbers() -> None:
    def fn(x: Tensor, n: Tensor) -> Tensor:
        a, b = x.shape
        filled = torch.full_like(x, n.item()).flip(0)
        return torch.sub(x * a, filled * x, alpha=n.item()) + b

    args = complexes(5, 7), torch.tensor(3)
    got, _, _ = compiled(fn, *args, dynamic=True)
    torch.testing.assert_close(got, fn(*args))


def test_open_sizes(recwarn: pytest.WarningsRecorder) -> None:
    fn = lambda x, y: torch.where(x.real > 0, x * y + x, x.real).abs().sum(-1)  # noqa: E731
    args = complexes(5, 7), complexes(5, 7)
    got, calls, kernels = compiled(fn, *args, dynamic=True)
    torch.testing.assert_close(got, fn(*args))
    assert (set(calls), kernels) == ({"aten.view_as_real.default"}, 1)
    assert not [w for w in recwarn if "SymInt" in str(w.message)]


def test_parts_of_two_types_are_refused() -> None:
    torch._dynamo.reset()
    fn = lambda x, y: torch.complex(x, y) * 2  # noqa: E731
    for call in (fn, torch.compile(fn, backend="litz")):
        with pytest.raises(RuntimeError, match="Expected object of scalar type Float"):
            call(torch.rand(3), torch.rand(3).double())


def test_special_values_are_eagers() -> None:
    odd = torch.tensor([0.0, -0.0, 1.0, -3e38, float("inf"), float("-inf"), float("nan"), 1e-45])
    x = torch.complex(*torch.meshgrid(odd, odd, indexing="ij")).flatten()
    fn = lambda x, y: torch.view_as_real(x * y - y)  # noqa: E731
    for y in (x.flip(0), x):
        got, _, _ = compiled(fn, x, y)
        assert torch.equal(*(t.nan_to_num(7.5).view(torch.int32) for t in (got, fn(x, y))))


def test_a_call_alone_stays_one() -> None:
    x = complexes(6)
    got, calls, kernels = compiled(lambda x: torch.fft.fft(x * x), x)
    torch.testing.assert_close(got, torch.fft.fft(x * x))
    assert kernels == 0
    assert calls == ["aten.mul.Tensor", "aten._fft_c2c.default"]
    got, calls, kernels = compiled(torch.complex, x.real, x.imag)
    assert torch.equal(got, x) and (calls, kernels) == (["aten.complex.default"], 0)


def test_explain_knows(capsys: Any) -> None:
    report = litz.explain(lambda x, y: (x * y).abs(), complexes(4), complexes(4))
    assert "view_as_real" in str(report)
