"""Every special constant on its way into generated code, bit by bit as eager, on each target."""

from __future__ import annotations

import math
import struct

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from litz.binding import bind
from litz.compiler import compile_graph
from litz.options import make_options
from tests.quick import some

Tensor = torch.Tensor
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.int32, torch.int64, torch.uint8]
ARITHMETIC = ("add", "sub", "mul", "div", "rdiv")
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def nan(bits: int) -> float:
    """The double with these bits."""
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def constants(dtype: torch.dtype) -> list[float | int]:
    """What a type has of zeros, infinities, subnormal numbers, extremes and nans."""
    if not dtype.is_floating_point:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        return [0, 1, low, low + 1, high - 1, high]
    info = torch.finfo(dtype)
    tiny = info.smallest_normal
    least = tiny * info.eps
    size = [0.0, least, 3 * least, tiny - least, tiny, 0.1, 1.0, 1 + info.eps, info.max, math.inf]
    payloads = (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8ABCDE0000000, 0xFFFFFFFFE0000000)
    # Of 16 bits a nan has none that survives: eager's own casts differ between processors.
    nans = [nan(b) for b in payloads] if info.bits > 16 else [math.nan]
    return [*size, *(-x for x in size), *nans]


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(BITS[x.element_size()])


def ways(x: Tensor, c: float | int) -> dict[str, Tensor]:
    """A constant where lowerings take one, in calls whose results eager makes exactly."""
    same = torch.full((5,), c, dtype=x.dtype, device=x.device)
    found = {
        "full": same,
        "full_like": torch.full_like(x, c),
        "where": torch.where(x > 1, x, same[0]),
        "masked_fill": x.masked_fill(x > 1, c),
        "pad": F.pad(x, (2, 3), value=c),
        "new_full": x.new_full((3, 2), c).t(),
        "tensor": torch.tensor([c, c], dtype=x.dtype, device=x.device).flip(0),
    }
    if x.dtype.is_floating_point:
        found["copysign"] = torch.copysign(x, same[0])
    if not math.isnan(c):
        found["mul"] = x * c
        found["max"] = x.clamp(min=c)
        found["min"] = x.clamp(max=c)
    if x.dtype.is_floating_point and not math.isnan(c):
        found["add"] = x + c
        found["sub"] = c - x
        found["div"] = x / c
        found["rdiv"] = c / x
    return found


def differences(
    dtype: torch.dtype, device: str, options: dict[str, str], dynamo: bool = True
) -> list[str]:
    """The constants and calls where compiled code does not give eager's bits.

    dynamo: how the graph is made; else by ``make_fx``, which takes a third of the time.
    """
    x = torch.tensor([1.5, 2.0, 3.0, 1.0, 4.0]).to(dtype).to(device)
    table = constants(dtype)

    def every(x: Tensor) -> list[dict[str, Tensor]]:
        return [ways(x, c) for c in table]

    wanted = every(x)
    if dynamo:
        torch._dynamo.reset()
        mine = torch.compile(every, backend="litz", options=options, fullgraph=True)(x)
    else:
        graph = make_fx(lambda x: pytree.tree_leaves(every(x)), tracing_mode="fake")(x)
        flat = bind(compile_graph(graph, make_options(options)))([x])
        mine = pytree.tree_unflatten(flat, pytree.tree_structure(wanted))
    found = []
    for c, ours, eagers in zip(table, mine, wanted, strict=True):
        for name, e in eagers.items():
            a = ours[name]
            # The payload of a nan that arithmetic or a cast makes is the processor's business.
            kept = name not in ARITHMETIC and dtype in (torch.float32, torch.float64)
            same = bits(a) == bits(e)
            if dtype.is_floating_point and not kept:
                same |= a.isnan() & e.isnan()
            if device == "cuda" and name == "div":  # CUDA's kernels multiply by the reciprocal
                same |= (a - e).abs() <= 2 * torch.finfo(dtype).eps * e.abs()
            if (a.shape, a.dtype) != (e.shape, e.dtype) or not bool(same.all()):
                found.append(f"{name} of {c!r}: {a.tolist()} for {e.tolist()}")
    return found


@pytest.mark.parametrize("dtype", some([*FLOATS, *INTS], 4))
def test_constants(dtype: torch.dtype) -> None:
    assert not differences(dtype, "cpu", {}, dynamo=dtype in (torch.float32, torch.int64))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int64])
def test_constants_in_the_interpreter(dtype: torch.dtype) -> None:
    pytest.importorskip("triton.language")
    assert not differences(dtype, "cpu", {"target": "triton"}, dynamo=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_constants_on_a_gpu(dtype: torch.dtype) -> None:
    assert not differences(dtype, "cuda", {})
