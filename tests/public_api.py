"""Uses of the public names as a user has them: mypy and pyright check it, nobody runs it."""

from __future__ import annotations

from pathlib import Path

import torch
from typing_extensions import assert_type

import litz
from litz.loading.loaded import LoadedProgram
from litz.options import Options, make_options
from litz.report.profile import Profile
from litz.report.record import Report
from litz.tools.explain import ExternReport


def uses(model: torch.nn.Module, x: torch.Tensor, path: Path) -> None:
    found = litz.explain(model, x, options={"numerics": "fast"}, html="report.html", backward=True)
    assert_type(found.report, Report)
    assert_type(found.externs, tuple[ExternReport, ...])
    assert_type(str(found), str)

    measured = litz.profile(model, x, against=("eager", "inductor"), seconds=1.0)
    assert_type(measured, Profile)
    assert_type(measured.to_csv(), str)
    with litz.metrics() as counted:
        model(x)
    assert_type(dict(counted.counters), dict[str, int | float])

    litz.package(model, path, (x,), isas=["avx2"])
    assert_type(litz.load(path, check=False), LoadedProgram)
    assert_type(litz.native_folder(), str)
    with litz.eager.use("aten::gelu", device="cpu"):
        model(x)

    assert_type(litz.__version__, str)
    assert_type(make_options({"fuel": 3}), Options)
    try:
        model(x)
    except litz.CompilationError as e:
        assert_type(e.op, str | None)
        assert_type(e.repro, str | None)
    except (litz.OptionError, litz.PackageError, litz.ToolchainError, litz.ArtifactError) as e:
        base: litz.LitzError = e
        raise SystemExit(str(base)) from e
