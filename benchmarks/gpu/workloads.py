"""What is timed on a GPU: a registry from name to builder.

A builder takes ``quick`` (tiny sizes, for a try without a GPU) and returns a ``Traffic``.  Full
sizes move several times what the last-level cache holds.  Tensors are made on the device that is
current (``with torch.device``), from fixed seeds: every process of a machine builds the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.workloads import (
    BF16,
    F32,
    LossHead,
    Workload,
    add_transposed,
    bert,
    gpt2,
    group_norm_silu,
    inference,
    llama,
    randn,
    rotary,
    softmax,
)

__all__ = ["GPU_WORKLOADS", "Traffic", "build_on", "least_bytes"]

F16 = torch.float16


@dataclass(frozen=True)
class Traffic:
    """A workload and the bytes that a call has to move at least.

    least: that many; 0: not the bound of this workload; None: every input once and every output
    once.  mutates: a call changes its inputs, which are what comes out.
    """

    workload: Workload
    least: int | None = None
    mutates: bool = False


Builder = Callable[[bool], Traffic]


def build_on(device: str, name: str, quick: bool) -> Traffic:
    """The workload called ``name`` with its tensors on ``device``; ``KeyError`` without one."""
    builder = GPU_WORKLOADS[name]
    torch.manual_seed(0)
    with torch.device(device):
        return builder(quick)


def least_bytes(traffic: Traffic, outputs: list[Tensor]) -> int:
    """Bytes that a call with these outputs has to move at least; 0 where that says nothing."""
    if traffic.least is not None:
        return traffic.least
    return sum(t.numel() * t.element_size() for t in (*traffic.workload.inputs, *outputs))


# --- pointwise ------------------------------------------------------------------------------


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def build_gelu_bias(quick: bool) -> Traffic:
    rows, width = (64, 128) if quick else (16384, 8192)
    return Traffic(Workload(gelu_bias, (randn(rows, width, dtype=BF16), randn(width, dtype=BF16))))


def build_add_transposed(quick: bool) -> Traffic:
    n = 128 if quick else 8192
    return Traffic(Workload(add_transposed, (randn(n, n), randn(n, n))))


def build_swiglu(quick: bool) -> Traffic:
    rows, width = (64, 96) if quick else (8192, 14336)
    return Traffic(Workload(swiglu, (randn(rows, 2 * width, dtype=BF16),)))


def build_rotary(quick: bool) -> Traffic:
    """32 query heads and 8 key heads of 128, as in Llama 3 8B."""
    batch, length, width = (1, 64, 128) if quick else (8, 4096, 128)
    frequency = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angle = torch.outer(torch.arange(length), frequency).repeat(1, 2)
    q, k = (randn(batch, heads, length, width, dtype=BF16) for heads in (32, 8))
    return Traffic(Workload(rotary, (q, k, angle.cos().to(BF16), angle.sin().to(BF16))))


# --- reductions -----------------------------------------------------------------------------


def norm_residual(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    both = x + y
    return F.layer_norm(both, both.shape[-1:], weight, bias), both


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight)


def block_scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of 32 along rows, each divided by its largest magnitude; and those."""
    blocks = x.reshape(-1, 32)
    scale = blocks.abs().amax(1, keepdim=True)
    return (blocks / scale).reshape(x.shape), scale


def block_scaled_transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of 32 along columns, the result laid out as ``x``."""
    scaled, scale = block_scaled(x.t().contiguous())
    return scaled.t().contiguous(), scale


def var_mean_middle(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, 1)


def build_norm_residual(quick: bool) -> Traffic:
    rows, width = (64, 256) if quick else (16384, 8192)
    shapes = ((rows, width), (rows, width), (width,), (width,))
    return Traffic(Workload(norm_residual, tuple(randn(*s, dtype=BF16) for s in shapes)))


def build_rms_norm(quick: bool) -> Traffic:
    rows, width = (64, 256) if quick else (16384, 8192)
    return Traffic(Workload(rms_norm, (randn(rows, width, dtype=BF16), randn(width, dtype=BF16))))


def build_softmax(quick: bool) -> Traffic:
    shape = (32, 500) if quick else (8192, 50257)
    return Traffic(Workload(softmax, (randn(*shape, dtype=F16),)))


def build_cross_entropy(quick: bool) -> Traffic:
    rows, classes = (32, 512) if quick else (8192, 50304)
    logits = randn(rows, classes, dtype=BF16).requires_grad_()
    labels = torch.randint(classes, (rows,))
    # The loss is done before its gradient starts: two reads of the logits and a write.
    least = 3 * logits.numel() * logits.element_size() + 2 * labels.numel() * 8
    return Traffic(Workload(F.cross_entropy, (logits, labels), training=True), least)


def build_blocks(transposed: bool, quick: bool) -> Traffic:
    n = 128 if quick else 8192
    fn = block_scaled_transposed if transposed else block_scaled
    return Traffic(Workload(fn, (randn(n, n, dtype=BF16),)))


def build_sum_columns(quick: bool) -> Traffic:
    # A mean of 1 keeps the sums away from 0, where a relative error would say little.
    shape = (512, 128) if quick else (65536, 4096)
    return Traffic(Workload(partial(torch.sum, dim=0), (randn(*shape) + 1,)))


def build_sum_all(quick: bool) -> Traffic:
    return Traffic(Workload(torch.sum, (randn(1 << (16 if quick else 28)) + 1,)))


def build_var_mean(quick: bool) -> Traffic:
    shape = (4, 64, 96) if quick else (64, 1024, 4096)
    return Traffic(Workload(var_mean_middle, (randn(*shape) + 3,)))


def build_group_norm(quick: bool) -> Traffic:
    batch, channels, side = (2, 64, 8) if quick else (32, 256, 128)
    x = randn(batch, channels, side, side, dtype=BF16).to(memory_format=torch.channels_last)
    weight, bias = randn(channels, dtype=BF16), randn(channels, dtype=BF16)
    return Traffic(Workload(group_norm_silu, (x, weight, bias)))


# --- an optimizer ---------------------------------------------------------------------------

LEARNING_RATE, DECAY, BETA1, BETA2, EPSILON, STEP = 1e-3, 0.1, 0.9, 0.999, 1e-8, 10


def adamw(*tensors: Tensor) -> None:
    """One step in place: parameters, gradients, first and second moments, a quarter each."""
    n = len(tensors) // 4
    params, grads, first, second = (list(tensors[i : i + n]) for i in range(0, 4 * n, n))
    torch._foreach_mul_(params, 1 - LEARNING_RATE * DECAY)
    torch._foreach_lerp_(first, grads, 1 - BETA1)
    torch._foreach_mul_(second, BETA2)
    torch._foreach_addcmul_(second, grads, grads, 1 - BETA2)
    root = torch._foreach_sqrt(second)
    torch._foreach_div_(root, (1 - BETA2**STEP) ** 0.5)
    torch._foreach_add_(root, EPSILON)
    torch._foreach_addcdiv_(params, first, root, -LEARNING_RATE / (1 - BETA1**STEP))


def build_adamw(quick: bool) -> Traffic:
    """200 parameters, matrices and vectors in turn."""
    n, width = (8, 32) if quick else (200, 1024)
    shapes = ((width, width), (width,), (2 * width, width), (2 * width,)) * (n // 4)
    groups = [[randn(*s) for s in shapes] for _ in range(3)]
    groups.append([randn(*s).square() for s in shapes])
    size = sum(t.numel() * t.element_size() for t in groups[0])
    inputs = tuple(t for group in groups for t in group)
    # Four are read and three written.
    return Traffic(Workload(adamw, inputs), 7 * size, mutates=True)


# --- models: bound by more than bytes -------------------------------------------------------


def build_bert(quick: bool) -> Traffic:
    model = bert(1 if quick else 12).get_submodule("bert")
    ids = torch.randint(30522, (2, 16) if quick else (32, 128))
    return Traffic(inference(model, ids, F32 if quick else F16), 0)


def build_llama(quick: bool) -> Traffic:
    ids = torch.randint(32000, (2, 16) if quick else (8, 512))
    return Traffic(inference(llama(1 if quick else 6), ids, BF16), 0)


def build_gpt2_training(quick: bool) -> Traffic:
    ids = torch.randint(50257, (2, 16) if quick else (8, 512))
    model = LossHead(gpt2(1 if quick else 12), shift=1).train()
    return Traffic(Workload(model.to(BF16), (ids, ids), training=True), 0)


def build_resnet(quick: bool) -> Traffic:
    from transformers import ResNetConfig, ResNetForImageClassification

    depths = [1, 1, 1, 1] if quick else [3, 4, 6, 3]
    model = ResNetForImageClassification(ResNetConfig(depths=depths, num_labels=1000))
    model = model.to(memory_format=torch.channels_last)
    batch, side = (1, 64) if quick else (64, 224)
    x = randn(batch, 3, side, side).to(memory_format=torch.channels_last)
    return Traffic(inference(model, x, F32 if quick else F16), 0)


GPU_WORKLOADS: dict[str, Builder] = {
    "gelu_bias": build_gelu_bias,
    "layer_norm_residual": build_norm_residual,
    "rms_norm": build_rms_norm,
    "softmax": build_softmax,
    "cross_entropy_training": build_cross_entropy,
    "add_transposed": build_add_transposed,
    "block32": partial(build_blocks, False),
    "block32_transposed": partial(build_blocks, True),
    "sum_columns": build_sum_columns,
    "sum_all": build_sum_all,
    "var_mean_strided": build_var_mean,
    "group_norm_silu": build_group_norm,
    "rotary": build_rotary,
    "swiglu": build_swiglu,
    "adamw": build_adamw,
    "bert": build_bert,
    "gpt2_training": build_gpt2_training,
    "llama": build_llama,
    "resnet50": build_resnet,
}
