"""The pipeline of program passes, and users' passes around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import litz
from litz.errors import CompilationError
from litz.ir.parse import parse
from litz.ir.program import Contraction, Extern, Program
from litz.ir.text import program_text
from litz.options import make_options
from litz.passes.pipeline import pipeline

Tensor = torch.Tensor


@dataclass(frozen=True)
class Pass:
    """A user's pass."""

    run: Callable[[Program], Any]

    def __call__(self, program: Program) -> Any:
        return self.run(program)

    def uuid(self) -> str:
        return "mine, version 1"


def product(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w)


ARGS = torch.ones(4, 3), torch.ones(3, 2)


def test_a_pipeline_prints_itself() -> None:
    zero, first, second, third, convolutions, fourth, fifth, *last = str(pipeline(("cuda",))).split(
        "\n"
    )
    assert zero.startswith("FindAttention(costs={'cuda': Costs(matrix=")
    assert first.startswith("TakeAttention(costs={'cuda': Costs(matrix=")
    assert second.startswith("TakeTemplates(costs={'cuda': Costs(matrix=")
    assert (third, fifth) == (
        "TakeEpilogues(measured=(), plain=('relu',))",
        "ChooseContractions(measured=())",
    )
    assert convolutions == "TakeConvolutions(on=(), built=False)"
    assert fourth.startswith("PadContractions(costs={'cuda': Costs(matrix=")
    assert last == [
        "FillInPlace(blocks=('cuda',))",
        "SeparateBias()",
        "CommunicateInPlace()",
        "ReduceByRows(blocks=('cuda',))",
        "TakeUpdates(blocks=('cuda',))",
    ]


def test_programs_are_shown_with_the_passes_that_made_them(capsys: Any) -> None:
    litz.explain(product, *ARGS, options={"show": "program"})
    text = capsys.readouterr().err.split("--- program ---\n")[1]
    names = "# FindAttention(costs={})\n# TakeAttention(costs={})\n# TakeTemplates(costs={})\n"
    names += "# TakeEpilogues(measured=(), plain=())\n# TakeConvolutions(on=(), built=False)\n"
    names += "# PadContractions(costs={})\n# ChooseContractions(measured=())\n"
    names += "# FillInPlace(blocks=())\n# SeparateBias()\n# CommunicateInPlace()\n"
    names += "# ReduceByRows(blocks=())\n# TakeUpdates(blocks=())\n"
    assert text.startswith(f"{names}program(")
    assert isinstance(parse(text).nodes[0], Extern)


def test_passes_of_users_run_before_and_behind() -> None:
    seen: list[type] = []

    def look(program: Program) -> Program:
        seen.append(type(program.nodes[0]))
        return program

    options = {"before_program_passes": Pass(look), "after_program_passes": Pass(look)}
    litz.explain(product, *ARGS, options=options)
    assert seen == [Contraction, Extern]


def test_passes_of_users_change_programs() -> None:
    def reason(program: Program) -> Program:
        nodes = [replace(n, reason="mine") for n in program.nodes if isinstance(n, Contraction)]
        return replace(program, nodes=(*nodes, *program.nodes[1:]))

    report = litz.explain(product, *ARGS, options={"before_program_passes": Pass(reason)})
    assert report.externs[0].reason.endswith("; mine")
    torch.testing.assert_close(report.result, product(*ARGS))


@pytest.mark.parametrize(
    "run, message",
    [
        (lambda p: None, "returned None"),
        (lambda p: replace(p, inputs=p.inputs[:1]), "mine, version 1"),
        (lambda p: replace(p, outputs=(*p.outputs, None)), "number of its results"),
        (lambda p: replace(p, nodes=p.nodes[1:]), "before anything writes it"),
    ],
)
def test_passes_that_break_a_program_are_named(run: Callable[[Program], Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as e:
        litz.explain(product, *ARGS, options={"before_program_passes": Pass(run)})
    assert CompilationError.__name__ in f"{type(e.value)} {e.value!r} {e.value.__cause__!r}"


def test_passes_of_users_are_part_of_the_key() -> None:
    given = make_options({"after_program_passes": Pass(lambda p: p)}, environ={})
    assert "mine, version 1" in given.key() and given.key() != make_options(environ={}).key()


def test_comments_above_a_program_are_read_over() -> None:
    text = program_text(Program((), {}, (), ()), "one\ntwo")
    assert text.startswith("# one\n# two\nprogram") and parse(text) == Program((), {}, (), ())
