"""KernelPlan: one fused group over one normalised iteration space, ready to be printed.

Both targets read the same plan.  Names in it are canonical (dims ``x0, x1, .. r0, r1``, buffers
``b0, b1, ..``, sizes ``s0, ..``), so that equal layers give equal plans and one kernel.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from litz.dataclass import dataclass
from litz.index import Expr
from litz.ir.body import Store
from litz.ir.dtype import DType
from litz.ir.program import Skeleton

Role = Literal["p", "r"]
Mode = Literal["in", "out", "inout"]


@dataclass(frozen=True, slots=True)
class Dim:
    """One loop: its variable (whose extent is the size) and its role: parallel or reduced."""

    var: Expr
    role: Role


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer argument.

    A param that is written overlaps no other, with one exception: the host may place an output in
    the memory of an input that dies here, under the rules of ``litz.host.inplace``.
    by_value: the one element of a tensor in the host's memory, for a kernel on another device.
    """

    name: str
    dtype: DType
    mode: Mode
    by_value: bool = False


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """What a target prints as one kernel.

    dims: the loops, outermost first; parallel dims come before reduced ones.
    stores: run for each point of the parallel dims; a store whose index or value depends on a
    reduced dim (outside a ``Reduce``) runs for each point of the full space.
    lane: the dim that is contiguous for most bytes, hence vectorised (None: nothing to vectorise).
    tile: a dim that is contiguous for other accesses; with ``lane`` it spans transposed tiles.
    skeleton: of a template: how its stores are computed, in place of loops over the dims.
    hashed: its hash, once somebody has asked: many tables have plans in their keys.
    """

    dims: tuple[Dim, ...]
    params: tuple[Param, ...]
    ints: tuple[Expr, ...]
    stores: tuple[Store, ...]
    lane: Expr | None
    tile: Expr | None = None
    skeleton: Skeleton | None = None
    hashed: int | None = field(default=None, init=False, compare=False, repr=False)

    def __hash__(self) -> int:
        if self.hashed is None:
            own = self.dims, self.params, self.ints, self.stores, self.lane, self.tile
            object.__setattr__(self, "hashed", hash((*own, self.skeleton)))
            assert self.hashed is not None
        return self.hashed

    @property
    def parallel(self) -> tuple[Expr, ...]:
        return tuple(d.var for d in self.dims if d.role == "p")

    @property
    def reduced(self) -> tuple[Expr, ...]:
        return tuple(d.var for d in self.dims if d.role == "r")

    @property
    def down(self) -> bool:
        """Whether it goes down columns: neighbours in memory are of different rows."""
        return self.lane is not None and self.lane in self.parallel

    def dtype(self, param: str) -> DType:
        for p in self.params:
            if p.name == param:
                return p.dtype
        raise KeyError(param)
