"""Calls that ATen computes faster than kernels here, where they are all of a graph.

What goes with others saves the way through memory, which is more than ATen gains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from torch.fx import Node as FxNode

from litz.graph.calls import op_name
from litz.ir.dtype import BOOL, F32, F64, DType
from litz.lowering.context import Settings, Unsupported
from litz.lowering.registry import Result

# By the type of their results, on CPUs: MKL's and SLEEF's vector functions (the others of theirs
# take as long as kernels here, or longer), and bytes, of which ATen's vectors hold more.
_FASTER: Final[Mapping[DType, frozenset[str]]] = {
    BOOL: frozenset(("bitwise_not",)),
    F32: frozenset(("erfc", "sqrt")),
    F64: frozenset(
        """
        acos asin cos digamma erf erfc erfinv exp lgamma log log10 log2 mvlgamma sigmoid sin
        sqrt tan
    """.split()
    ),
}


def check_alone(n: FxNode, results: Sequence[Result | None], settings: Settings) -> None:
    """Raise ``Unsupported`` where a call is all of its graph, and ATen is the faster one."""
    made = next(iter(results), None)
    if made is None or op_name(n.target) not in _FASTER.get(made.dtype, ()):
        return
    others = any(m is not n and m.op == "call_function" for m in n.graph.nodes)
    if not others and made.device == "cpu" and not settings.on_gpu("cpu"):
        raise Unsupported(f"{made.dtype} alone: ATen computes it faster")
