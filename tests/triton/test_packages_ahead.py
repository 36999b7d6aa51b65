"""Packages for GPUs: built without one, and launched on a stand-in for the driver."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cuda import ATTRIBUTES, FakeCuda
from test_executor_launches import STREAM, Gpu
from test_executor_launches import gpu as executing  # noqa: F401 - a fixture
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim, export
from torch.fx.experimental.symbolic_shapes import ShapeEnv

pytest.importorskip("triton.language")

import litz  # noqa: E402
from litz import OptionError, PackageError  # noqa: E402
from litz.artifact import Artifact, from_bytes  # noqa: E402
from litz.loading import gpu  # noqa: E402
from litz.loading.container import Container  # noqa: E402
from litz.loading.record import Launcher, from_json  # noqa: E402
from litz.runtime.instance import Chosen, Instance, Matrix, Problem  # noqa: E402
from litz.runtime.triton.driver import Driver  # noqa: E402
from litz.runtime.triton.job import Binary  # noqa: E402
from litz.runtime.tune import Choice  # noqa: E402
from litz.targets.parts import TritonPart  # noqa: E402
from litz.targets.records import part_from  # noqa: E402
from litz.tools import package_tune  # noqa: E402

u64 = ctypes.c_uint64
MATRIX = Matrix(torch.bfloat16, (8, 8), (8, 1), 256)
PROBLEM = Problem(MATRIX, MATRIX, None, MATRIX, 2.0, scales=(MATRIX, MATRIX))
CHOSEN = Chosen(Instance("a library", "its way", 64), PROBLEM, "a GPU", None)


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).softmax(-1)


def exported() -> Any:
    env = ShapeEnv()
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=env):
        x, y = (torch.empty(4, 96, device="cuda") for _ in range(2))
        b = Dim("b", max=64)
        return export(Softmax(), (x, y), dynamic_shapes=({0: b}, {0: b}))


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    path = tmp_path_factory.mktemp("gpu") / "softmax.litz"
    litz.package(exported(), path, targets=("sm_90",))
    return Container(path)


def launcher_of(container: Container) -> Launcher:
    program = from_json(container.read("program.json"))
    (target,) = program.targets
    assert (target.name, target.needs, target.runtime, target.executor) == ("any", (), "", "")
    (found,) = target.built.launchers
    return found


def test_there_are_binaries_for_all_generations(container: Container) -> None:
    found = launcher_of(container)
    names = {n for x in found.launches for by in x.binaries.values() for n in by}
    assert names == {"sm_90", "ptx_80"}
    assert all({*x.binaries} == {"even", "aligned", "general"} for x in found.launches)
    for name in container.entries:
        if name.endswith("ptx_80"):
            assert b".target sm_80" in container.read(name)
    (kernel,) = from_bytes(container.read("any/artifact")).kernels
    assert not kernel.sources and not kernel.launches


def bound(
    container: Container, monkeypatch: pytest.MonkeyPatch, fake: FakeCuda
) -> tuple[FakeCuda, Any]:
    device = Driver(fake).device(0)
    fake.stack[:] = [device.context]
    monkeypatch.setattr(gpu, "cuda_driver", lambda: Driver(fake))
    monkeypatch.setattr(gpu, "current_raw_stream", lambda index: 7)
    monkeypatch.setattr(gpu.torch.cuda, "device_count", lambda: 1)
    return fake, gpu.launcher(launcher_of(container), container)


def test_launches_take_the_binary_of_the_gpu_and_the_variant_of_the_call(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, call = bound(container, monkeypatch, FakeCuda(types=(u64, u64, u64)))
    assert fake.loaded == [], "nothing is loaded before it is wanted"
    n = len(launcher_of(container).launches[0].arguments) - 3
    for pointers, rows in (((1 << 20,) * 3, 64), ((1 << 20,) * 3, 7), ((1 << 20, 4, 1 << 20), 7)):
        call(*pointers, *(rows,) * n)
        assert fake.launches[-1].arguments == pointers and fake.launches[-1].stream == 7
    (launch,) = launcher_of(container).launches
    binaries = {launch.binaries[v]["sm_90"] for v in ("even", "aligned", "general")}
    assert len(fake.loaded) == len(binaries) > 1 and all(
        code.startswith(b"\x7fELF") for code in fake.loaded
    )
    call(*(1 << 20,) * 3, *(64,) * n)
    assert len(fake.loaded) == len(binaries) and fake.launches[-1].grid == fake.launches[0].grid


def test_the_executor_launches_what_python_does(
    container: Container,
    executing: Gpu,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake, kernel = bound(container, monkeypatch, executing.fake)
    monkeypatch.setattr(gpu, "current_raw_stream", lambda index: STREAM)
    fake.types = (u64, u64, u64)
    n = len(launcher_of(container).launches[0].arguments) - 3
    x, y, out = (torch.zeros(65, 96) for _ in range(3))
    used = set()
    for a, rows in ((x, 64), (x, 7), (x.view(-1)[1:97].view(1, 96), 7)):
        for _ in range(2):  # what Python loads, and what it finds
            (one,) = executing.launch(kernel, a, y, out, *(rows,) * n)
        used.add(one.function)
    assert len(used) == len(fake.loaded) > 1 and kernel._made
    for form in kernel._made[-1]._keep[-1]:
        form.call = None  # nobody asks Python any more
    assert len(executing.launch(kernel, x, y, out, *(64,) * n)) == 1


@pytest.mark.parametrize(
    ("generation", "runs"),
    [(75, None), (80, "sm_80"), (86, "sm_80"), (90, "sm_90"), (100, "ptx_80"), (120, "ptx_80")],
)
def test_what_a_generation_runs(generation: int, runs: str | None) -> None:
    assert gpu.best(("sm_80", "sm_90", "ptx_80"), generation) == runs
    assert gpu.best(("sm_90",), 100) is None


def test_a_gpu_for_which_there_is_nothing(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ATTRIBUTES, 75, 7)
    with pytest.raises(PackageError, match=r"nothing for Fake H200 \(sm_70\).* ptx_80, sm_90"):
        bound(container, monkeypatch, FakeCuda())
    monkeypatch.undo()
    if not torch.cuda.is_available():
        with pytest.raises(PackageError, match="wants the GPU cuda:0, and there are 0 here"):
            litz.load(container.path)
        with pytest.raises(PackageError, match="name generations, as targets="):
            litz.package(exported(), container.path.with_name("none.litz"))
    with pytest.raises(OptionError, match="no GPU generation 'hopper'"):
        litz.package(exported(), container.path.with_name("none.litz"), targets=("hopper",))


def test_what_was_chosen_when_it_was_made_is_launched(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []

    def tuned(made: Artifact, *_: Any) -> package_tune.Tuned:
        (part,) = map(part_from, made.kernels)
        assert isinstance(part, TritonPart)
        chosen.extend(launch.configs[-1] for launch in part.kernel.launches)
        choices = {part.name: Choice(0, (None,), True, tuple(chosen))}
        return package_tune.Tuned(choices, {"a problem": CHOSEN})

    path = tmp_path / "tuned.litz"
    options = {"autotune": 5, "mode": "max-autotune"}
    if not torch.cuda.is_available():
        with pytest.raises(PackageError, match="tuned .autotune. where its GPU is: none is here"):
            litz.package(exported(), path, targets=("sm_90",), options=options)
    monkeypatch.setattr(package_tune, "tuned", tuned)
    litz.package(exported(), path, targets=("sm_90",), options=options)
    made = Container(path)
    names = [x.binaries["general"]["sm_90"] for x in launcher_of(made).launches]
    assert [Binary.from_bytes(made.read(n)).num_warps for n in names] == [c.warps for c in chosen]
    default = [x.binaries["general"]["sm_90"] for x in launcher_of(container).launches]
    assert names != default
    (target,) = from_json(made.read("program.json")).targets
    assert target.products == {"a problem": CHOSEN}


class Both(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, p: torch.Tensor) -> Any:
        def branch(x: torch.Tensor) -> torch.Tensor:
            return x.softmax(-1)

        return torch.cond(p, branch, branch, (x,)), x.softmax(-1), y.exp()


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_equal_binaries_have_one_entry(tmp_path: Path) -> None:
    """Of bodies, and of several instruction sets."""
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()):
        x, y = torch.empty(4, 96, device="cuda"), torch.empty(8)
        program = export(Both(), (x, y, torch.empty((), dtype=torch.bool, device="cuda")))
    path, isas = tmp_path / "both.litz", ("generic", "avx2")
    litz.package(program, path, targets=("sm_90",), isas=isas)
    container = Container(path)
    targets = from_json(container.read("program.json")).targets
    built = [b for t in targets for b in (t.built, *t.built.bodies.values())]
    launches = [x for b in built for k in b.launchers for x in k.launches]
    assert len(built) == 6 and all(b.launchers for b in built)
    wanted = {e for x in launches for by in x.binaries.values() for e in by.values()}
    assert wanted == {e for e in container.entries if e.startswith("cuda/")}


def test_interpreted_kernels_are_not_packaged(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    with pytest.raises(PackageError, match="interpreted kernels"):
        litz.package(Softmax(), tmp_path / "no.litz", (x, x), options={"target": "triton"})
