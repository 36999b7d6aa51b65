"""Triton kernels of a graph on GPUs: compiled by workers while the host goes on, then bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litz.runtime.cache import Cache
from litz.runtime.triton.build import submit
from litz.runtime.triton.job import KernelJob
from litz.runtime.tune import Choice
from litz.targets.parts import Callables, TritonPart
from litz.targets.triton.cuda import (
    bind_cuda,
    cuda_site,
    default_configs,
    device_index,
    likely_jobs,
)
from litz.targets.triton.tuned import Limits, tuning

NO_LIMITS = Limits()  # nothing is tried


def start(
    parts: Sequence[TritonPart],
    cache: Cache,
    workers: int | None = None,
    limits: Limits = NO_LIMITS,
    choices: dict[str, Choice] | None = None,
) -> Callable[[], Callables]:
    """Start to compile kernels; the result waits for them and gives their launchers by name.

    limits: of what the first calls may try.  choices: see ``tuning``.
    """
    sites = {p.device: cuda_site(device_index(p.device), cache) for p in parts}
    jobs: list[KernelJob] = []
    for p in parts:
        target = sites[p.device].device.properties.target
        jobs += likely_jobs(p.kernel, default_configs(p.kernel), target)
    handle = submit(jobs, cache, workers)
    # Behind them the ways that first calls measure: nobody waits for these before.
    submit(
        [
            job
            for p in parts
            if limits.counts(p.kernel)
            for k in p.kernel.others
            for job in likely_jobs(k, default_configs(k), sites[p.device].device.properties.target)
        ],
        cache,
        workers,
    )

    def finish() -> Callables:
        built = dict(zip(jobs, handle.wait(), strict=True))
        bound = {p.name: bind_cuda(p.kernel, sites[p.device], built=built) for p in parts}
        return tuning(parts, sites, bound, limits, {} if choices is None else choices)

    return finish
