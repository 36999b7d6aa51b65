"""Metadata of what is copied into traced graphs: tensors in memory of their own."""

from __future__ import annotations

from typing import Any

import torch

from litz.runtime.fake import FakeTensor, FakeTensorMode
from litz.runtime.torch_private import address


class Memory:
    """Metadata for a copy of a trace: memory of its own, shared where the trace shares it.

    made: of tensors that are known.  storages: of the trace's by address, with what to add to
    positions in it.  mode: of copies, where it is another one than the trace's.
    """

    def __init__(self, mode: FakeTensorMode | None = None) -> None:
        self.mode = mode
        self.made: dict[int, torch.Tensor] = {}
        self.storages: dict[int, tuple[torch.UntypedStorage, int]] = {}

    def note(self, old: Any, new: Any) -> None:
        """Say that one stands for another, tuples of tensors too."""
        if isinstance(old, tuple | list):
            for a, b in zip(old, new, strict=True):
                self.note(a, b)
        elif isinstance(old, torch.Tensor):
            self.made[id(old)] = new
            moved = new.storage_offset() - old.storage_offset()
            self.storages.setdefault(address(old), (new.untyped_storage(), moved))

    def moved(self, x: Any) -> Any:
        """Metadata of what isn't copied itself, and may share memory with what is known."""
        if isinstance(x, tuple | list):
            return type(x)(map(self.moved, x))
        known = isinstance(x, FakeTensor) and address(x) in self.storages
        return self(x) if known else x

    def __call__(self, x: Any) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(map(self, x))
        if not isinstance(x, FakeTensor):
            return x
        if id(x) not in self.made:
            at = address(x)
            storage, moved = self.storages.get(at, (None, 0))
            self.made[id(x)] = made = laid_out(x, storage, moved, self.mode)
            self.storages.setdefault(at, (made.untyped_storage(), 0))
        return self.made[id(x)]


def laid_out(
    x: FakeTensor,
    storage: torch.UntypedStorage | None,
    moved: int = 0,
    mode: FakeTensorMode | None = None,
) -> FakeTensor:
    """A tensor like ``x``, in memory of its own of the same size unless it is given."""
    if storage is None:
        view = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        nbytes = x.untyped_storage().nbytes()
        if not x.storage_offset() and view.untyped_storage().nbytes() == nbytes:
            return FakeTensor(mode or x.fake_mode, view, x.device)
        # Memory of another size than its first tensor's has room for more.
        storage = torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
    empty = torch.empty(0, dtype=x.dtype, device="meta")
    view = empty.set_(storage, x.storage_offset() + moved, x.shape, x.stride())
    return FakeTensor(mode or x.fake_mode, view, x.device)
