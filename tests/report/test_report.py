"""The record of a compilation: what it says, its ids, its schema, and what stands first."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import planted
import pytest
import torch

import litz
from litz.graph.frames import is_own
from litz.options import make_options
from litz.report import record
from litz.report.collect import Collector
from litz.report.html import report_page
from litz.report.record import Report, from_json, schema
from litz.report.text import report_text
from litz.tools.explain import explain_script
from litz.tools.explain import main as explain_main


def valid(data: Any, form: dict[str, Any], defs: dict[str, Any]) -> bool:
    """Whether data is of a JSON schema, as far as ``schema`` uses the language of those."""
    if "$ref" in form:
        return valid(data, defs[form["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in form:
        return any(valid(data, f, defs) for f in form["anyOf"])
    if "const" in form or "enum" in form:
        return data in form.get("enum", [form.get("const")])
    kind = form["type"]
    if kind == "object":
        own, rest = form.get("properties", {}), form["additionalProperties"]
        whole = isinstance(data, dict) and set(form.get("required", ())) <= data.keys()
        return whole and all(
            valid(v, own[k], defs) if k in own else bool(rest) and valid(v, rest, defs)
            for k, v in data.items()
        )
    if kind == "array":
        return isinstance(data, list) and all(valid(v, form["items"], defs) for v in data)
    plain = {"string": str, "integer": int, "boolean": bool, "null": type(None)}
    return isinstance(data, (int, float)) if kind == "number" else type(data) is plain[kind]


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x @ w, -1)
    return (y * 2).t().contiguous().sum(0)


@pytest.fixture(scope="module")
def report() -> Report:
    args = torch.randn(64, 32, requires_grad=True), torch.randn(32, 48)
    found = litz.explain(program, *args, options={"numerics": "fast"}, backward=True)
    assert args[0].grad is None
    return found.report


def test_json_is_of_the_schema_and_reads_back(report: Report) -> None:
    stored = json.loads((Path(record.__file__).with_name("schema.json")).read_text())
    assert stored == schema(), "write it anew: see docs/reports.md"
    data = json.loads(report.to_json())
    assert valid(data, stored, stored["$defs"])
    assert not valid({**data, "graphs": [1]}, stored, stored["$defs"])
    assert from_json(report.to_json()) == report
    with pytest.raises(ValueError):
        from_json('{"is": "Report"}')


def test_ids_hold_together_and_are_stable(report: Report) -> None:
    assert report.options["numerics"] == "fast"
    nodes = {n.id for g in report.graphs for n in g.nodes}
    kernels = {k.id for k in report.kernels}
    for g in report.graphs:
        assert {n.line for n in g.nodes} <= {"", *report.by_line}
        for s in g.steps:
            assert set(s.nodes) <= nodes and set(s.lines) <= report.by_line.keys()
            assert s.kind == "aten" or s.name in kernels and s in report.steps_of_kernel(s.name)
            assert all(s in report.steps_of_line(x) for x in s.lines) and s.lines
    again = litz.explain(
        program, torch.randn(64, 32, requires_grad=True), torch.randn(32, 48),
        options={"numerics": "fast"},
    ).report  # fmt: skip
    assert [s.id for s in again.graphs[0].steps] == [s.id for s in report.graphs[0].steps]
    assert again.lines == report.lines


def test_figures_are_those_of_the_program() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).exp() + 1

    (graph,) = litz.explain(fn, torch.randn(64, 32), torch.randn(32, 48)).report.graphs
    product, kernel = graph.steps
    assert (product.kind, product.ops) == ("aten", 2 * 64 * 32 * 48) and product.reason
    assert product.bytes == 4 * (64 * 32 + 32 * 48 + 64 * 48)
    assert (kernel.bytes, kernel.apart, kernel.ops) == (8 * 64 * 48, 16 * 64 * 48, 2 * 64 * 48)
    assert graph.memory is not None and max(graph.memory.held) == 4 * 64 * 48
    (own,) = [x for x in graph.memory.living if not x.argument]
    assert own.bytes == 4 * 64 * 48 and "test_report.py" in own.line
    assert graph.seconds["total"] > 0 and "lowering" in graph.seconds
    assert {"graph", "program", "schedule", "host", "code"} <= graph.texts.keys()


def test_memory_is_that_of_the_steps() -> None:
    """What the host computes itself, here the checks of a size, is no step."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T).exp() + torch.nonzero(x[0]).sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        (graph,) = litz.explain(fn, torch.ones(6, 4)).report.graphs
    assert graph.memory is not None and "_assert_scalar" in graph.texts["host"]
    assert len(graph.memory.held) == len(graph.steps) > graph.memory.peak


def test_figures_count_once() -> None:
    """What several steps compute, what is written in place, and the elements of a scan."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y.mul_(2)
        return torch.cat([x, x * 2], 1), x.cumsum(1)

    (graph,) = litz.explain(fn, torch.randn(8, 16), torch.randn(8, 16)).report.graphs
    n = 8 * 16
    # Two products, sums, and what two tensors of n elements are joined to.
    assert sum(s.apart for s in graph.steps) == 4 * n * (2 + 2 + 2 + 4)
    assert sum(s.ops for s in graph.steps) == 3 * n


CASES = {
    "graph break": planted.graph_break,
    "fallback": planted.fallback,
    "transposed copy": planted.transposed_copy,
    "recompile": planted.Loop(),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_planted_slow_spot_is_named_first(kind: str) -> None:
    report = litz.explain(CASES[kind], torch.randn(300, 200))
    first = report.report.findings[0]
    assert first.kind == kind
    assert report.report.by_line[first.line].text.endswith("# here")
    screen = str(report).splitlines()[:8]
    assert any(kind in x and x.endswith("# here") and "planted.py:" in x for x in screen)


def test_a_program_without_slow_spots_says_so() -> None:
    text = str(litz.explain(lambda x: x.exp().sum(-1), torch.randn(20, 30)))
    assert "nothing stands out" in text
    assert re.search(r"step +runs +bytes +saved +ops +line +computes", text)


def test_what_others_compiled_stays_as_it_was() -> None:
    made = []

    def counting(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made.append(gm)
        return gm.forward

    def part(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin() * 2

    def whole(x: torch.Tensor) -> torch.Tensor:
        return part(x) + 1

    compiled = [torch.compile(f, backend=counting) for f in (part, whole)]
    for n in range(3, 10):  # as many as PyTorch keeps of a function, and more
        for f in compiled:
            f(torch.randn(n))
    before = len(made)
    for n in range(3, 14):
        found = litz.explain(whole, torch.randn(n))
        assert f"[{n}]" in str(found.graphs[0].graph.print_readable(False)), "its own sizes"
    litz.profile(part, torch.randn(4), seconds=0.01)
    for f in compiled:
        f(torch.randn(4))
    assert len(made) == before


def test_a_script_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, out = tmp_path / "script.py", tmp_path / "report.json"
    script.write_text(
        "import sys, torch\n"
        "f = torch.compile(lambda x: x.sin() + 1, backend='litz')\n"
        "print('ran with', sys.argv[1], f(torch.ones(3)).shape)\n"
    )
    assert explain_main(["--json", str(out), str(script), "seven"]) == 0
    said = capsys.readouterr().out
    assert "ran with seven" in said and "sin, add" in said
    (graph,) = from_json(out.read_text()).graphs
    assert graph.steps[0].lines == (f"{script}:2",)
    assert explain_main([str(out)]) == 0
    assert capsys.readouterr().out == said.partition("\n")[2]


def test_ranks_write_files_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of ``torchrun -m litz explain script.py --json FILE`` are given the same file."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    script, said = tmp_path / "script.py", []
    script.write_text(
        "import torch\ntorch.compile(lambda x: x + 1, backend='litz')(torch.ones(3))\n"
    )
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        assert explain_main(["--json", str(tmp_path / "out.json"), str(script)]) == 0
        said.append(capsys.readouterr().out)
    names = "out.json", "out.rank1.json"
    titles = [from_json((tmp_path / name).read_text()).title for name in names]
    assert titles == ["script.py, rank 0", "script.py, rank 1"]
    assert "What to look at first" in said[0] and len(said[1].splitlines()) == 3


def test_what_a_script_made_lives_as_long_as_without_us(tmp_path: Path) -> None:
    """Threads of PyTorch's may wait for each other where a model goes earlier."""
    script = tmp_path / "script.py"
    script.write_text("class Model: pass\nmodel = Model()\nassert __name__ == '__main__'\n")
    assert str(explain_script(str(script)).title) == "script.py"
    assert sys.modules.pop(str(script)).model


def test_a_script_is_read_as_python_reads_it(tmp_path: Path) -> None:
    """Not as our files are: they evaluate no annotations."""
    script = tmp_path / "script.py"
    script.write_text("def f(x: int): pass\nassert f.__annotations__ == {'x': int}\n")
    explain_script(str(script))
    sys.modules.pop(str(script))


def test_a_program_of_which_nothing_is_compiled_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    report = explain_script(str(script))
    assert "look at first: nothing was compiled" in report_text(report)
    assert "<p>Nothing was compiled.</p>" in report_page(report)


def test_a_break_whose_place_is_told_by_its_stack_alone_has_its_line() -> None:
    collector = Collector()
    trace = 'User code traceback:\n  File "model.py", line 3, in fn\n    stop()\n'
    collector.hear_break(f"Graph break\n  Graph Break Reason: it stops\n{trace}")
    report = collector.report("model.py", make_options({}))
    assert [b.line for b in report.breaks] == list(report.by_line) == ["model.py:3"]


def test_a_break_in_what_several_lines_call_has_its_line() -> None:
    """Dynamo tells the stack of a place once."""

    def stops(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()  # here
        return x + 1

    def fn(x: torch.Tensor) -> torch.Tensor:
        return stops(stops(x).sin()).cos()

    report = litz.explain(fn, torch.ones(4)).report
    assert len(report.breaks) > 1 and len(report.findings) == 1
    assert all(report.by_line[b.line].text.endswith("# here") for b in report.breaks)


def test_code_of_python_itself_is_not_the_users() -> None:
    assert not any(is_own(x.__file__ or "") for x in (contextlib, torch, litz))
    assert is_own(pytest.__file__) and is_own(__file__)


def test_gradients_of_equal_layers_know_their_lines() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6))

    def fn(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = torch.tanh(layer(torch.layer_norm(x, (8,)))) + x
        return x.sum()

    graphs = litz.explain(fn, torch.randn(4, 8), backward=True).report.graphs
    assert [g.kind for g in graphs] == ["forward", "backward"]
    assert all("traced once" in g.regions for g in graphs)
    assert all(n.line for g in graphs for n in g.nodes)


def test_modules_stand_where_no_line_of_the_users_is() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    found = litz.explain(model, torch.randn(4, 8), backward=True)
    names = {x.id: x.text for x in found.report.lines}
    assert names == {"module 0:0": "Linear", "module 1:0": "GELU"}
    assert "module 1" in str(found) and found.report.sources == {}


def test_bodies_of_control_flow_are_steps_of_their_own() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))

    report = litz.explain(fn, torch.randn(4, 8)).report
    (graph,) = report.graphs
    bodies = [s for s in graph.steps if s.id.startswith(("g0.1.", "g0.2."))]
    assert len(bodies) == 2 and all(s.lines for s in bodies) and not report.findings
    assert {n for s in graph.steps for n in s.nodes} <= {n.id for n in graph.nodes}


class Heard(logging.Handler):
    """Keeps the artifacts of PyTorch's structured trace, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        said = getattr(record, "metadata", {}).get("artifact")
        if said:
            self.found[said["name"]] = record.payload  # type: ignore[attr-defined]


def test_stages_and_provenance_are_in_the_trace() -> None:
    trace, heard = logging.getLogger("torch.__trace"), Heard()
    trace.addHandler(heard)
    torch.compiler.reset()
    try:
        torch.compile(lambda x: x.sin().sum(0), backend="litz")(torch.ones(30, 40))
    finally:
        trace.removeHandler(heard)
    found = heard.found
    assert {"litz_graph", "litz_host", "litz_provenance"} <= found.keys()
    graph = json.loads(found["litz_provenance"])["graph"]
    defs = schema()["$defs"]
    assert valid(graph, defs["Graph"], defs) and graph["nodes"][0]["id"] == "g.sin"
