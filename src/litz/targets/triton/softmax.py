"""Softmax: how the sum of its exponentials is recognised, and one pass for it and the maximum."""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.body import Node, Op, Reduce
from litz.ir.reductions import MAX, SUM
from litz.targets.triton.reductions import Accumulator
from litz.targets.triton.spell import neutral
from litz.targets.triton.values import Value


def lowered(n: Node) -> Op | None:
    """A value less its maximum, if a node sums the exponentials of that: ``n`` is a total."""
    if not (isinstance(n, Reduce) and n.row is SUM):
        return None
    power = n.args[0]
    if not (isinstance(power, Op) and power.name == "exp"):
        return None
    less = power.args[0]
    if not (isinstance(less, Op) and less.name == "sub"):
        return None
    value, top = less.args
    if not (isinstance(top, Reduce) and top.row is MAX and top.args[0] is value):
        return None
    return less if set(top.axes) == set(n.axes) else None  # else the maximum may lie elsewhere


def is_total(n: Node) -> bool:
    """Whether a node sums the exponentials of a softmax.

    It is at least 1.  Errors of the small ones among them are small beside it, and as small beside
    its logarithm; the large one is 1, with no error.
    """
    return lowered(n) is not None


def is_pair(top: Value, total: Value) -> bool:
    """Whether ``total`` sums the exponentials of what ``top`` is the maximum of, less ``top``.

    Under the same conditions, beyond what their nodes say.
    """
    if not is_total(total.node):
        return False
    (power,) = total.args
    return power.args[0].args == (*top.args, top)


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
