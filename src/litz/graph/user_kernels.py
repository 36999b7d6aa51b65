"""The users' Triton kernels that a graph launches, by the names under which artifacts want them."""

from __future__ import annotations

from contextlib import suppress

from torch.fx import GraphModule

from litz.graph.calls import higher_order_name
from litz.graph.dialect import MUTATION, USER_KERNEL
from litz.runtime.torch_private import user_kernel
from litz.runtime.user_kernels import kernel_name


def launched(gm: GraphModule) -> dict[str, object]:
    """The kernels of a graph and of its bodies; those without a name are left out."""
    found: dict[str, object] = {}
    for module in gm.modules():
        nodes = module.graph.nodes if isinstance(module, GraphModule) else ()
        for n in nodes:
            if higher_order_name(n.target) in (USER_KERNEL, MUTATION):
                kernel, _ = user_kernel(n.kwargs["kernel_idx"], n.kwargs["constant_args_idx"])
                with suppress(ValueError):
                    found[kernel_name(kernel)] = kernel
    return found
