"""Programs ahead of AOTAutograd: what Dynamo traced, found with its forward and backward graph.

The key is Dynamo's graph in words, with whatever AOTAutograd asks of its inputs, of the process and
of the shape environment (see ``litz.cache.key`` for why that is enough).  What is kept is PyTorch's
own record of how AOTAutograd wraps compiled graphs (``litz.cache.records``), with the artifacts of
the graphs in it, and what PyTorch knew of symbols behind it.  On a hit the record's wrappers are
put around the bound artifacts, as PyTorch's own cache does it, and the guards that tracing and
compiling added are added again; where PyTorch then knows other things of the symbols, it is a miss.

A program whose trace left something that no record holds is not kept: guards on which inputs share
memory, sizes that became constants.  Nor is one of whose graphs another process could make another
one: their artifacts have keys, or the program has none.

Backward graphs are compiled when they are run first, as AOTAutograd does it; a program is kept once
all its graphs are.
"""

from __future__ import annotations

import inspect
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_wrapper

from litz.artifact import Artifact, UsersKernel
from litz.cache import records
from litz.cache.code import NAMESPACES, NotCached, overloads, value_text
from litz.cache.key import Writer, environment, settings, surroundings
from litz.dataclass import dataclass
from litz.logs import events
from litz.runtime.cache import content_key
from litz.runtime.past_wrappers import past_wrappers
from litz.runtime.second_gradients import differentiable, repeatable
from litz.runtime.torch_private import (
    AUTOCAST_CALLS,
    aot_names,
    in_transform,
    untraced,
    without_autocast,
)

Boxed = Callable[[list[Any]], Any]
GraphCompiler = Callable[[GraphModule, Sequence[Any]], Boxed]
_AOT = aot_names()
_RECORDING = {
    "enable_autograd_cache": True,
    "bundled_autograd_cache": True,
    "force_non_lazy_backward_lowering": True,
    "strict_autograd_cache": False,  # PyTorch's own cache is told to keep nothing
}
# Where PyTorch's functions in C, which do not say where they are, may be.
_ROOMS = ("torch", "torch._C._nn", "torch._C", "torch.nn.functional")


class _Code(_AOT.code if _AOT else object):  # type: ignore[misc]
    """A compiled graph, as AOTAutograd wants those that its records have."""

    def __init__(self, call: Boxed) -> None:
        self.call = call
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> Any:
        return self.call(args)

    def prepare_for_serialization(self) -> None:
        assert _AOT is not None
        raise _AOT.bypass("Litz keeps it")


class _Bound:
    """A bound graph in a record that was read."""

    def __init__(self, call: Boxed, was: Any, backward: bool) -> None:
        self._call = call
        if backward:
            self._call = untraced(call)
            self.backward_state_indices = was.backward_state_indices
            self.num_symints_saved_for_bw_ = was.num_symints_saved_for_bw_

    def load(self, inputs: object) -> Boxed:
        return self._call

    def post_compile(self, call: Boxed, config: object) -> Boxed:
        return call


def writing(call: Boxed, given: Sequence[torch.Tensor], written: Sequence[int]) -> Boxed:
    """The program that the compiled graph of one on lists is (``litz.regions.lists``).

    given: inputs before the program's own; written: those of all that it writes into.
    """

    def run(*args: torch.Tensor) -> tuple[Any, ...]:
        inputs = [*given, *args]
        changed = [inputs[i] for i in written]
        results = tuple(call(inputs))
        torch.autograd.graph.increment_version(changed)
        return results

    return untraced(run)


# --- the key -------------------------------------------------------------------------------------


class _Written(Writer):
    """Writes Dynamo's graph out, whose nodes call what users call."""

    traced = True

    def function(self, target: object) -> str:
        if isinstance(target, torch._ops.OpOverloadPacket):
            name: str = target._qualified_op_name
            if name.partition("::")[0] in NAMESPACES:
                return f"packet {name}"
            return f"packet {name} {[self.function(op) for op in overloads(target)]}"
        elif not isinstance(target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
            name = getattr(target, "__name__", "")
            room = getattr(target, "__module__", None) or "torch"
            if room.partition(".")[0] in ("torch", "math") and not isinstance(target, type):
                rooms = map(sys.modules.get, (room, *_ROOMS))
                at = [r.__name__ for r in rooms if r and getattr(r, name, None) is target]
                if at:
                    return f"{at[0]} {name}"
        return super().function(target)

    def target(self, n: Node) -> str:
        if n.op in ("get_attr", "call_module"):
            raise NotCached(f"{n.name} is held by the graph itself")
        if n.op == "call_method" and not _is_method(n.target):
            raise NotCached(f"{n.target} is no method of tensors")
        return super().target(n)

    def input(self, n: Node, x: object) -> str:
        said = f"{n.meta['tensor_dict']}" if n.meta.get("tensor_dict") else ""
        if not isinstance(x, torch.Tensor):
            return f"{said}{self.value(x)}"
        return said + (self.subclass(x) if is_wrapper(x) else self.memory_of(x))

    def subclass(self, x: Any) -> str:
        """A tensor around others: its class with all its code, what it is beside them, and them."""
        if x._base is not None:
            raise NotCached(f"an input is a view of a {type(x).__name__}")
        names, context = x.__tensor_flatten__()
        inner = [getattr(x, name) for name in names]
        if not all(isinstance(t, torch.Tensor) for t in inner):
            raise NotCached(f"a {type(x).__name__} holds more than tensors")
        parts = [self.subclass(t) if is_wrapper(t) else self.memory_of(t) for t in inner]
        code = value_text(type(x), f"a {type(x).__name__}", self.objects)
        data = value_text(context, f"a {type(x).__name__}", self.objects)
        kind = (x.is_leaf, isinstance(x, torch.nn.Parameter))
        return f"{self.metadata(x)} {kind} {code} {data} {names} {parts}"

    def memory_of(self, x: torch.Tensor) -> str:
        base = x._base
        views = base is not None and (base.requires_grad, base.is_leaf)
        return f"{self.tensor(x)} {x.is_leaf} {views} {self.storage(x)}"


def _is_method(name: object) -> bool:
    """Whether tensors have a method of that name, and from PyTorch."""
    found = getattr(torch.Tensor, name, None) if isinstance(name, str) else None
    return inspect.ismethoddescriptor(found) or (
        inspect.isfunction(found) and found.__module__ == "torch._tensor"
    )


def _without_regions(gm: GraphModule) -> Any:
    """The graph for PyTorch's check, which refuses regions of autocast.

    They are all in the key: where they begin and end, for what, and the process's defaults.
    """
    nodes = [n for n in gm.graph.nodes if n.target not in AUTOCAST_CALLS]
    if len(nodes) == len(gm.graph.nodes):
        return gm
    return SimpleNamespace(graph=SimpleNamespace(nodes=nodes))  # it has no modules of its own


@dataclass(frozen=True)
class ProgramKey:
    """The key of Dynamo's graph.

    env: the shape environment of its symbols, None without any.  objects: those of this process
    that the key stands for by name: tensors' subclasses and the user's Triton kernels.
    """

    key: str
    env: Any
    objects: Mapping[str, object]


def program_key(gm: GraphModule, inputs: Sequence[Any], options: Any) -> ProgramKey:
    """The key of Dynamo's graph.

    inputs: as Dynamo gives them, fake tensors and numbers.  Raises NotCached.
    """
    if _AOT is None:
        raise NotCached("this PyTorch has other names for what AOTAutograd makes")
    context = _AOT.context.try_get()
    if context is None or context.fakify_first_call:
        raise NotCached("its inputs come later")
    if next(gm.named_parameters(), None) or next(gm.named_buffers(), None) or [*gm.children()]:
        raise NotCached("it has modules of its own")
    # For a region of the program.
    enabled = torch._dynamo.compiled_autograd.compiled_autograd_enabled
    if torch._dynamo.config.compiled_autograd or enabled or in_transform():
        raise NotCached("its backward is traced again, or it runs in another transform")
    try:
        _AOT.check(_without_regions(gm))
    except (_AOT.bypass, AttributeError) as e:
        raise NotCached(str(e).partition("\n")[0]) from e
    written = _Written(gm)
    found = [written.node(n) for n in gm.graph.nodes]
    placeholders = gm.graph.find_nodes(op="placeholder")
    found += [written.input(n, x) for n, x in zip(placeholders, inputs, strict=True)]
    kinds = ("cpu", "cuda")
    autocast = [(torch.is_autocast_enabled(k), str(torch.get_autocast_dtype(k))) for k in kinds]
    state = (*autocast, torch.is_autocast_cache_enabled(), _AOT.config.get_hash().hex())
    key = content_key(*surroundings(options), repr(state), *found, *written.rest())
    return ProgramKey(key, written.env, written.objects)


# --- compiling and keeping -----------------------------------------------------------------------


Kept = tuple[Mapping[str, Artifact], bytes, str]
"""Artifacts by the kind of graph, the record, and what is known of symbols behind it."""


class Program:
    """A program that is compiled to be kept.  keep: told once all of it is there.

    refused: why it is not kept, as far as that is known.
    """

    def __init__(self, known: ProgramKey, keep: Callable[[Kept], None]) -> None:
        assert _AOT is not None
        self.refused = ""
        self._env, self._objects, self._keep = known.env, known.objects, keep
        self._artifacts: dict[str, Artifact] = {}
        self._record: Any = None
        self._before = self._facts()
        self._settings = settings()

    def _facts(self) -> tuple[object, ...]:
        """What tracing may add to, and no record holds."""
        assert _AOT is not None
        env = self._env
        symbols = () if env is None else (dict(env.replacements), set(env.backed_var_to_val))
        return (len(_AOT.context.get().guards_context.aotautograd_guards), *symbols)

    def compilers(self, by_kind: Mapping[str, GraphCompiler], now: bool) -> dict[str, Any]:
        """Compilers of graphs as AOTAutograd has them where it makes a record.

        now: backward graphs are not left to their first run.
        """
        assert _AOT is not None

        def coded(compile: GraphCompiler, kind: str) -> Callable[..., _Code]:
            def run(graph: GraphModule, inputs: Sequence[Any]) -> _Code:
                if kind == "backward" and not now:
                    return _Code(lazily(graph, partial(compile, graph, inputs)))
                return _Code(compile(graph, inputs))

            return run

        return {k: _AOT.compiler(_Code, coded(c, k)) for k, c in by_kind.items()}

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Where AOTAutograd makes a record.

        PyTorch looks for the graph in its own folder before.  Its key takes as long as compiling a
        large graph, and nothing is to be found there: it is another one each time.  Who is here
        holds Dynamo's lock, so that no other compilation sees that.
        """
        assert _AOT is not None
        nothing: Any = mock.patch.object(_AOT.cache, _AOT.key, lambda *_: (secrets.token_hex(), []))
        with _AOT.config.patch(_RECORDING), nothing:
            yield

    def made(self, kind: str, artifact: Artifact | None, why_not: str) -> None:
        """A graph of the program is compiled.  why_not: it has no key, or no artifact."""
        why_not = why_not or (artifact.not_portable if artifact else "a graph is not compiled")
        if why_not:
            self._refuse(why_not)
        elif settings() != self._settings:
            self._refuse("PyTorch's settings are others than where its forward graph was compiled")
        elif artifact is not None and not wanted(artifact) <= self._objects.keys():
            self._refuse("tracing made a Triton kernel of its own")
        elif artifact is not None:
            self._artifacts[kind] = artifact
            self._finish()

    def finished(self, call: Any, written: Sequence[int] | None = None) -> None:
        """AOTAutograd is done, and made this; without it, inputs that are written are known."""
        self._record = _record_of(call) if written is None else records.Lists(written)
        if self._record is None:
            self._refuse("AOTAutograd made no record")
        elif self._facts() != self._before:
            self._refuse("tracing found more than a record holds")
        try:
            self._after = "" if self._env is None else environment(self._env)
        except NotCached as e:  # what tracing has found of sizes
            self._refuse(str(e))
        self._finish()

    def _refuse(self, why: str) -> None:
        if not self.refused:
            events.info("the program is not cached: %s", why)
            self.refused = why

    def _finish(self) -> None:
        record = self._record
        if record is None or self.refused:
            return
        kinds = {"inference"} if record.compiled_bw is None else {"forward", "backward"}
        if kinds == set(self._artifacts):
            self._record = None
            try:
                said = records.dump(record, _Code, self._objects)
                self._keep((self._artifacts, said, self._after))
            except ValueError as e:
                self._refuse(str(e))


def wanted(artifact: Artifact) -> set[str]:
    """The names of the user's Triton kernels that an artifact launches."""
    found = {v.name for v in artifact.host.values.values() if isinstance(v, UsersKernel)}
    return found.union(*map(wanted, artifact.bodies.values()))


def _record_of(call: Any) -> Any:
    """The record behind what AOTAutograd made."""
    while call is not None:
        if (serialize := getattr(call, "serialize", None)) is not None:
            return serialize()
        call = getattr(call, "__wrapped__", None)
    return None


def lazily(graph: GraphModule, compile: Callable[[], Boxed]) -> Boxed:
    """A backward graph that is compiled when it is run first, unless sizes are among its inputs:
    then compiling may add guards, which count only while Dynamo traces."""
    inputs = (n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder"))
    if any(isinstance(v, torch.SymInt) for v in inputs):
        return compile()
    assert _AOT is not None
    context, number = _AOT.context.try_get(), _AOT.compile_context.try_get()
    made: list[Boxed] = []

    def run(args: list[Any]) -> Any:
        if not made:
            assert _AOT is not None
            with _AOT.tracing(context), _AOT.compiling(number), without_autocast():
                made.append(compile())
        return made[0](args)

    return run


def wrapped(
    kept: Kept,
    calls: Mapping[str, Boxed],
    inputs: Sequence[Any],
    known: ProgramKey,
    gm: GraphModule | None = None,
) -> Callable[..., Any]:
    """What Dynamo calls: the record's wrappers around bound graphs, by their kinds.

    gm: Dynamo's graph, for gradients of gradients.  Raises ValueError where the record does not
    fit, or PyTorch knows other things of symbols when its guards are added.
    """
    try:
        record = records.load(kept[1], known.objects)
        if isinstance(record, records.Lists):
            return writing(calls["inference"], (), record.written)
        if known.env is None:  # sizes are fixed, or PyTorch has checked them
            record.guards_expr = None
        call = _wrapped(record, calls, inputs)
    except Exception as e:  # a record may be whatever its pickle says
        raise ValueError(f"a record that does not fit: {e}") from e
    if known.env is not None and environment(known.env) != kept[2]:
        raise ValueError("PyTorch knows other things of its sizes")

    def run(*args: Any) -> Any:
        return call(list(args))

    metadata = record.runtime_metadata
    program = None if gm is None else repeatable(gm, metadata)
    return untraced(past_wrappers(call, metadata, program) or differentiable(run, program))


def _wrapped(record: Any, calls: Mapping[str, Boxed], inputs: Sequence[Any]) -> Boxed:
    assert _AOT is not None
    names = {"compiled_fw": "inference"}
    if record.compiled_bw is not None:
        names = {"compiled_fw": "forward", "compiled_bw": "backward"}
    if {*names.values()} != {*calls}:
        raise ValueError("it has other graphs")
    config = replace(record.sanitized_aot_config, aot_id=next(_AOT.counter))
    for field, kind in names.items():
        bound = _Bound(calls[kind], getattr(record, field), kind == "backward")
        setattr(record, field, bound)
    call: Boxed = record.wrap_post_compile(list(inputs), config, {})
    return call
