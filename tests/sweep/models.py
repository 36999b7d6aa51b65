"""Families of transformers, forward and backward, through Litz: a row each, against eager.

``python -m tests.sweep.models [--list] [--only bert,gpt2] [--kind vision] [--part 0/2]
[--write docs/models.md]``

Small models with random weights train two steps, eagerly and compiled; outputs, all gradients and
all buffers are judged in float64: the error may be twice eager's own, plus rounding.  Where it is
more, other weights are drawn twice: a fault shows with any, while in a model that makes much of
each rounding (cosine attention) either side may have the luck of one draw.  The line then says so.
Exit status 1 when a family is wrong or fails.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from judge import error, widen  # noqa: E402
from model_zoo import FAMILIES, Family  # noqa: E402

from litz.backend import compile_with  # noqa: E402
from litz.compiler import Stages  # noqa: E402
from litz.options import make_options  # noqa: E402

STEPS = 2
# Rounding where eager happens to be exact; gradients and running means that are zero in exact
# arithmetic are noise in eager too, so theirs is relative to the largest of the model.
ROUNDING = 2e-6
NOISE = 1e-6
# An error of eager's own that no rounding explains: nothing can be judged by it.
UNLIKE = 0.1

INTRO = """\
# Models

Families of transformers through `torch.compile(backend="litz")`: small models with random weights
train two steps, and outputs, gradients and buffers are judged in float64 beside eager's. Written
by `python -m tests.sweep.models --write docs/models.md`.

Graphs counts forward and backward; kernels are calls of Litz's own; externs are calls of ATen and
of other libraries (matrix products, convolutions, attention). Errors are the largest relative ones
of a tensor, Litz's and eager's. *Chance*: more than twice eager's, but not with two other draws of
the weights; the errors are the first's.

| family | kind | model | graphs | breaks | kernels | externs | forward error | eager's \
| gradient error | eager's | result |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


@dataclass
class Row:
    """What one family's run showed.  Errors are relative to float64: Litz's and eager's."""

    family: str
    kind: str
    stages: list[Stages] = field(default_factory=list)
    breaks: int = 0
    forward: tuple[float, float] = (0.0, 0.0)
    gradient: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    failed: str = ""
    chance: bool = False

    @property
    def state(self) -> str:
        if self.failed or not self.faults:
            return "FAILED" if self.failed else "ok"
        return "chance" if self.chance else "WRONG"

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Graphs, graph breaks, kernel calls, extern calls, graphs left whole to ATen."""
        kernels = sum(len(k.groups) for s in self.stages for k in s.kernels)
        externs = sum(len(s.externs()) for s in self.stages)
        fallbacks = sum(bool(s.fallback) for s in self.stages)
        return len(self.stages), self.breaks, kernels, externs, fallbacks

    def markdown(self) -> str:
        """A line of the table in the documentation."""
        numbers = [str(n) for n in self.counts[:4]]
        errors = [f"{x:.1e}" for x in (*self.forward, *self.gradient)]
        cells = [self.family, self.kind, FAMILIES[self.family].model, *numbers, *errors, self.state]
        return f"| {' | '.join(cells)} |\n"

    def __str__(self) -> str:
        errors = (f"{a:8.1e} /{b:8.1e}" for a, b in (self.forward, self.gradient))
        numbers = "".join(f"{n:8}" for n in self.counts)
        why = self.failed or "; ".join(self.faults[:3])
        return (
            f"{self.family:16} {self.kind:16}{numbers}  {'  '.join(errors)}"
            f"{self.seconds:8.1f}  {self.state} {why}"
        ).rstrip()


HEADER = (
    f"{'family':16} {'kind':16}{'graphs':>8}{'breaks':>8}{'kernels':>8}{'externs':>8}{'ATen':>8}"
    f"  {'forward error/eager':18}  {'gradient error/eager':18}{'seconds':>6}"
)


@dataclass(frozen=True)
class Step:
    """One training step: floating results, gradients and floating buffers after it, by name."""

    results: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    integers: Mapping[str, Tensor]


def train(call: Callable[..., Any], model: nn.Module, batch: Mapping[str, Any]) -> Step:
    """Forward and backward of ``call``, which runs ``model``; all draw the same numbers."""
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    out = dict(call(**batch).items())
    flat = [
        (f"{key}{k}", x)
        for key, value in out.items()
        for k, x in enumerate(pytree.tree_leaves(value))
        if isinstance(x, Tensor)
    ]
    loss = out.get("loss")
    if loss is None:
        loss = sum(
            (x * torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).view_as(x)).mean()
            for _, x in flat
            if x.requires_grad
        )
    loss.backward()
    gradients = {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}
    state = {k: b.detach().clone() for k, b in model.named_buffers()}
    return Step(
        {k: x.detach() for k, x in flat if x.dtype.is_floating_point},
        gradients,
        {k: b for k, b in state.items() if b.dtype.is_floating_point},
        {k: x for k, x in (*flat, *state.items()) if not x.dtype.is_floating_point},
    )


def compare(
    mine: Mapping[str, Tensor],
    eager: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    faults: list[str],
    noise: float = 0.0,
) -> tuple[float, float]:
    """The largest errors, Litz's and eager's; appends to ``faults`` what is wrong.

    noise: an absolute norm below which a difference means nothing.
    """
    # Across graph breaks AOTAutograd gives zeros for a gradient that eager does not have.
    extra = {k for k, v in mine.items() if k not in eager and v.any()}
    if extra or not mine.keys() >= eager.keys():
        faults.append(f"other names: {sorted(extra or eager.keys() - mine.keys())[:3]}")
        return float("inf"), 0.0
    worst = worst_eager = 0.0
    for key, e in eager.items():
        a, r = mine[key], exact[key]
        if e.isfinite().all() and not r.isfinite().all():
            r = e  # masks of the smallest float32 give nan in float64
        if (a.dtype, a.shape, a.stride()) != (e.dtype, e.shape, e.stride()):
            faults.append(f"{key}: {a.dtype} {a.shape} {a.stride()}, eager's {e.stride()}")
        x, y = error(a, r), error(e, r)
        if UNLIKE < y < float("inf") and r.norm().item() > noise:
            faults.append(f"{key}: eager's own error is {y:.1e}")
        # How far the noise reaches, relative to this tensor.
        reach = noise / max(r.norm().item(), 1e-30)
        if not x <= 2 * y + ROUNDING + reach:
            faults.append(f"{key}: error {x:.1e}, eager's {y:.1e}")
        if reach < 1e-2:
            worst, worst_eager = max(worst, x), max(worst_eager, y)
    return worst, worst_eager


def judge(row: Row, mine: Step, eager: Step, exact: Step) -> None:
    """Compare one step with eager's in float64, into ``row``."""
    faults = row.faults
    norms = [g.norm().item() for g in exact.gradients.values()]
    scale = max((x for x in norms if math.isfinite(x)), default=0.0)
    forward = compare(mine.results, eager.results, exact.results, faults)
    gradient = compare(mine.gradients, eager.gradients, exact.gradients, faults, NOISE * scale)
    size = max((b.norm().item() for b in exact.buffers.values()), default=0.0)
    compare(mine.buffers, eager.buffers, exact.buffers, faults, NOISE * size)
    for key, e in eager.integers.items():
        if not torch.equal(mine.integers[key], e):
            faults.append(f"{key} differs")
    row.forward = (max(row.forward[0], forward[0]), max(row.forward[1], forward[1]))
    row.gradient = (max(row.gradient[0], gradient[0]), max(row.gradient[1], gradient[1]))


def run(name: str, family: Family, seed: int = 0, **options: Any) -> Row:
    """Train one family for a few steps; never raises for what the compiler does."""
    row = Row(name, family.kind)
    torch.manual_seed(seed)
    model, batch = family.build()
    plain, exact = copy.deepcopy(model), exact_copy(model)
    wide = {k: widen(v) for k, v in batch.items()}

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def observe(kind: str, graph: Any, stages: Stages) -> None:
            row.stages.append(stages)

        made = make_options({"check_ir": True, "rng": "eager", **options})
        return compile_with(gm, inputs, made, observe)

    torch._dynamo.reset()
    counters.clear()
    start = time.perf_counter()
    try:
        compiled = torch.compile(model, backend=backend)
        for _ in range(STEPS):
            mine = train(compiled, model, batch)
            judge(row, mine, train(plain, plain, batch), train(exact, exact, wide))
    except Exception as e:
        row.failed = f"{type(e).__name__}: {str(e)[:400]}".replace("\n", " | ")
    row.seconds = time.perf_counter() - start
    row.breaks = sum(counters["graph_break"].values())
    return row


def run_fairly(name: str, family: Family, **options: Any) -> Row:
    """The same, and where the errors are too large, whether they are with other weights."""
    row = run(name, family, **options)
    if row.state == "WRONG":
        others = (run(name, family, seed, **options) for seed in (1, 2))
        row.chance = all(other.state == "ok" for other in others)
    return row


def exact_copy(model: nn.Module) -> nn.Module:
    """The model in float64, without kernels that know no such type."""
    exact = copy.deepcopy(model).double()
    for m in exact.modules():
        if hasattr(getattr(m, "config", None), "_experts_implementation"):
            m.config._experts_implementation = "eager"
    return exact


def chosen(args: argparse.Namespace) -> dict[str, Family]:
    """The families that the command line asks for.  Exits with the names when one is unknown."""
    only = [x for x in args.only.split(",") if x]
    unknown = [x for x in only if x not in FAMILIES]
    if unknown:
        sys.exit(f"no family {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    k, n = map(int, args.part.split("/"))
    names = only or [f for f, v in FAMILIES.items() if args.kind in ("", v.kind)]
    return {name: FAMILIES[name] for name in names[k::n]}


def totals(rows: Sequence[Row]) -> str:
    states = Counter(r.state for r in rows)
    whole = sum(not r.failed and not r.breaks for r in rows)
    graphs, breaks, kernels, externs, fallbacks = (
        sum(column) for column in zip(*(r.counts for r in rows), strict=True)
    )
    return (
        f"{len(rows)} families: {states['ok']} ok, {states['chance']} by chance beyond twice "
        f"eager's error, {states['WRONG']} wrong, "
        f"{states['FAILED']} failed; {whole} without a graph break; {graphs} graphs, "
        f"{breaks} breaks, {kernels} kernel calls, {externs} extern calls, "
        f"{fallbacks} graphs whole in ATen"
    )


def print_totals(rows: Sequence[Row]) -> None:
    print(f"\n{totals(rows)}; {sum(r.seconds for r in rows):.0f} s")
    reasons = Counter(
        f"{x.target_name}: {x.reason}" for r in rows for s in r.stages for x in s.externs()
    )
    reasons.update(s.fallback for r in rows for s in r.stages if s.fallback)
    print("extern calls by reason:")
    for reason, count in reasons.most_common(30):
        print(f"{count:7} x {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="families, comma separated")
    parser.add_argument("--kind", default="", help="encoder, decoder, vision, speech, ...")
    parser.add_argument("--list", action="store_true", help="the families, and no run")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th family from the k-th")
    parser.add_argument("--target", default="", help="the option of that name")
    parser.add_argument("--write", default="", help="a file for the table, as in docs/models.md")
    args = parser.parse_args()
    families = chosen(args)
    if args.list:
        for name, f in families.items():
            print(f"{name:16} {f.kind:16} {f.model}")
        return 0
    warnings.simplefilter("ignore")
    print(HEADER)
    rows: list[Row] = []
    for name, f in families.items():
        rows.append(run_fairly(name, f, target=args.target))
        print(rows[-1], flush=True)
    print_totals(rows)
    if args.write:
        table = "".join(r.markdown() for r in rows)
        Path(args.write).write_text(f"{INTRO}{table}\n{totals(rows)}.\n")
    return 0 if all(r.state in ("ok", "chance") for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
