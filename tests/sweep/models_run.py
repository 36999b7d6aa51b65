"""One task of the sweep: a family in one variant, built, run for a few steps, and judged."""

from __future__ import annotations

import contextlib
import copy
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from models_judge import (
    ROUNDING,
    Found,
    Size,
    Step,
    beyond_sway,
    compare,
    compare_drawn,
    settle,
)
from models_variants import VARIANTS, Variant
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree
from zoo_families import Inputs, Zoo

from litz.backend import compile_with
from litz.options import make_options
from litz.stages import Stages

STEPS = 3
# Other draws of the weights, by which what is beyond its limit is judged.
DRAWS = 6
NUDGES = 8  # of eager's own numbers, see swayed
# Seconds of the first run after which PyTorch's tracing by itself is not repeated.
TRACING = 100.0

# Every state, and whether the sweep is well with it.
STATES: Mapping[str, bool] = {
    "ok": True,
    "chance": True,  # beyond the limit, but not so with other draws
    "eager": True,  # its kernels on the device are wrong, by what the CPU says
    "unjudged": True,  # eager's own numbers are no measure
    "upstream": True,  # aot_eager, which is PyTorch alone, does the same
    "n/a": True,  # the model has no such thing, or eager fails
    "WRONG": False,
    "FAILED": False,
}


@dataclass
class Row:
    """What one task showed; a line of the results.  Errors: Litz's and eager's, the largest."""

    family: str
    variant: str = "fp32"
    device: str = "cpu"
    kind: str = ""
    state: str = "ok"
    graphs: int = 0
    breaks: int = 0
    kernels: int = 0
    externs: int = 0
    fallbacks: int = 0
    forward: tuple[float, float] = (0.0, 0.0)
    gradient: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0
    recompiles: tuple[int, int] = (0, 0)
    """With dynamic shapes: graphs that Dynamo made for Litz and for aot_eager."""
    blind: int = 0
    """Tensors that nothing can be judged by."""
    why: str = ""
    reasons: dict[str, int] = field(default_factory=dict)
    """Why ATen was called, and how often."""

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Graphs, graph breaks, kernel calls, extern calls, graphs left whole to ATen."""
        return self.graphs, self.breaks, self.kernels, self.externs, self.fallbacks

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        known = {f.name for f in fields(cls)}
        row = cls(**{k: v for k, v in data.items() if k in known})
        row.forward, row.gradient = tuple(row.forward), tuple(row.gradient)  # type: ignore
        row.recompiles = tuple(row.recompiles)  # type: ignore
        return row

    def __str__(self) -> str:
        sizes = (f"{a:8.1e} /{b:8.1e}" for a, b in (self.forward, self.gradient))
        numbers = "".join(f"{n:8}" for n in self.counts)
        return (
            f"{self.family:24} {self.variant:18}{numbers}  {'  '.join(sizes)}"
            f"{self.seconds:8.1f}  {self.state} {self.why[:300]}"
        ).rstrip()


HEADER = (
    f"{'family':24} {'variant':18}{'graphs':>8}{'breaks':>8}{'kernels':>8}{'externs':>8}{'ATen':>8}"
    f"  {'forward error/eager':18}  {'gradient error/eager':18}{'seconds':>6}"
)


# --- models and batches ---


class Refused(Exception):
    """The model cannot be had in this variant."""


@dataclass
class Draw:
    """A model and the batch of each step."""

    model: nn.Module
    batches: list[Inputs]


def draw(zoo: Zoo, variant: Variant, device: str, seed: int, dropout: bool | None = None) -> Draw:
    """The same on every device: drawn on the CPU."""
    torch.manual_seed(seed)
    model = zoo.make(variant.dropout if dropout is None else dropout)
    shapes = variant.shapes(zoo.kind, STEPS)
    drawn = [zoo.inputs(model, s) for s in dict.fromkeys(shapes)]
    batches = dict(zip(dict.fromkeys(shapes), drawn, strict=True))
    form = torch.channels_last if variant.channels_last else torch.preserve_format

    def placed(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        x = x.to(device, variant.dtype if x.dtype.is_floating_point else x.dtype)
        return x.to(memory_format=form) if x.dim() == 4 else x

    model = model.to(device, variant.dtype)
    if variant.channels_last:
        model = model.to(memory_format=torch.channels_last)
    model.train(variant.training)
    return Draw(model, [pytree.tree_map(placed, batches[s]) for s in shapes])


def exact_copy(model: nn.Module) -> nn.Module:
    """The model in float64, without kernels that know no such type."""
    exact = copy.deepcopy(model).double()
    for m in exact.modules():
        if hasattr(getattr(m, "config", None), "_experts_implementation"):
            m.config._experts_implementation = "eager"
    return exact


def widen(batch: Inputs) -> Inputs:
    return pytree.tree_map(
        lambda x: x.double() if isinstance(x, Tensor) and x.dtype.is_floating_point else x, batch
    )


def checkpointed(model: nn.Module) -> None:
    """Turn gradient checkpointing on, by whichever name a package gives it."""
    for name, args in (
        ("gradient_checkpointing_enable", ()),  # transformers
        ("set_grad_checkpointing", (True,)),  # timm
        ("enable_gradient_checkpointing", ()),  # diffusers
    ):
        method = getattr(model, name, None)
        if method is not None:
            try:
                method(*args)
            except (ValueError, AssertionError, NotImplementedError) as e:
                raise Refused(f"no gradient checkpointing: {e}") from e
            return
    raise Refused("no gradient checkpointing")


class Side:
    """A model that runs in one way: eagerly, compiled, or in float64."""

    def __init__(
        self, model: nn.Module, variant: Variant, device: str, compiler: Any = None
    ) -> None:
        self.model = model
        self.variant = variant
        self.device = device
        self.call: Callable[..., Any] = model
        self.optimizer: torch.optim.Optimizer | None = None
        self.advance: Callable[[], Any] = lambda: None
        if variant.optimizer:
            self.optimizer = make_optimizer(model, variant.optimizer, device)
            self.advance = self.optimizer.step
        if compiler is not None:
            dynamic = True if variant.dynamic else None
            self.call = torch.compile(model, backend=compiler, dynamic=dynamic)
            step = self.advance
            if self.optimizer is not None:
                self.advance = torch.compile(lambda: step(), backend=compiler)

    def take(self, source: nn.Module) -> None:
        """The numbers of another model like this one; the optimizer begins anew."""
        with torch.no_grad():
            for mine, theirs in (
                *zip(self.model.parameters(), source.parameters(), strict=True),
                *zip(self.model.buffers(), source.buffers(), strict=True),
            ):
                mine.copy_(theirs)
            if self.optimizer is not None:
                for state in self.optimizer.state.values():
                    for x in state.values():
                        if isinstance(x, Tensor):
                            x.zero_()

    def step(self, batch: Inputs, seed: int) -> Step:
        """Forward, and in training backward and the optimizer's step; all draw the same numbers."""
        torch.manual_seed(seed)
        self.model.zero_grad(set_to_none=True)
        cast = self.variant.autocast
        kind = self.device.partition(":")[0]
        with contextlib.ExitStack() as stack:
            if cast is not None and next(self.model.parameters()).dtype is not torch.float64:
                stack.enter_context(torch.autocast(kind, cast))
            if not self.variant.training:
                stack.enter_context(torch.no_grad())
            out = self.call(**batch)
        flat = dict(named(out))
        gradients: dict[str, Tensor] = {}
        if self.variant.training:
            loss_of(flat).backward()
            gradients = {
                k: p.grad.clone() for k, p in self.model.named_parameters() if p.grad is not None
            }
            self.advance()
        # What is in memory of a CUDA graph is overwritten by the next step.
        copies = {k: x.detach().clone() for k, x in flat.items()}
        state = {k: b.detach().clone() for k, b in self.model.named_buffers()}
        weights = {
            k: p.detach().clone()
            for k, p in self.model.named_parameters()
            if self.optimizer is not None
        }
        whole = {k: x for k, x in {**copies, **state}.items() if not is_float(x)}
        return Step(
            {k: x for k, x in copies.items() if is_float(x)},
            gradients,
            {k: x for k, x in state.items() if is_float(x)},
            weights,
            whole,
        )


def make_optimizer(model: nn.Module, name: str, device: str) -> torch.optim.Optimizer:
    if name == "AdamW":
        # As PyTorch advises with CUDA graphs: its count of steps lies on the device.
        return torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=device != "cpu")
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-2)


def is_float(x: Tensor) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex


def named(out: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model's output, whichever form it has."""
    items = out.items() if isinstance(out, Mapping) else (("", out),)
    for key, value in items:
        for k, x in enumerate(pytree.tree_leaves(value)):
            if isinstance(x, Tensor):
                yield f"{key}{k}", x


def loss_of(flat: Mapping[str, Tensor]) -> Tensor:
    """The model's own loss, or a number that all its results are in."""
    if "loss0" in flat:
        return flat["loss0"]
    total = torch.zeros(())
    for x in flat.values():
        if x.requires_grad and x.dtype.is_floating_point:
            wide = x if x.dtype is torch.float64 else x.float()
            weights = torch.linspace(0.5, 1.5, x.numel(), dtype=wide.dtype, device=x.device)
            total = total.to(wide) + (wide * weights.view_as(wide)).mean()
    return total


# --- a task ---


class EagerFails(Exception):
    """What eager cannot run, nobody is asked to."""


class Task:
    """One family in one variant: the sides, and what each draw shows."""

    def __init__(
        self, zoo: Zoo, variant: Variant, device: str, compiler: Any, seed: int = 0
    ) -> None:
        self.zoo, self.variant, self.device, self.seed = zoo, variant, device, seed
        try:
            self.drawn = draw(zoo, variant, device, seed)
        except Exception as e:
            raise Refused(f"it cannot be built: {said(e)}") from e
        model = self.drawn.model
        if variant.checkpoint:
            checkpointed(model)
        self.exact = Side(exact_copy(model), variant, device)
        self.eager = Side(copy.deepcopy(model), variant, device)
        self.mine = Side(model, variant, device, compiler)
        self.still: Side | None = None
        if variant.dropout:
            still = draw(zoo, variant, device, seed, dropout=False).model
            self.still = Side(still, variant, device)
            self.exact = Side(exact_copy(still), variant, device)
            if not random_in(model):
                raise Refused("no dropout")

    def again(self, seed: int) -> None:
        """Other weights and batches, in the same compiled model."""
        self.seed, self.drawn = seed, draw(self.zoo, self.variant, self.device, seed)
        for side in (self.mine, self.eager, self.exact, self.still):
            if side is not None:
                side.take(self.drawn.model)

    def _tried(self, batch: Inputs, seed: int) -> tuple[Step, Exception | None]:
        try:
            return self.mine.step(batch, seed), None
        except Exception as e:
            return Step(), e

    def judge(self) -> Found:
        """Run and compare all steps."""
        found, still = Found(seed=self.seed), Found()
        rounding = self.variant.rounding
        for k, batch in enumerate(self.drawn.batches):
            # Before eager mode, which leaves plans behind: a user of Litz alone meets none.
            mine, failed = self._tried(batch, k + 1)
            try:
                eager = self.eager.step(batch, k + 1)
                exact = self.exact.step(widen(batch), k + 1)
                own = self.still.step(batch, k + 1) if self.still is not None else eager
            except Exception as e:
                raise EagerFails(f"eager: {said(e)}") from e
            if failed is not None:
                raise failed
            if self.still is None:
                compare(mine, eager, exact, rounding, found)
            else:
                compare(own, own, exact, rounding, still)
                compare_drawn(mine, eager, still, rounding, found)
        return found

    def swayed(self, seed: int) -> Found:
        """Eager's own errors where each number of a draw has moved by its last bit.

        Every other time without cuDNN, whose place eager's other kernels take: each choice of
        theirs is eager's own.  RexNet's gradients in float32 err by 5e-5 with it, by 2e-2 without.
        """
        found = Found()
        for n in range(NUDGES):
            self.again(seed)
            drawn = random.Random(n)
            with torch.no_grad():
                for x in (*self.drawn.model.parameters(), *self.drawn.model.buffers()):
                    x.copy_(nudged(x, drawn))
            self.eager.take(self.drawn.model)
            aside = pytree.tree_map(lambda x, drawn=drawn: nudged(x, drawn), self.drawn.batches)
            cudnn = torch.backends.cudnn
            with cudnn.flags(enabled=n % 2 == 0, allow_tf32=cudnn.allow_tf32):
                moved = [self.eager.step(batch, k + 1) for k, batch in enumerate(aside)]
            self.again(seed)
            for k, batch in enumerate(self.drawn.batches):
                eager = self.eager.step(batch, k + 1)
                exact = self.exact.step(widen(batch), k + 1)
                compare(moved[k], eager, exact, self.variant.rounding, found)
        return found


def nudged(x: Any, drawn: random.Random) -> Any:
    """Each floating number one step of its type up or down, about."""
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point:
        return x
    generator = torch.Generator().manual_seed(drawn.randrange(1 << 30))
    sign = torch.randint(0, 2, x.shape, generator=generator).mul(2).sub(1).to(x.device)
    return (x * (1 + sign * torch.finfo(x.dtype).eps)).to(x.dtype)


def random_in(model: nn.Module) -> bool:
    """Whether anything in the model is left out at random."""
    rates = (
        value
        for m in model.modules()
        for key, value in vars(m).items()
        if isinstance(value, float) and (key == "p" or "drop" in key)
    )
    return any(rate > 0 for rate in rates)


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:400]}".replace("\n", " | ")


def run(
    name: str,
    zoo: Zoo,
    seed: int = 0,
    *,
    variant: str = "fp32",
    device: str = "cpu",
    draws: int = 0,
    compiler: str = "",
    **options: Any,
) -> Row:
    """Run one family in one variant; never raises for what the compiler does.

    draws: how many other draws judge what is beyond its limit; none: it is wrong.
    compiler: the name of a backend to be judged in Litz's place.
    """
    how = VARIANTS[variant]
    row = Row(name, variant, device.partition(":")[0], zoo.kind)
    stages: list[Stages] = []
    made = make_options({"check_ir": True, "rng": "eager", **options}, mode=how.mode)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_with(gm, inputs, made, lambda _kind, _graph, s: stages.append(s))

    wrong: dict[str, Size] = {}
    fresh()
    start = time.perf_counter()
    try:
        task = Task(zoo, how, device, compiler or backend, seed)
        first = task.judge()
        count(row, stages)
        wrong = conclude(row, task, first, draws)
        traced = time.perf_counter() - start < TRACING
        if how.dynamic and row.state in ("ok", "chance") and traced and not compiler:
            compare_recompiles(row, zoo, how, device, seed)
    except (Refused, EagerFails) as e:
        row.state, row.why = "n/a", str(e)
    except Exception as e:
        count(row, stages)
        row.state, row.why = "FAILED", said(e)
    if compiler:
        return row
    if wrong and row.device != "cpu" and draws:
        ask_the_host(row, wrong, zoo, how, device, backend, seed)
    if row.state in ("WRONG", "FAILED") and draws:
        ask_upstream(row, wrong, zoo, how, device, seed)
    row.seconds = round(time.perf_counter() - start, 2)
    return row


def run_fairly(name: str, zoo: Zoo, **options: Any) -> Row:
    """The same, and where the errors are too large, whether they are with other weights."""
    return run(name, zoo, draws=DRAWS, **options)


def fresh() -> None:
    """As if nothing had been compiled in this process."""
    torch._dynamo.reset()
    counters.clear()


def count(row: Row, stages: Sequence[Stages]) -> None:
    row.graphs = len(stages)
    row.breaks = sum(counters["graph_break"].values())
    row.kernels = sum(len(k.groups) for s in stages for k in s.kernels)
    row.externs = sum(len(s.externs()) for s in stages)
    row.fallbacks = sum(bool(s.fallback) for s in stages)
    row.recompiles = counters["stats"]["unique_graphs"], 0
    reasons = Counter(f"{x.target_name}: {x.reason}" for s in stages for x in s.externs())
    reasons.update(s.fallback for s in stages if s.fallback)
    row.reasons = dict(reasons)


def conclude(row: Row, task: Task, first: Found, draws: int) -> dict[str, Size]:
    """The state, after as many other draws as it takes; what is wrong."""
    row.forward = first.largest.get("results", (0.0, 0.0))
    row.gradient = first.largest.get("gradients", (0.0, 0.0))
    row.blind = len(first.blind)
    if first.faults:
        row.state, row.why = "WRONG", "; ".join(first.faults[:3])
        return {}
    others = []
    for k in range(draws if first.beyond else 0):
        task.again(k + 1)
        others.append(task.judge())
    wrong, chance = settle(first, others)
    if wrong and others and task.still is None:
        draws = [found for found in [first, *others] if wrong.keys() & found.beyond.keys()]
        left = {k for f in draws for k in beyond_sway(wrong, f, task.swayed(f.seed))}
        chance |= {k: s for k, s in wrong.items() if k not in left}
        wrong = {k: s for k, s in wrong.items() if k in left}
    if wrong:
        row.state, row.why = "WRONG", described(wrong)
    elif first.unjudged:
        row.state, row.why = "unjudged", first.unjudged
    elif chance:
        row.state, row.why = "chance", described(chance)
    return wrong


def described(sizes: Mapping[str, Size]) -> str:
    worst = sorted(sizes.items(), key=lambda item: -item[1].times)
    text = "; ".join(f"{k}: error {s.mine:.1e}, eager's {s.eager:.1e}" for k, s in worst[:3])
    return f"{text}; {len(worst) - 3} more" if len(worst) > 3 else text


def compare_recompiles(row: Row, zoo: Zoo, how: Variant, device: str, seed: int) -> None:
    """Litz's guards may not make more graphs of the same batches than aot_eager's do.

    Not asked behind a run longer than ``TRACING``, as of loops over positions.
    """
    mine = row.recompiles[0]
    fresh()
    drawn = draw(zoo, how, device, seed)
    side = Side(drawn.model, how, device, "aot_eager")
    for k, batch in enumerate(drawn.batches):
        side.step(batch, k + 1)
    row.recompiles = mine, counters["stats"]["unique_graphs"]
    if mine > row.recompiles[1]:
        row.state, row.why = "WRONG", f"{mine} graphs, aot_eager makes {row.recompiles[1]}"


def ask_the_host(
    row: Row,
    wrong: Mapping[str, Size],
    zoo: Zoo,
    how: Variant,
    device: str,
    compiler: Any,
    seed: int,
) -> None:
    """Whether the CPU says that Litz is right and eager's own kernels on the device are not.

    Eager in float64 there would share their faults.
    """
    if how.dropout or how.checkpoint:
        return
    fresh()
    found = Found()
    mine = Side(draw(zoo, how, device, seed).model, how, device, compiler)
    host = draw(zoo, how, "cpu", seed)
    exact = Side(exact_copy(host.model), how, "cpu")
    eager = Side(host.model, how, "cpu")
    try:
        batches = draw(zoo, how, device, seed).batches
        for k, (batch, same) in enumerate(zip(batches, host.batches, strict=True)):
            own = mine.step(batch, k + 1).to("cpu")
            others = eager.step(same, k + 1), exact.step(widen(same), k + 1)
            compare(own, *others, how.rounding, found)
    except Exception:
        return  # what the CPU cannot run says nothing
    sizes = [found.sizes[k] for k in wrong if k in found.sizes]
    if len(sizes) == len(wrong) and not any(s.beyond for s in sizes):
        row.state, row.why = "eager", f"{row.why} (on the CPU eager agrees with Litz)"


def ask_upstream(
    row: Row, wrong: Mapping[str, Size], zoo: Zoo, how: Variant, device: str, seed: int
) -> None:
    """Whether PyTorch alone, without Litz, does the same to this model.

    wrong: where sizes are the fault, those of Litz; without it each must be half as large at least.
    """
    if "aot_eager makes" in row.why:
        return
    fresh()
    found, failed = Found(), ""
    try:
        found = Task(zoo, how, device, "aot_eager", seed).judge()
    except Exception as e:
        failed = said(e)
    rounding = ROUNDING[how.rounding]
    theirs = {k: found.sizes[k].mine for k in wrong if k in found.sizes}
    if row.state == "FAILED":
        same, what = bool(failed), failed
    elif wrong:
        same = all(s.mine <= 2 * theirs.get(k, -1.0) + rounding for k, s in wrong.items())
        what = "; ".join(f"{k}: error {x:.1e}" for k, x in [*theirs.items()][:3])
    else:
        what = "; ".join(found.faults[:3])
        same = row.why == what
    if same:
        row.state, row.why = "upstream", f"{row.why} (aot_eager: {what})"
