"""Which operators may be compiled by themselves, and putting their kernels over ATen's."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from litz.eager.kernel import Decision, Operator
from litz.errors import OptionError
from litz.options import make_options
from litz.runtime.dispatcher import Kernels, is_composite, operator_names

__all__ = ["Use", "operator_of"]

KEYS: Final = {"cpu": "CPU", "cuda": "CUDA"}


class Use:
    """Operators whose calls Litz compiles, from its making to ``close``; a context too.

    ``decisions``: what became of each kind of call, in the order of their first calls.
    """

    def __init__(
        self, names: Sequence[str], device: str, options: Mapping[str, Any] | None
    ) -> None:
        if device not in KEYS:
            raise OptionError(f'litz: operators are compiled for "cpu" or "cuda", not {device!r}')
        if device == "cuda" and not torch.cuda.is_available():
            raise OptionError("litz: PyTorch finds no CUDA device")
        chosen = make_options(options)
        ops = [operator_of(name, KEYS[device]) for name in dict.fromkeys(names)]
        kernels = Kernels(KEYS[device])
        try:
            self.operators = {op._name: Operator(op, kernels.own(op), chosen) for op in ops}
        except (LookupError, RuntimeError) as e:
            raise OptionError(f"litz: {e}") from None
        self._kernels: Kernels | None = kernels
        for op in ops:
            kernels.put(op, self.operators[op._name].kernel())

    def close(self) -> None:
        """Have ATen's own kernels run again; a second time it does nothing."""
        if self._kernels is not None:
            self._kernels.close()
            self._kernels = None

    def __enter__(self) -> Use:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(d for op in self.operators.values() for d in op.decisions)

    def __str__(self) -> str:
        return "\n".join(map(str, self.decisions))


def operator_of(name: str, key: str) -> torch._ops.OpOverload:
    """The operator of a name like ``aten::add.Tensor``.  key: the dispatcher's, of a device.

    Raises OptionError where there is none, or it cannot be compiled by itself.
    """
    room, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    known = operator_names()
    if name not in known:
        full = name if rest else f"aten::{name}"
        near = [x for x in known if x == full or x.startswith(f"{full}.")]
        near = near or difflib.get_close_matches(full, known, n=3)
        hint = f"; there are {', '.join(sorted(near))}" if near else ""
        raise OptionError(f"litz: no operator {name!r}{hint}")
    if room != "aten":
        raise OptionError(f"litz: {name} is not one of ATen's operators")
    op: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    if reason := _refused(op, key):
        raise OptionError(f"litz: {name} cannot be compiled by itself: it {reason}")
    return op


def _refused(op: torch._ops.OpOverload, key: str) -> str:
    """Why an operator cannot be compiled by itself; "" if it can."""
    schema = op._schema
    if schema.is_mutable:
        return "writes into its arguments; name the form that returns a new tensor"
    if any(x.alias_info for x in (*schema.arguments, *schema.returns)):
        return "returns a view"
    if is_composite(op, key):
        return "is made of other operators; name those that it calls"
    if not any("Tensor" in str(a.type) for a in schema.arguments):
        return "takes no tensor"
    kinds = [str(r.type) for r in schema.returns]
    if kinds != ["List[Tensor]"] and {*kinds} != {"Tensor"}:
        return "returns something other than tensors"
    return "draws random numbers" if torch.Tag.nondeterministic_seeded in op.tags else ""
