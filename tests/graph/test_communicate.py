"""Gathers of what is then cast move the bytes of the cast."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from collective_cases import compiled, one_process

from litz.ir.program import Extern
from litz.runtime.collectives import is_collective, is_wait

if not dist.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)
Tensor = torch.Tensor
ops = torch.ops._c10d_functional


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    with one_process():
        yield


def gathered(x: Tensor) -> Tensor:
    return ops.wait_tensor(ops.all_gather_into_tensor(x, 1, dist.group.WORLD.group_name))


def reduced(x: Tensor) -> Tensor:
    return ops.wait_tensor(ops.all_reduce(x, "sum", dist.group.WORLD.group_name))


def both(x: Tensor) -> Tensor:
    whole = gathered(x)
    return whole.bfloat16() + whole.sum()


@pytest.mark.parametrize(
    ("fn", "x", "sent"),
    [
        (lambda x: gathered(x).bfloat16() * 2, torch.randn(8, 4), "bf16"),
        (lambda x: gathered(x.double()).half(), torch.randn(8, 4), "f16"),
        (lambda x: gathered(x).float() * 2, torch.randn(8, 4).bfloat16(), "bf16"),
        (lambda x: gathered(x).int(), torch.randn(8, 4), "f32"),
        (lambda x: reduced(x).bfloat16(), torch.randn(8, 4), "f32"),
        (both, torch.randn(8, 4), "f32"),
    ],
)
def test_casts_move_before_gathers(fn: Callable[[Tensor], Tensor], x: Tensor, sent: str) -> None:
    x.view(-1)[:3] = torch.tensor([torch.inf, -0.0, 1e-40])
    stages, out = compiled(fn, x, check_ir=True)
    assert stages.program is not None
    (start,) = (
        n
        for n in stages.program.nodes
        if isinstance(n, Extern) and is_collective(n.target) and not is_wait(n.target)
    )
    (ref,) = start.refs()
    assert stages.program.buffers[ref.buffer].dtype.name == sent
    assert torch.equal(out, fn(x)) and torch.equal(out.signbit(), fn(x).signbit())
