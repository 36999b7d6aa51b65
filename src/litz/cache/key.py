"""The key of a graph: equal keys mean equal artifacts.

Why they do.  ``compile_graph`` is deterministic, so what it makes depends on what it reads:

- the code of Litz and of PyTorch: a hash of each file of the package, PyTorch's version and commit,
  Python's version;
- the options: all that code depends on (``Options.key``, a user's passes by their ``uuid``), and
  ``inference`` and ``guarded``.  Of the rest, those that only say how a kernel is built stay out,
  and those that ask for a look at the stages (``verify``, ``check_ir``, ``check_calls``, ``show``,
  a stage's logger) do not go together with a cache;
- the machine: the C++ compiler with its flags, and what PyTorch says of the processor;
- PyTorch's state of the process, which evaluating constants and fake tensors may ask: ``_state``;
- the graph: its nodes in order with their names (host programs and reports have them), targets
  (with schemas), arguments, users in order, what becomes of its results, and every
  ``meta["val"]``: whatever a fake tensor has that Litz or an operator's own metadata function can
  ask, and which inputs share memory;
- bodies of control flow, written out as graphs of their own where the graph names them;
- the contents of constants.

All of it is written out as text in which types and lengths are told apart (``repr`` of strings,
numbers by their bits) and hashed; there is no other normal form, so a graph that is the same but
for a name is another one.

- of sizes that are symbols, what PyTorch's shape environment holds: ranges, hints, replacements and
  guards; what adds a guard is not kept under such a key, except where guards are added again;
- of GPUs, their properties, what arguments of launches may take, and the version of Triton.

What cannot be written so is not cached.  A ``NotCached`` says why: sizes that depend on data,
operators that are not PyTorch's own, unless what compiling asks of them can be written too
(``litz.cache.code``), kernels that a process registered over PyTorch's (constants are folded
and programs are traced by them), kernels and objects of the user's,
constants that somebody else may change, tensors that are more than memory with strides, and
devices other than CPUs and GPUs.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import os
import struct
import sys
import time
from dataclasses import fields
from functools import lru_cache
from importlib import metadata
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_list

from litz.artifact import tensor_bytes
from litz.cache.code import NAMESPACES, kernel_text, operator_text
from litz.cache.code import NotCached as NotCached
from litz.errors import LitzError
from litz.graph.aliasing import roles
from litz.graph.calls import higher_order_name, takes_objects
from litz.graph.constants import is_literal
from litz.graph.dialect import HIGHER_ORDER, MUTATION, USER_KERNEL
from litz.graph.short import SHORT, Short, seen
from litz.graph.storage import ANCHORED, FLAT
from litz.graph.values import EAGER_VAL, attribute_value
from litz.logs import STAGE_LOGGERS, stage_logger
from litz.options import Options
from litz.runtime.cache import content_key
from litz.runtime.fake import FakeScriptObject, FakeTensor
from litz.runtime.torch_private import (
    address,
    attention_order,
    is_zero_tensor,
    strange_kernels,
    user_kernel,
    users_kernels,
)
from litz.targets.tools import Tools

CONSTANTS: Final = 1 << 20
"""Bytes of constants up to which a graph is cached."""
_STARTED: Final = time.time()
_READ_META: Final = {ANCHORED, FLAT, EAGER_VAL, "unbacked_bindings"}


def graph_key(gm: GraphModule, options: Options, *, inference: bool, guarded: bool) -> str:
    """The key under which the artifact of a graph is kept: 40 hex digits.

    gm: as ``compile_graph`` takes it, before any pass.  Call it where tensors hold numbers.
    Raises NotCached.
    """
    short: Short | None = gm.meta.get(SHORT)
    around = surroundings(options)
    lines = Writer(seen(gm)).lines()
    if short is not None:
        lines.append(repr([getattr(short, f.name) for f in fields(short) if f.name != "gm"]))
    return content_key(*around, repr((inference, guarded)), *lines)


def surroundings(options: Options) -> list[str]:
    """What artifacts depend on beside their graphs.  Raises NotCached."""
    if reason := _watched(options):
        raise NotCached(reason)
    if op := users_kernels():
        raise NotCached(f"a kernel of the user's stands over PyTorch's: {op}")
    return [
        _sources(),
        repr((torch.__version__, torch.version.git_version, sys.version)),
        options.key(),
        _machine(options),
        repr(_state()),
        _libraries(),
    ]


def _watched(options: Options) -> str:
    """Which option wants to see the stages, or means what the key does not hold; "" if none."""
    for name in ("verify", "check_ir", "check_calls", "show", "target"):
        if getattr(options, name):
            return f"the option {name!r} is given"
    for stage in STAGE_LOGGERS:
        if stage_logger(stage).isEnabledFor(logging.DEBUG):
            return f"the log of {stage!r} is on"
    return ""


@lru_cache(maxsize=1)
def _sources() -> str:
    """A hash of all files of the package."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    digest = hashlib.sha256()
    try:
        for folder, inner, files in os.walk(root, onerror=_raised):
            inner[:] = sorted(set(inner) - {"__pycache__"})
            for name in sorted(files):
                path = os.path.join(folder, name)
                with open(path, "rb", buffering=0) as f:
                    data = f.readall()
                    if os.fstat(f.fileno()).st_mtime > _STARTED:  # what runs may be older
                        raise NotCached("the sources of Litz were changed after their import")
                digest.update(b"%s:%d:" % (os.path.relpath(path, root).encode(), len(data)))
                digest.update(data)
    except OSError as e:
        raise NotCached("the sources of Litz cannot be read") from e
    return digest.hexdigest()


def _raised(error: OSError) -> None:
    raise error


def _machine(options: Options) -> str:
    try:
        toolchain = Tools(options).toolchain
    except LitzError as e:
        raise NotCached("there is no C++ compiler") from e
    return repr((sys.platform, toolchain, torch.backends.cpu.get_cpu_capability()))


def _libraries() -> str:
    """The libraries of operators that were loaded: in C++ they may register kernels over ATen's."""
    try:
        found = [(p, os.stat(p)) for p in sorted(map(str, torch.ops.loaded_libraries))]
    except OSError as e:
        raise NotCached("a library of operators is not where it was loaded from") from e
    return repr([(p, stat.st_size, stat.st_mtime_ns) for p, stat in found])


def _state() -> tuple[object, ...]:
    """What a process can set in PyTorch that results of operators and of their metadata heed."""
    return (
        *settings(),
        torch.is_autocast_enabled("cpu"),
        str(torch.get_autocast_dtype("cpu")),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )


def settings() -> tuple[object, ...]:
    """The part of the state that is to be the same while a forward and a backward graph compile."""
    mkldnn: Any = torch.backends.mkldnn
    cuda: Any = torch.backends.cuda
    einsum: Any = torch.backends.opt_einsum
    smallest = sys.float_info.min
    return (
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.get_num_threads(),  # in which order a sum goes
        # Of both, not ``get_float32_matmul_precision``, which raises where one alone was set.
        (mkldnn.matmul.fp32_precision, cuda.matmul.fp32_precision),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        (mkldnn.is_available(), mkldnn.enabled, mkldnn.deterministic),
        smallest / 2 == 0.0,  # torch.set_flush_denormal
        # Which operator attention, recurrent layers and sums of products are traced to.
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()),
        (cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        cuda.fp16_bf16_reduction_math_sdp_allowed(),
        attention_order(),
        torch.backends.cudnn.enabled,
        (einsum.is_available(), einsum.enabled, einsum.strategy),
    )


def gpu(index: int) -> str:
    """What artifacts depend on of a GPU.  Raises NotCached."""
    from litz.runtime.triton.driver import parameter_bytes  # the CPU does without it

    try:
        properties = torch.cuda.get_device_properties(index)
        return f"gpu {properties} {torch.version.cuda} {parameter_bytes()} {_triton()}"
    except (RuntimeError, AssertionError) as e:
        raise NotCached("its GPU cannot be asked what it is") from e


@lru_cache(maxsize=1)
def _triton() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


class Writer:
    """Writes a graph out; memory: numbers of the storages of inputs and constants.

    env: the shape environment of sizes that are symbols; None where there are none.
    objects: of this process, by the names that stand for them: the user's classes and kernels.
    """

    traced = False  # whether the graph goes through AOTAutograd yet

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.memory: dict[int, int] = {}
        self.targets: dict[object, str] = {}
        self.devices: dict[torch.device, None] = {}
        self.objects: dict[str, object] = {}
        self.env: Any = None
        self.kept = 0

    def lines(self) -> list[str | bytes]:
        return self.nodes() + self.rest()

    def nodes(self) -> list[str | bytes]:
        found: list[str | bytes] = []
        for n in self.gm.graph.nodes:
            if not _READ_META.isdisjoint(n.meta):
                raise NotCached(f"{n.name} is known to depend on the process")
            val = n.meta.get("val")
            found.append(f"{self.node(n)} {[u.name for u in n.users]} {self.value(val)}")
            found[-1] += f" {'val' in n.meta}"  # type: ignore[operator]
            if n.op == "get_attr":
                found += self.attribute(n)
            elif n.op == "output":
                found.append(repr(roles(n)))
            elif n.op == "placeholder" and isinstance(val, torch.Tensor):
                found.append(self.storage(val))
        return found

    def attribute(self, n: Node) -> list[str | bytes]:
        value = attribute_value(self.gm, n)
        return self.body(value) if isinstance(value, GraphModule) else self.constant(n)

    def body(self, gm: GraphModule) -> list[str | bytes]:
        """A body of control flow, which shares symbols and memory with what is around it."""
        around, self.gm = self.gm, gm
        try:
            found = self.nodes()
        finally:
            self.gm = around
        return [f"body of {len(found)}", *found]

    def node(self, n: Node) -> str:
        kwargs: dict[str, Any] = dict(n.kwargs)
        if higher_order_name(n.target) in (USER_KERNEL, MUTATION):
            kernel, constants = user_kernel(kwargs["kernel_idx"], kwargs["constant_args_idx"])
            name = kernel_text(kernel, self.objects)
            kwargs = {**kwargs, "kernel_idx": name, "constant_args_idx": dict(constants)}
        return f"{n.op} {n.name!r} {self.target(n)} {self.text(n.args)} {self.text(kwargs)}"

    def rest(self) -> list[str | bytes]:
        """What the graph says of nowhere in particular: its GPUs and symbols."""
        gpus = sorted({d.index or 0 for d in self.devices if d.type == "cuda"})
        symbols = [] if self.env is None else [environment(self.env)]
        return [*map(gpu, gpus), *symbols]

    def target(self, n: Node) -> str:
        if n.op != "call_function":
            if not isinstance(n.target, str):
                raise NotCached(f"{n.name} calls what is no operator")
            return repr(n.target)
        if n.target not in self.targets:
            self.targets[n.target] = self.function(n.target)
        return self.targets[n.target]

    def function(self, target: object) -> str:
        name = getattr(target, "__name__", str(target))
        if takes_objects(target):  # PyTorch traces what an object does then
            raise NotCached(f"{name} takes a script object")
        if getattr(operator, name, None) is target:
            return f"operator {name}"
        if higher_order_name(target) in (*HIGHER_ORDER, MUTATION):
            return f"higher-order {name}"
        if type(target) is not torch._ops.OpOverload:
            raise NotCached(f"{name} is no operator of PyTorch's")
        if target.namespace not in NAMESPACES:
            return operator_text(target, self.objects, traced=self.traced)
        if target.namespace == "aten" and (at := strange_kernels(target)):
            raise NotCached(f"{name} has a kernel that is not PyTorch's, of {at}")
        return f"{target} {target._schema}"

    def storage(self, x: torch.Tensor) -> str:
        number = self.memory.setdefault(address(x), len(self.memory))
        return f"memory {number}"

    def constant(self, n: Node) -> list[str | bytes]:
        value = attribute_value(self.gm, n)
        if type(value) is not torch.Tensor or not is_literal(n):
            raise NotCached(f"{n.target} is no constant that is written down in the code")
        said = self.tensor(value)
        content = tensor_bytes(value)
        self.kept += len(content)
        if self.kept > CONSTANTS:
            raise NotCached(f"its constants have over {CONSTANTS >> 20} MiB")
        return [said, self.storage(value), content]

    def text(self, value: object) -> str:
        """An argument, so that unequal ones differ; NotCached for what is no data."""
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if isinstance(value, Node):
            return f"%{value.name!r}"
        if kind is float or kind is complex:
            assert isinstance(value, complex | float)
            return f"{kind.__name__} {_bits(value.real)} {_bits(value.imag)}"
        if kind is torch.device:
            return self.device(value)
        if kind in _SEQUENCES:
            return f"{kind.__name__}[{', '.join([self.text(v) for v in value])}]"  # type: ignore[attr-defined]
        if isinstance(value, dict):
            return (
                "{" + ", ".join([f"{self.text(k)}: {self.text(v)}" for k, v in value.items()]) + "}"
            )
        if kind is slice:
            assert isinstance(value, slice)
            return f"slice {self.text((value.start, value.stop, value.step))}"
        if kind is type(...):
            return "..."
        if kind is torch._ops.OpOverload:  # what a call of higher order calls
            return self.function(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.symbol(value)
        if kind.__module__ == "triton.language.core" and kind.__name__ in ("dtype", "constexpr"):
            return f"{kind.__name__} {value!r}"  # a constant of a user's kernel
        raise NotCached(f"it holds a {kind.__name__}")

    def symbol(self, value: Any) -> str:
        node = value.node
        env = getattr(node, "shape_env", None)
        if env is None or node.is_nested_int() or self.env not in (None, env):
            raise NotCached("a size is no expression of symbols")
        self.env = env
        return f"{type(value).__name__} <{node.expr}>"

    def device(self, device: object) -> str:
        assert isinstance(device, torch.device)
        if device.type not in ("cpu", "cuda"):
            raise NotCached(f"it computes on {device}")
        self.devices[device] = None
        return repr(device)

    def value(self, val: object) -> str:
        """What a node's metadata says of its value."""
        if isinstance(val, torch.Tensor):
            return self.tensor(val)
        if type(val) in _SEQUENCES:
            return f"{type(val).__name__}[{', '.join([self.value(v) for v in val])}]"  # type: ignore[attr-defined]
        if type(val) is FakeScriptObject:  # a mesh, say, that the graph hands on
            return f"object {val.script_class_name!r}"
        if type(val) is dict:  # a user's kernel has results by name
            return f"{[(k, self.value(v)) for k, v in val.items()]}"
        return self.text(val)

    def tensor(self, x: torch.Tensor) -> str:
        if type(x) not in (FakeTensor, torch.Tensor, torch.nn.Parameter):
            raise NotCached(f"a tensor is a {type(x).__name__}")
        return f"{type(x).__name__} {self.metadata(x)} {is_zero_tensor(x)}"

    def metadata(self, x: torch.Tensor) -> str:
        if x.layout is not torch.strided or x.is_quantized or x.is_nested:
            raise NotCached("a tensor is more than memory with strides")
        sizes = (*x.shape, *x.stride(), x.storage_offset())
        said = str(sizes)
        if not {type(s) for s in sizes} <= {int}:
            said = ", ".join(str(s) if type(s) is int else self.symbol(s) for s in sizes)
        return (
            f"{x.dtype} {len(x.shape)} {said} {self.device(x.device)} "
            f"{x.requires_grad} {x.is_conj()} {x.is_neg()} {x.is_inference()}"
        )


_PLAIN: Final = (bool, int, str, type(None), torch.dtype, torch.layout, torch.memory_format)
_SEQUENCES: Final = (tuple, list, immutable_list, torch.Size)


def _bits(number: float) -> str:
    return struct.pack("<d", number).hex()


def symbols(gm: GraphModule) -> str:
    """What PyTorch knows of the symbols of a graph; "" where it has none.  Raises NotCached."""
    for n in gm.graph.nodes:
        val = n.meta.get("val")
        for size in val.shape if isinstance(val, torch.Tensor) else (val,):
            if isinstance(size, torch.SymInt):
                return environment(size.node.shape_env)
    return ""


def environment(env: Any) -> str:
    """All that PyTorch has found of the symbols of a trace.

    Raises NotCached where it may know more than is written here: sizes that depend on data.
    """
    known = env.backed_var_to_val
    if set(env.var_to_range) - set(known) or env.deferred_runtime_asserts or env.size_like:
        raise NotCached("a size depends on data")
    pairs = [
        [f"{k}: {v}" for k, v in found.items()]
        for found in (known, env.var_to_range, env.replacements)
    ]
    guards = sorted({str(g.expr) for g in env.guards})
    return repr((*map(sorted, pairs), guards, sorted(map(str, env.divisible)), env.settings))
