"""The calls of one entry of the operator database, and running batches of them three ways."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo.guards
from sweep_compare import WIDE, agree, aliases, copy_input, difference, widen, widen_integers
from torch.utils import _pytree as pytree

from litz.backend import compile_with
from litz.options import make_options
from litz.stages import Stages

if hasattr(torch._dynamo.guards, "profile_guard_manager"):
    # For a line of its log Dynamo times the guards of each graph on flushed caches: 25 ms, a third
    # of what a small graph costs.
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0

SEEDED = frozenset(
    f"nn.functional.{name}"
    for name in ("dropout", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
)
SEED = "draws the seed of the program's random kernels"
CHECKS = ("forward", "backward", "strided", "inplace", "out", "errors")


@dataclass(frozen=True)
class Case:
    """One call.  args, kwargs: as the operator takes them.  number: which of the samples it is."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int = 0

    def tree(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.args, self.kwargs


@dataclass(frozen=True)
class Place:
    """Where calls run, and of which entry.  target: the option of that name.

    count: whether calls are compiled one by one as well, to count those without ATen.
    """

    device: str = "cpu"
    target: str = ""
    entry: str = ""
    count: bool = True


@dataclass
class Run:
    """What a batch gave.  outs, grads, inputs: per case."""

    outs: list[Any]
    grads: list[Any]
    inputs: list[Any]
    alias: list[Any]


@dataclass
class Seen:
    """Compilations of one batch."""

    stages: list[Stages] = field(default_factory=list)
    breaks: int = 0

    def reasons(self) -> dict[str, str]:
        """Calls of ATen by name, and why each is one."""
        out: dict[str, str] = {}
        if self.breaks or not self.stages:
            out["(graph break)"] = "Dynamo does not trace it"
        for s in self.stages:
            if s.fallback:
                out["(whole graph)"] = s.fallback
            for x in s.externs():
                if x.reason != SEED:  # one number a program, however many kernels draw
                    out.setdefault(x.target_name, x.reason)
        return dict(sorted(out.items()))


def function_of(op: Any, check: str) -> Callable[..., Any] | None:
    """What is called: the operator, or its in-place form (None where there is none)."""
    if check == "inplace":
        return op.get_inplace()
    # The database seeds the generator around these, which no compiled function may.
    name = op.name.removeprefix("nn.functional.")
    if name != op.name and op.name in SEEDED:
        return getattr(torch.nn.functional, name)
    return op.op


def cases(
    op: Any, dtype: torch.dtype, check: str, limit: int, device: str = "cpu", seed: int = 0
) -> list[Case]:
    """Up to ``limit`` (0: all) samples, spread evenly over the operator's own."""
    torch.manual_seed(seed)
    grad = check == "backward"
    own = {} if seed == 0 else {"set_seed": False}  # the database seeds each sample alike
    samples: Iterator[Any] = iter(op.sample_inputs(device, dtype, requires_grad=grad, **own))
    found = list(itertools.islice(samples, 4000))
    if limit and len(found) > limit:
        step = len(found) / limit
        found = [found[int(k * step)] for k in range(limit)]
    if check == "strided":
        found = [s.noncontiguous() for s in found]
    return [Case((s.input, *s.args), dict(s.kwargs), k) for k, s in enumerate(found)]


def with_out(target: Callable[..., Any], case: Case) -> Case | None:
    """The call with ``out=`` tensors for its results; None where it gives other things."""
    args, kwargs = pytree.tree_map(copy_input, case.tree())
    result = target(*args, **kwargs)
    leaves = [result] if isinstance(result, torch.Tensor) else list(result)
    if not all(isinstance(t, torch.Tensor) and t.layout is torch.strided for t in leaves):
        return None
    places = tuple(torch.full(t.shape, 7, dtype=t.dtype, device=t.device) for t in leaves)
    out = places[0] if isinstance(result, torch.Tensor) else places
    return Case(case.args, {**case.kwargs, "out": out})


def error_cases(op: Any, device: str = "cpu") -> list[Case]:
    if op.error_inputs_func is None:
        return []
    torch.manual_seed(0)
    samples = [e.sample_input for e in op.error_inputs(device)]
    return [Case((s.input, *s.args), dict(s.kwargs)) for s in samples]


# --- running -------------------------------------------------------------------------------------


@dataclass
class LitzBackend:
    """The backend, with what it compiles written down in ``seen``."""

    seen: Seen
    place: Place = Place()

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def observe(kind: str, graph: Any, stages: Stages) -> None:
            self.seen.stages.append(stages)

        given = {"check_ir": True, "repro_dir": tempfile.gettempdir(), "target": self.place.target}
        options = make_options(given)
        return compile_with(gm, inputs, options, observe)


def cotangent(x: torch.Tensor) -> torch.Tensor:
    """Fixed, uneven weights of a result, dense in its own shape."""
    n = x.numel()
    weights = torch.linspace(0.5, 1.5, n, dtype=torch.float64, device=x.device).reshape(x.shape)
    return weights.to(x.dtype)


def gradients(outs: Any, inputs: Sequence[Any]) -> list[torch.Tensor | None]:
    leaves = [
        t for t in pytree.tree_leaves(outs) if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if not leaves or not wanted:
        return []
    return list(
        torch.autograd.grad(leaves, wanted, [cotangent(t) for t in leaves], allow_unused=True)
    )


def run(
    target: Callable[..., Any],
    batch: Sequence[Case],
    check: str,
    *,
    backend: Any = None,
    convert: Callable[[Any], Any] = copy_input,
) -> Run:
    """Call ``target`` on copies of all cases (in one compiled function where backend is given)."""

    def every(trees: list[Any]) -> list[Any]:
        return [target(*args, **kwargs) for args, kwargs in trees]

    fn: Callable[..., Any] = every
    if backend is not None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        fn = torch.compile(every, backend=backend, dynamic=False)
    trees = [pytree.tree_map(convert, c.tree()) for c in batch]
    inputs = [pytree.tree_leaves(t) for t in trees]
    torch.manual_seed(0)
    outs = fn(trees)
    alias = aliases(outs, inputs)
    grads: list[Any] = [[] for _ in batch]
    if isinstance(backend, LitzBackend):
        backend.seen.breaks = len(torch._dynamo.utils.counters["graph_break"])
    if check == "backward":
        flat = [x for i in inputs for x in i]
        every_grad = iter(gradients(outs, flat))
        grads = [
            [next(every_grad, None) for x in i if isinstance(x, torch.Tensor) and x.requires_grad]
            for i in inputs
        ]
    return Run(list(outs), grads, inputs, alias)


def compare(mine: Run, eager: Run, exact: Run | None, values: bool) -> str:
    """The first difference between two runs of one batch.  exact: what both are judged by."""
    for k in range(len(eager.outs)):
        ref = exact.outs[k] if exact is not None else None
        found = difference(mine.outs[k], eager.outs[k], ref, values=values)
        if not found and mine.alias[k] != eager.alias[k]:
            found = f"aliases {mine.alias[k]} instead of {eager.alias[k]}"
        if not found:
            ref = exact.grads[k] if exact is not None else None
            found = difference(mine.grads[k], eager.grads[k], ref, values=values, gradient=True)
            found = found and f"gradient: {found}"
        if not found:
            ref = exact.inputs[k] if exact is not None else None
            found = difference(mine.inputs[k], eager.inputs[k], ref, values=values)
            found = found and f"arguments afterwards: {found}"
        if found:
            return f"case {k}: {found}"
    return ""


def exact_run(
    target: Callable[..., Any], batch: Sequence[Case], check: str, eager: Run
) -> Run | None:
    """Eager in twice the precision; None where the operator does not take that."""
    leaves = pytree.tree_leaves([c.tree() for c in batch])
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    integers = not any(x.is_floating_point() or x.is_complex() for x in tensors)
    if not integers and not any(x.dtype in WIDE for x in tensors):
        return None
    try:
        exact = run(target, batch, check, convert=widen_integers if integers else widen)
    except Exception:
        return None
    for k, out in enumerate(eager.outs):
        if integers and not agree(out, exact.outs[k]):
            exact.outs[k] = None
    return exact


def eager_accepts(target: Callable[..., Any], case: Case, check: str) -> bool:
    try:
        run(target, [case], check)
    except Exception:
        return False
    return True
