"""Choosing among the configurations of a kernel by the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from litz.kernel.plan import KernelPlan
from litz.runtime.triton.build import job_key, submit
from litz.runtime.triton.job import Binary, KernelJob
from litz.runtime.triton.tune import Clock, choose
from litz.targets.triton.cuda import (
    Site,
    bind_cuda,
    default_configs,
    job_of,
    likely_variant,
)
from litz.targets.triton.source import Config, Launch, TritonKernel

__all__ = ["fastest_configs"]


def fastest_configs(
    kernel: TritonKernel,
    plan: KernelPlan,
    site: Site,
    args: Sequence[torch.Tensor | int],
    clock: Clock,
    budget: float,
) -> list[Config]:
    """The quickest configuration of each launch, for these arguments.

    args: the plan's buffers, then its integers; those that the kernel writes are copied.  budget:
    seconds of measuring, after all configurations were compiled side by side.  What was found is
    kept in the site's cache.  Launches are tuned in turn, each by the time of the whole kernel.
    """
    chosen = default_configs(kernel)
    built, usable = _built(kernel, site)
    mutated = [i for i, p in enumerate(plan.params) if p.mode != "in"]
    open_ = [i for i, launch in enumerate(kernel.launches) if len(launch.configs) > 1]
    deadline = clock.now() + budget
    for n, i in enumerate(open_):
        configs = usable[i]
        tries = [[*chosen[:i], c, *chosen[i + 1 :]] for c in configs]
        calls = [candidate(kernel, plan, site, t, built) for t in tries]
        key = [_key(kernel, site, t) for t in tries]
        sizes = [str(a) for a in args if isinstance(a, int)]
        share = max(0.0, deadline - clock.now()) / (len(open_) - n)
        found = choose([*key, *sizes], calls, args, mutated, clock, site.cache, share)
        chosen[i] = configs[found.index]
    return chosen


def candidate(
    kernel: TritonKernel,
    plan: KernelPlan,
    site: Site,
    configs: Sequence[Config],
    built: dict[KernelJob, Binary],
) -> Callable[[Sequence[Any]], None]:
    """A candidate: bound at its first run, so that what cannot be loaded fails there."""
    bound: list[Callable[..., None]] = []

    def run(args: Sequence[Any]) -> None:
        if not bound:
            bound.append(bind_cuda(kernel, plan, site, configs, built))
        bound[0](*(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args))

    return run


def _built(kernel: TritonKernel, site: Site) -> tuple[dict[KernelJob, Binary], list[list[Config]]]:
    """The binaries of all configurations, and the configurations of each launch that compile.

    The default is kept in any case: whether it compiles is for the launch to say.
    """
    make = partial(_job, site)
    jobs = list(dict.fromkeys(make(x, c) for x in kernel.launches for c in x.configs))
    outcomes = submit(jobs, site.cache).outcomes()
    built = {
        job: made for job, made in zip(jobs, outcomes, strict=True) if isinstance(made, Binary)
    }
    usable = [
        [c for k, c in enumerate(x.configs) if k == 0 or make(x, c) in built]
        for x in kernel.launches
    ]
    return built, usable


def _job(site: Site, launch: Launch, config: Config) -> KernelJob:
    return job_of(launch, config, site.device.properties.target, likely_variant(launch))


def _key(kernel: TritonKernel, site: Site, configs: Sequence[Config]) -> str:
    pairs = zip(kernel.launches, configs, strict=True)
    keys = [job_key(_job(site, launch, c)) for launch, c in pairs]
    return " ".join([site.device.properties.name, *keys])
