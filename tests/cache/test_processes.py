"""Many processes at one cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from counted import said, started

PROGRAM = """
import os, sys, torch
from litz.backend import compile_or_fall_back
from litz.options import make_options
from litz.stages import Stages

graph = torch.fx.Graph()
with torch._subclasses.FakeTensorMode() as mode:
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4, 6)
    y = graph.call_function(torch.ops.aten._softmax.default, (x, -1, False))
    y.meta["val"] = torch.empty(4, 6)
    graph.output((y,))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[1])):
    pid = os.fork() if int(sys.argv[1]) > 1 else 0
    if pid == 0:
        call = compile_or_fall_back(
            torch.fx.GraphModule({}, graph), make_options(), Stages(), "inference"
        )
        x = torch.arange(24.0).view(4, 6)
        assert torch.allclose(call([x])[0], x.softmax(-1))
        os.write(1, b"%d\\n" % len(compiled))
        os._exit(0)
for _ in range(int(sys.argv[1])):
    assert os.wait()[1] == 0
"""


@pytest.mark.parametrize("count", [4, pytest.param(32, marks=pytest.mark.slow)])
def test_processes_that_meet_a_graph_at_once_compile_it_once(tmp_path: Path, count: int) -> None:
    # Workers are forked with everything imported, so that they arrive together.
    parent = started(tmp_path, PROGRAM, str(count), LITZ_CHECK_IR="0")
    first, *counts = said(parent, "\n").split()
    assert first == "ready" and len(counts) == count and 1 <= sum(map(int, counts)) <= 2
    assert list(tmp_path.glob("v1/cpp/*/*.so"))
    assert {p.suffix for p in (tmp_path / "v1" / "tmp").iterdir()} <= {".lock"}
