"""Compiles an entry of the corpus up to the point where kernels would be built."""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from litz import backend, compiler, dynamo
from litz.host.lines import host_text
from litz.host.memory import plan_memory
from litz.host.plan import plan as plan_host
from litz.ir.parse import parse
from litz.kernel.parse import parse_recipe
from litz.options import Options, make_options
from litz.schedule.build import schedule as make_schedule
from litz.stages import Stages
from litz.targets.cpp.target import Cpp
from litz.targets.kernels import Kernel, make_kernels
from litz.targets.traffic import call_bytes, kernel_bytes
from litz.targets.triton.target import Triton
from tests.replay.corpus import Entry

# One instruction set, so that every machine prints the same.
OPTIONS = {"isa": "avx2", "check_ir": True, "check_calls": False, "rng": "litz"}


@dataclass
class Graph:
    """What one graph became.

    kernels: sources by name.  calls: operators that ATen runs.  launches: kernels started in a
    call.  bytes: what they read and write at least, each element of each buffer once a kernel;
    of_calls: the same of ATen's operators.  whole: why all of it is ATen's, if it is.
    """

    kernels: dict[str, str] = field(default_factory=dict)
    host: str = ""
    calls: list[str] = field(default_factory=list)
    launches: int = 0
    bytes: int = 0
    of_calls: int = 0
    whole: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Watch = Callable[[GraphModule, GraphModule, Stages], None]


def record(entry: Entry, watch: Watch = lambda *_: None) -> list[Graph]:
    """The graphs of an entry, in the order in which they are compiled.

    watch: is shown each graph of a program, as it came and after Litz's passes, and its stages.
    For one on a GPU the process needs ``cuda_on_paper`` around its first backward graph and all
    that follow: autograd learns once what devices there are.
    """
    return _of_text(entry.text) if entry.text else _of_program(entry, watch)


def _of_program(entry: Entry, watch: Watch) -> list[Graph]:
    found: list[Graph] = []

    def compile_one(graph: GraphModule, options: Options, stages: Stages, **how: Any) -> Any:
        before = GraphModule(graph, copy.deepcopy(graph.graph))
        runs = dynamo.interpreted(before)
        compiler.compile_graph(graph, options, stages, **how)
        found.append(_graph(stages))
        watch(before, graph, stages)
        return runs

    def observe(kind: str, graph: GraphModule, stages: Stages) -> None:
        if stages.fallback:
            found.append(Graph(whole=stages.fallback))

    options = make_options({**OPTIONS, "repro_dir": tempfile.gettempdir()})

    def litz(gm: GraphModule, inputs: Any) -> Any:
        return backend.compile_with(gm, inputs, options, observe)

    torch._dynamo.reset()
    assert entry.build is not None
    with contextlib.ExitStack() as stack:
        torch.manual_seed(0)
        made = None if entry.fake else entry.build()
        stack.enter_context(FakeTensorMode())
        stack.enter_context(mock.patch.object(backend, "compile_and_bind", compile_one))
        stack.enter_context(torch._dynamo.config.patch(allow_rnn=True))
        stack.enter_context(torch.device(entry.device))
        fn, args = entry.build() if made is None else _Fake(entry.device).program(*made)
        compiled = torch.compile(fn, backend=litz, dynamic=entry.dynamic)
        with torch.set_grad_enabled(entry.training):
            out = pytree.tree_leaves(compiled(*args))
        results = [x for x in out if isinstance(x, torch.Tensor) and x.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.empty_like(x) for x in results])
    torch._dynamo.reset()
    return found


class _Fake:
    """Fake tensors on a device in place of real ones: equal ones for equal ones."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.known: dict[int, torch.Tensor] = {}

    def __call__(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in self.known:
            made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=self.device)
            if isinstance(x, torch.nn.Parameter):
                made = torch.nn.Parameter(made, x.requires_grad)
            self.known[id(x)] = made.requires_grad_(x.requires_grad)
        return self.known[id(x)]

    def program(self, fn: Any, args: Sequence[Any]) -> tuple[Any, list[Any]]:
        for m in fn.modules() if isinstance(fn, torch.nn.Module) else ():
            for name, x in (*m.named_parameters(recurse=False), *m.named_buffers(recurse=False)):
                setattr(m, name, self(x))
        return fn, [self(a) for a in args]


def _of_text(text: str) -> list[Graph]:
    """A program of IR, for both targets."""
    from text_cases import resolve

    found = []
    cpp, triton = Cpp(lambda: 8), Triton()
    for on_cpu in (cpp, triton):
        program = parse(text, resolve=resolve)
        schedule = make_schedule(program)
        calls, kernels = make_kernels(
            schedule, lambda device, own=on_cpu: own if device == "cpu" else triton
        )
        stages = Stages(program, schedule, kernels, plan_memory(plan_host(schedule, calls)))
        found.append(_graph(stages))
    return found


# --- figures ---


def _graph(stages: Stages) -> Graph:
    host, program = stages.host, stages.program
    assert host is not None and program is not None
    by_name = {k.name: k for k in stages.kernels}
    calls = list(host.kernel_calls())
    externs = stages.externs()
    return Graph(
        {k.name: _source(k) for k in stages.kernels},
        host_text(host),
        [f"{x.target_name}: {x.reason}" for x in externs],
        sum(_launches(by_name[c.kernel]) for c in calls),
        sum(kernel_bytes(by_name[c.kernel], c, program.buffers) for c in calls),
        sum(call_bytes(x, program.buffers) for x in externs),
    )


def _source(kernel: Kernel) -> str:
    if any(parse_recipe(r.text) != r for r in kernel.recipes):
        raise ValueError(f"{kernel.name}: its recipe does not read back")
    if kernel.triton is None:
        return kernel.source
    return "\n".join(text for launch in kernel.triton.launches for text in launch.sources())


def _launches(kernel: Kernel) -> int:
    return 1 if kernel.triton is None else len(kernel.triton.launches)
