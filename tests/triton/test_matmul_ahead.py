"""Kernels of matrix products build for a GPU that is not there, without spills."""

from __future__ import annotations

import math
import operator
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.language")

from cubin import resources  # noqa: E402
from test_ahead_of_time import H200, SHARED, check  # noqa: E402

from litz.ir.parse import parse  # noqa: E402
from litz.ir.program import Contraction, Template  # noqa: E402
from litz.kernel.blocks import matmul  # noqa: E402
from litz.kernel.blocks.choose import choose  # noqa: E402
from litz.kernel.blocks.recipe import BlockRecipe, Style  # noqa: E402
from litz.kernel.build import KernelBuilder  # noqa: E402
from litz.kernel.verify import verify as verify_recipe  # noqa: E402
from litz.passes.choose import TakeTemplates  # noqa: E402
from litz.passes.costs import LARGE  # noqa: E402
from litz.passes.pipeline import Pipeline, run_passes  # noqa: E402
from litz.runtime.cache import Cache  # noqa: E402
from litz.runtime.triton.build import submit  # noqa: E402
from litz.runtime.triton.job import KernelJob  # noqa: E402
from litz.schedule.build import schedule  # noqa: E402
from litz.targets.triton.cuda import job_of, likely_variant  # noqa: E402
from litz.targets.triton.render import render  # noqa: E402
from tests.quick import some

# A factor of a kind: the memory's type, the lines that compute it, and the last one's name.
FACTORS = {
    "int8": ("i8", "%0: i8 = load w[{k}*i0 + i1]\n%1: bf16 = cast %0 to bf16", "%1"),
    "int8_upright": ("i8", "%0: i8 = load w[{n}*i1 + i0]\n%1: bf16 = cast %0 to bf16", "%1"),
    "int4": (
        "u8",
        """\
%0: i64 = index i1%2
%1: bool = lt %0, i64(1)
%2: u8 = load w[{half}*i0 + i1//2]
%3: u8 = and_ %2, u8(15)
%4: i8 = cast %3 to i8
%5: i8 = sub %4, i8(8)
%6: u8 = shr %2, u8(4)
%7: i8 = cast %6 to i8
%8: i8 = sub %7, i8(8)
%9: i8 = masked %1, %5, %8
%10: bf16 = cast %9 to bf16
%11: f32 = cast %10 to f32
%12: bf16 = load g[{groups}*i0 + i1//128]
%13: f32 = cast %12 to f32
%14: f32 = mul %11, %13
%15: bf16 = cast %14 to bf16""",
        "%15",
    ),
}


def program(kind: str, m: int, n: int, k: int) -> str:
    """``silu(x @ w')``, where ``w'`` is a factor of a kind."""
    dtype, lines, last = FACTORS[kind]
    lines = lines.format(n=n, k=k, half=k // 2, groups=k // 128)
    count = n * k // (2 if kind == "int4" else 1)
    factor = f"buf0: bf16[{k}, {n}]{{1, {k}}}+0"
    return f"""\
program(x, w, g) {{
  x: bf16[{m}, {k}]{{{k}, 1}} @cuda:0 input
  w: {dtype}[{count}]{{1}} @cuda:0 input
  g: bf16[{n * max(1, k // 128)}]{{1}} @cuda:0 input
  buf0: bf16[{n}, {k}]{{{k}, 1}} @cuda:0 temp
  buf1: bf16[{m}, {n}]{{{n}, 1}} @cuda:0 temp
  buf2: bf16[{m}, {n}]{{{n}, 1}} @cuda:0 temp
  loops0 = loops [i0 < {n}, i1 < {k}] @cuda:0 {{
{lines}
store buf0[{k}*i0 + i1] = {last}
  }}
  product0 = contraction [m {m}, n {n}, k {k}] in f32 (x, {factor}) -> (buf1) @cuda:0
  loops1 = loops [i0 < {m}, i1 < {n}] @cuda:0 {{
%0: bf16 = load buf1[{n}*i0 + i1]
%1: f32 = cast %0 to f32
%2: f32 = sigmoid %1
%3: f32 = mul %1, %2
%4: bf16 = cast %3 to bf16
store buf2[{n}*i0 + i1] = %4
  }}
  return (buf2,)
}}"""


def slopes(m: int, n: int, k: int) -> str:
    """What the gradient of ``silu(a) * b`` by both makes of ``x @ w``."""
    return f"""\
program(x, w, a, b) {{
  x: bf16[{m}, {k}]{{{k}, 1}} @cuda:0 input
  w: bf16[{k}, {n}]{{{n}, 1}} @cuda:0 input
  a: bf16[{m}, {n}]{{{n}, 1}} @cuda:0 input
  b: bf16[{m}, {n}]{{{n}, 1}} @cuda:0 input
  buf1: bf16[{m}, {n}]{{{n}, 1}} @cuda:0 temp
  buf2: bf16[{m}, {n}]{{{n}, 1}} @cuda:0 temp
  buf3: bf16[{m}, {n}]{{{n}, 1}} @cuda:0 temp
  product0 = contraction [m {m}, n {n}, k {k}] in f32 (x, w) -> (buf1) @cuda:0
  loops1 = loops [i0 < {m}, i1 < {n}] @cuda:0 {{
%0: bf16 = load buf1[{n}*i0 + i1]
%1: f32 = cast %0 to f32
%2: bf16 = load a[{n}*i0 + i1]
%3: f32 = cast %2 to f32
%4: f32 = sigmoid %3
%5: bf16 = cast %4 to bf16
%6: f32 = cast %5 to f32
%7: f32 = mul %3, %6
%8: f32 = mul %1, %7
%9: bf16 = cast %8 to bf16
store buf2[{n}*i0 + i1] = %9
%10: bf16 = load b[{n}*i0 + i1]
%11: f32 = cast %10 to f32
%12: f32 = mul %1, %11
%13: bf16 = cast %12 to bf16
%14: f32 = cast %13 to f32
%15: f32 = sub f32(1.0), %6
%16: f32 = mul %3, %15
%17: f32 = add %16, f32(1.0)
%18: f32 = mul %6, %17
%19: f32 = mul %14, %18
%20: bf16 = cast %19 to bf16
store buf3[{n}*i0 + i1] = %20
  }}
  return (buf2, buf3)
}}"""


# A call of an operator on ``x`` and ``w``: types of both and of what it gives, and its text.
CALLS = {
    "int_mm": ("i8", "i8", "i32", "aten._int_mm.default(x, w: i8[{k}, {n}]{{1, {k}}}+0)"),
    "rowwise": (
        "f8e4m3", "f8e4m3", "bf16",
        "aten._scaled_mm.default(x, w: f8e4m3[{k}, {n}]{{1, {k}}}+0, a, b, "
        "out_dtype=torch.bfloat16)",
    ),
    "grouped": (
        "bf16", "bf16", "bf16",
        "aten._grouped_mm.default(x, w: bf16[8, {k}, {n}]{{{n}*{k}, 1, {k}}}+0, offs=o)",
    ),
    "int8pack": (
        "bf16", "i8", "bf16", "aten._weight_int8pack_mm.default(x, w: i8[{n}, {k}]{{{k}, 1}}+0, s)",
    ),
}  # fmt: skip


def call(kind: str, m: int, n: int, k: int) -> str:
    """``relu`` of a call's result."""
    left, right, out, text = CALLS[kind]
    wide = "f32" if out == "bf16" else out
    count = n * k * (8 if kind == "grouped" else 1)
    return f"""\
program(x, w, a, b, o, s) {{
  x: {left}[{m}, {k}]{{{k}, 1}} @cuda:0 input
  w: {right}[{count}]{{1}} @cuda:0 input
  a: f32[{m}, 1]{{1, 1}} @cuda:0 input
  b: f32[1, {n}]{{{n}, 1}} @cuda:0 input
  o: i32[8]{{1}} @cuda:0 input
  s: bf16[{n}]{{1}} @cuda:0 input
  buf1: {out}[{m}, {n}]{{{n}, 1}} @cuda:0 fresh
  buf2: bf16[{m}, {n}]{{{n}, 1}} @cuda:0 temp
  extern0 = extern {text.format(m=m, n=n, k=k)} -> (buf1) @cuda:0 because "a product"
  loops1 = loops [i0 < {m}, i1 < {n}] @cuda:0 {{
%0: {out} = load buf1[{n}*i0 + i1]
%1: {wide} = cast %0 to {wide}
%2: {wide} = maximum %1, {wide}({"0.0" if wide == "f32" else 0})
%3: bf16 = cast %2 to bf16
store buf2[{n}*i0 + i1] = %3
  }}
  return (buf2,)
}}"""


SIZES = {"thin": (16, 8192, 8192), "few": (16, 1024, 4096), "wide": (1024, 4096, 512),
         "odd": (100, 1000, 768), "gradient": (4096, 2816, 1024)}  # fmt: skip


def meant(name: str) -> object:
    """What a text's name of an operator or a type stands for."""
    head, _, rest = name.partition(".")
    return operator.attrgetter(rest if head == "torch" else name)(
        torch if head == "torch" else torch.ops
    )


def recipe(kind: str, sizes: tuple[int, int, int], widely: bool) -> BlockRecipe:
    known = {"slopes": slopes, **{k: partial(call, k) for k in CALLS}}
    text = known.get(kind, partial(program, kind))(*sizes)
    always = Pipeline((TakeTemplates({"cuda": LARGE}, math.inf),))
    made = run_passes(parse(text, resolve=meant), always, check=True)
    (step,) = schedule(made).steps
    assert isinstance(step, Template)
    found = choose(KernelBuilder(made.buffers)(step).plan, Style(widely))
    verify_recipe(found)
    return found


def jobs(kind: str, size: str, widely: bool) -> list[KernelJob]:
    launches = render(recipe(kind, SIZES[size], widely), "kernel").launches
    return [job_of(x, c, H200, likely_variant(x)) for x in launches for c in x.configs]


# The quickest forms of those that an H100 ran: columns of a block, and whether a sum is shared.
@pytest.mark.parametrize(
    ("kind", "sizes", "columns", "shared"),
    [
        ("int8", (64, 4096, 11008), 256, True),
        ("int4", (128, 4096, 4096), 128, True),
        ("int4", (128, 4096, 11008), 128, True),
        ("int4", (128, 11008, 4096), 128, False),
    ],
)
def test_blocks_of_many_rows(
    kind: str, sizes: tuple[int, int, int], columns: int, shared: bool
) -> None:
    """Narrow ones would read the other factor too often, few leave processors idle."""
    first, *others = recipe(kind, sizes, False).kernels
    config = first.configs[0]
    assert first.form == "matmul" and bool(others) is shared
    sides = ("x", "y") if kind == "int4" else ("y", "x")  # packed numbers stand left
    assert (*map(config.block, sides), config.warps) == (sizes[0], columns, 8)


@pytest.mark.parametrize("size", [*SIZES][:4])
@pytest.mark.parametrize("kind", some(["int8", "int8_upright", "int4", *CALLS], 4))
def test_default_configurations(kind: str, size: str, tmp_path: Path) -> None:
    found = jobs(kind, size, False)
    check(submit(found, Cache(tmp_path), 2), found)


def test_what_is_behind_a_product_has_registers(tmp_path: Path) -> None:
    """Blocks of 128 x 256 would leave a thread 128 elements, with five registers each."""
    (binary,) = submit(jobs("slopes", "gradient", False), Cache(tmp_path), 1).wait()
    assert resources(binary.code)[1] < 256  # bytes a thread: 1,800 in such blocks
    (found,) = recipe("slopes", SIZES["gradient"], True).kernels
    elements = {c.block("y") * c.block("x") // (32 * c.warps) for c in found.configs}
    assert max(elements) == 64
    # Such a kernel is no quicker than a library's and one behind it.
    (node, *_) = run_passes(
        parse(slopes(*SIZES["gradient"])), Pipeline((TakeTemplates({"cuda": LARGE}),)), check=True
    ).nodes
    assert isinstance(node, Contraction) and "does not pay" in node.reason


def test_words_at_odd_addresses_are_read_by_bytes(tmp_path: Path) -> None:
    """What is read in words builds where nothing is known of addresses, too."""
    (first, *_) = render(recipe("int4", SIZES["odd"], False), "kernel").launches
    assert first.asks_alignment
    found = [job_of(first, first.configs[0], H200, "general")]
    check(submit(found, Cache(tmp_path), 1), found)


def test_groups_along_a_sum_with_indices_of_64_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "is_wide", lambda plan: True)
    (first, *_) = render(recipe("int4", SIZES["thin"], False), "kernel").launches
    (line,) = (x for x in first.source.splitlines() if "rstart //" in x)
    assert line.strip() == "s64 = litz.i64(rstart // 64)"
    found = [job_of(first, first.configs[0], H200, likely_variant(first))]
    check(submit(found, Cache(tmp_path), 1), found)


@pytest.mark.slow
@pytest.mark.parametrize("size", [*SIZES][:4])
@pytest.mark.parametrize("kind", ["int8", "int4", *CALLS])
def test_all_configurations(kind: str, size: str, tmp_path: Path) -> None:
    found = jobs(kind, size, True)
    assert len(found) > 3
    for job, binary in zip(found, submit(found, Cache(tmp_path), 2).wait(), strict=True):
        assert binary.entry == job.name and binary.shared <= SHARED
