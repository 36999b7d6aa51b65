"""Host programs as FX graphs: what users' tools find there, and what they may change.

That they give what the printed Python gives, `test_host_native.py` shows.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Interpreter

from litz.errors import OptionError
from litz.host.fx import FxHost, launch
from litz.host.lines import (
    BindSize,
    CallExtern,
    CallKernel,
    EnterDevice,
    HostProgram,
    LeaveDevice,
    Return,
)
from litz.host.native import plan_native
from litz.host.python import print_host
from litz.index import symbol
from litz.ir.dtype import F32
from litz.ir.program import Buffer, Extern, TensorRef
from litz.options import make_options
from litz.runtime.plan import Plan
from litz.tools.explain import explain


class Pass:
    """A pass that keeps the graphs that it sees, and may change them."""

    def __init__(self, change: Callable[[GraphModule], object] = lambda g: None) -> None:
        self.seen: list[GraphModule] = []
        self.change = change

    def __call__(self, graph: GraphModule) -> None:
        self.seen.append(graph)
        self.change(graph)

    def uuid(self) -> str:
        return str(id(self))


def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.relu() * 2, w).softmax(-1)


def compiled(hook: Pass, **how: Any) -> Callable[..., Any]:
    options = {"host": "fx", "host_passes": hook}
    return torch.compile(fn, backend="litz", options=options, **how)


X, W = torch.randn(4, 8), torch.randn(8, 16)


def test_what_is_called() -> None:
    found = Pass()
    wanted = fn(X, W)
    torch.testing.assert_close(compiled(found)(X, W), wanted)
    (module,) = found.seen
    module.graph.lint()
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    assert torch.ops.aten.mm.out in [n.target for n in calls]
    kernels = [n.meta["kernels"] for n in calls if n.target is launch]
    groups = [group for records in kernels for k in records for group in k.groups]
    assert {"relu", "_softmax"} <= {node for _, nodes in groups for node in nodes}
    assert {"allocate", "segment", "aten", "free"} <= {n.meta["line"] for n in calls}
    assert [n.name for n in module.graph.find_nodes(op="placeholder")] == ["arg0_1", "arg1_1"]


def test_other_ways_to_run_it() -> None:
    """FX's interpreter, a copy, and what is left where nobody reads results."""
    found = Pass()
    wanted = compiled(found, dynamic=True)(X, W)
    (module,) = found.seen
    count = len(module.graph.nodes)
    module.graph.eliminate_dead_code()
    assert len(module.graph.nodes) == count
    inputs = {"arg0_1": 4, "arg1_1": 8, "arg2_1": X, "arg3_1": 16, "arg4_1": W}
    given = [inputs[n.name] for n in module.graph.find_nodes(op="placeholder")]
    for run in (lambda args: Interpreter(module).run(*args), copy.deepcopy(module)):
        (result,) = run(list(given))
        assert torch.equal(result, wanted)


def test_a_pass_changes_what_runs() -> None:
    def change(module: GraphModule) -> None:
        (mm,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.out)
        with module.graph.inserting_after(mm):
            module.graph.call_function(torch.ops.aten.zero_.default, (mm.kwargs["out"],))

    assert torch.equal(compiled(Pass(change))(X, W), torch.full((4, 16), 1 / 16))


def test_arguments_die_with_their_last_use() -> None:
    alive: list[object] = []

    def change(module: GraphModule) -> None:
        gone = weakref.WeakKeyDictionary[torch.Tensor, int]()

        def note(x: torch.Tensor) -> None:
            gone[x] = 1

        def look(after: object) -> None:
            alive.append(len(gone))

        first = module.graph.find_nodes(op="placeholder")[0]
        with module.graph.inserting_after(first):
            module.graph.call_function(note, (first,))
        output = module.graph.output_node()
        with module.graph.inserting_before(output):
            module.graph.call_function(look, (output.args[0],))

    host = HostProgram(("x",), {"x": x_of()}, (CallExtern(relu()), Return((whole("y"),))))
    run = FxHost((), (), (Pass(change),)).program(planned(host), {}, {})
    args: list[Any] = [torch.randn(4)]
    assert run(args)[0].shape == (4,) and not args
    assert alive == [0]


def x_of(name: str = "x", kind: Any = "input") -> Buffer:
    n = symbol("n", 1, 100)
    return Buffer(name, F32, (n,), (n * 0 + 1,), "cpu", kind)


def whole(name: str) -> TensorRef:
    b = x_of(name)
    return TensorRef(name, b.dtype, b.shape, b.strides, symbol("n", 1, 100) * 0)


def relu() -> Extern:
    call = torch.ops.aten.relu.default
    return Extern("e", call, "aten.relu.default", (whole("x"),), (), ("y",), "cpu", "")


def planned(host: HostProgram) -> Plan:
    host = HostProgram(host.inputs, {**host.buffers, "y": x_of("y", "extern")}, host.lines)
    lines = (BindSize(symbol("n", 1, 100), 0, 0), *host.lines)
    plan = plan_native(host.with_lines(lines), print_host(host.with_lines(lines)).values)
    assert isinstance(plan, Plan), plan
    return plan


def test_errors_leave_the_device_that_was_current(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [3]

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            self.before, current[0] = current[0], self.index

        def __exit__(self, *_: object) -> None:
            current[0] = self.before

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])

    def broken(address: int) -> None:
        raise RuntimeError(f"broken on {current[0]}")

    x = replace(x_of(), device="cuda:1")
    lines = (EnterDevice("cuda:1"), CallKernel("k", ("x",)), LeaveDevice("cuda:1"), Return(()))
    plan = plan_native(HostProgram(("x",), {"x": x}, lines), {})
    assert isinstance(plan, Plan), plan
    with pytest.raises(RuntimeError, match="broken on 1"):
        FxHost((), ()).program(plan, {}, {"k": broken})([torch.ones(3)])
    assert current == [3]


def test_a_program_without_a_plan_says_so() -> None:
    report = explain(fn, (X, W), {}, {"host": "fx", "verify": True})
    assert "Python runs the host program" in str(report)


def test_passes_of_another_host_are_refused() -> None:
    with pytest.raises(OptionError, match="host_passes are for host='fx', not 'auto'"):
        make_options({"host_passes": Pass()}, environ={})
