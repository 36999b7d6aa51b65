"""Every row of the op table as a Triton kernel, interpreted, against its reference."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))

import ops_reference as ref
from ops_harness import TORCH, same_bits
from ops_samples import operands
from test_ops_rows import CASES, eager_defined

from litz.index import var
from litz.ir import body
from litz.ir import dtype as dt
from litz.ir.body import Store
from litz.ir.dtype import DType
from litz.ir.ops import OpRow, result_dtype
from litz.kernel.blocks.choose import choose
from litz.kernel.plan import Dim, KernelPlan, Param
from litz.targets.triton.interpreted import bind_interpreted
from litz.targets.triton.render import render
from litz.targets.triton.source import TritonKernel

pytest.importorskip("triton")


def in_two_blocks(kernel: TritonKernel) -> TritonKernel:
    """The interpreter's time goes by the blocks, not by what they hold."""
    (launch,) = kernel.launches
    (config, *_) = launch.configs
    wide = replace(config, blocks=(("x", 2048),))
    assert [axis for axis, _ in config.blocks] == ["x"]
    return replace(kernel, launches=(replace(launch, configs=(wide,), narrow=None),))


def run(row: OpRow, args: list[torch.Tensor], kinds: list[DType], to: DType | None) -> torch.Tensor:
    """The op on every element, as one kernel."""
    x = var("x0", len(args[0]))
    loads = [body.load(k, f"b{i}", x) for i, k in enumerate(kinds)]
    value = body.op(row.name, *loads, to=to)
    out = torch.empty(len(args[0]), dtype=TORCH[value.dtype])
    params = [Param(f"b{i}", k, "in") for i, k in enumerate(kinds)]
    params.append(Param("out", value.dtype, "out"))
    plan = KernelPlan((Dim(x, "p"),), tuple(params), (), (Store("out", x, value),), x)
    call = bind_interpreted(in_two_blocks(render(choose(plan), "kernel")))
    call(*(t.data_ptr() for t in (*args, out)))
    return out


@pytest.mark.parametrize(("row", "dtype"), CASES)
def test_row(row: OpRow, dtype: DType) -> None:
    kinds = [dt.BOOL if k == "b*" else dtype for k in row.kinds]
    args = [a[:4000].contiguous() for a in operands(row, dtype)]
    got = run(row, args, kinds, None)
    assert got.dtype == TORCH[result_dtype(row.name, kinds)]
    function = ref.torch_function(row)
    if function is None:
        pytest.skip("no reference but the target's own")
    defined = eager_defined(row, dtype, args)
    args, got = [a[defined] for a in args], got[defined]
    try:
        want = function(*args)
    except RuntimeError:
        pytest.skip("eager has no such type")
    ok = same_bits(got, want)
    if row.name in ("maximum", "minimum", "fmax", "fmin"):
        ok |= got == want  # of two zeros either is the larger
    # The interpreter's fused multiply-add rounds twice.
    if dtype.is_float and (row.ulp or row.ulp is None or row.name == "fma"):
        tolerance = 1e-5 if dtype.bits == 32 else 1e-12
        tiny = torch.finfo(want.dtype).tiny
        # In f32 eager itself is off where a function crosses zero.
        exact = function(*(a.double() if a.is_floating_point() else a for a in args))
        # Terms of digamma cancel near its zeros: in f32 as in eager mode on GPUs.
        near = 1e-6 if row.name == "digamma" and dtype.bits == 32 else tiny
        for right in (want, exact.to(want.dtype)):
            ok |= (got - right).abs() <= tolerance * right.abs() + near
    bad = (~ok).nonzero().flatten().tolist()
    shown = [([a[i].item() for a in args], got[i].item(), want[i].item()) for i in bad[:3]]
    assert not bad, f"{row.name}: {len(bad)} differ: {shown}"


CASTS = [dt.BOOL, dt.U8, dt.I8, dt.I16, dt.I32, dt.I64, dt.F16, dt.BF16, dt.F32, dt.F64]


@pytest.mark.parametrize("to", CASTS, ids=str)
@pytest.mark.parametrize("source", CASTS, ids=str)
def test_cast(source: DType, to: DType) -> None:
    from litz.ir.ops import OPS

    values = torch.tensor([0.0, 1, -1, 2.5, -3.5, 100, 0.1, 1000.7, 65504, 1e-8, 3.3895e38])
    values = torch.cat([values, torch.linspace(-120, 120, 977)])
    a = values.to(TORCH[source])
    if source.is_float and to.is_int:  # beyond the range casts are undefined, as in C
        a = a[(a.double().abs() < 120) & ((a >= 0) | (to.kind == "int"))].contiguous()
    if source is to:
        pytest.skip("no cast")
    assert torch.equal(run(OPS["cast"], [a], [source], to), a.to(TORCH[to]))


def test_rounding_to_half_formats() -> None:
    from litz.ir.ops import OPS

    a = torch.cat([torch.randn(3000) * 10.0**k for k in (-7, -5, 0, 4)])
    a = torch.cat([a, torch.tensor([float("inf"), float("nan"), -0.0, 65519.0, 65520.0])])
    for kind, to in ((dt.BF16, torch.bfloat16), (dt.F16, torch.float16)):
        got = run(OPS["round_to"], [a], [dt.F32], kind)
        assert same_bits(got, a.to(to).float()).all()
