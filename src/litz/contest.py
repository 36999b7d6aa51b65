"""Ways to compute a part of a graph, measured against each other while the graph is compiled.

A template, a library's product with kernels around it and one with what is behind it in its call
are programs that take and give the same.  Each is compiled, tuned as its kernels and products
are in a graph, and measured in turns by ``litz.runtime.tune``, which keeps what it finds under the
programs' texts.  The choices within the ways are kept as well: the graph finds them made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import torch

from litz.binding import bind, versions
from litz.compiler import compile_program
from litz.dataclass import dataclass
from litz.index import size_hint
from litz.ir.program import Buffer, Program
from litz.ir.text import program_text
from litz.logs import events
from litz.lowering.torch_types import to_torch
from litz.options import Options
from litz.passes.rivals import Pass
from litz.runtime.arguments import BoxedCall
from litz.runtime.cuda_graphs import CudaDevice
from litz.runtime.progress import Progress
from litz.runtime.tune import Choice, Clock, CudaClock, Run, choose, known
from litz.targets.tools import Tools

SHARE: Final = 6  # seconds that one contest may take
WITHIN: Final = 2  # of which each of its ways is tuned in


def recorded(call: BoxedCall, args: list[Any]) -> Callable[[], object]:
    """A call without what the host does between its launches."""
    device = CudaDevice(args[0].device.index)
    replay, _ = device.capture(call, args, device.new_pool())
    return replay


@dataclass
class Contest:
    """The measurements of one graph.

    left: seconds for them; spent: those that are over.  clock: of a device of one of ``kinds``, by
    its number.  recorded: what is run again of a call, whose arguments stay.
    """

    options: Options
    left: float
    spent: float = 0.0
    clock: Callable[[int], Clock] = CudaClock
    kinds: tuple[str, ...] = ("cuda",)
    recorded: Callable[[BoxedCall, list[Any]], Callable[[], object]] = recorded

    def __call__(self, programs: Sequence[Program], passes: Sequence[Pass]) -> Choice | None:
        kind, _, index = next(iter(programs[0].buffers.values())).device.partition(":")
        if kind not in self.kinds:
            return None
        clock = self.clock(int(index or 0))
        done = [reduce(lambda program, p: p(program), passes, made) for made in programs]
        key = (clock.device_name, *versions().values(), *map(program_text, done))
        begin = clock.now()
        with Progress(lambda: "timing products", self.options.progress, self.spent):
            found = self._found(key, done, clock)
        self.left, self.spent = self.left - clock.now() + begin, self.spent + clock.now() - begin
        return found

    def _found(
        self, key: Sequence[str], programs: Sequence[Program], clock: Clock
    ) -> Choice | None:
        cache, budget = Tools(self.options).cache, min(self.left, SHARE)
        if (found := known(key, len(programs), cache)) is not None or budget <= 0:
            return found
        try:
            given = [programs[0].buffers[x] for x in programs[0].inputs]
            generator = torch.Generator(given[0].device).manual_seed(0)
            args = [_filled(b, generator) for b in given]
            return choose(key, [self._way(p) for p in programs], args, (), clock, cache, budget)
        except Exception as e:  # an estimate serves as well
            events.info("nothing is measured: %s", e)
            return None

    def _way(self, program: Program) -> Run:
        """A program as a candidate, which its first run compiles, tunes and records."""
        options = replace(
            self.options, autotune=WITHIN, progress=False, verify=False, check_calls=False,
            inspect="", show="", partition=(),
        )  # fmt: skip
        made: list[Callable[[], object]] = []

        def run(args: Sequence[Any]) -> None:
            if not made:
                call = bind(compile_program(program, options), options)
                call([*args])
                made.append(self.recorded(call, [*args]))
            made[0]()

        return run


def _filled(b: Buffer, generator: torch.Generator) -> torch.Tensor:
    """Memory as a buffer's, with numbers in it."""
    shape, strides = ([size_hint(x) for x in of] for of in (b.shape, b.strides))
    count = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    given: dict[str, Any] = {"device": b.device, "generator": generator}
    if b.dtype.is_float:
        flat = torch.randn(count, **given)
    else:
        flat = torch.randint(2 if b.dtype.bits > 8 else 100, (count,), **given)
    return flat.to(to_torch(b.dtype)).as_strided(shape, strides)
