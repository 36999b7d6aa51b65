"""Collectives that reduce or receive in the memory of a value that nothing else reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final

import torch

from litz.dataclass import dataclass
from litz.index import ZERO, contiguous_strides
from litz.ir.program import Buffer, Extern, Program, TensorRef
from litz.passes.uses import Uses
from litz.runtime.collectives import is_collective

FORMS: Final = frozenset({"all_reduce", "broadcast"})
"""What PyTorch computes of a copy of its argument, or of the argument itself by the form with _."""


@dataclass(frozen=True)
class CommunicateInPlace:
    """Leaves out the copy of what is only computed to be reduced or received.

    What the program is given or returns otherwise, and what is read again, is copied as ever.
    """

    name: ClassVar[str] = "communicate in place"

    def __call__(self, program: Program) -> Program:
        calls = {n.name: n for n in program.nodes if isinstance(n, Extern) and _form(n)}
        if not calls:
            return program
        uses, buffers = Uses(program), dict(program.buffers)
        for n in calls.values():
            given = _given_away(uses, n)
            (result,) = n.outputs
            if given is not None and result is not None:
                target: Any = getattr(torch.ops._c10d_functional, f"{_form(n)}_").default
                calls[n.name] = replace(
                    n, target=target, target_name=str(target), mutates=(given.name,)
                )
                buffers[result] = replace(buffers[result], alias=given.name)
        nodes = tuple(calls.get(n.name, n) for n in program.nodes)
        return replace(program, nodes=nodes, buffers=buffers)


def _form(n: Extern) -> str:
    """The name of a collective that has a form in place, else ""."""
    name = n.target_name.split(".")[1] if is_collective(n.target) else ""
    return name if name in FORMS else ""


def _given_away(uses: Uses, n: Extern) -> Buffer | None:
    """The memory of its argument, where nobody else reads or sees it."""
    (ref,) = (r for r in n.args if isinstance(r, TensorRef))
    buffer = uses.program.buffers[ref.buffer]
    whole = ref.offset == ZERO and ref.shape == buffer.shape
    row_major = ref.strides == contiguous_strides(ref.shape)
    own = buffer.kind in ("temp", "fresh") and buffer.alias is None
    if not (whole and own and row_major):
        return None
    alone = [*uses.readers[buffer.name]] == [n.name] and buffer.name not in uses.shown
    return buffer if alone else None
