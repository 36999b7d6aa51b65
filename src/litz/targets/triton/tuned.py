"""Choosing among the ways of a kernel, and among their configurations, by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import torch

from litz.dataclass import dataclass
from litz.errors import RefusedSourceError
from litz.index import evaluate
from litz.kernel.blocks.recipe import Config
from litz.runtime.launchers import Bound, in_python
from litz.runtime.progress import Progress
from litz.runtime.triton.build import default_workers, job_key, submit
from litz.runtime.triton.job import Binary, KernelJob
from litz.runtime.tune import Choice, CudaClock, Run, choose, known
from litz.targets.parts import TritonPart
from litz.targets.triton.cuda import (
    Site,
    bind_cuda,
    default_configs,
    job_of,
    likely_jobs,
    likely_variant,
)
from litz.targets.triton.source import Launch, TritonKernel


class _Memory:
    """Memory that PyTorch can make a tensor of."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def tuning(
    parts: Sequence[TritonPart],
    sites: Mapping[str, Site],
    bound: Mapping[str, Callable[..., None]],
    limits: Limits,
    choices: dict[str, Choice],
) -> dict[str, Callable[..., None]]:
    """Launchers that try ways and configurations on their first arguments.

    choices: filled with which of its ways each kernel runs, by the kernel's name.
    """
    open_ = [p for p in parts if p.kernel.extents is not None and limits.counts(p.kernel)]
    left, first = _Budget(limits.seconds, len(open_), limits.progress), in_python(bound)
    out: dict[str, Callable[..., None]] = dict(bound)
    for p in open_:
        site, note = sites[p.device], partial(choices.__setitem__, p.name)
        within = limits.seconds if limits.configs else 0.0
        tuned = _Tuned(p.kernel, site, first[p.name], left, within, note)
        out[p.name] = tuned.outside = Bound(tuned.call)
    return out


@dataclass(frozen=True)
class Limits:
    """How long first calls may try, all together, and whether configurations or ways alone.

    progress: whether to say so on the terminal.
    """

    seconds: float = 0.0
    configs: bool = False
    progress: bool = False

    def counts(self, kernel: TritonKernel) -> bool:
        """Whether there is something to try."""
        own = any(len(x.configs) > 1 for x in kernel.all_launches)
        return self.seconds > 0 and (bool(kernel.others) or (self.configs and own))


@dataclass
class _Budget:
    """Seconds that kernels share which have not been tuned yet."""

    seconds: float
    kernels: int
    progress: bool = False
    spent: float = 0.0

    def take(self, used: float) -> None:
        self.seconds -= used
        self.spent += used
        self.kernels -= 1

    def said(self) -> Progress:
        """What the terminal shows meanwhile."""
        return Progress(lambda: f"timing {self.kernels} kernels", self.progress, self.spent)

    @property
    def share(self) -> float:
        return max(0.0, self.seconds) / max(1, self.kernels)


@dataclass
class _Tuned:
    """A kernel that is tuned when it is first called.

    within: seconds of the graph's search among configurations; 0: among ways alone.
    """

    kernel: TritonKernel
    site: Site
    run: Callable[..., None]
    left: _Budget
    within: float
    note: Callable[[Choice], None]
    done: bool = False
    outside: Bound | None = None  # what others have of it

    def call(self, *args: int) -> None:
        if not self.done and not torch.cuda.is_current_stream_capturing():
            sizes = self.bytes(args)
            if all(n is None or n > 0 for n in sizes):
                self.done = True
                with self.left.said():
                    self.tune(args, sizes)
        self.run(*args)

    def bytes(self, args: Sequence[int]) -> list[int | None]:
        """Of each argument's memory; None for numbers, and for what is not known."""
        assert self.kernel.extents is not None
        env = dict(zip(self.kernel.ints, args[len(self.kernel.params) :], strict=True))
        return [None if e is None else evaluate(e, env) for e in self.kernel.extents]

    def tune(self, args: Sequence[int], sizes: Sequence[int | None]) -> None:
        device, site, ways = self.site.device.index, self.site, self.kernel.ways
        clock = CudaClock(device)  # its memory goes with it
        start, share = time.perf_counter(), self.left.share
        place = torch.device("cuda", device)
        given: list[torch.Tensor | int] = [
            a if n is None else torch.as_tensor(_Memory(a, n), device=place)
            for a, n in zip(args, sizes, strict=True)
        ]
        configs = [default_configs(k) for k in ways]
        try:
            if self.within:
                until = clock.now() + share
                for n, k in enumerate(ways):  # one that needs less leaves it to those behind
                    share = (until - clock.now()) / (len(ways) - n + (len(ways) > 1))
                    configs[n] = fastest_configs(k, site, given, clock, share, self.within)
                share = max(0.0, until - clock.now())
            search = WaySearch(ways, configs, site, given)
            found = search.known()
            if found is None:
                before = time.perf_counter()
                search.build()
                if not self.within:  # it was compiled while the host went on: nobody chose that
                    start += time.perf_counter() - before
                found = search.choose(clock, share)
            self.note(replace(found, configs=tuple(configs[found.index])))
            bound = search.bound(found)
            self.run = bound.call
            if self.outside is not None:
                self.outside.follow(bound)
        except torch.OutOfMemoryError:
            pass
        self.left.take(time.perf_counter() - start)


@dataclass
class WaySearch:
    """The search for the quickest of several kernels that do the same, for some arguments.

    configs: of each.  args: as for ``fastest_configs``.  built: the binaries of all that Triton
    took.  What was found is kept in the site's cache, by the kernels and the sizes' powers of two.
    """

    ways: Sequence[TritonKernel]
    configs: Sequence[Sequence[Config]]
    site: Site
    args: Sequence[torch.Tensor | int]
    built: dict[KernelJob, Binary] = field(default_factory=dict)

    def known(self) -> Choice | None:
        """What was found before; the only way, where there is one."""
        one = Choice(0, (None,), False) if len(self.ways) == 1 else None
        return one or known(self.key(), len(self.ways), self.site.cache)

    def key(self) -> list[str]:
        pairs = zip(self.ways, self.configs, strict=True)
        keys = (_key(k, self.site, c) for k, c in pairs)
        return ["ways", *keys, *_sizes(self.ways[0], self.args)]

    def jobs(self, i: int) -> list[KernelJob]:
        target = self.site.device.properties.target
        return likely_jobs(self.ways[i], self.configs[i], target)

    def build(self) -> None:
        jobs = [job for i in range(len(self.ways)) for job in self.jobs(i)]
        made = zip(jobs, submit(jobs, self.site.cache).outcomes(), strict=True)
        self.built.update((job, binary) for job, binary in made if isinstance(binary, Binary))

    def choose(self, clock: CudaClock, budget: float) -> Choice:
        """By the clock, in so many seconds.  The first way says itself why it cannot run."""
        pairs = enumerate(zip(self.ways, self.configs, strict=True))
        runs = [
            candidate(k, self.site, c, self.built)
            if i == 0 or all(job in self.built for job in self.jobs(i))
            else None
            for i, (k, c) in pairs
        ]
        mutated = [i for i, p in enumerate(self.ways[0].params) if p.mode != "in"]
        return choose(self.key(), runs, self.args, mutated, clock, self.site.cache, budget)

    def bound(self, found: Choice) -> Bound:
        i = found.index
        return bind_cuda(self.ways[i], self.site, self.configs[i], self.built)


def _sizes(kernel: TritonKernel, args: Sequence[torch.Tensor | int]) -> list[str]:
    """The powers of two that the integers of a call lie below: choices serve alike sizes."""
    return [str(int(n).bit_length()) for n in args[len(kernel.params) :]]


def fastest_configs(
    kernel: TritonKernel,
    site: Site,
    args: Sequence[torch.Tensor | int],
    clock: CudaClock,
    budget: float,
    within: float,
) -> list[Config]:
    """The quickest configuration of each launch, for these arguments.

    args: the kernel's buffers (those that the kernel only reads may be addresses, or values), then
    its integers; the buffers that the kernel writes are copied.  budget: seconds of compiling and
    measuring.  What was found is kept in the site's cache: where all configurations were tried
    once, or as many as ``within`` seconds for the whole graph allowed, nothing is compiled again.
    Launches are tuned in turn, each by the time of the whole kernel.
    """
    chosen = default_configs(kernel)
    return _Search(kernel, site, args, clock, budget, within, clock.now(), chosen).run()


@dataclass
class _Search:
    """The search for the configurations of one kernel, for some arguments."""

    kernel: TritonKernel
    site: Site
    args: Sequence[torch.Tensor | int]
    clock: CudaClock
    budget: float
    within: float
    start: float
    chosen: list[Config]
    built: dict[KernelJob, Binary] = field(default_factory=dict)
    refused: set[KernelJob] = field(default_factory=set)

    def run(self) -> list[Config]:
        open_ = [i for i, launch in enumerate(self.kernel.launches) if len(launch.configs) > 1]
        for n, i in enumerate(open_):
            configs: Sequence[Config] = self.kernel.launches[i].configs
            found = known(self.key(i, configs), len(configs), self.site.cache, self.within)
            if found is None:
                self.build()
                found = self.choose(i, configs, len(open_) - n)
            self.chosen[i] = configs[found.index]
        return self.chosen

    def key(self, i: int, configs: Sequence[Config]) -> list[str]:
        """What the choice of a launch among ``configs`` depends on."""
        ways = (_key(self.kernel, self.site, self.way(i, c)) for c in configs)
        return [*ways, *_sizes(self.kernel, self.args)]

    def way(self, i: int, config: Config) -> list[Config]:
        """The configurations of all launches, if one of them gets ``config``."""
        return [*self.chosen[:i], config, *self.chosen[i + 1 :]]

    def choose(self, i: int, configs: Sequence[Config], left: int) -> Choice:
        """left: how many launches share the time that is left, this one included."""
        calls = [self.call(i, c) for c in configs]
        within = None if self.tried(i) else self.within
        mutated = [k for k, p in enumerate(self.kernel.params) if p.mode != "in"]
        share = max(0.0, self.start + self.budget - self.clock.now()) / left
        key = self.key(i, configs)
        return choose(key, calls, self.args, mutated, self.clock, self.site.cache, share, within)

    def call(self, i: int, config: Config) -> Run | None:
        """None for what Triton refused, but for the default: that is for the launch to say.  And
        for what there was no time to compile."""
        launch = self.kernel.launches[i]
        if config != launch.configs[0] and _job(self.site, launch, config) not in self.built:
            return None
        return candidate(self.kernel, self.site, self.way(i, config), self.built)

    def tried(self, i: int) -> bool:
        """Whether there was time to compile all of a launch but the default."""
        launch, reached = self.kernel.launches[i], self.built.keys() | self.refused
        return all(_job(self.site, launch, c) in reached for c in launch.configs[1:])

    def build(self) -> None:
        """Compile as many configurations as there is time for, those of the first launch first."""
        if self.built:
            return
        pairs = [(x, c) for x in self.kernel.launches for c in x.configs]
        jobs = list(dict.fromkeys(_job(self.site, x, c) for x, c in pairs))
        wave = max(1, default_workers())
        for i in range(0, len(jobs), wave):
            # The other half of the time is for the clock.
            if i and self.clock.now() > self.start + self.budget / 2:
                break
            some = jobs[i : i + wave]
            for job, made in zip(some, submit(some, self.site.cache).outcomes(), strict=True):
                if isinstance(made, Binary):
                    self.built[job] = made
                elif isinstance(made, RefusedSourceError):
                    self.refused.add(job)  # for good; what the compiler died of, it may not again


def candidate(
    kernel: TritonKernel,
    site: Site,
    configs: Sequence[Config],
    built: Mapping[KernelJob, Binary],
) -> Run:
    """A candidate: bound at its first run, so that what cannot be loaded fails there."""
    bound: list[Callable[..., None]] = []

    def run(args: Sequence[Any]) -> None:
        if not bound:
            bound.append(bind_cuda(kernel, site, configs, built))
        bound[0](*(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args))

    return run


def _job(site: Site, launch: Launch, config: Config) -> KernelJob:
    return job_of(launch, config, site.device.properties.target, likely_variant(launch))


def _key(kernel: TritonKernel, site: Site, configs: Sequence[Config]) -> str:
    pairs = zip(kernel.launches, configs, strict=True)
    keys = [job_key(_job(site, launch, c)) for launch, c in pairs]
    return " ".join([site.device.properties.name, *keys])
