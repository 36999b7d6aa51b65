"""Programs in packages: another process computes bitwise what ``torch.compile`` does here."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import package_cases
import pytest
import torch
from package_cases import CASES, Counting, results_of, state
from torch import nn
from torch.export import Dim, export

import litz
from litz import PackageError
from litz.artifact import from_bytes
from litz.loading import loaded
from litz.loading.container import Container
from litz.runtime import cpu
from litz.tools.commands import main
from litz.tools.exported import exported

QUICK = ("mlp", "writes", "cond", "sized")


def mark(shapes: Any, value: Any) -> None:
    """Have Dynamo take sizes as dynamic that the export has so."""
    if isinstance(value, torch.Tensor) and isinstance(shapes, dict):
        for dim in shapes:
            torch._dynamo.mark_dynamic(value, dim)
    elif isinstance(value, tuple) and isinstance(shapes, Sequence):
        for s, v in zip(shapes, value, strict=True):
            mark(s, v)


def write(name: str, folder: Path) -> None:
    """A package, and what ``torch.compile`` gives for the same calls."""
    torch.manual_seed(0)
    case = CASES[name]
    module, calls = case.make(), case.calls()
    args, kwargs = copy.deepcopy(calls[0])
    path = folder / f"{name}.litz"
    litz.package(module, path, args, kwargs, dynamic_shapes=case.shapes)
    own, marked = copy.deepcopy(module), copy.deepcopy(calls)
    args, kwargs = marked[0]
    shapes = case.shapes.values() if isinstance(case.shapes, dict) else case.shapes or ()
    for s, v in zip(shapes, (*args, *kwargs.values()), strict=False):
        mark(s, v)
    torch._dynamo.reset()
    call = torch.compile(own, backend="litz", dynamic=None if case.shapes else False)
    saved = {"calls": calls, "results": results_of(call, marked), "state": state(own)}
    torch.save(saved, path.with_suffix(".pt"))


@pytest.mark.parametrize(
    "names", [QUICK, pytest.param([n for n in CASES if n not in QUICK], marks=pytest.mark.slow)]
)
def test_another_process_computes_the_same(names: Sequence[str], tmp_path: Path) -> None:
    """There is no compiler in it, and it imports nothing of what compiles."""
    for name in names:
        write(name, tmp_path)
    done = subprocess.run(
        [sys.executable, package_cases.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": "", "CXX": "none", "PYTHONHASHSEED": "7"},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-3000:]


class Scaled(nn.Module):
    """Small, with constants that share memory, a buffer that it writes, and two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.arange(1.0, 5.0))
        self.b = self.a
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        self.count.add_(1)
        return (x * self.a + y.sum(0)).exp(), (y * self.b, self.count + 0)


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packages") / "scaled.litz"
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    shapes = ({0: Dim("rows", min=3, max=64)}, {0: Dim("others", max=100)})
    isas = [n for n in ("generic", "avx2", "avx512", "neon") if n in _runnable()]
    litz.package(Scaled(), path, (x, y), dynamic_shapes=shapes, isas=isas)
    return path


def _runnable() -> list[str]:
    best = cpu.detect_isa().name
    return ["generic", *{"avx512": ("avx2", "avx512")}.get(best, (best,))]


def test_sizes_of_zero_and_one_and_strides_of_any_kind(scaled: Path) -> None:
    program, eager = litz.load(scaled), Scaled()
    x = torch.randn(4, 7).t()
    for y in (torch.randn(1, 4), torch.randn(0, 4), torch.randn(9, 8)[:, ::2], torch.ones(9, 4)):
        with torch.no_grad():
            wanted = eager(x, y)
        found = program(x.requires_grad_(), y)
        torch.testing.assert_close(found, wanted)
        assert not found[0].requires_grad
        x = x.detach()


def test_a_call_that_the_program_was_not_exported_for(scaled: Path) -> None:
    program = litz.load(scaled)
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    for args, kwargs, words in (
        ((x,), {}, "takes 2 arguments by position"),
        ((x, y, y), {}, "takes 2 arguments by position"),
        ((x,), {"z": y}, "takes 2 arguments by position"),
        ((x, [y]), {}, "the input y is a list, not a tensor"),
        ((x.double(), y), {}, r"the input x has the type torch.float64, not torch.float32: call"),
        ((x.to("meta"), y), {}, "the input x is on meta; the package was made for cpu"),
        ((x[0], y), {}, r"the input x has 1 dimensions \(shape \[4\]\), not 2"),
        ((x[:, :3], y), {}, "dimension 1 of the input x is 3; the package takes 4"),
        ((x[:2], y), {}, "dimension 0 of the input x is 2; the package takes 3 to 64"),
        ((x, torch.ones(101, 4)), {}, "dimension 0 of the input y is 101; the package takes 0 to"),
        ((x.to_sparse(), y), {}, "takes plain tensors"),
    ):
        with pytest.raises(PackageError, match=words):
            program(*args, **kwargs)


def test_a_program_says_what_its_sizes_have_to_do_with_each_other(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, k: int, how: str) -> torch.Tensor:
            return torch.cat([x, x]) + y + k if how == "sum" else x

    half = Dim("half", max=50)
    args = (torch.randn(4, 2), torch.randn(8, 2), 3, "sum")
    exported = export(Both(), args, dynamic_shapes=({0: half}, {0: 2 * half}, None, None))
    litz.package(exported, tmp_path / "both.litz")
    program = litz.load(tmp_path / "both.litz")
    x, y = torch.randn(6, 2), torch.randn(12, 2)
    torch.testing.assert_close(program(x, y, 3, "sum"), torch.cat([x, x]) + y + 3)
    for other, words in (
        ((x, y[:10], 3, "sum"), "dimension 0 of the input y is 10; the package takes 12, by dimen"),
        ((x, y, 4, "sum"), "the input k is 4; the program was exported for 3 alone"),
        ((x, y, True, "sum"), "the input k is True"),
        ((x, y, 3, "none"), "the input how is 'none'; the program was exported for 'sum' alone"),
    ):
        with pytest.raises(PackageError, match=words):
            program(*other)
    with pytest.raises(PackageError, match="has its arguments and dynamic shapes already"):
        litz.package(exported, tmp_path / "again.litz", args)


def test_what_the_trace_found_of_sizes_is_checked(tmp_path: Path) -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(2, -1).sum(1)

    x = torch.randn(8, 4)
    litz.package(Halves(), tmp_path / "halves.litz", (x,), dynamic_shapes=({0: Dim.AUTO},))
    program = litz.load(tmp_path / "halves.litz")
    torch.testing.assert_close(program(x[:6]), x[:6].reshape(2, -1).sum(1))
    with pytest.raises(PackageError, match=r"while .*%2 == 0.* dimension 0 of the input x, 7 here"):
        program(x[:7])


def test_constants_are_shared_and_replaced_by_name(scaled: Path) -> None:
    program, other = litz.load(scaled), litz.load(scaled)
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    assert [*program.constants] == ["a", "b", "count"]
    assert program.constants["a"].data_ptr() == program.constants["b"].data_ptr()
    assert program.constants["a"].data_ptr() % 64 == 0
    before = program(x, y)
    program.update_constants({"a": torch.full((4,), 2.0)})
    torch.testing.assert_close(program(x, y)[0], (x * 2 + y.sum(0)).exp())
    torch.testing.assert_close(program(x, y)[1][0], y * 2)
    assert torch.equal(other(x, y)[0], before[0]), "another program keeps its own"
    assert [int(p.constants["count"]) for p in (program, other)] == [3, 1]
    for values, words in (
        ({"c": x}, "no constant 'c'; there are a, b, count"),
        ({"b": torch.ones(5)}, r"b has the shape \(4,\), and what is to replace it \(5,\)"),
        ({"b": torch.ones(4).int()}, "b has the type torch.float32, and what is to replace it"),
        ({"b": torch.ones(4, device="meta")}, "b has the device cpu"),
    ):
        with pytest.raises(PackageError, match=words):
            program.update_constants(values)


def test_a_machine_takes_the_best_that_it_can_run(
    scaled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    best = _runnable()[-1]
    assert litz.load(scaled).target == best
    has = cpu.cpu_flags()
    monkeypatch.setattr(loaded, "cpu_flags", lambda: ())
    plain = litz.load(scaled)
    assert plain.target == "generic"
    torch.testing.assert_close(plain(x, y)[0], litz.load(scaled)(x, y)[0])
    if best != "generic":
        path = scaled.with_name("best.litz")
        litz.package(Scaled(), path, (x, y), isas=(best,))
        if cpu.needs(best, ()):
            with pytest.raises(PackageError, match=f"nothing for this machine .*{best} .*needs"):
                litz.load(path)
    monkeypatch.setattr(loaded, "cpu_flags", lambda: has)
    monkeypatch.setattr(loaded.platform, "machine", lambda: "vax")
    with pytest.raises(PackageError, match="nothing for this machine .* vax"):
        litz.load(scaled)


def test_other_versions_are_refused(scaled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "__version__", "9.9")
    with pytest.raises(PackageError, match=r"made with litz 0.*, and this is litz 9\.9"):
        litz.load(scaled)


def test_the_file_is_a_zip_archive_whose_entries_lie_as_they_are(scaled: Path) -> None:
    with zipfile.ZipFile(scaled) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert names[0] == "litz-package" and names[-1] == "table.json"
        assert archive.read("constants/a") == torch.arange(1.0, 5.0).numpy().tobytes()
    container = Container(scaled)
    assert {*container.entries} == {*names} - {"table.json"}
    assert all(e.offset % 64 == 0 for e in container.entries.values())
    assert b'extern "C"' not in container.read("generic/artifact"), "no sources"
    assert json.loads(container.read("program.json"))["versions"]["litz"] == litz.__version__


def test_a_package_knows_the_lines_of_its_kernels(scaled: Path) -> None:
    container = Container(scaled)
    found = json.loads(container.read("generic/provenance.json"))
    lines = {x["id"]: x["file"] for x in found["lines"]}
    steps = [x for x in found["graph"]["steps"] if x["kind"] == "kernel"]
    assert steps and all(set(x["lines"]) <= lines.keys() for x in steps)
    assert {x["name"] for x in steps} == {x["id"] for x in found["kernels"]}
    assert set(lines.values()) == {"test_packages.py"}, "from where Python imports it"
    assert found["graph"]["line"] in lines and all(x.startswith("test_packages.py:") for x in lines)
    assert not any(x["source"] for x in found["kernels"]) and not found["graph"]["seconds"]


def test_equal_programs_have_equal_bytes(tmp_path: Path) -> None:
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    for name in ("a", "b"):
        litz.package(Scaled(), tmp_path / name, (x, y))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_the_export_keeps_whole_is_taken_apart() -> None:
    program = export(nn.Upsample(scale_factor=2, mode="bilinear"), (torch.randn(1, 2, 3, 4),))
    assert any("upsample" in str(n.target) for n in program.graph.nodes)
    assert not any("upsample" in str(n.target) for n in exported(program).graph.graph.nodes)


def test_what_cannot_be_packaged_says_why(tmp_path: Path) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.zeros(6)
            self.register_buffer("whole", whole)
            self.register_buffer("part", whole[:3])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.part.add_(x)
            return self.whole + 1

    for make, options, words in (
        (Views, {}, "PyTorch makes no functional graph of the program"),
        (Scaled, {"verify": True}, "checked runs"),
    ):
        x = (torch.ones(3),) if make is Views else (torch.ones(3, 4), torch.ones(2, 4))
        with pytest.raises(PackageError, match=words):
            litz.package(make(), tmp_path / "no.litz", x, options=options)
    with pytest.raises(litz.OptionError, match="no instruction set 'z80' here"):
        litz.package(Scaled(), tmp_path / "no.litz", x, isas=("z80",))
    assert [*tmp_path.iterdir()] == [], "nothing is left of them"
    with pytest.raises(PackageError, match="cannot be written"):
        litz.package(Scaled(), tmp_path / "no" / "such", x)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(3, 4)
    torch.export.save(export(Scaled(), (x, x)), tmp_path / "scaled.pt2")
    given = [str(tmp_path / "scaled.pt2"), str(tmp_path / "scaled.litz"), "--isa", "generic"]
    assert main(["package", *given]) == 0
    assert litz.load(tmp_path / "scaled.litz").target == "generic"
    for option in ("fusel=1", "fusel"):
        assert main(["package", *given, "--option", option]) == 2
        assert "did you mean 'fuel'" in capsys.readouterr().err


def test_inputs_that_are_written(tmp_path: Path) -> None:
    case = CASES["writes"]
    (args, kwargs), *_ = case.calls()
    path = tmp_path / "writes.litz"
    litz.package(Counting(), path, args, kwargs, dynamic_shapes=case.shapes)
    program = litz.load(path)
    a = torch.randn(5, 4)
    b = torch.arange(6.0)[::2]
    program(a, pair=(a, b))
    assert b.tolist() == [0, 4, 8], "by its strides"
    with pytest.raises(PackageError, match="writes into the input .*, which shares memory with"):
        program(a, pair=(a, a[0, :3]))


def test_convolutions_of_an_open_batch_run_in_channels_last(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 8, 8)
    path = tmp_path / "conv.litz"
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    litz.package(module, path, (x,), dynamic_shapes=({0: Dim("b")},), isas=("generic",))
    kernels = from_bytes(Container(path).read("generic/artifact")).kernels
    copies = any("clone" in node for k in kernels for _, nodes in k.groups for node in nodes)
    assert copies or torch.__version__ < (2, 13)  # which cannot tell without adding guards
    program = litz.load(path)
    for n in (1, 4, 40):  # PyTorch has another way from 16 on
        x = torch.randn(n, 3, 8, 8)
        torch.testing.assert_close(program(x), module(x).detach())
