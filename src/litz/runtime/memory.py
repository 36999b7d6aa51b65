"""Large buffers on recycled huge pages.

Most of the time of a 64 MB elementwise kernel goes into page faults of its fresh output: the C
library maps new memory for every large tensor and gives it back when the tensor dies.  An
`Allocator` asks for huge pages (2 MB a fault instead of 4 KB), and hands the same memory out again.

How recycling works.  A block is an ordinary `torch.UntypedStorage` from PyTorch's own allocator, of
just the size that is asked for, and the tensors over it are ordinary tensors: they resize, share,
pickle and outlive the program like any others.  The allocator keeps one reference to each block; a
block with no other reference, neither in C++ nor in Python, is cached: it can be handed out again.
A user's last reference may go in any thread at any time, and needs no callback.  A block whose
memory was exchanged meanwhile (resized, moved to shared memory) is let go, as is one that has
changed for good: memory that NumPy has seen can no longer be resized, and a storage may
bear attributes.

How much is kept.  Live and cached blocks together never exceed the most bytes that were live at
one time lately, plus `slack`, and cached ones never exceed `max_cached`; the longest unused go
first.  Blocks that went unused for `window` allocations go in any case.  What goes is given back to
the system page by page: the C library may keep a block of its heap, and holes there count as
resident.  Others' memory fills such holes and leaves them again, so that now and then the heap is
trimmed too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path

import torch

from litz.dataclass import dataclass
from litz.runtime.torch_private import is_zero_tensor, storage_address, storage_use_count

LARGE = 4 << 20
"""Bytes from which a buffer is worth recycling; below, the C library reuses memory well itself."""

HUGE_PAGE = 2 << 20
_PAGE = mmap.PAGESIZE
_SURVEY_EVERY = 64
_SLACK = 2 << 20
_POOL = "clock", "reused", "busy", "every"
"""What the native executor's pool begins with (each ``every``-th allocation is Python's, which
looks after the pool); addresses of `_Block.cells` follow, as many as `_SHOWN`, 0 for none."""
_SHOWN = 16
_WORDS = 8
"""Of a storage: references, address, size, and whether it can be resized."""


@dataclass(frozen=True)
class AllocatorStats:
    """What an allocator holds (bytes) and has done (calls)."""

    live: int
    cached: int
    blocks: int
    reused: int
    fresh: int


class _Block:
    """A storage, and a tensor over it of which others are made.

    cells: what the native executor sees of it: size, stamp, the tensor, and the words of the
    storage and of its Python object, as addresses and what stands there as long as nothing else
    refers to it and it is as good as new.
    """

    __slots__ = ("address", "attributes", "base", "cells", "nbytes", "ptr", "storage")

    def __init__(self, nbytes: int, stamp: int) -> None:
        self.storage = new_storage(nbytes)
        self.address = storage_address(self.storage)
        self.nbytes = nbytes
        self.ptr = self.storage.data_ptr()
        with torch.inference_mode(False):
            self.base = torch.empty(0, dtype=torch.uint8, device="cpu").set_(self.storage)
        # Held: Python may let go of an object's dictionary and make another later.
        self.attributes = vars(self.storage)
        watched = [
            *range(self.address, self.address + 8 * _WORDS, 8),
            id(self.storage),
            id(self.attributes),  # references to it: whether it is the object's still
            id(self.attributes) + 16,  # how many there are
        ]
        pairs = ((at, ctypes.c_int64.from_address(at).value) for at in watched)
        cells = [nbytes, stamp, id(self.base), len(watched), *chain(*pairs)]
        self.cells = (ctypes.c_int64 * len(cells))(*cells)

    @property
    def stamp(self) -> int:
        """When it was handed out last."""
        return self.cells[1]

    def as_new(self) -> bool:
        """What the native executor asks: whether the words are what they were."""
        pairs = self.cells[4:]
        there = (ctypes.c_int64.from_address(at).value for at in pairs[::2])
        return all(map(int.__eq__, there, pairs[1::2]))

    def counts(self) -> tuple[int, ...]:
        """References to the storage from Python and from C++.

        Both are read within one call into C, between which no other Python thread can run: read one
        by one, a tensor could turn into a bare storage in between and be missed by both.
        """
        assert storage_use_count is not None
        python = map(sys.getrefcount, (self.storage,))
        return tuple(chain(python, map(storage_use_count, (self.address,))))

    def unused(self) -> bool:
        return self.counts() == _unused_counts()

    def whole(self) -> bool:
        """Whether this is still the memory that was allocated, and as good as new."""
        s = self.storage
        same = s.data_ptr() == self.ptr and s.nbytes() == self.nbytes
        return same and s.resizable() and not vars(s)


class Allocator:
    """Allocates CPU tensors; recycles those of `min_bytes` and more.

    pool:      for the native executor: what `_POOL` says, and blocks that it may take by itself.
    max_cached:  most bytes of cached blocks to hold (default: an eighth of the machine's memory).
    slack:     bytes that live and cached blocks together may hold beyond the recent peak of live.
    window:    allocations after which an unused block goes, and a peak counts as old.

    Safe among threads.  A forked child starts with no blocks of its own.
    """

    def __init__(
        self,
        *,
        min_bytes: int = LARGE,
        max_cached: int | None = None,
        slack: int = _SLACK,
        window: int = 4096,
    ) -> None:
        self.min_bytes = max(min_bytes, 1)
        self.max_cached = memory_limit() // 8 if max_cached is None else max_cached
        self.slack = slack
        self.window = window
        self._lock = threading.Lock()
        self._blocks: dict[int, deque[_Block]] = {}
        self._fresh = 0
        self.pool = (ctypes.c_int64 * (len(_POOL) + _SHOWN))(0, 0, 0, _SURVEY_EVERY)
        self._shown = True  # whether the pool has what blocks there are
        self._evicted = False  # since the heap was looked at last
        self._peaks = (0, 0)  # live bytes: highest in the last full window, highest in this one
        self._window_end = window
        _forget_in_children(self)

    def empty_strided(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """A new CPU tensor with undefined values, like `torch.empty_strided`."""
        nbytes = dtype.itemsize
        for extent, step in zip(size, stride, strict=True):
            if extent == 0:
                nbytes = 0
                break
            nbytes += (extent - 1) * step * dtype.itemsize
        if nbytes < self.min_bytes or not can_tell_unused():
            return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
        storage = self._take(nbytes)
        empty = torch.empty(0, dtype=dtype, device="cpu")
        return empty.set_(storage, 0, tuple(size), tuple(stride))

    def workspace(self, nbytes: int) -> torch.Tensor:
        """Scratch: `nbytes` bytes of undefined content, free again once the tensor is dropped."""
        if nbytes < self.min_bytes or not can_tell_unused():
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        # Scratch is not looked at from outside: whole huge pages let near sizes share a block.
        storage = self._take(-(-nbytes // HUGE_PAGE) * HUGE_PAGE)
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (nbytes,), (1,))

    def trim(self, keep: int = 0) -> None:
        """Give cached blocks back to the system until at most `keep` bytes of them are left."""
        with self._alone():
            dead = self._evict(self._survey(), keep)
        del dead

    def stats(self) -> AllocatorStats:
        """Figures of this moment."""
        with self._alone():
            cached = sum(block.nbytes for block in self._survey())
            blocks = [block for queue in self._blocks.values() for block in queue]
            total = sum(block.nbytes for block in blocks)
            return AllocatorStats(total - cached, cached, len(blocks), self.pool[1], self._fresh)

    @property
    def _clock(self) -> int:
        return self.pool[0]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The lock; meanwhile, and behind an error until the next, the native executor takes no
        block."""
        with self._lock:
            self._shown = self._shown and not self.pool[2]  # an interrupt may have dropped blocks
            self.pool[2] = 1
            yield
            if not self._shown and _can_watch():
                blocks = [block for queue in self._blocks.values() for block in queue]
                blocks = sorted(blocks, key=lambda block: block.stamp)[-_SHOWN:]
                places: list[ctypes.c_int64 | int] = [
                    ctypes.addressof(block.cells) for block in blocks
                ]
                self.pool[len(_POOL) :] = places + [0] * (_SHOWN - len(places))
                self._shown = True
            self.pool[2] = 0

    def _take(self, nbytes: int) -> torch.UntypedStorage:
        dead: list[_Block] = []  # let go outside the lock: unmapping takes its time
        with self._alone():
            self.pool[0] += 1
            survey = self._clock % _SURVEY_EVERY == 0
            trim = survey and self._evicted
            if survey:
                self._evicted = False
                dead += self._make_room(0)
            storage = self._reuse(nbytes, dead)
            if storage is None:
                dead += self._make_room(nbytes)
        dead.clear()
        heap_trim = _c_function("malloc_trim", ctypes.c_size_t) if trim else None
        if heap_trim is not None:
            heap_trim(0)
        if storage is None:
            block = _Block(nbytes, self._clock)
            storage = block.storage
            advise_huge(block.ptr, nbytes)
            with self._alone():
                self._fresh += 1
                self._shown = False
                self._blocks.setdefault(nbytes, deque()).append(block)
        return storage

    def _reuse(self, nbytes: int, dead: list[_Block]) -> torch.UntypedStorage | None:
        queue = self._blocks.get(nbytes)
        if queue is None:
            return None
        # The likeliest to be unused: the one handed out last (a loop that drops each result), then
        # the one handed out longest ago (a training step that frees what the last one made).
        queue.rotate(1)
        for _ in range(len(queue)):
            block = queue.popleft()
            if not block.whole():
                dead.append(block)
                self._shown = False
                continue
            queue.append(block)
            if block.unused():
                block.cells[1] = self._clock
                self.pool[1] += 1
                return block.storage
        return None

    def _survey(self) -> list[_Block]:
        """The cached blocks, longest unused first; lets go of blocks whose memory was exchanged."""
        cached: list[_Block] = []
        for nbytes, queue in list(self._blocks.items()):
            whole = [block for block in queue if block.whole()]
            if len(whole) != len(queue):
                self._blocks[nbytes] = deque(whole)
                self._shown = False
            cached += [block for block in whole if block.unused()]
        cached.sort(key=lambda block: block.stamp)
        return cached

    def _make_room(self, nbytes: int) -> list[_Block]:
        """Take out the cached blocks that stand beyond the bounds once `nbytes` more are live."""
        cached = self._survey()
        cached_bytes = sum(block.nbytes for block in cached)
        total = sum(nb * len(queue) for nb, queue in self._blocks.items())
        live = total - cached_bytes + nbytes
        if self._clock >= self._window_end:
            self._peaks = (self._peaks[1], 0)
            self._window_end = self._clock + self.window
        self._peaks = (self._peaks[0], max(self._peaks[1], live))
        keep = min(self.max_cached, max(self._peaks) + self.slack - live)
        dead = self._evict(cached, keep)
        old = [b for b in cached[len(dead) :] if b.stamp < self._clock - self.window]
        return dead + self._evict(old, 0)

    def _evict(self, cached: list[_Block], keep: int) -> list[_Block]:
        """Take blocks out, from the front, until at most `keep` bytes of `cached` are left."""
        left = sum(block.nbytes for block in cached)
        dead: list[_Block] = []
        for block in cached:
            if left <= keep:
                break
            left -= block.nbytes
            self._evicted, self._shown = True, False
            dead.append(block)
            _advise(block.ptr, block.nbytes, _PAGE, "MADV_DONTNEED")
            queue = self._blocks[block.nbytes]
            queue.remove(block)
            if not queue:
                del self._blocks[block.nbytes]
        return dead

    def _forget(self) -> None:
        # Another thread of the parent may have held the lock, and pages are shared with the parent.
        self._lock = threading.Lock()
        self._blocks = {}
        self.pool[2:] = [0, _SURVEY_EVERY, *[0] * _SHOWN]


def _forget_in_children(allocator: Allocator) -> None:
    if hasattr(os, "register_at_fork"):
        forget = weakref.WeakMethod(allocator._forget)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())


@lru_cache(maxsize=1)
def default_allocator() -> Allocator:
    """The allocator of this process, which generated programs share so that they recycle each
    other's memory.  It is state of the running program, not of the compiler."""
    return Allocator()


@lru_cache(maxsize=1)
def _unused_counts() -> tuple[int, ...]:
    """What `_Block.counts` says of a block that nothing else refers to."""
    return _Block(64, 0).counts()


@lru_cache(maxsize=1)
def can_tell_unused() -> bool:
    """Whether reference counts tell unused storages from used ones in this Python and PyTorch."""
    if storage_use_count is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    block = _Block(64, 0)
    tensor = torch.empty(0, device="cpu").set_(block.storage, 0, (16,), (1,))
    view = tensor[2:4]
    del tensor
    by_tensor = block.unused()
    storage = view.untyped_storage()
    del view
    by_python = block.unused()
    del storage
    return not by_tensor and not by_python and block.unused()


@lru_cache(maxsize=1)
def _can_watch() -> bool:
    """Whether a block's words tell, in this Python and PyTorch, whether it is unused and as new."""
    held, seen, named = (_Block(64, 0) for _ in range(3))
    view = held.base[2:4]
    by_tensor = held.as_new()
    storage = view.untyped_storage()
    del view
    by_python = held.as_new()
    del storage
    with suppress(RuntimeError):  # there may be no NumPy
        seen.base[2:4].numpy()
    vars(named.storage)["name"] = ""
    told = not (by_tensor or by_python or named.as_new()) and seen.as_new() == seen.whole()
    return told and held.as_new() and can_tell_unused()


def new_storage(nbytes: int) -> torch.UntypedStorage:
    """A storage from PyTorch's CPU allocator."""
    return torch.UntypedStorage(nbytes)  # type: ignore[no-untyped-call]


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose address is 0, with memory for its elements, if it has any.

    PyTorch's zero tensors have none: autograd hands such gradients on.
    Raises RuntimeError for a tensor whose memory has been given back.
    """
    if tensor.numel() == 0:
        return tensor
    if not is_zero_tensor(tensor):
        raise RuntimeError("litz: the memory of an argument has been freed (resized to no bytes)")
    with torch.no_grad():
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        ).zero_()


def retype(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All of the storage of ``base`` as a flat tensor of ``dtype``, odd bytes left out."""
    storage = base.untyped_storage()
    length = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, (length,), (1,))


def memory_limit() -> int:
    """Bytes of memory that this process may count on: the machine's, or its control group's."""
    limit = 8 << 30
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return limit


@lru_cache(maxsize=2)
def _c_function(name: str, *arguments: type) -> ctypes._NamedFuncPointer | None:
    """A function of the C library, where it has it."""
    try:
        function: ctypes._NamedFuncPointer = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    function.argtypes = list(arguments)
    function.restype = ctypes.c_int
    return function


def advise_huge(ptr: int, nbytes: int) -> None:
    """Ask for huge pages under the part of a buffer that fills whole ones; only a hint."""
    _advise(ptr, nbytes, HUGE_PAGE, "MADV_HUGEPAGE")


def _advise(ptr: int, nbytes: int, page: int, what: str) -> None:
    """Tell the system of the part of a buffer that fills whole pages, where it can be told."""
    start = -(-ptr // page) * page
    end = (ptr + nbytes) // page * page
    madvise = _c_function("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advice = getattr(mmap, what, None)
    if end > start and madvise is not None and advice is not None:
        madvise(start, end - start, advice)
