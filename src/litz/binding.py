"""From an artifact to a callable: the one place that builds kernels and touches devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from litz.artifact import Artifact, Recording
from litz.dataclass import dataclass
from litz.errors import ArtifactError
from litz.loading.values import PROBE, Runner, bind_host, namespace
from litz.logs import events
from litz.options import Options, make_options
from litz.runtime.arguments import BoxedCall, checked
from litz.runtime.collectives import why_not_recorded
from litz.runtime.convolutions import Convolutions, convolution
from litz.runtime.cublaslt import libraries
from litz.runtime.cuda_graphs import CudaDevice, CudaGraphs, Family, Recordable
from litz.runtime.cudnn import libraries as convolvers
from litz.runtime.instance import Chosen
from litz.runtime.products import Products, product
from litz.runtime.tune import Choice
from litz.targets.building import Build
from litz.targets.parts import Part
from litz.targets.records import part_from, part_of
from litz.targets.tools import Tools
from litz.version import __version__

if TYPE_CHECKING:
    from litz.stages import Watcher
    from litz.targets.kernels import Kernel


def versions() -> dict[str, str]:
    """The packages on which the meaning of an artifact depends."""
    return {"litz": __version__, "torch": str(torch.__version__)}


class Binder:
    """Builds the kernels of one graph and binds its artifact.

    ``start`` is for who compiles: kernels are built from the moment they are known, beside what
    compiling still has to do.
    """

    def __init__(
        self,
        options: Options,
        choices: dict[str, Choice] | None = None,
        products: dict[str, Chosen] | None = None,
    ) -> None:
        self.choices: dict[str, Choice] = {} if choices is None else choices
        """Which of its ways each kernel runs, by name: filled when kernels are first called."""
        self._products: dict[str, Chosen] = {} if products is None else products
        """What computes each product that was tuned (``Products.chosen``)."""
        self._options = options
        self._tools = Tools(options)
        self._build: Build | None = None
        self._bodies: Mapping[str, Binder] = {}

    def spend(self, seconds: float) -> None:
        """Take from the time for tuning what compiling has used of it."""
        if seconds:
            left = max(0, round(self._options.tuning_seconds - seconds))
            self._options = replace(self._options, autotune=left)
            self._tools = Tools(self._options)

    def start(self, kernels: Sequence[Kernel]) -> AbstractContextManager[Any]:
        """Start to build; a context in which an error gives the build up."""
        return self._start([part_of(k) for k in kernels])

    def _start(self, parts: Sequence[Part]) -> Build:
        self._build = Build(parts, self._tools, self.choices)
        return self._build

    def wait(self, artifact: Artifact) -> None:
        """Block until the C++ kernels are built, those of bodies beside the graph's own."""
        with ExitStack() as stack:
            for build in [stack.enter_context(b) for b in self._builds(artifact)]:
                build.wait()

    def _builds(self, artifact: Artifact) -> Iterator[Build]:
        yield self._build or self._start([part_from(k) for k in artifact.kernels])
        self._bodies = {
            name: Binder(self._options, self.choices, self._products) for name in artifact.bodies
        }
        for name, binder in self._bodies.items():
            yield from binder._builds(artifact.bodies[name])

    def load(
        self,
        artifact: Artifact,
        watch: Watcher | None = None,
        kernels: Mapping[str, object] | None = None,
    ) -> BoxedCall:
        """The callable of an artifact whose kernels are built.

        watch: follows its runs.  kernels: the user's, by their names.
        """
        assert self._build is not None
        if watch is None and PROBE in artifact.host.values:
            raise ArtifactError(
                f"litz: this artifact cannot be bound alone: {artifact.not_portable}"
            )
        natives = self._build.bind(artifact.host.segments)
        bodies = {
            name: b.load(artifact.bodies[name], kernels=kernels) for name, b in self._bodies.items()
        }
        values = namespace(artifact.host.values, bodies, kernels)
        seconds, named = float(self._options.tuning_seconds), [*values.values()]
        cache, progress = self._tools.cache, self._options.progress
        how: dict[str, Any] = {"chosen": self._products, "progress": progress}
        if seconds and any(v is product for v in named):
            values = Products(libraries, cache, seconds, **how).among(values)
        if any(v is convolution for v in named):
            values = Convolutions(convolvers, cache, seconds, **how).among(values)
        call = bind_host(artifact.host, values, natives, lambda: self._runner(artifact))
        if watch is not None:
            call = watch.wrap(call)
        return checked(call, artifact.count, artifact.arguments, always=artifact.always)

    def _runner(self, artifact: Artifact) -> Runner:
        """What runs the artifact's plan, if it has one."""
        if self._options.host != "fx":
            return self._tools.executor
        from litz.host.fx import FxHost  # only who asks for it pays

        hooks = self._options.host_passes
        return FxHost(artifact.kernels, artifact.host.segments, hooks)


def bind(
    artifact: Artifact,
    options: Options | None = None,
    kernels: Mapping[str, object] | None = None,
) -> BoxedCall:
    """A callable of an artifact: it takes the graph's arguments as a list, which it empties.

    options: of which those count that say how kernels are built and where they are kept; without
    any, the artifact's own over the environment's.  kernels: the user's Triton kernels, by their
    names (``litz.runtime.user_kernels.kernel_name``).
    Raises ArtifactError for what other versions of Litz or PyTorch compiled and for a kernel of the
    user's that is not there, ToolchainError without a C++ compiler.
    """
    for name, version in versions().items():
        if artifact.versions.get(name) != version:
            raise ArtifactError(
                f"litz: the artifact was compiled with {name} {artifact.versions.get(name)}, and "
                f"this is {name} {version}: compile the graph again"
            )
    binder = Binder(make_options(artifact.options) if options is None else options)
    binder.wait(artifact)
    return binder.load(artifact, kernels=kernels)


MODES: Final = ("reduce-overhead", "max-autotune")


@dataclass
class Recorder:
    """Has the graphs of one function, which run in turn, recorded as CUDA graphs where asked to."""

    options: Options
    _family: Family | None = None

    @property
    def wanted(self) -> bool:
        return self.options.mode in MODES and self.options.cuda_graph_shapes > 0

    def record(
        self, call: Callable[[list[Any]], Any], about: Recording, kind: str
    ) -> CudaGraphs | str:
        """``call`` recorded and replayed, or why it is not."""
        reason = about.reason or next(filter(None, map(why_not_recorded, about.groups)), "")
        if reason:
            events.info("the %s graph is not recorded as a CUDA graph: %s", kind, reason)
            return reason
        if self._family is None:
            self._family = Family(CudaDevice(about.gpu))
        facts = Recordable(kind, about.varying, about.written)
        return CudaGraphs(call, facts, self._family, self.options.cuda_graph_shapes)
