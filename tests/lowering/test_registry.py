"""Arguments come to lowerings by the operator's schema."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from litz.lowering import families
from litz.lowering.registry import Bound, find, lower

aten = torch.ops.aten
CTX: Any = SimpleNamespace()


def bound(fn: Any, overload: torch._ops.OpOverload) -> Bound:
    return Bound(overload, fn, fn, 1, ())


def test_by_position_by_name_and_by_default() -> None:
    def fn(ctx: Any, x: Any, *, threshold: Any, beta: Any) -> tuple[Any, ...]:
        return x, threshold, beta

    softplus = bound(fn, aten.softplus.default)
    assert softplus(CTX, "x") == ("x", 20, 1)
    assert softplus(CTX, "x", 3) == ("x", 20, 3)
    assert softplus(CTX, "x", threshold=5) == ("x", 5, 1)
    assert softplus(CTX, "x", 3, 5) == ("x", 5, 3)


def test_own_default_for_what_an_overload_lacks() -> None:
    def fn(ctx: Any, x: Any, *, dim: Any = "all", keepdim: Any = None) -> tuple[Any, ...]:
        return x, dim, keepdim

    assert bound(fn, aten.sum.default)(CTX, "x", dtype=torch.int64) == ("x", "all", None)
    assert bound(fn, aten.sum.dim_IntList)(CTX, "x", [1]) == ("x", [1], False)


def test_the_rest_by_position() -> None:
    def fn(ctx: Any, x: Any, size: Any, *scales: Any) -> tuple[Any, ...]:
        return scales

    nearest = bound(fn, aten.upsample_nearest2d.default)
    assert nearest(CTX, "x", [4, 4]) == (None, None)
    assert nearest(CTX, "x", [4, 4], scales_w=2.0) == (None, 2.0)


def test_arguments_that_a_schema_lacks() -> None:
    def wrong_name(ctx: Any, x: Any, *, beta: Any, slope: Any) -> None: ...

    def too_many(ctx: Any, x: Any, y: Any) -> None: ...

    with pytest.raises(ValueError, match=r"wrong_name: aten\.softplus\.default .* argument slope"):
        bound(wrong_name, aten.softplus.default).names()
    with pytest.raises(ValueError, match="too_many: .* no argument y"):
        bound(too_many, aten.erfinv_.default).names()


def test_a_refused_lowering_is_not_registered() -> None:
    families.load()
    with pytest.raises(ValueError, match="no argument dimension"):

        @lower(aten.gcd.default)
        def gcd(ctx: Any, x: Any, *, dimension: Any) -> None: ...

    assert find(aten.gcd.default) is None
