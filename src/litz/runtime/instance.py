"""Problems of libraries and ways to compute them, as data: what is known without the libraries."""

from __future__ import annotations

import torch

from litz.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand as it lies in memory.  aligned: bytes that its address is a multiple of."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: int


@dataclass(frozen=True, slots=True)
class Problem:
    """``out = epilogue(alpha * left @ right + beta * added)``, rounded once.

    Matrices, or as many of them in each.  added: None, a row for all, or as the result is.
    scales: of 8-bit floats, a number (f32) for each factor, or for each row of the left one and
    each column of the right one; then alpha and beta are 1.  fast: their sums may have fewer bits.
    tf32: whether float32 may be multiplied with fewer bits.  aux: as ``out``, what the epilogue is
    a function of: ``gelu`` stores it there, rounded; ``gelu_backward`` is given it, and multiplies
    by the slope at it.
    """

    left: Matrix
    right: Matrix
    added: Matrix | None
    out: Matrix
    alpha: float = 1.0
    beta: float = 1.0
    epilogue: str = ""
    tf32: bool = False
    scales: tuple[Matrix, Matrix] | None = None
    fast: bool = False
    aux: Matrix | None = None

    @property
    def fusable(self) -> bool:
        """Whether a library may compute the epilogue: its tanh in GELU falls short of float32."""
        single = self.out.dtype is torch.float32
        return bool(self.epilogue) and not (single and self.epilogue.startswith("gelu"))


@dataclass(frozen=True, slots=True)
class Instance:
    """One way to compute a problem, as data.  what: for the library alone; workspace: bytes."""

    library: str
    what: str = ""
    workspace: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """What cuBLASLt is told of a problem, by its own numbers.

    compute: the type of sums.  settings: attributes of the product: number, value, bytes.
    layouts: of right and left factor, what is added and the result: type, rows, columns, elements
    from column to column, then how many and elements from one to the next (0, 0: a single one).
    pointers: attributes that are addresses of operands: ``added``, ``aux``, ``left scale``,
    ``right scale``.  whole: whether what is added is a matrix.
    """

    compute: int
    settings: tuple[tuple[int, int, int], ...]
    layouts: tuple[tuple[int, ...], ...]
    pointers: tuple[tuple[int, str], ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Chosen:
    """The way that was the quickest of a problem.  gpu: the name of the device that it was on.

    problem: of a product; None: it is a convolution.  told: where it is one of cuBLASLt's.
    """

    instance: Instance
    problem: Problem | None
    gpu: str
    told: Told | None
