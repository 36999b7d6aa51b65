"""Matrix products by libraries: what a library can take, its ways to compute it, and their calls.

``product`` is what host programs name: ATen's own call.  Where a graph may be tuned, ``Products``
takes its place: each problem's ways, of all libraries, are measured once, and kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from litz.dataclass import dataclass
from litz.runtime.instance import Instance, Problem
from litz.runtime.offers import MARKS, Chooser, Offers, matrix

aten = torch.ops.aten
Tensor = torch.Tensor
EPILOGUES: Final = ("", "relu", "gelu", "gelu_backward")  # gelu: in its form by tanh


@dataclass(frozen=True, slots=True)
class Operands:
    """The tensors of a call."""

    left: Tensor
    right: Tensor
    added: Tensor | None
    out: Tensor
    scales: tuple[Tensor, Tensor] | None = None
    aux: Tensor | None = None

    @property
    def written(self) -> int:
        """How many of the last may be written."""
        return 1 if self.aux is None else 2

    @property
    def all(self) -> tuple[Tensor, ...]:
        """All of them; what may be written is the last: ``aux``, and the result."""
        added = () if self.added is None else (self.added,)
        aux = () if self.aux is None else (self.aux,)
        return self.left, self.right, *added, *(self.scales or ()), *aux, self.out

    def like(self, args: Sequence[Any]) -> Operands:
        """The same with tensors in the order of ``all``."""
        (left, right, *rest), out = args[:-1], args[-1]
        added = None if self.added is None else rest.pop(0)
        aux = None if self.aux is None else rest.pop()
        return Operands(left, right, added, out, (rest[0], rest[1]) if rest else None, aux)

    def marked(self) -> Operands:
        left, aux = self.left.clone(), self.aux
        for row, mark in enumerate(MARKS[: left.shape[-2]]):
            left[..., row, 0] = mark
        if aux is not None:
            aux = aux.clone()
            for column, mark in enumerate(MARKS[: aux.shape[-1]]):
                aux[..., len(MARKS) : 2 * len(MARKS), column] = mark
        return replace(self, left=left, out=torch.empty_like(self.out), aux=aux)

    def reached(self) -> Tensor:
        return self.out[..., : 2 * len(MARKS), :]


Call = Callable[[Operands], None]
Library = Offers[Problem, Operands]


# --- the library that every process has -----------------------------------------------------------


class Aten:
    """ATen's operators as a library: activations apart, and where it ``fuses``, as epilogues."""

    version = f"aten {torch.__version__}"

    def __init__(self, fuses: bool = False) -> None:
        self._fuses = fuses

    def instances(self, problem: Problem, most: int) -> Sequence[Instance]:
        apart, p = Instance(self.version), problem
        row = p.added is not None and len(p.added.shape) == 1 and len(p.left.shape) == 2
        row = row and p.aux is None
        return (
            (apart, replace(apart, what="fused")) if p.fusable and row and self._fuses else (apart,)
        )

    def told(self, problem: Problem) -> None:
        return None

    def bind(self, problem: Problem, instance: Instance) -> Call:
        p = problem
        if p.scales is not None:
            return partial(_scaled, p.out.dtype, p.fast)
        added = {"beta": p.beta, "alpha": p.alpha}
        batches = len(p.left.shape) == 3
        if instance.what == "fused":
            fused = partial(aten._addmm_activation.out, use_gelu=p.epilogue == "gelu", **added)
            return lambda o: fused(o.added, o.left, o.right, out=o.out)
        if p.added is None and p.alpha == 1:
            plain = torch.bmm if batches else torch.mm

            def call(o: Operands) -> None:
                plain(o.left, o.right, out=o.out)
        else:
            added["beta"] = 0.0 if p.added is None else p.beta  # of 0 not even nan counts
            adding: Any = partial(torch.baddbmm if batches else torch.addmm, **added)

            def call(o: Operands) -> None:
                adding(o.out if o.added is None else o.added, o.left, o.right, out=o.out)

        if p.aux is not None:
            backward = p.epilogue == "gelu_backward"
            return partial(_backward if backward else _keeping, call)
        return call if not p.epilogue else partial(_then, call, _activation(p.epilogue))


def _scaled(dtype: torch.dtype, fast: bool, o: Operands) -> None:
    assert o.scales is not None
    given, (a, b) = {"bias": o.added, "out_dtype": dtype, "use_fast_accum": fast}, o.scales
    aten._scaled_mm.out(o.left, o.right, a, b, **given, out=o.out)


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name == "relu":
        return torch.relu_
    return partial(aten.gelu_.default, approximate="tanh")


def _then(call: Call, activation: Callable[[Tensor], Tensor], o: Operands) -> None:
    call(o)
    activation(o.out)


def _keeping(call: Call, o: Operands) -> None:
    assert o.aux is not None
    call(replace(o, out=o.aux))
    aten.gelu.out(o.aux, approximate="tanh", out=o.out)


def _backward(call: Call, o: Operands) -> None:
    call(o)
    aten.gelu_backward.grad_input(o.out, o.aux, approximate="tanh", grad_input=o.out)


# --- a call ---------------------------------------------------------------------------------------


def problem_of(
    o: Operands, beta: float = 1, alpha: float = 1, epilogue: str = "", fast: bool = False
) -> Problem:
    added = None if o.added is None else matrix(o.added)
    single = o.left.dtype is torch.float32
    scales = None if o.scales is None else (matrix(o.scales[0]), matrix(o.scales[1]))
    aux = None if o.aux is None else matrix(o.aux)
    return Problem(
        matrix(o.left), matrix(o.right), added, matrix(o.out), float(alpha), float(beta), epilogue,
        single and _tf32(), scales, fast, aux,
    )  # fmt: skip


def _tf32() -> bool:
    """Whether float32 may be multiplied as TF32, by whichever of PyTorch's two names that was said:
    ``allow_tf32`` cannot be asked once the other was used."""
    matmul: Any = torch.backends.cuda.matmul
    return bool(matmul.fp32_precision == "tf32")


def product(
    left: Tensor,
    right: Tensor,
    added: Tensor | None = None,
    *,
    out: Tensor,
    beta: float = 1.0,
    alpha: float = 1.0,
    epilogue: str = "",
    scales: tuple[Tensor, Tensor] | None = None,
    fast: bool = False,
    aux: Tensor | None = None,
) -> Tensor:
    """``out = epilogue(alpha * left @ right + beta * added)`` by ATen.

    left, right: [m, k] and [k, n], or with a batch in front.  added: a row, or what is like out.
    epilogue: one of ``EPILOGUES``.  scales, fast, aux: as those of a ``Problem``.
    """
    given, library = Operands(left, right, added, out, scales, aux), Aten(out.is_cuda)
    p = problem_of(given, beta, alpha, epilogue, fast)
    library.bind(p, *library.instances(p, 1))(given)
    return out


class Products(Chooser[Problem, Operands]):
    """Products by whichever way was the fastest of its problem."""

    def among(self, values: Mapping[str, object]) -> dict[str, object]:
        """What a host program names, with this ``product`` in the place of the function."""
        return {name: self.product if v is product else v for name, v in values.items()}

    def packaged(self, p: Problem) -> Problem:
        return p

    def product(
        self,
        left: Tensor,
        right: Tensor,
        added: Tensor | None = None,
        *,
        out: Tensor,
        beta: float = 1.0,
        alpha: float = 1.0,
        epilogue: str = "",
        scales: tuple[Tensor, Tensor] | None = None,
        fast: bool = False,
        aux: Tensor | None = None,
    ) -> Tensor:
        """As the function of that name."""
        given = Operands(left, right, added, out, scales, aux)
        p = problem_of(given, beta, alpha, epilogue, fast)
        self.call(p, given)
        return out
