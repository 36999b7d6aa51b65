"""Backward passes of several gradients at once, as ``torch.autograd.grad`` has them run for
``is_grads_batched`` and ``torch.autograd.functional`` for ``vectorize``.

The gradients are then batched tensors, of one element to whom asks for their shape, and without
memory.  A compiled backward graph runs for each of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from litz.runtime.torch_private import batch, is_batched, unbatched

_LEVELS = range(64, 0, -1)


def one_by_one(call: Callable[[list[Any]], Sequence[Any]], args: list[Any]) -> Sequence[Any]:
    """What ``call`` returns for arguments of which some may be batched; empties ``args``."""
    own = list(args)
    args.clear()
    batched = [i for i, x in enumerate(own) if isinstance(x, Tensor) and is_batched(x)]
    for level in _LEVELS if batched else ():
        # No tensor says its levels: in one that is not its own it becomes as long as is asked for.
        parts = {i: unbatched(own[i], level) for i in batched}
        parts = {i: x for i, x in parts.items() if len(x)}
        if parts:
            break
    else:
        return call(own)
    results = []
    for elements in zip(*(x.unbind() for x in parts.values()), strict=True):
        given = list(own)
        for i, x in zip(parts, elements, strict=True):
            given[i] = x
        results.append(one_by_one(call, given))
    return tuple(_batch(x, level) for x in zip(*results, strict=True))


def _batch(results: Sequence[Any], level: int) -> Any:
    if not isinstance(results[0], Tensor):
        return results[0]
    return batch(torch.stack(list(results)), level)
