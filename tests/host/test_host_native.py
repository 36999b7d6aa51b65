"""Programs run by the native executor give what the printed Python gives, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from litz import binding
from litz.host.values import load_host
from litz.runtime.plan import Plan, plan_text
from litz.runtime.strided import copy_as_it_is
from tests.replay.corpus import Entry, corpus

CPU = {k: e for k, e in corpus().items() if e.build and e.device == "cpu" and not e.fake}
SAMPLE = ("cpp/rotary", "cpp/softmax_many_rows", "cpp/cross_entropy+training")

Compile = Callable[..., Callable[..., Any]]


def compiled(fn: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    return torch.compile(
        fn, backend="litz", options={"host": "native", "check_calls": False}, **how
    )


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return copy_as_it_is(value)
    return value


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal to the last bit, layouts too."""
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and (a == b or a != a)
    if not isinstance(b, torch.Tensor) or a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if a.layout is not torch.strided or a.dtype.is_complex:
        return bool(torch.allclose(a.to_dense(), b.to_dense(), 0, 0, equal_nan=True))
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.stride() == b.stride() and torch.equal(a.view(bits), b.view(bits))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan | str]]:
    """The plans of programs as they are bound; each call runs both ways, and compares."""
    found: list[Plan | str] = []
    native_of = binding.Binder._native

    def both(self: Any, host: Any, values: Any, natives: Any) -> Any:
        native = native_of(self, host, values, natives)
        found.append(host.plan)
        if native is None:
            return None
        plan_text(host.plan)  # it is well formed
        python = load_host(host.source, {**values, **natives})

        def call(args: list[Any]) -> Any:
            inputs, state = list(args), torch.get_rng_state()
            copies = [copied(a) for a in args]
            given = list(copies)
            left = native(args)
            assert not args
            torch.set_rng_state(state)
            right = python(copies)
            for a, b in zip((*inputs, *left), (*given, *right), strict=True):
                assert same(a, b), (a, b)
            return left

        return call

    monkeypatch.setattr(binding.Binder, "_native", both)
    yield found


@pytest.mark.parametrize("name", [n for n in SAMPLE if n in CPU])
def test_a_sample_of_the_corpus(plans: list[Plan | str], name: str) -> None:
    run(CPU[name])
    assert plans and all(isinstance(p, Plan) for p in plans), plans


@pytest.mark.slow
@pytest.mark.parametrize("name", CPU)
def test_the_corpus(plans: list[Plan | str], name: str) -> None:
    run(CPU[name])


def run(entry: Entry) -> None:
    assert entry.build
    torch.manual_seed(0)
    fn, args = entry.build()
    out = compiled(fn, dynamic=entry.dynamic)(*args)
    if entry.training:
        leaves = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        total = sum(x.double().sum() for x in leaves if x.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
