"""Triton kernels on a GPU: jobs for the compile workers, and callables over the CUDA driver.

A launch exists in up to three variants.  The best assumes that all addresses are multiples of 16
bytes and all sizes multiples of 16; one assumes that of the addresses alone; one assumes nothing.
Which is right is decided at each launch, from what it is given; a variant is compiled when a launch
first wants it, the likely one ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from litz.dataclass import dataclass
from litz.index import size_hint
from litz.kernel.blocks.reach import LIMIT
from litz.kernel.blocks.recipe import Config
from litz.runtime.cache import Cache
from litz.runtime.launchers import VARIANTS, Bound, Form
from litz.runtime.launchers import VariantName as Variant
from litz.runtime.torch_private import current_raw_stream
from litz.runtime.triton.build import build
from litz.runtime.triton.driver import Device, cuda_driver
from litz.runtime.triton.job import Binary, KernelJob, Value
from litz.runtime.triton.launch import Memory, bind
from litz.runtime.triton.launch import variant as how
from litz.targets.triton import launcher
from litz.targets.triton.native import launcher_of
from litz.targets.triton.signature import pointer_type, scalar_type
from litz.targets.triton.source import Launch, TritonKernel

ALIGNMENT = 16
EARLY = 90  # the generation of GPUs from which a kernel may begin before another has ended


def default_configs(kernel: TritonKernel) -> list[Config]:
    """The first configuration of each launch."""
    return [launch.configs[0] for launch in kernel.launches]


def likely_width(launch: Launch) -> Launch:
    """The form of a launch that counts in 32 bits where hinted sizes allow it."""
    fits = all(size_hint(e) < LIMIT for e in launch.reaches)
    return launch.narrow if launch.narrow is not None and fits else launch


def likely_variant(launch: Launch) -> Variant:
    """The variant that a launch wants where its sizes are as hinted."""
    even = launch.ints and all(size_hint(e) % ALIGNMENT == 0 for e in launch.ints)
    return "even" if even else "aligned"


def likely_jobs(
    kernel: TritonKernel, configs: Sequence[Config], target: tuple[str, int, int]
) -> list[KernelJob]:
    """What to compile ahead: one job for each launch.  configs: one for each launch."""
    pairs = [(likely_width(x), c) for x, c in zip(kernel.launches, configs, strict=True)]
    return [job_of(x, c, target, likely_variant(x)) for x, c in pairs]


def job_of(
    launch: Launch, config: Config, target: tuple[str, int, int], variant: Variant
) -> KernelJob:
    """The job that compiles one variant of a launch."""
    if launch.table is not None:
        cells = ("cells", f"i64[{len(launch.table.types)}]")
        aligned = ("ALIGNED", variant != "general")
        return KernelJob(
            launch.code,
            launch.name,
            (cells, ("ALIGNED", "constexpr")),
            (aligned,),
            (),
            _options(launch, config),
            target,
        )
    pointers = [(p.name, pointer_type(p.dtype)) for p in launch.pointers]
    scalars = [(a.name, scalar_type(a.dtype)) for a in launch.scalars]
    ints = [(str(e), kind) for e, kind in zip(launch.ints, launch.int_types, strict=True)]
    divisible = [name for name, _ in pointers] if variant != "general" else []
    if variant == "even":
        divisible += [name for name, _ in ints]
    backend, generation, _ = target
    early = backend == "cuda" and generation >= EARLY
    constants = launch.constants(config, variant != "general", early)
    return KernelJob(
        launch.code,
        launch.name,
        (*pointers, *scalars, *ints, *((name, "constexpr") for name, _ in constants)),
        constants,
        tuple(divisible),
        _options(launch, config),
        target,
    )


def _options(launch: Launch, config: Config) -> tuple[tuple[str, Value], ...]:
    return (
        ("num_warps", config.warps),
        ("num_stages", config.stages),
        # A product rounds before it is added to, and subnormal numbers stay: as in eager mode.
        ("enable_fp_fusion", launch.contract),
        ("enable_reflect_ftz", False),
        # Makes assertions count; integers still wrap around.
        ("debug", launch.checks),
        ("sanitize_overflow", False),
    )


@dataclass(frozen=True)
class Site:
    """Where kernels run: a device, its current stream, its memory by bytes, and the cache."""

    device: Device
    stream: Callable[[], int]
    memory: Callable[[int], Memory]
    cache: Cache


def cuda_site(index: int, cache: Cache) -> Site:
    """A CUDA device by PyTorch's index, with PyTorch's stream and memory."""
    return Site(
        cuda_driver().device(index),
        partial(current_raw_stream, index),
        partial(_memory, torch.device("cuda", index)),
        cache,
    )


def _memory(device: torch.device, nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def device_index(device: str) -> int:
    """The number of a device like ``cuda:1``; of ``cuda`` alone, that of the current one."""
    number = device.partition(":")[2]
    return int(number) if number else torch.cuda.current_device()


def bind_cuda(
    kernel: TritonKernel,
    site: Site,
    configs: Sequence[Config] | None = None,
    built: Mapping[KernelJob, Binary] | None = None,
) -> Bound:
    """The launcher of a kernel on a CUDA device: a function of addresses, then integers.

    The device must be the current one when the function is called.  configs: one for each launch.
    built: binaries at hand; others are compiled, or taken from the cache, when they are wanted.
    """
    configs = default_configs(kernel) if configs is None else configs
    forms: list[Form] = []

    def variants(launch: Launch, config: Config) -> Callable[..., None]:
        made, likely = Variants(launch, config, site), likely_variant(launch)
        if built is not None and (binary := built.get(made.job(likely))) is not None:
            made.load(likely, binary)
        forms.append(made.form)
        return made.call

    call = launcher.bind(kernel, configs, variants)
    return Bound(call, partial(launcher_of, kernel, configs, forms))


class Variants:
    """The variants of one launch; ``call`` launches the one that suits."""

    def __init__(self, launch: Launch, config: Config, site: Site) -> None:
        self._launch, self._config, self._site = launch, config, site
        first: dict[str, Any] = {v: partial(self._first, v) for v in VARIANTS}
        self._scope = first
        exec(compile(choice_text(launch), f"<litz variants of {launch.name}>", "exec"), self._scope)
        self.call: Callable[..., None] = self._scope["call"]
        device = site.device
        self.form = Form(self.call, device.driver.launch_address, device.index)

    def job(self, variant: Variant) -> KernelJob:
        target = self._site.device.properties.target
        return job_of(self._launch, self._config, target, variant)

    def load(self, variant: Variant, binary: Binary) -> Callable[..., None]:
        """Bind a variant's binary; launches use it from now on."""
        function = self._site.device.load(binary)
        packed = packed_types(self._launch)
        launch = bind(function, self.job(variant), self._site.stream, self._site.memory, packed)
        self._scope[variant] = launch
        self.form.variants[VARIANTS.index(variant)] = how(function, self.job(variant))
        return launch

    def _first(self, variant: Variant, *args: int) -> None:
        """The first launch of a variant that was not built ahead."""
        (binary,) = build([self.job(variant)], self._site.cache)
        self.load(variant, binary)(*args)


def packed_types(launch: Launch) -> tuple[str, ...] | None:
    """Types of the cells that hold a launch's arguments, where these are others."""
    return None if launch.table is None else launch.table.types


def choice_text(launch: Launch) -> str:
    """A module with ``call``, which hands a launch to ``even``, ``aligned`` or ``general``."""
    if launch.table is not None:
        return table_text(launch.table.types)
    counts = {"p": len(launch.pointers), "v": len(launch.scalars), "n": len(launch.ints)}
    return "\n".join(_dispatch(*([f"{k}{i}" for i in range(n)] for k, n in counts.items())))


def table_text(types: Sequence[str]) -> str:
    """The same for a launch of several calls, given the types of its cells."""
    args = ", ".join(["gx", "gy", "gz", *(f"c{i}" for i in range(len(types)))])
    pointers = [f"c{i}" for i, t in enumerate(types) if t == "*"]
    # A list of them, since a sum of thousands is too deep for Python's compiler.
    odd = f"reduce(or_, [{', '.join(pointers)}], 0) & {ALIGNMENT - 1}"
    lines = ["from functools import reduce", "from operator import or_", f"def call({args}):"]
    return "\n".join([*lines, f"    return (general if {odd} else aligned)({args})", ""])


def _dispatch(pointers: list[str], scalars: list[str], ints: list[str]) -> Iterator[str]:
    args = ", ".join(["gx", "gy", "gz", *pointers, *scalars, *ints])
    rest = ALIGNMENT - 1
    yield f"def call({args}):"
    if pointers:
        yield f"    if ({' | '.join(pointers)}) & {rest}:"
        yield f"        return general({args})"
    if ints:
        yield f"    if ({' | '.join(ints)}) & {rest}:"
        yield f"        return aligned({args})"
        yield f"    return even({args})"
    else:
        yield f"    return aligned({args})"
    yield ""
