"""Graphs for a GPU, lowered without one: what runs where, and what CUDA's operators promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.index import const
from litz.ir import body
from litz.ir.dtype import F32
from litz.ir.program import Extern, Loops, Program
from litz.ir.verify import verify
from litz.lowering.context import GraphUnsupported, Settings
from litz.lowering.graph import as_promised, lower_graph
from litz.lowering.registry import Result
from litz.lowering.values import ONE, TensorValue

Tensor = torch.Tensor


def lowered(fn: Callable[..., Any]) -> Program:
    """``fn`` of a number on the host, a tensor and a number on a GPU."""
    with FakeTensorMode():
        args = torch.empty(()), torch.empty(4, 5, device="cuda"), torch.empty((), device="cuda")
        graph = make_fx(fn)(*args)
    program = lower_graph(graph, Settings(inference=True))
    verify(program, "lowering")
    return program


MIXED: list[Callable[..., Any]] = [
    lambda n, x, g: (n * x,),
    lambda n, x, g: (n + g,),
    lambda n, x, g: (torch.where(n > 0, x, g),),
    lambda n, x, g: (torch.where(x > 0, n, g),),
    lambda n, x, g: (torch.maximum(n, g).exp() + x,),
    lambda n, x, g: (x.sum() / n, n - x.mean(0)),
    lambda n, x, g: (torch.pow(n, x), torch.atan2(n, g)),
    lambda n, x, g: (x.masked_fill(x > 0, n),),
]


@pytest.mark.parametrize("fn", MIXED)
def test_numbers_of_the_host_go_to_the_gpu(fn: Callable[..., Any]) -> None:
    program = lowered(fn)
    assert not [n for n in program.nodes if isinstance(n, Loops) and n.device == "cpu"]
    assert not [n for n in program.nodes if isinstance(n, Extern)]


def test_one_of_several_numbers_of_the_host_goes_to_the_gpu_by_itself() -> None:
    """A kernel there takes memory of the host's by value: it has one element."""
    with FakeTensorMode():
        args = torch.empty(3), torch.empty(4, 5, device="cuda")
        graph = make_fx(lambda n, x: (n[1] * x, (n[2] + 1) * x, x + n.sum()))(*args)
    program = lower_graph(graph, Settings(inference=True))
    verify(program, "lowering")
    taken = [n for n in program.nodes if isinstance(n, Loops) and n.device != "cpu"]
    read = {b for n in taken for b in n.read_buffers()}
    assert all(not b.shape for x in read if (b := program.buffers[x]).device == "cpu")
    assert any(program.buffers[x].device == "cpu" for x in read)


def test_floors_of_quotients_are_of_whole_ones() -> None:
    """CUDA's kernel divides 16-bit floats in 32 bits, step by step; a CPU's rounds each step."""
    program = lowered(lambda n, x, g: (x.half().floor_divide(x.t().half().t() + 1),))
    (loops,) = (n for n in program.nodes if isinstance(n, Loops))
    assert "round_to f16" not in str(loops) and "floordiv" in str(loops)


def test_floats_are_multiplied_with_the_inverse_of_a_number() -> None:
    program = lowered(lambda n, x, g: (x / 20, x / g))
    nodes = [s.value for loops in program.nodes if isinstance(loops, Loops) for s in loops.stores]
    by_number, by_tensor = (n for n in nodes if isinstance(n, body.Op))
    assert by_number.name == "mul" and by_number.args[1] is 1 / body.const(F32, 20)
    assert by_tensor.name == "div"


def test_log_sigmoid_keeps_nothing_for_its_backward() -> None:
    def fn(n: Tensor, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        value, buffer = torch.ops.aten.log_sigmoid_forward(x)
        return value, torch.ops.aten.log_sigmoid_backward(value, x, buffer)

    assert not [n for n in lowered(fn).nodes if isinstance(n, Extern)]


def test_log_sigmoid_backward_without_a_buffer() -> None:
    x = torch.tensor([-100.0, -3.0, -0.0, 0.5, 3.0, 100.0, float("nan")], requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        return torch.ops.aten.log_sigmoid_backward(torch.ones_like(x), x, x.new_empty(0))

    F.logsigmoid(x).sum().backward()
    got = torch.compile(fn, backend="litz", fullgraph=True)(x.detach())
    torch.testing.assert_close(got, x.grad, equal_nan=True)


def test_wrong_metadata_is_noticed() -> None:
    (n,) = (n for n in make_fx(torch.neg)(torch.ones(3)).graph.nodes if n.op == "call_function")
    v = zeros((3, 1))
    for shape in ((3,), (3, 2)):
        with pytest.raises(GraphUnsupported, match="as PyTorch says"):
            as_promised(n, v, result(shape))


def result(shape: tuple[int, ...]) -> Result:
    sizes = tuple(map(const, shape))
    return Result(F32, sizes, tuple(ONE for _ in sizes), "cpu")


def zeros(shape: tuple[int, ...]) -> TensorValue:
    return TensorValue(F32, result(shape).shape, "cpu", lazy=body.const(F32, 0))


def test_positions_in_an_image_are_rounded_as_eager_does() -> None:
    """CUDA's kernels round a product and its sum once; one of hundreds of elements shows it."""

    def fn(n: Tensor, x: Tensor, g: Tensor) -> tuple[Tensor]:
        image, grid = x.expand(1, 1, 3, 4, 5), x.narrow(1, 0, 3).expand(1, 2, 3, 4, 3)
        return (torch.ops.aten.grid_sampler_3d.default(image, grid, 0, 2, False),)

    loops = [n for n in lowered(fn).nodes if isinstance(n, Loops)]
    roots = [r for n in loops for s in n.stores for r in s.roots()]
    assert any(isinstance(n, body.Op) and n.name == "fma" for n in body.walk(roots))


@pytest.mark.parametrize(("device", "count"), [("cpu", 0), ("cuda", 1)])
def test_gpus_round_what_they_scaled(device: str, count: int) -> None:
    """``round(decimals=1)``: the number and the power of ten, in the type of the tensor."""
    with FakeTensorMode():
        x = torch.empty(3, dtype=torch.bfloat16, device=device)
        graph = make_fx(lambda x: (x.round(decimals=1),))(x)
    (loops,) = (n for n in lower_graph(graph, Settings()).nodes if isinstance(n, Loops))
    nodes = body.walk(tuple(r for s in loops.stores for r in s.roots()))
    assert sum(isinstance(n, body.Op) and n.name == "round_to" for n in nodes) == count
