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
# Other integers eager has no kernels for.
RESIZED: Final = (
    functional.interpolate, functional.upsample, functional.upsample_bilinear,
    functional.upsample_nearest,
)  # fmt: skip
# Classes that eager takes as 64-bit integers alone.
CLASSES: Final = (functional.one_hot, torch._C._nn.one_hot)
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
# The trace makes other operators of these, which take more types.
OF_FLOATS: Final = frozenset(("hardshrink", "multi_margin_loss"))
# Arithmetic in place, whose results the trace gives a type that they do not fit in.
FITTING: Final = frozenset(
    "addcdiv_ addcmul_ clamp_ clamp_max_ clamp_min_ clip_ ldexp_ logit_ mul_ multiply_ imul".split()
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
        if n.target in RESIZED and _is_integer(n) and (_type(n) is not torch.uint8 or _mixes(n)):
            return "PyTorch's trace of an interpolation of integers has other values than it"
        if n.target in RESIZED and _loses_gradient(n):
            return "PyTorch does not trace gradients of antialiased bicubic images of open sizes"
        if n.target in CLASSES and _type(n.args[0]) is not torch.int64:
            return "PyTorch's trace of one_hot takes classes of other types than it"
        name = name_of(n)
        if name in OF_FLOATS and not _of_floats(n):
            return f"PyTorch's trace of {name} takes other types than it"
        if name in FITTING and not _fits(n):
            return "PyTorch's trace of arithmetic in place takes results of other types than it"
    if any(_writes_windows(part) for part in parts):
        return (
            "PyTorch's trace of what is written to windows (unfold) forgets what is in none or many"
        )
    return ""


def name_of(n: Node) -> str:
    """What a function or method is called in Python."""
    target = n.target
    name = str(target if n.op == "call_method" else getattr(target, "__name__", ""))
    return name.partition(".")[0]


def is_in_place(name: str) -> bool:
    """Whether what is called so in Python writes into its first argument."""
    return name == "setitem" or name.endswith("_") or name in IN_PLACE


def _fits(n: Node) -> bool:
    """Whether the type of what is computed from all operands fits the first, as far as is known."""
    given = leaves((*n.args, *n.kwargs.values()))
    values = [x.meta.get("example_value") if isinstance(x, Node) else x for x in given]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if not tensors or tensors[0].dtype.is_floating_point or tensors[0].dtype.is_complex:
        return True
    wide = name_of(n) == "logit_"  # a function of floats
    wide = wide or any(isinstance(v, float | torch.SymFloat | complex) for v in values)
    return not wide and all(torch.can_cast(v.dtype, tensors[0].dtype) for v in tensors)


def _of_floats(n: Node) -> bool:
    """Whether eager has a kernel for the type that a call is of."""
    x = argument(n, 0, "input")
    value = x.meta.get("example_value") if isinstance(x, Node) else None
    if not isinstance(value, torch.Tensor):
        return True
    wide_alone = name_of(n) == "multi_margin_loss" and value.device.type == "cpu"
    return value.dtype.is_floating_point and not (wide_alone and value.itemsize < 4)


def _loses_gradient(n: Node) -> bool:
    """Whether an image's gradient is that of an operator whose metadata takes numbers alone."""
    if argument(n, 3, "mode", "nearest") != "bicubic" or not n.kwargs.get("antialias"):
        return False
    result = n.meta.get("example_value")
    images = (argument(n, 0, "input"), n)
    values = [i.meta.get("example_value") for i in images if isinstance(i, Node)]
    sizes = [s for v in values if isinstance(v, torch.Tensor) for s in v.shape]
    wanted = isinstance(result, torch.Tensor) and result.requires_grad
    return wanted and not all(isinstance(s, int) for s in sizes)


def _is_integer(n: Node) -> bool:
    dtype = _type(n)
    return dtype is not None and not dtype.is_floating_point


def _is_complex(n: Node) -> bool:
    dtype = _type(n)
    return dtype is not None and dtype.is_complex


def _writes_windows(gm: GraphModule) -> bool:
    """Whether a call writes into windows of a tensor that overlap or leave some of it out."""
    windows: set[Node] = set()
    for n in gm.graph.nodes:
        name = name_of(n)
        if name == "unfold" and not _covers(n):
            windows.add(n)
        if not windows.intersection(n.all_input_nodes):
            continue
        out, written = leaves(n.kwargs.get("out")), leaves(n.args[:1])
        if windows.intersection((*out, *(written if is_in_place(name) else ()))):
            return True
        if memory_of(n) is not None and memory_of(n) in map(memory_of, written):
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


def memory_of(n: object) -> int | None:
    """Which memory a strided tensor lies in."""
    value = n.meta.get("example_value") if isinstance(n, Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return address(value)


def _type(n: object) -> torch.dtype | None:
    value = n.meta.get("example_value") if isinstance(n, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _mixes(n: Node) -> bool:
    """Whether a resized image's elements are sums of several, by a kernel without antialiasing."""
    if n.target is functional.upsample_bilinear:
        return True
    mode = argument(n, 3, "mode", "nearest")
    return ("linear" in mode or mode == "bicubic") and not n.kwargs.get("antialias")
