"""Picking the fastest of several ways to launch a kernel, by the clock.

Candidates are measured in turns, so that a machine that slows down slows all of them; those that
are clearly behind drop out, and where the rest cannot change the choice any more nothing is
measured further.  The first candidate is the default: another replaces it only where it is faster
by more than noise, and by much more where time was left for one run alone.  What was found is kept
on disk, and never measured again.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch

from litz.dataclass import dataclass
from litz.runtime.cache import Cache, content_key
from litz.runtime.strided import addresses

KIND = "tuned"
ROUNDS = 12  # turns of each candidate at most
BATCH = 4  # launches a turn
BEHIND = 1.3  # times the best, at which a candidate drops out
FEW = 2 * BATCH  # runs beyond which their spread says where the median lies
NOISE = 0.97  # times the default's, that a candidate must beat
LEAD = 4  # readings of a buffer of twice the cache's size before each run
ALIGNMENT = 256  # bytes: what PyTorch's allocator gives at least

Run = Callable[[Sequence[Any]], None]
"""A candidate: launches the kernel with these arguments (tensors and integers)."""


class Clock(Protocol):
    """What measures runs on a device, and the device's name."""

    @property
    def device_name(self) -> str: ...

    def now(self) -> float: ...

    def measure(self, run: Callable[[], None], times: int) -> list[float]: ...


class CudaClock:
    """Times by CUDA events on the current stream of a device, L2 flushed before each run.

    By reading: lines that were written would be on their way to memory while a candidate runs.
    And for so long that the host has issued all of the run's launches when the first begins.
    """

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self._device)

    @cached_property
    def _flush(self) -> torch.Tensor:
        """What is read before each run; made when first something is measured."""
        l2_bytes = torch.cuda.get_device_properties(self._device).L2_cache_size
        # Twice the cache's size: what is read last need not have driven out everything.
        nbytes = max(2 * l2_bytes, 1 << 20)
        return torch.zeros(nbytes // 4, dtype=torch.int32, device=self._device)

    def now(self) -> float:
        """Seconds on the wall."""
        return time.perf_counter()

    def measure(self, run: Callable[[], None], times: int) -> list[float]:
        """Seconds of each of ``times`` runs, every one with a cold cache; waits for them."""
        event: Any = torch.cuda.Event
        with torch.cuda.device(self._device):
            events = []
            for _ in range(times):
                start, end = event(enable_timing=True), event(enable_timing=True)
                for _ in range(LEAD):
                    self._flush.amax()
                start.record()
                run()
                end.record()
                events.append((start, end))
            torch.cuda.synchronize(self._device)
        return [1e-3 * start.elapsed_time(end) for start, end in events]


@dataclass(frozen=True)
class Choice:
    """What was found.

    index: of the chosen candidate.  seconds: the median of each, None for those that failed or
    were not reached.  measured: whether it was found now, not before.  configs: of the launches of
    the kernel that was chosen, where candidates are kernels.
    """

    index: int
    seconds: tuple[float | None, ...]
    measured: bool
    configs: tuple[Any, ...] = ()


def known(key: Sequence[str], count: int, cache: Cache, within: float = 0.0) -> Choice | None:
    """What was chosen before among ``count`` candidates, under the key that ``choose`` had.

    within: seconds of the search that asks; it goes on where one of less did not reach all.
    """
    text = cache.get_text(KIND, _entry(key, count), ".json")
    if text is None:
        return None
    try:
        data = json.loads(text)
        index, seconds = data["index"], tuple(data["seconds"])
        if within > data.get("within", math.inf):
            return None
    except (ValueError, KeyError, TypeError):
        return None
    fits = isinstance(index, int) and 0 <= index < count == len(seconds)
    return Choice(index, seconds, False) if fits else None


def choose(
    key: Sequence[str],
    candidates: Sequence[Run | None],
    args: Sequence[Any],
    mutated: Sequence[int],
    clock: Clock,
    cache: Cache,
    budget: float,
    within: float | None = None,
) -> Choice:
    """The fastest candidate for these arguments.

    key: all that the choice depends on: the kernel, its candidates, the sizes, the device's name.
    candidates: None for one that is known not to run, or that a search ``within`` so many seconds
    had no time for; the default is none of these.
    mutated: positions of the tensors that the kernel writes; the candidates get copies of these,
    and of no others.  budget: seconds to spend; the default always runs once.
    Raises what the default raises where no candidate runs.
    """
    if len(candidates) == 1:
        return Choice(0, (None,), False)
    before = known(key, len(candidates), cache, math.inf if within is None else within)
    if before is not None:
        return before
    deadline = clock.now() + budget
    try:
        own = private_copies(args, mutated)
    except torch.OutOfMemoryError:
        return Choice(0, (None,) * len(candidates), False)
    contest = _Contest(candidates, own, clock, deadline)
    seconds = contest.run()
    index = _best(seconds, [len(times) for times in contest.times])
    found = Choice(index, tuple(seconds), True)
    text = {"index": index, "seconds": seconds} | ({} if within is None else {"within": within})
    cache.put(KIND, _entry(key, len(candidates)), json.dumps(text), ".json")
    return found


def _entry(key: Sequence[str], count: int) -> str:
    return content_key(*key, str(count))


def _best(seconds: Sequence[float | None], runs: Sequence[int]) -> int:
    """The fastest; the default unless another is faster by more than noise.

    runs: how often each was measured.  Of what had no turn but one run there is no median that an
    outlier leaves alone: it has to be as far ahead as would put the default out.
    """
    timed = [(t, i) for i, t in enumerate(seconds) if t is not None]
    default = seconds[0]
    if not timed or default is None:
        return min(timed)[1] if timed else 0
    ahead = [
        (t, i)
        for t, i in timed
        if i and t <= default * (NOISE if min(runs[0], runs[i]) > BATCH else 1 / BEHIND)
    ]
    return min(ahead)[1] if ahead else 0


class _Contest:
    """Measures in turns until the candidates, the turns or the time run out."""

    def __init__(
        self, candidates: Sequence[Run | None], args: Sequence[Any], clock: Clock, until: float
    ) -> None:
        self.runs = [None if c is None else _with(c, args) for c in candidates]
        self.clock = clock
        self.deadline = until
        self.times: list[list[float]] = [[] for _ in candidates]
        self.costs = [0.0 for _ in candidates]  # wall seconds of the last turn

    def run(self) -> list[float | None]:
        left = self.first()
        for _ in range(ROUNDS):
            if len(left) < 2:
                break
            for i in left:
                if not self.turn(i):
                    return self.medians()
            best = min(statistics.median(self.times[i]) for i in left)
            left = [i for i in left if statistics.median(self.times[i]) <= BEHIND * best]
            left = self.open(left)
        return self.medians()

    def open(self, left: list[int]) -> list[int]:
        """The best of some, and those that may be faster than it by more than noise."""
        best = left[_best([statistics.median(self.times[i]) for i in left], [FEW] * len(left))]
        _, high = self.bounds(best)
        return [i for i in left if i == best or self.bounds(i)[0] <= NOISE * high]

    def bounds(self, i: int) -> tuple[float, float]:
        """Between which the median of a candidate lies, in 95 of 100 cases: by ranks alone."""
        times = sorted(self.times[i])
        rank = int(len(times) / 2 - math.sqrt(len(times)))
        return (times[rank], times[-1 - rank]) if len(times) > FEW else (0.0, math.inf)

    def first(self) -> list[int]:
        """Those that run at all.  The first run of each (loading, clocks rising) is not counted."""
        left: list[int] = []
        failure: Exception | None = None
        worst = 0.0
        for i, run in enumerate(self.runs):
            if run is None:
                continue
            start = self.clock.now()
            # What a candidate takes at first is unknown: as long as the slowest so far, say.
            if i and start + worst > self.deadline:
                break
            try:
                self.clock.measure(run, 1)
                ready = self.clock.now()
                self.times[i] += self.clock.measure(run, 1)
                self.costs[i] = BATCH * (self.clock.now() - ready)
            except Exception as error:
                failure = failure or error
                continue
            finally:
                worst = max(worst, self.clock.now() - start)
            left.append(i)
        if not left and failure is not None:
            raise failure
        return left

    def turn(self, i: int) -> bool:
        """Measure a candidate once more; False where no time is left for that."""
        start, run = self.clock.now(), self.runs[i]
        if run is None or start + self.costs[i] > self.deadline:
            return False
        self.times[i] += self.clock.measure(run, BATCH)
        self.costs[i] = self.clock.now() - start
        return True

    def medians(self) -> list[float | None]:
        return [statistics.median(t) if t else None for t in self.times]


def _with(candidate: Run, args: Sequence[Any]) -> Callable[[], None]:
    return lambda: candidate(args)


# --- arguments ---


def private_copies(args: Sequence[Any], mutated: Sequence[int]) -> list[Any]:
    """The arguments, those at ``mutated`` as copies with the same strides and alignment.

    Arguments that share memory with a mutated one share its copy.
    """
    written = [addresses(args[i]) for i in mutated if args[i].numel()]
    # What overlaps a mutated argument moves along, whole.
    copies = [
        (low, high, _copy(low, high, base))
        for low, high, base in _spans([a for a in args if isinstance(a, torch.Tensor)])
        if any(low < end and start < high for start, end in written)
    ]
    out: list[Any] = []
    for a in args:
        home = None
        if isinstance(a, torch.Tensor) and a.numel():
            low, high = addresses(a)
            home = next((c for c in copies if c[0] < high and low < c[1]), None)
        out.append(a if home is None else _moved(a, home[0], home[2]))
    return out


def _spans(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int, torch.Tensor]]:
    """Disjoint ranges of addresses that cover the tensors, each with a tensor of that storage."""
    out: list[tuple[int, int, torch.Tensor]] = []
    for t in sorted((t for t in tensors if t.numel()), key=addresses):
        low, high = addresses(t)
        if out and low < out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]), out[-1][2])
        else:
            out.append((low, high, t))
    return out


def _copy(low: int, high: int, base: torch.Tensor) -> torch.Tensor:
    """The bytes of a range, at an address that is aligned as theirs is."""
    memory = base.untyped_storage()
    storage = torch.empty(0, dtype=torch.uint8, device=base.device).set_(memory)
    start = low - memory.data_ptr()
    shift = low % ALIGNMENT
    room = torch.empty(shift + high - low, dtype=torch.uint8, device=base.device)
    room = room[shift:]
    room.copy_(storage[start : start + high - low])
    return room


def _moved(t: torch.Tensor, low: int, room: torch.Tensor) -> torch.Tensor:
    """The same view of a copy."""
    offset = int(room.storage_offset()) + t.data_ptr() - low
    flat = torch.empty(0, dtype=t.dtype, device=t.device)
    elements, rest = divmod(offset, t.element_size())
    assert rest == 0, "a tensor that is not aligned to its elements"
    return flat.set_(room.untyped_storage(), elements, t.shape, t.stride())
