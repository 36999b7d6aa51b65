"""Tuning a package's GPU kernels when it is made: the program runs once with example inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import torch

from litz.artifact import Artifact
from litz.binding import Binder
from litz.dataclass import dataclass
from litz.errors import PackageError
from litz.loading.record import FixedInput
from litz.options import Options
from litz.runtime.instance import Chosen
from litz.runtime.torch_private import without_autocast
from litz.runtime.tune import Choice
from litz.tools.exported import Exported


@dataclass(frozen=True)
class Tuned:
    """What was quickest: ways and configurations by kernels' names; libraries' products by what
    ``Products.chosen`` has them under."""

    choices: dict[str, Choice] = field(default_factory=dict)
    products: dict[str, Chosen] = field(default_factory=dict)


def tuned(made: Artifact, found: Exported, options: Options, targets: Sequence[str]) -> Tuned:
    """What runs best.

    targets: the generations that the package is for.  Measured on the GPU at hand, with the inputs
    that the program was exported with, in ``options.tuning_seconds``; nothing is kept of the run.
    Raises PackageError where that cannot be.
    """
    if not torch.cuda.is_available():
        raise PackageError("litz: a package is tuned (autotune) where its GPU is: none is here")
    here = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if targets and here not in targets:
        raise PackageError(f"litz: a package for {', '.join(targets)} cannot be tuned on {here}")
    if len(found.examples) != len(found.inputs):
        raise PackageError("litz: to tune a package takes a program with its example inputs")
    given = zip(found.inputs, found.examples, strict=True)
    inputs = [x for i, x in given if not isinstance(i, FixedInput)]
    arguments = [*found.constants.values(), *inputs]
    best = Tuned()
    binder = Binder(options, best.choices, best.products)
    binder.wait(made)
    with torch.no_grad(), without_autocast():
        # The program may write into what it is given.
        binder.load(made)([x.clone() if isinstance(x, torch.Tensor) else x for x in arguments])
    return best
