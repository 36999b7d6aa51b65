"""Every private name of PyTorch that the runtime uses, each with a public way to do the same.

The private ones are quicker; nothing depends on them for its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

__all__ = [
    "AotNames",
    "aot_names",
    "bundled_entries",
    "current_raw_stream",
    "empty_strided_cpu",
    "is_zero_tensor",
    "reinterpret",
    "storage_address",
    "storage_use_count",
]


class _EmptyStrided(Protocol):
    def __call__(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, /
    ) -> torch.Tensor: ...


class _Reinterpret(Protocol):
    def __call__(
        self, base: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int, /
    ) -> torch.Tensor: ...


def public_empty_strided_cpu(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, /
) -> torch.Tensor:
    """A new CPU tensor with undefined values."""
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu")


def public_reinterpret(
    base: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int, /
) -> torch.Tensor:
    """The tensor of that size and stride that starts `offset` elements behind `base`'s first."""
    return torch.as_strided(base, size, stride, base.storage_offset() + offset)


def public_current_raw_stream(device: int, /) -> int:
    """The handle of the current CUDA stream of a device, by its index."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def _private(path: str, name: str) -> Any:
    """A private name, or None where this version of PyTorch has none."""
    place: Any = torch
    for part in path.split("."):
        place = getattr(place, part, None)
    return getattr(place, name, None)


empty_strided_cpu: _EmptyStrided = (
    _private("_C._dynamo.guards", "_empty_strided_cpu") or public_empty_strided_cpu
)
reinterpret: _Reinterpret = (
    _private("_C._dynamo.guards", "_reinterpret_tensor") or public_reinterpret
)
current_raw_stream: Callable[[int], int] = (
    _private("_C", "_cuda_getCurrentRawStream") or public_current_raw_stream
)
storage_use_count: Callable[[int], int] | None = _private("_C", "_storage_Use_Count")
"""How many references a storage has, given its `_cdata`; the Python object counts as one.  There is
no public equal: None makes the allocator hand out plain tensors."""


def storage_address(storage: torch.UntypedStorage) -> int:
    """What `storage_use_count` takes."""
    return int(storage._cdata)


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors, fake ones too, lie in one storage."""
    return storage_address(a.untyped_storage()) == storage_address(b.untyped_storage())


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is zero everywhere by what it is, without memory."""
    return tensor._is_zerotensor()


@dataclass(frozen=True)
class AotNames:
    """What keeps a graph ahead of AOTAutograd: PyTorch's record of all that it made of one.

    cache, key: the module that keeps records, and its function for a graph's key.
    code: the class of compiled graphs that records may have.  compiler: marks what makes them.
    bypass: raised to keep a record from PyTorch's own cache.  check: raises for a graph whose
    functions may do something else another time.  config, counter: AOTAutograd's.
    """

    cache: Any
    key: str
    code: type
    compiler: Callable[..., Any]
    bypass: type[Exception]
    check: Callable[[Any], None]
    config: Any
    counter: Any
    context: Any
    tracing: Callable[[Any], Any]
    compile_context: Any
    compiling: Callable[[Any], Any]


def aot_names() -> AotNames | None:
    """AOTAutograd's names; None where this version of PyTorch has others.

    Without them graphs are found behind AOTAutograd alone.
    """
    try:
        from torch import _guards
        from torch._functorch import aot_autograd, config
        from torch._functorch._aot_autograd import aot_autograd_result, autograd_cache

        if not callable(autograd_cache.autograd_cache_key):
            return None
        return AotNames(
            autograd_cache,
            "autograd_cache_key",
            aot_autograd_result.OutputCode,  # type: ignore[attr-defined]
            aot_autograd.SerializableAOTDispatchCompiler,  # type: ignore[attr-defined]
            autograd_cache.BypassAOTAutogradCache,
            autograd_cache.check_cacheable,
            config,
            aot_autograd.AOT_COUNTER,
            _guards.TracingContext,
            _guards.tracing,
            _guards.CompileContext,
            _guards.compile_context,
        )
    except (ImportError, AttributeError):
        return None


def bundled_entries(
    kind: str, arrived: Callable[[str, bytes], None]
) -> Callable[[str, bytes], None] | None:
    """What puts a cache's entry, its name and bytes, into `torch.compiler.save_cache_artifacts`.

    kind: names this cache among others.  arrived: told of the entries that `load_cache_artifacts`
    finds in a bundle.  None where this version of PyTorch lets no other cache take part.
    """
    try:
        from torch.compiler import _cache

        class Entry(_cache.CacheArtifact):
            def populate_cache(self) -> None:
                arrived(self.key, self.content)

            @staticmethod
            def type() -> str:
                return kind

        _cache.CacheArtifactFactory.register(Entry)
        manager = _cache.CacheArtifactManager
        if not callable(manager.record_artifact):
            return None
    except (ImportError, AttributeError, TypeError, AssertionError):
        return None

    def record(name: str, content: bytes) -> None:
        manager.record_artifact(kind, name, content)

    return record
