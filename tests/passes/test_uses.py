"""Who reads and writes what is found once, however many products ask."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from test_pipeline import Pass

import litz
from litz.ir.program import Contraction, Extern, Loops, Program
from litz.passes.choose import ChooseContractions, TakeTemplates
from litz.passes.costs import LARGE
from litz.passes.opened import opened
from litz.passes.place import FillInPlace
from litz.passes.uses import Uses

Tensor = torch.Tensor


def lowered(fn: Any, *args: Tensor) -> Program:
    """A program before any pass."""
    found: list[Program] = []

    def look(program: Program) -> Program:
        found.append(program)
        return program

    torch._dynamo.reset()
    litz.explain(fn, *args, options={"before_program_passes": Pass(look)})
    return found[0]


def layers(count: int) -> Program:
    w = torch.randn(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(count):
            x = torch.cat([x @ w, torch.softmax(x @ w, -1) @ w], 1)[:, ::2].relu()
        return x

    return lowered(fn, torch.randn(8, 16), w)


def test_it_is_what_the_nodes_say() -> None:
    p = layers(3)
    uses = Uses(p)
    for b in p.buffers:
        makers = [n for n in p.nodes if b in map(p.root, n.write_buffers())]
        readers = [n for n in p.nodes if b in map(p.root, n.read_buffers())]
        assert [*uses.makers.get(b, {}).values()] == makers
        assert [*uses.readers.get(b, {}).values()] == readers
        assert uses.maker(b) is (makers[0] if p.root(b) == b and len(makers) == 1 else None)
    assert uses.shown == {p.root(r.buffer) for r in p.output_refs()}


def test_calls_are_opened_as_if_they_had_always_been() -> None:
    a, b = torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 32, dtype=torch.int8)
    p = lowered(lambda a, b: torch._int_mm(a, b) + torch._int_mm(a + 1, b), a, b)
    before = Uses(p)
    text = [{k: [*v] for k, v in uses.items()} for uses in (before.makers, before.readers)]
    for call in p.nodes:
        if isinstance(call, Extern) and (parts := opened(p, call)):
            made, anew = before.opened(parts.program, call, parts.nodes), Uses(parts.program)
            for mine, theirs in ((made.makers, anew.makers), (made.readers, anew.readers)):
                assert {k: v for k, v in mine.items() if v} == theirs
            order = sorted((n.name for n in parts.program.nodes), key=made.places.__getitem__)
            assert order == [n.name for n in parts.program.nodes]
    assert text == [{k: [*v] for k, v in uses.items()} for uses in (before.makers, before.readers)]


@pytest.mark.parametrize("of", [TakeTemplates({"cpu": LARGE}), FillInPlace(())])
def test_asking_grows_with_the_program(of: Any) -> None:
    def asked(program: Program) -> int:
        if isinstance(of, FillInPlace):
            program = ChooseContractions()(program)
        with (
            mock.patch.object(
                Loops, "read_buffers", autospec=True, side_effect=Loops.read_buffers
            ) as a,
            mock.patch.object(
                Extern, "read_buffers", autospec=True, side_effect=Extern.read_buffers
            ) as b,
            mock.patch.object(
                Contraction, "read_buffers", autospec=True, side_effect=Contraction.read_buffers
            ) as c,
        ):
            of(program)
        return sum(m.call_count for m in (a, b, c))

    few, many = asked(layers(4)), asked(layers(16))
    assert 0 < many <= 5 * few
