"""Programs in PyTorch's packages of compiled functions, read by processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from counted import said, started

AHEAD = """
import pickle, sys, torch
from torch import nn

task, case, file = sys.argv[1:]
torch.manual_seed(0)
x, w = torch.randn(6, 8), torch.randn(8, 16).requires_grad_(case == "training")

def one(x, w):
    return torch.softmax(x @ w + 1, -1).sum(0)

def views(x, w):
    return x.t(), x.view(-1)

def call(x, w):
    return torch.linalg.det(x[:, :6])

def writes(x, w):
    x.add_(1)
    return x * 2

fn = globals().get(case, one)
if task == "save":
    if case == "open":
        torch._dynamo.mark_dynamic(x, 0)
    made = torch.compile(fn, backend="litz", fullgraph=True, options={"reduction": "split"})
    ahead = made.aot_compile(((x, w), {}))
    ahead.save_compiled_function(file)
    print(len(compiled))
else:
    with open(file, "rb") as f:
        ahead = torch.compiler.load_compiled_function(f)
for rows in (6, 9) if case == "open" else (6,):
    a = torch.randn(rows, 8)
    b = a.clone()
    got, want = ahead(a, w), fn(b, w)
    pairs = zip(got, want) if isinstance(got, tuple) else [(got, want)]
    for g, e in pairs:
        assert g.stride() == e.stride() and torch.allclose(g, e, 1e-4, 1e-5)
    assert torch.equal(a, b)
    if case == "training":
        assert torch.allclose(*(torch.autograd.grad(y.square().sum(), w)[0] for y in (got, want)))
if task == "load":
    print(len(compiled))
    stages = ("compiler", "lowering", "schedule", "kernel")
    assert not [s for s in stages if "litz." + s in sys.modules]
"""

ON_DISK = """
import sys, torch
torch._dynamo.config.caching_precompile = True

def fn(x, w):
    y = torch.softmax(x @ w, -1)
    torch._dynamo.graph_break()
    return y.cumsum(0) * 2

x, w = torch.randn(6, 8), torch.randn(8, 16)
with torch.no_grad():
    assert torch.allclose(torch.compile(fn, backend="litz")(x, w), fn(x, w), 1e-4, 1e-5)
torch.compiler.save_cache_artifacts()
found = torch._dynamo.utils.counters
print(len(compiled), found["dynamo_cache"]["dynamo_cache_hit"], found["stats"]["unique_graphs"])
"""


@pytest.mark.skipif(
    not hasattr(torch.compile(lambda x: x, backend="eager"), "aot_compile"),
    reason="this PyTorch compiles nothing ahead",
)
@pytest.mark.parametrize("case", ["one", "training", "open", "views", "call", "writes"])
def test_functions_that_are_compiled_ahead(case: str, tmp_path: Path) -> None:
    file = str(tmp_path / "fn")
    assert int(said(started(tmp_path / "here", AHEAD, "save", case, file))) >= 1
    assert said(started(tmp_path / "there", AHEAD, "load", case, file)).split() == ["0"]


def test_what_dynamo_keeps_on_disk(tmp_path: Path) -> None:
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "dynamo")}
    first = said(started(tmp_path / "here", ON_DISK, **env)).split()
    assert first == ["2", "0", "2"]
    assert said(started(tmp_path / "there", ON_DISK, **env)).split() == ["0", "1", "0"]
