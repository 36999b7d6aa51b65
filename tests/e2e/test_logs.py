"""What the log says, by Python's logging and by TORCH_LOGS."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from litz.backend import compile_with
from litz.logs import STAGE_LOGGERS
from litz.options import make_options
from litz.reporting import report_guards
from litz.stages import Stages


def compiled(f: Callable[..., Any], **options: object) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, backend="litz", options=options)


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).relu().sum(-1)


def test_graphs_and_calls_in_aten_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="litz"):
        compiled(mixed)(torch.randn(3, 4), torch.randn(4, 5))
    said = [r.getMessage() for r in caplog.records if r.name == "litz"]
    assert said[0] == "inference graph of 3 operator calls"
    assert any("1 distinct kernels" in s and "1 calls in ATen" in s for s in said)
    assert any("aten.mm" in s and "matrix product" in s for s in said)
    assert all(r.levelno == logging.INFO for r in caplog.records if r.name == "litz")


def test_a_recompile_is_told_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    call = compiled(lambda x: x.sin() + 1)
    call(torch.randn(3))
    with caplog.at_level(logging.INFO, logger="litz"):
        call(torch.randn(3, dtype=torch.float64))
    said = [r.getMessage() for r in caplog.records if r.name == "litz"]
    assert said[0].startswith("recompiling, because") and "dtype" in said[0]


def test_a_fallback_is_told_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="litz"):
        compiled(lambda x: x.sin())(torch.empty(3, device="meta"))
    assert "runs through ATen: device meta" in caplog.text


def test_new_guards_are_told(caplog: pytest.LogCaptureFixture) -> None:
    report_guards(1, lambda: pytest.fail("asked for nothing"))
    with caplog.at_level(logging.INFO, logger="litz"):
        report_guards(1, lambda: ["Eq(s0, 4)", "s1 > 2"])
    assert [r.getMessage() for r in caplog.records] == ["the code holds only while s1 > 2"]


def test_nothing_is_said_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    compiled(mixed)(torch.randn(3, 4), torch.randn(4, 5))
    out, err = capfd.readouterr()
    assert not out and not err


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("graph", "torch.ops.aten.relu"),
        ("program", "program("),
        ("schedule", "group"),
        ("kernels", 'extern "C"'),
        ("code", "def call(args):"),
        ("time", "lowering"),
    ],
)
def test_each_stage_has_a_logger(stage: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger=STAGE_LOGGERS[stage]):
        compiled(mixed)(torch.randn(3, 4), torch.randn(4, 5))
    texts = [r.getMessage() for r in caplog.records if r.name == STAGE_LOGGERS[stage]]
    assert any(t.startswith(f"{stage}:") and words in t for t in texts)


def test_stage_loggers_are_modules() -> None:
    """So that TORCH_LOGS takes their names."""
    assert all(find_spec(name) is not None for name in STAGE_LOGGERS.values())


def test_torch_logs() -> None:
    code = (
        "import torch; f = torch.compile(lambda x: x.sin() + 1, backend='litz'); f(torch.ones(3))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCH_LOGS": "litz,+litz.schedule"},
    )
    assert done.returncode == 0, done.stderr
    assert "inference graph of 2 operator calls" in done.stderr
    assert "schedule:" in done.stderr and "def call(" not in done.stderr


@pytest.mark.parametrize("kept", [False, True])
def test_parts_are_printed_for_a_trace_that_is_kept(kept: bool) -> None:
    """PyTorch's structured trace has both parts' text; without one nothing but a reader asks."""
    records: list[logging.LogRecord] = []
    printed: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    def observe(kind: str, graph: torch.fx.GraphModule, stages: Stages) -> None:
        printed.append(graph.print_readable(print_output=False))

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_with(gm, inputs, make_options({}), observe)

    log, handler = logging.getLogger("torch.__trace"), Keep()
    level = log.level
    torch.compiler.reset()
    x = torch.randn(5, requires_grad=True)
    try:
        if kept:
            log.addHandler(handler)
            log.setLevel(logging.DEBUG)
        torch.compile(lambda x: x.sin().exp(), backend=backend)(x).sum().backward()
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    found = [r.payload for r in records if "aot_backward_graph" in r.metadata]  # type: ignore[attr-defined]
    assert len(found) == kept
    assert all("aten.cos" in text for text in found)
    assert "aten.exp" in printed[0] and "aten.cos" in printed[1]
