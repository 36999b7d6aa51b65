"""Graphs with control flow, compiled and run: how many there were, and a digest of the results.

``python control_flow_programs.py`` prints both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop


def cond(x: Tensor, w: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x @ w).sin(), lambda x: x.cos() - w, (x,)) * 2


def loop(x: Tensor, w: Tensor) -> Any:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cond(y.mean() > 0, lambda y: y.cos() - 1, lambda y: y.exp() * 0.5, (y,))
        return i + 1, z + w

    return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x * 2))[1]


def rows(x: Tensor, w: Tensor) -> Any:
    return hop_map(lambda row, w: (row * w[0]).sin(), x * 2, w)


def steps(x: Tensor, w: Tensor) -> Any:
    def step(total: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return (total + row).tanh(), total * row + 1

    last, every = scan(step, x[0] * 0, x * w)
    return last + every.sum(1)


@torch.compiler.nested_compile_region
def block(x: Tensor, w: Tensor) -> Any:
    return (x @ w).relu() + x


def regions(x: Tensor, w: Tensor) -> Any:
    return block(block(x, w), w)


# Whether it is trained, and whether sizes are open.
PROGRAMS: tuple[tuple[Callable[..., Any], bool, bool], ...] = (
    (cond, False, True), (cond, True, False), (loop, False, False),
    (rows, True, False), (steps, True, False), (regions, True, False),
)  # fmt: skip


def run() -> tuple[int, str]:
    from litz import compiler

    torch.manual_seed(0)
    digest = hashlib.sha256()
    with mock.patch.object(compiler, "compile_graph", wraps=compiler.compile_graph) as counted:
        for fn, grad, dynamic in PROGRAMS:
            torch._dynamo.reset()
            x, w = (torch.rand(5, 5).requires_grad_(grad) for _ in range(2))
            out = torch.compile(fn, backend="litz", dynamic=dynamic)(x, w)
            parts = [out]
            if grad:
                out.sum().backward()
                parts += [x.grad, w.grad]
            for p in parts:
                digest.update(p.detach().numpy().tobytes())
    return counted.call_count, digest.hexdigest()


if __name__ == "__main__":
    print(*run())
