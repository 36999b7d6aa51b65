"""What the assembler gets wrong reaches it in other words."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.language")

import litz  # noqa: E402
from litz.ir import body  # noqa: E402
from litz.ir.dtype import BF16, F16, F32, F64, DType  # noqa: E402
from litz.ir.ops import TRITON_TYPES  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton.build import build  # noqa: E402
from litz.runtime.triton.job import KernelJob  # noqa: E402
from litz.runtime.triton.pool import find_triton  # noqa: E402
from litz.runtime.triton.ptx import (  # noqa: E402
    with_array,
    with_short_loops,
    without_negations,
    without_pairs,
)
from litz.targets.triton.cuda import default_configs, likely_jobs  # noqa: E402
from litz.targets.triton.spell import literal  # noqa: E402


def float_of(bits: int) -> float:
    """The double with these bits."""
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


# Of 8192 indices below 4900, split by 7 and by 100: LLVM counts in 16 bits, some in pairs of which
# one half is used, as in `7*r0 + r2` where r0 is one number for all threads.
SOURCE = """
import triton
import triton.language as tl

@triton.jit
def split(x, y, RBLOCK: tl.constexpr):
    rindex = tl.arange(0, RBLOCK)
    rmask = rindex < 4900
    r2 = rindex % 7
    r1 = (rindex // 7) % 100
    r0 = rindex // 700
    v = tl.load(x + rindex, rmask)
    tl.store(y + (7*r0 + 49*r1 + r2), v, rmask)
"""
LARGEST = """
import triton
import triton.language as tl

@triton.jit
def largest(x, y):
    at = tl.arange(0, 32)
    a, b, c = tl.load(x + at), tl.load(x + 32 + at), tl.load(x + 64 + at)
    tl.store(y + at, tl.maximum(tl.maximum(-a, -b), -c))
"""
JOB = KernelJob(
    SOURCE,
    "split",
    (("x", "*fp32"), ("y", "*fp32"), ("RBLOCK", "constexpr")),
    (("RBLOCK", 8192),),
    ("x", "y"),
    (("num_warps", 16),),
)


def largest(dtype: str) -> KernelJob:
    """The largest of three negated numbers."""
    return KernelJob(
        LARGEST,
        "largest",
        (("x", f"*{dtype}"), ("y", f"*{dtype}")),
        (),
        ("x", "y"),
        (("num_warps", 1),),
    )


def test_pairs_are_taken_apart() -> None:
    text = "\tmov.b32 \t%r73, 14;\n\tadd.s16x2 \t%r74, %r72, %r73;\n\tadd.f16x2 %r1, %r2, %r3;\n"
    assert without_pairs(text) == (
        "\tmov.b32 \t%r73, 14;\n"
        "\t{\n"
        "\t.reg .b32 %litz_a, %litz_b;\n"
        "\t.reg .b16 %litz_al, %litz_ah, %litz_bl, %litz_bh;\n"
        "\tmov.b32 %litz_a, %r72;\n"
        "\tmov.b32 %litz_b, %r73;\n"
        "\tmov.b32 {%litz_al, %litz_ah}, %litz_a;\n"
        "\tmov.b32 {%litz_bl, %litz_bh}, %litz_b;\n"
        "\tadd.s16 %litz_al, %litz_al, %litz_bl;\n"
        "\tadd.s16 %litz_ah, %litz_ah, %litz_bh;\n"
        "\tmov.b32 %r74, {%litz_al, %litz_ah};\n"
        "\t}\n"
        "\tadd.f16x2 %r1, %r2, %r3;\n"
    )


def test_negations_beside_maxima() -> None:
    text = "\tneg.s32 \t%r3, %r2;\n\tsub.s16 \t%rs3, 0, %rs2;\n\tsub.s32 %r4, %r5, %r6;\n"
    assert without_negations(text + "\tmax.f32 %f1, %f2, %f3;\n").startswith(text)
    best = "\tmax.s32 %r7, %r3, %r4;\n"
    assert without_negations(text + best) == (
        "\tnot.b32 %r3, %r2;\n"
        "\tadd.s32 %r3, %r3, 1;\n"
        "\tnot.b16 %rs3, %rs2;\n"
        "\tadd.s16 %rs3, %rs3, 1;\n"
        "\tsub.s32 %r4, %r5, %r6;\n" + best
    )


def assembled(job: KernelJob, tmp_path: Path) -> str:
    """The machine code of a job."""
    tool = Path(find_triton().folder) / "backends/nvidia/bin/nvdisasm"
    if not tool.exists():
        pytest.skip("this Triton brings no nvdisasm, which shows what the assembler made")
    (binary,) = build([job], Cache(tmp_path))
    path = tmp_path / "kernel.cubin"
    path.write_bytes(binary.code)
    said = subprocess.run([tool, path], capture_output=True, text=True, check=True).stdout
    assert re.search(r"\bSTG\b", said)
    return said


def test_no_constant_is_lost(tmp_path: Path) -> None:
    assert not re.search(r"VIADD\.16x2 \w+, \w+, 0x0 ", assembled(JOB, tmp_path))


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32"])
def test_no_sign_is_lost(dtype: str, tmp_path: Path) -> None:
    said = assembled(largest(dtype), tmp_path)
    assert "MNMX" in said
    complements = re.findall(r"LOP3\.LUT \w+, RZ, \w+, RZ, 0x33", said)
    assert len(complements) == 3, said


@pytest.mark.parametrize("op", ["mul", "add", "sub"])
def test_bfloat16_is_not_narrowed(op: str, tmp_path: Path) -> None:
    """LLVM counts bits of fractions alone, and would round 65536 to f16 before it is multiplied."""
    fn = getattr(torch, op)
    args = torch.ones(300, dtype=torch.float16), torch.ones(300, dtype=torch.bfloat16)
    graphs = litz.explain(lambda x, y: fn(x, y).half(), *args, options={"target": "triton"}).graphs
    (kernel,) = (k.triton for g in graphs for k in g.stages.kernels if k.triton is not None)
    for job in likely_jobs(kernel, default_configs(kernel), ("cuda", 90, 32)):
        said = assembled(job, tmp_path)
        assert re.search(rf"\bF{op.upper().replace('SUB', 'ADD')}\b", said), said
        assert not re.search(r"\bH(MUL|ADD|FMA)2(?!\.F32)", said), said


STORES = """
import triton
import triton.language as tl

@triton.jit
def stores(y):
    tl.store(y + tl.arange(0, 32), {value})
"""


@pytest.mark.parametrize(
    ("dtype", "value", "words"),
    [
        (F32, -0.0, "0x80000000"),
        (F64, -0.0, "0x80000000"),
        (F16, -0.0, "0x8000"),
        (BF16, -0.0, "0x8000"),
        (F32, float_of(0x7FF8ABCDE0000000), "0x7fc55e6f"),
        (F64, float_of(0xFFF8ABCD20000123), "0x20000123"),
    ],
)
def test_special_constants(dtype: DType, value: float, words: str, tmp_path: Path) -> None:
    """Triton's own constants have no negative zero and one nan, which its interpreter hides."""
    source = STORES.format(value=literal(body.const(dtype, value)))
    pointer = f"*{TRITON_TYPES[dtype.name].removeprefix('tl.').replace('float', 'fp')}"
    pointer = pointer.replace("bfp", "bf")
    job = KernelJob(source, "stores", (("y", pointer),), (), ("y",), (("num_warps", 1),))
    assert re.search(rf"\b{words}(8000)?\b", assembled(job, tmp_path))


LOOPS = """$L__BB0_1:
	ld.global.b32 %r1, [%rd1];
	@%p1 bra 	$L__BB0_1;
$L__BB0_2:                              // =>This Loop Header: Depth=1
	mov.b32 %r2, 0;
$L__BB0_3:
	{product}
	@%p2 bra 	$L__BB0_3;
	@%p3 bra.uni 	$L__BB0_2;
	ret;
"""


@pytest.mark.parametrize(
    "product",
    [
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1}, %rd80, %rd81, %p1, 1, 1, 0, 0;",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %r3 }, { %r4 }, { %r5 }, { %r6 };",
    ],
)
def test_loops_over_products_stay_loops(product: str) -> None:
    """The loop of the product and the one around it; that of a load may be unrolled."""
    lines = with_short_loops(LOOPS.replace("{product}", product)).splitlines()
    marked = [lines[i - 1][:9] for i, line in enumerate(lines) if "nounroll" in line]
    assert marked == ["$L__BB0_2", "$L__BB0_3"]
    assert [x for x in lines if "nounroll" not in x] == (
        LOOPS.replace("{product}", product).splitlines()
    )


def test_an_array_in_place_of_parameters() -> None:
    head = ".visible .entry k(\n\t.param .u64 k_param_0,\n\t.param .u64 .ptr .global k_param_1\n)\n"
    body = ".reqntid 128\n{\n\tmov.u64 %rd1, k_param_0;\n\tret;\n}\n"
    array = ".visible .entry k(\n\t.param .align 8 .b8 k_param_0[800]\n)\n"
    assert with_array(head + body, 100) == array + body
    with pytest.raises(ValueError, match="other parameters"):
        with_array(head + body.replace("k_param_0", "k_param_1"), 100)
