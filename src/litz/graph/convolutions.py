"""What convolutions add is added behind them, and its gradient is summed apart.

On a GPU cuDNN computes a convolution alone, and PyTorch adds the bias by a kernel of its own behind
it, rounded twice, and sums a bias's gradient by another.  Apart, the same sums are part of the
kernels that read the result, or make the gradient.
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


def sum_bias_apart(gm: GraphModule) -> bool:
    """Gradients of convolutions on GPUs without that of the bias, which is a sum of its own."""
    calls = gm.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    found = [n for n in calls if n.args[-1][2] and n.args[0].meta["val"].device.type == "cuda"]
    for n in found:
        grad, *rest, mask = n.args
        dims = [d for d in range(grad.meta["val"].dim()) if d != 1]
        for pick in [u for u in n.users if u.args[1] == 2]:
            with gm.graph.inserting_before(pick):
                total = add_call(n, aten.sum.dim_IntList, (grad, dims), {})
            pick.replace_all_uses_with(total)
            gm.graph.erase_node(pick)
        n.args = (grad, *rest, [*mask[:2], False])
        n.meta["val"] = (*n.meta["val"][:2], None)
    return bool(found)


def _adds(n: Node) -> bool:
    return isinstance(n.args[2], Node) and n.meta["val"].device.type == "cuda"
