"""Powers of f32 values on GPUs are Litz's own: how exact they are, and IEEE 754's list."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton.language")

TRITON = {"target": "triton"}
INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, 0.5, 1, 2, 2.5, 3, INF, 149, 150, 127.9, 128, 1e-40, 1e-45, 1e38, 3.4e38]
SPECIAL += [16777215, 16777216, 1073741824, 8388607, 8388609, 8388607.5, 4194305, 4194304.5]


def power(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.compile(torch.pow, backend="litz", options=TRITON)(x, y)


def units(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """Errors in units of the last place, of results that are normal numbers."""
    wide = [t.numpy().astype(np.longdouble) for t in (x, y)]
    with np.errstate(over="ignore"):
        exact = wide[0] ** wide[1]
    normal = (exact > 1.2e-38) & (exact < 3.4e38)
    unit = np.exp2(np.floor(np.log2(exact[normal])) - 23)
    return np.abs((out.numpy()[normal] - exact[normal]) / unit)


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        (lambda r: 10 * r + 0.01, lambda r: 10 * r - 5),
        (lambda r: 0.2 * r + 0.9, lambda r: 1000 * r - 500),
        (lambda r: torch.exp2(250 * r - 125), lambda r: 2 * r - 1),
        (lambda r: 1 + 2e-4 * r, lambda r: 1e6 * r - 5e5),
        (lambda r: torch.exp2(20 * r - 149), lambda r: 1.6 * r - 0.8),
    ],
    ids=["plain", "near_one", "wide", "compound", "subnormal"],
)
def test_is_nearly_rounded_to_the_nearest(base, exponent) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    x, y = base(torch.rand(1 << 13)), exponent(torch.rand(1 << 13))
    found = units(power(x, y), x, y)
    assert found.max() < 0.95 and found.mean() < 0.262


def test_what_optimizers_correct_by() -> None:
    """``1 - beta ** step`` has as many right digits as eager's."""
    beta, steps = torch.full((200,), 0.999), torch.arange(1.0, 201.0)
    assert units(power(beta, steps), beta, steps).max() < 0.95
    assert power(beta, steps)[0] == beta[0]


def test_special_values() -> None:
    one = torch.tensor([*SPECIAL, *(-v for v in SPECIAL), NAN])
    x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(one, one, indexing="ij"))
    mine, eager = power(x, y), torch.pow(x, y)
    torch.testing.assert_close(mine, eager, rtol=2.5e-7, atol=1e-44, equal_nan=True)
    assert torch.equal(mine.signbit() | mine.isnan(), eager.signbit() | eager.isnan())
