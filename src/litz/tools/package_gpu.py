"""GPU kernels on their way into a package: binaries for several generations, no GPU at hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

import torch

from litz.errors import OptionError, PackageError, ToolchainError
from litz.kernel.blocks.recipe import Config
from litz.loading import record
from litz.loading.container import Writer
from litz.runtime.cache import Cache
from litz.runtime.launchers import VARIANTS
from litz.runtime.triton.build import submit
from litz.runtime.triton.job import Binary, KernelJob
from litz.runtime.tune import Choice
from litz.targets.parts import TritonPart
from litz.targets.triton.cuda import (
    choice_text,
    default_configs,
    job_of,
    packed_types,
)
from litz.targets.triton.launcher import forms, print_launcher
from litz.targets.triton.native import launcher_words
from litz.targets.triton.source import Launch, TritonKernel

_NAME = re.compile(r"sm_(\d{2,3})")
_COMMON = 80
"""PTX of later generations than this one is for these alone."""


def generations(names: Sequence[str]) -> tuple[str, ...]:
    """What kernels are built for: the generations named (``sm_90``), or that of the GPU at hand,
    and PTX for those that come later.

    Raises OptionError for another name, PackageError without a name and a GPU.
    """
    found = list(dict.fromkeys(names))
    for name in found:
        if not _NAME.fullmatch(name):
            raise OptionError(f"no GPU generation {name!r}; they are called sm_80, sm_90")
    if not found:
        if not torch.cuda.is_available():
            raise PackageError(
                "litz: the program runs on a GPU, and there is none here that says which: name "
                'generations, as targets=("sm_80", "sm_90")'
            )
        major, minor = torch.cuda.get_device_capability()
        found = [f"sm_{major}{minor}"]
    return (*found, f"ptx_{min(_COMMON, *(int(n[3:]) for n in found))}")


class GpuParts:
    """Builds GPU kernels and writes them: equal binaries have one entry in the whole package.

    choices: which of its ways a kernel runs, in which configurations, by its name; the default
    where nobody measured.
    """

    def __init__(
        self,
        targets: Sequence[str],
        cache: Cache,
        workers: int | None,
        out: Writer,
        choices: Mapping[str, Choice],
    ) -> None:
        self._targets, self._cache, self._workers, self._out = targets, cache, workers, out
        self._choices = choices

    def launchers(self, parts: Sequence[TritonPart]) -> tuple[record.Launcher, ...]:
        """The launchers of kernels.  Raises ToolchainError where one cannot be built."""
        jobs = [
            self._job(launch, config, variant, target)
            for p in parts
            for _, launch, config in forms(*self._way(p))
            for variant in _variants(launch)
            for target in self._targets
        ]
        made = dict(zip(jobs, submit(jobs, self._cache, self._workers).outcomes(), strict=True))
        return tuple(self._launcher(p, made) for p in parts)

    def _launcher(
        self, part: TritonPart, made: dict[KernelJob, Binary | ToolchainError]
    ) -> record.Launcher:
        kernel, configs = self._way(part)
        launches = tuple(self._launch(*form, made) for form in forms(kernel, configs))
        text, (words, numbers) = print_launcher(kernel, configs), launcher_words(kernel, configs)
        return record.Launcher(part.name, part.device, text, words, numbers, launches)

    def _way(self, part: TritonPart) -> tuple[TritonKernel, Sequence[Config]]:
        """What is launched of a kernel."""
        found = self._choices.get(part.name)
        if found is None:
            return part.kernel, default_configs(part.kernel)
        return part.kernel.ways[found.index], found.configs

    def _job(self, launch: Launch, config: Config, variant: str, target: str) -> KernelJob:
        kind, _, number = target.partition("_")
        own = job_of(launch, config, ("cuda", int(number), 32), variant)  # type: ignore[arg-type]
        return own if kind == "sm" else replace(own, form="ptx")

    def _launch(
        self,
        name: str,
        launch: Launch,
        config: Config,
        made: dict[KernelJob, Binary | ToolchainError],
    ) -> record.Launch:
        binaries: dict[str, dict[str, str]] = {}
        job = self._job(launch, config, "general", self._targets[0])
        for variant in _variants(launch):
            own = binaries[variant] = {}
            for target in self._targets:
                found = made[self._job(launch, config, variant, target)]
                if isinstance(found, Binary):
                    own[target] = self._entry(found, target)
                elif target.startswith("sm"):  # what a kernel uses older generations may not have
                    raise found
        text, packed = choice_text(launch), packed_types(launch)
        return record.Launch(name, text, job.arguments, packed, binaries)

    def _entry(self, binary: Binary, target: str) -> str:
        data = binary.to_bytes()
        name = f"cuda/{binary.entry}-{sha256(data).hexdigest()[:16]}.{target}"
        if name not in self._out.entries:
            self._out.add(name, data)
        return name


def _variants(launch: Launch) -> tuple[str, ...]:
    """Those that its calls may want: one of even sizes where there are sizes."""
    return VARIANTS if launch.ints and launch.table is None else VARIANTS[1:]
