"""Judging a tensor against its exact value, given eager's and, where that is not enough, samples.

A value is right if its error is no more than twice that of eager or of perturbed evaluations (see
``reference.py``), over the whole tensor and for each element, plus a few units of the type.  Where
they do not agree on what an element is (nan, infinite, an integer, a boolean), it may be either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import torch

from litz.dataclass import dataclass

# Errors in units of the type's eps: over the tensor (relative to its norm), and of each element.
NORM_UNITS = {torch.float64: 32.0, torch.float32: 8.0}
ELEMENT_UNITS = {torch.float64: 64.0, torch.float32: 16.0}
HALF_UNITS = 0.5
# Perturbed evaluations: (how many, how many units).  Later ones only if the earlier do not do.
ROUNDS = ((4, 1.0), (12, 2.0), (32, 4.0))


@dataclass(frozen=True)
class Difference:
    """Where a tensor is wrong.

    error, tolerance: of the first wrong element (inf where a special value or integer differs), or
    relative to the norm where ``index`` is None.  wrong: number of wrong elements of ``numel``.
    """

    error: float
    tolerance: float
    index: tuple[int, ...] | None
    actual: object
    exact: object
    eager: object
    wrong: int
    numel: int


Sample = Callable[[float, int], "torch.Tensor | None"]


def compare(
    actual: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor, sample: Sample
) -> Difference | None:
    """None if ``actual`` is right.

    exact: float64 (or integers); eager: of the type of ``actual``.  sample: from units and a seed
    to a perturbed evaluation, None if there is none.
    """
    judge = _Judge(_real(actual), _real(exact), _real(eager))
    found = judge.difference()
    seed = 0
    for count, units in ROUNDS:
        if found is None:
            return None
        for _ in range(count):
            seed += 1
            s = sample(units, seed)
            if s is not None:
                judge.add(_real(s), units)
        found = judge.difference()
    return found


def _real(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


@dataclass
class _Judge:
    actual: torch.Tensor
    exact: torch.Tensor
    eager: torch.Tensor
    unstable: torch.Tensor = field(init=False)
    spread: torch.Tensor = field(init=False)
    worst: float = 0.0

    def __post_init__(self) -> None:
        self.floating = self.actual.dtype.is_floating_point
        if self.floating:
            self.x, self.r = self.actual.double(), self.exact.double()
            self.rounded = self.r.to(self.actual.dtype).double()
            self.spread = torch.zeros_like(self.r)
            self.finite = torch.isfinite(self.r)
        else:
            self.r = self.rounded = self.exact
        self.unstable = torch.zeros(self.r.shape, dtype=torch.bool, device=self.r.device)
        self.add(self.eager)

    def add(self, other: torch.Tensor, units: float = 1.0) -> None:
        """Learn from one more evaluation what rounding may do."""
        if not self.floating:
            self.unstable |= other != self.r
            return
        e = other.to(self.actual.dtype).double() if other.dtype is torch.float64 else other.double()
        # Whether the type holds the value as a finite number; -0.0 is 0.0.
        self.unstable |= ~same(e, self.rounded) & ~(torch.isfinite(e) & self.finite_rounded)
        d = (other.double() - self.r).abs()
        d = torch.where(torch.isfinite(d), d, 0.0)
        self.spread = torch.maximum(self.spread, d)
        if units <= 1:  # more than rounding does tells of single elements, not of the whole
            self.worst = max(self.worst, self._norm(d))

    @property
    def finite_rounded(self) -> torch.Tensor:
        return torch.isfinite(self.rounded)

    def _norm(self, d: torch.Tensor) -> float:
        below = float(torch.where(self.finite & ~self.unstable, self.r, 0.0).norm().item())
        top = float(d.norm().item())
        return top / below if below else top

    def difference(self) -> Difference | None:
        if self.r.numel() == 0:
            return None
        if not self.floating:
            wrong = (self.actual != self.r) & ~self.unstable
            return self._first(wrong, None, None) if bool(wrong.any()) else None
        special = ~torch.isfinite(self.x) | ~self.finite_rounded
        wrong = special & ~same(self.x, self.rounded) & ~self.unstable
        if bool(wrong.any()):
            return self._first(wrong, None, None)
        error = torch.where(special | self.unstable, 0.0, (self.x - self.r).abs())
        limit = self._limit()
        wrong = error > limit
        if bool(wrong.any()):
            return self._first(wrong, error, limit)
        return self._overall(error)

    def _limit(self) -> torch.Tensor:
        """What each element may be off."""
        info = torch.finfo(self.actual.dtype)
        units = ELEMENT_UNITS.get(self.actual.dtype, 2 * HALF_UNITS)
        count = self.spread.numel()
        # Samples of one element may agree by chance, so its neighbours' count too; outliers don't.
        common = self.spread.flatten().kthvalue(max(1, count - count // 50)).values
        return 4 * self.spread + 4 * common + units * info.eps * self.r.abs() + info.tiny

    def _overall(self, error: torch.Tensor) -> Difference | None:
        units = NORM_UNITS.get(self.actual.dtype, HALF_UNITS)
        mine = self._norm(error)
        limit = 2 * self.worst + units * torch.finfo(self.actual.dtype).eps
        if mine <= limit or bool((error <= torch.finfo(self.actual.dtype).tiny).all()):
            return None
        wrong = error >= error.max()
        found = self._first(wrong, error, self._limit())
        return Difference(mine, limit, None, found.actual, found.exact, found.eager, 0, found.numel)

    def _first(
        self, wrong: torch.Tensor, error: torch.Tensor | None, limit: torch.Tensor | None
    ) -> Difference:
        flat = wrong.flatten().to(torch.uint8).argmax()
        at = tuple(map(int, torch.unravel_index(flat, wrong.shape)))
        return Difference(
            float("inf") if error is None else error[at].item(),
            0.0 if limit is None else limit[at].item(),
            at,
            self.actual[at].item(),
            self.exact[at].item(),
            self.eager[at].item(),
            int(wrong.sum()),
            wrong.numel(),
        )


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors hold the same value, nan included."""
    return (a == b) | ((a != a) & (b != b))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one type hold the same values, nan included."""
    if a.shape != b.shape or a.dtype is not b.dtype:
        return False
    a, b = _real(a), _real(b)
    if torch.equal(a, b):
        return True
    return a.dtype.is_floating_point and bool(same(a, b).all())
