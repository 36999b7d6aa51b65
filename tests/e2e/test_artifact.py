"""Compiled graphs as data: written, read in another process, bound there, run there."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from artifact_cases import CONTROL_FLOW, PROGRAMS, TRITON, recorded, write
from torch.fx.experimental.proxy_tensor import make_fx

from litz import ArtifactError
from litz.artifact import Artifact, Constant, Live, Named, from_bytes, to_bytes
from litz.binding import bind
from litz.compiler import compile_graph
from litz.host.values import describe
from litz.loading.values import namespace
from litz.options import make_options


def test_other_processes_compute_bitwise_the_same(tmp_path: Path) -> None:
    recordings = {f"c++ {name}": recorded(case) for name, case in PROGRAMS.items()}
    if importlib.util.find_spec("triton"):
        for name in TRITON:
            recordings[f"triton {name}"] = recorded(PROGRAMS[name], target="triton")
        (kernel,) = from_bytes(recordings["triton ways"][0]["artifact"]).kernels
        assert len(kernel.sources) > 1, "all ways"
    assert len(recordings["c++ training"]) == 2, "forward and backward"
    bodies = {name: recorded(case) for name, case in CONTROL_FLOW.items()}
    _bodies_travel_with_their_graph(bodies)
    recordings |= bodies  # one process reads all
    write(tmp_path / "recordings", recordings)
    script = Path(__file__).with_name("artifact_cases.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "recordings")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-3000:]


def _bodies_travel_with_their_graph(recordings: dict[str, Any]) -> None:
    for name in ("cond, trained", "scan, trained"):
        assert len(recordings[name]) == 2, "forward and backward"
    for name, (first, *_) in recordings.items():
        bodies = from_bytes(first["artifact"]).bodies
        assert bool(bodies) == (name != "associative_scan"), name  # PyTorch takes it apart
    nested = from_bytes(recordings["while_loop and cond"][0]["artifact"]).bodies["body1"]
    assert [*nested.bodies] == ["body0", "body1"]


def artifact(fn: Any, *args: torch.Tensor, **options: Any) -> Artifact:
    gm = make_fx(lambda *a: (fn(*a),), tracing_mode="fake")(*args)
    return compile_graph(gm, make_options(options))


X = torch.arange(12.0).reshape(3, 4)


def test_the_record_says_what_there_is() -> None:
    found = artifact(lambda x: torch.mm((x + 1).sin(), x.t()).exp(), X)
    assert [k.language for k in found.kernels] == ["c++"] * 2 and found.native is not None
    assert [(c.op, bool(c.reason)) for c in found.externs] == [("aten.mm.out", True)]
    assert [a.shape for a in found.arguments] == [(3, 4)] and found.count == 1
    assert found.recording.reason == "no tensor is on a GPU"
    assert found.not_portable == "" and found.always
    assert any("sin" in name for k in found.kernels for _, names in k.groups for name in names)


def test_bytes_are_the_same_again() -> None:
    first, second = (to_bytes(artifact(lambda x: x.softmax(0) * 2, X)) for _ in range(2))
    assert first == second == to_bytes(from_bytes(first))


def test_an_artifact_binds_in_its_own_process() -> None:
    found = artifact(lambda x: x.exp() * 2, X)
    for a in (found, from_bytes(to_bytes(found))):
        torch.testing.assert_close(bind(a)([X])[0], X.exp() * 2)
        with pytest.raises(TypeError, match="2 arguments|argument 0"):
            bind(a)([X.double()])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"PK" + data, "no artifact"),
        (lambda data: b"", "no artifact"),
        (lambda data: data.replace(b"litz-artifact ", b"litz-artifact 9", 1), "version 9"),
        (lambda data: data[:-1], "damaged"),
        (lambda data: data[:30], "damaged"),
        (lambda data: data[:-40] + b"?" + data[-39:], "damaged"),
    ],
)
def test_damaged_bytes_are_refused(change: Any, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        from_bytes(change(to_bytes(artifact(lambda x: x + 1, X))))


def test_other_versions_are_refused() -> None:
    found = artifact(lambda x: x + 1, X)
    other = dataclasses.replace(found, versions={**found.versions, "torch": "1.0"})
    with pytest.raises(ArtifactError, match=r"compiled with torch 1\.0"):
        bind(from_bytes(to_bytes(other)))


def test_what_cannot_leave_its_process_says_why() -> None:
    verified = artifact(lambda x: x + 1, X, verify=True)
    with pytest.raises(ArtifactError, match="cannot be written: its runs are checked"):
        to_bytes(verified)
    known = (torch.Generator(), X.to_sparse(), X.to("meta"), torch.nn.Identity())
    reasons = [v.reason for v in map(describe, known) if isinstance(v, Live)]
    assert [r.split()[-1] for r in reasons] == ["Generator", "tensor", "meta", "Identity"]


def test_values_are_described() -> None:
    from litz.runtime.numbers import float_bits

    assert describe(float_bits) == Named("litz.runtime.numbers", "float_bits")
    with pytest.raises(ArtifactError, match="litz.runtime.nothing.f, which is not there"):
        namespace({"f": Named("litz.runtime.nothing", "f")})
    with pytest.raises(ArtifactError, match="os.system"):
        namespace({"f": Named("os", "system")})


@pytest.mark.parametrize(
    "x",
    [
        X[:, ::2],
        X.t(),
        torch.tensor(3, dtype=torch.int16),
        torch.zeros(0, 3),
        torch.ones(4).expand(3, 4),
        torch.tensor([1 + 2j, complex("nan+0j")]),
        torch.tensor([True, False]),
        torch.tensor([-0.0, float("nan")], dtype=torch.bfloat16),
    ],
)
def test_constants_come_back_as_they_were(x: torch.Tensor) -> None:
    found = artifact(lambda a: a + 1, X)
    host = dataclasses.replace(found.host, values={"c": describe(x)})
    back = from_bytes(to_bytes(dataclasses.replace(found, host=host))).host.values["c"]
    assert isinstance(back, Constant) and back.device == x.device
    y = back.tensor
    assert (y.dtype, y.shape, y.stride()) == (x.dtype, x.shape, x.stride())
    assert torch.equal(y, x) or torch.allclose(y, x, equal_nan=True)
