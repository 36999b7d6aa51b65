"""Building the kernels of a graph: each target its own, all beside each other and the host."""

from __future__ import annotations

from collections.abc import Sequence

from litz.artifact import SegmentTable
from litz.runtime.tune import Choice
from litz.targets.parts import Builds, Callables, CppPart, Part, TritonPart
from litz.targets.tools import Tools


class Build:
    """All kernels of a graph being built; as a context it gives up on an error.

    choices: filled, when kernels are first called, with what was chosen by the clock, by name.
    """

    def __init__(self, parts: Sequence[Part], tools: Tools, choices: dict[str, Choice]) -> None:
        self._builds: list[Builds] = []
        native = [p for p in parts if isinstance(p, CppPart)]
        if native:
            from litz.targets.cpp.build import CppBuild

            self._builds.append(CppBuild(native, tools))
        others = [p for p in parts if isinstance(p, TritonPart)]
        if others:
            from litz.targets.triton.build import TritonBuild

            self._builds.append(TritonBuild(others, tools, choices))

    def __enter__(self) -> Build:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for build in self._builds:
                build.cancel()

    def wait(self) -> None:
        """Block until what has to be built before it is bound is there."""
        for build in self._builds:
            build.wait()

    def bind(self, segments: Sequence[SegmentTable]) -> Callables:
        """What the host program calls, by name."""
        return {name: f for build in self._builds for name, f in build.bind(segments).items()}
