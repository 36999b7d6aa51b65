"""Checking what a compiled graph is called with: its kernels trust their arguments blindly.

Dynamo's guards stand before a graph that it compiled, so that one look, at the first call, is
enough to find a promise that was broken in between (an operator whose results are not laid out as
it said).  Whoever calls a compiled graph by himself has each call checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.dataclass import dataclass

BoxedCall = Callable[[list[Any]], Any]
"""What runs a graph: it takes the arguments as a list and empties that: so they die in time."""

_Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class Argument:
    """One tensor argument: dtype, device; shape and strides in elements, None where dynamic.

    A stride is also None where it says nothing, as of a dimension of size 1.  written: the graph
    writes into the argument.  handed_on: operators of ATen alone take it, as it is.
    """

    position: int
    name: str
    dtype: torch.dtype
    device: torch.device
    shape: _Dims
    strides: _Dims
    written: bool
    handed_on: bool = False

    def fault(self, value: object) -> str:
        """What is wrong with a value beside its strides; "" for nothing."""
        if not isinstance(value, torch.Tensor):
            return f"is a {type(value).__name__}, not a tensor"
        fault = fault_of(value, self.dtype, self.device)
        if not fault and not self.has_shape(value):
            return f"has the shape {_text(value.shape)}, not {_text(self.shape)}"
        return fault

    def has_shape(self, value: torch.Tensor) -> bool:
        return value.dim() == len(self.shape) and _fits(value.shape, self.shape)

    def is_start_of(self, value: object) -> bool:
        """Whether a longer row begins with the argument.

        Of arguments that share memory PyTorch passes the memory, whose end it does not know when it
        traces.
        """
        return (
            isinstance(value, torch.Tensor)
            and value.dim() == len(self.shape) == 1
            and self.shape[0] is not None
            and value.shape[0] > self.shape[0]
        )


def fault_of(value: torch.Tensor, dtype: torch.dtype, device: torch.device) -> str:
    """What is wrong with a tensor's type or device; "" for nothing."""
    if value.dtype is not dtype:
        return f"has the type {value.dtype}, not {dtype}"
    return "" if value.device == device else f"is on {value.device}, not on {device}"


def stride_fault(value: torch.Tensor, strides: _Dims) -> str:
    """What is wrong with its strides, of which None may be any; "" for nothing."""
    if value.numel() == 0 or _fits(value.stride(), strides):
        return ""
    return f"has the strides {_text(value.stride())}, not {_text(strides)}"


def _fits(actual: Sequence[int], wanted: _Dims) -> bool:
    return all(w is None or a == w for a, w in zip(actual, wanted, strict=True))


def _text(dims: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


def checked(
    call: BoxedCall, count: int, arguments: tuple[Argument, ...], *, always: bool
) -> BoxedCall:
    """``call``, with its arguments checked: in each call, or in the first one alone.

    count: how many arguments there are.  Of arguments checked once, tensors whose strides do not
    fit are laid out anew from then on.  The result raises TypeError with the argument's name.
    """
    pending = True

    def run(args: list[Any]) -> Any:
        nonlocal pending
        if pending:
            if len(args) != count:
                raise TypeError(
                    f"litz: the graph was compiled for {count} arguments, not {len(args)}"
                )
            relaid = [_relay(a, args, always) for a in arguments]
            pending = always or any(relaid)
        return call(args)

    return run


def _relay(argument: Argument, args: list[Any], strict: bool) -> bool:
    """Check one argument; True where it was laid out anew, in ``args``."""
    value = args[argument.position]
    if not strict and argument.is_start_of(value):
        args[argument.position] = value.detach()[: argument.shape[0]]
        return True
    # What operators of ATen alone take is between them: attention's random state lies on the CPU,
    # against the metadata.
    if argument.handed_on and isinstance(value, torch.Tensor):
        return False
    fault = argument.fault(value)
    if not fault and (fault := stride_fault(value, argument.strides)):
        if not strict and not argument.written and None not in argument.shape:
            strides = [
                a if w is None else w for a, w in zip(value.stride(), argument.strides, strict=True)
            ]
            fresh = torch.empty_strided(
                value.shape, strides, dtype=value.dtype, device=value.device
            )
            args[argument.position] = fresh.copy_(value.detach())
            return True
    if fault:
        raise TypeError(
            f"litz: argument {argument.position} ({argument.name}) of a compiled graph {fault}"
        )
    return False
