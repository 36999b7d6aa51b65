"""Plans: host programs as data that the native executor runs (``litz.runtime.executor``).

A plan works on registers.  Tensor registers hold tensors, the arguments first, then what the
program makes; number registers hold 64-bit integers, of which some are constant.  An instruction is
the number of its row in ``OPS`` (``litz.runtime.shipped``) and its operands, all integers in one
row of words::

    t       a tensor register           i       a number register
    o       an entry of ``objects``     n       a number as it is
    v       a Python value              p       an address: register, bytes behind it, and the
    k       a keyword: name and value           bits of ``ELSEWHERE`` and ``BY_VALUE``
    r       where a result goes         s       a value for PyTorch's dispatcher: type and value
    q       a keyword: name and s       c       an argument of a launch: row in ``CELLS``, place
                                        *x      how many of x, then these

A result goes into a tensor register (a Python float too), nowhere (-1), or into the number register
-2 - r.  A Python value is the number of its row in ``VALUES`` and an operand, or counted values.  A
type is the number of its row in ``TYPES``, and the bits of ``OPTIONAL`` (of elements), ``LIST`` and
``OPTIONAL_LIST``.

How a kernel on a GPU is launched is known when it is bound, and may change when it is first called.
It is a plan of its own, a *launcher* (``litz.runtime.launchers``): number registers, the kernel's
integers first, and no others.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from litz.dataclass import dataclass
from litz.runtime.shipped import BY_VALUE, ELSEWHERE, OPS, VALUES

TYPES: Final = {"Tensor": 0, "int": 1, "float": 2, "bool": 3, "ScalarType": 4, "number": 5}
DIRECT: Final = ("aten.addmm.out", "aten.baddbmm.out", "aten.mm.out", "aten.bmm.out")
"""Operators on floats that PyTorch has C functions for, which cost less than its dispatcher and
take numbers, as that does not.  An instruction says which by twice its place here, and one more
for GPUs; -1: the dispatcher."""

_OPS: Final = tuple(OPS.items())
_VALUES: Final = tuple(VALUES.items())
NUMBER_OF: Final = {name: n for n, name in enumerate(OPS)}
VALUE_OF: Final = {name: n for n, name in enumerate(VALUES)}


@dataclass(frozen=True)
class Plan:
    """A host program for the native executor.

    inputs: how many arguments there are, in the first tensor registers.  tensors: how many tensor
    registers.  numbers: of each number register its constant, or None.  objects: what instructions
    name, each a kind and a text: ``literal`` (of Python), ``float`` (hexadecimal), ``torch`` (a
    path from that module), ``device``, ``name`` (a module and a path with a colon between), and
    ``value`` (of the host program).  segments, kernels: names.  words: the instructions, 8 bytes
    a word.  names: of tensor registers, "" for what has none; empty where nobody reads them.
    """

    inputs: int
    tensors: int
    numbers: tuple[int | None, ...]
    objects: tuple[tuple[str, str], ...]
    segments: tuple[str, ...]
    kernels: tuple[str, ...]
    words: bytes
    names: tuple[str, ...] = ()


def packed(words: Sequence[int]) -> bytes:
    """Words as a plan has them.  Raises struct.error for one of more than 64 bits."""
    return struct.pack(f"<{len(words)}q", *words)


def kinds(spec: str) -> list[str]:
    """The kinds of operands that a row of ``OPS`` or ``VALUES`` names: ``t``, ``*i``, .."""
    return re.findall(r"\*?.", spec)


def instructions(plan: Plan) -> Iterator[tuple[str, list[Any]]]:
    """A plan's instructions in order: names, and operands by the kinds of their rows.

    An address is (register, bytes, bits), a keyword (name, value), a value (its row in ``VALUES``,
    operand); types are left out.  Raises ValueError for words that are no instructions.
    """
    words = (word for (word,) in struct.iter_unpack("<q", plan.words))

    def one(kind: str) -> Any:
        match kind:
            case "p":
                return next(words), next(words), next(words)
            case "k" | "q":
                return next(words), one("v" if kind == "k" else "s")
            case "s":
                next(words)
                return one("v")
            case "v":
                name, spec = _VALUES[next(words)]
                return name, one(spec)
        return [one(kind[1]) for _ in range(next(words))] if kind[0] == "*" else next(words)

    try:
        for op in words:
            name, spec = _OPS[op]
            yield name, [one(kind) for kind in kinds(spec)]
    except (StopIteration, RuntimeError, IndexError, struct.error) as e:
        raise ValueError(f"a plan that ends early or has unknown words: {e}") from e


def plan_text(plan: Plan) -> str:
    """A plan as text, an instruction a line.  Raises ValueError for one that is not well formed."""
    bounds = {"t": plan.tensors, "r": plan.tensors, "i": len(plan.numbers), "o": len(plan.objects)}

    def text(kind: str, x: Any) -> str:
        if kind[0] == "*":
            return f"[{', '.join(text(kind[1], one) for one in x)}]"
        if kind == "p":
            register, offset, how = x
            marks = ("?" if how & ELSEWHERE else "") + ("!" if how & BY_VALUE else "")
            return f"{text('t', register)}+{offset}{marks}"
        if kind in "kq":
            return f"{text('o', x[0])}={text('v', x[1])}"
        if kind in "sv":
            name, content = x
            return (name if VALUES[name][0] == "*" else "") + text(VALUES[name], content)
        if kind == "r" and x < 0:
            return "_" if x == -1 else text("i", -2 - x)
        if kind in bounds and not 0 <= x < bounds[kind]:
            raise ValueError(f"a plan without a register or object {kind}{x}")
        if kind == "i":
            return f"i{x}" if plan.numbers[x] is None else str(plan.numbers[x])
        return plan.objects[x][1] if kind == "o" else f"{x}" if kind == "n" else f"t{x}"

    lines = [
        " ".join([op, *map(text, kinds(OPS[op]), operands)]) for op, operands in instructions(plan)
    ]
    if not lines or not lines[-1].startswith("return"):
        raise ValueError("a plan that does not return")
    return "\n".join(lines)
