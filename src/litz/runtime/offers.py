"""What libraries offer to compute a problem: instances, of which the quickest is found and kept.

What problems, their operands and calls are, libraries of one kind agree on: products of matrices
(``litz.runtime.products``), convolutions (``litz.runtime.convolutions``).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Final, Generic, Protocol, TypeVar

import torch

from litz.dataclass import dataclass
from litz.runtime.cache import Cache, content_key
from litz.runtime.instance import Chosen, Instance, Matrix, Problem, Told
from litz.runtime.progress import Progress
from litz.runtime.tune import Clock, CudaClock, Run, choose

log = logging.getLogger("litz")
Tensor = torch.Tensor
KIND: Final = "products"  # of the cache's entries
MARKS: Final = (torch.nan, torch.inf, -torch.inf)
MOST = 8  # ways of one library that are looked at
SHARE = 2.0  # seconds that one problem may take
BOUND = 1024  # problems whose calls are held
ALIGNED = 256  # bytes: no library asks for more


def matrix(x: Tensor) -> Matrix:
    address = x.data_ptr()
    return Matrix(x.dtype, tuple(x.shape), x.stride(), min(address & -address or ALIGNED, ALIGNED))


class Given(Protocol):
    """The tensors of a call, frozen."""

    @property
    def out(self) -> Tensor:
        """What is filled."""

    @property
    def all(self) -> tuple[Tensor, ...]:
        """All of them; the last ``written`` may be written."""

    @property
    def written(self) -> int: ...

    def like(self, args: Sequence[Any], /) -> Any:
        """The same with tensors in the order of ``all``."""

    def marked(self) -> Any:
        """The same with nan and infinities among what is multiplied; ``out`` is fresh memory."""

    def reached(self) -> Tensor:
        """The part of ``out`` that these reach."""


G = TypeVar("G", bound=Given)
H = TypeVar("H", bound=Given, contravariant=True)
P = TypeVar("P", contravariant=True)
Q = TypeVar("Q")


class Offers(Protocol[P, H]):
    """What offers instances of problems on one device: a library."""

    @property
    def version(self) -> str:
        """Its name and version: what is known of instances of others is of no use."""

    def instances(self, problem: P, most: int, /) -> Sequence[Instance]:
        """Ways to compute a problem, the likeliest first; none where it cannot take that."""

    def bind(self, problem: P, instance: Instance, /) -> Callable[[H], None]:
        """What computes it on the current stream.  It may be recorded as part of a CUDA graph."""

    def told(self, problem: P, /) -> Told | None:
        """What who has no Python tells the library of a problem; None: it computes that itself."""


@dataclass
class Chooser(Generic[Q, G]):
    """Calls by whichever way was the fastest of its problem.

    libraries: of a device; the first one's first instance is the default.  clock: of a GPU.
    cache: where to look for what was found before, and to keep it.
    seconds: that are left to measure in; spent: those that are not.  progress: whether to say so on
    the terminal.  bound: the call of each problem on each device.
    chosen: what is known, by device, libraries and problem: packages have it along.
    """

    libraries: Callable[[torch.device], Sequence[Offers[Q, G]]]
    cache: Cache | None
    seconds: float
    clock: Callable[[int], Clock] = CudaClock
    chosen: dict[str, Chosen] = field(default_factory=dict)
    progress: bool = False
    spent: float = 0.0
    bound: dict[tuple[torch.device, Q], Callable[[G], None]] = field(default_factory=dict)

    def call(self, p: Any, given: G) -> None:
        """Compute a problem."""
        call = self.bound.get((given.out.device, p))
        if call is None:
            call, final = self._found(p, given)
            if final:
                if len(self.bound) >= BOUND:  # of sizes that change from call to call
                    self.bound.clear()
                self.bound[given.out.device, p] = call
        call(given)

    def _found(self, p: Any, given: G) -> tuple[Callable[[G], None], bool]:
        """The call for a problem, and whether it stays so: while a graph is recorded none is."""
        device = given.out.device
        first, *more = self.libraries(device)
        if not more:
            return first.bind(p, first.instances(p, 1)[0]), True
        libraries, clock = {x.version: x for x in (first, *more)}, self.clock(device.index or 0)
        measures = self.seconds > 0 and self.cache is not None
        how = () if measures or not self.looks(p) else ("the likeliest",)
        key = content_key(clock.device_name, *libraries, json.dumps(asdict(p), default=str), *how)
        kept = self.chosen.get(key)
        known = kept.instance if kept else self._known(key, libraries)
        recording = given.out.is_cuda and torch.cuda.is_current_stream_capturing()
        if known is None and not recording and (measures or how):
            begin = clock.now()
            with Progress(lambda: "timing products", self.progress, self.spent):
                known = self._best(key, p, libraries, given, clock if measures else None)
            used = clock.now() - begin
            self.seconds, self.spent = self.seconds - used, self.spent + used
            if self.cache is not None:
                self.cache.put(KIND, key, json.dumps(asdict(known)), ".json")
        if known is None:
            known = first.instances(p, 1)[0]
        else:
            told = libraries[known.library].told(p)
            self.chosen[key] = Chosen(known, self.packaged(p), clock.device_name, told)
        return self._bound(libraries[known.library], p, known, first), not recording

    def _bound(
        self, library: Offers[Q, G], p: Any, way: Instance, first: Offers[Q, G]
    ) -> Callable[[G], None]:
        """The call of a way; of the default where what is known cannot be bound here and now."""
        try:
            return library.bind(p, way)
        except RuntimeError as e:
            if library is first:
                raise
            log.info("litz: %s has no call for %s: %s", library.version, p, e)
        return first.bind(p, first.instances(p, 1)[0])

    def packaged(self, p: Any) -> Problem | None:
        """A problem as packages have it along; None: they have none of this kind."""
        return None

    def looks(self, p: Any) -> bool:
        """Whether another library's likeliest way is taken where nothing is measured."""
        return False

    def _known(self, key: str, libraries: Mapping[str, object]) -> Instance | None:
        text = None if self.cache is None else self.cache.get_text(KIND, key, ".json")
        try:
            found = Instance(**json.loads(text)) if text else None
        except (ValueError, TypeError):
            return None
        return found if found and found.library in libraries else None

    def _best(
        self,
        key: str,
        p: Any,
        libraries: dict[str, Offers[Q, G]],
        given: G,
        clock: Clock | None,
    ) -> Instance:
        """The fastest way by a clock; without one the first that is not the default."""
        default, *others = (i for x in libraries.values() for i in _offered(x, p))
        if p.epilogue or clock is None:
            others = keeping(p, given, libraries, default, others, 1 if clock is None else MOST)
        if clock is None or self.cache is None:
            return others[0] if others else default
        ways = [default, *others]
        runs = [_run(libraries[i.library], p, i, given) for i in ways]
        args, budget = given.all, min(self.seconds, SHARE)
        written = range(len(args) - given.written, len(args))
        found = choose((key,), runs, args, written, clock, self.cache, budget)
        return ways[found.index]


def _offered(library: Offers[Any, Any], p: Any) -> Sequence[Instance]:
    """What a library offers; nothing where it fails, which is told."""
    try:
        return library.instances(p, MOST)
    except RuntimeError as e:
        log.warning("litz: %s offers nothing for %s: %s", library.version, p, e)
        return ()


def keeping(
    p: Any,
    given: Given,
    libraries: Mapping[str, Offers[Any, Any]],
    default: Instance,
    others: Sequence[Instance],
    most: int = MOST,
) -> list[Instance]:
    """Those that make of nan and infinities in an operand what the default does.

    Activations of libraries may not: a maximum that drops nan, say.
    """
    if not others:  # of no elements, say, none of which could be marked
        return []

    def kinds(way: Instance) -> Tensor | None:
        """Which of the elements that these reach are nan, and which are infinite."""
        try:
            operands = given.marked()
            libraries[way.library].bind(p, way)(operands)
        except RuntimeError:
            return None
        found = operands.reached()
        return torch.stack([found.isnan(), found.isposinf(), found.isneginf()])

    wanted, found = kinds(default), []
    for way in others:
        made = kinds(way)
        if made is not None and wanted is not None and torch.equal(made, wanted):
            found.append(way)
            if len(found) == most:
                break
    return found


def _run(library: Offers[Any, Any], p: Any, instance: Instance, given: Given) -> Run | None:
    """An instance as a candidate of the tuner; None for one that cannot be bound."""
    try:
        call = library.bind(p, instance)
    except (RuntimeError, ValueError):
        return None
    return lambda args: call(given.like(args))
