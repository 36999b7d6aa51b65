"""How generated host code spells the callables of extern calls."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from litz.dataclass import dataclass
from litz.ir.program import Extern
from litz.loading.values import walk
from litz.runtime.convolutions import convolution
from litz.runtime.products import product

# PyTorch's own bindings of these take the same arguments and cost a third less a call.
_QUICK: Final = ("mm", "bmm", "addmm", "baddbmm")


_INFIX: Final = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%",
    "pow": "**", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_OPERATORS: Final[Mapping[object, str]] = {
    getattr(operator, name): text for name, text in _INFIX.items()
}
_BUILTINS: Final[Mapping[object, str]] = {
    torch.sym_float: "float",
    torch.sym_max: "max",
    torch.sym_min: "min",
    **{f: f.__name__ for f in (abs, float, int, max, min, round)},
}


@dataclass(frozen=True)
class Target:
    """A callable as source text: ``path`` from the module ``torch`` down, or None: a value to bind.

    out: names of the keyword arguments that take the memory of the results, in order.
    """

    path: str | None
    value: object
    out: tuple[str, ...] = ()


def plain_target(extern: Extern) -> Target:
    """The callable as it is."""
    path = _torch_path(extern.target, extern.target_name)
    return Target(_quick(path), extern.target)


def number_text(target: object, args: Sequence[str]) -> str | None:
    """A call of one of Python's own operators as Python writes it."""
    if not callable(target):
        return None
    infix = _OPERATORS.get(target)
    if infix is not None and len(args) == 2:
        left, right = (a if a.isidentifier() else f"({a})" for a in args)
        return f"{left} {infix} {right}"
    if target in _BUILTINS:
        return f"{_BUILTINS[target]}({', '.join(args)})"
    return None


def out_target(extern: Extern) -> Target | None:
    """What writes into given memory, or None where the op has nothing of that form."""
    if extern.target in (product, convolution):
        return Target(None, extern.target, ("out", "aux")[: len(extern.outputs)])
    return None if None in extern.outputs else _out_target(extern.target, len(extern.outputs))


@lru_cache(maxsize=1024)
def _out_target(target: Any, count: int) -> Target | None:
    packet = getattr(target, "overloadpacket", None)
    if packet is None:
        return None
    wanted = _inputs(target)
    for name in (target._overloadname, *packet.overloads()):
        overload = getattr(packet, name)
        outs = tuple(a.name for a in overload._schema.arguments if a.is_out)
        if len(outs) == count and _inputs(overload) == wanted:
            path = _torch_path(overload, str(overload))
            return Target(_quick(path), overload, outs)
    return None


def _inputs(overload: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]


def _torch_path(target: object, name: str) -> str | None:
    """The path under ``torch`` that leads to ``target`` in any process, or None."""
    for path in (f"torch.ops.{name}", f"torch.{name}", name if name.startswith("torch.") else ""):
        if path and walk(torch, path.partition(".")[2]) is target:
            return path
    return None


def _quick(path: str | None) -> str | None:
    for name in _QUICK:
        if path in (f"torch.ops.aten.{name}.default", f"torch.ops.aten.{name}.out"):
            return f"torch.{name}"
    return path
