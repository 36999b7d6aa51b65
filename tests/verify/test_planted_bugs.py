"""``verify`` finds bugs that are planted in every stage, and names the graph nodes they spoil."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

import litz.compiler
import litz.targets.cpp.target
from litz.errors import ToolchainError, VerificationError
from litz.host import inplace, memory
from litz.host import python as host_python
from litz.index import Expr, const, division, mod
from litz.ir import body, ops
from litz.ir.program import Extern, TensorRef
from litz.ir.reductions import MAX, SUM
from litz.kernel import merge
from litz.lowering import registry, values
from litz.lowering.readers import Readers
from litz.schedule import merge as fusion
from litz.targets.cpp import printer as cpp_printer

aten = torch.ops.aten
Patch = pytest.MonkeyPatch


def run(fn: Callable[..., Any], *args: Any, folder: Path, **options: Any) -> Any:
    torch._dynamo.reset()
    given = {"verify": True, "repro_dir": str(folder), **options}
    return torch.compile(fn, backend="litz", options=given)(*args)


def caught(folder: Path, fn: Callable[..., Any], *args: Any, **options: Any) -> VerificationError:
    with pytest.raises(VerificationError) as found:
        run(fn, *args, folder=folder, **options)
    return found.value


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def change_op(patch: Patch, name: str, **changes: Any) -> None:
    row = dataclasses.replace(ops.OPS[name], **changes)
    patch.setattr(ops, "OPS", MappingProxyType({**ops.OPS, name: row}))


# --- operators and lowerings ---------------------------------------------------------------------


def test_wrong_spelling_of_an_op(tmp_path: Path, monkeypatch: Patch) -> None:
    change_op(monkeypatch, "sin", cpp="litz::cos({args})")
    e = caught(tmp_path, lambda x: x.sin() * 2, r(5, 7))
    assert {"sin", "mul"} <= set(e.nodes)
    assert "x.sin() * 2" in str(e) and "elements are wrong" in str(e)
    marked, _, below = e.ir.partition(">>> ")[2].partition("\n")
    assert marked.lstrip().startswith("store ") and below.lstrip().startswith("^ 35 of 35")
    assert e.ir in str(e)


def test_wrong_lowering(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setitem(registry._TABLE, aten.sinh.default, registry._TABLE[aten.cosh.default])
    e = caught(tmp_path, lambda x: x.sinh() + 1, r(33))
    assert "sinh" in e.nodes and "test_planted_bugs.py" in str(e)


def test_slightly_wrong_lowering(tmp_path: Path, monkeypatch: Patch) -> None:
    right = registry._TABLE[aten.tanh.default]

    def wrong(ctx: Any, x: Any) -> Any:
        v = right(ctx, x)
        return v.with_node(body.op("mul", v.node, body.const(v.dtype, 1 + 2e-5)))

    monkeypatch.setitem(registry._TABLE, aten.tanh.default, wrong)
    assert "tanh" in caught(tmp_path, lambda x: x.tanh().exp(), r(64, 3)).nodes


def test_slightly_wrong_lowering_in_bf16(tmp_path: Path, monkeypatch: Patch) -> None:
    right = registry._TABLE[aten.sigmoid.default]

    def wrong(ctx: Any, x: Any) -> Any:
        v = right(ctx, x)
        wide = body.op("mul", body.cast(v.node, v.dtype.opmath), body.const(v.dtype.opmath, 1.02))
        return v.with_node(body.cast(wide, v.dtype))

    monkeypatch.setitem(registry._TABLE, aten.sigmoid.default, wrong)
    e = caught(tmp_path, lambda x: x.sigmoid(), r(500, dtype=torch.bfloat16))
    assert "sigmoid" in e.nodes


def test_wrong_random_numbers(tmp_path: Path, monkeypatch: Patch) -> None:
    change_op(monkeypatch, "rand", cpp="(litz::rand({args}) * 2)")
    e = caught(tmp_path, lambda x: torch.nn.functional.dropout(x, 0.25) + 1, r(400))
    assert "random" in e.detail


# --- views and index algebra ---------------------------------------------------------------------


def test_wrong_view(tmp_path: Path, monkeypatch: Patch) -> None:
    right = values.slice_dim

    def wrong(v: Any, dim: int, start: Expr, size: Expr, step: Expr) -> Any:
        return right(v, dim, start - 1 if start is const(3) else start, size, step)

    monkeypatch.setattr(values, "slice_dim", wrong)
    e = caught(tmp_path, lambda x: x.exp()[3:] * 2, r(10, 4))
    assert "mul" in e.nodes
    view = caught(tmp_path, lambda x: x[3:] * 2, r(10, 4))
    assert "view of an input" in str(view) and "slice_1" in view.nodes


def test_wrong_division_rule(tmp_path: Path, monkeypatch: Patch) -> None:
    """a // 13 becomes 0 for every a below 13 * 7."""
    right = division._div_rest

    def wrong(a: Expr, b: Expr) -> Expr:
        q = right(a, b)
        return const(0) if b is const(13) and q.hi == 6 else q

    division._floordiv.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(division, "_div_rest", wrong)
        e = caught(tmp_path, lambda x: (x.t().exp() + 1).reshape(13, 19) * 2, r(13, 19))
    division._floordiv.cache_clear()
    assert "exp" in e.nodes


# --- schedule ------------------------------------------------------------------------------------


def test_illegal_fusion(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(fusion, "_accesses_agree", lambda *_: True)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.flip(0) + x

    assert "flip" in caught(tmp_path, fn, r(9, 4)).nodes


def test_lost_dependency(tmp_path: Path, monkeypatch: Patch) -> None:
    """A value of old memory is computed after the memory has changed."""
    monkeypatch.setattr(Readers, "before_mutation", lambda *_: None)

    def swap(x: torch.Tensor, y: torch.Tensor) -> None:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    assert "copy" in str(caught(tmp_path, swap, r(8, 6), r(8, 6) * 3).nodes)


# --- kernels -------------------------------------------------------------------------------------


def test_wrong_loop_merge(tmp_path: Path, monkeypatch: Patch) -> None:
    """The inner of two merged loops misses its last step."""
    monkeypatch.setattr(merge._Merger, "follows", lambda self, u, v: True)
    monkeypatch.setattr(merge, "mod", lambda w, n: mod(w, n - 1))
    assert "add" in caught(tmp_path, lambda x, y: x + y.t(), r(6, 10), r(10, 6)).nodes


def test_wrong_neutral_element(tmp_path: Path, monkeypatch: Patch) -> None:
    right = cpp_printer.neutral
    monkeypatch.setattr(cpp_printer, "neutral", lambda row, t: right(SUM if row is MAX else row, t))
    assert "amax" in caught(tmp_path, lambda x: x.amax(1), -r(7, 30).abs()).nodes


def test_wrong_tail(tmp_path: Path, monkeypatch: Patch) -> None:
    """The last lanes of a row that is no multiple of the vector are left out."""
    right = litz.targets.cpp.target.render

    def wrong(*args: Any) -> str:
        return re.sub(r"first_n<(\d+)>\((\w+)\)", r"first_n<\1>(\2 - 1)", right(*args))

    monkeypatch.setattr(litz.targets.cpp.target, "render", wrong)
    fn = lambda x, m: torch.where(m, x, 0.0).sum(1)  # noqa: E731
    e = caught(tmp_path, fn, r(4, 37) + 3, torch.ones(4, 37, dtype=torch.bool))
    assert "sum_1" in e.nodes


# --- host ----------------------------------------------------------------------------------------


def test_illegal_takeover_of_memory(tmp_path: Path, monkeypatch: Patch) -> None:
    """A kernel that reads its input backwards writes over it."""

    def wrong(group: Any, buffers: Any) -> tuple[tuple[str, str], ...]:
        return tuple((s.buffer, b) for s in group.stores for b in group.read_buffers())

    monkeypatch.setattr(inplace, "inplace_pairs", wrong)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        z = (x @ w).flip(0) + 1
        return z @ w

    assert "add" in caught(tmp_path, fn, r(32, 32), r(32, 32)).nodes


def test_memory_reused_too_early(tmp_path: Path, monkeypatch: Patch) -> None:
    right = memory.lay_out

    def wrong(steps: int, items: Any, *args: Any) -> Any:
        """Memory lives for so many steps at most."""
        cut = [dataclasses.replace(i, death=min(i.death, i.birth + steps)) for i in items]
        return right(cut, *args)

    def backwards(x: torch.Tensor) -> torch.Tensor:
        """What writes over its input is a kernel: a product may have read all of it before."""
        return ((x @ x).flip(0) + 1) @ x

    monkeypatch.setattr(memory, "lay_out", partial(wrong, 0))
    e = caught(tmp_path, backwards, r(40, 40))
    assert "changed an input of its own" in str(e) and {"flip", "add"} <= set(e.nodes)

    def kept(x: torch.Tensor) -> torch.Tensor:
        a = x.softmax(1) @ x
        b = a.softmax(1) @ x
        return (b.softmax(1) @ x).softmax(0) + a

    monkeypatch.setattr(memory, "lay_out", partial(wrong, 1))
    e = caught(tmp_path, kept, r(40, 40))
    assert "its memory was reused" in str(e) and "overwritten by" in str(e)


def test_memory_of_a_kernel_that_others_need(tmp_path: Path, monkeypatch: Patch) -> None:
    right = memory.lay_out

    def wrong(items: Any, *args: Any) -> Any:
        """What a kernel needs during its call is taken for dead."""
        own = [dataclasses.replace(i, birth=-1, death=-1) if "." in i.name else i for i in items]
        return right(own, *args)

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        early = (x @ x).exp()
        return early @ x + torch.group_norm(y, 4).sum() * early

    args = r(40, 40) * 0.1, r(2, 64, 56, 56)
    assert run(fn, *args, folder=tmp_path).shape == (40, 40)
    monkeypatch.setattr(memory, "lay_out", wrong)
    assert "overwritten by group" in str(caught(tmp_path, fn, *args))


def test_swapped_kernel_arguments(tmp_path: Path, monkeypatch: Patch) -> None:
    right = host_python._Printer._call

    def wrong(self: Any, name: str, buffers: Any, ints: Any) -> None:
        first, second, *rest = buffers
        right(self, name, (second, first, *rest), ints)

    monkeypatch.setattr(host_python._Printer, "_call", wrong)
    assert "sub" in caught(tmp_path, lambda x, y: x - 2 * y, r(20), r(20) + 1).nodes


def test_wrong_argument_of_an_extern_call(tmp_path: Path, monkeypatch: Patch) -> None:
    right = host_python._Printer.ref

    def wrong(self: Any, ref: TensorRef) -> str:
        return right(self, dataclasses.replace(ref, offset=const(0)))

    monkeypatch.setattr(host_python._Printer, "ref", wrong)
    e = caught(tmp_path, lambda x, w: x[1:] @ w, r(5, 4), r(4, 3))
    assert e.nodes == ("mm",) and "mm" in e.kernel


def test_swapped_results(tmp_path: Path, monkeypatch: Patch) -> None:
    right = host_python._Printer.value

    def wrong(self: Any, value: object) -> str:
        swap = type(value) is tuple and len(value) == 2 and isinstance(value[0], TensorRef)
        return right(self, tuple(reversed(value)) if swap else value)  # type: ignore[call-overload]

    monkeypatch.setattr(host_python._Printer, "value", wrong)
    assert "result 0" in str(caught(tmp_path, lambda x: (x.sin(), x.cos()), r(20)))


# --- what the user gets --------------------------------------------------------------------------


def test_repro_runs_by_itself(tmp_path: Path, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        change_op(patch, "sin", cpp="litz::cos({args})")
        e = caught(tmp_path, lambda x, y: (x + y).sin() * 2, r(5, 7), r(7))
    assert e.inputs is not None and e.repro is not None
    saved = torch.load(e.inputs)
    assert {tuple(x.shape) for x in saved["inputs"]} == {(5, 7), (7,)}
    # Without the planted bug the same file says that all is well.
    done = subprocess.run([sys.executable, e.repro], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "largest error" in done.stdout and "right" in done.stdout


def test_repro_shows_the_fault(tmp_path: Path, monkeypatch: Patch) -> None:
    from litz.verify.replay import judge

    change_op(monkeypatch, "sin", cpp="litz::cos({args})")
    e = caught(tmp_path, lambda x: x.sin() * 2, r(5, 7))
    assert e.repro is not None and e.inputs is not None
    scope: dict[str, Any] = {"__name__": "repro"}
    exec(Path(e.repro).read_text(), scope)
    module, inputs = scope["Repro"](), torch.load(e.inputs)["inputs"]
    torch._dynamo.reset()
    results = torch.compile(module, backend="litz", options=scope["OPTIONS"] | {"verify": False})
    assert judge(module, inputs, results(*inputs)) == 1


def test_repro_of_a_triton_kernel_runs_it(tmp_path: Path, monkeypatch: Patch) -> None:
    """Without Triton's interpreter ATen would run in its place, and be right."""
    pytest.importorskip("triton.language")
    from litz.runtime.triton import interpret
    from litz.verify.replay import replay

    with monkeypatch.context() as patch:
        change_op(patch, "sin", triton="litz.cos({0})")
        e = caught(tmp_path, lambda x: x.sin() * 2, r(5, 7), target="triton")
    assert (
        e.repro is not None and 'os.environ["TRITON_INTERPRET"] = "1"' in Path(e.repro).read_text()
    )

    def absent() -> None:
        raise ToolchainError("no interpreter")

    monkeypatch.setattr(interpret, "require_interpreter", absent)
    torch._dynamo.reset()
    scope: dict[str, Any] = {"__name__": "repro"}
    exec(Path(e.repro).read_text(), scope)
    with pytest.raises(Exception, match="no interpreter"):
        replay(scope["Repro"](), torch.load(str(e.inputs))["inputs"], scope["OPTIONS"])


def test_extern_is_a_step(tmp_path: Path) -> None:
    """Steps of a checked run are those of the schedule, externs among them."""
    got = []
    from litz.backend import compile_with
    from litz.options import make_options

    def backend(gm: Any, inputs: Any) -> Any:
        options = make_options({"verify": True, "repro_dir": str(tmp_path)})
        return compile_with(gm, inputs, options, lambda kind, graph, s: got.append(s))

    torch._dynamo.reset()
    torch.compile(lambda x, w: (x @ w).relu().sum(1), backend=backend)(r(4, 5), r(5, 6))
    (stages,) = got
    assert [isinstance(s, Extern) for s in stages.schedule.steps] == [True, False]
    assert stages.watch.checked >= 2 and not stages.watch.unchecked
