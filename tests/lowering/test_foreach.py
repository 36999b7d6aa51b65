"""``_foreach_*`` operators: as the single-tensor operators, for each tensor of the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.backend import compile_with
from litz.options import make_options
from litz.stages import Stages
from tests.lowering.evaluate import check, extern_names, lower_fn, nests

Fn = Callable[..., Any]
Tensor = torch.Tensor
A, B, C, D = torch.randn(3, 4), torch.randn(5), torch.randn(3, 4), torch.rand(5) + 0.5


def lists(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(t.to(dtype) for t in (A, B, C, D))


@pytest.mark.parametrize("name", [
    "abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "frac", "neg", "reciprocal", "round",
    "sigmoid", "sign", "sin", "tan", "tanh", "trunc", "sqrt", "rsqrt", "log", "log1p", "log2",
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unary(name: str, dtype: torch.dtype) -> None:
    foreach = getattr(torch, f"_foreach_{name}")
    check(lambda a, b, c, d: foreach([a, b]) if name not in POSITIVE else foreach([d, a.abs()]),
          *lists(dtype))  # fmt: skip


POSITIVE = ("sqrt", "rsqrt", "log", "log1p", "log2")


@pytest.mark.parametrize("name", [
    "add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max",
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_binary(name: str, dtype: torch.dtype) -> None:
    foreach = getattr(torch, f"_foreach_{name}")

    def fn(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
        return [
            *foreach([a, b], [c, d]),
            *foreach([a, b], 0.3),
            *foreach([a, b], [1.5, -0.25]),
        ]

    check(fn, *lists(dtype))


def test_pow() -> None:
    def fn(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
        return [
            *torch._foreach_pow([a.abs(), d], [c, b]),
            *torch._foreach_pow([a, b], 2),
            *torch._foreach_pow([a, d], [3, 0.5]),
            *torch._foreach_pow(1.7, [c, d]),
        ]

    check(fn, A, B, C, D)


def test_alpha_and_one_tensor_for_all() -> None:
    def fn(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
        s = d[0]
        return [
            *torch._foreach_add([a, b], [c, d], alpha=0.3),
            *torch._foreach_sub([a, b], [c, d], alpha=2),
            *torch._foreach_mul([a, b], s),
            *torch._foreach_div([a, b], s),
            *torch._foreach_add([a, b], s, alpha=3),
        ]

    check(fn, A, B, C, D)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_addcmul_and_addcdiv(dtype: torch.dtype) -> None:
    def fn(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
        x, y, z = [a, b], [c, d], [a.abs() + 1, d]
        return [
            *torch._foreach_addcmul(x, y, z, 0.5),
            *torch._foreach_addcmul(x, y, z, [0.5, 2.0]),
            *torch._foreach_addcdiv(x, y, z),
            *torch._foreach_addcdiv(x, y, z, [0.25, -1.0]),
        ]

    check(fn, *lists(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lerp(dtype: torch.dtype) -> None:
    def fn(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
        return [
            *torch._foreach_lerp([a, b], [c, d], 0.1),
            *torch._foreach_lerp([a, b], [c, d], [0.9, 0.2]),
            *torch._foreach_lerp([a, b], [c, d], [c, d]),
        ]

    check(fn, *lists(dtype))


@pytest.mark.parametrize("ord", [1, 2, float("inf")])
def test_norm(ord: float) -> None:
    check(lambda a, b: torch._foreach_norm([a, b], ord), A, B)


def test_clone() -> None:
    check(lambda a, b: torch._foreach_clone([a, b]), A, B)


def adam(p1: Tensor, p2: Tensor, g1: Tensor, g2: Tensor, m1: Tensor, m2: Tensor,
         v1: Tensor, v2: Tensor) -> list[Tensor]:  # fmt: skip
    params, grads, means, squares = [p1, p2], [g1, g2], [m1, m2], [v1, v2]
    grads = torch._foreach_add(grads, params, alpha=0.01)
    means = torch._foreach_lerp(means, grads, 0.1)
    squares = torch._foreach_mul(squares, 0.999)
    squares = torch._foreach_addcmul(squares, grads, grads, 0.001)
    roots = torch._foreach_sqrt(squares)
    roots = torch._foreach_add(torch._foreach_div(roots, 0.5), 1e-8)
    params = torch._foreach_addcdiv(params, means, roots, [-0.1, -0.2])
    return [*params, *means, *squares]


def test_an_optimizer_step_stores_its_state_and_nothing_else() -> None:
    args = [A, B, torch.randn(3, 4), torch.randn(5), torch.randn(3, 4), torch.randn(5)]
    args += [torch.rand(3, 4), torch.rand(5)]
    program = check(adam, *args, ulps=8)
    # Per tensor: the gradient with decay (read twice), mean, square, parameter.
    assert not extern_names(program) and nests(program) == 8


def test_list_elements_keep_their_layout() -> None:
    t = torch.randn(4, 3).t()
    check(lambda a, b: torch._foreach_mul([a, b], 2.0), t, B)


def test_dynamic() -> None:
    check(
        lambda a, b: torch._foreach_add(torch._foreach_mul([a, b], 2.0), [a, b]), A, B, dynamic=True
    )


def test_unlowered_lists_stay_with_aten() -> None:
    program = lower_fn(lambda a, b: torch._foreach_mm([a], [b]), A, A.t().contiguous())
    assert any("_foreach_mm" in name for name in extern_names(program))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_a_compiled_optimizer_is_kernels_alone(optimizer: Any) -> None:
    """Dynamo may write ``addcmul_`` as a product and ``prims.fma``."""

    def trained(compiled: bool) -> tuple[list[torch.Tensor], list[str]]:
        random = torch.Generator().manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(n, 8, generator=random)) for n in (1, 3, 5)]
        made = optimizer(weights, lr=0.01)
        torch._dynamo.reset()
        found: list[str] = []

        def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
            def observe(_kind: str, _graph: Any, stages: Stages) -> None:
                found.extend(e.target_name for e in stages.externs())

            return compile_with(gm, inputs, make_options({}), observe)

        step = torch.compile(lambda: made.step(), backend=backend) if compiled else made.step
        for _ in range(3):
            for w in weights:
                w.grad = torch.randn(w.shape, generator=random)
            step()
        return [w.detach() for w in weights], found

    (ours, externs), (eager, _) = trained(True), trained(False)
    assert not externs
    for a, e in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)
