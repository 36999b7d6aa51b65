"""How right an outcome is: its distance from float64, beside eager's own distance.

Runs in a process of its own, so that its memory and threads disturb no timing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from benchmarks.step import Step
from benchmarks.workloads import Workload, build

# A candidate may lie twice as far from the truth as eager does, plus a few roundings.
SLACK = 2.0
# The worst single tensor is noisier than all of them together.
WORST_SLACK = 5.0
# Tensors far smaller than their group (a gradient that is zero in exact arithmetic) are measured
# against this share of the group's typical element.
SOFT = 1e-3


class KeepDouble(TorchFunctionMode):
    """Turns a model's own casts to float32 into casts to float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        wide = [torch.float64 if a is torch.float32 else a for a in args]
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return func(*wide, **named)


def in_double(workload: Workload) -> Workload:
    """The same workload with every floating-point weight and input in float64."""

    def widen(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        return t.detach().double().requires_grad_(t.requires_grad)

    fn = workload.fn
    if isinstance(fn, nn.Module):
        fn = copy.deepcopy(fn).double()

    return Workload(fn, tuple(map(widen, workload.inputs)), workload.training)


class Judge:
    """Holds the float64 outcome of a workload and eager's, and judges saved ones."""

    def __init__(self, name: str, quick: bool) -> None:
        workload = build(name, quick)
        self.eager = Step(workload, workload.fn).outcome()
        wide = in_double(workload)
        with KeepDouble():
            self.truth = Step(wide, wide.fn).outcome()

    def judge(self, path: str) -> dict[str, Any]:
        """Errors of the outcome saved at ``path``, by group: "out" and, in training, "grad"."""
        saved: dict[str, list[Tensor]] = torch.load(path)
        groups: dict[str, dict[str, Any]] = {}
        for group, eager in self.eager.items():
            fault = mismatch(saved[group], eager)
            if fault is not None:
                fault = f"{group}: {fault}"
                return {"ok": False, "loose": False, "fault": fault, "groups": groups}
            groups[group] = self.compare(saved[group], eager, self.truth[group])
        ok = all(g["ok"] for g in groups.values())
        loose = not ok and all(g["ok"] or g["loose"] for g in groups.values())
        return {"ok": ok, "loose": loose, "groups": groups}

    @staticmethod
    def compare(got: list[Tensor], eager: list[Tensor], truth: list[Tensor]) -> dict[str, Any]:
        error, worst = errors(got, truth)
        eager_error, eager_worst = errors(eager, truth)
        floor = rounding(eager)
        ok = error <= SLACK * eager_error + floor
        ok = ok and worst <= WORST_SLACK * (eager_worst + floor)
        loose = loosely(eager)
        return {
            "ok": ok,
            "loose": not ok and error <= loose and worst <= WORST_SLACK * loose,
            "error": error,
            "eager_error": eager_error,
            "worst": worst,
            "eager_worst": eager_worst,
        }


def mismatch(got: list[Tensor], eager: list[Tensor]) -> str | None:
    """Why the tensors cannot be compared: a count, a shape or a dtype that differs."""
    if len(got) != len(eager):
        return f"{len(got)} tensors for {len(eager)}"
    for i, (a, b) in enumerate(zip(got, eager, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"tensor {i} is {a.dtype} {tuple(a.shape)}, not {b.dtype} {tuple(b.shape)}"
    return None


def errors(got: list[Tensor], truth: list[Tensor]) -> tuple[float, float]:
    """``|got - truth| / |truth|`` over all tensors together, and of the worst tensor."""
    size = sum(t.numel() for t in truth)
    total = math.sqrt(sum(float(t.norm()) ** 2 for t in truth))
    off = [float((g.double() - t).norm()) for g, t in zip(got, truth, strict=True)]
    typical = SOFT * total / math.sqrt(max(size, 1))
    soft = (float(t.norm()) + typical * math.sqrt(t.numel()) for t in truth)
    worst = [o / s if s else o for o, s in zip(off, soft, strict=True)]
    together = math.sqrt(sum(o * o for o in off))
    # nan must win: max() would drop it.
    nan = any(math.isnan(o) for o in off)
    return (together / total if total else together), (math.nan if nan else max(worst, default=0.0))


def loosely(tensors: list[Tensor]) -> float:
    """The error below which a result that is not ok is imprecise rather than another result."""
    kinds = [torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()]
    return math.sqrt(max(kinds, default=0.0)) / 10


def rounding(tensors: list[Tensor]) -> float:
    """The error that roundings of the result's type alone may bring; larger for few elements."""
    kinds = [t for t in tensors if t.is_floating_point()]
    if not kinds:
        return 0.0
    eps = max(torch.finfo(t.dtype).eps for t in kinds)
    return eps * (1 / 8 + 2 / math.sqrt(max(sum(t.numel() for t in kinds), 1)))
