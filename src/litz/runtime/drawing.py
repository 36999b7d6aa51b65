"""Calls that draw random numbers twice: where a checkpointed region runs, and where it runs again.

As in eager mode the second call draws what the first did, for it finds the generator as that did.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import torch

__all__ = ["DRAWS", "draw_again", "draw_and_save"]


def draw_and_save(op: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The results of an operator (``aten.native_dropout.default``), and behind them the state that
    the generator of its device had before.
    """
    states = _states(args, kwargs)
    state = states.get_rng_state()
    return *_results(op, args, kwargs), state


def draw_again(op: str, state: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The results of an operator from a state of the generator, which then goes on as it was."""
    states = _states(args, kwargs)
    before = states.get_rng_state()
    states.set_rng_state(state)
    try:
        return _results(op, args, kwargs)
    finally:
        states.set_rng_state(before)


def _states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What has the generator of the device that is asked for, else of that which tensors are on."""
    if kwargs.get("device") is not None:
        on_gpu = torch.device(kwargs["device"]).type == "cuda"
    else:
        on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in args)
    return torch.cuda if on_gpu else torch


def _results(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    found = _operator(op)(*args, **kwargs)
    return tuple(found) if isinstance(found, tuple | list) else (found,)


@lru_cache(maxsize=256)
def _operator(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


DRAWS: Final = frozenset((draw_and_save, draw_again))
"""What host programs call of these."""
