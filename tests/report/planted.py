"""Programs with one slow spot each; the line that causes it ends in ``# here``."""

from __future__ import annotations

import torch
from torch import Tensor


def graph_break(x: Tensor) -> Tensor:
    y = torch.softmax(x, -1)
    if y.sum() > 0:  # here
        y = y * 2
    return y.cos()


def fallback(x: Tensor) -> Tensor:
    y = x.exp()
    rank = torch.linalg.matrix_exp(y[:8, :8])  # here
    return y.sum() + rank.sum()


def transposed_copy(x: Tensor) -> Tensor:
    y = x.relu()
    z = y.t().contiguous()  # here
    return torch.fft.rfft(z).abs().sum()


class Counter(torch.nn.Module):
    """Counts its calls in an int, which Dynamo takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1  # here
        return x * self.step


class Loop(torch.nn.Module):
    """Calls a compiled part again and again, from what is not compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Counter()

    @torch.compiler.disable(recursive=False)
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.part(x)
        return x
