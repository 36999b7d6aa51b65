"""Sweeps of the float functions: error in ulp and time, over random or over all 2^32 arguments.

``python tests/ops/ops_sweep.py [--exhaustive] [--write docs/math.md] [NAME ...]`` prints the table.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from dataclasses import dataclass
from pathlib import Path

import ops_reference as ref
import torch
from ops_harness import TORCH, build, call, source, symbol
from ops_samples import moderate, random_bits, specials

from litz.ir import dtype as dt
from litz.ir.dtype import DType
from litz.ir.ops import OPS, OpRow, cpp_header

# What the C library calls the function; of those that it has not, ours of double is the judge.
LIBRARY = {
    "sigmoid": "1 / (1 + ::exp(-x))",
    "rsqrt": "1 / ::sqrt(x)",
    "erfinv": "litz::erfinv(x)",
    "digamma": "litz::digamma(x)",
}

_EXHAUSTIVE = """
#include <{header}>
#include <litz/rare.h>
extern "C" {{ double {function}(double) noexcept; double sqrt(double) noexcept; }}
static double truth(double x) {{ return {truth}; }}
static double error(float got, double want) {{
  using namespace litz;
  if (got == want || (got != got && want != want)) return 0;
  bool over = __builtin_fabs(want) > 0x1.fffffep127 && __builtin_isinf(got);
  if (over && (got > 0) == (want > 0)) return 0;
  int e = (int)(bitcast<u64>(want) >> 52 & 0x7ff) - 1023;
  double d = __builtin_fabs(got - want) / __builtin_ldexp(1.0, e - 23 < -149 ? -149 : e - 23);
  return d == d ? d : inf64;
}}
extern "C" void sweep(long n, double* worst) {{
  using namespace litz;
  double most = 0;
  u32 where_ = 0;
#pragma omp parallel
  {{
    double mine = 0;
    u32 at = 0;
#pragma omp for schedule(dynamic, 1)
    for (i64 block = 0; block < n / 65536; block++) {{
      for (i64 i = block * 65536; i < (block + 1) * 65536; i += 16) {{
        auto x = bitcast<float>(iota<16>((u32)i));
        float in[16], out[16];
        store(in, x);
        store(out, litz::{name}(x));
        for (int j = 0; j < 16; j++) {{
          double e = error(out[j], truth(in[j]));
          if (e > mine) mine = e, at = (u32)i + j;
        }}
      }}
    }}
#pragma omp critical
    if (mine > most) most = mine, where_ = at;
  }}
  worst[0] = most;
  worst[1] = (double)bitcast<float>(where_);
}}
"""


@dataclass(frozen=True)
class Result:
    """The largest error seen (ulp), where, over how many arguments."""

    name: str
    worst: float
    at: float
    count: int


def unary_rows() -> list[OpRow]:
    """The approximated functions of one float."""
    return [r for r in OPS.values() if r.kinds == ("f",) and r.ulp and not r.takes_dtype]


def binary_rows() -> list[OpRow]:
    return [r for r in OPS.values() if r.kinds == ("f", "f") and r.ulp]


def exhaustive(row: OpRow) -> Result:
    """Every float there is, against the C library in double."""
    function = row.name if row.name not in LIBRARY else "exp"
    text = _EXHAUSTIVE.format(
        header=cpp_header(row.name, dt.F32),
        function=function,
        truth=LIBRARY.get(row.name, f"::{row.name}(x)"),
        name=row.name,
    )
    worst = torch.zeros(2, dtype=torch.float64)
    call(build(text), "sweep", worst, n=1 << 32)
    return Result(row.name, float(worst[0]), float(worst[1]), 1 << 32)


def arguments(dtype: DType, count: int, seed: int) -> torch.Tensor:
    """Special values, random bits, everyday numbers and the neighbourhood of 1."""
    generator = torch.Generator().manual_seed(seed)
    near = torch.rand(count // 4, generator=generator, dtype=torch.float64) * 2
    parts = [
        specials(dtype),
        random_bits(dtype, count // 2, seed),
        moderate(dtype, count // 4, seed),
    ]
    x = torch.cat([*parts, near.to(TORCH[dtype])])
    return x[: len(x) - len(x) % 16].contiguous()


def sampled(
    row: OpRow, dtype: DType, count: int, form: str = "v16", arch: str = "native"
) -> Result:
    """About ``count`` arguments, against a wider type."""
    args = [arguments(dtype, count, 11 + i) for i in range(row.arity)]
    if row.arity == 2:
        args[1] = args[1].roll(count // 8)
    out = torch.empty_like(args[0])
    name = f"{symbol(row, dtype, None)}_{form}"
    call(build(source([(row, dtype, None)]), arch), name, *args, out)
    error = ref.ulp_error(out, ref.truth(row, args))
    i = int(error.argmax())
    return Result(row.name, float(error[i]), float(args[0][i]), len(out))


def nanoseconds(row: OpRow, dtype: DType = dt.F32) -> float:
    """Time of 16 results, the argument and the result in the first cache."""
    library = build(source([(row, dtype, None)]))
    args = [torch.rand(4096, dtype=TORCH[dtype]) * 0.9 + 0.05 for _ in range(row.arity)]
    if row.name == "acosh":
        args[0] += 1
    out = torch.empty_like(args[0])
    function = getattr(library, f"{symbol(row, dtype, None)}_v16")
    function.restype = None
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*args, out)]
    best = float("inf")
    for _ in range(300):
        start = time.perf_counter()
        function(ctypes.c_int64(4096), *pointers)
        best = min(best, time.perf_counter() - start)
    return best / (4096 / 16) * 1e9


def table(names: list[str], everything: bool) -> str:
    lines = [
        "| function | f32: bound | worst seen | at | f64: bound | worst seen | ns / 16 f32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in [*unary_rows(), *binary_rows()]:
        if names and row.name not in names:
            continue
        full = everything and row.arity == 1
        single = exhaustive(row) if full else sampled(row, dt.F32, 1 << 20)
        mark = "" if full else " (sampled)"
        double = (
            f"{row.ulp64} | {sampled(row, dt.F64, 1 << 12).worst:.2f}" if row.ulp64 else "- | -"
        )
        lines.append(
            f"| {row.name} | {row.ulp} | {single.worst:.3f}{mark} | {single.at:.9g} "
            f"| {double} | {nanoseconds(row):.1f} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


TEXT = """# Accuracy of the math functions

Errors of Litz's C++ functions against the true value, in units in the last place (ulp) of the
result. Half an ulp is the rounding itself. The f32 column covers all 2^32 arguments unless marked
as sampled (about a million: special values, random bits, everyday numbers); f64 is sampled. The
bounds hold on machines with fused multiply-add, with half as much again elsewhere. Time is for 16
results in the first cache on the machine that wrote this page.

f32 functions carry their own rounding errors where those would show, or run in double; scalar and
vector forms give the same bits. `rsqrt` is `1 / sqrt(x)`, as eager has it. Functions without a
claim (`-`) are as accurate as eager's, which has no bound near their zeros.

On GPUs the functions are those of CUDA's library as Triton brings it, and bitwise eager's where
PyTorch was built with the same one. CUDA 13's are more exact: beside it asin and acos are up
to 1.9 times eager's error (2.2e-7 relative). Of f32 powers and atan are Litz's own there: of powers
1.09 ulp is the worst seen (eager's 0.90), over seven ranges of a million pairs each, of atan 2.

To make this page again: `python tests/ops/ops_sweep.py --exhaustive --write docs/math.md`.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    text = TEXT + table(options.names, options.exhaustive) + "\n"
    if options.write:
        options.write.parent.mkdir(exist_ok=True)
        options.write.write_text(text)


if __name__ == "__main__":
    main()
