"""Positions to read at that depend on nothing but where they stand, as integer arithmetic.

Interpolation computes them in floating point; as ``clamp((p * i + b) // q)`` they are index
expressions, which kernels need no table, no check and no gather for.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.values import add_call, same_value

aten = torch.ops.aten

LIMIT: Final = 1 << 16
"""Elements of positions that are looked at."""
PERIOD: Final = 64
"""The largest q."""
READS: Final = {
    aten.index.Tensor: 1,
    aten._unsafe_index.Tensor: 1,
    aten._unsafe_masked_index.default: 2,
}
"""Calls that read at positions, and which argument these are."""
# Of these every device gives the same bits.
EXACT: Final = frozenset({
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten._to_copy.default,
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.clamp.default, aten.floor.default,
    aten.view.default, aten.unsqueeze.default, aten.minimum.default, aten.maximum.default,
    aten.round.default,
})  # fmt: skip


def name_positions(gm: GraphModule) -> bool:
    """Replace positions that floating point gives by integer arithmetic with the same values."""
    given: dict[Node, None] = {}
    for n in gm.graph.nodes:
        if n.target in READS:
            given.update((i, None) for i in n.args[READS[n.target]] if i is not None)
    rounded = _rounded(gm) if given else set()
    values: dict[Node, Tensor | None] = {}
    changed = False
    for n in given:
        if n.meta["val"].dtype is not torch.int64 or n not in rounded:
            continue
        value = _evaluated(n, values)
        formula = None if value is None else formula_of(value.flatten().tolist())
        if formula is not None and formula.pays(n.meta["val"].device.type):
            with gm.graph.inserting_before(n):
                made = formula.calls(n)
            if same_value(made.meta["val"], n.meta["val"]):
                n.replace_all_uses_with(made, lambda user: user.target in READS)
                changed = True
    return changed


@dataclass(frozen=True)
class Formula:
    """min(max((times * i + plus) // by, low), high) for each i below ``size``."""

    size: int
    times: int
    plus: int
    by: int
    low: int
    high: int

    def __getitem__(self, i: int) -> int:
        return min(max((self.times * i + self.plus) // self.by, self.low), self.high)

    def pays(self, device: str) -> bool:
        """Whether lanes lie as vectors of a CPU do (see ``litz.lowering.places.is_quick``)."""
        if device != "cpu" or self.by == 1:
            return True
        return self.size % self.by == 0 and (self.by == 2 or self.by == 4 and self.plus == 0)

    def calls(self, n: Node) -> Node:
        """The same as calls in front of a node, laid out as its value."""
        val = n.meta["val"]
        kind = {"dtype": torch.int64, "device": val.device}
        made = add_call(n, aten.arange.default, (self.size,), kind)
        for target, number, idle in (
            (aten.mul.Tensor, self.times, 1),
            (aten.add.Tensor, self.plus, 0),
            (aten.floor_divide.default, self.by, 1),
        ):
            made = made if number == idle else add_call(n, target, (made, number), {})
        made = add_call(n, aten.clamp.default, (made, self.low, self.high), {})
        return add_call(n, aten.view.default, (made, list(val.shape)), {})


def formula_of(places: list[int]) -> Formula | None:
    """A formula for places that rise from 0 or more, if there is one."""
    low, high = places[0], places[-1]
    inner = [k for k, t in enumerate(places) if low < t < high]
    if low < 0 or len(inner) < 2:
        return None
    first, last = inner[0], inner[-1] + 1
    # Of short ones there is more to learn where a bound begins: it may be what is rounded to, too.
    for begin, end in ((first, last), (max(first - 1, 0), min(last + 1, len(places)))):
        for by in range(1, min(PERIOD, end - begin - 1) + 1):
            pairs = zip(places[begin:end], places[begin + by : end], strict=False)
            steps = {b - a for a, b in pairs}
            if len(steps) != 1:
                continue
            times = steps.pop()
            # For each place: places * by <= times * k + plus < places * by + by.
            plus = max(places[k] * by - times * k for k in inner)
            found = Formula(len(places), times, plus, by, low, high)
            if all(found[k] == t for k, t in enumerate(places)):
                return found
            break
    return None


def _rounded(gm: GraphModule) -> set[Node]:
    """What may come from floating point, by exact calls."""
    found: set[Node] = set()
    for n in gm.graph.nodes:
        cast = n.target is aten._to_copy.default
        if cast or (n.target in EXACT and not found.isdisjoint(n.all_input_nodes)):
            found.add(n)
    return found


def _evaluated(n: Node, values: dict[Node, Any]) -> Tensor | None:
    """What ATen makes of exact calls that no input reaches, computed on the host."""
    if n not in values:
        val = n.meta.get("val")
        values[n] = None
        if not isinstance(val, Tensor) or n.target not in EXACT:
            return None
        if any(type(s) is not int for s in val.shape) or not 0 < val.numel() <= LIMIT:
            return None
        known = {a: _evaluated(a, values) for a in n.all_input_nodes}
        if all(v is not None for v in known.values()):
            args, kwargs = torch.fx.map_arg((n.args, dict(n.kwargs)), known.__getitem__)
            kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
            values[n] = n.target(*args, **kwargs)
    return values[n]  # type: ignore[no-any-return]
