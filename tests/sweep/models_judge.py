"""Whether a step of a compiled model is right: its error beside eager's own, against float64.

An error may be twice eager's, plus rounding.  One draw of the weights may be luck (a tensor of few
elements, a maximum or a choice of experts that a rounding turns), so that what is beyond the bound
is judged by other draws: a fault shows in most of them and in their total; see ``settle``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Rounding where eager happens to be exact: a unit in the last place, more in float32, where sums
# of many terms are that of eager's in another order.
ROUNDING = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
# Gradients and running means that are zero in exact arithmetic are noise in eager too: theirs is
# relative to the largest of the model.
NOISE = {torch.float32: 1e-6, torch.float16: 2.5e-4, torch.bfloat16: 2e-3}
# Errors of eager's own by which nothing can be judged: zeros instead of a result would pass.
UNLIKE = {torch.float32: 0.1, torch.float16: 0.3, torch.bfloat16: 0.3}

Tensors = Mapping[str, Tensor]
GROUPS = ("results", "gradients", "buffers", "weights")


@dataclass(frozen=True)
class Step:
    """One step: floating results, gradients, and buffers and weights after it, by name."""

    results: Tensors = field(default_factory=dict)
    gradients: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    weights: Tensors = field(default_factory=dict)
    """Only where an optimizer changes them."""
    integers: Tensors = field(default_factory=dict)

    def to(self, device: str) -> Step:
        groups = {g: {k: x.to(device) for k, x in v.items()} for g, v in vars(self).items()}
        return Step(**groups)


@dataclass(frozen=True)
class Size:
    """A tensor's error, eager's, and the largest that is right."""

    mine: float
    eager: float
    limit: float

    @property
    def beyond(self) -> bool:
        return not self.mine <= self.limit

    @property
    def times(self) -> float:
        """How many times the limit the error is."""
        return self.mine / self.limit if self.limit else math.inf if self.mine else 0.0


@dataclass
class Found:
    """What the steps of one draw showed."""

    faults: list[str] = field(default_factory=list)
    """Names, types, shapes, strides: no luck is in them."""
    sizes: dict[str, Size] = field(default_factory=dict)
    """The worst step of each tensor."""
    blind: dict[str, str] = field(default_factory=dict)
    """Tensors that nothing can be judged by, and why."""
    largest: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The largest errors of each group, Litz's and eager's."""
    seed: int = 0
    """Of the draw."""
    quiet: set[str] = field(default_factory=set)
    """Parameters whose gradient was noise in some step: an optimizer may make any size of it."""

    @property
    def beyond(self) -> dict[str, Size]:
        return {k: s for k, s in self.sizes.items() if s.beyond}

    def add(self, key: str, size: Size) -> None:
        if key not in self.sizes or size.times > self.sizes[key].times:
            self.sizes[key] = size

    @property
    def unjudged(self) -> str:
        """Why the whole cannot be judged; empty: it can."""
        blind = [f"{k}: {why}" for k, why in self.blind.items()]
        results = [text for text in blind if text.startswith("results")]
        gradients = [text for text in blind if text.startswith("gradients")]
        judged = sum(k.startswith("gradients") for k in self.sizes)
        if len(gradients) > judged:
            results += gradients
        return results[0] if results else ""


def errors(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    """Relative errors ``|a - r| / |r|`` over finite elements; inf where specials differ.

    One wait for the device for all of them: processes that share a GPU wait long.
    """
    if not pairs:
        return []
    found = []
    for a, r in pairs:
        x, y = a.detach().double(), r.detach().double()
        odd = ~(x.isfinite() & y.isfinite())
        same = (x == y) | (x.isnan() & y.isnan())
        top, below = (x - y).masked_fill(odd, 0).norm(), y.masked_fill(odd, 0).norm()
        ratio = torch.where(below > 0, top / below, top)
        found.append(torch.where((odd & ~same).any(), math.inf, ratio))
    return torch.stack(found).tolist()


def norms(tensors: Iterable[Tensor]) -> list[float]:
    made = [t.double().norm() for t in tensors]
    return torch.stack(made).tolist() if made else []


def finite(tensors: Sequence[Tensor]) -> list[bool]:
    made = [t.isfinite().all() for t in tensors]
    return torch.stack(made).tolist() if made else []


def same_layout(a: Tensor, e: Tensor) -> bool:
    """Whether type, shape, and the strides of dimensions that have any are the same."""
    if (a.dtype, a.shape) != (e.dtype, e.shape):
        return False
    if a.numel() == 0:
        return True
    strides = zip(a.shape, a.stride(), e.stride(), strict=True)
    return all(p == q for n, p, q in strides if n > 1)


def compare(mine: Step, eager: Step, exact: Step, rounding: torch.dtype, found: Found) -> None:
    """Judge one step in float64, into ``found``."""
    for group in GROUPS:
        trio = (getattr(side, group) for side in (mine, eager, exact))
        _compare_group(group, *trio, rounding=rounding, found=found)
    for key, e in eager.integers.items():
        # In a few bits, ties and near ties are decided by chance on either side.
        r = exact.integers[key]
        a = mine.integers.get(key)
        if a is None or (a.dtype, a.shape) != (e.dtype, e.shape):
            found.faults.append(f"integers {key}: another type or shape")
            continue
        if not torch.equal(a, e):
            differ = [(x != r).double().mean().item() for x in (a, e)]
            found.add(f"integers {key}", Size(differ[0], differ[1], 2 * differ[1]))


def _compare_group(
    group: str, mine: Tensors, eager: Tensors, exact: Tensors, rounding: torch.dtype, found: Found
) -> None:
    # Across graph breaks AOTAutograd gives zeros for a gradient that eager does not have.
    extra = {k for k, v in mine.items() if k not in eager and v.any()}
    if extra or not mine.keys() >= eager.keys():
        names = sorted(extra or eager.keys() - mine.keys())
        found.faults.append(f"{group}: other names: {names[:3]}")
        return
    keys = list(eager)
    whole = dict(zip(keys, finite([eager[k] for k in keys]), strict=True))
    whole_exact = dict(zip(keys, finite([exact[k] for k in keys]), strict=True))
    # Masks of the smallest float32 give nan in float64.
    reference = {k: exact[k] if whole_exact[k] or not whole[k] else eager[k] for k in keys}
    for k in keys:
        if not same_layout(mine[k], eager[k]):
            a, e = mine[k], eager[k]
            found.faults.append(
                f"{group} {k}: {a.dtype} {[*a.shape]} {a.stride()}, "
                f"eager's {e.dtype} {[*e.shape]} {e.stride()}"
            )
    keys = [k for k in keys if mine[k].shape == eager[k].shape]
    sizes = dict(zip(keys, norms(reference[k] for k in keys), strict=True))
    scale = max((x for x in sizes.values() if math.isfinite(x)), default=0.0)
    noise = NOISE[rounding] * scale if group in ("gradients", "buffers") else 0.0
    a_errors = errors([(mine[k], reference[k]) for k in keys])
    e_errors = errors([(eager[k], reference[k]) for k in keys])
    worst = found.largest.get(group, (0.0, 0.0))
    for k, x, y in zip(keys, a_errors, e_errors, strict=True):
        name = f"{group} {k}"
        if not whole[k] and whole_exact[k]:
            # Which elements do is chance once something does.
            found.blind[name] = "eager's own overflows"
            continue
        if rounding is not torch.float32 and whole[k] and not whole_exact[k]:
            found.blind[name] = "float64 is not finite"
            continue
        if UNLIKE[rounding] < y < math.inf and y * sizes[k] > noise:
            found.blind[name] = f"eager's own error is {y:.1e}"
            if x < math.inf:  # what is not finite beside eager's finite numbers is a fault even so
                continue
        if group == "gradients" and sizes[k] <= noise:
            found.quiet.add(k)
        if group == "weights" and k in found.quiet:
            found.blind[name] = "its gradient is noise"
            continue
        # How far the noise reaches, relative to this tensor.
        reach = noise / max(sizes[k], 1e-30)
        found.add(name, Size(x, y, 2 * y + ROUNDING[rounding] + reach))
        if reach < 1e-2:
            worst = max(worst[0], x), max(worst[1], y)
    found.largest[group] = worst


def compare_drawn(
    mine: Step, eager: Step, still: Found, rounding: torch.dtype, found: Found
) -> None:
    """Judge a step with dropout by eager's numbers: float64 would draw others.

    still: the same model without dropout, judged as usual: it tells what eager's own error is.  Two
    that are each so far from the truth may differ by twice that, and one may be twice the other.
    """
    moved = Found()
    compare(mine, eager, eager, rounding, moved)
    found.faults += moved.faults
    for key, size in moved.sizes.items():
        own = still.sizes[key].eager if key in still.sizes else 0.0
        found.add(key, Size(size.mine, own, size.limit + 4 * own + ROUNDING[rounding]))
    found.blind.update(still.blind)
    for group, (x, _) in moved.largest.items():
        before = found.largest.get(group, (0.0, 0.0))
        own = still.largest.get(group, (0.0, 0.0))[1]
        found.largest[group] = max(before[0], x), max(before[1], own)


def settle(first: Found, others: Sequence[Found]) -> tuple[dict[str, Size], dict[str, Size]]:
    """(wrong, chance): what was beyond its limit in the first draw, by what other draws show.

    Wrong is what is beyond it in more than half of the others, and in the total of all: a choice
    that falls otherwise shows on one side in one draw and on the other side in the next.  Where
    nothing can be judged in the others, eager's error being too large, one draw is no more.
    """
    wrong: dict[str, Size] = {}
    chance: dict[str, Size] = {}
    for key, size in first.beyond.items():
        if others and math.isfinite(size.mine) and all(key in f.blind for f in others):
            chance[key] = size
            continue
        seen = [f.sizes[key] for f in others if key in f.sizes]
        total = [size, *seen]
        often = 2 * sum(s.beyond for s in seen) > len(seen)
        much = not sum(s.mine for s in total) <= sum(s.limit for s in total)
        (wrong if (often or not seen) and much else chance)[key] = size
    return wrong, chance


def beyond_sway(wrong: Iterable[str], found: Found, swayed: Found) -> set[str]:
    """Of what seems wrong and is beyond its limit in a draw, what eager does not excuse.

    swayed: eager's own errors in that draw where each number has moved by its last bit.  A result
    that moves so far (behind a relu, a clamp, a normalisation of what is constant) has no digits
    there that could be compared.
    """
    seen = set(wrong) & found.beyond.keys()
    none = Size(0.0, 0.0, 0.0)
    return {k for k in seen if not found.sizes[k].mine <= 2 * swayed.sizes.get(k, none).mine}
