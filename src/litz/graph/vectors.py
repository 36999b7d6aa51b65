"""Vectors that a matrix's decomposition does without, because nobody reads them.

PyTorch traces singular values, eigenvalues and what is made of them (norms, ranks, condition
numbers) by decompositions with vectors; eager mode computes values alone where no gradient is
wanted, at a fraction of the time.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from litz.graph.values import add_call, give_value

_aten = torch.ops.aten
_FLAGS = {
    _aten._linalg_svd.default: ("compute_uv", 2, {0, 2}),
    _aten._linalg_eigh.default: ("compute_v", 2, {1}),
}
"""An argument that vectors are wanted, its position, and the results that they are."""


def leave_out_vectors(gm: GraphModule) -> bool:
    """Have decompositions of which values alone are read compute no vectors."""
    changed = False
    for n in list(gm.graph.nodes):
        if n.target in _FLAGS:
            name, position, vectors = _FLAGS[n.target]
            given = n.args[position] if len(n.args) > position else n.kwargs.get(name, True)
            if given and not _read(n) & vectors:
                n.args, n.kwargs = n.args[:position], {**n.kwargs, name: False}
                give_value(n)
                changed = True
        elif n.target is _aten.linalg_eig.default and _read(n) == {0}:
            with gm.graph.inserting_before(n):
                values = add_call(n, _aten._linalg_eigvals.default, n.args, {})
            for pick in list(n.users):
                pick.replace_all_uses_with(values)
                gm.graph.erase_node(pick)
            gm.graph.erase_node(n)
            changed = True
    return changed


def _read(n: Node) -> set[object]:
    """The numbers of the results that somebody reads; all of them where one reads them at once."""
    if all(u.target is operator.getitem for u in n.users):
        return {u.args[1] for u in n.users if u.users}
    return set(range(len(n.meta["val"])))
