"""Memory of asynchronous collectives lives until they are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from collective_cases import compiled, group, ops  # noqa: F401 - group is a fixture
from torch import Tensor

from litz.host.lines import CallExtern, Free, Reuse


def waited(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = ops.all_reduce((x * 2).sin(), "sum", dist.group.WORLD.group_name)
    b = (w + 1).cos()  # as large as what is being reduced, and a product between
    c = b @ b
    return ops.wait_tensor(y) + 1, c, c @ c


def several(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    name = dist.group.WORLD.group_name
    first, second = ops.all_reduce(x.sin(), "sum", name), ops.all_reduce(x.cos(), "sum", name)
    c = w @ w
    late = ops.wait_tensor(second)
    d = (c + late) @ c
    return d, ops.wait_tensor(first) + d @ d


@pytest.mark.parametrize("fn", [waited, several])
def test_what_is_reduced_stays_until_the_wait(fn: Callable[..., Any]) -> None:
    args = torch.randn(300, 300), torch.randn(300, 300)
    stages, out = compiled(fn, *args, check_calls=False)
    host = stages.host
    assert host is not None
    under_way: dict[str, str] = {}  # what is read, by the result
    for line in host.lines:
        gone = (
            line.buffer if isinstance(line, Free) else line.old if isinstance(line, Reuse) else ""
        )
        assert gone not in under_way.values()
        if isinstance(line, CallExtern) and "all_reduce" in line.extern.target_name:
            (result,), (read,) = line.extern.outputs, line.extern.read_buffers()
            under_way[str(result)] = read
        elif isinstance(line, CallExtern) and "wait_tensor" in line.extern.target_name:
            (read,) = line.extern.read_buffers()
            del under_way[read]
    assert not under_way
    for mine, eager in zip(out, fn(*args), strict=True):
        assert (mine - eager).norm() <= 1e-5 * eager.norm()
