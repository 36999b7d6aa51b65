"""The arithmetic of products, convolutions and attention, by PyTorch's own table; and rates."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from litz.dataclass import dataclass


@dataclass(frozen=True)
class Rates:
    """What times are estimated from.

    latency: seconds of a transfer of nothing; bandwidth: bytes a second between processes; memory,
    operations: bytes and operations of products a second on the device; launch: seconds of a step
    of nothing.
    """

    latency: float
    bandwidth: float
    memory: float
    operations: float
    launch: float


def call_ops(target: object, args: Any, kwargs: Any, out: Any) -> int:
    """Multiplications and additions of a call of ATen; 0 of what is none of these.

    args, kwargs, out: as in the call and its result; of tensors their sizes are enough.
    """
    packet = getattr(target, "overloadpacket", None)
    # Attention on CPUs, which PyTorch's table does not have, takes what other kinds take.
    name = getattr(packet, "__name__", "").replace("_for_cpu", "")
    count = flop_registry.get(packet) or flop_registry.get(getattr(torch.ops.aten, name, None))
    if count is None:
        return 0
    try:
        return int(count(*args, **kwargs, out_val=out))
    except Exception:  # PyTorch's table is about operators in their usual form
        return 0
