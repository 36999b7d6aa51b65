"""Single operators of ATen's ahead of time: ``with litz.eager.use("aten::gelu"): ...``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from litz.eager.operators import Use

__all__ = ["use"]


def use(*names: str, device: str = "cpu", options: Mapping[str, Any] | None = None) -> Use:
    """Have Litz's kernels run operators of ATen's wherever the process calls them on a device.

    names: as the dispatcher has them, ``aten::gelu`` or ``aten::add.Tensor``.  device: "cpu" or
    "cuda".  options: as ``torch.compile`` takes them; none records CUDA graphs.
    The result ends it: as a context, or by ``close()``; ``str`` of it says what became of each kind
    of call.  Raises OptionError for operators that there are not, or that cannot be compiled by
    themselves: those that write or return an argument's memory, that are made of other operators,
    or draw random numbers.
    """
    from litz.eager.operators import Use

    return Use(names, device, options)
