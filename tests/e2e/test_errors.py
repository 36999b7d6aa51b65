"""What users see when something is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import litz
from litz import backend
from litz.lowering import registry


def compile_it(fn: object, **options: object) -> object:
    torch._dynamo.reset()
    return torch.compile(fn, backend="litz", options=options)


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(Exception, match="unknown option 'numeric'; did you mean 'numerics'"):
        compile_it(lambda x: x + 1, numeric="fast")(torch.ones(3))


def test_bad_value_names_the_nearest() -> None:
    with pytest.raises(Exception, match="no value 'fst'; did you mean 'fast'"):
        compile_it(lambda x: x + 1, numerics="fst")(torch.ones(3))


def test_no_compiler_warns_once_and_runs() -> None:
    fn = compile_it(lambda x: x.sin() + 1, cxx="/nowhere/g++-99")
    x = torch.randn(5)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert torch.equal(fn(x), x.sin() + 1)
        assert torch.equal(fn(x), x.sin() + 1)
    said = [str(w.message) for w in seen if "compiler" in str(w.message)]
    assert len(said) == 1 and "apt install g++" in said[0]


@pytest.fixture
def broken_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the lowering of sinh divides by zero."""

    def lowering(ctx: object, x: object) -> object:
        raise ZeroDivisionError("planted")

    monkeypatch.setitem(registry._TABLE, torch.ops.aten.sinh.default, lowering)


@pytest.mark.usefixtures("broken_lowering")
def test_failure_names_op_line_and_repro(tmp_path: Path) -> None:
    def user_function(x: torch.Tensor) -> torch.Tensor:
        return x.sinh() * 2

    with pytest.raises(Exception) as caught:
        compile_it(user_function, repro_dir=str(tmp_path))(torch.randn(4, 5))
    text = str(caught.value)
    assert "planted" in text and "sinh" in text
    assert "test_errors.py" in text and "x.sinh() * 2" in text
    path = re.search(r"repro: python (\S+)", text)
    assert path is not None
    # Without the planted bug the repro must run by itself.
    done = subprocess.run([sys.executable, path[1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "largest differences" in done.stdout


@pytest.mark.usefixtures("broken_lowering")
def test_fall_back_to_eager_on_request(tmp_path: Path) -> None:
    x = torch.randn(6)
    fn = compile_it(lambda x: x.sinh() + 1, on_error="eager", repro_dir=str(tmp_path))
    with pytest.warns(UserWarning, match="runs through ATen"):
        assert torch.equal(fn(x), x.sinh() + 1)


def test_index_out_of_range_raises() -> None:
    fn = compile_it(lambda x, i: x[i] + 1)
    x = torch.randn(5, 3)
    assert torch.equal(fn(x, torch.tensor([0, -1])), x[torch.tensor([0, -1])] + 1)
    with pytest.raises(IndexError, match="out of range"):
        fn(x, torch.tensor([0, 5]))


def test_explain_lists_kernels_and_externs() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w).sum(1)

    report = litz.explain(fn, torch.randn(8, 4), torch.randn(4, 6))
    assert len(report.kernels) == 1
    assert [e.op for e in report.externs] == ["aten.mm.default"]
    assert "matrix product" in report.externs[0].reason
    text = str(report)
    (seconds,) = (g.seconds for g in report.report.graphs)
    longest = max(seconds.keys() - {"total"}, key=lambda stage: seconds[stage])
    assert "aten.mm.default" in text and "relu" in text
    assert "lowering" in seconds and f"{longest} " in text.partition("compiled in ")[2]
    assert report.result.shape == (8,)


def test_wrong_metadata_sends_both_graphs_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 takes the norm over a single element for one that keeps the dimension."""
    from litz.lowering import graph
    from litz.lowering.context import WrongMetadata

    def promised(n: Any, v: Any, r: Any) -> Any:
        if "norm" in n.name:
            raise WrongMetadata("norm gives shape (4), not (1, 4), as PyTorch says")
        return v

    kinds: list[str] = []

    def spy(gm: Any, stages: Any, kind: str, reason: str) -> Any:
        kinds.append(kind)
        return through_aten(gm, stages, kind, reason)

    through_aten = backend._through_aten
    monkeypatch.setattr(graph, "as_promised", promised)
    monkeypatch.setattr(backend, "_through_aten", spy)
    x = torch.randn(1, 4, requires_grad=True)
    compile_it(lambda x: torch.linalg.vector_norm(x, 2, dim=1).sin())(x).sum().backward()
    assert kinds == ["forward", "backward"]
    made = compile_it(lambda x: torch.linalg.vector_norm(x, 2, dim=1) * 2)
    assert made(x.detach()).shape == (1,)
