"""The maximum and the sum of exponentials of a softmax in one pass."""

from __future__ import annotations

from litz.dataclass import dataclass
from litz.ir.body import Reduce
from litz.ir.reductions import MAX
from litz.targets.triton.reductions import Accumulator
from litz.targets.triton.spell import neutral


@dataclass(frozen=True, slots=True)
class SoftmaxAccumulator(Accumulator):
    """Maximum and sum of exponentials below it in one pass (Milakov and Gimelshein, 2018).

    ``group`` neighbours share a maximum, so that every element costs one exponential; what was
    summed before is scaled when it rises.
    """

    group: int = 1
    exact: bool = True  # False: what is made of the sum is rounded to 16 bits

    @property
    def exp(self) -> str:
        return "litz.exp" if self.exact else "litz.flush_exp"

    def begin(self) -> list[str]:
        a, low = self.name, neutral(self.row, self.dtype)
        state = f"[XBLOCK, RBLOCK // {self.group}, 1]"
        return [
            f"{a}_top = tl.full({state}, {low}, {self.type})",
            f"{a} = tl.zeros({state}, {self.type})",
        ]

    def update(self, value: str, mask: str, position: str) -> list[str]:
        a, low = self.name, neutral(self.row, self.dtype)
        block = f"tl.where({mask}, {value}, {low})" if mask else value
        groups = f"[XBLOCK, RBLOCK // {self.group}, {self.group}]"
        return [
            f"{a}_new = tl.reshape({block}, {groups})",
            f"{a}_next = litz.maximum({a}_top, litz.max({a}_new, 2))",
            # Below -inf nothing lies: what equals it counts for nothing.
            f"{a}_base = tl.where({a}_next == {low}, 0.0, {a}_next)",
            f"{a}_more = litz.sum({self.exp}({a}_new - {a}_base), 2)",
            f"{a} = {a} * {self.exp}({a}_top - {a}_base) + {a}_more",
            f"{a}_top = {a}_next",
        ]

    def finish(self) -> list[str]:
        a, low = self.name, neutral(self.row, self.dtype)
        return [
            f"{a}_max = litz.max({a}_top, 1)",
            f"{a}_base = tl.where({a}_max == {low}, 0.0, {a}_max)",
            f"{a}_all = litz.sum({a} * {self.exp}({a}_top - {a}_base), 1)",
            # Of nothing but -inf every difference is nan.
            f"{a}_ = tl.where({a}_max == {low}, float('nan'), {a}_all)",
            *(f"{a}_{part} = tl.reshape({a}_{part}, [XBLOCK, 1])" for part in ("max", "")),
        ]

    def result(self, n: Reduce) -> str:
        return f"{self.name}_max" if n.row is MAX else f"{self.name}_"
