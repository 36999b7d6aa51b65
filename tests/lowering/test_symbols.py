"""Where the values of sizes come from: inputs, results of calls, the host's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sympy
import torch

import litz.compiler
from litz.backend import compile_with
from litz.index import const, symbol
from litz.index.border import NotRepresentable, from_sympy
from litz.ir.parse import parse
from litz.ir.program import Extern, HostFloat, made_numbers
from litz.ir.text import program_text
from litz.ir.verify import VerifyError, verify
from litz.lowering.symbols import solve
from litz.options import make_options
from litz.runtime.numbers import float_bits
from litz.schedule.groups import Group
from litz.stages import Stages

S, U = symbol("s0", 2), symbol("u0", 0)


@pytest.fixture(autouse=True)
def capture() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        yield


def stages_of(fn: Callable[..., Any], *args: Any) -> Stages:
    """What one compilation for dynamic sizes made."""
    made: list[Stages] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_with(
            gm, inputs, make_options({"verify": True}), lambda _k, _g, s: made.append(s)
        )

    torch.compile(fn, backend=backend, dynamic=True, fullgraph=True)(*args)
    (stages,) = made
    assert stages.program is not None and not stages.fallback
    return stages


def numbers(stages: Stages) -> list[Extern]:
    assert stages.program is not None
    return [n for n in stages.program.nodes if isinstance(n, Extern) and n.is_number]


def test_solve() -> None:
    found = solve(U * 4 + S, (U,))
    assert found is not None and (found.unknown, found.rest, found.coefficient) == (U, S, 4)
    assert solve(U * S, (U,)) is None  # the coefficient may be anything
    assert solve(U * U, (U,)) is None
    assert solve(U + S, (U, S)) is None


def test_a_part_is_the_smallest_integer_that_is_no_algebra() -> None:
    s = sympy.Symbol("s0", integer=True, positive=True)
    part = symbol("part", 0)
    seen: list[Any] = []

    def name(e: Any) -> Any:
        seen.append(e)
        return part

    rounded = sympy.floor(s * sympy.sqrt(2))
    assert from_sympy(3 * rounded + s, {"s0": S}, name) is part * 3 + S
    assert seen == [rounded]
    with pytest.raises(NotRepresentable):
        from_sympy(3 * rounded + s, {"s0": S})
    with pytest.raises(NotRepresentable):
        from_sympy(s * sympy.sqrt(2), {"s0": S}, name)


def test_a_float_reaches_kernels_as_bits() -> None:
    stages = stages_of(lambda x: torch.full((3,), x.size(0) / 3), torch.randn(5))
    targets = [n.target_name for n in numbers(stages)]
    assert targets == ["operator.truediv", "litz.float_bits"]
    made = numbers(stages)[0]
    assert made.symbols == ((0, HostFloat(made_numbers(made)[0])),)
    assert float_bits(1.0) == 0x3FF << 52 and float_bits(-0.0) == -(1 << 63)


def test_sizes_of_results_and_assertions_come_before_their_use() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n = y[0].item()
        torch._check(n >= 2)
        return torch.ones(n, 2) * x.sum()

    stages = stages_of(fn, torch.randn(5), torch.tensor([3]))
    assert stages.schedule is not None
    steps = stages.schedule.steps
    asserted = [i for i, s in enumerate(steps) if isinstance(s, Extern) and s.is_assertion]
    users = [i for i, s in enumerate(steps) if isinstance(s, Group) and str(s.axes) and _uses_u(s)]
    assert asserted and users and max(asserted) < min(users)


def _uses_u(g: Group) -> bool:
    return any(str(f).startswith("u") for a in g.axes for f in a.extent.free)  # type: ignore[attr-defined]


def test_a_replaced_size_is_checked() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        found = x.nonzero().squeeze(1)
        torch._check(found.size(0) == x.size(0))
        return found + x

    program = stages_of(fn, torch.ones(5)).program
    assert program is not None
    (call,) = (n for n in program.nodes if isinstance(n, Extern) and "nonzero" in n.target_name)
    rows, ones = call.checks
    assert rows[0] is program.symbols[0][0] and rows[1:] == (0, 0)
    assert ones == (const(1), 0, 1) and not call.sizes


def test_programs_with_numbers_read_back() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.nonzero() + 1, torch.full((2,), x.size(0) / 3), x * y[0].item()

    program = stages_of(fn, torch.ones(5), torch.tensor([1.5])).program
    assert program is not None
    text = program_text(program)
    assert "sizes (0.0: u" in text and "#" in text
    again = parse(text)
    assert program_text(again) == text
    verify(again, "lowering")


BROKEN = """
program(b0) {
  symbol u0 in [0, inf]
  b0: f32[4]{1} @cpu input
  b1: i64[u0, 1]{1, 1} @cpu extern
  n0 = extern nonzero(b0) -> (b1) @cpu SIZES because "r"
  n1 = extern f(ARG) -> (_) @cpu symbols (0: #half) because "r"
  return (b1, #half)
}
"""


@pytest.mark.parametrize(
    ("sizes", "arg", "message"),
    [
        ("sizes (0.0: u0)", "$(u0)", ""),
        ("", "$(u0)", "nothing gives the value of u0"),
        ("sizes (0.2: u0)", "$(u0)", "as size 2 of result 0"),
        ("sizes (0.0: u0, 0.1: u0)", "$(u0)", "which it has already"),
        ("sizes (0.0: u0)", "#other", "to which nothing gives a value"),
    ],
)
def test_the_verifier_wants_a_value_for_every_number(sizes: str, arg: str, message: str) -> None:
    text = BROKEN.replace("SIZES", sizes).replace("ARG", arg).replace("  because", " because")
    program = parse(text.strip())
    if not message:
        verify(program, "lowering")
        return
    with pytest.raises(VerifyError, match=message):
        verify(program, "lowering")


def test_no_guard_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling asks no size for its value: that would make Dynamo compile again."""
    counts: list[tuple[int, int]] = []
    compile_graph = litz.compiler.compile_graph

    def counted(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        sizes = (n.meta.get("val") for n in gm.graph.nodes)
        env = next(x.node.shape_env for x in sizes if isinstance(x, torch.SymInt))
        before = len(env.guards)
        call = compile_graph(gm, *args, **kwargs)
        counts.append((before, len(env.guards)))
        return call

    monkeypatch.setattr(litz.compiler, "compile_graph", counted)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)
    ).eval()
    compiled = torch.compile(model, backend="litz", dynamic=True)
    with torch.no_grad():
        for size in ((2, 3, 20, 21), (3, 3, 14, 17), (5, 3, 9, 30)):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), model(x))
    ((before, after),) = counts
    assert before == after
