"""Graphs with control flow are found by another process, and are what they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import hashlib, torch
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from litz import compiler

compiled = []
inner = compiler.compile_graph
def counting(*args, **kwargs):
    compiled.append(1)
    return inner(*args, **kwargs)
compiler.compile_graph = counting

def cond(x, w):
    return torch.cond(x.sum() > 0, lambda x: (x @ w).sin(), lambda x: x.cos() - w, (x,)) * 2

def loop(x, w):
    def body(i, y):
        z = torch.cond(y.mean() > 0, lambda y: y.cos() - 1, lambda y: y.exp() * 0.5, (y,))
        return i + 1, z + w
    return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x * 2))[1]

def rows(x, w):
    return hop_map(lambda row, w: (row * w[0]).sin(), x * 2, w)

def steps(x, w):
    def step(total, row):
        return (total + row).tanh(), total * row + 1
    last, every = scan(step, x[0] * 0, x * w)
    return last + every.sum(1)

@torch.compiler.nested_compile_region
def block(x, w):
    return (x @ w).relu() + x

def regions(x, w):
    return block(block(x, w), w)

torch.manual_seed(0)
digest = hashlib.sha256()
for fn, grad, dynamic in (
    (cond, False, False), (cond, False, True), (cond, True, False), (loop, False, False),
    (rows, True, False), (steps, True, False), (regions, True, False),
):
    torch._dynamo.reset()
    x, w = (torch.rand(5, 5).requires_grad_(grad) for _ in range(2))
    out = torch.compile(fn, backend="litz", dynamic=dynamic)(x, w)
    parts = [out]
    if grad:
        out.sum().backward()
        parts += [x.grad, w.grad]
    for p in parts:
        digest.update(p.detach().numpy().tobytes())
print(len(compiled), digest.hexdigest())
"""


def test_another_process_finds_graphs_with_control_flow(tmp_path: Path) -> None:
    given = {"LITZ_CACHE_DIR": str(tmp_path), "LITZ_CHECK_CALLS": "0", "LITZ_CHECK_IR": "0"}
    runs = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **given, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        runs.append(done.stdout.split())
    (made, first), (again, second) = runs
    assert int(made) > 20 and again == "0"
    assert first == second
