"""GPU kernels of a package: binaries for the GPU at hand, bound to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from litz.errors import PackageError
from litz.loading.container import Container
from litz.loading.record import Launch, Launcher
from litz.runtime import launchers as runtime
from litz.runtime.launchers import Bound
from litz.runtime.torch_private import current_raw_stream
from litz.runtime.triton.driver import Device, cuda_driver
from litz.runtime.triton.job import Binary, KernelJob
from litz.runtime.triton.launch import bind
from litz.runtime.triton.launch import variant as variant_of

__all__ = ["best", "launcher"]

_OWN = 90
"""From here on binaries are for one generation alone: they use what the next may not have."""


def best(names: Iterable[str], generation: int) -> str | None:
    """Of what a kernel was built for (``sm_90``, ``ptx_80``), what a GPU runs; None if nothing.

    generation: ten times the major number of its compute capability, and the minor one.
    """
    ranked = []
    for name in names:
        kind, _, number = name.partition("_")
        built = int(number)
        near = built // 10 == generation // 10 and built <= generation and built < _OWN
        if kind == "sm" and (built == generation or near):
            ranked.append((1, built, name))
        elif kind == "ptx" and built <= generation:
            ranked.append((0, built, name))
    return max(ranked)[2] if ranked else None


def launcher(kernel: Launcher, container: Container) -> Bound:
    """What the host program calls.  Raises PackageError where there is nothing for the GPU."""
    index = int(kernel.device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise PackageError(
            f"litz: {container.path} wants the GPU {kernel.device}, and there are "
            f"{torch.cuda.device_count()} here"
        )
    device = cuda_driver().device(index)
    found = [_Variants(x, container, device) for x in kernel.launches]
    calls = [v.call for v in found]
    scope: dict[str, Any] = {x.name: c for x, c in zip(kernel.launches, calls, strict=True)}
    exec(compile(kernel.source, f"<litz launcher of {kernel.name}>", "exec"), scope)
    forms = [v.form for v in found]
    return Bound(scope["call"], partial(runtime.Launcher, kernel.words, kernel.numbers, forms))


class _Variants:
    """The variants of a launch, each loaded where it is first wanted."""

    def __init__(self, launch: Launch, container: Container, device: Device) -> None:
        self._launch, self._container, self._device = launch, container, device
        by = launch.binaries
        entries = {v: self._chosen(by[v]) for v in runtime.VARIANTS if v in by}
        self._scope: dict[str, Any] = {v: partial(self._first, v, e) for v, e in entries.items()}
        exec(compile(launch.choice, f"<litz variants of {launch.name}>", "exec"), self._scope)
        self.call: Callable[..., None] = self._scope["call"]
        self.form = runtime.Form(self.call, device.driver.launch_address, device.index)

    def _chosen(self, names: Any) -> str:
        _, generation, _ = self._device.properties.target
        found = best(names, generation)
        if found is None:
            raise PackageError(
                f"litz: {self._container.path} has nothing for {self._device.properties.name} "
                f"(sm_{generation}); it was built for {', '.join(sorted(names))}: make it again "
                f'with targets=("sm_{generation}",)'
            )
        entry: str = names[found]
        self._container.entry(entry)
        return entry

    def _first(self, variant: runtime.VariantName, entry: str, *args: int) -> None:
        x, index = self._launch, self._device.index
        binary = Binary.from_bytes(self._container.read(entry))
        function = self._device.load(binary)
        job = KernelJob("", binary.entry, x.arguments)
        stream = partial(current_raw_stream, index)
        memory = partial(torch.empty, dtype=torch.uint8, device=torch.device("cuda", index))
        launch = bind(function, job, stream, memory, x.packed)
        self._scope[variant] = launch
        self.form.variants[runtime.VARIANTS.index(variant)] = variant_of(function, job)
        launch(*args)
