"""Looks at tensors while a program runs: what is shown, checked, recorded, and compared."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import litz
from litz.runtime.looking import RECORDS, facts, look
from litz.tools import compare

HOSTS = ("python", "native")


def chain(x: Tensor, w: Tensor) -> Any:
    h = torch.mm(x, w)
    y = torch.softmax(h, -1)
    return torch.mm(y, w).exp(), y.sum(0)


def compiled(fn: Any, **options: Any) -> Any:
    own = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__)
    return torch.compile(own, backend="litz", options={"check_calls": False, **options})


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()]


@pytest.mark.parametrize("host", HOSTS)
def test_all_steps_are_recorded_and_results_are_the_same(host: str, tmp_path: Path) -> None:
    x, w = torch.randn(5, 7), torch.randn(7, 7)
    plain = compiled(chain)(x, w)
    how = {"inspect": "*", "inspect_how": "save", "inspect_dir": str(tmp_path), "host": host}
    found = compiled(chain, **how)(x, w)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    made = records(tmp_path)
    product = next(r for r in made if "mm" in r["nodes"] and r["when"] == "after")
    saved = torch.load(tmp_path / product["file"], weights_only=True)
    assert torch.equal(saved, x @ w) and product["sha256"] == facts(x @ w)["sha256"]
    before = [r for r in made if "mm" in r["nodes"] and r["when"] == "before"]
    assert {facts(x)["sha256"], facts(w)["sha256"]} == {r["sha256"] for r in before}
    softmax = next(r for r in made if "_softmax" in r["nodes"] and r["when"] == "before")
    assert softmax["sha256"] == product["sha256"]
    last = [r for r in made if r["nodes"] == ["exp"]]  # in place
    assert [r["when"] for r in last] == ["before", "after"]
    assert torch.equal(torch.load(tmp_path / last[1]["file"], weights_only=True), found[0])
    taken = torch.load(tmp_path / last[0]["file"], weights_only=True)
    torch.testing.assert_close(taken.exp(), found[0])
    assert all(Path(r["line"].rpartition(":")[0]) == Path(__file__) for r in made)


@pytest.mark.parametrize("of", ["aten.mm*", "mm", "test_looks.py:23", "k*", "nothing"])
def test_steps_are_chosen_by_kernel_node_and_line(
    of: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    caplog.set_level("INFO", "litz")
    compiled(chain, inspect=of)(x, w)
    torch.compiler.reset()
    caplog.clear()
    compiled(chain, inspect=of)(x, w)  # as found in the cache
    shown = capfd.readouterr().err.splitlines()
    lines = {int(s.split("test_looks.py:")[1].split(":")[0]) for s in shown}
    wanted = {"aten.mm*": {23, 25}, "mm": {23}, "test_looks.py:23": {23}, "k*": {24, 25}}
    assert all(s.startswith("litz: ") and "sha256=" in s for s in shown)
    assert lines == wanted.get(of, set())
    assert ("names nothing in this graph of" in caplog.text) == (of == "nothing")


def test_the_first_nan_is_an_error() -> None:
    x, w = torch.ones(4, 4), torch.ones(4, 4)
    call = compiled(chain, inspect="*", inspect_how="check")
    call(x, w)
    x[1, 2] = float("inf")
    with pytest.raises(FloatingPointError, match="infinities among 16 .*before aten.mm"):
        call(x, w)
    call = compiled(chain, inspect="k*", inspect_how="check")
    with pytest.raises(FloatingPointError, match=r"4 nan and|4 infinities"):
        call(x, w)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).softmax(-1)).tanh()


def test_packages_are_looked_into_and_the_first_difference_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, x = Block().eval(), torch.randn(3, 8)
    path, run = tmp_path / "block.litz", tmp_path / "run"
    options = {"inspect": "*", "inspect_how": "save", "inspect_dir": str(run)}
    litz.package(module, path, (x,), options=options)
    program = litz.load(path)
    assert torch.equal(program(x), program(x))
    lines = records(run)
    half = len(lines) // 2
    assert [x["sha256"] for x in lines[:half]] == [x["sha256"] for x in lines[half:]]
    first = run.rename(tmp_path / "first")
    litz.load(path)(x)
    second = run.rename(tmp_path / "second")
    assert "equal as far as both go" in compare.first_difference(first, second)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.second.bias[3] += 1
    litz.package(other, path, (x,), options=options)
    litz.load(path)(x)
    said = compare.first_difference(second, run)
    assert "before step" in said and "is not equal: 1 of 8 elements, by at most 1" in said
    assert compare.main([str(second), str(run)]) == 1 and said in capsys.readouterr().out
    assert compare.main([str(run), str(run)]) == 0
    assert compare.main([str(run), str(tmp_path / "nowhere")]) == 2


def test_threads_keep_a_file_for_each_tensor(tmp_path: Path) -> None:
    def run(n: int) -> None:
        for _ in range(25):
            look(n, True, "k", (), "", "save", str(tmp_path), ("x",), torch.full((2,), n))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    made = records(tmp_path)
    assert len({r["file"] for r in made}) == len(made) == 100
    for r in made:
        assert torch.load(tmp_path / r["file"])[0] == r["step"]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.complex64])
def test_facts_of_other_types(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).to(dtype)
    assert facts(x)["max"] == 1 and facts(x)["sha256"] == facts(x.t())["sha256"]
    assert facts(x[:0])["min"] is None
    look(0, True, "k", (), "", "check", "", ("x",), x)
