"""What an operator is called with, as far as compiled code depends on it.

A signature is a *kind* and *layouts*.  The kind has all but sizes: the process's state, for each
tensor its type, device and number of dimensions, and every other argument by its value; the layouts
have each tensor's sizes and strides, in order.  Both are plain data whose ``==`` tells apart what
code tells apart (-0.0 from 0.0, True from 1, nan is nan), and whose ``repr`` stands in keys.

Where memory begins is not in it: kernels that read by 16 bytes look at the addresses of each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides of a tensor, in elements."""
Kind = tuple[object, ...]
Signature = tuple[Kind, tuple[Layout, ...]]

_PLAIN = frozenset((int, str, type(None), torch.dtype, torch.layout, torch.memory_format))


class Unknown(Exception):
    """An argument that is no data, or a tensor that is more than memory with strides."""


def signature(
    args: Sequence[object], kwargs: Mapping[str, object], tensors: list[Tensor]
) -> Signature:
    """The signature of a call, whose tensors are put into ``tensors``.  Raises Unknown."""
    layouts: list[Layout] = []
    kind = [
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        _entries(args, tensors, layouts),
    ]
    for name, value in kwargs.items():
        kind += (name, _entries((value,), tensors, layouts))
    return tuple(kind), tuple(layouts)


def _entries(values: Sequence[Any], tensors: list[Tensor], layouts: list[Layout]) -> Kind:
    found: list[object] = []
    for v in values:
        cls = type(v)
        if cls in _PLAIN:
            found.append(v)
        elif cls is Tensor or cls is Parameter:
            shape, dtype = v.shape, v.dtype
            if v.is_neg() or (dtype.is_complex and v.is_conj()):
                raise Unknown("a tensor that stands for another one's negative or conjugate")
            found.append((dtype, v.get_device(), len(shape)))
            layouts.append((shape, v.stride()))
            tensors.append(v)
        elif cls is list or cls is tuple:
            found.append((list, *_entries(v, tensors, layouts)))
        else:
            found.append(_other(v))
    return tuple(found)


def _other(v: object) -> object:
    if isinstance(v, bool):
        return bool, v
    if isinstance(v, float):
        return float, (v if v == v and v else v.hex())
    if isinstance(v, complex):
        return complex, (v.real.hex(), v.imag.hex())
    # Without an index it is another one from call to call.
    if isinstance(v, torch.device) and (v.type == "cpu" or v.index is not None):
        return v
    raise Unknown(f"a {type(v).__name__}")


def family(kind: Kind) -> Kind:
    """The kind without the values of numbers."""
    return tuple(_without_value(x) for x in kind)


def _without_value(x: object) -> object:
    if type(x) is not tuple or not x:
        return int if type(x) is int else x
    if x[0] in (float, complex):
        return x[0]
    return x if isinstance(x[0], torch.dtype) else family(x)
