"""Metadata of what is copied into traced graphs: tensors in memory of their own."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from litz.runtime.fake import FakeTensor, FakeTensorMode
from litz.runtime.torch_private import address, another_fake


class Maker(Protocol):
    """What ``Fakes.like`` gives."""

    def __call__(self, storage: torch.UntypedStorage | None, moved: int = 0) -> FakeTensor: ...


class Memory:
    """Metadata for a copy of a trace: memory of its own, shared where the trace shares it.

    made: of tensors that are known.  storages: of the trace's by address, with what to add to
    positions in it.  fakes: makes copies; several share it that copy one trace.
    """

    def __init__(self, fakes: Fakes | None = None) -> None:
        self.fakes = fakes or Fakes()
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
            self.made[id(x)] = made = self.fakes.like(x)(storage, moved)
            self.storages.setdefault(at, (made.untyped_storage(), 0))
        return self.made[id(x)]


class Fakes:
    """Makes fake tensors like others in memory of their own, quicker than PyTorch does.

    mode: theirs, where it is another one.  states: attributes of new ones, by mode and device.
    makers: of what has been asked for, by identity.
    """

    def __init__(self, mode: FakeTensorMode | None = None) -> None:
        self.mode = mode
        self.makers: dict[int, tuple[FakeTensor, Maker]] = {}
        self.states: dict[tuple[FakeTensorMode, torch.device], dict[str, Any]] = {}

    def like(self, x: FakeTensor) -> Maker:
        """Makes tensors like ``x``, in new memory of the same size unless it is given some, and in
        what is given so many elements farther."""
        if (known := self.makers.get(id(x))) is not None:
            return known[1]
        mode, device = self.mode or x.fake_mode, x.device
        size, stride, offset, dtype = x.shape, x.stride(), x.storage_offset(), x.dtype
        nbytes = x.untyped_storage().nbytes()
        if (state := self.states.get((mode, device))) is None:
            empty = torch.empty(0, dtype=dtype, device="meta")
            state = dict(vars(FakeTensor(mode, empty, device)))
            self.states[mode, device] = state

        view = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        alone = not offset and view.untyped_storage().nbytes() == nbytes

        def make(storage: torch.UntypedStorage | None, moved: int = 0) -> FakeTensor:
            if storage is None:
                if alone:
                    view = torch.empty_strided(size, stride, dtype=dtype, device="meta")
                    return another_fake(FakeTensor, view, device, state)
                # Memory of another size than its first tensor's has room for more.
                room = torch.empty(nbytes, dtype=torch.uint8, device="meta")
                storage = room.untyped_storage()
            empty = torch.empty(0, dtype=dtype, device="meta")
            view = empty.set_(storage, offset + moved, size, stride)
            return another_fake(FakeTensor, view, device, state)

        self.makers[id(x)] = x, make
        return make
