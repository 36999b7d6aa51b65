"""``python -m benchmarks.gpu.matmul``: matrix products and what is around them, on a GPU.

Each case runs in eager mode, as Litz compiles it and, with ``--peer``, as the peer does; times are
medians of replays of CUDA graphs on a cold last-level cache, in turns.  What the columns mean:

us           of a replay; "kernel" says who computed the product for Litz: the template or ATen
x eager, x   how many times faster than eager, and than the peer, Litz is
library      with ``--library``: ATen's product, and fused kernels for what is around it
right        ok: the result lies at most twice as far from float64 as eager's does

``--take always`` has every product run as a template, which shows what the choice is worth;
``--take never`` none.  ``--blocks 16x128x64w8s4p4,..`` runs each case with these blocks of rows,
columns and sum, warps, stages and programs that share a sum, in turn: what a default could be
(of packed weights and many rows those of the result turned over, and words of four along the sum).
Cases that ``--out FILE`` holds already are not run again.  ``--jobs N`` has as many processes
compile and judge the cases, before any is timed: the 60 shapes take less than a minute then.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.arguments import described, names
from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.clock import Clock, Replay, clock_of

BF16 = torch.bfloat16
SLACK = 2.0


@dataclass(frozen=True)
class Case:
    """fn: of the tensors that ``make`` gives on a device.  exact: the same, of float64 tensors."""

    name: str
    fn: Callable[..., Tensor]
    make: Callable[[str], tuple[Tensor, ...]]
    exact: Callable[..., Tensor] | None = None


@dataclass(frozen=True)
class Row:
    """Times in microseconds; errors relative to float64."""

    name: str
    kernel: str
    eager: float
    litz: float
    peer: float | None
    error: float
    eager_error: float
    first: float
    library: float | None = None

    @property
    def right(self) -> bool:
        return self.error <= SLACK * self.eager_error + 1e-7


# --- cases ----------------------------------------------------------------------------------------


def plain(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return torch.sigmoid(F.linear(x, w, b)) * r


def int8(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * s


def int8_upright(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return x @ w.to(x.dtype) * s


def int4(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """Two in a byte, the lower bits first; a scale for a group of neighbours."""
    n, half = w.shape
    low, high = (w & 15).to(torch.int8) - 8, (w >> 4).to(torch.int8) - 8
    wide = torch.stack([low, high], -1).reshape(n, 2 * half).to(x.dtype)
    return F.linear(x, (wide.view(n, s.shape[1], -1) * s[:, :, None]).view(n, 2 * half))


E4 = torch.float8_e4m3fn


def fp8(x: Tensor, w: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """Scales of rows and of columns."""
    fast = torch._scaled_mm(x, w.t(), a, b, bias=bias, out_dtype=BF16, use_fast_accum=True)
    return F.gelu(fast)


def fp8_exact(x: Tensor, w: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return F.gelu((x @ w.t()) * a * b + bias)


def fp8_quantised(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """What activations become 8 bits by is part of it."""
    a = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
    q = (x.float() / a).clamp(-448, 448).to(E4)
    return F.silu(torch._scaled_mm(q, w.t(), a, b, out_dtype=BF16, use_fast_accum=True))


def fp8_quantised_exact(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.to(BF16)
    a = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
    q = (x.float() / a).clamp(-448, 448).to(E4)
    return F.silu((q.double() * a.double()) @ w.t() * b)


def fp8_weight(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Weights alone are of 8 bits."""
    return F.linear(x, w.to(x.dtype)) * b.flatten()


def dynamic(x: Tensor, w: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """Products of bytes, scaled by rows and columns."""
    return (torch._int_mm(x, w.t()) * a * b).to(BF16) + bias


def dynamic_exact(x: Tensor, w: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return (x.double() @ w.t().double()) * a * b + bias


def packed(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.silu(torch.ops.aten._weight_int8pack_mm(x, w, s))


def packed_exact(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.silu(x @ w.double().t() * s)


def experts(x: Tensor, w: Tensor, ends: Tensor, gate: Tensor) -> Tensor:
    """Rows in groups of their own weights, and a gate behind them."""
    return F.silu(torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)) * gate


def experts_exact(x: Tensor, w: Tensor, ends: Tensor, gate: Tensor) -> Tensor:
    begins = [0, *ends.tolist()[:-1]]
    parts = zip(begins, ends.tolist(), w, strict=True)
    return F.silu(torch.cat([x[a:b] @ own.t() for a, b, own in parts])) * gate


def conv(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, w, b) + r)


def floats(device: str, *shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=device) * scale).to(BF16)


def bytes_of(device: str, *shape: int, dtype: torch.dtype = torch.int8) -> Tensor:
    least, end = (0, 256) if dtype is torch.uint8 else (-128, 128)
    return torch.randint(least, end, shape, device=device, dtype=dtype)


def kinds(m: int, n: int, k: int) -> Mapping[str, Case]:
    """The cases of one shape."""

    def with_weight(*others: Callable[[str], Tensor]) -> Callable[[str], tuple[Tensor, ...]]:
        return lambda d: (
            floats(d, m, k),
            floats(d, n, k, scale=k**-0.5),
            *(make(d) for make in others),
        )

    def bias(d: str) -> Tensor:
        return floats(d, n)

    made: dict[str, tuple[Callable[..., Tensor], Callable[[str], tuple[Tensor, ...]]]] = {
        "plain": (plain, with_weight()),
        "gelu": (gelu, with_weight(bias)),
        "residual": (residual, with_weight(bias, lambda d: floats(d, m, n))),
        "int8": (int8, lambda d: (floats(d, m, k), bytes_of(d, n, k), bias(d))),
        "int8u": (int8_upright, lambda d: (floats(d, m, k), bytes_of(d, k, n), bias(d))),
        "int4": (
            int4,
            lambda d: (
                floats(d, m, k),
                bytes_of(d, n, k // 2, dtype=torch.uint8),
                floats(d, n, k // 128),
            ),
        ),
    }
    shape = f"{m}x{n}x{k}"
    return {kind: Case(f"{kind} {shape}", fn, make) for kind, (fn, make) in made.items()}


def scales(device: str, *shape: int) -> Tensor:
    return torch.rand(shape, device=device) / 64 + 0.01


def called(m: int, n: int, k: int, groups: int = 8) -> Mapping[str, Case]:
    """Cases of one shape whose products are calls of operators."""

    def eights(d: str) -> tuple[Tensor, Tensor]:
        return floats(d, m, k).to(E4), floats(d, n, k).to(E4)

    def both(d: str) -> tuple[Tensor, Tensor]:
        return scales(d, m, 1), scales(d, 1, n)

    def tokens(d: str) -> tuple[Tensor, ...]:
        cuts = torch.sort(torch.randint(0, m + 1, (groups - 1,), device=d)).values
        ends = torch.cat([cuts, torch.tensor([m], device=d)]).to(torch.int32)
        return floats(d, m, k), floats(d, groups, n, k, scale=k**-0.5), ends, floats(d, m, n)

    shape = f"{m}x{n}x{k}"
    return {
        "fp8": Case(
            f"fp8 {shape}", fp8, lambda d: (*eights(d), *both(d), floats(d, n)), fp8_exact
        ),
        "fp8q": Case(
            f"fp8q {shape}", fp8_quantised,
            lambda d: (floats(d, m, k), eights(d)[1], scales(d, 1, n)), fp8_quantised_exact,
        ),
        "fp8w": Case(
            f"fp8w {shape}", fp8_weight, lambda d: (floats(d, m, k), eights(d)[1], floats(d, 1, n))
        ),
        "dynamic": Case(
            f"dynamic {shape}", dynamic,
            lambda d: (bytes_of(d, m, k), bytes_of(d, n, k), *both(d), floats(d, n)), dynamic_exact,
        ),
        "int8pack": Case(
            f"int8pack {shape}", packed,
            lambda d: (floats(d, m, k), bytes_of(d, n, k), floats(d, n)), packed_exact,
        ),
        "experts": Case(f"experts {groups} of {shape}", experts, tokens, experts_exact),
    }  # fmt: skip


def images(count: int, side: int, inner: int, outer: int) -> Case:
    """A convolution with a kernel of one element, channels last."""

    def last(d: str, channels: int) -> Tensor:
        made = floats(d, count, channels, side, side)
        return made.contiguous(memory_format=torch.channels_last)

    return Case(
        f"conv {count}x{side}x{side} {inner} to {outer}", conv,
        lambda d: (
            last(d, inner), floats(d, outer, inner, 1, 1, scale=inner**-0.5), floats(d, outer),
            last(d, outer),
        ),
    )  # fmt: skip


WIDE = ((4096, 4096), (11008, 4096), (4096, 11008), (3072, 768), (768, 3072))


def cases() -> Iterator[Case]:
    """Three that goals name, 60 shapes with and without something around them, and ``more``."""
    goal = kinds(16, 8192, 8192)
    yield from (goal["int8"], goal["int8u"], goal["int4"])
    for m in (1, 16, 64):
        for n, k in WIDE:
            found = kinds(m, n, k)
            yield found["gelu"]
            yield found["int8" if k != 768 else "residual"]
    for m in (16, 128):
        for n, k in WIDE[:3]:
            yield kinds(m, n, k)["int4"]
    for m in (128, 512, 2048, 8192):
        for n, k in WIDE:
            found = kinds(m, n, k)
            yield found["gelu" if m != 512 else "residual"]
    for m, n, k in ((1000, 1000, 1000), (300, 500, 700), (4096, 4096, 512), (8192, 1024, 64)):
        yield kinds(m, n, k)["gelu"]
    yield from more()


def more() -> Iterator[Case]:
    """Products that are calls of operators."""
    for m, n, k in ((16, 8192, 8192), (64, 4096, 4096), (2048, 4096, 4096), (8192, 8192, 4096)):
        found = called(m, n, k)
        yield from (found["fp8"], found["fp8q"])
        if m <= 64:
            yield from (found["fp8w"], found["int8pack"])
        if m > 16:
            yield found["dynamic"]
    for m, n, k, groups in ((16, 2048, 4096, 8), (512, 2048, 4096, 8), (4096, 4096, 4096, 64)):
        yield called(m, n, k, groups)["experts"]
    for side, inner, outer in ((56, 64, 256), (28, 128, 512), (14, 256, 1024), (7, 512, 2048)):
        yield images(32, side, inner, outer)


# --- measuring ------------------------------------------------------------------------------------


class Take:
    """A program pass that has all products run as templates, or none."""

    def __init__(self, always: bool) -> None:
        self.always = always

    def uuid(self) -> str:
        return f"benchmarks.gpu.matmul {self.always}"

    def __call__(self, program: Any) -> Any:
        from litz.ir.program import Contraction
        from litz.passes.choose import ChooseContractions, TakeTemplates, template
        from litz.passes.costs import LARGE

        if not self.always:
            return ChooseContractions()(program)
        program = TakeTemplates({"cpu": LARGE, "cuda": LARGE}, math.inf)(program)
        made = (template(program, n) if isinstance(n, Contraction) else n for n in program.nodes)
        return replace(program, nodes=tuple(made))


def forced(blocks: str) -> ExitStack:
    """A context in which matrix products have one form: ``16x128x64w8s4p4``."""
    from litz.kernel.blocks import matmul
    from litz.kernel.blocks.recipe import Config

    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)w(\d+)s(\d+)p(\d+)", blocks)
    if found is None:
        raise ValueError(f"{blocks!r} is none like 16x128x64w8s4p4")
    y, x, r, warps, stages, parts = map(int, found.groups())
    config = Config((("y", y), ("x", x), ("r", r)), warps, stages)
    made = ExitStack()
    made.enter_context(mock.patch.object(matmul, "_configs", lambda *_: (config,)))
    step = 8 * r  # places of the sum: blocks of packed numbers count in bytes or words
    each = lambda _, inner: (parts, -(-inner // (parts * step)) * step)  # noqa: E731
    made.enter_context(mock.patch.object(matmul, "_parts", each))
    return made


def double(args: Sequence[Tensor]) -> list[Tensor]:
    return [a.double() if a.is_floating_point() else a for a in args]


def distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def who(fn: Callable[..., Any], args: Sequence[Tensor], options: dict[str, Any]) -> str:
    """Who computes a case's product for Litz, and with which blocks by default."""
    import litz
    from litz.ir.program import Template

    (graph,) = litz.explain(fn, *args, options=options).graphs
    assert graph.stages.schedule is not None
    steps = graph.stages.schedule.steps
    if not any(isinstance(s, Template) for s in steps):
        return f"ATen +{len(steps) - 1}"
    kernels = [k for s in graph.stages.kernels for k in s.recipe.kernels]
    blocks = next(k.configs[0] for k in kernels if k.form == "matmul")
    sizes = "x".join(str(n) for _, n in blocks.blocks)
    return f"{sizes} w{blocks.warps} s{blocks.stages} of {len(kernels)}"


@dataclass(frozen=True)
class Seen:
    """What needs no quiet machine: who computes a product, how exactly, and the first call."""

    kernel: str
    error: float
    eager_error: float
    first: float


def options_of(args: argparse.Namespace, blocks: str) -> dict[str, Any]:
    """Litz's, of what is asked for."""
    own: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs"} if args.tune else {}
    if args.device == "cpu":
        own["target"] = "triton"  # interpreted: of use for results alone
    if args.take != "chosen":
        own["before_program_passes"] = Take(args.take == "always")
    if blocks or args.take == "never":
        own["graph_cache"] = False
    return own


def compilers(case: Case, args: argparse.Namespace, blocks: str) -> dict[str, Callable[..., Any]]:
    """The case as Litz compiles it and as it is compared with, by names of columns."""
    own = options_of(args, blocks)
    litz = partial(torch.compile, case.fn, backend="litz", dynamic=False)
    made = {"litz": litz(options=own)}
    if args.library:
        apart = {**own, "before_program_passes": Take(False), "graph_cache": False}
        made["library"] = without_templates(litz(options=apart))
    if args.peer:
        mode = "max-autotune-no-cudagraphs" if args.peer == "max-autotune" else None
        made["peer"] = torch.compile(case.fn, backend="inductor", dynamic=False, mode=mode)
    return made


def without_templates(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A function that compiles with products by libraries alone."""

    def call(*given: Tensor) -> Any:
        with mock.patch("litz.passes.choose.opened", lambda *_: None):
            return compiled(*given)

    return call


def forms(args: argparse.Namespace, blocks: str) -> ExitStack:
    """A context in which products have the form that is asked for."""
    stack = forced(blocks) if blocks else ExitStack()
    if args.take == "never":
        stack.enter_context(mock.patch("litz.passes.choose.opened", lambda *_: None))
    return stack


def seen(case: Case, args: argparse.Namespace, blocks: str = "") -> Seen:
    """Compile a case every way, which fills the caches, and judge what Litz makes of it."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    given = case.make(args.device)
    exact = (case.exact or case.fn)(*double(given))
    with forms(args, blocks):
        made = compilers(case, args, blocks)
        start = time.perf_counter()
        error = distance(made["litz"](*given), exact)
        first = time.perf_counter() - start
        for name in made.keys() - {"litz"}:
            made[name](*given)
        kernel = who(case.fn, given, options_of(args, blocks))
    return Seen(kernel, error, distance(case.fn(*given), exact), first)


def run_case(
    case: Case, clock: Clock, args: argparse.Namespace, blocks: str = "", known: Seen | None = None
) -> Row:
    """known: of the case, where it was compiled and judged before."""
    known = known or seen(case, args, blocks)
    torch.manual_seed(0)
    torch._dynamo.reset()
    given = case.make(args.device)
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: case.fn(*given)}
    with forms(args, blocks):
        for name, compiled in compilers(case, args, blocks).items():
            compiled(*given)
            calls[name] = partial(compiled, *given)
    if args.device == "cuda":
        calls = {name: Replay(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.rounds):
        for name, call in calls.items():
            times[name] += clock.measure(call, 0.02, 10)
    us = {name: 1e6 * statistics.median(t) for name, t in times.items()}
    errors = known.error, known.eager_error
    ours = us["eager"], us["litz"], us.get("peer")
    return Row(case.name, known.kernel, *ours, *errors, known.first, us.get("library"))


def prepared(which: int, blocks: str, args: argparse.Namespace) -> Seen | str:
    """``seen`` of one of ``cases``, in a process of its own; the text of what went wrong."""
    try:
        backend_called("litz")
        return seen([*cases()][which], args, blocks)
    except Exception as e:
        return f"{type(e).__name__}: {e}"


# --- the table ------------------------------------------------------------------------------------


def mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def table(rows: Sequence[Row]) -> str:
    others = "library", "peer"
    head = (
        f"{'case':40}{'kernel':>26}{'eager':>9}{'litz':>9}{'library':>9}{'peer':>9}{'x eager':>9}"
        f"{'x':>7}{'x':>7}  right"
    )
    lines = [head]
    for r in rows:
        given = [getattr(r, name) for name in others]
        times = ["-" if t is None else f"{t:.1f}" for t in given]
        ahead = ["-" if t is None else f"{t / r.litz:.2f}" for t in given]
        right = "ok" if r.right else f"WRONG {r.error:.1e} {r.eager_error:.1e}"
        lines.append(
            f"{r.name:40}{r.kernel:>26}{r.eager:9.1f}{r.litz:9.1f}{times[0]:>9}{times[1]:>9}"
            f"{r.eager / r.litz:9.2f}{ahead[0]:>7}{ahead[1]:>7}  {right}"
        )
    for name in ("eager", *others):
        ratios = [t / r.litz for r in rows if (t := getattr(r, name)) is not None]
        if ratios:
            lines.append(f"x {name}: geometric mean {mean(ratios):.3f}, least {min(ratios):.3f}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = described("gpu.matmul", __doc__)
    parser.add_argument("--only", type=names, default=(), help="cases whose names contain one")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--peer", choices=("default", "max-autotune"), help="measure the peer too")
    parser.add_argument("--library", action="store_true", help="measure ATen's products too")
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile before")
    parser.add_argument("--take", choices=("chosen", "always", "never"), default="chosen")
    parser.add_argument("--tune", action="store_true", help="max_autotune for Litz")
    parser.add_argument("--blocks", type=names, default=("",), help="forms to force, in turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=460, metavar="SECONDS", help="of the run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="rows as JSON, one a line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; the exit status is 1 where a result is not right or a case failed."""
    args = parse(arguments)
    backend_called("litz")
    start, rows, failed = time.monotonic(), [], False
    if args.out and args.out.exists():
        rows = [Row(**json.loads(line)) for line in args.out.read_text().splitlines()]
    done = {r.name for r in rows}
    clock = clock_of(args.device)
    todo = [
        (k, replace(c, name=f"{c.name} {b}".strip()), b)
        for k, c in enumerate(cases())
        for b in args.blocks
        if not args.only or any(x in c.name for x in args.only)
    ]
    todo = [x for x in todo if x[1].name not in done]
    known: dict[str, Seen | str] = {}
    if args.jobs:
        with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
            made = {c.name: pool.submit(prepared, k, b, args) for k, c, b in todo}
            known = {name: f.result() for name, f in made.items()}
        print(f"compiled in {time.monotonic() - start:.0f} s", file=sys.stderr)
    if args.device == "cuda":
        gc.collect()
        gc.freeze()  # what is imported is not looked at before each time
    for _, case, blocks in todo:
        if time.monotonic() - start > args.limit:
            print("out of time; run it again with the same --out", file=sys.stderr)
            break
        try:
            if isinstance(have := known.get(case.name), str):
                raise RuntimeError(have)
            rows.append(run_case(case, clock, args, blocks, have))
        except Exception as e:  # one case is no reason to lose the others
            print(f"{case.name}: {type(e).__name__}: {e}"[:2000], file=sys.stderr)
            failed = True
            continue
        if args.out:
            with args.out.open("a") as f:
                f.write(json.dumps(asdict(rows[-1])) + "\n")
    print(table(rows))
    return int(failed or not all(r.right for r in rows))


if __name__ == "__main__":
    sys.exit(main())
