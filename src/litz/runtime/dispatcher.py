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

from litz.runtime.torch_private import has_kernel_of_litz, private

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
        """ATen's kernel, to be called as one that is put over it.

        Raises LookupError where there is none, or one of Litz's stands over it already.
        """
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(op._name, self._key):
            raise LookupError(f"{op._name} has no kernel for {self._key}")
        if has_kernel_of_litz(op._name, self._key):
            raise LookupError(f"{op._name} is compiled for {self._key} already: close that first")
        boxed: Kernel = torch.library.get_kernel(op, self._key).call_boxed
        kinds = [str(a.type) for a in op._schema.arguments]
        places = [i for i, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]")]

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            numbers = [i for i in places if i < len(args) and type(args[i]) in _WIDEST]
            if not numbers:
                return boxed(keys, *args, **kwargs)
            return _with_numbers(boxed, keys, args, kwargs, places, numbers)

        return kernel

    def put(self, op: torch._ops.OpOverload, kernel: FunctionType) -> None:
        """Have ``kernel`` run instead of the one that is there, which warns of it otherwise.

        The dispatcher holds what it calls: so it stays until it is closed, whoever forgets this.
        """
        kernel.__dict__["library"] = self._library
        _untraced(kernel.__code__)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            impl: Any = self._library.impl
            impl(op, kernel, self._key, with_keyset=True)

    def close(self) -> None:
        """Have ATen's kernels run again."""
        self._library._destroy()  # type: ignore[no-untyped-call]


def _with_numbers(
    kernel: Kernel, keys: Any, args: Any, kwargs: Any, places: Sequence[int], numbers: Sequence[int]
) -> Any:
    """What a kernel gives where numbers are in tensors' places.

    PyTorch hands them to Python as numbers.  As a tensor without dimensions one has the same effect
    wherever that does not change the type of the result; there another operand is brought to that.
    """
    given = list(args)
    other = next((x for x in (args[i] for i in places if i < len(args)) if _is_tensor(x)), None)
    if other is None or len(numbers) > 1:
        for i in numbers:
            wanted = torch.result_type(args[i] if other is None else other, args[i])
            given[i] = torch.tensor(args[i], dtype=wanted, device="cpu")
        return kernel(keys, *given, **kwargs)
    (place,) = numbers
    wanted = torch.result_type(other, args[place])
    given[place] = torch.tensor(args[place], dtype=_WIDEST[type(args[place])], device="cpu")
    if torch.result_type(other, given[place]) == wanted:
        return kernel(keys, *given, **kwargs)
    given = [x.to(wanted) if x is other else x for x in given]
    if other.dim():
        return kernel(keys, *given, **kwargs)
    given = [x.unsqueeze(0) if _is_tensor(x) and i != place else x for i, x in enumerate(given)]
    return kernel(keys, *given, **kwargs).squeeze(0)


def _is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


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


def is_composite(op: torch._ops.OpOverload, key: str) -> bool:
    """Whether an operator is made of others, and has its gradient from them, on a device."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(op._name, "CompositeImplicitAutograd") and not has(op._name, key)


def in_compile() -> bool:
    """Whether this thread is inside a compile of PyTorch's, or records a CUDA graph."""
    context, started = private("_guards.TracingContext", "try_get"), torch.cuda.is_initialized
    recording = started() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
    return recording or (context is not None and context() is not None)
