"""``litz bisect`` finds planted bugs, and writes what shows them as a few lines."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import symbolic_trace

from litz.errors import CompilationError
from litz.lowering import registry
from litz.report.collect import Collector
from litz.reporting import Listener
from litz.tools import replay as replay_command
from litz.tools.bisect import Fusion, Run, bisect, main, runner
from litz.tools.explain import run_script
from litz.verify import replay
from litz.verify.report import save
from litz.verify.shrink import Case, shrink
from tests.verify.test_planted_bugs import change_op

aten = torch.ops.aten


class Program(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = aten.relu.default(aten.mm.default(x, w))
        z = aten.view.default(aten.add.Tensor(aten.sin.default(y), y), [48, 1, 40])
        found = aten.topk.default(z, 3)
        return aten._softmax.default(z, -1, False), found[0], aten.sum.dim_IntList(z, [0])


def case() -> Case:
    torch.manual_seed(0)
    inputs = torch.randn(48, 40), torch.randn(40, 40)
    return Case(symbolic_trace(Program()), inputs)


def test_a_wrong_kernel_is_cut_to_one_call_on_few_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(c: Case) -> bool:
        with contextlib.redirect_stdout(io.StringIO()):
            return replay.replay(c.module, c.inputs, {}) == 1

    change_op(monkeypatch, "sin", cpp="litz::cos({args})")
    small = shrink(case(), fails)
    assert [n.target for n in small.calls] == [aten.sin.default]
    assert [tuple(x.shape) for x in small.inputs] == [(1, 1)]
    _, path = save(tmp_path, small.module, {"inputs": list(small.inputs)}, "wrong", {})
    assert path is not None and len(Path(path).read_text().splitlines()) < 40
    assert replay_command.main([str(Path(path).parent)]) == 1
    assert "wrong: index" in capsys.readouterr().out
    monkeypatch.undo()
    assert replay_command.main([path]) == 0


def test_a_failing_compile_keeps_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def lowering(ctx: Any, x: Any) -> Any:
        raise ZeroDivisionError("planted")

    assert registry.find(aten.sin.default)  # families are registered before one is replaced
    monkeypatch.setitem(registry._TABLE, aten.sin.default, lowering)

    def fails(c: Case) -> bool:
        error = replay.failure(c.module, c.inputs, {})
        return isinstance(error, CompilationError) and "planted" in str(error)

    small = shrink(case(), fails)
    assert [n.target for n in small.calls] == [aten.sin.default]


def test_sizes_that_calls_name_become_smaller_together() -> None:
    """No Litz: a program that fails wherever something is viewed."""

    def fails(c: Case) -> bool:
        return any(n.target is aten.view.default for n in c.calls)

    small = shrink(case(), fails)
    (view,) = small.calls
    assert view.args[1] == [1, 1, 1] and [tuple(x.shape) for x in small.inputs] == [(1, 1)]


def runs(changes_at: int, noisy: bool = False) -> Any:
    """A program whose number changes with so many merges."""
    count = 0

    def run(variables: Mapping[str, str], fusion: Fusion | None = None) -> Run:
        nonlocal count
        count += 1
        fuel = int(variables.get("LITZ_FUEL", 100))
        if fusion is not None:
            return Run("Fusion", f"{fuel}: {fusion.nests[-1]}")
        kernels = tuple(Fusion(0, (f"loops{k}",), ()) for k in range(fuel))
        printed = f"{fuel >= changes_at}{count if noisy else ''}"
        return Run(kernels=kernels, merges=13, printed=printed)

    return run


def test_fuel_is_halved_to_the_fusion_that_changes_a_number() -> None:
    for at in (1, 7, 13):
        found = bisect(runs(at), lambda _: None)
        assert found == Run("Fusion", f"{at}: loops{at - 1}")
    assert bisect(runs(14), lambda _: None) is None
    assert bisect(runs(7, noisy=True), lambda _: None) is None  # its exit status never changes


def test_what_a_signal_ends_is_searched_too() -> None:
    def run(variables: Mapping[str, str]) -> Run:
        crashes = int(variables.get("LITZ_FUEL", 100)) >= 3
        return Run(status=-11) if crashes else Run(merges=5)

    found = bisect(run, lambda _: None)
    assert found is not None and "LITZ_FUEL=3 ends with exit status -11" in found.message


@pytest.mark.slow  # it runs in a process of its own
def test_input_is_read_from_its_beginning_each_time(tmp_path: Path) -> None:
    script, given = tmp_path / "script.py", tmp_path / "given"
    script.write_text("print(input())\n1 / 0\n")
    given.write_text("something\n")
    before = os.dup(0)
    try:
        with given.open("rb", buffering=0) as file:
            file.read()
            os.dup2(file.fileno(), 0)
            found = runner(str(script), [], tmp_path)({})
    finally:
        os.dup2(before, 0)
        os.close(before)
    ended = "ZeroDivisionError: division by zero"
    assert (found.status, found.printed, found.ended) == (1, "something\n", ended)


def test_what_has_nothing_to_do_with_litz_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    assert bisect(lambda _: Run(status=1, ended="KeyError: 'mine'"), said.append) is None
    assert said == ["as it is: exit status 1 (KeyError: 'mine')", "Litz compiles nothing in it"]
    with pytest.raises(SystemExit, match="2"):
        main(["nowhere.py"])
    assert "there is no file" in capsys.readouterr().err


def test_a_script_finds_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "litz_beside.py").write_text("")
    script, before = tmp_path / "script.py", sys.path[:]
    script.write_text("import litz_beside, sys\nassert sys.argv[1:] == ['--flag']\n")
    run_script(str(script), ["--flag"], Listener(print), Collector())
    assert sys.path == before


SCRIPTS = {
    "fails": """
        from litz.lowering import families, registry
        families.load()
        registry._TABLE[torch.ops.aten.sinh.default] = lambda ctx, x: 1 / 0
    """,
    "wrong": """
        import dataclasses
        from types import MappingProxyType
        from litz.ir import ops
        row = dataclasses.replace(ops.OPS["sinh"], cpp="litz::cosh({args})")
        ops.OPS = MappingProxyType({**ops.OPS, "sinh": row})
    """,
    "fused": """
        import dataclasses
        from litz.ir import body
        from litz.schedule import fuse
        right = fuse.Fusion._merged
        def off(self, a, b):
            g = right(self, a, b)
            if isinstance(g, str) or len(g.nodes) != 3:
                return g
            last = g.stores[-1]
            value = body.op("mul", last.value, body.const(last.value.dtype, 1 + 5e-7))
            last = dataclasses.replace(last, value=value)
            return dataclasses.replace(g, stores=(*g.stores[:-1], last))
        fuse.Fusion._merged = off
    """,
}
PROGRAM = """
torch.manual_seed(0)
@torch.compile(backend="litz")
def f(x, w):
    y = torch.relu(x @ w).sinh()
    return torch.softmax(y / y.sum(-1, keepdim=True), 0)
print(f(torch.rand(64, 40), torch.rand(40, 40) / 40).std().item())
"""


@pytest.mark.slow  # each runs the program many times
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bug", SCRIPTS)
def test_the_command(bug: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import textwrap

    script = tmp_path / "script.py"
    script.write_text("import torch\n" + textwrap.dedent(SCRIPTS[bug]) + PROGRAM)
    assert main([str(script), "--folder", str(tmp_path / "found")]) == 1
    said = capsys.readouterr().out
    assert {"fails": "division", "wrong": "sinh", "fused": "the fusion of"}[bug] in said
    assert "script.py" in said and "made small" in said
    path = Path(said.rpartition("litz replay ")[2].strip())
    assert len((path / "repro.py").read_text().splitlines()) < 40
