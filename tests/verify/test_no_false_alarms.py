"""What is right passes ``verify``: rounding, ties, special values, randomness, shared memory.

With the plain option the results are the same; here only what a checker could mistake is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn
from torch.nn import functional as F

from litz.backend import compile_with
from litz.compiler import Stages
from litz.options import make_options

HALVES = [torch.float32, torch.bfloat16, torch.float16]
inf, nan = float("inf"), float("nan")


def watched(
    fn: Callable[..., Any], folder: Path, dynamic: bool | None = None, **options: Any
) -> tuple[Callable[..., Any], list[Stages]]:
    """``fn`` compiled with ``verify``, and what was compiled so far."""
    seen: list[Stages] = []

    def backend(gm: Any, inputs: Any) -> Any:
        given = make_options({"verify": True, "repro_dir": str(folder), **options})
        return compile_with(gm, inputs, given, lambda kind, graph, s: seen.append(s))

    torch._dynamo.reset()
    return torch.compile(fn, backend=backend, dynamic=dynamic), seen


def passes(fn: Callable[..., Any], *args: Any, folder: Path, **options: Any) -> list[Stages]:
    compiled, seen = watched(fn, folder, **options)
    for _ in range(2):
        compiled(*args)
    assert seen and all(s.watch is not None and s.watch.checked for s in seen)
    return seen


def unchecked(seen: list[Stages]) -> dict[str, str]:
    return {n: why for s in seen if s.watch is not None for n, why in s.watch.unchecked.items()}


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)


@pytest.mark.parametrize("numerics", ["eager", "fast"])
@pytest.mark.parametrize("dtype", HALVES)
def test_chains_that_round(dtype: torch.dtype, numerics: str, tmp_path: Path) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = (x + 100) - 100  # cancellation: every digit of the result is a rounding's
        b = F.layer_norm(a * y, (40,))
        c = F.gelu(b).softmax(-1)
        return c, (c * 50).round(), c > 0.02, c.argmax(-1), (b * c).sum(0)

    seen = passes(
        fn, r(30, 40, dtype=dtype), r(40, dtype=dtype), folder=tmp_path, numerics=numerics
    )
    assert not unchecked(seen)


def test_ties_and_special_values(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 3, 3, nan, -inf, inf, 0, -0.0]]).repeat(4, 5)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.nan_to_num(1.0)
        first = y.clamp(0, 3).argmax(1)
        return first, y.clamp(0, 3).max(1)[1], x.log(), x / x, x.sum(1), x.exp(), y * 3e38

    passes(fn, x, folder=tmp_path)


def test_overflow_of_a_half(tmp_path: Path) -> None:
    x = r(50, dtype=torch.float16) * 300
    passes(lambda x: ((x * x), (x * x) - (x * x), (x * x).sum()), x, folder=tmp_path)


def test_mutation_and_aliasing(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = x.flip(0)
        x.mul_(2)
        y[1:].add_(x[:-1])
        t = x.clone()
        x.copy_(y)
        y.copy_(t)
        z = old * 3
        return z, z.t(), x.view(-1)

    passes(fn, r(9, 4), r(9, 4), folder=tmp_path)


def test_strided_inputs_and_results(tmp_path: Path) -> None:
    x, y = r(12, 10)[1::2, ::3].t(), r(6).expand(4, 6)

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = (x + y).as_strided((3, 2), (2, 5), 1)
        return x.as_strided((2, 2), (1, 1)), z * 2, (x @ y.t()).t() + 1

    passes(fn, x, y, folder=tmp_path)


def test_random_numbers_are_taken_as_drawn(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        noise = torch.rand_like(x) < 0.3
        return torch.where(noise, x * 2, x), F.dropout(x.exp(), 0.4) + torch.randn_like(x)

    for rng in ("litz", "eager"):
        passes(fn, r(40, 30), folder=tmp_path, rng=rng)


def test_dropout_backward(tmp_path: Path) -> None:
    x = r(20, 30).requires_grad_()
    compiled, seen = watched(lambda x: F.dropout(x.sin(), 0.4) * 2, tmp_path)
    compiled(x).sum().backward()
    assert x.grad is not None and len(seen) == 2
    assert all(s.watch is not None and s.watch.checked for s in seen)


def test_dynamic_sizes(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([(x * y).transpose(0, 1).reshape(-1), x.sum(0)]).softmax(0) * x.shape[0]

    compiled, seen = watched(fn, tmp_path, dynamic=True)
    for n, m in ((3, 4), (17, 5), (64, 33)):
        compiled(r(n, m), r(n, m))
    assert len(seen) == 1 and seen[0].watch is not None and not seen[0].watch.unchecked


def test_complex_and_integer_values(tmp_path: Path) -> None:
    def fn(z: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return z * 2 + 1, z.abs(), torch.view_as_real(z) + 1, i // 3, i.sort()[0], i.bincount()

    passes(fn, torch.view_as_complex(r(6, 2)), torch.arange(12) % 5, folder=tmp_path)


def test_several_runs_at_once(tmp_path: Path) -> None:
    """A run within a run (a hook, a custom operator) keeps its own records."""
    inner, _ = watched(lambda x: x.exp().sum(0), tmp_path)
    x = r(10, 3, dtype=torch.float64).requires_grad_()
    x.register_hook(lambda g: inner(g.detach()) + g)
    outer, _ = watched(lambda x: (x.sin() * 2).sum(), tmp_path)
    outer(x).backward()
    assert x.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_step_of_a_transformer(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = tf.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48,
    )  # fmt: skip
    model = tf.BertForMaskedLM(config).to(dtype).train()  # with dropout
    ids = torch.randint(0, 99, (2, 9))
    compiled, seen = watched(model, tmp_path)
    compiled(input_ids=ids, labels=ids).loss.backward()
    checked = [s.watch.checked for s in seen if s.watch is not None]
    assert len(checked) == 2 and min(checked) > 30


def test_training_step_of_convolutions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3),
        nn.GroupNorm(2, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip
    compiled, seen = watched(model, tmp_path)
    F.cross_entropy(compiled(r(2, 3, 14, 14)), torch.tensor([1, 3])).backward()
    assert len(seen) == 2 and not unchecked(seen)


@pytest.mark.parametrize("seed", range(4))
def test_ties_with_what_an_earlier_graph_has_rounded(seed: int, tmp_path: Path) -> None:
    """The gradient of a maximum asks who equals it, of numbers that are computed anew."""
    g = torch.Generator().manual_seed(seed)
    x, v = (torch.randn(5, 9, generator=g).requires_grad_() for _ in range(2))
    i = torch.randint(0, 9, (5, 9), generator=g)

    def fn(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        found = x.sin().scatter_reduce(1, i, v.exp() * -1, "amax") + 1
        return (x.sin() * 3).amax(1).sum() + found.sum()

    compiled, seen = watched(fn, tmp_path)
    compiled(x, v).backward()
    assert len(seen) == 2
