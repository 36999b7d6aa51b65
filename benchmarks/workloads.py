"""What is timed: a registry from name to builder.

A builder takes ``quick`` (smaller sizes) and returns a ``Workload``.  Weights and inputs come
from fixed seeds, so every process builds the same ones; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["QUICK", "WORKLOADS", "Workload", "build"]


@dataclass(frozen=True)
class Workload:
    """A callable and its inputs.

    training: the callable returns a scalar loss, and a step is the loss and its gradients with
    respect to the module's parameters and the inputs that require them.
    """

    fn: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    training: bool = False


Builder = Callable[[bool], Workload]


def build(name: str, quick: bool) -> Workload:
    """The workload called ``name``; ``KeyError`` when there is none."""
    torch.manual_seed(0)
    return WORKLOADS[name](quick)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


# --- single kernels -------------------------------------------------------------------------


def norm_gelu_softmax(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias)).softmax(-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def add_transposed(x: Tensor, y: Tensor) -> Tensor:
    return x + y.t()


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 32, weight, bias))


def rotate_half(x: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build_chain(quick: bool) -> Workload:
    rows = 1024 if quick else 4096
    return Workload(norm_gelu_softmax, (randn(rows, 1024), randn(1024), randn(1024)))


def build_softmax(quick: bool) -> Workload:
    n = 1024 if quick else 4096
    return Workload(softmax, (randn(n, n),))


def build_layer_norm(quick: bool) -> Workload:
    shapes = ((2048 if quick else 8192, 1024), (1024,), (1024,))
    return Workload(layer_norm, tuple(randn(*s, dtype=torch.bfloat16) for s in shapes))


def build_gelu(quick: bool) -> Workload:
    return Workload(F.gelu, (randn((2 if quick else 16) << 20, dtype=torch.bfloat16),))


def build_add_transposed(quick: bool) -> Workload:
    n = 1024 if quick else 4096
    return Workload(add_transposed, (randn(n, n), randn(n, n)))


def build_sum(dim: int | None, quick: bool) -> Workload:
    # A mean of 1 keeps the sums away from 0, where a relative error would say little.
    x = randn(2048 if quick else 8192, 4096) + 1
    return Workload(torch.sum if dim is None else partial(torch.sum, dim=dim), (x,))


def build_rotary(dtype: torch.dtype, quick: bool) -> Workload:
    """32 query heads and 8 key heads of 128, as in Llama 3 8B."""
    length, width = (512 if quick else 2048), 128
    frequency = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angle = torch.outer(torch.arange(length), frequency).repeat(1, 2)
    q, k = randn(1, 32, length, width), randn(1, 8, length, width)
    return Workload(rotary, tuple(t.to(dtype) for t in (q, k, angle.cos(), angle.sin())))


def build_group_norm(quick: bool) -> Workload:
    x = randn(2 if quick else 8, 256, 56, 56).to(memory_format=torch.channels_last)
    return Workload(group_norm_silu, (x, randn(256), randn(256)))


def build_cross_entropy(quick: bool) -> Workload:
    rows, classes = (512 if quick else 2048), 32000
    logits = randn(rows, classes).requires_grad_()
    return Workload(F.cross_entropy, (logits, torch.randint(classes, (rows,))), training=True)


# --- models, random weights from transformers' configs --------------------------------------


class Head(nn.Module):
    """A model's first output as a plain tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)[0]
        return out


class LossHead(nn.Module):
    """Token-level cross-entropy of a model's logits; ``shift`` predicts the next token."""

    def __init__(self, model: nn.Module, shift: int) -> None:
        super().__init__()
        self.model = model
        self.shift = shift

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.model(ids)[0][:, : ids.shape[1] - self.shift]
        return F.cross_entropy(logits.flatten(0, 1), labels[:, self.shift :].flatten())


def bert(layers: int) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    model: nn.Module = BertForMaskedLM(config)
    return model


def gpt2(layers: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def llama(layers: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


def inference(model: nn.Module, x: Tensor, dtype: torch.dtype) -> Workload:
    if x.is_floating_point():
        x = x.to(dtype)
    return Workload(Head(model).eval().to(dtype), (x,))


def build_bert(dtype: torch.dtype, quick: bool) -> Workload:
    model = bert(2 if quick else 12).get_submodule("bert")
    return inference(model, torch.randint(30522, (4, 128)), dtype)


def build_gpt2(dtype: torch.dtype, quick: bool) -> Workload:
    return inference(gpt2(2 if quick else 12), torch.randint(50257, (2, 256)), dtype)


def build_llama(dtype: torch.dtype, quick: bool) -> Workload:
    return inference(llama(2 if quick else 6), torch.randint(32000, (2, 256)), dtype)


def build_resnet(dtype: torch.dtype, quick: bool) -> Workload:
    from transformers import ResNetConfig, ResNetForImageClassification

    depths = [1, 1, 1, 1] if quick else [3, 4, 6, 3]
    model = ResNetForImageClassification(ResNetConfig(depths=depths, num_labels=1000))
    return inference(model, randn(4, 3, 224, 224), dtype)


def build_vit(dtype: torch.dtype, quick: bool) -> Workload:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=2 if quick else 12, num_labels=1000, attn_implementation="sdpa"
    )
    return inference(ViTForImageClassification(config), randn(4, 3, 224, 224), dtype)


def build_bert_training(quick: bool) -> Workload:
    shape = (2 if quick else 8, 128)
    ids, labels = torch.randint(30522, shape), torch.randint(30522, shape)
    return Workload(LossHead(bert(1 if quick else 2), shift=0).train(), (ids, labels), True)


def build_gpt2_training(quick: bool) -> Workload:
    ids = torch.randint(50257, (1, 64) if quick else (2, 128))
    return Workload(LossHead(gpt2(2 if quick else 12), shift=1).train(), (ids, ids), True)


F32, BF16 = torch.float32, torch.bfloat16

WORKLOADS: dict[str, Builder] = {
    "norm_gelu_softmax": build_chain,
    "softmax": build_softmax,
    "layer_norm_bf16": build_layer_norm,
    "gelu_bf16": build_gelu,
    "add_transposed": build_add_transposed,
    "sum_rows": partial(build_sum, 1),
    "sum_columns": partial(build_sum, 0),
    "sum_all": partial(build_sum, None),
    "rotary": partial(build_rotary, F32),
    "rotary_bf16": partial(build_rotary, BF16),
    "group_norm_silu": build_group_norm,
    "cross_entropy_training": build_cross_entropy,
    "bert": partial(build_bert, F32),
    "bert_bf16": partial(build_bert, BF16),
    "gpt2": partial(build_gpt2, F32),
    "gpt2_bf16": partial(build_gpt2, BF16),
    "llama": partial(build_llama, F32),
    "llama_bf16": partial(build_llama, BF16),
    "resnet50": partial(build_resnet, F32),
    "resnet50_bf16": partial(build_resnet, BF16),
    "vit": partial(build_vit, F32),
    "vit_bf16": partial(build_vit, BF16),
    "bert_training": build_bert_training,
    "gpt2_training": build_gpt2_training,
}

# One of each kind, for a run of a few minutes.
QUICK = (
    "norm_gelu_softmax",
    "layer_norm_bf16",
    "add_transposed",
    "sum_columns",
    "rotary_bf16",
    "group_norm_silu",
    "cross_entropy_training",
    "bert",
    "gpt2_bf16",
    "resnet50",
    "bert_training",
)
