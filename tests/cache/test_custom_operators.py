"""Programs with custom operators and tensor subclasses: found again, and never another's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from counted import said, started
from test_kept_programs import Compile, Runs, runs
from torch import Tensor

__all__ = ["runs"]

PROGRAM = """
import sys, torch
from torch.library import custom_op
layout, slope, amount = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
cast = torch.float32

@custom_op("litz_programs::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    out = (x * by).to(cast)
    return out.t().contiguous().t() if layout == "columns" else out.contiguous()

@scaled.register_fake
def _(x, by):
    out = torch.empty_like(x, dtype=cast)
    return out.t().contiguous().t() if layout == "columns" else out.contiguous()

def backward(ctx, grad):
    return grad * (ctx.by * slope), None

def setup_context(ctx, inputs, output):
    ctx.by = inputs[1]

scaled.register_autograd(backward, setup_context=setup_context)

@custom_op("litz_programs::shift", mutates_args={"x"})
def shift(x: torch.Tensor) -> None:
    x.add_(amount)

def fn(x):
    y = scaled(x.sin(), 3.0).exp()
    return y * 2, y.stride()

def writes(x):
    y = x * 2
    shift(y)
    return y.exp()

x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
out, strides = torch.compile(fn, backend="litz")(x)
out.sum().backward()
expected = (x.sin() * 3).exp() * 2
torch.testing.assert_close(out, expected)
torch.testing.assert_close(x.grad, expected.detach() * 3 * slope * x.detach().cos())
assert strides == ((1, 3) if layout == "columns" else (4, 1)), strides
with torch.no_grad():
    torch.testing.assert_close(torch.compile(writes, backend="litz")(x), (x * 2 + amount).exp())
print(len(compiled))
"""


def compiled(folder: Path, *how: str) -> int:
    return int(said(started(folder, PROGRAM, *how)))


@pytest.mark.slow
def test_processes_find_custom_operators_and_never_anothers(tmp_path: Path) -> None:
    """What writes is called by name: how much it adds is no part of what was compiled."""
    assert compiled(tmp_path, "rows", "1", "1") == 3
    assert compiled(tmp_path, "rows", "1", "5") == 0
    assert compiled(tmp_path, "rows", "2", "1") == 1  # the backward graph alone is another


SCHEMA = "(Tensor x) -> Tensor"


def halved(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0] // 2,))


def doubled(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0] * 2,))


def with_fake(fake: Callable[[Tensor], Tensor]) -> Callable[[Compile], Tensor]:
    def case(compile: Compile) -> Tensor:
        def real(x: Tensor) -> Tensor:
            return torch.arange(float(fake(x).numel()))

        op = torch.library.custom_op("litz_programs::sized", real, mutates_args=(), schema=SCHEMA)
        op.register_fake(fake)
        out: Tensor = compile(lambda x: op(x + 1).cumsum(0) * 2)(torch.ones(8))
        return out

    return case


def test_another_fake_kernel_is_a_miss(runs: Runs) -> None:
    for fake, entries in ((halved, 1), (doubled, 2)):
        first = runs(with_fake(fake))
        assert runs.traced and len(runs.entries()) == entries, runs.told
        again = runs(with_fake(fake))
        assert not runs.traced and torch.equal(first, again)
        assert len(again) == fake(torch.ones(8)).numel()


def test_an_operator_that_is_not_known_is_told(runs: Runs) -> None:
    class Sizes:
        by = 2

    sizes = Sizes()

    def fake(x: Tensor) -> Tensor:
        return x.new_empty((x.shape[0] // sizes.by,))

    runs(with_fake(fake))
    assert any("not cached" in t and "Sizes, which is no data" in t for t in runs.told), runs.told
    assert not runs.entries()
    sizes.by = 4
    assert len(runs(with_fake(fake))) == 2


# --- tensor subclasses ---


def scaled_class(slope: float) -> Any:
    """A tensor of numbers and a scale, whose products are scaled by `slope` besides."""

    class Scaled(Tensor):
        @staticmethod
        def __new__(cls, data: Tensor, scale: float) -> Any:
            make: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
            return make(cls, data.shape, dtype=data.dtype, device=data.device)

        def __init__(self, data: Tensor, scale: float) -> None:
            self.data_, self.scale = data, scale

        def __repr__(self, **_: Any) -> str:  # PyTorch's log has it
            return "Scaled"

        def __tensor_flatten__(self) -> Any:
            return ["data_"], self.scale

        @staticmethod
        def __tensor_unflatten__(inner: Any, scale: Any, size: Any, stride: Any) -> Any:
            return Scaled(inner["data_"], scale)

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.mul.Tensor:
                a, b = args
                return cls(func(a.data_, b), a.scale * slope)
            if func is torch.ops.aten.detach.default:
                return cls(func(args[0].data_), args[0].scale)
            if func is torch.ops.aten.sum.default:
                return func(args[0].data_) * args[0].scale
            raise NotImplementedError(func)

    return Scaled


def summed(cls: Any, scale: float) -> Callable[[Compile], Tensor]:
    def case(compile: Compile) -> Tensor:
        with torch.no_grad():
            call = compile(lambda x: (x * 2.0).sum())
            out: Tensor = call(cls(torch.arange(5.0), scale))
        return out

    return case


def test_programs_of_subclasses_are_found_by_their_code_and_context(runs: Runs) -> None:
    for slope, scale, entries in ((3.0, 1.0, 1), (3.0, 1.0, 1), (4.0, 1.0, 2), (3.0, 5.0, 3)):
        before = len(runs.entries())
        out = runs(summed(scaled_class(slope), scale))
        assert float(out) == 20.0 * slope * scale
        assert len(runs.entries()) == entries, runs.told
        assert runs.traced == (entries > before)


def made(cls: Any, *sizes: int) -> Callable[[Compile], list[Tensor]]:
    """Results that are subclasses, and memory that is written."""

    def fn(x: Any, y: Tensor) -> Any:
        y.add_(1)
        return x * 2.0, (x * 3.0).sum() * y

    def case(compile: Compile) -> list[Tensor]:
        call, found = compile(fn), []
        for n in sizes:
            x, y = cls(torch.arange(float(n)), 2.0), torch.ones(4)
            scaled, total = call(x, y)
            assert type(scaled) is cls
            found += [scaled.data_, torch.tensor(scaled.scale), total, y]
        return found

    return case


def test_results_that_are_subclasses(runs: Runs) -> None:
    first = runs(made(scaled_class(3.0), 5))
    assert runs.traced and len(runs.entries()) == 1, runs.told
    again = runs(made(scaled_class(3.0), 5))
    assert not runs.traced and all(map(torch.equal, first, again)), runs.told
    runs.options = {**runs.options, "graph_cache": False}
    assert all(map(torch.equal, first, runs(made(scaled_class(3.0), 5))))


def test_open_sizes_of_subclasses_are_found_behind_aotautograd(runs: Runs) -> None:
    """PyTorch's record of them has no bytes."""
    first = runs(made(scaled_class(3.0), 5, 7))
    assert any("cannot be written" in line for line in runs.told)
    again = runs(made(scaled_class(3.0), 5, 7))
    assert sum("found in the cache" in line for line in runs.told) == 2, runs.told
    assert all(map(torch.equal, first, again)) and len(runs.entries()) == 1


class Mode:
    """No data."""


def test_subclasses_that_are_not_known_are_found_behind_aotautograd(runs: Runs) -> None:
    """AOTAutograd asks them each time, Litz compiles once."""
    unknown = scaled_class(3.0)
    unknown.held = Mode()
    for hits in (0, 1):
        assert float(runs(summed(unknown, 1.0))) == 60.0
        assert runs.traced and not runs.entries()
        assert sum("found in the cache" in line for line in runs.told) == hits, runs.told


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without processes")
def test_a_distributed_tensor_is_found_behind_aotautograd(runs: Runs) -> None:
    """Its mesh is an input that the graph hands on."""
    from collective_cases import one_process
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    def case(compile: Compile) -> list[Tensor]:
        w = distribute_tensor(torch.arange(12.0).view(4, 3) / 9, mesh, [Shard(0)]).requires_grad_()
        x = distribute_tensor(torch.ones(2, 4), mesh, [Shard(1)])
        out: Any = compile(lambda x, w: (x * 2).relu() @ w)(x, w)
        out.full_tensor().square().sum().backward()
        assert w.grad is not None
        return [out.full_tensor().detach(), w.grad.full_tensor()]  # type: ignore[attr-defined]

    with one_process():
        mesh = init_device_mesh("cpu", (1,))
        first, again = runs(case), runs(case)
    assert sum("found in the cache" in line for line in runs.told) == 2, runs.told
    assert not any("runs through ATen" in line for line in runs.told), runs.told
    assert all(map(torch.equal, first, again))
    torch.testing.assert_close(again, case_in_eager())


def case_in_eager() -> list[Tensor]:
    w = (torch.arange(12.0).view(4, 3) / 9).requires_grad_()
    out = torch.full((2, 4), 2.0) @ w
    out.square().sum().backward()
    assert w.grad is not None
    return [out.detach(), w.grad]
