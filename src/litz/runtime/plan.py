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

import struct
from collections.abc import Callable, Sequence
from typing import Final

from litz.dataclass import dataclass
from litz.runtime.shipped import BY_VALUE, ELSEWHERE, OPS, VALUES

TYPES: Final = {"Tensor": 0, "int": 1, "float": 2, "bool": 3, "ScalarType": 4, "number": 5}
DIRECT: Final = ("aten.addmm.out", "aten.baddbmm.out")
"""Operators that PyTorch's C functions have and its dispatcher does not take, for their numbers; an
instruction says which by its place here (those of GPUs behind those of CPUs), and -1 for the
dispatcher."""

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
    a word.
    """

    inputs: int
    tensors: int
    numbers: tuple[int | None, ...]
    objects: tuple[tuple[str, str], ...]
    segments: tuple[str, ...]
    kernels: tuple[str, ...]
    words: bytes


def packed(words: Sequence[int]) -> bytes:
    """Words as a plan has them.  Raises struct.error for one of more than 64 bits."""
    return struct.pack(f"<{len(words)}q", *words)


class _Reader:
    """Walks over a plan's words; ``leaf`` makes a text of an operand, by its kind, or raises."""

    def __init__(self, plan: Plan, leaf: Callable[[str, int], str]) -> None:
        self.words = (word for (word,) in struct.iter_unpack("<q", plan.words))
        self.leaf = leaf

    def next(self) -> int:
        word: int = next(self.words)
        return word

    def one(self, kind: str) -> str:
        match kind:
            case "p":
                text, how = f"{self.one('t')}+{self.next()}", self.next()
                return text + ("?" if how & ELSEWHERE else "") + ("!" if how & BY_VALUE else "")
            case "k":
                return f"{self.one('o')}={self.one('v')}"
            case "q":
                return f"{self.one('o')}={self.one('s')}"
            case "s":
                self.next()
                return self.one("v")
            case "v":
                name, spec = _VALUES[self.next()]
                text = self.all(spec)
                return f"{name}{text}" if spec.startswith("*") else text
        return self.leaf(kind, self.next())

    def all(self, spec: str) -> str:
        kinds = iter(spec)
        texts = []
        for kind in kinds:
            if kind == "*":
                kind = next(kinds)
                texts.append("[" + ", ".join(self.one(kind) for _ in range(self.next())) + "]")
            else:
                texts.append(self.one(kind))
        return " ".join(texts)


def plan_text(plan: Plan) -> str:
    """A plan as text, an instruction a line.  Raises ValueError for one that is not well formed."""
    bounds = {"t": plan.tensors, "r": plan.tensors, "i": len(plan.numbers), "o": len(plan.objects)}

    def leaf(kind: str, n: int) -> str:
        if kind == "r" and n < 0:
            return "_" if n == -1 else leaf("i", -2 - n)
        if kind in bounds and not 0 <= n < bounds[kind]:
            raise ValueError(f"a plan without a register or object {kind}{n}")
        if kind == "i":
            fixed = plan.numbers[n]
            return f"i{n}" if fixed is None else str(fixed)
        if kind == "o":
            return plan.objects[n][1]
        return str(n) if kind == "n" else f"t{n}"

    reader = _Reader(plan, leaf)
    lines = []
    try:
        for op in reader.words:
            name, spec = _OPS[op]
            lines.append(f"{name} {reader.all(spec)}")
    except (StopIteration, RuntimeError, IndexError, struct.error) as e:
        raise ValueError(f"a plan that ends early or has unknown words: {e}") from e
    if not lines or not lines[-1].startswith("return"):
        raise ValueError("a plan that does not return")
    return "\n".join(lines)
