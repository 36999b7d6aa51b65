"""What results show of eager mode's kernels, by the kind of devices that they run on."""

from __future__ import annotations

from typing import Final

from litz.dataclass import dataclass


@dataclass(frozen=True)
class EagerNumerics:
    """How eager mode's kernels compute.

    wide_numbers: a number beside tensors is taken in full, not rounded to their type.
    inverted_divisors: tensors of floats are multiplied with the inverse of a number.
    checked_divisors: an integer divided by zero is an error.
    double_moments: variances of floats are accumulated in doubles.
    rounded_steps: between the steps of special functions and floor division values have the
    result's type, else 32 bits.  rounded_scales: what ``round`` scales by powers of ten has it,
    else 32 bits.
    fused_positions: positions of ``grid_sample`` are rounded once; its volumes take nan for the
    first element, else for the last.  outside_planes: it reads planes outside of them as well.
    """

    wide_numbers: bool
    inverted_divisors: bool
    checked_divisors: bool
    double_moments: bool
    rounded_steps: bool
    rounded_scales: bool
    fused_positions: bool
    outside_planes: bool


_CPU: Final = EagerNumerics(
    wide_numbers=False,
    inverted_divisors=False,
    checked_divisors=True,
    double_moments=True,
    rounded_steps=True,
    rounded_scales=False,
    fused_positions=False,
    outside_planes=True,
)
_GPU: Final = EagerNumerics(
    wide_numbers=True,
    inverted_divisors=True,
    checked_divisors=False,
    double_moments=False,
    rounded_steps=False,
    rounded_scales=True,
    fused_positions=True,
    outside_planes=False,
)


def eager_on(device: str) -> EagerNumerics:
    """Eager's numerics on ``cpu`` or ``cuda:0``."""
    return _CPU if device.partition(":")[0] == "cpu" else _GPU
