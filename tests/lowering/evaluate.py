"""A slow reference evaluator of programs in torch ops, and helpers that lower and judge functions.

``lower_fn`` traces a function to functional ATen calls and lowers them; ``run_program`` computes
what the program means, point by point and vectorised over each nest's axes; ``check`` compares the
result with eager, with eager in float64 as the judge; ``check_training`` does so for outputs and
gradients, through AOTAutograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import aot_function, make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from litz.ir.program import Extern, HostFloat, Loops, Program, Template
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.passes.pipeline import pipeline, run_passes
from tests.lowering.evaluate_nodes import Memory, run_loops, size_of

Tensor = torch.Tensor
Ops = Mapping[str, Callable[..., Tensor]]


# --- tracing and lowering ------------------------------------------------------------------------


def _detached(args: Sequence[Any]) -> list[Any]:
    return [a.detach() if isinstance(a, Tensor) else a for a in args]


def lowered(gm: torch.fx.GraphModule, settings: Settings | None = None) -> Program:
    """The program of a graph, behind the program passes."""
    settings = settings or Settings()
    return run_passes(lower_graph(gm, settings), pipeline(settings.blocks, {}), check=True)


def trace(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> torch.fx.GraphModule:
    """The functional ATen graph that AOTAutograd makes of ``fn`` for inference."""

    def capture(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        raise _Captured(gm)

    try:
        aot_function(fn, fw_compiler=capture, dynamic=dynamic)(*_detached(args))
    except _Captured as found:
        return found.graph
    raise AssertionError("nothing was compiled")


def trace_ops(fn: Callable[..., Any], *args: Any) -> torch.fx.GraphModule:
    """The graph of exactly the ops that ``fn`` calls: AOTAutograd takes some of them apart."""
    gm = make_fx(lambda *xs: pytree.tree_leaves(fn(*xs)), tracing_mode="fake")(*args)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


class _Captured(Exception):
    """Carries a graph out of AOTAutograd, so that it isn't run."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__("a graph")
        self.graph = graph


def lower_fn(
    fn: Callable[..., Any], *args: Any, dynamic: bool = False, settings: Settings | None = None
) -> Program:
    """Trace and lower ``fn``; arguments are tensors (or numbers, baked in)."""
    return lowered(trace(fn, *args, dynamic=dynamic), settings)


# --- running -------------------------------------------------------------------------------------


def run_program(program: Program, inputs: Sequence[Any], ops: Ops | None = None) -> list[Any]:
    """Evaluate a program on real inputs; returns its outputs in order.

    ops: meanings of primitive ops beyond (or instead of) the evaluator's own, by name.
    """
    memory = Memory(program)
    for name, value in zip(program.inputs, inputs, strict=True):
        if isinstance(value, Tensor):
            memory.bind(name, value)
    for name, value in program.constants.items():
        if isinstance(value, Tensor):
            memory.bind(name, value)
    for sym, position, dim in program.symbols:
        value = inputs[position]
        memory.sizes[sym] = int(value) if dim is None else int(value.shape[dim])
    for node in program.nodes:
        if isinstance(node, Loops | Template):
            run_loops(node, memory, ops or {})
        else:
            _run_extern(node, memory)
    return [memory.resolve(o) for o in program.outputs]


def _run_extern(call: Extern, memory: Memory) -> None:
    args = [memory.resolve(a) for a in call.args]
    kwargs = {k: memory.resolve(v) for k, v in call.kwargs}
    target: Any = call.target
    if call.out_variant:
        (name,) = call.outputs
        assert name is not None
        target(*args, **kwargs, out=memory.whole(name))
        return
    out = target(*args, **kwargs)
    results = (out,) if call.single else tuple(out)
    for name, value in zip(call.outputs, results, strict=True):
        if name is not None:
            memory.bind(name, value)
    for position, number in call.symbols:
        if isinstance(number, HostFloat):
            memory.floats[number] = float(results[position])
        else:
            memory.sizes[number] = int(results[position])
    for sym, position, dim in call.sizes:
        memory.sizes[sym] = int(results[position].shape[dim])
    for expected, position, dim in call.checks:
        assert results[position].shape[dim] == memory.size(expected)


# --- judging -------------------------------------------------------------------------------------


def extern_names(program: Program) -> list[str]:
    """What the program leaves to ATen: ``name: reason``, in order."""
    externs = [n for n in program.nodes if isinstance(n, Extern) and not n.is_number]
    return [f"{n.target_name}: {n.reason}" for n in externs]


def nests(program: Program) -> int:
    """How many loop nests the program has."""
    return sum(isinstance(n, Loops | Template) for n in program.nodes)


def to_double(value: Any) -> Any:
    """Float tensors as float64, everything else as it is."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().to(torch.float64).requires_grad_(value.requires_grad)
    return value


def same_strides(a: Tensor, b: Tensor) -> bool:
    """Whether strides agree where they matter (dimensions longer than 1, non-empty tensors)."""
    if a.numel() == 0:
        return True
    return all(x == y for x, y, s in zip(a.stride(), b.stride(), a.shape, strict=True) if s > 1)


def compare(got: Any, eager: Any, judge: Any, *, ulps: float = 2, what: str = "") -> None:
    """Assert that ``got`` has eager's type and layout, and is as near to ``judge`` (float64).

    ulps: slack in units of the result's epsilon, on top of twice eager's own largest error.
    """
    if not isinstance(eager, Tensor):
        assert got == eager, f"{what}: {got} != {eager}"
        return
    assert got.dtype == eager.dtype, f"{what}: dtype {got.dtype}, eager {eager.dtype}"
    assert got.shape == eager.shape, f"{what}: shape {got.shape}, eager {eager.shape}"
    assert same_strides(got, eager), f"{what}: strides {got.stride()}, eager {eager.stride()}"
    if not eager.is_floating_point():
        assert torch.equal(got, eager), f"{what}: {got} != {eager}"
        return
    g, e, r = (x.detach().to(torch.float64) for x in (got, eager, judge))
    finite = e.isfinite()
    same = (g == e) | (g.isnan() & e.isnan())
    odd = ~(same | (finite & g.isfinite()))
    assert not bool(odd.any()), (
        f"{what}: special values: {got[odd][:4]} where eager has {eager[odd][:4]}"
    )
    both = finite & r.isfinite()
    eps = torch.finfo(eager.dtype).eps
    slack = ulps * (eps * r.abs() + torch.finfo(eager.dtype).smallest_normal * eps)
    if eager.dtype == torch.float64 and bool(both.any()):
        # The judge is eager itself: allow what another order of the same steps may lose.
        slack = 32 * slack + 4 * eps * r.abs()[both].max()
    worst = (e - r).abs()[both].max() if bool(both.any()) else torch.zeros(())
    error = (g - r).abs()
    bad = both & ~(error <= slack + 2 * worst)
    assert not bool(bad.any()), (
        f"{what}: error {error[bad].max()} where eager's is {worst}: "
        f"{got[bad][:4]} for {r[bad][:4]} (eager {eager[bad][:4]})"
    )


def compare_exactly(got: Any, eager: Any, what: str = "") -> None:
    """Assert that ``got`` has eager's type, layout and values (any nan for a nan)."""
    assert got.dtype == eager.dtype and got.shape == eager.shape, f"{what}: {got} for {eager}"
    assert same_strides(got, eager), f"{what}: strides {got.stride()}, eager {eager.stride()}"
    same = (
        (got == eager) | (got.isnan() & eager.isnan())
        if eager.is_floating_point()
        else (got == eager)
    )
    assert bool(same.all()), f"{what}: {got[~same][:4]} for {eager[~same][:4]} of {same.numel()}"


def compare_all(got: Any, eager: Any, judge: Any, *, ulps: float = 2) -> None:
    """``compare`` for each leaf of nested results."""
    g, e, r = (pytree.tree_leaves(x) for x in (got, eager, judge))
    assert len(g) == len(e) == len(r), f"{len(g)} results, eager gives {len(e)}"
    for k, (a, b, c) in enumerate(zip(g, e, r, strict=True)):
        compare(a, b, c, ulps=ulps, what=f"result {k}")


def check(
    fn: Callable[..., Any],
    *args: Any,
    dynamic: bool = False,
    externs: Sequence[str] = (),
    ulps: float = 2,
    judge: Callable[..., Any] | None = None,
    exact: bool = False,
    as_called: bool = False,
    ops: Ops | None = None,
    settings: Settings | None = None,
) -> Program:
    """Lower ``fn``, evaluate it and compare with eager; returns the program.

    externs: printed names of ops that are expected to be left to ATen (each at least once).
    judge: what to run in float64, where ``fn`` names a dtype itself.
    exact: the results must be eager's to the bit.
    as_called: lower exactly the ops that ``fn`` calls (see ``trace_ops``).
    """
    programs: list[Program] = []

    def compiler(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        program = lowered(gm, settings)
        programs.append(program)
        return make_boxed_func(lambda *xs: run_program(program, xs, ops))

    args = tuple(_detached(args))
    if as_called:
        got = compiler(trace_ops(fn, *args), ())([a for a in args if isinstance(a, Tensor)])
    else:
        got = pytree.tree_leaves(aot_function(fn, fw_compiler=compiler, dynamic=dynamic)(*args))
    (program,) = programs
    left = extern_names(program)
    assert all(any(e in name for e in externs) for name in left), f"left to ATen: {left}"
    assert all(any(e in name for name in left) for e in externs), f"left to ATen: {left}"
    eager = fn(*args)
    if exact:
        for k, (a, b) in enumerate(zip(got, pytree.tree_leaves(eager), strict=True)):
            compare_exactly(a, b, f"result {k}")
    else:
        truth = (judge or fn)(*(to_double(a) for a in args))
        compare_all(got, eager, truth, ulps=ulps)
    return program


def check_training(
    fn: Callable[..., Any],
    *args: Any,
    dynamic: bool = False,
    externs: Sequence[str] = (),
    ulps: float = 2,
    seed: int = 0,
    ops: Ops | None = None,
    settings: Settings | None = None,
) -> list[Program]:
    """Outputs and gradients of ``fn`` through AOTAutograd; returns the programs in order."""
    programs: list[Program] = []

    def compiler(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        program = lowered(gm, settings)
        programs.append(program)
        return make_boxed_func(lambda *xs: run_program(program, xs, ops))

    compiled = aot_function(fn, fw_compiler=compiler, bw_compiler=compiler, dynamic=dynamic)
    eager = _with_gradients(fn, args, seed)
    exact = _with_gradients(fn, tuple(to_double(a) for a in args), seed)
    got = _with_gradients(compiled, args, seed)
    left = [name for p in programs for name in extern_names(p)]
    assert all(any(e in name for e in externs) for name in left), f"left to ATen: {left}"
    compare_all(got, eager, exact, ulps=ulps)
    return programs


def _with_gradients(fn: Callable[..., Any], args: tuple[Any, ...], seed: int) -> list[Any]:
    """Results of ``fn`` and gradients for its float arguments, from fixed random cotangents."""
    leaves = [
        a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args
    ]
    results = [r for r in pytree.tree_leaves(fn(*leaves)) if isinstance(r, Tensor)]
    gen = torch.Generator().manual_seed(seed)
    outs = [r for r in results if r.requires_grad]
    cotangents = []
    for r in outs:
        noise = torch.randn(r.shape, generator=gen, dtype=torch.float32)
        g = torch.empty_strided(r.shape, r.stride(), dtype=r.dtype)
        # bf16 keeps few bits: every run, the float64 one too, gets the same values.
        cotangents.append(g.copy_(noise.to(torch.bfloat16)))
    wanted = [a for a in leaves if isinstance(a, Tensor) and a.requires_grad]
    grads = torch.autograd.grad(outs, wanted, cotangents, allow_unused=True) if wanted else ()
    return [*results, *(g for g in grads if g is not None)]


__all__ = [
    "check",
    "check_training",
    "compare",
    "compare_all",
    "compare_exactly",
    "extern_names",
    "lower_fn",
    "nests",
    "run_program",
    "size_of",
    "trace",
    "trace_ops",
]
