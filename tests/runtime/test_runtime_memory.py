from __future__ import annotations

import copy
import ctypes
import gc
import io
import os
import random
import subprocess
import sys
import threading
from functools import partial

import pytest
import torch
from threads import hurried, together

from litz.runtime import memory
from litz.runtime.memory import HUGE_PAGE, Allocator

MB = 1 << 20
F32 = torch.float32


def make(allocator: Allocator, mb: float) -> torch.Tensor:
    n = int(mb * MB) // 4
    return allocator.empty_strided((n,), (1,), F32)


@pytest.fixture
def allocator() -> Allocator:
    assert memory.can_tell_unused()
    return Allocator(min_bytes=MB, slack=0)


def test_memory_is_reused_once_dropped(allocator: Allocator) -> None:
    first = make(allocator, 8)
    where = first.data_ptr()
    second = make(allocator, 8)
    assert second.data_ptr() != where
    del first
    assert make(allocator, 8).data_ptr() == where
    third = make(allocator, 8)
    assert third.data_ptr() == where
    stats = allocator.stats()
    assert (stats.live, stats.cached, stats.blocks) == (16 * MB, 0, 2)
    assert (stats.reused, stats.fresh) == (2, 2)


def hold_view(t: torch.Tensor) -> object:
    return t[5:9]


def hold_storage(t: torch.Tensor) -> object:
    return t.untyped_storage()


def hold_typed_storage(t: torch.Tensor) -> object:
    return torch.storage.TypedStorage(wrap_storage=t.untyped_storage(), dtype=F32, _internal=True)


def hold_numpy(t: torch.Tensor) -> object:
    return t.numpy()


def hold_dlpack(t: torch.Tensor) -> object:
    return torch.from_dlpack(t)


def hold_detached(t: torch.Tensor) -> object:
    return t.detach()


def hold_dtype_view(t: torch.Tensor) -> object:
    return t.view(torch.int32)


def hold_graph(t: torch.Tensor) -> object:
    """Only autograd, in C++, keeps the values."""
    return torch.ones_like(t, requires_grad=True) * t


def hold_data(t: torch.Tensor) -> object:
    other = torch.empty(0)
    other.data = t
    return other


@pytest.mark.parametrize(
    "hold",
    [
        hold_view,
        hold_storage,
        hold_typed_storage,
        hold_numpy,
        hold_dlpack,
        hold_detached,
        hold_dtype_view,
        hold_graph,
        hold_data,
    ],
)
def test_whatever_a_user_keeps_stays(allocator: Allocator, hold) -> None:
    tensor = make(allocator, 2)
    where = tensor.data_ptr()
    kept = hold(tensor)
    del tensor
    gc.collect(1)  # all of this is young
    assert make(allocator, 2).data_ptr() != where
    del kept
    gc.collect(1)
    if hold is not hold_numpy:  # which changes it for good
        assert where in {t.data_ptr() for t in [make(allocator, 2), make(allocator, 2)]}


def test_tensors_outlive_the_allocator() -> None:
    allocator = Allocator(min_bytes=MB)
    tensor = make(allocator, 4).fill_(3.0)
    del allocator
    gc.collect()
    assert tensor.sum() == 3.0 * MB


def test_tensors_are_ordinary(allocator: Allocator) -> None:
    tensor = allocator.empty_strided((256, 1024), (1024, 1), F32)
    plain = torch.empty_strided((256, 1024), (1024, 1), dtype=F32)
    tensor.copy_(torch.randn(256, 1024))
    assert tensor.is_leaf and not tensor.requires_grad and tensor._base is None
    assert type(tensor) is type(plain) and tensor.is_contiguous()
    assert tensor.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
    assert tensor.untyped_storage().resizable()
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    assert len(buffer.getvalue()) < MB + 10_000
    buffer.seek(0)
    assert torch.equal(torch.load(buffer), tensor)
    assert torch.equal(copy.deepcopy(tensor), tensor)
    parameter = torch.nn.Parameter(tensor)
    (parameter * 2).sum().backward()
    assert parameter.grad is not None and (parameter.grad == 2).all()


def test_resized_memory_is_let_go(allocator: Allocator) -> None:
    tensor = make(allocator, 2).fill_(1.0)
    tensor.resize_(4 * MB)
    assert tensor[: MB // 2].eq(1.0).all()
    assert allocator.stats().blocks == 0
    del tensor
    other = make(allocator, 2)
    other.untyped_storage().resize_(0)
    del other
    assert allocator.stats().blocks == 0
    fresh = make(allocator, 2)
    assert fresh.fill_(2.0).sum() == MB
    assert allocator.stats().reused == 0


def test_memory_that_is_not_as_good_as_new_is_let_go(allocator: Allocator) -> None:
    tensor = make(allocator, 2)
    tensor.numpy()  # from now on it can no longer be resized
    del tensor
    fresh = make(allocator, 2)
    assert fresh.untyped_storage().resizable() and allocator.stats().reused == 0
    fresh.untyped_storage().mine = True
    del fresh
    assert not hasattr(make(allocator, 2).untyped_storage(), "mine")
    assert allocator.stats().reused == 0


def test_shared_memory_is_let_go(allocator: Allocator) -> None:
    tensor = make(allocator, 2).fill_(1.0)
    tensor.share_memory_()
    assert tensor.is_shared() and tensor.sum() == MB // 2
    del tensor
    fresh = make(allocator, 2)
    assert not fresh.is_shared()
    assert allocator.stats().reused == 0


def test_other_layouts(allocator: Allocator) -> None:
    tensor = allocator.empty_strided((512, 1024), (1, 512), F32)
    assert tensor.stride() == (1, 512)
    expanded = allocator.empty_strided((MB, 4), (1, 0), F32)
    assert expanded.untyped_storage().nbytes() == 4 * MB
    half = allocator.empty_strided((MB,), (1,), torch.bfloat16)
    assert half.untyped_storage().nbytes() == 2 * MB
    nothing = allocator.empty_strided((0, MB), (MB, 1), F32)
    assert nothing.numel() == 0
    with pytest.raises(ValueError):
        allocator.empty_strided((MB, 2), (1,), F32)


def test_small_tensors_are_plain(allocator: Allocator) -> None:
    assert allocator.empty_strided((100,), (1,), F32).shape == (100,)
    assert allocator.workspace(100).shape == (100,)
    assert allocator.stats().fresh == 0


def test_inference_mode(allocator: Allocator) -> None:
    with torch.inference_mode():
        inside = make(allocator, 2)
        assert inside.is_inference()
    del inside
    outside = make(allocator, 2)
    assert not outside.is_inference()
    assert allocator.stats().reused == 1
    outside.requires_grad_().sum().backward()


def test_workspaces_share_blocks(allocator: Allocator) -> None:
    first = allocator.workspace(3 * MB + 5)
    assert first.shape == (3 * MB + 5,) and first.dtype == torch.uint8
    del first
    assert allocator.workspace(2 * HUGE_PAGE).shape == (2 * HUGE_PAGE,)
    assert (allocator.stats().fresh, allocator.stats().reused) == (1, 1)


def test_held_memory_never_exceeds_the_peak(allocator: Allocator) -> None:
    """Live and cached blocks together stay within the highest live sum, whatever the sizes."""
    rng = random.Random(0)
    held: list[torch.Tensor] = []
    peak = 0
    for _ in range(600):
        if held and rng.random() < 0.5:
            held.pop(rng.randrange(len(held)))
        else:
            held.append(make(allocator, rng.choice([1, 1.5, 2, 3, 5])))
        peak = max(peak, sum(t.untyped_storage().nbytes() for t in held))
        stats = allocator.stats()
        assert stats.live == sum(t.untyped_storage().nbytes() for t in held)
        assert stats.live + stats.cached <= peak
    assert allocator.stats().reused > 100


def test_a_cap_on_idle_memory() -> None:
    allocator = Allocator(min_bytes=MB, max_cached=4 * MB, slack=0)
    held = [make(allocator, 2) for _ in range(10)]
    held.clear()
    make(allocator, 3)
    assert allocator.stats().cached <= 4 * MB + 3 * MB


def test_old_peaks_are_forgotten() -> None:
    allocator = Allocator(min_bytes=MB, slack=0, window=128)
    held = [make(allocator, 2) for _ in range(20)]
    held.clear()
    for _ in range(500):
        make(allocator, 1)
    stats = allocator.stats()
    assert stats.live + stats.cached == MB


def test_trim(allocator: Allocator) -> None:
    held = [make(allocator, 2) for _ in range(4)]
    keep = held[0]
    del held
    allocator.trim(keep=2 * MB)
    assert (allocator.stats().live, allocator.stats().cached) == (2 * MB, 2 * MB)
    allocator.trim()
    assert (allocator.stats().live, allocator.stats().cached) == (2 * MB, 0)
    keep.fill_(1.0)


def test_many_threads(allocator: Allocator) -> None:
    """No block is ever in two hands: each thread finds its own mark in what it holds."""
    failures: list[str] = []
    handed_over: list[torch.Tensor] = []

    def work(mark: int) -> None:
        rng = random.Random(mark)
        held: list[tuple[torch.Tensor, float]] = []
        for i in range(150):
            tensor = make(allocator, rng.choice([1, 1, 2]))
            value = float(mark * 1000 + i)
            tensor[::4096] = value
            held.append((tensor[: MB // 8], value) if rng.random() < 0.3 else (tensor, value))
            for kept, expected in held:
                if not kept[::4096].eq(expected).all():
                    failures.append(f"{mark}: {expected}")
            while len(held) > rng.randrange(6):
                dropped, _ = held.pop(rng.randrange(len(held)))
                if rng.random() < 0.2:
                    handed_over.append(dropped)  # freed by another thread
            if len(handed_over) > 10:
                handed_over.clear()

    together((partial(work, i + 1) for i in range(6)), every=1e-5)
    assert failures == []
    assert allocator.stats().reused > 300


def test_a_tensor_that_turns_into_its_storage_and_back(allocator: Allocator) -> None:
    """One thread holds a block as a tensor and as a storage in turn: it never looks unused."""
    tensor = make(allocator, 1)
    held: list[torch.Tensor | torch.UntypedStorage] = [tensor]
    del tensor
    (block,) = allocator._blocks[MB]
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            tensor = held.pop()
            assert isinstance(tensor, torch.Tensor)
            storage = tensor.untyped_storage()
            del tensor
            held.append(torch.empty(0).set_(storage, 0, (16,), (1,)))
            del storage

    thread = threading.Thread(target=flip)
    with hurried():
        thread.start()
        try:
            looked_unused = sum(block.unused() for _ in range(50_000))
        finally:
            stop.set()
            thread.join()
    assert looked_unused == 0
    held.clear()
    assert block.unused()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork() -> None:
    """A child may allocate, though another thread of the parent held the lock; what it inherits
    stays as it was, and so does what the parent has."""
    program = """
import os, torch
from litz.runtime.memory import Allocator
torch.set_num_threads(1)
allocator = Allocator(min_bytes=1 << 20)
kept = allocator.empty_strided((1 << 18,), (1,), torch.float32).fill_(1.0)
cached = allocator.empty_strided((1 << 18,), (1,), torch.float32)
del cached
allocator._lock.acquire()
child = os.fork()
if child == 0:
    assert allocator.stats().blocks == 0
    new = allocator.empty_strided((1 << 18,), (1,), torch.float32).fill_(2.0)
    assert kept.eq(1.0).all() and new.data_ptr() != kept.data_ptr()
    kept.fill_(3.0)
    os._exit(0)
_, status = os.waitpid(child, 0)
allocator._lock.release()
assert os.waitstatus_to_exitcode(status) == 0
assert kept.eq(1.0).all()
assert allocator.stats().blocks == 2
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def page_faults() -> int:
    with open("/proc/self/stat") as stream:
        return int(stream.read().rpartition(")")[2].split()[7])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_steady_state_has_no_page_faults() -> None:
    allocator = Allocator()
    n = 64 * MB // 4
    x = torch.ones(n)

    def step() -> None:
        torch.neg(x, out=allocator.empty_strided((n,), (1,), F32))

    step()
    before = page_faults()
    for _ in range(5):
        step()
    assert page_faults() - before < 500  # eager: 16384 a call


def test_without_reference_counts_tensors_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "can_tell_unused", lambda: False)
    allocator = Allocator(min_bytes=MB)
    assert make(allocator, 2).numel() == MB // 2
    assert allocator.workspace(2 * MB).numel() == 2 * MB
    assert allocator.stats().blocks == 0


def test_advice_stays_within_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(memory, "_c_function", lambda *_: lambda p, n, how: calls.append((p, n)))
    memory.advise_huge(10 * HUGE_PAGE + 64, 3 * HUGE_PAGE)
    memory.advise_huge(10 * HUGE_PAGE, HUGE_PAGE)
    memory.advise_huge(10 * HUGE_PAGE + 64, HUGE_PAGE)
    assert calls == [(11 * HUGE_PAGE, 2 * HUGE_PAGE), (10 * HUGE_PAGE, HUGE_PAGE)]


def test_the_memory_limit_is_sane() -> None:
    assert 64 * MB < memory.memory_limit() < 1 << 50


def test_what_leaves_the_pool_goes_back_to_the_system() -> None:
    """From holes in the C library's heap too, which it would keep."""
    code = """
import re, torch
from litz.runtime.memory import Allocator

def resident():
    text = open("/proc/self/status").read()
    return int(re.search(r"VmRSS:\\s+(\\d+)", text)[1]) >> 10

torch.ones(31 << 18); torch.ones(31 << 18)  # from now on such sizes come from the heap
allocator = Allocator()
blocks = [allocator.empty_strided((1 << 20,), (1,), torch.float32).fill_(1) for _ in range(24)]
last = torch.ones(1 << 20)  # above them in the heap
full = resident()
del blocks
allocator.trim()
print(full - resident())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 80  # of 96 MiB


def test_words_tell_what_is_unused_and_as_new() -> None:
    """What the native executor looks at says of a block what Python's counts say."""
    assert memory._can_watch()
    allocator = Allocator(min_bytes=MB)
    tensor: torch.Tensor | None = make(allocator, 1)
    assert tensor is not None
    (block,) = allocator._blocks[MB]
    assert list(allocator.pool)[4:6] == [ctypes.addressof(block.cells), 0]
    view = tensor[3:]
    tensor = None
    assert not block.as_new()
    storage = view.untyped_storage()
    del view
    assert not block.as_new()
    storage.name = "mine"
    del storage
    assert not block.as_new()
    del block.storage.name
    assert block.as_new() and block.unused()
    block.storage.__dict__ = {"name": "mine"}
    assert not block.as_new()
    block.storage.__dict__ = block.attributes
    assert block.as_new()
    make(allocator, 1).numpy()
    assert not block.as_new() and not block.whole()
    del block
    allocator.trim()
    assert not any(list(allocator.pool)[4:])


def test_an_interrupt_leaves_the_native_executor_no_block_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocator = Allocator(min_bytes=MB)
    make(allocator, 1)

    def interrupted(block: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(memory._Block, "whole", interrupted)
        make(allocator, 1)
    assert allocator.pool[2] == 1  # until Python has looked after the pool
    assert allocator.stats().blocks == 0
    assert not any(list(allocator.pool)[4:]) and allocator.pool[2] == 0


def test_words_are_watched_without_numpy() -> None:
    code = """
import sys

sys.modules["numpy"] = None
from litz.runtime.memory import _can_watch

print(_can_watch())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
