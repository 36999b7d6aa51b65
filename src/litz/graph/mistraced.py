"""Calls of which PyTorch's tracing makes another program, without a word: for eager mode."""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import GraphModule, Node

# Of complex numbers the trace forgets a conjugation.
PSEUDOINVERSES: Final = (torch.linalg.pinv, torch.pinverse, "pinverse")
# The trace writes the rank of something else into ``out``.
RANKS: Final = (torch.linalg.matrix_rank,)


def mistraced(gm: GraphModule) -> str:
    """Why Dynamo's graph means something else once AOTAutograd has traced it; "" if it does not."""
    parts = [m for m in gm.modules() if isinstance(m, GraphModule)]
    for n in (n for part in parts for n in part.graph.nodes):
        if n.target in PSEUDOINVERSES and _is_complex(n):
            return "PyTorch's trace of a complex pseudoinverse has other values than it"
        if n.target in RANKS and n.kwargs.get("out") is not None:
            return "PyTorch's trace of matrix_rank with out= has other values than it"
    return ""


def _is_complex(n: Node) -> bool:
    value = n.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.is_complex()
