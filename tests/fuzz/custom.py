"""Custom operators that write into their arguments, for random programs and their scripts."""

from __future__ import annotations

from typing import Any

import torch

library: Any = torch.library.Library("litz_fuzz", "DEF")  # type: ignore[no-untyped-call]
library.define("scale_(Tensor(a!) x, float by) -> ()")
library.define("swap_(Tensor(a!) x, Tensor(b!) y) -> ()")
library.define("gather_into_(Tensor x, Tensor(a!) total) -> Tensor")
library.define("twice(Tensor x) -> Tensor")


def scale_(x: torch.Tensor, by: float) -> None:
    x.mul_(by)


def swap_(x: torch.Tensor, y: torch.Tensor) -> None:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


def gather_into_(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    return x.neg()


def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x


for name, body, fake in (
    ("scale_", scale_, lambda x, by: None),
    ("swap_", swap_, lambda x, y: None),
    ("gather_into_", gather_into_, lambda x, total: torch.empty_like(x)),
    ("twice", twice, torch.empty_like),
):
    library.impl(name, body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"litz_fuzz::{name}", fake, lib=library)
