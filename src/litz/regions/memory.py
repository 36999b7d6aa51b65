"""Metadata of what is copied into traced graphs: tensors in memory of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import is_tensor

from litz.runtime.fake import FakeTensor, FakeTensorMode
from litz.runtime.torch_private import NOTED, address, another_fake

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]
"""What a tensor is made of again: sizes, strides, type and device."""


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
        state = self._state(mode, device)
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

    def empty(self, mode: FakeTensorMode, of: Layout) -> FakeTensor:
        """A tensor that lies so, in memory of its own."""
        size, stride, dtype, device = of
        memory = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        return another_fake(FakeTensor, memory, device, self._state(mode, device))

    def _state(self, mode: FakeTensorMode, device: torch.device) -> dict[str, Any]:
        if (state := self.states.get((mode, device))) is None:
            empty = torch.empty(0, device="meta")
            state = self.states[mode, device] = dict(vars(FakeTensor(mode, empty, device)))
        return state


def as_traced(given: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
    """A program's inputs, parameters as AOTAutograd would make them before it traces, in a tenth of
    its time.  Others, and those with a trait that it may carry over, are left to it.

    mode: of its trace.  Sizes are not open.
    """
    plain = all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in given if is_tensor(x))
    if not plain or any(x.layout is not torch.strided for x in given if is_tensor(x)):
        return [*given]
    owners = Counter(address(x) for x in given if is_tensor(x))
    fakes = Fakes()

    def made(x: Any) -> Any:
        if type(x) is not torch.nn.Parameter or vars(x).keys() - NOTED or owners[address(x)] > 1:
            return x
        odd = x._is_view() or x.is_conj() or x.is_neg() or x.is_inference() or x.is_quantized
        if odd or not x.is_leaf or x.grad is not None or x.storage_offset():
            return x
        if x.requires_grad and getattr(x, "grad_dtype", x.dtype) != x.dtype:
            return x
        fake: Any = fakes.empty(mode, (tuple(x.shape), x.stride(), x.dtype, x.device))
        if fake.untyped_storage().nbytes() != x.untyped_storage().nbytes():
            return x
        fake._is_param = True
        return fake.requires_grad_(x.requires_grad)

    return [*map(made, given)]
