"""Steps drawn from Litz's own table of primitive ops, by the PyTorch function of each row."""

from __future__ import annotations

from functools import lru_cache

import torch

from litz.ir.ops import OPS, OpRow
from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Step

# Not as exact in eager as in Litz: vectors of eager's give nan for a small divisor (fmod), or do
# not round right (sqrt, reciprocal).
INEXACT = ("sqrt", "reciprocal")
LEFT_OUT = ("fmod", "where", "mostly", "rand", "randn", "randint")
# Continuous: rounded arguments make rounded results.
SMOOTH = ("add", "sub", "mul", "neg", "abs", "maximum", "minimum", "fmax", "fmin")


@lru_cache(maxsize=1)
def rows() -> tuple[OpRow, ...]:
    """The rows that are a function of ``torch`` on any numbers."""
    found = [
        r
        for r in OPS.values()
        if r.samples == "any" and r.name not in LEFT_OUT and hasattr(torch, r.reference or r.name)
    ]
    return tuple(sorted(found, key=lambda r: r.name))


def _accepts(row: OpRow, x: torch.Tensor) -> bool:
    if x.dtype is torch.bool:
        kind = "b"
    elif not x.is_floating_point():
        kind = "i"
    else:
        kind = "f"
    return kind in row.kinds[0]


def from_table(d: Draft) -> Made:
    """One row of the table on values of its kinds, special values included."""
    row = d.rng.choice(rows())
    k = d.exact(lambda t: _accepts(row, t))
    if k is None or d.grad:
        return None
    args = [k]
    if row.arity == 2:
        other = d.partner(k, same_type=row.kinds[0] == "f")
        if other is None or not _accepts(row, d.tensor(other)):
            return None
        args.append(other)
    names = ", ".join(f"{{{n}}}" for n in range(len(args)))
    text = f"torch.{row.reference or row.name}({names})"
    if row.name in ("maximum", "minimum", "fmax", "fmin"):
        text += " + 0"  # which of 0.0 and -0.0 is the larger is nobody's promise
        if d.tensor(k).dtype is torch.bool and d.tensor(args[-1]).dtype is torch.bool:
            text = text.removesuffix(" + 0")
    rough = row.ulp != 0 or row.ulp64 != 0 or row.name in INEXACT
    kind = "rough" if rough else "exact" if row.name in SMOOTH else "discrete"
    return Step(text, tuple(args), kind)


MAKERS: tuple[tuple[float, Maker], ...] = ((2, from_table),)
