"""Random numbers have no right value; what can be checked is that they may be what was drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch.fx import Node

aten = torch.ops.aten

# How many standard deviations a mean may be off (a chance of 1e-15 for a right one).
SIGMAS = 8.0


def doubt(n: Node, x: torch.Tensor) -> str | None:
    """Why ``x`` can hardly be what the random operator of ``n`` draws; None if it can."""
    check = _CHECKS.get(n.target)
    if check is None or x.numel() == 0:
        return None
    if x.dtype.is_floating_point and not bool(torch.isfinite(x).all()):
        return "random numbers that are not finite"
    return check(n, x.double())


def _mean(x: torch.Tensor, mean: float, deviation: float) -> str | None:
    got = x.mean().item()
    off = SIGMAS * deviation / math.sqrt(x.numel()) + 1e-2
    return None if abs(got - mean) <= off else f"random numbers of mean {got:.4g}, not {mean:.4g}"


def _uniform(n: Node, x: torch.Tensor) -> str | None:
    if bool(((x < 0) | (x >= 1)).any()):
        return "random numbers outside of [0, 1)"
    return _mean(x, 0.5, 12**-0.5)


def _normal(n: Node, x: torch.Tensor) -> str | None:
    return _mean(x, 0.0, 1.0) or _mean(x * x, 1.0, 2**0.5)


def _kept(x: torch.Tensor, p: object) -> str | None:
    if bool(((x != 0) & (x != 1)).any()):
        return "a random choice that is neither 0 nor 1"
    return _mean(x, p, math.sqrt(p * (1 - p))) if isinstance(p, float | int) else None


def _dropout(n: Node, x: torch.Tensor) -> str | None:
    return _kept(x, 1 - p) if isinstance(p := n.args[1], float | int) else None


def _bernoulli(n: Node, x: torch.Tensor) -> str | None:
    return _kept(x, n.args[1] if len(n.args) > 1 else 0.5)


_CHECKS: Mapping[object, Callable[[Node, torch.Tensor], str | None]] = {
    aten.rand.default: _uniform,
    aten.rand_like.default: _uniform,
    aten.randn.default: _normal,
    aten.randn_like.default: _normal,
    aten.bernoulli.p: _bernoulli,
    aten.native_dropout.default: _dropout,
}
