"""Reductions: of a whole block at once, and by accumulators over a loop."""

from __future__ import annotations

from collections.abc import Sequence

from litz.dataclass import dataclass
from litz.ir.body import Reduce
from litz.ir.dtype import DType
from litz.ir.ops import TRITON_TYPES
from litz.ir.reductions import NOWHERE, Reduction
from litz.kernel.values import Value
from litz.targets.triton.spell import neutral

_NOWHERE = f"0x{NOWHERE:X}"


def at_once(row: Reduction, value: str, axis: int, position: str = "") -> str:
    """A reduction of ``value`` along an axis of its block, which stays with extent 1."""
    if not row.triton_fold:
        raise ValueError(f"{row.name} of a block is written in other terms")
    return row.triton_fold.format(value, at=position, axis=axis)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A reduction over a loop: every lane has its own, and the lanes meet behind the loop."""

    row: Reduction
    dtype: DType
    name: str
    shape: str
    axis: int

    @property
    def type(self) -> str:
        return TRITON_TYPES[self.dtype.name]

    def begin(self) -> list[str]:
        first = neutral(self.row, self.dtype)
        return [f"{self.name} = tl.full({self.shape}, {first}, {self.type})"]

    def update(self, value: str, mask: str, position: str) -> list[str]:
        new = self.row.triton.format(self.name, value)
        return [
            f"{self.name} = tl.where({mask}, {new}, {self.name})"
            if mask
            else f"{self.name} = {new}"
        ]

    def finish(self) -> list[str]:
        return [f"{self.name}_ = {at_once(self.row, self.name, self.axis)}"]

    def result(self, n: Reduce) -> str:
        """The name of the finished value of one of the reductions."""
        return f"{self.name}_"

    def alone(self, n: Reduce) -> str:
        """The value where every lane is a reduction of its own."""
        return self.name


@dataclass(frozen=True, slots=True)
class ArgAccumulator(Accumulator):
    """The best value of each lane and where it stood first."""

    def begin(self) -> list[str]:
        last = f"tl.full({self.shape}, {_NOWHERE}, tl.int64)"
        return [*Accumulator.begin(self), f"{self.name}_at = {last}"]

    def update(self, value: str, mask: str, position: str) -> list[str]:
        a = self.name
        # A lane that has seen nothing yet takes what comes: it may equal the neutral value.
        ahead = f"{self.row.triton.format(value, a)} | ({a}_at == {_NOWHERE})"
        ahead = f"({ahead}) & {mask}" if mask else ahead
        return [
            f"{a}_ahead = {ahead}",
            f"{a}_at = tl.where({a}_ahead, {position}, {a}_at)",
            f"{a} = tl.where({a}_ahead, {value}, {a})",
        ]

    def finish(self) -> list[str]:
        return [f"{self.name}_ = {at_once(self.row, self.name, self.axis, f'{self.name}_at')}"]

    def alone(self, n: Reduce) -> str:
        return f"{self.name}_at"


@dataclass(frozen=True, slots=True)
class MomentAccumulator(Accumulator):
    """Mean and squared deviations of each lane (Welford), then of all (Chan et al.).

    All lanes have seen as many elements, but for those that the last turn leaves out, so that one
    division serves for all of them.  counts: how many elements each lane has seen in the end.
    """

    counts: str = ""

    def begin(self) -> list[str]:
        a, zeros = self.name, f"tl.zeros({self.shape}, {self.type})"
        count = f"{a}_n = tl.full([], 0, {self.type})"
        return [f"{a}_mean = {zeros}", f"{a}_m2 = {zeros}", count]

    def update(self, value: str, mask: str, position: str) -> list[str]:
        a = self.name
        lines = [
            f"{a}_n = {a}_n + 1",
            f"{a}_off = {value} - {a}_mean",
            f"{a}_next = tl.fma({a}_off, litz.reciprocal({a}_n), {a}_mean)",
            f"{a}_sq = tl.fma({a}_off, {value} - {a}_next, {a}_m2)",
        ]
        for part, new in (("mean", "next"), ("m2", "sq")):
            text = f"tl.where({mask}, {a}_{new}, {a}_{part})" if mask else f"{a}_{new}"
            lines.append(f"{a}_{part} = {text}")
        return lines

    def finish(self) -> list[str]:
        a, axis = self.name, self.axis
        seen = f"({self.counts}).to({self.type})" if self.counts else f"{a}_n"
        return [
            f"{a}_seen = tl.zeros({self.shape}, {self.type}) + {seen}",
            f"{a}_all = litz.sum({a}_seen, {axis})",
            f"{a}_rough = litz.div(litz.sum({a}_mean * {a}_seen, {axis}), {a}_all)",
            f"{a}_left = litz.sum(({a}_mean - {a}_rough) * {a}_seen, {axis})",
            f"{a}_rest = litz.div({a}_left, {a}_all)",
            f"{a}_rest = tl.where(tl.abs({a}_rest) < float('inf'), {a}_rest, 0)",
            f"{a}_mean_ = {a}_rough + {a}_rest",
            f"{a}_off = {a}_mean - {a}_mean_",
            f"{a}_m2_ = litz.sum({a}_m2 + {a}_off * {a}_off * {a}_seen, {axis})",
        ]

    def result(self, n: Reduce) -> str:
        return f"{self.name}_{n.gives.part}_"

    def alone(self, n: Reduce) -> str:
        return f"{self.name}_{n.gives.part}"


def accumulator(
    group: Sequence[Value], name: str, shape: str, axis: int, counts: str = ""
) -> Accumulator:
    """The accumulator of reductions of one value.

    counts: elements of each lane, where that is not the number of turns.
    """
    node = group[0].node
    assert isinstance(node, Reduce)
    dtype = node.args[0].dtype
    if node.row.counts:
        return MomentAccumulator(node.row, dtype, name, shape, axis, counts)
    made = ArgAccumulator if node.row.positional else Accumulator
    return made(node.row, dtype, name, shape, axis)
