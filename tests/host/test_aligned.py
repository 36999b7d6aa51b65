"""Operands of libraries' kernels begin at multiples of 16 bytes, copied only if need be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.host.aligned import with_aligned
from litz.host.fx import FxHost
from litz.host.lines import Align, CallExtern, HostProgram, Return, host_text
from litz.host.native import plan_native
from litz.host.python import print_host
from litz.index import as_expr
from litz.ir.dtype import BF16, I64
from litz.ir.program import Buffer, Extern, TensorRef
from litz.loading.values import load_host
from litz.options import make_options
from litz.runtime.plan import Plan
from litz.targets.tools import Tools

SHAPE = (4, 3, 8)
# In order, with gaps, with overlaps, the other way round.
STRIDES = ((24, 8, 1), (40, 12, 1), (8, 0, 1), (1, 32, 4))


def expected(*numbers: int) -> tuple[Any, ...]:
    return tuple(map(as_expr, numbers))


def buffer(name: str, strides: tuple[int, ...], kind: str, alias: str | None = None) -> Buffer:
    return Buffer(name, BF16, expected(*SHAPE), expected(*strides), "cpu", kind, alias)


def by_python(host: HostProgram) -> Callable[[list[Any]], Any]:
    return load_host(print_host(host).source, {})


def by_executor(host: HostProgram) -> Callable[[list[Any]], Any]:
    plan = plan_native(host, {})
    assert isinstance(plan, Plan)
    return Tools(make_options({"host": "native"})).executor.program(plan, {}, {})


def by_fx(host: HostProgram) -> Callable[[list[Any]], Any]:
    plan = plan_native(host, {}, named=True)
    assert isinstance(plan, Plan)
    return FxHost((), ()).program(plan, {}, {})


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("way", [by_python, by_executor, by_fx])
def test_a_line_copies_what_begins_elsewhere(
    way: Callable[[HostProgram], Callable[[list[Any]], Any]], strides: tuple[int, ...]
) -> None:
    x, y = buffer("x", strides, "input"), buffer("y", strides, "extern")
    out = TensorRef("y", BF16, y.shape, y.strides, as_expr(0))
    for offset in (0, 8):  # of the view, in elements: 16 bytes
        ref = TensorRef("x", BF16, x.shape, x.strides, as_expr(offset))
        host = HostProgram(("x",), {"x": x, "y": y}, (Align("y", ref), Return((out,))))
        call = way(host)
        memory = torch.randn(256).bfloat16()
        assert memory.data_ptr() % 16 == 0
        for begin in range(10):
            given = memory[begin:].as_strided(SHAPE, strides)
            wanted = given.as_strided(SHAPE, strides, begin + offset)
            (found,) = call([given])
            assert found.data_ptr() % 16 == 0 and found.stride() == strides
            assert torch.equal(found, wanted)
            assert (found.data_ptr() == wanted.data_ptr()) is (begin % 8 == 0)


def attention(*names: str, back: bool = False) -> Extern:
    aten: Any = torch.ops.aten
    target = aten._scaled_dot_product_cudnn_attention
    refs = tuple(
        TensorRef(n, BF16, expected(*SHAPE), expected(24, 8, 1), as_expr(0)) for n in names
    )
    seed = TensorRef("seed", I64, (), (), as_expr(0))
    return Extern(
        "call", target.default, str(target), (*refs, None, seed), (), ("out",), "cuda:0", ""
    )


def test_calls_are_handed_what_begins_where_they_want_it() -> None:
    """Arguments and views of them; not what the program itself has made, nor integers."""
    own = {n: buffer(n, STRIDES[0], "input") for n in "qk"}
    own |= {n: buffer(n, STRIDES[0], "temp") for n in ("made", "out")}
    own["view"] = buffer("view", STRIDES[0], "extern", alias="k")
    own["seed"] = Buffer("seed", I64, (), (), "cuda:0", "input")
    call = CallExtern(attention("q", "made", "view", "q"))
    host = with_aligned(HostProgram(("q", "k", "seed"), own, (call, Return(()))))
    text = host_text(host)
    assert [x.ref.buffer for x in host.lines if isinstance(x, Align)] == ["q", "view"]
    first, second = (x.buffer for x in host.lines if isinstance(x, Align))
    assert f"({first}, made, {second}, {first}, None, seed" in text
    assert f"free {first}\n  free {second}\n  return" in text


def test_other_programs_stay() -> None:
    made = {n: buffer(n, STRIDES[0], "temp") for n in ("a", "b", "c", "seed")}
    host = HostProgram((), made, (CallExtern(attention("a", "b", "c")), Return(())))
    assert with_aligned(host).lines == host.lines
    plain = HostProgram(("x",), {"x": buffer("x", STRIDES[0], "input")}, (Return(()),))
    assert with_aligned(plain) is plain
