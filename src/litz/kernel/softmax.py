"""How the sum of a softmax's exponentials is recognised."""

from __future__ import annotations

from litz.ir.body import Node, Op, Reduce
from litz.ir.reductions import MAX, SUM
from litz.kernel.values import Value


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
