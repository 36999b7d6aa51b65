"""Convolutions on the CPU run in channels-last.

oneDNN's convolutions are faster there (1x1 ones about twice as fast), and what lies between them
doesn't care.  Only the inputs of convolutions that are not yet in that layout are copied, usually
one a model; strides then follow by eager's own rules, found by running the fake tensors again.
Results that the graph returns keep the strides that eager gives them, under ``EAGER_VAL``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import GraphModule, Node

from litz.graph.calls import op_name
from litz.graph.values import EAGER_VAL, same_dims

aten = torch.ops.aten

# Ops that read strides as data: a graph where one would see new strides is left alone.
STRIDE_SENSITIVE = frozenset({
    "as_strided", "as_strided_copy", "as_strided_scatter", "set_", "resize", "resize_",
    "view_as_real",
})  # fmt: skip
VIEWS = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
    aten._reshape_alias.default: aten.reshape.default,
}


def _wants_channels_last(n: Node) -> bool:
    if n.target is not aten.convolution.default:
        return False
    source = n.args[0]
    x = source.meta.get("val") if isinstance(source, Node) else None
    transposed, groups = n.args[6], n.args[8]
    if not isinstance(x, torch.Tensor) or x.dim() != 4 or transposed or groups != 1:
        return False
    plain = x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16)
    batch, *image = x.shape
    if not all(isinstance(s, int) for s in image):
        return False  # which layout a convolution chooses depends on these
    known = isinstance(batch, int) or _no_guards(getattr(x, "fake_mode", None)) is not None
    return plain and known and int(image[0]) > 1


def _is_channels_last(x: torch.Tensor) -> bool:
    """Whether the strides are channels-last for every size that symbols may stand for."""
    _, channels, height, width = x.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return same_dims(x.stride(), strides) and not same_dims(x.shape[2:], (1, 1))


def convolutions_in_channels_last(gm: GraphModule) -> bool:
    """Copy convolutions' inputs to channels-last where they are not, and let strides follow."""
    nodes = list(gm.graph.nodes)
    if not any(_wants_channels_last(n) for n in nodes):
        return False
    onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not onednn or _names(nodes) & STRIDE_SENSITIVE:
        return False
    plan = _Layout(gm)
    if not plan.run(nodes):
        plan.undo(nodes)
        return False
    return True


def _names(nodes: list[Node]) -> set[str]:
    return {op_name(n.target) for n in nodes if n.op == "call_function"}


class _Layout:
    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.before: dict[Node, tuple[Any, Any]] = {}
        self.copies: dict[Node, Node] = {}

    def run(self, nodes: list[Node]) -> bool:
        """False where a fake tensor refused the new strides."""
        for n in nodes:
            if _wants_channels_last(n) and not self.copy_input(n):
                return False
            stale = any(a in self.before or a in self.copies.values() for a in n.all_input_nodes)
            if n.op == "call_function" and stale and not self.propagate(n):
                return False
        for n in nodes:
            if n.op == "output":
                for a in n.all_input_nodes:
                    if a in self.before:
                        a.meta[EAGER_VAL] = self.before[a][1]
        return True

    def copy_input(self, n: Node) -> bool:
        source = n.args[0]
        assert isinstance(source, Node)
        x = source.meta["val"]
        if _is_channels_last(x):
            return True
        if source not in self.copies:
            try:
                with x.fake_mode, _without_guards(x.fake_mode):
                    fake = x.clone(memory_format=torch.channels_last)
            except Exception:
                return False
            at = source
            while source.op == at.next.op == "placeholder":
                at = at.next
            with self.gm.graph.inserting_after(at):
                copy = self.gm.graph.call_function(
                    aten.clone.default, (source,), {"memory_format": torch.channels_last}
                )
            copy.meta["val"] = fake
            copy.meta["stack_trace"] = n.meta.get("stack_trace")
            self.copies[source] = copy
        n.update_arg(0, self.copies[source])
        return True

    def propagate(self, n: Node) -> bool:
        """Run the fake tensors of ``n`` again; its strides may follow those of its inputs."""
        if n.meta.get("unbacked_bindings"):  # another run would make other symbols
            return False
        old = n.meta.get("val")
        mode = next(
            (a.meta["val"].fake_mode for a in n.all_input_nodes if _fake(a.meta.get("val"))), None
        )
        if n.target is operator.getitem:
            source, at = n.args
            assert isinstance(source, Node)
            new = source.meta["val"][at]
        elif mode is None:
            return True
        else:
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda a: a.meta["val"])
            try:
                with mode, _without_guards(mode):
                    new = self.call(n, args, kwargs)
            except Exception:
                new = _as_its_input(n, mode)
                if new is None:
                    return False
        if _strides(new) != _strides(old):
            self.before[n] = (n.target, old)
            n.meta["val"] = new
        return True

    def call(self, n: Node, args: Any, kwargs: Any) -> Any:
        assert callable(n.target)
        try:
            return n.target(*args, **kwargs)
        except RuntimeError:
            # A view that these strides forbid is a copy here.
            other = VIEWS.get(n.target)  # type: ignore[call-overload]
            if other is None:
                raise
            result = other(*args, **kwargs)
            self.before[n] = (n.target, n.meta.get("val"))
            n.target = other
            return result

    def undo(self, nodes: list[Node]) -> None:
        for n, (target, val) in self.before.items():
            n.target, n.meta["val"] = target, val
        for source, copy in self.copies.items():
            copy.replace_all_uses_with(source)
            self.gm.graph.erase_node(copy)


def _as_its_input(n: Node, mode: Any) -> Any:
    """What a convolution of channels-last gives; None for another call.

    By which of its ways PyTorch computes one depends on sizes (the batch's, of exported programs):
    all keep this layout, and what comes back is checked.
    """
    old, x = n.meta["val"], n.args[0]
    if n.target is not aten.convolution.default or old.dim() != 4 or not isinstance(x, Node):
        return None
    if not _is_channels_last(x.meta["val"]):
        return None
    with mode, _without_guards(mode):
        return torch.empty_like(old, memory_format=torch.channels_last)


def _no_guards(mode: Any) -> Callable[[], AbstractContextManager[None]] | None:
    """What makes a guard on sizes raise, where this version of PyTorch has it."""
    found: Callable[[], AbstractContextManager[None]] | None = getattr(
        getattr(mode, "shape_env", None), "error_on_new_guards", None
    )
    return found


def _without_guards(mode: Any) -> AbstractContextManager[None]:
    """Strides that hold only for some sizes raise; else they would be made a guard."""
    strict = _no_guards(mode)
    return nullcontext() if strict is None else strict()


def _fake(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, "fake_mode")


def _strides(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(str(s) for s in value.stride())  # comparing symbols would add a guard
    if isinstance(value, list | tuple):
        return tuple(map(_strides, value))
    return None
