"""Growing random programs: each step is tried on real tensors, and kept if eager defines it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tests.fuzz.machine import Machine, Rejected, replay
from tests.fuzz.program import FLOATS, INTS, Input, Program, Step

Made = Step | Sequence[Step] | None
SMALL = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 65, 100, 128, 130)
LARGE = (256, 300, 333, 512, 777, 1000, 1001, 1024)


@dataclass
class Draft:
    """A program while it grows; what the makers of steps choose from.

    float_type: what new arguments of layers are of; empty: any.
    """

    rng: random.Random
    inputs: list[Input]
    machine: Machine
    steps: list[Step]
    sizes: tuple[int, ...]
    grad: bool = False
    float_type: str = ""

    def tensor(self, k: int) -> torch.Tensor:
        v = self.machine.values[k]
        assert isinstance(v, torch.Tensor)
        return v

    def pick(self, want: Callable[[torch.Tensor], bool] | None = None) -> int | None:
        """A value (late ones are likelier) that ``want`` accepts."""
        known = [
            k
            for k, v in enumerate(self.machine.values)
            if isinstance(v, torch.Tensor) and (want is None or want(v))
        ]
        if not known:
            return None
        at = max(self.rng.random(), self.rng.random()) if self.rng.random() < 0.6 else None
        return self.rng.choice(known) if at is None else known[int(at * len(known))]

    def exact(self, want: Callable[[torch.Tensor], bool] | None = None) -> int | None:
        """As ``pick``, of values whose bits are determined."""
        for _ in range(4):
            k = self.pick(want)
            if k is None or not self.machine.is_rough(k):
                return k
        return None

    def partner(self, k: int, same_type: bool = False) -> int | None:
        """A value that broadcasts with the k-th."""
        x = self.tensor(k)

        def fits(t: torch.Tensor) -> bool:
            if same_type and t.dtype is not x.dtype:
                return False
            return broadcastable(t.shape, x.shape)

        return self.pick(fits)

    def dim(self, x: torch.Tensor) -> int:
        d = self.rng.randrange(x.ndim)
        return d if self.rng.random() < 0.5 else d - x.ndim

    def add_input(self, i: Input) -> int:
        """Another argument, at the end of those there are: numbers of later values move up."""
        at = len(self.inputs)
        i = replace(i, device=self.inputs[0].device)
        self.inputs.append(i)
        self.machine.insert_input(i)
        self.steps = [replace(s, args=tuple(a + (a >= at) for a in s.args)) for s in self.steps]
        return at


def broadcastable(a: Sequence[int], b: Sequence[int]) -> bool:
    short = min(len(a), len(b))
    pairs = zip(tuple(a)[len(a) - short :], tuple(b)[len(b) - short :], strict=True)
    return all(x == y or x == 1 or y == 1 for x, y in pairs)


Maker = Callable[[Draft], Made]


# --- inputs --------------------------------------------------------------------------------------


def shape(rng: random.Random, sizes: Sequence[int], limit: int) -> tuple[int, ...]:
    rank = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
    out: list[int] = []
    total = 1
    for _ in range(rank):
        s = 1 if rng.random() < 0.12 else rng.choice(sizes)
        if total * max(s, 1) > limit:
            s = 1
        total *= max(s, 1)
        out.append(s)
    return tuple(out)


def layout(rng: random.Random, i: Input) -> Input:
    """The same tensor in memory that is not just its elements in order."""
    order = list(range(len(i.shape)))
    if rng.random() < 0.5:
        rng.shuffle(order)
    step = rng.choice((1, 1, 1, 2, 3))
    gap = rng.choice((0, 0, 1, 5))
    still: tuple[int, ...] = ()
    if i.shape and not i.values.startswith("unique") and rng.random() < 0.2:
        still = (rng.randrange(len(i.shape)),)
    return replace(
        i, order=tuple(order), step=step, gap=gap, still=still, offset=rng.choice((0, 0, 1, 3, 16))
    )


def some_input(rng: random.Random, sizes: Sequence[int], limit: int, grad: bool) -> Input:
    seed = rng.randrange(1 << 30)
    if grad:
        dtype = rng.choice(("float32", "float32", "float32", "float64", "bfloat16"))
        i = Input(dtype, shape(rng, sizes, limit), seed=seed, grad=rng.random() < 0.75)
    else:
        dtype = rng.choice(
            ("float32", "float32", "float32", "float32", *FLOATS, *INTS, "int64", "int32", "bool")
        )
        values = "normal"
        if dtype in FLOATS:
            values = rng.choice(("normal", "normal", "normal", "small", "edges"))
        elif dtype != "bool" and rng.random() < 0.2:
            values = "wide"
        i = Input(dtype, shape(rng, sizes, limit), values=values, seed=seed)
    return layout(rng, i) if rng.random() < 0.35 else i


def index_input(rng: random.Random, like: Input) -> Input | None:
    """Positions into one dimension of another input."""
    if not like.shape or 0 in like.shape:
        return None
    top = rng.choice(like.shape)
    seed = rng.randrange(1 << 30)
    if rng.random() < 0.4:
        return Input("int64", (rng.randint(1, top),), values=f"unique:{top}", seed=seed)
    form = rng.choice(((), (3,), (top,), (2, 3), like.shape, like.shape))
    return Input("int64", tuple(form), values=f"index:{top}", seed=seed)


def start(rng: random.Random, large: bool, grad: bool, device: str) -> Draft:
    pool = LARGE if large else SMALL
    sizes = tuple(rng.choice(pool) for _ in range(rng.choice((1, 2, 2, 3))))
    if not large and rng.random() < 0.04:
        sizes = (*sizes, 0)
    limit = 1 << 20 if large else 1 << 13
    inputs: list[Input] = []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4))):
        inputs.append(some_input(rng, sizes, limit, grad))
    if rng.random() < 0.4:
        found = index_input(rng, rng.choice(inputs))
        if found is not None:
            inputs.append(found)
    if not grad and rng.random() < 0.04:
        k = rng.randrange(len(inputs))
        if not inputs[k].values.startswith("unique"):
            room = inputs[k].room - 3
            inputs.append(
                Input(inputs[k].dtype, (max(room - 1, 0),), offset=1 if room else 0, share=k)
            )
    inputs = [replace(i, device=device) for i in inputs]
    return Draft(rng, inputs, Machine(inputs), [], sizes, grad)


# --- growth --------------------------------------------------------------------------------------


def attempt(d: Draft, made: Made) -> bool:
    """Run the steps on the draft; a failure leaves the draft as it was."""
    if made is None:
        return False
    steps = [made] if isinstance(made, Step) else list(made)
    before = len(d.machine.values)
    marks = d.machine.marks()
    try:
        for s in steps:
            d.machine.run(s)
            d.steps.append(s)
    except Exception:
        # A step may have written before it failed: start again from the steps that stood.
        d.steps = d.steps[: before - len(d.inputs)]
        writes = any(s.writes for s in steps)
        if writes:
            d.machine = replay(Program(tuple(d.inputs), tuple(d.steps), ()), d.inputs)
        else:
            del d.machine.values[before:], d.machine.shadows[before:]
            d.machine.restore(marks)
        return False
    return True


def results(d: Draft) -> tuple[int, ...]:
    """What to return: what nothing else read, and a few others; sometimes one twice."""
    read = {a for s in d.steps for a in s.args}
    out: list[int] = []
    for k in range(len(d.inputs), len(d.machine.values)):
        if not isinstance(d.machine.values[k], torch.Tensor):
            continue
        if (k not in read and d.rng.random() < 0.9) or d.rng.random() < 0.12:
            out.append(k)
    if not out:
        out = [k for k, v in enumerate(d.machine.values) if isinstance(v, torch.Tensor)][-1:]
    if d.rng.random() < 0.03:
        out.append(d.rng.choice(out))
    if d.rng.random() < 0.03:
        out.append(d.rng.randrange(len(d.inputs)))
    if d.grad:
        floats = [k for k in out if d.tensor(k).requires_grad and k >= len(d.inputs)]
        out = floats or out
    return tuple(out)


def grown(inputs: Sequence[Input], step: int) -> tuple[Input, ...] | None:
    """The inputs with every size above 1 made larger, equal sizes staying equal."""

    def size(s: int) -> int:
        return s if s <= 1 else 2 * s + step

    out = []
    for i in inputs:
        if i.share >= 0:
            return None
        values = i.values
        if values.startswith("unique"):
            head, _, top = values.partition(":")
            values = f"{head}:{size(int(top))}"
        new = tuple(s if k in i.keep else size(s) for k, s in enumerate(i.shape))
        out.append(replace(i, shape=new, values=values))
    return tuple(out)


def second_sizes(p: Program, rng: random.Random) -> tuple[Input, ...]:
    """Inputs of other sizes on which the program is defined too, or none."""
    others = grown(p.inputs, rng.choice((0, 1, 3)))
    if others is None:
        return ()
    try:
        replay(p, others)
    except Exception:
        return ()
    return others


def without_idle(p: Program, first: int) -> Program:
    """Without the inputs from the ``first`` on that nothing reads."""
    read = {a for s in p.steps for a in s.args} | set(p.results) | {i.share for i in p.inputs}
    kept = [k for k in range(len(p.inputs)) if k < first or k in read]
    many = len(p.inputs)
    numbers = {k: n for n, k in enumerate([*kept, *range(many, many + len(p.steps))])}
    steps = tuple(replace(s, args=tuple(numbers[a] for a in s.args)) for s in p.steps)
    results = tuple(numbers[r] for r in p.results)
    return replace(p, inputs=tuple(p.inputs[k] for k in kept), steps=steps, results=results)


def generate(
    seed: str,
    *,
    dynamic: bool = False,
    grad: bool = False,
    layers: bool = False,
    device: str = "cpu",
    rng: str = "litz",
) -> Program:
    """The program of this seed.  dynamic: with inputs of two sizes where that can be.

    layers: mostly of what neural networks are made of.  device: the type of the device that it is
    to run on.  rng: see Program.
    """
    from tests.fuzz.steps import makers

    luck = random.Random(seed)
    large = not dynamic and not grad and luck.random() < 0.025
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = start(luck, large, grad, device)
        first = len(d.inputs)
        table = makers(layers)
        weights = [w for w, _ in table]
        goal = luck.choice((2, 3, 4, 5, 6) if layers else (2, 3, 4, 5, 6, 8, 10))
        for _ in range(goal * 6):
            if len(d.steps) >= goal:
                break
            (chosen,) = luck.choices(table, weights)
            attempt(d, chosen[1](d))
        p = Program(tuple(d.inputs), tuple(d.steps), results(d), rng=rng)
        p = without_idle(p, first)
        if grad and not differentiable(p):
            p = replace(p, inputs=tuple(replace(i, grad=False) for i in p.inputs))
        if dynamic:
            p = replace(p, others=second_sizes(p, luck))
    return p


def differentiable(p: Program) -> bool:
    """Whether eager can run the backward: it refuses where a write spoiled a saved value."""
    from tests.fuzz.compare import expectations

    try:
        expectations(p, replay(p, p.inputs))
    except (Rejected, RuntimeError):
        return False
    return True


__all__ = ["Draft", "Maker", "Made", "Rejected", "broadcastable", "generate"]
