"""CUDA graphs: a compiled graph's launches, recorded once and replayed in one call.

A recording has addresses in it.  Arguments that come at one address again and again (parameters,
buffers, results of other recordings) are recorded where they are; the others are copied into memory
of the recording.  The first call with new shapes runs plainly, which compiles, tunes and loads what
is still missing, and shows which addresses stay; the second records.

Results lie in the recording's memory.  A recording is replayed only while nobody holds an earlier
result of it, in any form that keeps the memory alive: otherwise a further recording is made, up to
a limit, and then the call runs plainly.  Results are thus valid as long as they are held.  (A
stream of the user's own that still reads a result which Python has dropped is not seen.)

The forward and the backward graph of a function, in all shapes, record into one pool of memory: a
recording's temporaries may lie where a later one has its results.  While such a result is held, a
recording with memory of its own takes over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch

from litz.dataclass import dataclass
from litz.logs import events
from litz.runtime.arguments import BoxedCall
from litz.runtime.collector import uncollected
from litz.runtime.strided import copy_as_it_is, memory_of, span
from litz.runtime.torch_private import reinterpret, storage_address, storage_use_count

Replay = Callable[[], None]
SHAPES = 8
RECORDINGS = 4


class CudaDevice:
    """What recording needs of a GPU, through PyTorch."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._side: torch.cuda.Stream | None = None

    def stream(self) -> int:
        """The current stream."""
        return int(torch.cuda.current_stream(self.index).cuda_stream)

    def is_capturing(self) -> bool:
        """Whether somebody records the current stream already."""
        return bool(torch.cuda.is_current_stream_capturing())

    def new_pool(self) -> object:
        """A pool of memory for recordings."""
        return torch.cuda.graph_pool_handle()

    def capture(self, call: BoxedCall, args: list[Any], pool: Any) -> tuple[Replay, Any]:
        """Record a call without running it: how to replay it, and its results' memory."""
        with torch.cuda.device(self.index):
            if self._side is None:
                self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            graph = torch.cuda.CUDAGraph()
            self._side.wait_stream(torch.cuda.current_stream())
            try:
                with self._recording(graph, pool):
                    results = call(args)
            except Exception:
                # PyTorch's generator takes itself to be recorded still; a recording that ends well
                # puts it right.
                with self._recording(torch.cuda.CUDAGraph(), self.new_pool()):
                    torch.zeros(1, device="cuda")
                raise
            torch.cuda.current_stream().wait_stream(self._side)
        return graph.replay, results

    def _recording(self, graph: torch.cuda.CUDAGraph, pool: Any) -> Any:
        mode = "thread_local"  # what other threads do is none of this recording's business
        return torch.cuda.graph(graph, pool=pool, stream=self._side, capture_error_mode=mode)


@dataclass(frozen=True)
class Recordable:
    """What is known of a compiled graph's arguments.

    kind: of the graph, for the log.  varying: positions of arguments whose sizes, strides or (for
    numbers) values differ from call to call.  written: of those that the graph writes into.
    """

    kind: str
    varying: tuple[int, ...]
    written: frozenset[int]


@dataclass(eq=False)
class Family:
    """Graphs that run one after the other on one stream and record into one pool.

    device: where; made only when something is to be recorded.
    """

    device: CudaDevice
    recordings: list[_Recording] = field(default_factory=list)
    count: int = 0
    _pool: object = None
    _stream: int | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def pool(self) -> object:
        if self._pool is None:
            self._pool = self.device.new_pool()
        return self._pool

    def is_ours(self, stream: int) -> bool:
        """Whether calls on this stream keep the order of all others."""
        if self._stream is None:
            self._stream = stream
        return stream == self._stream

    def is_safe(self, r: _Recording) -> bool:
        """Whether no result is held that may lie where the recording has its temporaries."""
        return r.private or not any(
            o.number > r.number and not o.private and o.is_held() for o in self.recordings
        )

    def forget(self) -> None:
        """Let go of recordings that nobody will replay and whose results nobody holds."""
        self.recordings = [r for r in self.recordings if not r.retired or r.is_held()]

    def owns(self, x: torch.Tensor) -> bool:
        """Whether a tensor lies in the results of a recording."""
        address = x.untyped_storage().data_ptr()
        return any(address in r.addresses for r in self.recordings)


@dataclass(frozen=True)
class _Result:
    """A tensor among the results: a view of an argument's memory, or of ``base``.

    offset: in elements, from the argument's or the base's first.
    result: an earlier result with which autograd is to count writes to this one.
    """

    argument: int | None
    base: torch.Tensor | None
    whole: bool
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    result: int | None = None

    def tensor(self, args: Sequence[Any], made: Sequence[Any]) -> Any:
        source = self.base if self.argument is None else args[self.argument]
        assert source is not None
        if self.result is not None:
            at = source.storage_offset()
            return made[self.result].as_strided(self.size, self.stride, at).detach()
        # A tensor of its own for each call: autograd writes into the objects that it is given.
        if self.whole:
            return source
        return reinterpret(source, self.size, self.stride, self.offset)


@dataclass(eq=False)
class _Recording:
    """One recorded call.

    number: its place in the order of the family.  fixed: positions of tensors that are read and
    written where they are, with their addresses.  copied: positions and static copies of others.
    """

    number: int
    private: bool
    replay: Replay
    fixed: tuple[tuple[int, int], ...]
    copied: tuple[tuple[int, torch.Tensor], ...]
    results: tuple[Any, ...]
    is_single: bool
    storages: tuple[tuple[int, int, torch.UntypedStorage], ...]
    addresses: frozenset[int]
    retired: bool = False

    def __post_init__(self) -> None:
        self.positions = [k for k, _ in self.fixed]
        self.pointers = [address for _, address in self.fixed]

    def fits(self, args: list[Any]) -> bool:
        return [args[k].data_ptr() for k in self.positions] == self.pointers

    def is_held(self) -> bool:
        """Whether somebody holds a result of an earlier call."""
        assert storage_use_count is not None
        return any(storage_use_count(cdata) > alone for cdata, alone, _ in self.storages)

    def run(self, args: list[Any]) -> Any:
        own = list(args)
        args.clear()
        with torch.no_grad():
            for k, static in self.copied:
                if span(static) == static.numel():
                    static.copy_(own[k])
                else:
                    memory_of(static).copy_(memory_of(own[k]))
        self.replay()
        made: list[Any] = []
        for r in self.results:
            made.append(r.tensor(own, made) if isinstance(r, _Result) else r)
        return made[0] if self.is_single else tuple(made)


@dataclass(eq=False)
class _Shape:
    """Calls with the same sizes.

    seen: addresses in the call that made the latest recording, or in the first; copied: positions
    of arguments whose address does not stay.  full: nothing more is recorded.
    """

    seen: dict[int, int]
    copied: dict[int, None] = field(default_factory=dict)
    recordings: list[_Recording] = field(default_factory=list)
    private: bool = False
    full: bool = False


class CudaGraphs:
    """A compiled graph that is recorded and replayed.

    limit: of shapes that are recorded; others run plainly.  ``reason`` says why nothing (more) is
    recorded, "" as long as nothing stands against it.
    """

    def __init__(
        self, call: BoxedCall, about: Recordable, family: Family, limit: int = SHAPES
    ) -> None:
        self.call, self.about, self.family, self.limit = call, about, family, limit
        self.shapes: dict[tuple[Any, ...], _Shape] = {}
        self.reason = ""
        self._off = False
        if storage_use_count is None:
            self.refuse("this PyTorch does not say whether results are still held")

    @property
    def recorded(self) -> int:
        """How many recordings there are."""
        return sum(len(s.recordings) for s in self.shapes.values())

    def refuse(self, reason: str, *, off: bool = True) -> None:
        """Record nothing (more).  off: do not replay either."""
        if not self.reason:
            events.info("the %s graph is not recorded as a CUDA graph: %s", self.about.kind, reason)
        self.reason = self.reason or reason
        self._off = self._off or off

    def __call__(self, args: list[Any]) -> Any:
        if self._off:
            return self.call(args)
        family = self.family
        if not family.device.is_capturing():
            with family.lock:
                found = self._recording(args)
                if found is not None:
                    return found.run(args)
        return self.call(args)

    # --- which recording --------------------------------------------------------------------

    def _recording(self, args: list[Any]) -> _Recording | None:
        """What to replay; None where the call runs plainly: a first one, or one too many."""
        if not self.family.is_ours(self.family.device.stream()):
            self.refuse("it is called on several streams", off=False)
            return None
        key = tuple(_key(args[k]) for k in self.about.varying)
        shape = self.shapes.get(key)
        if shape is not None:
            return self._find(shape, args)
        if len(self.shapes) < self.limit:
            self.shapes[key] = _Shape(_addresses(args))
        else:
            self.refuse(f"it has come with more than {self.limit} shapes", off=False)
        return None

    def _find(self, shape: _Shape, args: list[Any]) -> _Recording | None:
        """A recording to replay, made if need be."""
        fitting = [r for r in shape.recordings if r.fits(args)]
        free = [r for r in fitting if not r.is_held()]
        for r in free:
            if self.family.is_safe(r):
                return r
        if shape.full:
            return None
        if free:
            shape.private = True  # somebody holds what it would overwrite
        elif not fitting:
            self._moved(shape, args)
        if len(shape.recordings) >= RECORDINGS:
            shape.full = True
            why = "earlier results are held" if fitting else "arguments come at changing addresses"
            self.refuse(f"after {RECORDINGS} recordings of one shape: {why}", off=False)
            return None
        return self._record(shape, args)

    def _moved(self, shape: _Shape, args: list[Any]) -> None:
        """Have arguments copied from now on that have come at another address."""
        now = _addresses(args)
        for k, address in now.items():
            kept = k in self.about.written or self.family.owns(args[k])
            if shape.seen.get(k) != address and not kept:
                shape.copied[k] = None
        shape.seen = now
        # Others hold memory for addresses that will hardly come back.
        for r in shape.recordings:
            r.retired = any(k in shape.copied for k in r.positions)
        shape.recordings = [r for r in shape.recordings if not r.retired]

    # --- recording --------------------------------------------------------------------------

    def _record(self, shape: _Shape, args: list[Any]) -> _Recording | None:
        family = self.family
        family.forget()
        private = shape.private
        try:
            with torch.inference_mode(False), torch.no_grad(), uncollected():
                copies = {k: copy_as_it_is(args[k]) for k in sorted(shape.copied)}
                inputs = [copies.get(k, a) for k, a in enumerate(args)]
                pool = family.device.new_pool() if private else family.pool()
                replay, results = family.device.capture(self.call, list(inputs), pool)
        except Exception as e:
            self.refuse(f"recording it failed: {type(e).__name__}: {str(e).partition(chr(10))[0]}")
            return None
        fixed = {k: a for k, a in _addresses(args).items() if k not in copies}
        made = self._made(replay, results, inputs, copies, tuple(fixed.items()), private)
        if made is None:
            return None
        family.count += 1
        family.recordings.append(made)
        shape.recordings.append(made)
        events.info(
            "the %s graph is recorded as CUDA graph %d: %d arguments where they are, %d copied%s",
            self.about.kind,
            made.number,
            len(fixed),
            len(copies),
            ", memory of its own" if private else "",
        )
        return made

    def _made(
        self,
        replay: Replay,
        results: Any,
        inputs: list[Any],
        copies: dict[int, torch.Tensor],
        fixed: tuple[tuple[int, int], ...],
        private: bool,
    ) -> _Recording | None:
        is_single = not isinstance(results, tuple | list)
        several = (results,) if is_single else tuple(results)
        sources = {
            a.untyped_storage().data_ptr(): k
            for k, a in reversed(list(enumerate(inputs)))
            if isinstance(a, torch.Tensor) and a.numel()
        }
        found: list[Any] = []
        storages: dict[int, torch.UntypedStorage] = {}
        for r in several:
            if not isinstance(r, torch.Tensor):
                found.append(r)
                continue
            if r.layout is not torch.strided:
                self.refuse("a result that is no plain tensor")
                return None
            k = next((k for k, a in enumerate(inputs) if a is r), None)
            if k is not None:
                found.append(_Result(k, None, True))
                continue
            storage = r.untyped_storage()
            k = sources.get(storage.data_ptr()) if r.numel() else None
            size, stride = tuple(r.shape), tuple(r.stride())
            if k is None:
                bases = (x.base if isinstance(x, _Result) else None for x in found)
                earlier = (k for k, b in enumerate(bases) if b is not None and are_one(b, r))
                found.append(_Result(None, r, False, size, stride, 0, next(earlier, None)))
                storages[storage_address(storage)] = storage
                continue
            if inputs[k].dtype is not r.dtype:
                self.refuse("a result that is an argument's memory in another type")
                return None
            offset = r.storage_offset() - inputs[k].storage_offset()
            found.append(_Result(k, None, False, size, stride, offset))
        assert storage_use_count is not None
        alone = tuple((c, storage_use_count(c), s) for c, s in storages.items())
        addresses = frozenset(s.data_ptr() for s in storages.values())
        number = self.family.count
        return _Recording(
            number, private, replay, fixed, tuple(copies.items()), tuple(found), is_single, alone,
            addresses,
        )  # fmt: skip


def are_one(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether autograd counts writes to two tensors of a type together."""
    if a.dtype is not b.dtype or storage_address(a.untyped_storage()) != storage_address(
        b.untyped_storage()
    ):
        return False
    before = a._version
    torch.autograd.graph.increment_version(b)
    return a._version != before


def _key(value: Any) -> object:
    """What must agree for a recording to be the right one, beside addresses."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), tuple(value.stride()), value.dtype)
    return (type(value), value.hex() if isinstance(value, float) else value)


def _addresses(args: Sequence[Any]) -> dict[int, int]:
    return {k: a.data_ptr() for k, a in enumerate(args) if isinstance(a, torch.Tensor)}
