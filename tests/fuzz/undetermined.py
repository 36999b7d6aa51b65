"""What eager leaves open, or decides by luck: steps whose result nothing promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

DIVISIONS = ("div", "//", "%", "remainder", "fmod")


def _any_half(args: Sequence[torch.Tensor]) -> bool:
    return any(a.is_floating_point() and a.dtype.itemsize == 2 for a in args)


def _zero_divisor(args: Sequence[torch.Tensor]) -> bool:
    return len(args) == 2 and not args[1].is_floating_point() and bool((args[1] == 0).any())


def _always(_: Sequence[torch.Tensor]) -> bool:
    return True


def _expanded(args: Sequence[torch.Tensor]) -> bool:
    return any(st == 0 and n > 1 for a in args for st, n in zip(a.stride(), a.shape, strict=True))


@dataclass(frozen=True)
class Rule:
    """reason: why the result is open, if one of ``words`` is in the step's text and ``of`` holds
    for its arguments.  cuda: only there."""

    reason: str
    words: tuple[str, ...]
    of: Callable[[Sequence[torch.Tensor]], bool] = _always
    cuda: bool = False


RULES = (
    Rule(
        "the bits of nan are nobody's promise",
        (".view(torch.",),
        lambda args: bool(torch.isnan(args[0]).any()),
    ),
    Rule(
        "eager rounds the product where it goes by elements, not by vectors", ("alpha=",), _any_half
    ),
    Rule(
        "eager's mean is nan where an infinity comes first, infinity where it comes last",
        ("std_mean(", "var_mean("),
        lambda args: bool(torch.isinf(args[0]).any()),
    ),
    Rule("eager's reads memory that is not the tensor's", ("median(",), _expanded),
    Rule(
        "its slope near 0 is a small difference of large terms",
        ("sinc(",),
        lambda args: any(a.requires_grad for a in args),
    ),
    Rule(
        "eager leaves the shape as it is, its meta function does not",
        ("pixel_shuffle(", "pixel_unshuffle("),
        lambda args: args[0].numel() == 0,
    ),
    Rule(
        "a quotient that CUDA makes a product, rounded to whole numbers",
        ("0.6, rounding_mode",),
        cuda=True,
    ),
    Rule(
        "CUDA's kernels hold 1/6 in 32 bits, whatever the type",
        ("hardsigmoid", "hardswish"),
        cuda=True,
    ),
    Rule(
        "CUDA rounds the divisor to 16 bits",
        ("fmod(",),
        lambda args: args[0].dtype.itemsize == 2,
        cuda=True,
    ),
    Rule(
        "CUDA gives the argument itself where no channel moves, which the schema denies",
        ("channel_shuffle(",),
        cuda=True,
    ),
    Rule("an integer over zero, which CUDA leaves open", DIVISIONS, _zero_divisor, cuda=True),
)


def open_result(text: str, args: Sequence[torch.Tensor], cuda: bool) -> str:
    """Why eager's result of a step is left open, or nothing."""
    for r in RULES:
        if (cuda or not r.cuda) and any(w in text for w in r.words) and r.of(args):
            return r.reason
    return ""
