"""One step of a workload: a forward pass, or a loss and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads import Workload


class Step:
    """Calls ``fn`` (the workload's callable, compiled or not) on the workload's inputs."""

    def __init__(self, workload: Workload, fn: Callable[..., Any]) -> None:
        self.workload = workload
        self.fn = fn
        module = workload.fn if isinstance(workload.fn, nn.Module) else None
        self.leaves: list[Tensor] = []
        if module is not None and workload.training:
            self.leaves += module.parameters()
        self.leaves += [t for t in workload.inputs if t.requires_grad]

    def __call__(self) -> Any:
        if not self.workload.training:
            with torch.no_grad():
                return self.fn(*self.workload.inputs)
        for leaf in self.leaves:
            leaf.grad = None
        loss = self.fn(*self.workload.inputs)
        loss.backward()
        return loss

    def outcome(self) -> dict[str, list[Tensor]]:
        """What one step yields: its outputs ("out") and, in training, the gradients ("grad")."""
        out = self()
        outs = [out] if isinstance(out, Tensor) else list(out)
        groups = {"out": [t.detach() for t in outs]}
        if self.workload.training:
            # A leaf without a gradient would be missed by a bare filter: it becomes an empty one.
            groups["grad"] = [t.new_empty(0) if t.grad is None else t.grad for t in self.leaves]
        return groups
