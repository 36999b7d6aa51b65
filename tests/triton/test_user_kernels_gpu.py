"""Users' Triton kernels on a real GPU; skips itself without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from litz.entry import litz
from litz.runtime.cuda_graphs import CudaGraphs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or triton.knobs.runtime.interpret,
        reason="needs a GPU, and TRITON_INTERPRET=0",
    ),
]


@triton.jit
def _add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=m) + tl.load(y_ptr + i, mask=m), mask=m)


@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 128, 256)], key=["n"])
@triton.jit
def _tuned_increment(x_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=m) + 1, mask=m)


@triton.jit
def _rows(x_desc, out_desc, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    r = tl.program_id(0) * ROWS
    out_desc.store([r, 0], x_desc.load([r, 0]) * 2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_plain_and_autotuned_kernels(mode: str, dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = out.numel()
        _add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y * 2, out, n, BLOCK=128)
        _tuned_increment[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](out, n)
        return out * 3

    compiled: Any = torch.compile(fn, backend=litz, dynamic=dynamic, mode=mode, fullgraph=True)
    for n in (1000, 1000, 1000, 1000, 777, 777, 777) if dynamic else (1000,) * 4:
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        torch.testing.assert_close(compiled(x, y), (x + y * 2 + 1) * 3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_descriptors(mode: str, dynamic: bool) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("no tensor memory accelerator")

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        out = torch.empty_like(x)
        a, b = (TensorDescriptor.from_tensor(t, [8, 32]) for t in (y, out))
        _rows[(x.shape[0] // 8,)](a, b, 8)
        _rows[(x.shape[0] // 8,)](b, a, 8)
        return out, y

    compiled: Any = torch.compile(fn, backend=litz, dynamic=dynamic, mode=mode, fullgraph=True)
    for rows in (64, 64, 64, 32, 32, 32) if dynamic else (64,) * 4:
        x = torch.randn(rows, 32, device="cuda")
        out, y = compiled(x)
        torch.testing.assert_close(out, (x + 1) * 2)
        torch.testing.assert_close(y, (x + 1) * 4)


def test_kernels_are_recorded() -> None:
    from litz.backend import compile_with
    from litz.options import make_options

    found: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        options = make_options({}, "reduce-overhead")
        return compile_with(gm, inputs, options, lambda *a: found.append(a[2].cuda_graphs))

    def fn(x: torch.Tensor) -> torch.Tensor:
        _tuned_increment[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
        return x * 2

    compiled = torch.compile(fn, backend=backend)
    x = torch.zeros(500, device="cuda")
    for k in range(5):
        torch.testing.assert_close(compiled(x), torch.full_like(x, 2.0 * (k + 1)))
    (graphs,) = found
    assert isinstance(graphs, CudaGraphs) and graphs.recorded >= 1, graphs
