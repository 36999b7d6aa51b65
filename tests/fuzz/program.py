"""A random program as data: inputs with their layouts, steps in order, results; and as source."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("uint8", "int8", "int16", "int32", "int64")
EDGES = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-40, 1.0, -1.5, 3e4, -65504.0)


@dataclass(frozen=True)
class Input:
    """One tensor argument.  Its memory is ``offset`` elements, the tensor, and a few behind it.

    order: dimensions from the outermost in memory to the innermost.  step: distance of neighbours
    in the innermost.  gap: elements between rows.  still: dimensions of stride 0.
    values: ``normal``, ``edges`` (nan, inf, ...), ``small``, ``wide`` (ints), ``index:N`` (below
    N), ``unique:N`` (below N, no two alike).
    grad: whether a gradient is wanted.
    share: position of an earlier input whose memory this one is a view of, or -1.
    device: the type of the device that programs are compared on; they are made on the CPU.
    keep: dimensions whose size is the same in a second call of other sizes.
    """

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()
    step: int = 1
    gap: int = 0
    still: tuple[int, ...] = ()
    offset: int = 0
    values: str = "normal"
    seed: int = 0
    grad: bool = False
    share: int = -1
    device: str = "cpu"
    keep: tuple[int, ...] = ()

    @property
    def stride(self) -> tuple[int, ...]:
        strides = [0] * len(self.shape)
        at = self.step
        for n, d in enumerate(reversed(self.order or tuple(range(len(self.shape))))):
            if d in self.still:
                continue
            strides[d] = at
            at = at * max(self.shape[d], 1) + (self.gap if n == 0 else 0)
        return tuple(strides)

    @property
    def room(self) -> int:
        """Elements of the memory, with three behind the last that nobody may touch."""
        last = sum((s - 1) * st for s, st in zip(self.shape, self.stride, strict=True) if s)
        return self.offset + last + 4


@dataclass(frozen=True)
class Draw:
    """How a step goes by random numbers, of which a compiled program draws others than eager.

    The numbers that it drew are read off its result: ``seen`` of that, ``{0}``.  ``gives``: what
    the step then has to give: of its arguments and, behind them, what was seen.
    low, high: bounds of the numbers.  mean, spread: of their distribution, if that is checked.
    """

    seen: str
    gives: str
    low: float = -float("inf")
    high: float = float("inf")
    mean: float | None = None
    spread: float = 0.0

    @property
    def pure(self) -> bool:
        """Whether the result is the numbers themselves."""
        return self.seen == "{0}"


@dataclass(frozen=True)
class Step:
    """One line: ``text`` with ``{k}`` for the k-th of ``args`` (values are numbered in order).

    kind: how far the result may differ between two correct implementations:
      view      the elements of an argument, in its memory or not;
      exact     correctly rounded: equal arguments give equal bits;
      rough     within rounding (transcendental functions, sums);
      discrete  exact, and wants exact arguments: a small error there is a large one here;
      cast      discrete, of floats in the result's range;
      drawn     random numbers, the same bits wherever the program reads them.
    under: ``no_grad``, or ``autocast`` and a type: what it runs under.
    writes: how many arguments, from the first on, are changed in place.
    A text that starts with ``!`` is a statement, and its value is its first argument.
    """

    text: str
    args: tuple[int, ...]
    kind: str = "exact"
    writes: int = 0
    under: str = ""
    draw: Draw | None = None


@dataclass(frozen=True)
class Program:
    """inputs, then steps: one value each; ``results`` are returned.

    others: the same inputs in other sizes, for a second call (then sizes are dynamic).
    rng: Litz's option of this name.
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    others: tuple[Input, ...] = ()
    rng: str = "litz"

    @property
    def grad(self) -> bool:
        return any(i.grad for i in self.inputs)

    @property
    def draws(self) -> dict[int, Draw]:
        """Of the steps that draw random numbers, by the number of their value."""
        return {k: s.draw for k, s in enumerate(self.steps, len(self.inputs)) if s.draw is not None}

    @property
    def with_draws(self) -> Program:
        """The program with all that it draws among its results."""
        hidden = tuple(k for k in self.draws if k not in self.results)
        return replace(self, results=(*self.results, *hidden)) if hidden else self


def merged(programs: Sequence[Program]) -> Program:
    """Independent programs as one."""
    inputs: list[Input] = []
    others: list[Input] = []
    maps: list[dict[int, int]] = []
    for p in programs:
        at = len(inputs)
        maps.append({k: at + k for k in range(len(p.inputs))})
        inputs += [replace(i, share=i.share + at if i.share >= 0 else -1) for i in p.inputs]
        again = p.others or p.inputs
        others += [replace(i, share=i.share + at if i.share >= 0 else -1) for i in again]
    steps: list[Step] = []
    results: list[int] = []
    for p, numbers in zip(programs, maps, strict=True):
        for k, s in enumerate(p.steps):
            numbers[len(p.inputs) + k] = len(inputs) + len(steps)
            steps.append(replace(s, args=tuple(numbers[a] for a in s.args)))
        results += [numbers[r] for r in p.results]
    dynamic = any(p.others for p in programs)
    second = others if dynamic else []
    rng = programs[0].rng if programs else "litz"
    return Program(tuple(inputs), tuple(steps), tuple(results), tuple(second), rng)


# --- source --------------------------------------------------------------------------------------

_NAMED = re.compile(r"torch\.(float16|bfloat16|float32)\b")


def line(step: Step, names: Sequence[str]) -> str:
    return step.text.lstrip("!").format(*(names[a] for a in step.args))


def source(p: Program, name: str = "f", *, exact: bool = False) -> str:
    """The program as a Python function.  exact: float types that it names become float64."""
    names = [f"a{k}" for k in range(len(p.inputs))]
    out = [f"def {name}({', '.join(names)}):"]
    device = p.inputs[0].device if p.inputs else "cpu"
    under = ""
    for k, s in enumerate(p.steps):
        if s.under and s.under != under:
            out.append(f"    with {_manager(s.under, device)}:")
        under = s.under
        lead = "        " if under else "    "
        if s.text.startswith("!"):
            out.append(f"{lead}{line(s, names)}")
            names.append(names[s.args[0]])
        else:
            names.append(f"v{k}")
            out.append(f"{lead}v{k} = {line(s, names)}")
    out.append(f"    return ({', '.join(names[r] for r in p.results)},)")
    text = "\n".join(out) + "\n"
    return _NAMED.sub("torch.float64", text) if exact else text


def _manager(under: str, device: str) -> str:
    kind, _, dtype = under.partition(" ")
    return f"torch.autocast({device!r}, torch.{dtype})" if kind == "autocast" else "torch.no_grad()"


def entered(under: str, exact: bool) -> AbstractContextManager[Any]:
    """What a step runs under.  exact: in float64, which autocast leaves alone."""
    if under == "no_grad":
        return torch.no_grad()
    if not under or exact:
        return nullcontext()
    device = torch.get_default_device().type
    return torch.autocast(device, getattr(torch, under.partition(" ")[2]))


SPACE: dict[str, Any] = {"torch": torch, "F": F, "inf": float("inf"), "nan": float("nan")}


def function(p: Program, *, exact: bool = False) -> Callable[..., Any]:
    space = dict(SPACE)
    exec(compile(source(p, exact=exact), "<fuzz>", "exec"), space)
    made: Callable[..., Any] = space["f"]
    return made


@lru_cache(maxsize=4096)
def one_step(text: str, arity: int, exact: bool) -> Callable[..., Any]:
    """A step's text as a function of its arguments (of a statement: None)."""
    names = ", ".join(f"x{k}" for k in range(arity))
    body = text.lstrip("!").format(*(f"x{k}" for k in range(arity)))
    if exact:
        body = _NAMED.sub("torch.float64", body)
    lead = "" if text.startswith("!") else "return "
    space = dict(SPACE)
    exec(f"def step({names}):\n    {lead}{body}", space)
    made: Callable[..., Any] = space["step"]
    return made


# --- tensors -------------------------------------------------------------------------------------


def _fill(i: Input) -> torch.Tensor:
    """The elements of the memory in order."""
    g = torch.Generator().manual_seed(i.seed)
    dtype: torch.dtype = getattr(torch, i.dtype)
    n = i.room
    what, _, top = i.values.partition(":")
    if what == "index":
        return torch.randint(0, max(int(top), 1), (n,), generator=g).to(dtype)
    if dtype is torch.bool:
        return torch.rand(n, generator=g) < 0.5
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        if what == "wide":
            ends = torch.tensor([info.min, info.max, info.min + 1, 0, 1, info.max // 2])
            return ends[torch.randint(0, len(ends), (n,), generator=g)].to(dtype)
        return torch.randint(max(-9, info.min), 10, (n,), generator=g).to(dtype)
    if what == "edges":
        ends = torch.tensor(EDGES, dtype=torch.float64)
        picked = ends[torch.randint(0, len(ends), (n,), generator=g)]
        plain = torch.randn(n, generator=g, dtype=torch.float64)
        return torch.where(torch.rand(n, generator=g) < 0.5, picked, plain).to(dtype)
    if what == "small":
        return (torch.randint(-4, 5, (n,), generator=g) * 0.5).to(dtype)
    return torch.randn(n, generator=g, dtype=torch.float64).to(dtype)


def tensors(inputs: Sequence[Input], *, exact: bool = False) -> list[torch.Tensor]:
    """Fresh arguments on the default device; each is its own memory unless it shares another's."""
    made: list[torch.Tensor] = []
    device = torch.get_default_device()
    for i in inputs:
        if i.share >= 0:
            storage = made[i.share].untyped_storage()
        else:
            with torch.device("cpu"):
                base = _unique(i) if i.values.startswith("unique") else _fill(i)
            base = base.to(device)
            if exact and base.is_floating_point():
                base = base.double()
            storage = base.untyped_storage()
        dtype = getattr(torch, i.dtype)
        dtype = torch.float64 if exact and dtype.is_floating_point else dtype
        x = torch.empty(0, dtype=dtype)
        x.set_(storage, i.offset, i.shape, i.stride)
        made.append(x.requires_grad_() if i.grad else x)
    return made


def _unique(i: Input) -> torch.Tensor:
    """Different numbers below the limit at the places that the tensor covers."""
    top = int(i.values.partition(":")[2])
    g = torch.Generator().manual_seed(i.seed)
    count = 1
    for s in i.shape:
        count *= s
    if count > top:
        raise ValueError("more unique numbers than there are")
    out = torch.zeros(i.room, dtype=getattr(torch, i.dtype))
    view = out.as_strided(i.shape, i.stride, i.offset)
    view.copy_(torch.randperm(top, generator=g)[:count].reshape(i.shape).to(out.dtype))
    return out


def memory(x: torch.Tensor) -> torch.Tensor:
    """All elements of the memory under ``x``, also those around it."""
    flat = torch.empty(0, dtype=x.dtype, device=x.device)
    storage = x.untyped_storage()
    flat.set_(storage, 0, (storage.nbytes() // x.element_size(),), (1,))
    return flat
