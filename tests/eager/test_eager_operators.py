"""Single operators under ``litz.eager.use``: what ATen returns, by Litz's kernels."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from cache.counted import said, started
from quick import some
from torch._subclasses.fake_tensor import FakeTensorMode

import litz
from litz.eager.kernel import LIMIT
from litz.errors import CompilationError, OptionError
from litz.runtime.dispatcher import through_aten
from litz.runtime.torch_private import strange_kernels, users_kernels

aten = torch.ops.aten


def x(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.linspace(-3, 3, math.prod(sizes)).reshape(sizes)
    return made.to(dtype)


CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.gelu.default, (x(4, 33),), {"approximate": "tanh"}),
    (aten._softmax.default, (x(4, 33).t(), -1, False), {}),
    (aten.sum.dim_IntList, (x(3, 5, 7), [0, -1], True), {"dtype": torch.float64}),
    (aten.native_layer_norm.default, (x(4, 33), [33], x(33), None, 1e-5), {}),
    (aten.native_layer_norm_backward.default,
     (x(4, 33), x(4, 33), [33], x(4, 1), x(4, 1), x(33), None, [True, True, False]), {}),
    (aten.mul.Tensor, (x(4, 33, dtype=torch.bfloat16), 0.1), {}),
    (aten.add.Tensor, (x(4, 33)[:, ::2], x(17)), {"alpha": 2}),
    (aten.clamp.default, (x(9), None, 1.5), {}),
    (aten.amax.default, (x(4, 33), [1]), {}),
    (aten.mean.dim, (x(4, 33), None), {}),
    (aten.native_group_norm.default, (x(2, 4, 6), None, None, 2, 4, 6, 2, 1e-5), {}),
    (aten.var_mean.correction, (x(4, 33), [1]), {"correction": 0}),
    (aten.cat.default, ([x(2, 3), x(4, 3)],), {}),
    (aten._foreach_mul.Scalar, ([x(3), x(4, 5)], 2.5), {}),
    (aten.unbind_copy.int, (x(3, 4), 1), {}),
    (aten.where.self, (x(9) > 0, x(9), x(1)[0]), {}),
    (aten._to_copy.default, (x(9),), {"dtype": torch.int32}),
    (aten.silu_backward.default, (x(9), x(9)), {}),
    (aten._log_softmax_backward_data.default, (x(4, 9), x(4, 9), 1, torch.float32), {}),
]  # fmt: skip


def flat(results: Any) -> list[Any]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


@pytest.mark.parametrize("case", some(CASES, 6), ids=lambda c: str(c[0]))
def test_results_are_those_of_torch_compile(case: Any) -> None:
    op, args, kwargs = case
    expected = flat(op(*args, **kwargs))
    torch._dynamo.reset()
    compiled = torch.compile(lambda *a: op(*a, **kwargs), backend="litz", dynamic=False)
    bits = flat(compiled(*args))
    with litz.eager.use(op._name) as used:
        twice = [flat(op(*args, **kwargs)) for _ in range(2)]
    for found in twice:
        for f, e, b in zip(found, expected, bits, strict=True):
            if e is None:
                assert f is None
                continue
            assert (f.dtype, f.shape, f.stride()) == (e.dtype, e.shape, e.stride())
            assert torch.equal(f, b)
            torch.testing.assert_close(f, e)
    (decision,) = used.decisions
    assert decision.how in ("compiled", "found"), str(used)


def test_gradients_go_through_atens_formulas() -> None:
    names = ("aten::gelu", "aten::gelu_backward")
    given = x(5, 6).requires_grad_()
    torch.nn.functional.gelu(given).sum().backward()
    expected, given.grad = given.grad, None
    with litz.eager.use(*names) as used:
        torch.nn.functional.gelu(given).sum().backward()
    torch.testing.assert_close(given.grad, expected)
    assert {d.operator for d in used.decisions if d.how != "ATen"} == set(names)


def test_sizes_that_vary_share_code() -> None:
    with litz.eager.use("aten::mul.Tensor") as used:
        for n in (4, 5, 6, 7, 1, 300):
            a, b = x(n, 7), x(n, 1)
            with through_aten():
                expected = a * b
            assert torch.equal(a * b, expected) and (a * b).stride() == expected.stride()
        *sized, shared, one = used.decisions  # what PyTorch has no symbol for stands by itself
        assert [d.guards for d in sized] == ["", ""] and shared.guards and not one.guards
        memory = x(301, 7).flatten()[5:-2].view(300, 7)
        a * b, memory * b  # where memory begins does not matter
        assert len(used.decisions) == 4
        with pytest.raises(RuntimeError, match="must match the size"):
            x(8, 7) * x(9, 1)


def test_numbers_are_constants_within_limits() -> None:
    with litz.eager.use("aten::mul.Tensor") as used:
        for k in range(LIMIT + 4):
            for given in (x(9), x(9, dtype=torch.bfloat16).sum(), x(2).int()):
                with through_aten():
                    expected = given * (k / 7)
                found = given * (k / 7)
                assert found.dtype == expected.dtype and torch.equal(found, expected)
            if k == 0:
                del used.operators["aten::mul.Tensor"]._counts  # no code from here on
                used.operators["aten::mul.Tensor"]._counts = _Full()
        assert len(used.decisions) == 3
        assert (x(3) * True).dtype == torch.float32 and (torch.tensor(2) * 0.5).dim() == 0
        nan = x(3) * float("nan")
    assert nan.isnan().all()


class _Full(dict[Any, int]):
    def get(self, key: Any, default: Any = None) -> int:
        return LIMIT


def test_what_litz_cannot_compile_runs_in_aten() -> None:
    names = ("aten::mm", "aten::exp", "aten::index.Tensor", "aten::nonzero")
    with litz.eager.use(*names) as used:
        a = x(4, 4)
        assert torch.nonzero(x(9)).shape == (8, 1) and a[a > 0].shape == (8,)
        assert torch.equal(a @ a, torch.ops.aten.mm.default(a, a))
        with FakeTensorMode():
            assert torch.exp(torch.empty(3)).shape == (3,)
        z = torch.complex(x(3), x(3))
        with through_aten():
            expected = z.conj().exp(), z.imag.exp(), torch.conj(z).imag.exp()
        found = z.conj().exp(), z.imag.exp(), torch.conj(z).imag.exp()
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f, e)
        rows = torch.vmap(torch.exp)(x(3, 4))
        assert torch.equal(rows, torch.exp(x(3, 4)))
        with pytest.raises(IndexError):
            a[torch.tensor([7])]
        a.double().exp_()
    reasons = [d.reason for d in used.decisions if d.how == "ATen"]
    assert any("aten.mm" in r for r in reasons), str(used)


@pytest.mark.parametrize(
    "name, why",
    [
        ("aten::gelux", "no operator"),
        ("aten::add", "aten::add.Tensor"),
        ("relu", "there are aten::relu, aten::relu.out"),
        ("aten::gelu_", "writes"),
        ("aten::gelu.out", "writes"),
        ("aten::softmax.int", "made of other operators"),
        ("aten::view", "returns a view"),
        ("aten::native_dropout", "random"),
        ("aten::zeros", "takes no tensor"),
        ("aten::_local_scalar_dense", "other than tensors"),
        ("prims::add", "ATen's"),
        ("aten::cudnn_convolution", "no kernel for CPU"),
    ],
)
def test_operators_that_cannot_be_compiled_by_themselves(name: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        litz.eager.use("aten::exp", name)
    assert users_kernels() == ""


def test_it_ends() -> None:
    used = litz.eager.use("aten::exp")
    with pytest.raises(OptionError, match="already"):
        litz.eager.use("aten::exp")
    with pytest.raises(OptionError, match="cuda"):
        litz.eager.use("aten::exp", device="xpu")
    x(3).exp()
    assert len(used.decisions) == 1
    used.close()
    used.close()
    x(4).exp()
    assert len(used.decisions) == 1
    with litz.eager.use("aten::exp"):
        x(3).exp()


def test_other_compiles_do_not_see_it() -> None:
    with litz.eager.use("aten::exp", "aten::add.Tensor"):
        assert users_kernels() == "" and strange_kernels(aten.exp.default) == ""
        compiled = torch.compile(lambda a: (a + 1).exp(), backend="litz")
        torch.testing.assert_close(compiled(x(3)), torch.exp(x(3) + 1))

        @torch.compile(backend="eager")
        def breaks(a: torch.Tensor) -> torch.Tensor:
            try:  # Dynamo runs the whole frame as it is, and looks at each that is called
                torch._dynamo.graph_break()
                return a.exp()
            finally:
                pass

        breaks(x(5))


def test_faults_of_litz_are_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from litz import backend

    def fails(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a fault")

    monkeypatch.setattr(backend, "compile_and_bind", fails)
    given = {"cache_dir": str(tmp_path), "repro_dir": str(tmp_path)}
    with litz.eager.use("aten::exp", options=given), pytest.raises(CompilationError, match="fault"):
        x(3, 11).exp()
    with litz.eager.use("aten::exp", options={**given, "on_error": "eager"}) as used:
        with pytest.warns(UserWarning, match="a fault"):
            x(3, 11).exp()
    assert used.decisions[0].how == "ATen"


def test_checked_runs_end() -> None:
    with litz.eager.use("aten::erfc", options={"verify": True}) as used:
        for _ in range(2):
            torch.testing.assert_close(torch.erfc(x(7)), torch.erfc(x(7).double()).float())
    assert len(used.decisions) == 2


def test_threads() -> None:
    with litz.eager.use("aten::erf") as used, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: torch.erf(x(n % 3 + 2, 5)), range(24)))
    for n, f in enumerate(found):
        torch.testing.assert_close(f, torch.erf(x(n % 3 + 2, 5)))
    assert len(used.decisions) == 3


PROGRAM = """
import torch, litz
litz.eager.use("aten::sum.dim_IntList", "aten::mm")  # for as long as the process
for n in (3, 4, 5, 6):
    x = torch.linspace(-1, 1, 6 * n).view(n, 6)
    print(x.sum([1]).tolist())
x @ x
print(len(compiled))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    *first, made = said(started(tmp_path, PROGRAM)).splitlines()
    *second, again = said(started(tmp_path, PROGRAM)).splitlines()
    assert (second, again) == (first, "0") and made == "4"
