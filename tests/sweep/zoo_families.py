"""What a family of models is to the sweep, and where families come from."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """How large a batch is.

    length: of texts; 0: as long as the family's own.  padded: the last row of a text ends early,
    and the mask says so.
    """

    rows: int = 2
    length: int = 0
    padded: bool = False


class Zoo(Protocol):
    """One family: a small model with random weights, and its batches, by torch's generator."""

    @property
    def kind(self) -> str: ...

    @property
    def model(self) -> str:
        """What the package calls it."""
        ...

    @property
    def cost(self) -> float:
        """About how long it takes, beside a transformer of two layers."""
        ...

    def make(self, dropout: bool = False) -> nn.Module:
        """The model in training mode; without dropout, nothing in it is drawn at random."""
        ...

    def inputs(self, model: nn.Module, shape: Shape) -> Inputs:
        """A batch for ``model``: keyword arguments of its ``forward``."""
        ...


def quieten(model: nn.Module) -> None:
    """No dropout, and no path left out."""
    for module in model.modules():
        for key, value in vars(module).items():
            if isinstance(value, float) and (key == "p" or "drop" in key):
                setattr(module, key, 0.0)


# The module of each package's families.
PACKAGES: Mapping[str, str] = {
    "transformers": "model_zoo",
    "timm": "zoo_timm",
    "diffusers": "zoo_diffusers",
}


def families() -> dict[str, Zoo]:
    """All families whose package is installed."""
    found: dict[str, Zoo] = {}
    for package, module in PACKAGES.items():
        if importlib.util.find_spec(package) is not None:
            found.update(importlib.import_module(module).FAMILIES)
    return found


def missing() -> list[str]:
    """The packages that are not installed."""
    return [p for p in PACKAGES if importlib.util.find_spec(p) is None]
