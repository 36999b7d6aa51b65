"""Models over many batch sizes and lengths: one compile, results right at every size."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from e2e.test_models import MODELS, wide
from judge import assert_close, error
from torch import nn

from litz.backend import compile_with
from litz.options import make_options
from tests.quick import some

# Batch and length (or image side); the model's first sizes are 2 and 17 (or 32).
TOKENS = [(2, 17), (3, 9), (5, 16), (2, 33), (3, 47), (9, 2)]
IMAGES = [(b, 32) for b in (2, 3, 4, 7, 8, 11)]
SIDES = [(2, 32), (3, 48), (4, 33), (2, 57), (6, 32), (3, 35)]
SIZES = {"bert": TOKENS, "gpt2": TOKENS, "llama": TOKENS, "vit": IMAGES, "resnet": SIDES}


# One layer of these: what a second adds at open sizes, that of BERT shows in training.
ONE_LAYER = ("gpt2", "llama", "vit")


class Counting:
    """The backend, counting graphs, and saying why one fell back to ATen."""

    def __init__(self) -> None:
        self.compiles: list[str] = []
        self.fallbacks: list[str] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def observe(kind: str, _: torch.fx.GraphModule, stages: Any) -> None:
            self.compiles.append(kind)
            if stages.fallback:
                self.fallbacks.append(stages.fallback)

        return compile_with(gm, inputs, make_options({"verify": True}), observe)


def inputs_of(name: str, size: tuple[int, int]) -> dict[str, Any]:
    batch, side = size
    if name in ("resnet", "vit"):
        return {
            "pixel_values": torch.randn(batch, 3, side, side),
            "labels": torch.randint(0, 5, (batch,)),
        }
    return {k: torch.randint(0, 99, size) for k in ("input_ids", "labels")}


def build(name: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model, _ = MODELS[name](1) if name in ONE_LAYER else MODELS[name]()
    if name in ("resnet", "vit"):
        model.config.problem_type = "single_label_classification"  # else it guesses and notes it
    elif name == "gpt2":
        model.loss_type = "ForCausalLM"
    exact = copy.deepcopy(model).double()
    return model, exact


# Those of others are the second graphs of the last test.
@pytest.mark.parametrize("name", some(ONE_LAYER, 1))
def test_inference_compiles_once(name: str) -> None:
    model, exact = build(name)
    model.eval(), exact.eval()
    torch._dynamo.reset()
    backend = Counting()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for size in SIZES[name]:
            inputs = inputs_of(name, size)
            actual, eager = compiled(**inputs).logits, model(**inputs).logits
            assert_close(actual, eager, exact(**wide(inputs)).logits)
    assert (backend.compiles, backend.fallbacks) == (["inference"], [])


@pytest.mark.parametrize("name", some(MODELS, 1))
def test_training_compiles_once(name: str) -> None:
    model, exact = build(name)
    plain = copy.deepcopy(model)
    for m in (model, plain, exact):
        m.train()
    torch._dynamo.reset()
    backend = Counting()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for size in SIZES[name][:4]:
        inputs = inputs_of(name, size)
        for m in (model, plain, exact):
            m.zero_grad()
        compiled(**inputs).loss.backward()
        plain(**inputs).loss.backward()
        exact(**wide(inputs)).loss.backward()
        check_gradients(model, plain, exact)
    assert (backend.compiles, backend.fallbacks) == (["forward", "backward"], [])


def check_gradients(model: nn.Module, plain: nn.Module, exact: nn.Module) -> None:
    scale = max(p.grad.norm().item() for p in exact.parameters() if p.grad is not None)
    for (key, p), q, r in zip(
        model.named_parameters(), plain.parameters(), exact.parameters(), strict=True
    ):
        if r.grad is None:
            assert p.grad is None
            continue
        assert p.grad is not None and q.grad is not None
        # Gradients that are zero in exact arithmetic are noise in eager too.
        noise = 1e-6 * scale / max(r.grad.norm().item(), 1e-30)
        assert error(p.grad, r.grad) <= 2 * error(q.grad, r.grad) + 1e-6 + noise, key


@pytest.mark.parametrize("name", some(["bert", "resnet"], 1))
def test_automatic_dynamic_compiles_twice(name: str) -> None:
    """The second shape makes Dynamo compile once more, for all shapes; Litz adds no guard."""
    model, exact = build(name)
    model.eval(), exact.eval()
    torch._dynamo.reset()
    backend = Counting()
    compiled = torch.compile(model, backend=backend)
    sizes = SIZES[name]
    with torch.no_grad():
        # Both sizes change at once, so that both become symbols at once.
        for size in (sizes[0], sizes[1], *sizes[3:]):
            inputs = inputs_of(name, size)
            inputs.pop("labels")
            actual, eager = compiled(**inputs).logits, model(**inputs).logits
            assert_close(actual, eager, exact(**wide(inputs)).logits)
    assert (backend.compiles, backend.fallbacks) == (["inference"] * 2, [])
