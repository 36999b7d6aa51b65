"""What convolutions add is added behind them.

On a GPU cuDNN computes a convolution alone, and PyTorch adds the bias by a kernel of its own behind
it, rounded twice.  Apart, the same sum is part of the kernel that reads the result.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from litz.graph.values import add_call

aten = torch.ops.aten


def add_bias_apart(gm: GraphModule) -> bool:
    """Convolutions on GPUs without their bias, which is added to the result."""
    found = [n for n in gm.graph.nodes if n.target is aten.convolution.default and _adds(n)]
    for n in found:
        x, weight, bias, *rest = n.args
        behind = n.next
        with gm.graph.inserting_before(behind):
            for _ in range(n.meta["val"].dim() - 2):
                bias = add_call(n, aten.unsqueeze.default, (bias, -1), {})
            whole = add_call(n, aten.add.Tensor, (n, bias), {})
        n.replace_all_uses_with(whole, lambda user, whole=whole: user is not whole)
        n.args = (x, weight, None, *rest)
    return bool(found)


def _adds(n: Node) -> bool:
    return isinstance(n.args[2], Node) and n.meta["val"].device.type == "cuda"
