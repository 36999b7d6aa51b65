"""How right an outcome on the device is: its distance from float64, beside eager's own.

Like ``benchmarks.judge``, on the device and piece by piece, so that the largest results fit; and
besides norms, which a few wrong elements among millions do not move, the worst element.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.workloads import Traffic
from benchmarks.judge import (
    SLACK,
    SOFT,
    WORST_SLACK,
    KeepDouble,
    in_double,
    loosely,
    mismatch,
    rounding,
)
from benchmarks.step import Step
from benchmarks.workloads import Workload

Outcome = dict[str, list[Tensor]]

# The worst of many millions of elements may lie so many times as far off as eager's worst does.
PEAK_SLACK = 8.0
PIECE = 1 << 26


class Distance(NamedTuple):
    """Relative errors: of all tensors together, of the worst tensor, of the worst element."""

    error: float
    worst: float
    peak: float


def outcome(traffic: Traffic, step: Step) -> Outcome:
    """What one step yields; of a step that changes its inputs, these."""
    if not traffic.mutates:
        return step.outcome()
    step()
    return {"out": [t.detach() for t in step.workload.inputs]}


def exact(traffic: Traffic) -> Outcome:
    """The outcome in float64."""
    wide = in_double(traffic.workload)
    with KeepDouble():
        return outcome(traffic, Step(wide, wide.fn))


def overwritten(workload: Workload, fresh: Workload) -> str | None:
    """Which input is no longer what it was."""
    for i, (a, b) in enumerate(zip(workload.inputs, fresh.inputs, strict=True)):
        if not torch.equal(a, b):
            return f"input {i} was overwritten"
    return None


def judged(got: Outcome, eager: Outcome, truth: Outcome) -> dict[str, Any]:
    """A verdict of the form that ``benchmarks.judge.Judge.judge`` gives."""
    groups: dict[str, dict[str, Any]] = {}
    for name in eager:
        fault = mismatch(got[name], eager[name])
        if fault is not None:
            return faulty(f"{name}: {fault}", groups)
        groups[name] = compare(got[name], eager[name], truth[name])
    ok = all(g["ok"] for g in groups.values())
    loose = not ok and all(g["ok"] or g["loose"] for g in groups.values())
    return {"ok": ok, "loose": loose, "groups": groups}


def faulty(fault: str, groups: dict[str, Any] | None = None) -> dict[str, Any]:
    """The verdict on an outcome that cannot be right."""
    return {"ok": False, "loose": False, "fault": fault, "groups": groups or {}}


def compare(got: list[Tensor], eager: list[Tensor], truth: list[Tensor]) -> dict[str, Any]:
    mine = distance(got, truth)
    theirs = mine if got is eager else distance(eager, truth)
    floor, loose = rounding(eager), loosely(eager)
    # What one rounding of the result's type brings, of one element.
    eps = max((torch.finfo(t.dtype).eps for t in eager if t.is_floating_point()), default=0.0)
    ok = mine.error <= SLACK * theirs.error + floor
    ok = ok and mine.worst <= WORST_SLACK * (theirs.worst + floor)
    ok = ok and mine.peak <= PEAK_SLACK * (theirs.peak + eps)
    near = mine.error <= loose and mine.worst <= WORST_SLACK * loose
    return {
        "ok": ok,
        "loose": not ok and near and mine.peak <= PEAK_SLACK * loose,
        **mine._asdict(),
        **{f"eager_{key}": value for key, value in theirs._asdict().items()},
    }


def distance(got: list[Tensor], truth: list[Tensor]) -> Distance:
    """nan wherever an element is."""
    size = sum(t.numel() for t in truth)
    squares = [norm_square(t) for t in truth]
    total = math.sqrt(sum(squares))
    typical = SOFT * total / math.sqrt(max(size, 1))
    together, worst, peak = 0.0, [0.0], [0.0]
    for g, t, square in zip(got, truth, squares, strict=True):
        root = math.sqrt(max(t.numel(), 1))
        off, high = differences(g, t, math.sqrt(square) / root + typical)
        together += off
        soft = math.sqrt(square) + typical * root
        worst.append(math.sqrt(off) / soft if soft else math.sqrt(off))
        peak.append(high)
    error = math.sqrt(together)
    return Distance(error / total if total else error, largest(worst), largest(peak))


def largest(values: Iterable[float]) -> float:
    """The maximum; nan wins, where max() would drop it."""
    listed = list(values)
    return math.nan if any(map(math.isnan, listed)) else max(listed)


def pieces(t: Tensor) -> tuple[Tensor, ...]:
    return torch.split(t.reshape(-1), PIECE)


def norm_square(t: Tensor) -> float:
    return float(sum(float(p.double().square().sum()) for p in pieces(t)))


def differences(got: Tensor, truth: Tensor, soft: float) -> tuple[float, float]:
    """The squared norm of the difference, and its largest element beside truth's plus ``soft``."""
    square, high = [0.0], [0.0]
    for g, t in zip(pieces(got), pieces(truth), strict=True):
        if t.numel():
            off = (g.double() - t).abs()
            square.append(float(off.square().sum()))
            high.append(float((off / (t.double().abs() + soft).clamp(min=1e-300)).amax()))
    return sum(square), largest(high)
