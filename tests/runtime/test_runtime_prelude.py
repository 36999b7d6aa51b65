from __future__ import annotations

import pytest
import torch

from litz.runtime import prelude, torch_private
from litz.runtime.rng import draw_seed

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
    assert torch_private._private("_C._nosuch", "name") is None
    assert torch_private._private("_C", "_nosuch_name") is None


def test_seeds_follow_the_generator() -> None:
    torch.manual_seed(5)
    first = [draw_seed() for _ in range(50)]
    torch.manual_seed(5)
    assert [draw_seed() for _ in range(50)] == first
    assert len(set(first)) == 50
    assert all(0 <= seed < 2**63 for seed in first)
    assert max(first) >= 2**60
    torch.manual_seed(6)
    assert draw_seed() != first[0]


def test_eager_draws_move_seeds_and_the_other_way_round() -> None:
    torch.manual_seed(5)
    first = draw_seed()
    torch.manual_seed(5)
    torch.rand(1)
    assert draw_seed() != first
    torch.manual_seed(5)
    eager = torch.rand(1)
    torch.manual_seed(5)
    draw_seed()
    assert torch.rand(1) != eager


def test_a_generator_of_its_own() -> None:
    state = torch.get_rng_state()
    seeds = [draw_seed(torch.Generator().manual_seed(3)) for _ in range(2)]
    assert seeds[0] == seeds[1]
    assert torch.equal(torch.get_rng_state(), state)
    with torch.inference_mode():
        assert 0 <= draw_seed() < 2**63
