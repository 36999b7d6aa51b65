"""Triton kernels on their way to launchers: by the compile workers, or under the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from litz.artifact import SegmentTable
from litz.runtime.tune import Choice
from litz.targets.parts import Callables, TritonPart
from litz.targets.tools import Tools


class TritonBuild:
    """The Triton kernels of a graph being built; those on the CPU are interpreted.

    choices: see ``litz.targets.triton.tuned``.
    """

    def __init__(
        self, parts: Sequence[TritonPart], tools: Tools, choices: dict[str, Choice]
    ) -> None:
        self._interpreted = [p for p in parts if p.device == "cpu"]
        self._finish: Callable[[], Callables] = dict
        made = [p for p in parts if p.device != "cpu"]
        if made:
            from litz.targets.triton.start import start
            from litz.targets.triton.tuned import Limits

            o = tools.options
            # Ways differ in the order of their sums.
            choosing = 0 if torch.are_deterministic_algorithms_enabled() else o.choosing_seconds
            limits = Limits(o.tuning_seconds or choosing, o.tuning_seconds > 0, o.progress)
            self._finish = start(made, tools.cache, o.jobs or None, limits, choices)

    def cancel(self) -> None:
        """What is being compiled goes to the cache."""

    def wait(self) -> None:
        """Workers are waited for when the kernels are bound."""

    def bind(self, segments: Sequence[SegmentTable]) -> Callables:
        found = self._finish()
        if self._interpreted:
            from litz.targets.triton.interpreted import bind_interpreted

            found |= {p.name: bind_interpreted(p.kernel) for p in self._interpreted}
        return found
