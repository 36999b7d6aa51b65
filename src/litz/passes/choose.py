"""Who computes each matrix product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import torch

from litz.ir.program import Contraction, Extern, Program

aten = torch.ops.aten

ATEN: Final = "a matrix product: ATen's libraries compute it"
# By whether it is of batches, and whether something is added.
_OPERATORS: Final = {
    (False, False): aten.mm.out,
    (False, True): aten.addmm.out,
    (True, False): aten.bmm.out,
    (True, True): aten.baddbmm.out,
}


@dataclass(frozen=True)
class ChooseContractions:
    """Every contraction becomes a call of ATen, with the reason."""

    name: ClassVar[str] = "choose contractions"

    def __call__(self, program: Program) -> Program:
        if not any(isinstance(n, Contraction) for n in program.nodes):
            return program
        nodes = tuple(_call(n) if isinstance(n, Contraction) else n for n in program.nodes)
        return replace(program, nodes=nodes)


def _call(c: Contraction) -> Extern:
    target = _OPERATORS["b" in c.axes, c.bias is not None]
    numbers = (("beta", c.beta), ("alpha", c.alpha))
    reason = f"{ATEN}; {c.reason}" if c.reason else ATEN
    return Extern(
        c.name, target, str(target), c.refs(), tuple((k, v) for k, v in numbers if v != 1),
        (c.out,), c.device, reason, out_variant=True, origins=c.origins,
    )  # fmt: skip
