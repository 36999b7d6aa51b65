"""Convolutions and what is behind them by libraries: what one can take, and its calls.

``convolution`` is what host programs name: ATen's convolution with kernels behind it.  Where a
graph is bound, ``Convolutions`` takes its place: a library that computes all in one call, if it
has a way for the problem that keeps nan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from litz.dataclass import dataclass
from litz.runtime.instance import Instance, Matrix
from litz.runtime.offers import MARKS, Chooser, Offers, matrix

aten = torch.ops.aten
Tensor = torch.Tensor
ALIGNED: Final = 16  # bytes: no library asks for more
_dnn: Final[Any] = torch.backends.cudnn
OPERANDS: Final = ("image", "weight", "scale", "bias", "added", "out")


@dataclass(frozen=True, slots=True)
class Convolution:
    """``out = epilogue(scale * convolution(image, weight) + bias + added)``, rounded once.

    image, weight, out: [n, channels, ...], [outer, channels / groups, ...] and [n, outer, ...].
    scale, bias: None, or a number for each channel of the result.  added: None, or as ``out``.
    stride, padding, dilation: by dimensions of a place.  epilogue: relu, or "".
    ordered: whether sums have one order.
    """

    image: Matrix
    weight: Matrix
    out: Matrix
    scale: Matrix | None
    bias: Matrix | None
    added: Matrix | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    epilogue: str = ""
    ordered: bool = False

    @property
    def operands(self) -> dict[str, Matrix]:
        """Those that there are, by their names."""
        return {k: x for k in OPERANDS if (x := getattr(self, k)) is not None}


@dataclass(frozen=True, slots=True)
class Images:
    """The tensors of a call."""

    image: Tensor
    weight: Tensor
    out: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None
    added: Tensor | None = None

    @property
    def operands(self) -> dict[str, Tensor]:
        """Those that there are, by their names; the result is the last."""
        return {k: x for k in OPERANDS if (x := getattr(self, k)) is not None}

    @property
    def all(self) -> tuple[Tensor, ...]:
        return tuple(self.operands.values())

    @property
    def written(self) -> int:
        return 1

    def like(self, args: Sequence[Any]) -> Images:
        return Images(**dict(zip(self.operands, args, strict=True)))

    def marked(self) -> Images:
        """The marks are in places far from each other."""
        image = self.image.clone()
        places = image.movedim(1, -1).select(-1, 0)
        for k, mark in enumerate(reversed(MARKS)):
            places[tuple(k * (s - 1) // (len(MARKS) - 1) for s in places.shape)] = mark
        return replace(self, image=image, out=torch.empty_like(self.out))

    def reached(self) -> Tensor:
        return self.out


Call = Callable[[Images], None]
Library = Offers[Convolution, Images]


def plain_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor of which all channels of a place lie together, in elements."""
    step, strides = shape[1], []
    for size in reversed(shape[2:]):
        strides.append(step)
        step *= size
    return (step, 1, *reversed(strides))


def is_plain(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides, but for dimensions of one element."""
    found = zip(shape, strides, plain_strides(shape), strict=True)
    return all(size == 1 or a == b for size, a, b in found)


class Apart:
    """ATen's convolution as a library: what is behind it is computed by kernels of ATen's."""

    version = f"aten {torch.__version__}"

    def instances(self, problem: Convolution, most: int) -> Sequence[Instance]:
        return (Instance(self.version),)

    def bind(self, problem: Convolution, instance: Instance) -> Call:
        return partial(_apart, problem)

    def told(self, problem: Convolution) -> None:
        return None


def _apart(p: Convolution, o: Images) -> None:
    """Sums are float32 from the convolution on, as where one call computes all."""
    none = [0] * len(p.stride)
    y = aten.convolution(
        o.image, o.weight, None, p.stride, p.padding, p.dilation, False, none, p.groups
    )
    value = y.to(torch.float32) if y.dtype.itemsize < 4 else y
    row = (-1, *[1] * len(p.stride))
    value = value if o.scale is None else value * o.scale.view(row)
    value = value if o.bias is None else value + o.bias.view(row)
    value = value if o.added is None else value + o.added
    o.out.copy_(value.relu() if p.epilogue else value)


def problem_of(
    o: Images,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    epilogue: str = "",
) -> Convolution:
    ordered = _dnn.deterministic or torch.are_deterministic_algorithms_enabled()
    given: dict[str, Any] = dict.fromkeys(OPERANDS)
    for k, x in o.operands.items():
        m = matrix(x)
        given[k] = replace(m, aligned=min(m.aligned, ALIGNED))
    return Convolution(
        **given, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation),
        groups=groups, epilogue=epilogue, ordered=ordered,
    )  # fmt: skip


def convolution(
    image: Tensor,
    weight: Tensor,
    *,
    out: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    **how: Any,
) -> Tensor:
    """``out = epilogue(scale * convolution(image, weight) + bias + added)`` by ATen.

    Operands as those of a ``Convolution``; how: its stride, padding, dilation, groups, epilogue.
    """
    given = Images(image, weight, out, scale, bias, added)
    _apart(problem_of(given, **how), given)
    return out


class Convolutions(Chooser[Convolution, Images]):
    """Convolutions by the likeliest way, or where a graph may be tuned, by the fastest."""

    def among(self, values: Mapping[str, object]) -> dict[str, object]:
        """What a host program names, with this ``convolution`` in the place of the function."""
        return {k: self.convolution if v is convolution else v for k, v in values.items()}

    def looks(self, p: Convolution) -> bool:
        return True

    def convolution(
        self,
        image: Tensor,
        weight: Tensor,
        *,
        out: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        added: Tensor | None = None,
        **how: Any,
    ) -> Tensor:
        """As the function of that name, which it is while PyTorch is told to do without cuDNN."""
        given = Images(image, weight, out, scale, bias, added)
        problem = problem_of(given, **how)
        self.call(problem, given) if _dnn.enabled else _apart(problem, given)
        return out
