"""Programs on a GPU that is not there: traced with fake tensors, compiled to what would run.

``trace`` takes a program through ``torch.compile`` and Litz's whole backend, forward and backward.
Its tensors are fake ones on ``cuda:0``, so that PyTorch decides as on a GPU: which operators stand
in the graph, and how their results are laid out.  Every stage runs as it does there, down to the
host program and the launchers of the kernels; only nothing is launched.
"""

from __future__ import annotations

import copy
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fake_cuda import FakeCuda
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.utils import _pytree as pytree

from litz import backend, dynamo
from litz.backend import compile_and_bind
from litz.compiler import Stages
from litz.index import size_hint
from litz.ir.program import Extern, TensorRef
from litz.lowering.layouts import CONTRACTIONS, stated_by
from litz.options import Options
from litz.runtime.cache import Cache, content_key
from litz.runtime.triton.build import submit
from litz.runtime.triton.driver import Driver
from litz.runtime.triton.job import Binary, KernelJob
from litz.targets.parts import TritonPart
from litz.targets.triton import cuda
from litz.targets.triton.cuda import default_configs, likely_jobs

H200 = ("cuda", 90, 32)
Tensor = torch.Tensor


@dataclass(frozen=True)
class Spec:
    """A tensor to trace with.  form: a memory format, or the strides in elements."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    grad: bool = False
    form: torch.memory_format | tuple[int, ...] = torch.contiguous_format
    device: str = "cuda"

    def make(self) -> Tensor:
        if isinstance(self.form, tuple):
            x = torch.empty_strided(self.shape, self.form, dtype=self.dtype, device=self.device)
        else:
            x = torch.empty(
                self.shape, dtype=self.dtype, device=self.device, memory_format=self.form
            )
        return x.requires_grad_(self.grad)


def floats(*shape: int, dtype: torch.dtype = torch.float32, form: Any = None) -> Spec:
    """An input with a gradient."""
    return Spec(shape, dtype, True, torch.contiguous_format if form is None else form)


def data(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cuda") -> Spec:
    """An input without one."""
    return Spec(shape, dtype, device=device)


@dataclass
class Trace:
    """One graph as PyTorch traced it, and what became of it.

    call: the compiled graph; jobs: what builds its kernels, as likely sizes want them.
    """

    graph: GraphModule
    stages: Stages
    call: Callable[[list[Any]], Any]
    jobs: list[KernelJob] = field(default_factory=list)

    def calls(self) -> list[str]:
        """The operators of the traced graph."""
        return [str(n.target) for n in self.graph.graph.nodes if n.op == "call_function"]

    def build(self, cache: Cache) -> list[Binary]:
        """The binaries of its kernels for an H200."""
        return submit(self.jobs, cache, 2).wait()


def trace(
    fn: Callable[..., Any],
    *specs: Spec,
    training: bool = True,
    dynamic: bool = False,
    model: bool = False,
    fullgraph: bool = True,
    **options: Any,
) -> list[Trace]:
    """The graphs of a program: forward, then backward if it trains.

    model: ``fn`` makes the module to call.  fullgraph: Dynamo makes one of it.  options: Litz's.
    """
    found: list[Trace] = []

    def compile_one(graph: GraphModule, options: Options, stages: Stages, **how: Any) -> Any:
        made = compile_without_a_gpu(graph, stages, options, **how)
        found.append(made)
        # What follows in Python goes by the results, which fake tensors give.
        return dynamo.interpreted(made.graph)

    torch._dynamo.reset()
    with (
        cuda_on_paper(),
        FakeTensorMode(),
        mock.patch.object(backend, "compile_and_bind", compile_one),
        torch._dynamo.config.patch(allow_rnn=True),
    ):
        args = [s.make() for s in specs]
        with torch.device("cuda"):
            called = fn() if model else fn
        compiled = torch.compile(
            called, backend="litz", dynamic=dynamic, fullgraph=fullgraph,
            options={"check_ir": True, "repro_dir": tempfile.gettempdir(), **options},
        )  # fmt: skip
        with torch.set_grad_enabled(training):
            out = pytree.tree_leaves(compiled(*args))
        results = [x for x in out if isinstance(x, Tensor) and x.requires_grad]
        if training and results:
            torch.autograd.backward(results, [torch.empty_like(x) for x in results])
    torch._dynamo.reset()
    return found


def compile_without_a_gpu(
    graph: GraphModule, stages: Stages | None = None, options: Options | None = None, **how: Any
) -> Trace:
    """Compile one graph; the passes change it, and the result keeps it as it was.

    how: what ``compile_and_bind`` takes besides.
    """
    before = GraphModule(graph, copy.deepcopy(graph.graph))
    s = stages or Stages()
    jobs: list[KernelJob] = []

    def start(
        parts: Sequence[TritonPart], cache: Cache, *_how: Any
    ) -> Callable[[], dict[str, Callable[..., None]]]:
        site = cuda.Site(Driver(FakeCuda()).device(0), lambda: 0, torch.empty, cache)
        for p in parts:
            jobs.extend(likely_jobs(p.kernel, default_configs(p.kernel), H200))
        return lambda: {p.name: cuda.bind_cuda(p.kernel, site) for p in parts}

    with mock.patch("litz.targets.triton.start.start", start):
        call = compile_and_bind(graph, options or Options(check_ir=True), s, **how)
    return Trace(before, s, call, jobs)


# --- a device on paper ---


@contextmanager
def cuda_on_paper() -> Iterator[None]:
    """Autograd and dispatch find a CUDA device, on which nothing can run."""
    if torch.cuda.is_available():
        yield
        return
    exchange = _exchange()
    exchange()
    try:
        # Autocast asks by itself.
        absent = "torch.cuda.amp.common.amp_definitely_not_available"
        with (
            mock.patch(absent, lambda: False),
            mock.patch("torch.cuda.is_bf16_supported", lambda *_: True),
        ):
            yield
    finally:
        exchange()


@lru_cache(maxsize=1)
def _exchange() -> Callable[[], None]:
    source = Path(__file__).with_name("paper_cuda.cpp")
    torch_dir = Path(torch.__file__).parent
    cache = Cache()
    key = content_key(torch.__version__, str(torch_dir), source.read_bytes())
    built = cache.get_file("tests", key, ".so")
    if built is None:
        made = cache.scratch() / f"{key}-{os.getpid()}.so"
        library = torch_dir / "lib"
        subprocess.run(
            [
                *(os.environ.get("CXX", "g++").split()), "-std=c++20", "-O0", "-shared", "-fPIC",
                f"-I{torch_dir / 'include'}", str(source), "-o", str(made),
                # Its neighbours are in the process already.
                f"-L{library}", "-lc10", "-ltorch_cpu", "-Wl,--allow-shlib-undefined",
            ],
            check=True,
        )  # fmt: skip
        built = cache.put_file("tests", key, made, ".so")
    exchange = ctypes.CDLL(str(built)).exchange
    exchange.restype = None
    return partial(exchange)


# --- what CUDA's attention is called with ---


def efficient_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """What ``scaled_dot_product_attention`` makes of its arguments for the efficient kernel.

    A CPU build of PyTorch has no choice for CUDA and decomposes it.
    """
    if mask is not None:
        if mask.stride(-1) != 1 or any(s % 8 for s in mask.stride()[:-1]):
            wide = torch.constant_pad_nd(mask, (0, 8 - mask.shape[-1] % 8))
            mask = wide[..., : mask.shape[-1]]
        mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    wanted = torch.is_grad_enabled()
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    out: Tensor = attend(q, k, v, mask, wanted, dropout, causal)[0]
    return out


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False
) -> Tensor:
    """The same for the flash kernel: heads are padded to eights."""
    size = q.shape[-1]
    if size % 8:
        q, k, v = (torch.constant_pad_nd(x, (0, 8 - size % 8)) for x in (q, k, v))
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    out: Tensor = attend(q, k, v, dropout, causal, False, scale=size**-0.5)[0]
    return out[..., :size] if size % 8 else out


def cudnn_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention
    out: Tensor = attend(q, k, v, mask, torch.is_grad_enabled(), 0.0, causal, False)[0]
    return out


# --- arguments of operators, beside the graph's metadata ---


def misplaced(made: Trace) -> list[str]:
    """Arguments of operators that are not laid out as PyTorch traced them.

    Matrix products take any layout.  Strides count along dimensions of more than one element; an
    argument that PyTorch has on an address of 16 bytes must be on one.
    """
    assert made.stages.program is not None
    nodes = {n.name: n for n in made.graph.graph.nodes}
    faults: list[str] = []
    for call in made.stages.externs():
        node = nodes.get(call.origins[-1]) if call.origins else None
        if node is not None and node.target is call.target and node.target not in CONTRACTIONS:
            faults += _misplaced(call, node)
    return faults


def _misplaced(call: Extern, node: FxNode) -> Iterator[str]:
    named = dict(call.kwargs)
    pairs: list[tuple[Any, Any]] = [*zip(call.args, node.args, strict=True)]
    pairs += [(named[k], v) for k, v in node.kwargs.items()]
    for position, (given, wanted) in enumerate(pairs):
        several = isinstance(given, tuple | list)
        for ref, n in zip(given, wanted, strict=True) if several else [(given, wanted)]:
            if not isinstance(ref, TensorRef) or not isinstance(n, FxNode):
                continue
            fault = _fault(ref, stated_by(n, node))
            if fault:
                yield f"{call.target_name}, argument {position} ({n.name}): {fault}"


def _fault(ref: TensorRef, val: Tensor) -> str:
    """What differs, for the sizes that the graph was traced with."""
    own, wanted = [size_hint(s) for s in ref.strides], [hint(s) for s in val.stride()]
    counted = [hint(s) > 1 for s in val.shape]
    if ref.shape and any(c and a != b for a, b, c in zip(own, wanted, counted, strict=True)):
        return f"strides {own}, not {wanted}"
    size = val.element_size()
    at, want = size * size_hint(ref.offset) % 16, size * hint(val.storage_offset()) % 16
    return f"{at} bytes beyond an aligned address" if at and not want else ""


def hint(size: int | torch.SymInt) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size
