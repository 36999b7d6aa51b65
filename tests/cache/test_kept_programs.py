"""Programs that are found ahead of AOTAutograd do what they did when they were compiled."""

from __future__ import annotations

import errno
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend, sdpa_kernel

from litz import backend, bound, compiler
from litz.cache import programs, records, store
from litz.cache.key import NotCached
from litz.errors import ToolchainError
from litz.options import make_options
from litz.runtime import cache
from litz.runtime.cache import Cache
from litz.targets.tools import Tools


class Runs:
    """Runs programs as if each time in another process; told: what the log says of them."""

    def __init__(self, folder: Path, log: pytest.LogCaptureFixture) -> None:
        self.folder, self.log = folder, log
        self.told: list[str] = []
        self.options = {"cache_dir": str(folder), "check_calls": False}

    def __call__(self, fn: Callable[..., Any], *args: Any, **how: Any) -> Any:
        torch._dynamo.reset()
        counters.clear()
        Tools(make_options(self.options)).cache.recent.clear()
        self.log.clear()
        with self.log.at_level(logging.INFO, logger="litz"):
            try:
                return fn(lambda f: torch.compile(f, backend="litz", options=self.options, **how))
            finally:
                self.told = [r.getMessage() for r in self.log.records]

    def entries(self) -> list[Path]:
        return sorted(self.folder.glob("v1/program/*/*.program"))

    @property
    def traced(self) -> bool:
        """Whether AOTAutograd made graphs."""
        return any("operator calls" in line for line in self.told)


@pytest.fixture
def runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Runs:
    return Runs(tmp_path, caplog)


Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def training(compile: Compile) -> list[Tensor]:
    torch.manual_seed(0)
    body = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.5))
    call, x = compile(body), torch.randn(4, 16)
    torch.manual_seed(1)
    for _ in range(2):
        out = call(x)
        out.square().sum().backward()
    return [out.detach(), *(p.grad for p in body.parameters() if p.grad is not None)]


def inference(compile: Compile) -> list[Tensor]:
    with torch.no_grad():
        return [compile(lambda x: x.softmax(-1) + torch.tensor(2.5))(torch.arange(12.0).view(3, 4))]


def writes(compile: Compile) -> list[Tensor]:
    def add(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x * 2

    x = torch.arange(5.0)
    return [compile(add)(x, torch.ones(5)), x]


def batch_norm(compile: Compile) -> list[Tensor]:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))
    out = compile(body)(torch.randn(2, 3, 8, 8))
    out.sum().backward()
    return [
        out.detach(),
        *body.buffers(),
        *(p.grad for p in body.parameters() if p.grad is not None),
    ]


def views(compile: Compile) -> list[Tensor]:
    def some(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y, y.view(-1), x.t(), x[1:]

    x = torch.arange(6.0).view(2, 3)
    y, flat, turned, last = compile(some)(x)
    y.zero_()
    turned.add_(1)
    return [y, flat, turned, last, x]


def views_of_leaves(compile: Compile) -> list[Tensor]:
    x = torch.arange(6.0, requires_grad=True)
    y, v = compile(lambda x: ((x * 2).sin(), x.view(2, 3)))(x)
    (y.sum() + v.cos().sum()).backward()
    assert v._is_view() and x.grad is not None
    return [y.detach(), v.detach(), x.grad]


def autocast(compile: Compile) -> list[Tensor]:
    torch.manual_seed(0)
    body = nn.Linear(8, 8)
    call, x = compile(lambda x: body(x).softmax(-1)), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        half = call(x)
    whole = call(x)
    (half.float().square().sum() + whole.square().sum()).backward()
    assert body.weight.grad is not None
    return [half.detach().float(), whole.detach(), body.weight.grad]


def random(compile: Compile) -> list[Tensor]:
    torch.manual_seed(3)
    return [compile(lambda x: nn.functional.dropout(x, 0.5) + torch.rand(9))(torch.ones(9))]


def open_sizes(compile: Compile) -> list[Tensor]:
    def fn(x: Tensor) -> Tensor:
        return (x * x.shape[0]).softmax(-1) if x.shape[0] > 3 else x.sin()

    call, found = compile(fn), []
    for rows in (7, 5, 9, 3):
        x = torch.linspace(0, 1, rows * 4).view(rows, 4).requires_grad_()
        torch._dynamo.mark_dynamic(x, 0)
        out = call(x)
        out.square().sum().backward()
        assert x.grad is not None
        found += [out.detach(), x.grad]
    return found


CASES = (
    *(training, inference, writes, batch_norm, views, views_of_leaves, autocast, random),
    open_sizes,
)


@pytest.mark.parametrize("case", CASES)
def test_a_program_that_is_found_does_the_same(case: Callable[..., Any], runs: Runs) -> None:
    first = runs(case)
    assert runs.traced and runs.entries(), runs.told
    graphs = counters["stats"]["unique_graphs"]
    again = runs(case)
    assert not runs.traced and counters["stats"]["unique_graphs"] == graphs, runs.told
    runs.options = {**runs.options, "graph_cache": False}
    without = runs(case)
    for a, b, c in zip(first, again, without, strict=True):
        assert a.stride() == b.stride() == c.stride()
        assert torch.equal(a, b) and torch.equal(a, c)


def test_a_backward_graph_that_never_runs_is_never_compiled(runs: Runs) -> None:
    def forward(compile: Compile) -> Tensor:
        x = torch.ones(3, 4, requires_grad=True)
        out: Tensor = compile(lambda x: (x.sigmoid() * x).softmax(-1))(x)
        return out

    runs(forward)
    assert not any("backward" in line for line in runs.told) and not runs.entries()
    runs(forward)
    assert any("found in the cache" in line for line in runs.told)  # behind AOTAutograd
    runs(forward).sum().backward()
    assert len(runs.entries()) == 1


def test_inputs_that_share_memory_are_guarded_as_without_a_cache(runs: Runs) -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x * y

    def case(compile: Compile) -> None:
        call = compile(add)
        for at in (3, 2, 3):  # apart, overlapping
            memory, expected = torch.arange(8.0), torch.arange(8.0)
            got = call(memory[:3], memory[at : at + 3])
            assert torch.equal(got, add(expected[:3], expected[at : at + 3]))
            assert torch.equal(memory, expected)

    runs(case)
    runs(case)


def through_function(scale: float, slope: float) -> Callable[[Compile], list[Tensor]]:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * scale

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * slope

    def case(compile: Compile) -> list[Tensor]:
        x = torch.ones(3, requires_grad=True)
        out = compile(lambda x: Scaled.apply(x).sin())(x)
        out.sum().backward()
        assert x.grad is not None
        return [out.detach(), x.grad]

    return case


def test_functions_with_gradients_of_their_own_are_found_behind_aotautograd(runs: Runs) -> None:
    """The graphs hold what the function does: whatever changes there is a miss."""
    for scale, slope, hits in ((2.0, 7.0, 0), (2.0, 7.0, 2), (3.0, 7.0, 0), (2.0, 8.0, 1)):
        out, grad = runs(through_function(scale, slope))
        torch.testing.assert_close(out, torch.tensor(scale).sin().expand(3))
        torch.testing.assert_close(grad, slope * torch.tensor(scale).cos().expand(3))
        assert runs.traced and not runs.entries()
        assert sum("found in the cache" in line for line in runs.told) == hits, runs.told


def in_region(dtype: torch.dtype, enabled: bool = True) -> Callable[[Compile], list[Tensor]]:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=enabled):
            y = x @ w
        return y * 2

    def case(compile: Compile) -> list[Tensor]:
        x, w = torch.linspace(0, 1, 12).view(3, 4), torch.linspace(-1, 1, 8).view(4, 2)
        out = compile(fn)(x, w.requires_grad_())
        out.sum().backward()
        assert w.grad is not None
        return [out.detach(), w.grad]

    return case


def test_regions_of_autocast_count(runs: Runs) -> None:
    half, short = torch.bfloat16, torch.float16
    cases = [in_region(half), in_region(short), in_region(half, False)]
    found = []
    for n, case in enumerate(cases):
        first = runs(case)
        assert runs.traced and len(runs.entries()) == n + 1, runs.told
        again = runs(case)
        assert not runs.traced and all(map(torch.equal, first, again))
        found.append(first[0])
    assert [r.dtype for r in found] == [half, short, torch.float32]
    with torch.autocast("cpu", half):  # what the region inherits
        runs(cases[2])
        assert runs.traced and len(runs.entries()) == len(cases) + 1


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_over_atens_is_heeded(runs: Runs) -> None:
    """Tracing a composite operator goes through it, so that what was kept is another program."""

    def case(compile: Compile) -> Tensor:
        with torch.no_grad():
            out: Tensor = compile(lambda x: torch.square(x) + 1)(torch.full((3,), 3.0))
        return out

    assert runs(case).tolist() == [10.0] * 3 and len(runs.entries()) == 1
    with torch.library._scoped_library("aten", "IMPL") as lib:
        lib.impl("square", lambda x: x * 5, "CompositeImplicitAutograd")
        assert runs(case).tolist() == [16.0] * 3 and runs.traced
    assert runs(case).tolist() == [10.0] * 3 and not runs.traced


def attention(compile: Compile) -> list[Tensor]:
    torch.manual_seed(0)
    q = torch.randn(1, 2, 8, 16)
    return [compile(lambda q: nn.functional.scaled_dot_product_attention(q, q, q))(q)]


def test_who_computes_attention_counts(runs: Runs) -> None:
    found = []
    for allowed in ([SDPBackend.MATH], [SDPBackend.FLASH_ATTENTION]):
        with sdpa_kernel(allowed):
            runs(attention)
            assert runs.traced
            found.append(runs(attention)[0])
            assert not runs.traced
    torch.testing.assert_close(*found)
    assert len(runs.entries()) == 2


def test_settings_that_change_before_the_backward_graph(runs: Runs) -> None:
    threads = torch.get_num_threads()

    def case(compile: Compile) -> None:
        x = torch.ones(3, 4, requires_grad=True)
        out = compile(lambda x: (x.sigmoid() * x).softmax(-1))(x)
        torch.set_num_threads(threads + 1)
        try:
            out.sum().backward()
        finally:
            torch.set_num_threads(threads)

    runs(case)
    assert not runs.entries() and any("settings are others" in line for line in runs.told)


def test_pytorchs_own_cache_may_be_strict(runs: Runs) -> None:
    with torch._functorch.config.patch(strict_autograd_cache=True):
        runs(inference)
        assert runs.traced and runs.entries()
        runs(inference)
        assert not runs.traced


def test_a_program_whose_kernels_cannot_be_built_is_a_miss(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runs(inference)

    def fails(*args: Any) -> Any:
        raise ToolchainError("litz: no compiler")

    for of in (backend, bound):  # who binds a graph, and who a program
        monkeypatch.setattr(of, "bind", fails)
    with pytest.warns(UserWarning, match="runs through ATen"):
        torch.testing.assert_close(runs(inference), first)
    assert runs.traced


def test_operators_of_higher_order_have_no_key() -> None:
    other = torch._higher_order_ops.run_const_graph
    with pytest.raises(NotCached, match="no operator of PyTorch"):
        programs._Written(fx.GraphModule({}, fx.Graph())).function(other)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_folder_that_cannot_be_written(
    error: int, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept there is found; what is new goes to a temporary folder, and is right."""
    expected = runs(training)
    kept = runs.entries()
    assert kept

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise OSError(error, os.strerror(error))

    inner = cache._write

    def write(folder: Path, *args: Any) -> Path:
        if folder.is_relative_to(runs.folder):
            fails()
        return inner(folder, *args)

    monkeypatch.setattr(cache, "_write", write)
    if error == errno.EROFS:
        monkeypatch.setattr(cache.os, "utime", fails)
        monkeypatch.setattr("filelock.FileLock.acquire", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = runs(training)
    assert not runs.traced
    assert all(map(torch.equal, found, expected))
    with pytest.warns(RuntimeWarning, match=os.strerror(error)):
        (out,) = runs(inference)
    assert runs.traced
    torch.testing.assert_close(out, inference(lambda f: f)[0])
    assert runs.entries() == kept
    runs(inference)
    assert not runs.traced  # from the temporary folder


def test_damaged_programs_are_misses(runs: Runs) -> None:
    first = runs(training)
    (entry,) = runs.entries()
    key, whole = entry.stem, entry.read_bytes()
    kept = store.load_program(Cache(runs.folder), key)
    assert kept is not None
    for n in (0, 60, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[n] ^= 1 + n % 255
        entry.write_bytes(damaged[: len(whole) - n % 3])
        assert all(map(torch.equal, runs(training), first)) and runs.traced
        assert entry.read_bytes() == whole
    # A record of another program, sealed well.
    runs(inference)
    (foreign,) = set(runs.entries()) - {entry}
    strange = store.load_program(Cache(runs.folder), foreign.stem)
    assert strange is not None
    store.save_program(Cache(runs.folder), key, (kept[0], strange[1], kept[2]))
    assert all(map(torch.equal, runs(training), first)) and runs.traced


def test_records_hold_data_alone() -> None:
    import pickle

    class Runs:
        def __reduce__(self) -> Any:
            return print, ("run",)

    for evil in (Runs(), print, torch.load, torch._utils, Path("/"), nn.Linear):
        try:
            data = pickle.dumps(evil, protocol=4)
        except (TypeError, AttributeError, pickle.PicklingError):
            continue
        with pytest.raises(ValueError, match="cannot be read"):
            records.load(data)
    for bad in (b"lists ", b"lists 3", b'lists ["3"]', b"lists [0.5]", b"lists [[0]]"):
        with pytest.raises(ValueError, match="cannot be read"):
            records.load(bad)


def test_one_process_reads_an_entry_once(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(inference)
    monkeypatch.setattr(compiler, "compile_graph", None)
    runs(inference)
    for path in runs.entries():
        path.unlink()
    torch._dynamo.reset()
    inference(lambda f: torch.compile(f, backend="litz", options=runs.options))


@pytest.mark.parametrize("dynamic", [False, True])
def test_backward_graphs_run_again(runs: Runs, dynamic: bool) -> None:
    """Also where they were compiled for a run that kept nothing, and where they were found."""
    x = torch.linspace(-1, 1, 12).requires_grad_()

    def fn(x: Tensor) -> Tensor:
        return (x.sin() * x.exp()).cos().sum()

    def thrice(compile: Compile) -> list[Tensor]:
        compiled = compile(fn)
        (first,) = torch.autograd.grad(compiled(x), x)
        y = compiled(x)
        return [first, *(torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))]

    (expected,) = torch.autograd.grad(fn(x), x)
    for traced in (True, False):
        for found in runs(thrice, dynamic=dynamic):
            torch.testing.assert_close(found, expected)
        assert runs.traced == traced


def test_regions_of_compiled_autograd_take_nothing_kept(runs: Runs) -> None:
    """It traces backward graphs again, which what is kept has not."""
    x = torch.linspace(-1, 1, 12).requires_grad_()

    def gradient(compile: Compile) -> Tensor | None:
        x.grad = None
        compile(lambda x: (x.sin() * x.exp()).cos())(x).sum().backward()
        return x.grad

    def traced_again(compile: Compile) -> Tensor | None:
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            return gradient(compile)

    expected = runs(gradient)
    assert runs.entries()
    torch.testing.assert_close(runs(traced_again), expected)
