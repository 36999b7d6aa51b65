"""Reading the calls of users' Triton kernels in a graph.

Dynamo puts kernels, and arguments that no graph can hold, into a table of its own and leaves their
numbers in the graph.  AOTAutograd has the kernel's code analysed for what it writes, and makes the
call functional: its results are the written arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch.fx import Node

from litz.dataclass import dataclass
from litz.graph.calls import higher_order_name
from litz.graph.dialect import MUTATION, USER_KERNEL, USER_OPERATORS
from litz.lowering.context import GraphUnsupported
from litz.runtime.torch_private import user_kernel
from litz.runtime.user_kernels import configurations


@dataclass(frozen=True)
class Descriptor:
    """A TMA descriptor of an argument's tensor.

    sizes: what makes it, beside the tensor: the block's shape; or for the older interface
    (``plain`` false) dimensions, block dimensions and the size of an element in bytes.
    """

    plain: bool
    sizes: tuple[Any, ...]


@dataclass(frozen=True)
class KernelCall:
    """One launch in a graph.

    kernel: the user's object; name: of its function.  configs: the meta-parameters of each of an
    autotuned kernel's configurations.  grids: one a configuration (one in all for a plain kernel).
    args: leading arguments in the kernel's order with their names; kwargs: all others.
    written: names of the arguments that the kernel writes, in the order of the call's results.
    """

    kernel: Any
    name: str
    configs: tuple[Mapping[str, object], ...]
    grids: tuple[tuple[Any, ...], ...]
    args: tuple[tuple[str, Any], ...]
    kwargs: tuple[tuple[str, Any], ...]
    descriptors: Mapping[str, Descriptor]
    written: tuple[str, ...]

    def nodes(self) -> dict[str, Node]:
        """The arguments that the graph computes, by name."""
        return {k: v for k, v in (*self.args, *self.kwargs) if isinstance(v, Node)}


def is_user_kernel(target: object) -> bool:
    """Whether a call's target is a user's Triton kernel."""
    return higher_order_name(target) in (USER_KERNEL, MUTATION)


def is_user_operator(target: object) -> bool:
    """Whether a call's target wraps a user's operator that writes arguments."""
    return higher_order_name(target) in USER_OPERATORS


def picked_result(n: Node) -> tuple[Node, int] | None:
    """The launch and the position among its results, where a node picks one by its name."""
    if n.target is not operator.getitem:
        return None
    source, name = n.args
    if not isinstance(source, Node) or not is_user_kernel(source.target):
        return None
    return source, list(source.kwargs["tensors_to_clone"]).index(name)  # type: ignore[arg-type]


def kernel_call(n: Node) -> KernelCall:
    """What a node launches.  Raises GraphUnsupported for a call that is not functional."""
    if higher_order_name(n.target) == MUTATION:
        raise GraphUnsupported("a Triton kernel call that AOTAutograd has not made functional")
    given: dict[str, Any] = dict(n.kwargs)
    kernel, constants = user_kernel(given["kernel_idx"], given["constant_args_idx"])
    values = {**given["kwargs"], **constants}
    # Leading arguments go by position: Triton's hooks before a launch look for them there.
    leading = []
    for name in kernel.arg_names:
        if name not in values:
            break
        leading.append((name, values.pop(name)))
    return KernelCall(
        kernel,
        _name(kernel),
        configurations(kernel),
        tuple(tuple(g) for g in given["grid"]),
        tuple(leading),
        tuple(values.items()),
        {k: _descriptor(v) for k, v in given["tma_descriptor_metadata"].items()},
        tuple(given["tensors_to_clone"]),
    )


def _name(kernel: Any) -> str:
    fn = kernel
    while hasattr(fn, "fn"):
        fn = fn.fn
    return str(getattr(fn, "__name__", type(kernel).__name__))


def _descriptor(metadata: Any) -> Descriptor:
    kind, sizes = metadata
    if kind not in ("stable", "experimental"):
        raise GraphUnsupported(f"a TMA descriptor of the kind {kind!r}")
    return Descriptor(kind == "stable", tuple(sizes))
