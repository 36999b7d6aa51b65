"""PyTorch's dispatcher: kernels of Litz's over ATen's own, and the private names for that."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from litz.runtime.torch_private import private

Kernel = Callable[..., Any]
"""Takes the dispatcher's key set, then the operator's arguments without trailing defaults."""


_WIDEST = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


class _Thread(threading.local):
    aten = False


thread = _Thread()
"""``thread.aten``: this thread is in ``through_aten``."""


@contextmanager
def through_aten() -> Iterator[None]:
    """Meanwhile this thread's calls run ATen's own kernels, whatever stands over them.

    So does whoever compiles: what is compiled, and its key, do not depend on it.
    """
    before, thread.aten = thread.aten, True
    try:
        yield
    finally:
        thread.aten = before


class Kernels:
    """Kernels over ATen's for one device, until they are closed.  key: "CPU" or "CUDA"."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def own(self, op: torch._ops.OpOverload) -> Kernel:
        """The kernel that is there now, to be called as one that is put over it."""
        boxed: Kernel = torch.library.get_kernel(op, self._key).call_boxed
        places = [i for i, a in enumerate(op._schema.arguments) if str(a.type) == "Tensor"]

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            numbers = [i for i in places if i < len(args) and not isinstance(args[i], Tensor)]
            if not numbers:
                return boxed(keys, *args, **kwargs)
            return _with_number(boxed, keys, args, kwargs, places, *numbers)

        return kernel

    def put(self, op: torch._ops.OpOverload, kernel: FunctionType) -> None:
        """Have ``kernel`` run instead of the one that is there, which warns of it otherwise."""
        _untraced(kernel.__code__)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            impl: Any = self._library.impl
            impl(op, kernel, self._key, with_keyset=True)

    def close(self) -> None:
        """Have ATen's kernels run again."""
        self._library._destroy()  # type: ignore[no-untyped-call]


def _with_number(
    kernel: Kernel, keys: Any, args: Any, kwargs: Any, places: Sequence[int], place: int
) -> Any:
    """What a kernel gives where a number is in a tensor's place.

    PyTorch hands it to Python as a number.  As a tensor without dimensions it has the same effect
    wherever it does not change the type of the result; there another operand is brought to that.
    """
    given, number = list(args), args[place]
    other = next(given[i] for i in places if i < len(given) and i != place)
    given[place] = torch.tensor(number, dtype=_WIDEST[type(number)], device="cpu")
    wanted = torch.result_type(other, number)
    if torch.result_type(other, given[place]) == wanted:
        return kernel(keys, *given, **kwargs)
    given = [x.to(wanted) if x is other else x for x in given]
    if other.dim():
        return kernel(keys, *given, **kwargs)
    given = [x.unsqueeze(0) if i in places and i != place else x for i, x in enumerate(given)]
    return kernel(keys, *given, **kwargs).squeeze(0)


def _untraced(code: CodeType) -> None:
    """Have Dynamo pass over the frames of a function, and over those that it calls."""
    rooms = "_C._dynamo.eval_frame"
    strategy, action, give = (
        private(rooms, name)
        for name in ("_FrameExecStrategy", "_FrameAction", "set_code_exec_strategy")
    )
    if give is not None and action is not None:  # others trace it, and find that they cannot
        give(code, strategy(action.SKIP, action.SKIP))


def operator_names() -> list[str]:
    """All operators that the dispatcher knows, as ``aten::add.Tensor``."""
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return names


def is_composite(op: torch._ops.OpOverload) -> bool:
    """Whether an operator is made of others, and has its gradient from them."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op._name, "CompositeImplicitAutograd")


def in_compile() -> bool:
    """Whether this thread is inside a compile of PyTorch's, or records a CUDA graph."""
    context, started = private("_guards.TracingContext", "try_get"), torch.cuda.is_initialized
    recording = started() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
    return recording or (context is not None and context() is not None)
