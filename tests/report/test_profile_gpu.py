"""Profiles on a GPU: times are the device's own, and stay below what it can do."""

from __future__ import annotations

import pytest
import torch

import litz

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_times_are_the_devices_own() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1) * 2

    args = torch.randn(8192, 1024, device="cuda"), torch.randn(1024, 4096, device="cuda")
    found = litz.profile(fn, *args, seconds=0.5)
    ours, eager = found.timings
    assert found.roofline.device == "cuda" and len(ours.rows) == 2
    for r in (*ours.rows, *eager.rows):
        assert r.seconds > 0 and 0.1 < found.share(r) < 1.5, r
    # A product that both leave to ATen takes as long in both.
    one, other = (next(r for r in t.rows if ".mm" in r.name) for t in found.timings)
    assert 0.7 < one.seconds / other.seconds < 1.4
    assert ours.inside <= 1.1 * ours.seconds
    assert "where the difference lies" in str(found) and found.to_trace()
