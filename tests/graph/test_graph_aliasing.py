"""What calls do with memory: the table of operators, and what of it is asked of a graph."""

from __future__ import annotations

import pytest
import torch
from graph_cases import traced
from torch.fx import Node

from litz.graph.aliasing import AliasSets, owner, readers, sharing, viewed, writes
from litz.graph.values import give_value

aten = torch.ops.aten
SOURCE = """
def f(x: "f32[4, 8]", y: "f32[4]"):
    a, b = aten.split.Tensor(x, 2)
    c = aten.copy_.default(aten.view.default(a, [16]), aten.exp.default(aten.view.default(b, [16])))
    d = aten.t.default(x)
    return d, aten._unsafe_view.default(x, [32]), c, y
"""


def nodes() -> dict[str, Node]:
    gm = traced(SOURCE)
    (output,) = gm.graph.find_nodes(op="output")
    with gm.graph.inserting_before(output):
        # Tracing leaves none: passes add them.
        give_value(gm.graph.call_function(aten.reshape.default, (output.args[0][0], [32])))
    return {n.name: n for n in gm.graph.nodes}


@pytest.mark.parametrize(
    ("target", "view", "shared", "written"),
    [
        (aten.view.default, True, "self", ""),
        (aten.split.Tensor, True, "self", ""),
        (aten.reshape.default, True, "self", ""),
        (aten._unsafe_view.default, True, "self", ""),  # which no schema says
        (aten.add_.Tensor, False, "self", "self"),
        (aten.add.out, False, "out", "out"),
        (aten.rrelu_with_noise_.default, False, "self", "self noise"),
        (aten.add.Tensor, False, "", ""),
    ],
    ids=str,
)
def test_an_operator(target: torch._ops.OpOverload, view: bool, shared: str, written: str) -> None:
    row = sharing(target)
    assert row.view is view
    assert [name for _, name in row.shared] == shared.split()
    assert [name for _, name in row.written] == written.split()


def test_what_is_no_operator_does_nothing() -> None:
    assert sharing("output") == sharing(torch.add) == sharing(aten.neg.default)


def test_views() -> None:
    n = nodes()
    split = n["split"]
    assert viewed(n["view"]) is n["getitem"]
    assert viewed(n["getitem"]) is split
    assert viewed(split) is n["x"]
    assert viewed(n["copy_"]) is None
    assert list(writes(n["copy_"])) == [n["view"]]


def test_owners() -> None:
    n = nodes()
    assert {owner(n[k]) for k in ("view", "getitem_1", "t", "_unsafe_view", "copy_")} == {n["x"]}
    assert owner(n["reshape_default"]) is n["x"]
    assert (
        owner(n["reshape_default"], copies=True) is n["reshape_default"]
    )  # no view has these strides
    assert owner(n["exp"]) is n["exp"]


def test_sets() -> None:
    """What may share memory, that of a copy too."""
    n = nodes()
    gm = n["x"].graph.owning_module
    assert gm is not None
    sets = AliasSets.of(gm)
    assert sets.first[n["reshape_default"]] is sets.first[n["getitem"]] is sets.first[n["x"]]
    assert sets.first[n["exp"]] is not sets.first[n["x"]]
    assert list(sets.written()) == [sets.first[n["x"]]]


def test_readers_read_through_views() -> None:
    n = nodes()
    assert list(readers(n["getitem_1"])) == [n["exp"]]
