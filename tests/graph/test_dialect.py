"""Every rule of the FX dialect: a pass that breaks it is named, and the node."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from graph_cases import traced
from torch.fx import GraphModule, Node

from litz.errors import VerifyError
from litz.graph import passes
from litz.graph.dialect import HIGHER_ORDER, RULES, faults, rule_name
from litz.graph.passes import GraphPass, PassGroup, run_passes

aten = torch.ops.aten
Break = Callable[[GraphModule, dict[str, Node]], object]
SOURCE = """
def f(x: "f32[4, 8]", y: "f32[4, 8]"):
    a = aten.add.Tensor(x, y)
    b = aten.max.dim(a, 1)
    return aten.mul.Tensor(a, 2.0), b[0]
"""


def call(at: Node, target: object, *args: object) -> Node:
    """A new call in front of a node that reads it."""
    with at.graph.inserting_before(at):
        made = at.graph.call_function(target, args)  # type: ignore[arg-type]
    made.meta["val"] = at.meta["val"]
    at.args = (made, *at.args[1:])
    return made


def late_input(gm: GraphModule, n: dict[str, Node]) -> None:
    with gm.graph.inserting_after(n["add"]):
        gm.graph.placeholder("late").meta["val"] = n["x"].meta["val"]


def method(gm: GraphModule, n: dict[str, Node]) -> None:
    with gm.graph.inserting_before(n["mul"]):
        gm.graph.call_method("exp", (n["add"],)).meta["val"] = n["add"].meta["val"]


def not_flat(gm: GraphModule, n: dict[str, Node]) -> None:
    call(n["mul"], aten.as_strided.default, n["add"], [4, 8], [8, 1])


def flat_of_two(gm: GraphModule, n: dict[str, Node]) -> None:
    call(n["mul"], aten.as_strided.default, n["add"], [4, 8], [8, 1]).meta["litz_flat"] = True


def results(*values: object) -> Break:
    def broken(gm: GraphModule, n: dict[str, Node]) -> None:
        n["output"].args = (values if len(values) > 1 else n["mul"],)

    return broken


def behind_output(gm: GraphModule, n: dict[str, Node]) -> None:
    with gm.graph.inserting_after(n["output"]):
        gm.graph.call_function(aten.neg.default, (n["add"],)).meta["val"] = None


def output_twice(gm: GraphModule, n: dict[str, Node]) -> None:
    gm.graph.erase_node(n["output"])


CASES: list[tuple[str, str, Break]] = [
    ("kind", "late is an input behind add", late_input),
    ("kind", "exp is a call_method", method),
    ("order", "add reads mul", lambda gm, n: n["add"].update_arg(1, n["mul"])),
    ("val", "mul has no metadata val", lambda gm, n: n["mul"].meta.pop("val")),
    ("target", "calls <built-in method relu", lambda gm, n: call(n["mul"], torch.relu, n["add"])),
    ("target", "calls aten.neg", lambda gm, n: call(n["mul"], aten.neg, n["add"])),
    (
        "target",
        "higher-order operator wrap",
        lambda gm, n: call(n["mul"], torch.ops.higher_order.wrap, n["add"]),
    ),
    (
        "arguments",
        "given a tensor that is no node",
        lambda gm, n: n["mul"].update_arg(1, torch.ones(8)),
    ),
    ("pick", "picks 7 of 2 results", lambda gm, n: n["getitem"].update_arg(1, 7)),
    ("pick", "picks 0 of what add gives", lambda gm, n: n["getitem"].update_arg(0, n["add"])),
    (
        "write",
        "writes into add, which is no argument",
        lambda gm, n: call(n["mul"], aten.copy_.default, n["add"], n["x"]),
    ),
    (
        "write",
        "writes into an argument as aten.exp_.default",
        lambda gm, n: call(n["mul"], aten.exp_.default, n["x"]),
    ),
    ("storage", "the storage of add", not_flat),
    ("storage", "addresses add as flat, which has 2 dimensions", flat_of_two),
    ("results", "returns no tuple", results()),
    ("results", "returns a str", results("a", "b")),
    ("results", "is an output in front of neg", behind_output),
    ("results", "mul is the last node and no output", output_twice),
]


@pytest.mark.parametrize(("rule", "fault", "broken"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_broken_rule(
    rule: str, fault: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(gm: GraphModule) -> bool:
        broken(gm, {n.name: n for n in gm.graph.nodes})
        return True

    pipeline = (PassGroup("after_storage", (GraphPass("the culprit", run),)),)
    monkeypatch.setattr(passes, "PIPELINE", pipeline)
    with pytest.raises(VerifyError, match="after the pass 'the culprit'") as e:
        run_passes(traced(SOURCE), inference=True, check=True)
    assert fault in str(e.value)
    assert f"rule {rule!r}" in str(e.value)
    run_passes(traced(SOURCE), inference=True)  # nobody looks


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, _, _ in CASES} == set(map(rule_name, RULES))


def test_a_lost_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(gm: GraphModule) -> bool:
        (output,) = gm.graph.find_nodes(op="output")
        output.args = (output.args[0][:1],)
        return True

    monkeypatch.setattr(passes, "PIPELINE", (PassGroup("x", (GraphPass("the culprit", run),)),))
    with pytest.raises(VerifyError, match="'the culprit': other inputs or another count"):
        run_passes(traced(SOURCE), inference=True, check=True)


def test_what_a_graph_came_with_is_not_the_passes() -> None:
    """Lowering declines it, and ATen runs the graph."""
    gm = traced(SOURCE)
    nodes = {n.name: n for n in gm.graph.nodes}
    call(nodes["mul"], torch.ops.higher_order.wrap, nodes["add"])
    assert [rule for rule, _, _ in faults(gm)] == ["target"]
    run_passes(gm, inference=True, check=True)


def test_numbers_of_the_host() -> None:
    """Python's functions of numbers are within the dialect."""
    gm = traced(SOURCE)
    nodes = {n.name: n for n in gm.graph.nodes}
    with gm.graph.inserting_before(nodes["add"]):
        gm.graph.call_function(operator.add, (1, 2)).meta["val"] = 3
    assert list(faults(gm)) == []


def test_the_rules_name_the_operators_that_litz_knows() -> None:
    text = " ".join(str(rule.__doc__) for rule in RULES)
    assert [name for name in HIGHER_ORDER if f"`{name}`" not in text] == []
