"""Normalisations and their gradients against eager."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.ir.program import Extern, Loops
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from tests.lowering.evaluate import (
    check,
    check_training,
    compare_all,
    nests,
    run_program,
    to_double,
    trace,
)

aten = torch.ops.aten
Tensor = torch.Tensor
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TRAINED = (torch.float32, torch.bfloat16)


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2 + 0.5
    return x.to(dtype).requires_grad_()


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return sample(*shape, dtype=dtype, seed=9).detach().abs() + 0.1


# --- layer norm ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm(dtype: torch.dtype) -> None:
    x = sample(4, 6, 64, dtype=dtype).detach()
    w, b = sample(64, dtype=dtype, seed=1).detach(), sample(64, dtype=dtype, seed=2).detach()
    check(lambda x, w, b: F.layer_norm(x, (64,), w, b), x, w, b, exact=dtype.itemsize == 2)
    check(lambda x: F.layer_norm(x, (6, 64)), x)
    check(lambda x, w, b: aten.native_layer_norm(x, [64], w, b, 1e-5), x, w, b)
    program = check(lambda x, w: F.layer_norm(x, (64,), w), x, w)
    assert nests(program) == 2  # statistics in one pass, then the result


@pytest.mark.parametrize("dtype", TRAINED, ids=str)
def test_layer_norm_training(dtype: torch.dtype) -> None:
    x, w, b = (sample(*s, dtype=dtype) for s in ((4, 6, 8), (8,), (8,)))
    forward, backward = check_training(lambda x, w, b: F.layer_norm(x, (8,), w, b), x, w, b)
    assert nests(forward) == 2 and nests(backward) == 3
    check_training(lambda x: F.layer_norm(x, (6, 8)), x)
    check_training(lambda x, w: F.layer_norm(x.detach(), (8,), w), x, w)
    check_training(lambda x, w: F.layer_norm(x, (8,), w.detach()), x, w)


def test_16_bits_with_float_parameters() -> None:
    x = sample(4, 64, 8, dtype=torch.bfloat16).detach()
    w, b = sample(64, seed=1).detach(), sample(64, seed=2).detach()
    check(lambda x, w, b: F.layer_norm(x[:, :, 0], (64,), w, b), x, w, b)
    check(lambda x, w, b: F.group_norm(x, 4, w, b), x, w, b)
    mean, var = sample(64, seed=3).detach(), positive(64)
    args = (x.requires_grad_(), w.requires_grad_(), b.requires_grad_(), mean, var)
    check_training(batch_norm(False), *args)


def test_layer_norm_of_far_values_keeps_its_digits() -> None:
    x = sample(4, 256).detach() * 1e-2 + 1000
    check(lambda x: F.layer_norm(x, (256,)), x)


def test_layer_norm_of_a_residual_sum() -> None:
    x, y = sample(4, 64).detach(), sample(4, 64, seed=8).detach()
    assert nests(check(lambda x, y: F.layer_norm(x + y, (64,)), x, y)) == 2


# --- RMS norm ------------------------------------------------------------------------------------


def fused_rms(grad: bool, *args: Any) -> tuple[torch.fx.GraphModule, list[Tensor]]:
    """A graph with the fused op, which tracing on the CPU takes apart."""
    graph = torch.fx.Graph()
    names = ("g", "x", "r", "w") if grad else ("x", "w")
    nodes = {}
    for name, value in zip(names, args, strict=True):
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["val"] = value.to("meta")
    if grad:
        call: Any = (nodes["g"], nodes["x"], [8], nodes["r"], nodes["w"], [True, True])
        node = graph.call_function(aten._fused_rms_norm_backward.default, call)
        node.meta["val"] = (args[1].to("meta"), args[3].to("meta"))
    else:
        call = (nodes["x"], [8], nodes["w"], 1e-5)
        node = graph.call_function(aten._fused_rms_norm.default, call)
        rstd = torch.empty(*args[0].shape[:-1], 1, device="meta")
        node.meta["val"] = (args[0].to("meta"), rstd)
    results = []
    for k in range(2):
        results.append(graph.call_function(operator.getitem, (node, k)))
        results[-1].meta["val"] = node.meta["val"][k]
    graph.output(tuple(results))
    return torch.fx.GraphModule({}, graph), list(args)


@pytest.mark.parametrize("dtype", TRAINED, ids=str)
def test_fused_rms_norm(dtype: torch.dtype) -> None:
    x, w = sample(4, 8, dtype=dtype).detach(), sample(8, dtype=dtype, seed=1).detach()
    gm, args = fused_rms(False, x, w)
    program = lower_graph(gm, Settings())
    assert not any(isinstance(n, Extern) for n in program.nodes) and nests(program) == 2
    out, rstd = run_program(program, args)

    def reference(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        wide = x if x.dtype == torch.float64 else x.float()
        r = (wide * wide).mean(-1, keepdim=True).add(1e-5).rsqrt()
        return (wide * r * w).to(x.dtype), r

    compare_all((out, rstd), reference(x, w), reference(x.double(), w.double()))
    g = sample(4, 8, dtype=dtype, seed=6).detach()

    def gradients(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad(F.rms_norm(x, (8,), w, 1e-5), (x, w), g)

    gm, args = fused_rms(True, g, x, rstd, w)
    program = lower_graph(gm, Settings())
    assert not any(isinstance(n, Extern) for n in program.nodes)
    truth = gradients(*(t.double() for t in (x, w, g)))
    compare_all(run_program(program, args), gradients(x, w, g), truth, ulps=4)


@pytest.mark.parametrize("dtype", TRAINED, ids=str)
def test_rms_norm_as_the_cpu_traces_it(dtype: torch.dtype) -> None:
    check_training(
        lambda x, w: F.rms_norm(x, (8,), w, 1e-5), sample(4, 8, dtype=dtype), sample(8, dtype=dtype)
    )


# --- group norm ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_group_norm(dtype: torch.dtype) -> None:
    x = sample(2, 6, 4, 8, dtype=dtype).detach()
    w, b = sample(6, dtype=dtype, seed=1).detach(), sample(6, dtype=dtype, seed=2).detach()
    for y in (x, x.to(memory_format=torch.channels_last)):
        check(lambda x, w, b: F.group_norm(x, 3, w, b), y, w, b)
        check(lambda x, w, b: aten.native_group_norm(x, w, b, 2, 6, 32, 2, 1e-5), y, w, b)
    check(lambda x: F.group_norm(x, 1), x)
    check(lambda x, w: F.group_norm(x, 6, w), x[:, :, 0], w)
    check(lambda x, w: F.group_norm(x, 3, w), x[:, :, 0, 0], w)


@pytest.mark.parametrize("dtype", TRAINED, ids=str)
def test_group_norm_training(dtype: torch.dtype) -> None:
    x, w, b = (sample(*s, dtype=dtype) for s in ((2, 6, 4, 4), (6,), (6,)))
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    for y in (x, last):
        check_training(lambda x, w, b: F.group_norm(x, 3, w, b), y, w, b)
    check_training(lambda x: F.group_norm(x, 2), x)


# --- batch norm ----------------------------------------------------------------------------------


def batch_norm(training: bool) -> Callable[..., tuple[Tensor, ...]]:
    def fn(x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        m, v = m.clone(), v.clone()
        return F.batch_norm(x, m, v, w, b, training, 0.2, 1e-3), m, v

    return fn


def parameters(dtype: torch.dtype) -> tuple[Tensor, ...]:
    w, b = sample(6, dtype=dtype, seed=1), sample(6, dtype=dtype, seed=2)
    return w, b, sample(6, dtype=dtype, seed=3).detach(), positive(6, dtype=dtype)


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("dtype", TRAINED, ids=str)
def test_batch_norm(dtype: torch.dtype, training: bool) -> None:
    x = sample(2, 6, 4, 8, dtype=dtype)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    for y in (x, last, x.detach()[:, :, 0, 0].requires_grad_()):
        check_training(batch_norm(training), y, *parameters(dtype))


def test_batch_norm_statistics_and_updates_share_a_nest() -> None:
    args = [t.detach() for t in (sample(2, 6, 4, 8), *parameters(torch.float32))]

    def fn(*args: Tensor) -> Any:
        return aten._native_batch_norm_legit_functional(*args, True, 0.1, 1e-5)

    program = check(fn, *args)
    assert nests(program) == 2
    first = program.nodes[0]
    assert isinstance(first, Loops) and len(first.stores) == 4
    check(lambda *a: aten._native_batch_norm_legit_functional(*a, False, 0.1, 1e-5)[0], *args)
    check(lambda *a: aten._native_batch_norm_legit_no_training(*a, 0.1, 1e-5), *args)
    check(lambda *a: aten._native_batch_norm_legit.no_stats(*a, True, 0.1, 1e-5), *args[:3])


def test_batch_norm_inference_is_one_nest() -> None:
    args = [t.detach() for t in (sample(2, 6, 4, 8), *parameters(torch.float32))]
    assert nests(check(lambda *a: F.relu(F.batch_norm(a[0], *a[3:], *a[1:3])), *args)) == 1


def test_batch_norm_with_update() -> None:
    args = [t.detach() for t in (sample(2, 6, 4, 8), *parameters(torch.float32))]
    gm = trace(lambda *a: aten._batch_norm_with_update_functional(*a, 0.1, 1e-5), *args)
    program = lower_graph(gm, Settings())
    assert not any(isinstance(n, Extern) for n in program.nodes)
    eager = aten._batch_norm_with_update_functional(*args, 0.1, 1e-5)
    truth = aten._batch_norm_with_update_functional(*(to_double(a) for a in args), 0.1, 1e-5)
    compare_all(run_program(program, args), eager, truth)


def test_instance_norm() -> None:
    x, w, b = sample(2, 6, 4, 8), sample(6, seed=1), sample(6, seed=2)
    check_training(lambda x, w, b: F.instance_norm(x, None, None, w, b), x, w, b)


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    x, w, b = sample(4, 8), sample(8), sample(8)
    _, backward = check_training(
        lambda x, w, b: F.layer_norm(x, (8,), w, b), x, w.detach(), b.detach()
    )
    assert nests(backward) == 2


def test_dynamic_shapes() -> None:
    x, w = sample(4, 6, 8).detach(), sample(8, seed=1).detach()
    assert check(lambda x, w: F.layer_norm(x, (8,), w), x, w, dynamic=True).symbols
    assert check(lambda x: F.group_norm(x, 3), x, dynamic=True).symbols
    args = (sample(2, 6, 4), *parameters(torch.float32))
    assert all(p.symbols for p in check_training(batch_norm(True), *args, dynamic=True))
    y, w, b = sample(4, 6, 8), sample(8, seed=1), sample(8, seed=2)
    fn = lambda x, w, b: F.layer_norm(x, (8,), w, b)  # noqa: E731
    assert all(p.symbols for p in check_training(fn, y, w, b, dynamic=True))
    fn = lambda x, w, b: F.group_norm(x, 4, w, b)  # noqa: E731
    assert all(p.symbols for p in check_training(fn, y.transpose(1, 2), w, b, dynamic=True))


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_inference_gives_its_statistics_on_gpus_alone(device: str) -> None:
    with FakeTensorMode():
        x, m = torch.empty(4, 3, 5, device=device), torch.empty(3, device=device)
        op = torch.ops.aten._native_batch_norm_legit_no_training.default
        gm = make_fx(lambda x, m: op(x, m, m, m, m, 0.1, 1e-5))(x, m)
        program = lower_graph(gm, Settings())
    loops = [n for n in program.nodes if isinstance(n, Loops)]
    made = [r for n in loops for s in n.stores for r in s.roots() if r.vars]
    assert len(made) == (3 if device == "cuda:0" else 1)


@pytest.mark.parametrize("norm", ["layer", "group", "batch"])
def test_squares_beyond_the_type(norm: str) -> None:
    """An infinite deviation leaves zeros behind, as in eager, and no nan."""
    x = sample(3, 4, 8).detach()
    x[0, 0, 3] = 3e38
    fns: dict[str, Callable[[Tensor], Tensor]] = {
        "layer": lambda x: F.layer_norm(x, (8,)),
        "group": lambda x: F.group_norm(x, 4),
        "batch": lambda x: F.batch_norm(x, None, None, training=True),
    }
    torch._dynamo.reset()
    actual = torch.compile(fns[norm], backend="litz")(x)
    torch.testing.assert_close(actual, fns[norm](x))
    assert actual[0, 0, 0] == 0
