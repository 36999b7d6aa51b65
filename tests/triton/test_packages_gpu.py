"""Packages on a real GPU; skips itself without one."""

from __future__ import annotations

import copy
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import litz
from litz import PackageError
from tests.native import built, called

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(96, 256), nn.LayerNorm(256)
        self.second = nn.Linear(256, 96)
        self.register_buffer("seen", torch.zeros(96))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x + self.second(self.norm(self.first(x)).relu())
        self.seen.add_(y.sum(0))
        return {"y": y, "p": y.softmax(-1)}


def test_a_package_computes_what_is_compiled(tmp_path: Path) -> None:
    """Also after its buffers and constants changed, on streams of several threads."""
    torch.manual_seed(0)
    module = Block().cuda()
    path = tmp_path / "block.litz"
    x = torch.randn(64, 96, device="cuda")
    litz.package(module, path, (x,), dynamic_shapes=({0: Dim("b", max=4096)},))
    program, own = litz.load(path), copy.deepcopy(module)
    first = x.clone()
    torch._dynamo.mark_dynamic(first, 0)
    call = torch.compile(own, backend="litz", options={"autotune": 0})
    with torch.no_grad():
        for y in (first, torch.randn(7, 96, device="cuda"), torch.randn(1000, 96, device="cuda")):
            mine, theirs = program(y), call(y)
            for name in theirs:
                assert torch.equal(mine[name], theirs[name]), name
        assert torch.equal(program.constants["seen"], own.seen)
        program.update_constants({"second.bias": torch.ones(96, device="cuda")})
        own.second.bias.fill_(1)
        torch.testing.assert_close(program(x), own(x))
    with pytest.raises(PackageError, match="the input x is on cpu"):
        program(x.cpu())


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_from_cpp(tmp_path: Path) -> None:
    """The same bits, of several sizes, and of a number in the host's memory."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor, by: torch.Tensor) -> dict[str, torch.Tensor]:
            return self.block(x * by)

    path, run = tmp_path / "two.litz", built(tmp_path)
    given = torch.randn(64, 96, device="cuda"), torch.tensor(0.5)
    litz.package(Two().cuda(), path, given, dynamic_shapes=({0: Dim("b", max=4096)}, None))
    (tmp_path / "by").write_bytes(torch.tensor(1.5).numpy().tobytes())
    for rows in (64, 7, 1000):
        x = torch.randn(rows, 96)
        (tmp_path / "x").write_bytes(x.numpy().tobytes())
        words = f"float32:{rows}x96:{tmp_path}/x", f"float32::{tmp_path}/by"
        done = called(run, path, *words)
        assert done.returncode == 0, done.stderr
        wanted = litz.load(path)(x.cuda(), torch.tensor(1.5))
        for n, name in enumerate(("y", "p")):
            found = Path(f"{path}.{n}").read_bytes()
            assert found == wanted[name].cpu().contiguous().numpy().tobytes(), (rows, name)


def test_tuned_when_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the program's example inputs, of which its buffers keep nothing; not where it runs."""
    module, x = Block().cuda(), torch.randn(64, 96, device="cuda")
    path, shapes = tmp_path / "tuned.litz", ({0: Dim("b", max=4096)},)
    litz.package(module, path, (x,), dynamic_shapes=shapes, options={"autotune": 5})
    assert not module.seen.any()
    monkeypatch.setattr("litz.runtime.tune.choose", None)
    program = litz.load(path)
    with torch.no_grad():
        for y in (x, torch.randn(7, 96, device="cuda")):
            torch.testing.assert_close(program(y), module(y), rtol=1e-4, atol=1e-4)
    other = f"sm_{60 if torch.cuda.get_device_capability()[0] != 6 else 70}"
    with pytest.raises(PackageError, match="cannot be tuned on"):
        litz.package(module, path, (x,), targets=(other,), options={"autotune": 5})


def test_threads_on_streams_of_their_own(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(96, 512), nn.GELU(), nn.Linear(512, 96)).cuda()
    x = torch.randn(64, 96, device="cuda")
    litz.package(module, tmp_path / "m.litz", (x,), dynamic_shapes=({0: Dim("b")},))
    program = litz.load(tmp_path / "m.litz")
    inputs = [torch.randn(n, 96, device="cuda") for n in (3, 64, 1000)]
    wanted = [program(y) for y in inputs]
    torch.cuda.synchronize()
    right: list[bool] = []

    def run(n: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [program(inputs[n % 3]) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
            right.append(all(torch.equal(r, wanted[n % 3]) for r in results))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert right == [True] * 6


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0),
    reason="a GPU that runs binaries for 8.0",
)
def test_ptx_serves_where_there_is_no_binary(tmp_path: Path) -> None:
    x, module = torch.randn(64, 96, device="cuda"), Block().cuda()
    litz.package(module, tmp_path / "p.litz", (x,), targets=("sm_80",))
    found = litz.load(tmp_path / "p.litz")(x)
    with torch.no_grad():
        torch.testing.assert_close(found, module(x))
