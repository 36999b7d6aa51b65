"""Real models (transformers configs, random weights) against eager, judged in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from judge import assert_close, error
from torch import nn

from tests.quick import some

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
NO_DROP = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def ids(batch: int = 2, length: int = 17, vocab: int = 99) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length))


def bert() -> tuple[nn.Module, dict[str, Any]]:
    config = tf.BertConfig(vocab_size=99, **SMALL, **NO_DROP)
    return tf.BertForMaskedLM(config), {"input_ids": ids(), "labels": ids()}


def gpt2(layers: int = 2) -> tuple[nn.Module, dict[str, Any]]:
    config = tf.GPT2Config(
        vocab_size=99, n_embd=64, n_layer=layers, n_head=4, n_positions=64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    tokens = ids()
    return tf.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def llama(layers: int = 2) -> tuple[nn.Module, dict[str, Any]]:
    small = {**SMALL, "num_hidden_layers": layers}
    config = tf.LlamaConfig(vocab_size=99, num_key_value_heads=2, use_cache=False, **small)
    tokens = ids()
    return tf.LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


def resnet() -> tuple[nn.Module, dict[str, Any]]:
    config = tf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="bottleneck", num_labels=5
    )
    return tf.ResNetForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 32, 32),
        "labels": torch.tensor([1, 3]),
    }


def vit(layers: int = 2) -> tuple[nn.Module, dict[str, Any]]:
    small = {**SMALL, "num_hidden_layers": layers}
    config = tf.ViTConfig(image_size=32, patch_size=8, num_labels=5, **small, **NO_DROP)
    return tf.ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 32, 32),
        "labels": torch.tensor([1, 3]),
    }


MODELS: dict[str, Callable[..., tuple[nn.Module, dict[str, Any]]]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "resnet": resnet,
    "vit": vit,
}


def wide(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if v.dtype.is_floating_point else v for k, v in inputs.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", some(MODELS, 2))
def test_inference(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # What equal layers share is seen in one dtype.
    once = dtype == torch.bfloat16 and name in ("gpt2", "llama", "vit")
    model, inputs = MODELS[name](1) if once else MODELS[name]()
    model.eval()
    exact = copy.deepcopy(model).double()
    model.to(dtype)
    exact.load_state_dict({k: v.double() for k, v in model.state_dict().items()}, strict=False)
    narrow = {k: v.to(dtype) if v.dtype.is_floating_point else v for k, v in inputs.items()}
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="litz", options={"check_ir": True})
    with torch.no_grad():
        ref = exact(**wide(narrow)).logits
        eager = model(**narrow).logits
        for _ in range(2):
            actual = compiled(**narrow).logits
            assert_close(actual, eager, ref)


@pytest.mark.parametrize("name", some(MODELS, 2))
def test_training_step(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.train()
    exact, plain = copy.deepcopy(model).double(), copy.deepcopy(model)
    exact(**wide(inputs)).loss.backward()
    plain(**inputs).loss.backward()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="litz", options={"check_ir": True})
    compiled(**inputs).loss.backward()
    scale = max(p.grad.norm().item() for p in exact.parameters() if p.grad is not None)
    for (key, p), q, r in zip(
        model.named_parameters(), plain.parameters(), exact.parameters(), strict=True
    ):
        if r.grad is None:
            assert p.grad is None
            continue
        # Gradients that are zero in exact arithmetic are noise in eager too.
        noise = 1e-6 * scale / max(r.grad.norm().item(), 1e-30)
        assert error(p.grad, r.grad) <= 2 * error(q.grad, r.grad) + 1e-6 + noise, key
    for p, q in zip(model.buffers(), plain.buffers(), strict=True):
        assert_close(p, q)


def test_training_loop_learns_with_dropout() -> None:
    """Dropout on: no number can be compared, but the loss must fall as eager's does."""
    torch.manual_seed(0)
    model = tf.BertForMaskedLM(tf.BertConfig(vocab_size=99, **SMALL))
    model.train()
    tokens = ids(4, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch._dynamo.reset()
    step = torch.compile(lambda: model(input_ids=tokens, labels=tokens).loss, backend="litz")
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = step()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_dropout_is_random_seeded_and_consistent() -> None:
    drop = torch.compile(lambda x: nn.functional.dropout(x, 0.25), backend="litz")
    x = torch.ones(1000, 100, requires_grad=True)
    torch.manual_seed(3)
    a = drop(x)
    (g,) = torch.autograd.grad(a.sum(), x)
    b = drop(x)
    torch.manual_seed(3)
    c = drop(x)
    assert torch.equal(a, c) and not torch.equal(a, b)
    assert torch.equal(g != 0, a != 0)
    kept = (a != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.01
    assert torch.allclose(a[a != 0], torch.tensor(1 / 0.75))
