"""Programs in PyTorch's own packages of compiled functions.

``torch.compile(f, fullgraph=True).aot_compile(...)`` gives a function that can be saved, and where
``torch._dynamo.config.caching_precompile`` is set Dynamo keeps what it made on disk.  Both ask the
backend for its part in bytes: Litz gives the program's entry, as it lies in the cache folder.
Reading one binds the artifacts in it; PyTorch has checked its guards by then.  PyTorch unpickles
what is around it: load such files from whom you trust.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from litz.artifact import Artifact
from litz.bound import bind_program
from litz.cache import store
from litz.cache.code import NotCached
from litz.cache.programs import Kept, program_key
from litz.errors import ArtifactError
from litz.logs import events
from litz.options import Options, make_options
from litz.runtime.torch_private import packed_classes
from litz.targets.tools import Tools

_Callable, _Entry, record_entry = packed_classes()


class Packed(_Callable):  # type: ignore[misc,valid-type]
    """A compiled program that PyTorch can write: a call, and the entry that it is bound from."""

    def __init__(self, call: Callable[..., Any], entry: bytes) -> None:
        self.call, self.entry = call, entry

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    @classmethod
    def serialize_compile_artifacts(cls, fn: Packed) -> bytes:
        return fn.entry

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Packed:
        return cls(bound(data), data)


class PackedEntry(_Entry):  # type: ignore[misc,valid-type]
    """What Dynamo keeps of a program on disk; ``content``: its entry."""

    def after_deserialization(self) -> Callable[..., Any]:
        return bound(self.content)


def packed(
    gm: GraphModule, inputs: Sequence[Any], options: Options, compile: Callable[[], Any]
) -> Callable[..., Any]:
    """What ``compile`` makes of Dynamo's graph, with its bytes where it has any."""
    name = getattr(gm, "_backend_id", None)
    try:
        known = program_key(gm, inputs, options)
        reason = "a program with objects of its process" if known.objects else ""
    except NotCached as e:
        known, reason = None, str(e)
    call: Callable[..., Any] = compile()
    cache = Tools(options).cache
    kept = store.load_program(cache, known.key) if known and not reason else None
    if kept is None:
        events.info("the program cannot be packed: %s", reason or "it is not kept")
        return call
    entry = store.program_bytes(kept)
    if name is not None:
        record_entry(PackedEntry(key=name, content=entry))
    return Packed(call, entry)


def bound(entry: bytes) -> Callable[..., Any]:
    """The callable of a program's entry.  Raises ArtifactError or ValueError."""
    kept: Artifact | Kept = store.check(store.PROGRAM, entry)
    if isinstance(kept, Artifact):
        raise ArtifactError("litz: an entry of another kind")
    given = next(iter(kept[0].values())).options
    return bind_program(kept, make_options(dict(given)))
