"""Program passes: what is decided of a program between lowering and the schedule.

A pass is a frozen dataclass with a name, typed fields and one function from program to program.
``pipeline`` is the order; printed, it has a line a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, Protocol

from litz.dataclass import dataclass
from litz.errors import CompilationError
from litz.ir.program import Program
from litz.ir.verify import verify
from litz.options import GraphHook
from litz.passes.attend import FindAttention
from litz.passes.bias import SeparateBias
from litz.passes.choose import ChooseContractions, TakeTemplates
from litz.passes.communicate import CommunicateInPlace
from litz.passes.convolve import TakeConvolutions
from litz.passes.costs import LARGE, Costs
from litz.passes.epilogues import TakeEpilogues
from litz.passes.flash import TakeAttention
from litz.passes.pad import PadContractions
from litz.passes.place import FillInPlace
from litz.passes.rivals import Behind, Rivals
from litz.passes.rows import ReduceByRows
from litz.passes.updates import TakeUpdates

EXACT: Final = ("relu",)  # what ATen's call with a product gives bit by bit, nan included


class ProgramPass(Protocol):
    """name: for logs and errors."""

    name: ClassVar[str]

    def __call__(self, program: Program, /) -> Program: ...


@dataclass(frozen=True)
class Pipeline:
    passes: tuple[ProgramPass, ...]

    def __iter__(self) -> Iterator[ProgramPass]:
        return iter(self.passes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.passes))


def pipeline(
    blocks: tuple[str, ...],
    costs: Mapping[str, Costs] | None = None,
    measured: bool = False,
    rivals: Rivals | None = None,
    convolved: tuple[str, ...] = (),
) -> Pipeline:
    """The passes in order.  blocks: kinds of devices whose kernels run over blocks.

    costs: of those that have matrix units for templates; None: all are large GPUs.  Attention is
    found while its products are such.  Templates take any sizes: products that ATen computes grow
    behind that choice.  measured: whether products of libraries are measured when they first run.
    rivals: what measures templates and epilogues beside products and kernels.
    convolved: kinds of devices where a library computes convolutions with what is behind them.
    """
    large = dict.fromkeys(blocks, LARGE)
    known = large if costs is None else costs
    kinds = blocks if measured else ()
    fill = FillInPlace(blocks), SeparateBias(), CommunicateInPlace()
    calls = PadContractions({**large, **known}), ChooseContractions(kinds), *fill
    exact = EXACT if blocks else ()
    last = Behind(rivals, calls) if rivals else None
    epilogues, convolutions = (
        TakeEpilogues(kinds, exact, last),
        TakeConvolutions(convolved, bool(rivals), last),
    )
    behind = (epilogues, convolutions, *calls)
    templates = Behind(rivals, behind) if rivals else None
    taken = TakeTemplates(known, epilogues=epilogues, convolutions=convolutions, rivals=templates)
    attention = FindAttention(known), TakeAttention(known, templates)
    return Pipeline((*attention, taken, *behind, ReduceByRows(blocks), TakeUpdates(blocks)))


def run_passes(
    program: Program,
    passes: Pipeline,
    *,
    hooks: Callable[[str], Sequence[GraphHook]] = lambda group: (),
    check: bool = False,
) -> Program:
    """Run a pipeline between the user's hooks.

    check: whether the program is verified behind every pass.
    Raises CompilationError where a hook fails or leaves no program that can be compiled, and
    VerifyError where a pass does.
    """
    for hook in hooks("before_program_passes"):
        program = run_hook(program, hook)
    for p in passes:
        program = p(program)
        if check:
            verify(program, p.name)
    for hook in hooks("after_program_passes"):
        program = run_hook(program, hook)
    return program


def run_hook(program: Program, hook: GraphHook) -> Program:
    """What a user's pass makes of a program: it may not change inputs and number of results."""
    what = f"the program pass {hook.uuid()!r}"
    try:
        made = hook(program)
        if not isinstance(made, Program):
            raise TypeError(f"it returned {made!r}")
        verify(made, str(hook.uuid()))
    except Exception as e:
        raise CompilationError(f"{what} failed: {type(e).__name__}: {e}") from e
    if (made.inputs, len(made.outputs)) != (program.inputs, len(program.outputs)):
        raise CompilationError(f"{what} changed the program's inputs or the number of its results")
    return made
