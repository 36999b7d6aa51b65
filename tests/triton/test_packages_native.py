"""Packages for GPUs run from C++, on a stand-in for the driver and for PyTorch's GPU functions."""

from __future__ import annotations

import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.export import export

pytest.importorskip("triton.language")

from test_packages_ahead import exported  # noqa: E402

import litz  # noqa: E402
from litz.runtime.cublaslt import told  # noqa: E402
from litz.runtime.instance import Chosen, Instance, Matrix, Problem  # noqa: E402
from litz.tools import package_tune  # noqa: E402
from tests.judge import error  # noqa: E402
from tests.native import SANITIZED, built, called  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="its device is the CPU"),
]

ASAN = "verify_asan_link_order=0"

CALLS = """
#include <litz.h>
#include <cstdio>
#include <fstream>
// run PACKAGE FILE: calls on 64 rows, 7, 7 that begin elsewhere, and 64 again, of FILE's elements.
int main(int, char** given) {
    std::vector<float> all(2 * 64 * 96 + 1);
    std::ifstream in(given[2], std::ios::binary);
    in.read((char*)all.data(), (std::streamsize)all.size() * 4);
    std::ofstream out(std::string(given[2]) + ".out", std::ios::binary);
    alignas(16) static float memory[2 * 64 * 96 + 1];
    std::copy(all.begin(), all.end(), memory);
    try {
        litz::Program program(given[1]);
        for (auto call : {std::pair<int, int>{64, 0}, {7, 0}, {7, 1}, {64, 0}}) {
            auto over = [&](int from) {
                std::string device = program.devices()[0];
                return litz::Tensor::over(memory + from, {call.first, 96}, "float32", device);
            };
            auto made = program({over(call.second), over(64 * 96)})[0].tensor.to("cpu");
            out.write((const char*)made.data(), call.first * 96 * 4);
        }
    } catch (const litz::Error& e) {
        std::puts(e.what());
    }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    (folder / "calls.cpp").write_text(CALLS)
    built(folder, main=folder / "calls.cpp")
    source = Path(__file__).with_name("fake_cuda.cpp")
    flags = ["-shared", "-fPIC", "-std=c++17", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["g++", *flags, str(source), "-o", str(folder / "fake.so")], check=True)
    litz.package(exported(), folder / "softmax.litz", targets=("sm_90",))
    return folder


def asked(folder: Path, **env: str) -> tuple[str, list[str]]:
    """What the calls print, and what the stand-in was asked for."""
    done = called(folder / "run", folder / "softmax.litz", folder / "x", **env)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


def test_calls_of_all_variants(folder: Path) -> None:
    numbers = torch.randn(2 * 64 * 96 + 1)
    (folder / "x").write_bytes(numbers.numpy().tobytes())
    said, lines = asked(folder, LD_PRELOAD=str(folder / "fake.so"))
    assert not said, said
    y = numbers[64 * 96 :]
    wanted = []
    for rows, start in ((64, 0), (7, 0), (7, 1), (64, 0)):
        x = numbers[start : start + rows * 96].view(rows, 96)
        wanted.append((x + y[: rows * 96].view(rows, 96)).softmax(-1).flatten())
    made = torch.frombuffer(bytearray((folder / "x.out").read_bytes()), dtype=torch.float32)
    torch.testing.assert_close(made, torch.cat(wanted))
    assert [line for line in lines if line[:4] != "laun"] == [
        *("enter 0", "load cubin", "leave") * 3, "enter 0", "leave",
    ]  # fmt: skip
    launches = [line.split() for line in lines if line.startswith("launch")]
    assert [x[1] for x in launches] == ["1", "2", "3", "1"], "variants are loaded once"
    assert [x[3] for x in launches] == ["64", "7", "7", "64"]
    assert all(x[-1] == "77" for x in launches)


def test_what_goes_wrong(folder: Path) -> None:
    (folder / "x").write_bytes(bytes(4 * (2 * 64 * 96 + 1)))
    assert "cannot load the CUDA driver: libcuda.so.1" in asked(folder)[0]
    fake = {"LD_PRELOAD": str(folder / "fake.so")}
    assert "nothing for a GPU of sm_70" in asked(folder, **fake, FAKE_MAJOR="7")[0]
    assert asked(folder, **fake, FAKE_MAJOR="12")[1][1] == "load ptx"
    said, lines = asked(folder, **fake, FAKE_FAIL="1")
    assert "launching the kernel k" in said and "failed with CUDA_ERROR_BROKEN" in said
    assert lines[-1] == "leave"


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x * by


def test_numbers_of_the_host(folder: Path, tmp_path: Path) -> None:
    """A tensor of one element in the host's memory goes to kernels by value."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        given: Any = torch.empty(4, 96, device="cuda"), torch.empty(())
        program = export(Scaled(), given)
    path = tmp_path / "scaled.litz"
    litz.package(program, path, targets=("sm_90",), isas=("generic",))
    x = torch.randn(4, 96)
    (tmp_path / "x").write_bytes(x.numpy().tobytes())
    (tmp_path / "by").write_bytes(torch.tensor(2.5).numpy().tobytes())
    given = f"float32:4x96:{tmp_path}/x", f"float32::{tmp_path}/by"
    fake = {"LD_PRELOAD": str(folder / "fake.so"), "FAKE_PARAMS": "2"}
    done = called(built(tmp_path), path, *given, **fake)
    assert done.returncode == 0, done.stderr
    assert Path(f"{path}.0").read_bytes() == (x * 2.5).numpy().tobytes()


BOTH = "product and activation"


class Perceptron(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(torch.addmm(b, x, w))
        return hidden, hidden @ v


def chosen() -> dict[str, Chosen]:
    """A way of cuBLASLt for the first product, wherever its operands begin."""
    found = {}
    for n, (x, w, b, out) in enumerate(product((16, 32, 64, 128, 256), repeat=4)):
        problem = Problem(
            Matrix(torch.float32, (64, 96), (96, 1), x),
            Matrix(torch.float32, (96, 32), (32, 1), w),
            Matrix(torch.float32, (32,), (1,), b),
            Matrix(torch.float32, (64, 32), (32, 1), out),
            epilogue="relu",
        )
        way = Instance("cublasLt 130100", "07" + 63 * "00", 64)
        found[str(n)] = Chosen(way, problem, "a GPU", told(problem))
    return found


def test_products_in_the_way_that_was_the_quickest(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = (64, 96), (96, 32), (32,), (32, 8)
    with FakeTensorMode(allow_non_fake_inputs=True):
        program = export(Perceptron(), tuple(torch.empty(s, device="cuda") for s in shapes))
    monkeypatch.setattr(package_tune, "tuned", lambda *_: package_tune.Tuned({}, chosen()))
    path = tmp_path / "perceptron.litz"
    tuning = {"autotune": 5, "mode": "max-autotune"}
    litz.package(program, path, targets=("sm_90",), options=tuning)
    plain = tmp_path / "plain.litz"
    litz.package(program, plain, targets=("sm_90",))
    flags = ["-shared", "-fPIC", "-std=c++17", "-Wl,-soname,libcublasLt.so.13"]
    source = Path(__file__).with_name("fake_cublaslt.cpp")
    subprocess.run(["g++", *flags, str(source), "-o", str(tmp_path / "lt.so")], check=True)
    inputs = [torch.randn(s) for s in shapes]
    given = []
    for n, x in enumerate(inputs):
        (tmp_path / str(n)).write_bytes(x.numpy().tobytes())
        given.append(f"float32:{'x'.join(map(str, x.shape))}:{tmp_path}/{n}")
    wanted = Perceptron()(*inputs)
    exact = Perceptron()(*(x.double() for x in inputs))
    run = built(tmp_path, *SANITIZED)
    fake, lt = folder / "fake.so", tmp_path / "lt.so"
    way = ["product of way 7 in 64 bytes, epilogue 6, on 77"]
    cases = (path, f"{fake}:{lt}", way), (path, str(fake), []), (plain, str(fake), [BOTH])
    for package, preloaded, lines in cases:
        done = called(run, package, *given, LD_PRELOAD=preloaded, ASAN_OPTIONS=ASAN)
        assert done.returncode == 0, done.stderr
        said = [x for x in done.stderr.splitlines() if x.startswith("product")]
        assert said == lines, done.stderr
        for n, (x, y) in enumerate(zip(wanted, exact, strict=True)):
            made = bytearray(Path(f"{package}.{n}").read_bytes())
            found = torch.frombuffer(made, dtype=torch.float32).view(x.shape)
            assert error(found, y) <= 2 * error(x, y)
