"""Calls of which PyTorch's tracing makes another program, without a word: for eager mode."""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional

from litz.graph.calls import argument

# Of complex numbers the trace forgets a conjugation.
PSEUDOINVERSES: Final = (torch.linalg.pinv, torch.pinverse, "pinverse")
# The trace writes the rank of something else into ``out``.
RANKS: Final = (torch.linalg.matrix_rank,)
# Of bytes on CPUs eager rounds the weights to 16 bits, the trace does not: results are 1 apart.
RESIZED: Final = (functional.interpolate, functional.upsample, functional.upsample_bilinear)
# The trace takes quantized tensors for those of floats.
QUANTIZED: Final = (
    torch.quantize_per_tensor,
    torch.quantize_per_tensor_dynamic,
    torch.quantize_per_channel,
)
# The trace counts labels behind the first -1, which ends them.
LABELED: Final = (
    functional.multilabel_margin_loss,
    torch._C._nn.multilabel_margin_loss,
)


def mistraced(gm: GraphModule) -> str:
    """Why Dynamo's graph means something else once AOTAutograd has traced it; "" if it does not."""
    parts = [m for m in gm.modules() if isinstance(m, GraphModule)]
    for n in (n for part in parts for n in part.graph.nodes):
        if n.target in PSEUDOINVERSES and _is_complex(n):
            return "PyTorch's trace of a complex pseudoinverse has other values than it"
        if n.target in RANKS and n.kwargs.get("out") is not None:
            return "PyTorch's trace of matrix_rank with out= has other values than it"
        if n.target in QUANTIZED:
            return "PyTorch's trace of quantized tensors has other types than they"
        if n.target in LABELED:
            return "PyTorch's trace of multilabel_margin_loss has other values than it"
        if n.target in RESIZED and _type(n) is torch.uint8 and _mixes(n):
            return "PyTorch's trace of an interpolation of bytes rounds otherwise than it"
    return ""


def _is_complex(n: Node) -> bool:
    dtype = _type(n)
    return dtype is not None and dtype.is_complex


def _type(n: Node) -> torch.dtype | None:
    value = n.meta.get("example_value")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _mixes(n: Node) -> bool:
    """Whether a resized image's elements are sums of several, by a kernel without antialiasing."""
    if n.target is functional.upsample_bilinear:
        return True
    mode = argument(n, 3, "mode", "nearest")
    return mode in ("bilinear", "bicubic") and not n.kwargs.get("antialias")
