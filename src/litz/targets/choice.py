"""Which target a device has, by the options."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from litz.options import Options
from litz.targets.kernels import Target
from litz.targets.tools import Tools


def targets(options: Options) -> Callable[[str], Target]:
    """The target of a device; ``options.target`` names the one of the CPU."""
    names = {"cpu": options.target or "c++"}

    @cache
    def named(name: str) -> Target:
        if name == "c++":
            from litz.targets.cpp.target import Cpp

            return Cpp(Tools(options).lanes)
        from litz.kernel.blocks.recipe import Style  # the CPU does without these
        from litz.runtime.triton.driver import parameter_bytes
        from litz.targets.triton.target import Triton

        wide, pointers = options.tunes_widely, options.block_pointers
        fast = options.numerics == "fast"
        style = Style(wide, pointers, contract=fast, reduction=options.reduction)
        return Triton(style, parameter_bytes())

    return lambda device: named(names.get(device.partition(":")[0], "triton"))


def device_rates(kind: str, target_of: Callable[[str], Target]) -> tuple[float, float, float]:
    """The last three of ``Rates``, of a kind of device."""
    from litz.schedule.overlap import HOST

    if (c := target_of(kind).costs(kind)) is not None:
        return c.memory, c.matrix, c.launch
    return HOST.memory, HOST.operations, HOST.launch
