"""Sums of two 16-bit integers at once, which the assembler gets wrong, are taken apart."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("triton.language")

from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton.build import build  # noqa: E402
from litz.runtime.triton.job import KernelJob  # noqa: E402
from litz.runtime.triton.pool import find_triton  # noqa: E402
from litz.runtime.triton.ptx import without_pairs  # noqa: E402

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
JOB = KernelJob(
    SOURCE,
    "split",
    (("x", "*fp32"), ("y", "*fp32"), ("RBLOCK", "constexpr")),
    (("RBLOCK", 8192),),
    ("x", "y"),
    (("num_warps", 16),),
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


def test_no_constant_is_lost(tmp_path: Path) -> None:
    tool = Path(find_triton().folder) / "backends/nvidia/bin/nvdisasm"
    if not tool.exists():
        pytest.skip("this Triton brings no nvdisasm, which shows what the assembler made")
    (binary,) = build([JOB], Cache(tmp_path))
    path = tmp_path / "kernel.cubin"
    path.write_bytes(binary.code)
    said = subprocess.run([tool, path], capture_output=True, text=True, check=True).stdout
    assert re.search(r"\bSTG\b", said)
    assert not re.search(r"VIADD\.16x2 \w+, \w+, 0x0 ", said)
