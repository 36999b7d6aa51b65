"""Packages run from C++ without Python: the same bits, and errors that say what is wrong."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import package_families
import pytest
import torch
from package_cases import CASES, TEXT, Call, Case
from torch.utils import _pytree as pytree

import litz
from litz.loading.container import Container, Writer
from litz.runtime import shipped
from tests.loading.package_corpus import RUNNER, difference, entries
from tests.loading.test_damaged import DAMAGE, Small, X, random
from tests.native import EXAMPLE, NATIVE, SANITIZED, TORCH, built, called

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("native"))


def words(values: Sequence[Any], folder: Path) -> list[str]:
    """Inputs as the example takes them."""
    found = []
    for n, x in enumerate(values):
        if isinstance(x, torch.Tensor):
            (folder / f"input{n}").write_bytes(x.contiguous().numpy().tobytes())
            sizes = "x".join(map(str, x.shape))
            found.append(f"{str(x.dtype).removeprefix('torch.')}:{sizes}:{folder}/input{n}")
        else:
            found.append(f"int:{x}")
    return found


def compare(run: Path, name: str, case: Case, folder: Path) -> None:
    """Of a case the results from C++ and from Python, and from Python and eager mode."""
    torch.manual_seed(0)
    path = folder / f"{name}.litz"
    module, calls = case.make(), case.calls()
    litz.package(module, path, *calls[0], dynamic_shapes=case.shapes)
    for args, kwargs in calls:
        given = words(pytree.tree_leaves((args, kwargs)), folder)
        wanted = pytree.tree_leaves(litz.load(path)(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
        if name in FAMILIES:
            with torch.no_grad():
                torch.testing.assert_close(wanted, [module(*args)], atol=1e-5, rtol=1e-4)
        done = called(run, path, *given)
        assert done.returncode == 0, (name, done.stderr)
        said = done.stdout.splitlines()[1:]
        assert len(said) == len(wanted), done.stdout
        for n, (x, line) in enumerate(zip(wanted, said, strict=True)):
            if isinstance(x, torch.Tensor):
                found = Path(f"{path}.{n}").read_bytes()
                assert found == x.contiguous().numpy().tobytes(), (name, n)
            else:
                assert line == ("none" if x is None else f"number {x}"), (name, line)


def texts() -> list[Call]:
    shapes = [(2, 7), (3, 11), (1, 1), (5, 32)]
    return [((torch.randint(2, 60, s), torch.ones(s, dtype=torch.int64)), {}) for s in shapes]


FAMILIES = {name: Case(make, texts, TEXT) for name, make in package_families.FAMILIES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *FAMILIES])
def test_the_same_bits(run: Path, name: str, tmp_path: Path) -> None:
    compare(run, name, {**CASES, **FAMILIES}[name], tmp_path)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("runner"), *SANITIZED, main=RUNNER)


@pytest.mark.slow
@pytest.mark.parametrize("name", entries())
def test_the_corpus(runner: Path, name: str, tmp_path: Path) -> None:
    """By ``torch.compile``, ``litz.load`` and from C++ under sanitizers."""
    try:
        assert not difference(entries()[name], runner, tmp_path)
    except litz.PackageError as e:
        pytest.skip(str(e))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cmake"), reason="needs CMake")
def test_the_example_is_built_by_cmake(tmp_path: Path) -> None:
    names = [f"-DLITZ_NATIVE={NATIVE}", f"-DLITZ_TORCH_LIB={TORCH}"]
    configure = ["cmake", "-S", str(EXAMPLE), "-B", str(tmp_path), *names]
    for command in (configure, ["cmake", "--build", str(tmp_path)]):
        subprocess.run(command, check=True, capture_output=True)
    compare(tmp_path / "run", "mlp", CASES["mlp"], tmp_path)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from torch.export import Dim

    path = tmp_path_factory.mktemp("native") / "small.litz"
    litz.package(Small(), path, (X,), dynamic_shapes=({0: Dim("b", max=64)},))
    return path


@pytest.mark.slow
def test_what_is_said(run: Path, small: Path, tmp_path: Path) -> None:
    for x, said in (
        (torch.ones(65, 4), "dimension 0 of the input x is 65; the package takes 0 to 64"),
        (torch.ones(3, 5), "dimension 1 of the input x is 5; the package takes 4"),
        (torch.ones(3, 4).double(), "the input x has another element type"),
        (torch.ones(4), "the input x does not have 2 dimensions"),
        (7, "the input x is no tensor"),
    ):
        done = called(run, small, *words([x], tmp_path))
        assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "takes 1 inputs, not 0" in called(run, small).stderr
    assert "cannot be read" in called(run, tmp_path / "none.litz").stderr
    cut = tmp_path / "cut.litz"
    cut.write_bytes(small.read_bytes()[:-300])
    assert "is no package, or its end is missing" in called(run, cut).stderr
    cut.write_bytes(small.read_bytes().replace(X[0].numpy().tobytes(), bytes(16)))
    assert "constants/weight is altered" in called(run, cut, *words([X], tmp_path)).stderr


class Spread(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spread", torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.spread


def rewritten(path: Path, change: Callable[[Any], object]) -> Path:
    """A package whose record says something else."""
    container, other = Container(path), path.with_name("rewritten.litz")
    change(record := json.loads(container.read("program.json")))
    with Writer(other) as out:
        for name in container.entries.keys() - {"litz-package"}:
            same = name != "program.json"
            out.add(name, container.read(name) if same else json.dumps(record).encode())
    return other


@pytest.mark.slow
def test_records_of_tensors(run: Path, tmp_path: Path) -> None:
    """Elements of constants that are one memory stay so where these are copied, as on GPUs."""
    path, x = tmp_path / "p.litz", torch.randn(3, 4)
    litz.package(Spread(), path, (x,))

    def write(record: Any) -> None:
        assert record["constants"][0]["strides"] == [1, 0]
        record["constants"][0]["written"] = True

    given = words([x], tmp_path)
    for file in path, rewritten(path, write):
        done = called(run, file, *given)
        assert done.returncode == 0, done.stderr
        assert Path(f"{file}.0").read_bytes() == Spread()(x).numpy().tobytes()
    for kind, said in ("constants", "a constant of other"), ("inputs", "an input of other"):
        wrong = rewritten(path, lambda record, k=kind: record[k][0]["strides"].pop())
        assert said in called(run, wrong, *given).stderr


FORMULAS = """
#include <reading.h>
#include <cstdio>
int main(int count, char** given) {
    const std::map<std::string, size_t> places{{"s0", 0}, {"s1", 1}};
    for (int i = 1; i < count; ++i) {
        try {
            litz::Formula read(given[i], places);
            for (litz::i64 a = -3; a < 4; ++a) std::printf("%ld ", read.value({a, 5 - a}));
        } catch (const litz::Error& e) {
            std::printf("%s", e.what());
        }
        std::puts("");
    }
}
"""


def test_formulas_are_pythons(tmp_path: Path) -> None:
    """They are read once, when a package is loaded, and give what Python gives."""
    (tmp_path / "formulas.cpp").write_text(FORMULAS)
    run = tmp_path / "formulas"
    command = ["g++", "-std=c++17", f"-I{NATIVE}", str(tmp_path / "formulas.cpp"), "-o", str(run)]
    subprocess.run(command, check=True)
    texts = [
        "s0", "12", "-s1 + 2*s0 - 3", "s0 // 2 - s1 % 3", "7 // s1 * -2", "2*(s0 - s1 + 1)",
        "min(s0, s1, 2) + max(1, min(s0, -s1))", "s0 == s1 - 5 or s0 <= 1 and not s1 != 4",
        "not s0 < s1", "s0 >= 1 and s1 > 2", "(s0 - 1) % 4 // 3", "s0 - s1 - 2", "s0 // 3 // -2",
    ]  # fmt: skip
    texts += ["-(" * 50 + "s0" + ")" * 50, " + ".join(["s0"] * 500)]
    wrong = ["s2", "s0 +", "(s0", "min(s0", "s0 s1", "", "6 // (s0 - s0)"]
    wrong += ["(" * 100000, "-" * 100000 + "s0", "not " * 30000 + "s0", "min(s0, " * 15000]
    done = subprocess.run([run, *texts, *wrong], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    for text, line in zip(texts, lines, strict=False):
        wanted = [int(eval(text, {"s0": a, "s1": 5 - a})) for a in range(-3, 4)]
        assert [*map(int, line.split())] == wanted, text
    assert all(line.startswith("litz: a ") for line in lines[len(texts) :]), lines


TRY = """
#include <litz.h>
#include <cstdio>
int main(int count, char** given) {
    for (int i = 1; i < count; ++i) {
        float x[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
        try {
            litz::Program program(given[i]);
            for (const auto& v : program({litz::Tensor::over(x, {3, 4}, "float32")}))
                if (v.kind == litz::Value::IsTensor) std::printf("%g ", *(float*)v.tensor.data());
            std::puts("");
        } catch (const litz::Error& e) {
            std::puts(e.what());
        }
    }
}
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_damaged_files_under_sanitizers(small: Path, tmp_path: Path) -> None:
    """Of the address and of undefined behaviour; calls of whole packages too."""
    (tmp_path / "try.cpp").write_text(TRY)
    run = built(tmp_path, *SANITIZED, main=tmp_path / "try.cpp")
    whole = small.read_bytes()
    right = called(run, small, ASAN_OPTIONS="detect_leaks=0").stdout.strip()
    assert right and "litz" not in right
    refused = 0
    for turn in range(50):
        files = [tmp_path / f"{n}.litz" for n in range(100)]
        for n, file in enumerate(files):
            r = random.Random(100 * turn + n)
            file.write_bytes(r.choice(DAMAGE)(bytearray(whole), r))
        done = called(run, *files, ASAN_OPTIONS="detect_leaks=0")
        assert done.returncode == 0, done.stderr[-3000:]
        lines = done.stdout.splitlines()
        assert len(lines) == len(files)
        assert all(x.startswith("litz: ") or x.strip() == right for x in lines), lines
        refused += sum(x.startswith("litz: ") for x in lines)
    assert refused > 3000


def test_instructions_are_numbered_as_in_the_plan() -> None:
    text = (NATIVE / "plan.h").read_text()
    tables = {"OP_": shipped.OPS, "VALUE_": shipped.VALUES, "CELL_": shipped.CELLS}
    for prefix, table in tables.items():
        listed = re.search(rf"enum \w+ \{{\s*({prefix}[^}}]*)\}}", text)
        assert listed and re.findall(rf"{prefix}(\w+)", listed[1]) == list(table)
    for name in ("OPTIONAL", "LIST", "OPTIONAL_LIST", "ELSEWHERE", "BY_VALUE"):
        assert f" {name} = {getattr(shipped, name)}" in text
