from __future__ import annotations

import pytest
import torch

from litz.runtime import prelude, torch_private

LAYOUTS = [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((2, 0, 5), (0, 5, 1)), ((), ()), ((4, 1), (8, 8))]


@pytest.mark.parametrize("size,stride", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize(
    "allocate",
    [prelude.empty_strided, prelude.empty_large, torch_private.public_empty_strided_cpu],
)
def test_allocations_are_alike(allocate, size, stride, dtype) -> None:
    tensor = allocate(size, stride, dtype)
    expected = torch.empty_strided(size, stride, dtype=dtype)
    assert (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.storage_offset(),
    ) == (expected.shape, expected.stride(), dtype, torch.device("cpu"), 0)
    assert tensor.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert not tensor.requires_grad


@pytest.mark.parametrize("of", [prelude.reinterpret, torch_private.public_reinterpret])
def test_reinterpret(of) -> None:
    base = torch.arange(24.0)
    part = of(base, (2, 3), (3, 1), 6)
    assert torch.equal(part, base[6:12].view(2, 3))
    # The offset counts from the base's own.
    assert torch.equal(of(part, (3,), (1,), 3), base[9:12])
    part[0, 0] = -1.0
    assert base[6] == -1.0


def test_without_private_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_private.private("_C._nosuch", "name") is None
    assert torch_private.private("_C", "_nosuch_name") is None
