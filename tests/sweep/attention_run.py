"""One case of the attention sweep: eager, float64 and Litz beside each other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sweep_cases as sc
import torch
from attention_cases import Spec
from attention_programs import Leaves, around, lengths_of, make_leaves, program
from sweep_compare import (
    EPS,
    ULPS,
    ULPS_OF_EAGER,
    copy_input,
    difference,
    layout_difference,
    norm_errors,
    widen,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from litz.backend import compile_with
from litz.options import make_options
from litz.stages import Stages

NOTHING = 1e-12  # of the largest gradient's norm: zero in exact arithmetic
# By norm, where elements are dropped and float64 cannot judge.  It is what eager's memory-efficient
# backward has between two runs, whose sums are in no fixed order.
NEAR = 4e-6
DRAWS = 6  # of other numbers, where an error is larger than eager's


@dataclass
class Row:
    """What became of a case.

    state: ok, refused (eager and Litz alike), upstream (``aot_eager`` differs from eager in the
    same way) or FAIL.  kernel: what eager runs; mine: what Litz's graph calls of ATen's attention.
    """

    case: str
    state: str = "ok"
    detail: str = ""
    kernel: str = ""
    mine: str = ""
    breaks: int = 0
    seconds: float = 0.0
    device: str = "cpu"
    machine: str = ""
    versions: str = ""
    date: str = ""


@dataclass
class Call:
    """What one call gave."""

    outs: Any
    grads: list[Any]
    inputs: list[Any]


@dataclass
class Backend:
    """Litz, with what it compiles written down."""

    target: str = ""
    stages: list[Stages] = field(default_factory=list)

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def observe(kind: str, graph: Any, stages: Stages) -> None:
            self.stages.append(stages)

        given = {
            "check_ir": True,
            "rng": "eager",  # the same elements are dropped
            "repro_dir": tempfile.gettempdir(),
            "target": self.target,
        }
        return compile_with(gm, inputs, make_options(given), observe)

    def attention(self) -> set[str]:
        names = (x.target_name for s in self.stages for x in s.externs())
        return {_short(n) for n in names if _is_attention(n)}


class _Seen(TorchDispatchMode):
    """The attention operators that eager runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_attention(str(func)):
            self.names.add(_short(str(func)))
        return func(*args, **(kwargs or {}))


def _is_attention(name: str) -> bool:
    return "attention" in name and "_math" not in name


def _short(name: str) -> str:
    return name.removeprefix("aten.").removesuffix(".default").removesuffix("_backward")


# --- running -------------------------------------------------------------------------------------


def calls(
    spec: Spec,
    fn: Callable[[Leaves], Any],
    arguments: Sequence[Leaves],
    convert: Callable[[Any], Any] = copy_input,
    *,
    forced: bool = True,
) -> list[Call]:
    """Call ``fn`` on copies of each, with gradients where the case has them."""
    found = []
    for leaves in arguments:
        x = {name: convert(t) for name, t in leaves.items()}
        torch.manual_seed(3)
        with torch.set_grad_enabled(spec.mode != "no_grad"):
            if forced:
                with around(spec):
                    outs = fn(x)
                    grads = sc.gradients(outs, list(x.values())) if spec.grad else []
            else:
                outs = fn(x)
                grads = sc.gradients(outs, list(x.values())) if spec.grad else []
        found.append(Call(outs, grads, list(x.values())))
    return found


def compiled(spec: Spec, backend: Any) -> Callable[[Leaves], Any]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    dynamic = spec.mode.startswith("dynamic")
    return torch.compile(program(spec), backend=backend, dynamic=dynamic)


def reference(spec: Spec, arguments: Sequence[Leaves]) -> list[Call] | None:
    """The same in float64; none where other elements would be dropped."""
    if spec.dropout != "0":
        return None
    try:
        return calls(spec, program(spec, exact=True), arguments, widen, forced=False)
    except Exception:
        return None


def compare(mine: list[Call], eager: list[Call], exact: list[Call] | None) -> str:
    """The first difference of all calls.  exact: those in float64, if they can judge."""
    for n, (a, e) in enumerate(zip(mine, eager, strict=True)):
        r = exact[n] if exact is not None else None
        found = difference(a.outs, e.outs, r.outs if r else None)
        if not found:
            same = without_noise(a.grads, e.grads, r.grads) if r else as_near(a.grads, e.grads)
            found = difference(same, e.grads, r.grads if r else None, gradient=True)
            found = found and f"gradient: {found}"
        if not found:
            found = difference(a.inputs, e.inputs)
            found = found and f"arguments afterwards: {found}"
        if found:
            return f"call {n}: {found}"
    return ""


def without_noise(mine: list[Any], eager: list[Any], exact: list[Any]) -> list[Any]:
    """Gradients, with eager's own for those that are zero in exact arithmetic.

    Where one key is seen, the weight is 1 whatever the query: what is left of its gradient is
    rounding of the others, here and in eager, and counts by its size beside theirs.
    """
    norms = [float(z.norm()) if isinstance(z, torch.Tensor) else 0.0 for z in exact]
    largest = max(norms, default=0.0)
    found = list(mine)
    for k, (a, e) in enumerate(zip(mine, eager, strict=True)):
        if norms[k] > NOTHING * largest or a is None or e is None or layout_difference(a, e):
            continue
        if float(a.double().norm()) <= ULPS_OF_EAGER * EPS[e.dtype] * largest:
            found[k] = e
    return found


def as_near(mine: list[Any], eager: list[Any]) -> list[Any]:
    """Gradients, with eager's own for those that are as near, by norm, as its next would be."""
    found = list(mine)
    for k, (a, e) in enumerate(zip(mine, eager, strict=True)):
        if a is None or e is None or layout_difference(a, e) or e.dtype is not torch.float32:
            continue
        if float((a - e).double().norm()) <= NEAR * float(e.double().norm()):
            found[k] = e
    return found


def by_chance(spec: Spec, device: str, target: str) -> bool:
    """Whether over several draws the total error is at most twice eager's, as ``sweep_luck``."""
    totals: dict[int, list[float]] = {}
    for seed in range(1, DRAWS + 1):
        arguments = [make_leaves(spec, n, device, seed) for n in lengths_of(spec)]
        try:
            eager = calls(spec, program(spec), arguments)
            exact = reference(spec, arguments)
            mine = calls(spec, compiled(spec, Backend(target)), arguments)
        except Exception:
            return False
        floor = ULPS_OF_EAGER if exact is None else ULPS
        trees = [[(c.outs, c.grads) for c in x] for x in (mine, eager, exact or eager)]
        leaves = zip(*map(pytree.tree_leaves, trees), strict=True)
        for k, (a, e, r) in enumerate(x for x in leaves if isinstance(x[1], torch.Tensor)):
            if layout_difference(a, e):
                return False
            total = totals.setdefault(k, [0.0, 0.0, 0.0])
            for i, error in enumerate((*norm_errors(a, e, r), floor * EPS.get(e.dtype, 0.0))):
                total[i] += error
    return all(mine <= 2 * theirs + floor for mine, theirs, floor in totals.values())


def run_case(spec: Spec, device: str, target: str = "") -> Row:
    """Judge a case.  Never raises for what eager or the compiler does."""
    row = Row(spec.key)
    start = time.monotonic()
    try:
        _run_case(spec, device, target, row)
    finally:
        row.seconds = round(time.monotonic() - start, 2)
    return row


def _run_case(spec: Spec, device: str, target: str, row: Row) -> None:
    arguments = [make_leaves(spec, n, device) for n in lengths_of(spec)]
    refused = ""
    try:
        eager = calls(spec, program(spec), arguments)
    except Exception as e:
        refused = f"{type(e).__name__}: {str(e).strip().splitlines()[0][:160]}"
        eager = []
    backend = Backend(target)
    try:
        mine = calls(spec, compiled(spec, backend), arguments)
        said = ""
    except Exception as e:
        mine = []
        said = f"{type(e).__name__}: {' '.join(str(e).split())[:400]}"
    row.breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    if refused:
        row.state, row.detail = "refused", refused
        if not said:
            row.state, row.detail = "FAIL", f"no error, where eager says {refused}"
            row.state = "upstream" if _aot_eager(spec, arguments) else "FAIL"
        return
    exact = reference(spec, arguments)
    found = said or compare(mine, eager, exact)
    if not found:
        found = _other_kernel(spec, arguments, backend, row)
    if not found:
        return
    row.state, row.detail = "FAIL", found
    if "error " in found and not said and by_chance(spec, device, target):
        row.state, row.detail = "ok", f"by chance: {found}"
        return
    theirs = _aot_eager(spec, arguments)
    if theirs is not None and not said:
        if compare(theirs, eager, exact)[:24] == found[:24]:
            row.state = "upstream"
    elif theirs is None and said:
        row.state = "upstream"


def without_litz(spec: Spec, device: str, traced: bool) -> None:
    """Run a case in eager, or as Dynamo and AOTAutograd alone make of it."""
    arguments = [make_leaves(spec, n, device) for n in lengths_of(spec)]
    try:
        calls(spec, compiled(spec, "aot_eager") if traced else program(spec), arguments)
    except Exception:
        pass  # refused; whether the process lives is another question


def _aot_eager(spec: Spec, arguments: Sequence[Leaves]) -> list[Call] | None:
    """What torch.compile gives with ATen alone behind it; None where it raises."""
    try:
        return calls(spec, compiled(spec, "aot_eager"), arguments)
    except Exception:
        return None


def _other_kernel(spec: Spec, arguments: Sequence[Leaves], mine: Backend, row: Row) -> str:
    """Whether the compiled graph runs another attention kernel than eager; fills the row."""
    seen = _Seen()
    try:
        with seen:
            calls(spec, program(spec), arguments)
    except Exception:
        return ""  # what runs by itself need not under a mode
    row.kernel = ", ".join(sorted(seen.names)) or "arithmetic"
    row.mine = ", ".join(sorted(mine.attention())) or "arithmetic"
    if row.kernel == row.mine or row.breaks or any(s.fallback for s in mine.stages):
        return ""
    return f"runs {row.mine} instead of eager's {row.kernel}"
