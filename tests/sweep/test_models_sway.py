"""How far eager's own numbers move by a last bit."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from models_run import Row, Task, conclude  # noqa: E402
from models_variants import VARIANTS  # noqa: E402


class Steep(nn.Module):
    """Eager is exact here, but not beside these numbers: of one result few digits are left."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randint(1, 512, (64,)) / 256)
        self.register_buffer("near", self.weight.detach() * (1 - 2.0**-10))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"flat": x * self.weight, "steep": (self.weight - self.near) * x}


class Toy:
    kind, model, cost = "text", "Steep", 1.0

    def make(self, dropout: bool = False) -> nn.Module:
        return Steep()

    def inputs(self, model: nn.Module, shape: object) -> dict[str, Tensor]:
        return {"x": torch.randint(1, 16, (64,)).float()}


def off(part: str) -> object:
    """A backend that errs by 4e-5 of one result."""

    def compiler(gm: torch.fx.GraphModule, _: object) -> object:
        def call(*args: Tensor) -> list[Tensor]:
            flat, steep = gm(*args)
            slip = 4e-5 * torch.randn(64, generator=torch.Generator().manual_seed(0))
            wrong = flat if part == "flat" else steep
            return [x + slip * x.detach() if x is wrong else x for x in (flat, steep)]

        return call

    return compiler


def state(part: str) -> str:
    torch._dynamo.reset()
    task = Task(Toy(), VARIANTS["fp32"], "cpu", off(part))
    row = Row("toy", "fp32", "cpu", "text")
    conclude(row, task, task.judge(), 2)
    return row.state


def test_an_error_is_beside_what_a_last_bit_does() -> None:
    sizes = Task(Toy(), VARIANTS["fp32"], "cpu", "eager").swayed(0).sizes
    assert sizes["results flat0"].mine < 4e-7 < 1e-5 < sizes["results steep0"].mine
    assert (state("flat"), state("steep")) == ("WRONG", "chance")
