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
  (with schemas), arguments, users in order, and every ``meta["val"]``: whatever a fake tensor has
  that Litz or an operator's own metadata function can ask, and which inputs share memory;
- the contents of constants.

All of it is written out as text in which types and lengths are told apart (``repr`` of strings,
numbers by their bits) and hashed; there is no other normal form, so a graph that is the same but
for a name is another one.

What cannot be written so is not cached.  A ``NotCached`` says why: sizes that are symbols (their
ranges, hints and guards live in PyTorch's shape environment, and compiling adds guards), operators
that are not PyTorch's own (a registration may change), bodies of control flow, kernels and objects
of the user's, constants that somebody else may change, tensors that are more than memory with
strides, and devices other than the CPU.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import os
import struct
import sys
from functools import lru_cache
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_list

from litz.artifact import tensor_bytes
from litz.errors import LitzError
from litz.graph.constants import is_literal
from litz.graph.storage import ANCHORED, FLAT
from litz.graph.values import EAGER_VAL, attribute_value
from litz.logs import STAGE_LOGGERS, stage_logger
from litz.options import Options
from litz.runtime.cache import content_key
from litz.runtime.torch_private import storage_address
from litz.targets.tools import Tools

__all__ = ["NotCached", "graph_key"]

NAMESPACES: Final = ("aten", "prims")
CONSTANTS: Final = 1 << 20
"""Bytes of constants up to which a graph is cached."""
_READ_META: Final = {ANCHORED, FLAT, EAGER_VAL, "unbacked_bindings"}


class NotCached(Exception):
    """A graph without a key; the message says why."""


def graph_key(gm: GraphModule, options: Options, *, inference: bool, guarded: bool) -> str:
    """The key under which the artifact of a graph is kept: 40 hex digits.

    gm: as ``compile_graph`` takes it, before any pass.  Call it where tensors hold numbers.
    Raises NotCached.
    """
    if reason := _watched(options):
        raise NotCached(reason)
    return content_key(
        _sources(),
        repr((torch.__version__, torch.version.git_version, sys.version)),
        options.key(),
        repr((inference, guarded)),
        _machine(options),
        repr(_state()),
        *_Graph(gm).lines(),
    )


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


def _state() -> tuple[object, ...]:
    """What a process can set in PyTorch that results of operators and of their metadata heed."""
    mkldnn: Any = torch.backends.mkldnn
    smallest = sys.float_info.min
    return (
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.get_num_threads(),  # in which order a sum goes
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.is_autocast_enabled("cpu"),
        str(torch.get_autocast_dtype("cpu")),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        mkldnn.is_available(),
        mkldnn.enabled,
        mkldnn.deterministic,
        smallest / 2 == 0.0,  # torch.set_flush_denormal
    )


class _Graph:
    """Writes a graph out; memory: numbers of the storages of inputs and constants."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.memory: dict[int, int] = {}
        self.targets: dict[object, str] = {}
        self.kept = 0

    def lines(self) -> list[str | bytes]:
        found: list[str | bytes] = []
        for n in self.gm.graph.nodes:
            if not _READ_META.isdisjoint(n.meta):
                raise NotCached(f"{n.name} is known to depend on the process")
            val = n.meta.get("val")
            found.append(
                f"{n.op} {n.name!r} {self.target(n)} {_text(n.args)} {_text(n.kwargs)} "
                f"{[u.name for u in n.users]} {'val' in n.meta} {_value(val)}"
            )
            if n.op == "get_attr":
                found += self.constant(n)
            elif n.op == "placeholder" and isinstance(val, torch.Tensor):
                found.append(self.storage(val))
        return found

    def target(self, n: Node) -> str:
        if n.op != "call_function":
            if not isinstance(n.target, str):
                raise NotCached(f"{n.name} calls what is no operator")
            return repr(n.target)
        if n.target not in self.targets:
            self.targets[n.target] = _operator(n.target)
        return self.targets[n.target]

    def storage(self, x: torch.Tensor) -> str:
        number = self.memory.setdefault(storage_address(x.untyped_storage()), len(self.memory))
        return f"memory {number}"

    def constant(self, n: Node) -> list[str | bytes]:
        value = attribute_value(self.gm, n)
        if type(value) is not torch.Tensor or not is_literal(n):
            raise NotCached(f"{n.target} is no constant that is written down in the code")
        said = _tensor(value)
        content = tensor_bytes(value)
        self.kept += len(content)
        if self.kept > CONSTANTS:
            raise NotCached(f"its constants have over {CONSTANTS >> 20} MiB")
        return [said, self.storage(value), content]


def _operator(target: object) -> str:
    if target is operator.getitem:
        return "getitem"
    if type(target) is not torch._ops.OpOverload:
        raise NotCached(f"{getattr(target, '__name__', target)} is no operator of PyTorch's")
    if target.namespace not in NAMESPACES:
        raise NotCached(f"{target} is no operator of PyTorch's")
    return f"{target} {target._schema}"


_PLAIN: Final = (bool, int, str, type(None), torch.dtype, torch.layout, torch.memory_format)
_SEQUENCES: Final = (tuple, list, immutable_list, torch.Size)


def _text(value: object) -> str:
    """An argument, so that unequal ones differ; NotCached for what is no data."""
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if isinstance(value, Node):
        return f"%{value.name!r}"
    if isinstance(value, float):
        return f"float {_bits(value)}" if kind is float else _refused(value)
    if kind is complex:
        assert isinstance(value, complex)
        return f"complex {_bits(value.real)} {_bits(value.imag)}"
    if kind is torch.device:
        return _on_cpu(value)
    if kind in _SEQUENCES:
        return f"{kind.__name__}[{', '.join([_text(v) for v in value])}]"  # type: ignore[attr-defined]
    if isinstance(value, dict):
        return "{" + ", ".join([f"{_text(k)}: {_text(v)}" for k, v in value.items()]) + "}"
    return _refused(value)


def _bits(number: float) -> str:
    return struct.pack("<d", number).hex()


def _refused(value: object) -> str:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise NotCached("a size is known only at run time")
    raise NotCached(f"it holds a {type(value).__name__}")


def _on_cpu(device: object) -> str:
    assert isinstance(device, torch.device)
    if device.type != "cpu":
        raise NotCached(f"it computes on {device}")
    return repr(device)


def _value(val: object) -> str:
    """What a node's metadata says of its value."""
    if isinstance(val, torch.Tensor):
        return _tensor(val)
    if type(val) in _SEQUENCES:
        return f"{type(val).__name__}[{', '.join([_value(v) for v in val])}]"  # type: ignore[attr-defined]
    return _text(val)


def _tensor(x: torch.Tensor) -> str:
    if type(x) not in (FakeTensor, torch.Tensor, torch.nn.Parameter):
        raise NotCached(f"a tensor is a {type(x).__name__}")
    if x.layout is not torch.strided or x.is_quantized or x.is_nested:
        raise NotCached("a tensor is more than memory with strides")
    shape, strides, offset = tuple(x.shape), x.stride(), x.storage_offset()
    if not {type(s) for s in (*shape, *strides, offset)} <= {int}:
        raise NotCached("a size is known only at run time")
    return (
        f"{type(x).__name__} {x.dtype} {shape} {strides} {offset} {_on_cpu(x.device)} "
        f"{x.requires_grad} {x.is_conj()} {x.is_neg()} {x.is_inference()} {x._is_zerotensor()}"
    )
