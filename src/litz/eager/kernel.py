"""The kernel that stands over ATen's for one operator: compiled code by signature.

What a call finds, in this order: what calls of its signature ran before; code of open sizes that
was compiled before and whose guards hold; the same two in the cache folder; else it is compiled.
The first sizes of a kind get code of their own; after those, the dimensions that have differed are
symbols.  Code that Litz compiled for a call and that still calls ATen is not used: ATen's kernel is
then as good, and none of Litz's kernels can come back into itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from functools import partial
from types import FunctionType
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.fx import GraphModule

from litz.artifact import Artifact
from litz.binding import bind
from litz.cache import store
from litz.cache.key import NotCached, gpu, surroundings
from litz.dataclass import dataclass
from litz.eager.signature import Kind, Layout, Signature, Unknown, family, signature
from litz.errors import ArtifactError
from litz.logs import events
from litz.options import Options
from litz.runtime.cache import content_key
from litz.runtime.collector import uncollected
from litz.runtime.dispatcher import Kernel, in_compile, thread, through_aten
from litz.runtime.torch_private import same_memory, without_autocast
from litz.targets.tools import Tools

__all__ = ["Decision", "Operator"]

Boxed = Callable[[list[Any]], Any]
SIZES: Final = 2
"""Sizes of a kind that get code of their own before others share code of open sizes."""
LIMIT: Final = 16
"""Codes of calls that differ in sizes and numbers alone; ATen runs others."""
CALLS: Final = 1024
"""Signatures whose code is found at once."""
_OPERATOR = "operator"
_THROUGH_ATEN = "ATen: "
_UNSEEN: Any = object()


@dataclass(frozen=True)
class Decision:
    """What became of one kind of call.

    operator: its name.  call: its arguments, tensors by type and sizes.  how: "compiled", "found"
    (in the cache folder) or "ATen".  guards: of code of open sizes, what these must be; else "".
    reason: why ATen.
    """

    operator: str
    call: str
    how: str
    guards: str = ""
    reason: str = ""

    def __str__(self) -> str:
        why = self.reason or (f"open sizes: {self.guards}" if self.guards else "these sizes")
        return f"{self.operator}{self.call}: {self.how} ({why})"


@dataclass(frozen=True)
class Code:
    """Code for calls of a kind.  run: takes the tensors; None where ATen runs such calls."""

    run: Boxed | None
    guards: str = ""
    reason: str = ""


@dataclass
class _Known:
    """What there is for a kind: code by sizes, code of open sizes, the newest first."""

    by_layouts: dict[tuple[Layout, ...], Code] = field(default_factory=dict)
    of_open_sizes: list[Code] = field(default_factory=list)


class Operator:
    """An operator that is compiled as it is called.  own: ATen's kernel.

    decisions: what became of its calls, one for each code.
    """

    def __init__(self, op: torch._ops.OpOverload, own: Kernel, options: Options) -> None:
        self.decisions: list[Decision] = []
        self._op, self._own, self._options = op, own, options
        self._lock = threading.Lock()
        self._runs: dict[Signature, Boxed | None] = {}
        self._known: dict[Kind, _Known] = {}
        self._counts: dict[Kind, int] = {}
        self._returns = [str(r.type) for r in op._schema.returns]

    def kernel(self) -> FunctionType:
        """The function that the dispatcher calls."""
        own, runs, unseen = self._own, self._runs, self._unseen
        one, listed = self._returns == ["Tensor"], len(self._returns) == 1

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            if thread.aten:
                return own(keys, *args, **kwargs)
            tensors: list[Tensor] = []
            try:
                called = signature(args, kwargs, tensors)
            except Unknown:
                return own(keys, *args, **kwargs)
            run = runs.get(called, _UNSEEN)
            if run is _UNSEEN:
                run = unseen(called, tensors, partial(own, keys, *args, **kwargs), args, kwargs)
            if run is None:
                return own(keys, *args, **kwargs)
            results = run(tensors)
            return results[0] if one else [*results] if listed else tuple(results)

        return cast(FunctionType, kernel)

    def _unseen(
        self,
        called: Signature,
        tensors: Sequence[Tensor],
        own: Callable[[], Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Boxed | None:
        """What runs a call whose signature is new, or was forgotten."""
        if in_compile():
            return None
        with self._lock:
            if called not in self._runs:
                # As if nobody were around the call: autocast and modes are for operators above.
                with uncollected(), through_aten(), torch.inference_mode(False), torch.no_grad():
                    with without_autocast():
                        code = self._code(called, tensors, own, args, kwargs)
                if len(self._runs) >= CALLS:
                    self._runs.clear()
                self._runs[called] = code.run
            return self._runs[called]

    def _code(
        self,
        called: Signature,
        tensors: Sequence[Tensor],
        own: Callable[[], Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Code:
        kind, layouts = called
        known = self._known.get(kind, _Known())
        if code := known.by_layouts.get(layouts) or _fitting(known.of_open_sizes, layouts):
            return code
        if self._counts.get(family(kind), 0) >= LIMIT:
            return Code(None)
        made = Decision(self._op._name, _said((*args, *kwargs.values())), "found")
        keys = self._keys(called, tensors)
        for key in keys:
            code = self._found(key, layouts)
            if code is not None:
                return self._add(called, made, code)
        expected = own()  # which raises for what cannot be called so
        seen = [*known.by_layouts, layouts]
        dims = _open_dims(seen) if len(seen) > SIZES else ()
        cache = Tools(self._options).cache
        key = keys[bool(dims)] if keys else ""
        with cache.alone(key) if key else nullcontext():
            code = self._found(key, layouts) if key else None
            if code is not None:
                return self._add(called, made, code)
            graph = self._graph(args, kwargs, dims)
            code, artifact = self._compiled(graph, bool(dims), tensors, _results(expected))
        if key and artifact is not None:
            said = _THROUGH_ATEN + code.reason if code.run is None else code.guards
            store.save_program(cache, key, ({_OPERATOR: artifact}, b"", said))
        return self._add(called, replace(made, how="compiled"), code)

    def _add(self, called: Signature, made: Decision, code: Code) -> Code:
        kind, layouts = called
        known = self._known.setdefault(kind, _Known())
        if code.guards:
            known.of_open_sizes.insert(0, code)
        else:
            known.by_layouts[layouts] = code
        self._counts[family(kind)] = self._counts.get(family(kind), 0) + 1
        how = "ATen" if code.run is None else made.how
        made = replace(made, how=how, guards=code.guards, reason=code.reason)
        self.decisions.append(made)
        events.info("%s", made)
        return code

    # --- the cache folder -------------------------------------------------------------------

    def _keys(self, called: Signature, tensors: Sequence[Tensor]) -> list[str]:
        """Of code for just these sizes, and of that for open ones; none where it is not kept."""
        if not self._options.graph_cache:
            return []
        kind, layouts = called
        try:
            around = surroundings(self._options)
            around += [gpu(i) for i in sorted({x.get_device() for x in tensors if x.is_cuda})]
        except NotCached as e:
            events.info("%s is not cached: %s", self._op, e)
            return []
        around += [_OPERATOR, str(self._op._schema), repr(kind)]
        return [content_key(*around, repr(x)) for x in (layouts, "open")]

    def _found(self, key: str, layouts: tuple[Layout, ...]) -> Code | None:
        """The code of a key, if there is some that this process can bind, for these sizes."""
        kept = store.load_program(Tools(self._options).cache, key)
        if kept is None or _OPERATOR not in kept[0]:
            return None
        artifact, said = kept[0][_OPERATOR], kept[2]
        if said.startswith(_THROUGH_ATEN):
            return Code(None, reason=said.removeprefix(_THROUGH_ATEN))
        if said and not _fitting([Code(None, said)], layouts):
            return None
        try:
            return Code(bind(artifact, self._options), said)
        except ArtifactError:  # it names what this process has not
            return None

    # --- compiling --------------------------------------------------------------------------

    def _graph(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], dims: Sequence[Sequence[int]]
    ) -> GraphModule | str:
        """The graph of a call, or why there is none."""
        from litz.eager.trace import traced  # who finds all code does without it

        try:
            return traced(self._op, args, kwargs, dims)
        except Exception as e:  # of PyTorch's metadata functions, any
            return f"it is not traced: {type(e).__name__}: {e}"

    def _compiled(
        self,
        graph: GraphModule | str,
        has_open_sizes: bool,
        tensors: Sequence[Tensor],
        expected: Sequence[Tensor | None],
    ) -> tuple[Code, Artifact | None]:
        """Code for a call, and its artifact.  expected: what ATen returns."""
        if isinstance(graph, str):
            return Code(None, reason=graph), None
        from litz.backend import compile_or_fall_back
        from litz.eager.trace import guards
        from litz.stages import Stages

        stages = Stages()
        options = replace(self._options, graph_cache=False)  # this is where it is kept
        call = compile_or_fall_back(graph, options, stages, "inference")
        if stages.artifact is None or stages.fallback:
            return Code(None, reason=stages.fallback), None
        reason = _idle(stages.artifact) or _fault(call([*tensors]), expected, tensors)
        if reason:
            return Code(None, reason=reason), stages.artifact
        said = guards(graph) if has_open_sizes else ""
        return Code(self._alone(call), said), stages.artifact

    def _alone(self, call: Boxed) -> Boxed:
        """``call``, where it runs ATen's kernels beside its own to check them: only those."""
        return through_aten()(call) if self._options.verify else call


def _fitting(codes: Sequence[Code], layouts: tuple[Layout, ...]) -> Code | None:
    if not codes:
        return None
    from litz.eager.trace import fits

    return next((c for c in codes if fits(c.guards, layouts)), None)


def _open_dims(seen: Sequence[tuple[Layout, ...]]) -> list[list[int]]:
    """Of each tensor, the dimensions in which sizes have differed; none at all if there are none.

    PyTorch has no symbols for sizes of 0 and 1: a call with one there gets code of its own.
    """
    *_, last = seen
    found = []
    for i, (shape, _) in enumerate(last):
        found.append([d for d, n in enumerate(shape) if any(x[i][0][d] != n for x in seen)])
        if any(shape[d] < 2 for d in found[-1]):
            return []
    return found if any(found) else []


def _idle(artifact: Artifact) -> str:
    """Why ATen's kernel runs instead of an artifact; "" if the artifact runs."""
    if artifact.externs:
        return f"Litz calls {', '.join(e.op for e in artifact.externs)} for it"
    return "" if artifact.kernels else "there is nothing to compute"


def _results(value: Any) -> Sequence[Tensor | None]:
    return (value,) if isinstance(value, Tensor) else value


def _fault(
    results: Sequence[Tensor | None], expected: Sequence[Tensor | None], given: Sequence[Tensor]
) -> str:
    """In what results are not as ATen's; "" if they are."""
    if [_metadata(x) for x in results] != [_metadata(x) for x in expected]:
        return "PyTorch's metadata function says other strides or types than ATen returns"
    if any(x is not None and same_memory(x, y) for x in results for y in given):
        return "Litz returns an argument's memory"
    return ""


def _metadata(x: Tensor | None) -> object:
    return None if x is None else (x.dtype, x.device, x.shape, x.stride())


def _said(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_said, value))})"
    return str(value)
