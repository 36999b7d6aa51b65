"""Kernels and jobs for the tests of the Triton runtime."""

from __future__ import annotations

from dataclasses import replace

from litz.runtime.triton.job import KernelJob

ADD = """\
import triton
import triton.language as tl
from litz.runtime.triton import helpers as litz


@triton.jit
def add(a, b, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    inside = x < n
    v = tl.load(a + x, inside, other=0) + tl.load(b + x, inside, other=0)
    tl.store(out + x, v, inside)
"""

ADD_JOB = KernelJob(
    ADD,
    "add",
    (("a", "*fp32"), ("b", "*fp32"), ("out", "*fp32"), ("n", "i32"), ("XBLOCK", "constexpr")),
    (("XBLOCK", 512),),
    ("a", "b", "out"),
    (("num_warps", 4), ("enable_fp_fusion", False)),
)


def altered(old: str, new: str) -> KernelJob:
    """The job with a part of its source replaced."""
    assert old in ADD
    return replace(ADD_JOB, source=ADD.replace(old, new))
