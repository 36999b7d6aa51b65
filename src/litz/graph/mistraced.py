"""Calls of which PyTorch's tracing makes another program, without a word: for eager mode."""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional

from litz.graph.calls import argument, leaves
from litz.runtime.torch_private import address

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


# ``x += y`` and its kind.
IN_PLACE: Final = frozenset(
    f"i{n}" for n in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()
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
    if any(_writes_windows(part) for part in parts):
        return (
            "PyTorch's trace of what is written to windows (unfold) forgets what is in none or many"
        )
    return ""


def _is_complex(n: Node) -> bool:
    dtype = _type(n)
    return dtype is not None and dtype.is_complex


def _writes_windows(gm: GraphModule) -> bool:
    """Whether a call writes into windows of a tensor that overlap or leave some of it out."""
    windows: set[Node] = set()
    for n in gm.graph.nodes:
        target = n.target
        name = str(target if n.op == "call_method" else getattr(target, "__name__", ""))
        name = name.partition(".")[0]
        if name == "unfold" and not _covers(n):
            windows.add(n)
        if not windows.intersection(n.all_input_nodes):
            continue
        out, written = leaves(n.kwargs.get("out")), leaves(n.args[:1])
        in_place = name == "setitem" or name.endswith("_") or name in IN_PLACE
        if windows.intersection((*out, *(written if in_place else ()))):
            return True
        if _memory(n) is not None and _memory(n) in map(_memory, written):
            windows.add(n)
    return False


def _covers(n: Node) -> bool:
    """Whether windows hold each element once."""
    image, dim = n.args[0], argument(n, 1, "dimension", argument(n, 1, "dim"))
    size, step = argument(n, 2, "size"), argument(n, 3, "step")
    value = image.meta.get("example_value") if isinstance(image, Node) else None
    if not isinstance(value, torch.Tensor) or not all(
        isinstance(i, int) for i in (dim, size, step)
    ):
        return False
    length = value.shape[dim] if value.ndim else 1
    return size == step and isinstance(length, int) and length % step == 0


def _memory(n: object) -> int | None:
    """Which memory a strided tensor lies in."""
    value = n.meta.get("example_value") if isinstance(n, Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return address(value)


def _type(n: Node) -> torch.dtype | None:
    value = n.meta.get("example_value")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _mixes(n: Node) -> bool:
    """Whether a resized image's elements are sums of several, by a kernel without antialiasing."""
    if n.target is functional.upsample_bilinear:
        return True
    mode = argument(n, 3, "mode", "nearest")
    return mode in ("bilinear", "bicubic") and not n.kwargs.get("antialias")
