"""Steps of PyTorch's optimizers on a GPU that is not there: the launches that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

pytest.importorskip("triton.language")

from traces import Trace, data, trace  # noqa: E402

from tests.quick import some  # noqa: E402

O = torch.optim  # noqa: E741
CAPTURABLE = {"capturable": True}
SHAPES = [(64, 48), (96, 32), (33,), (129,), (8, 3, 5), (1,)]
CASES: dict[str, tuple[Any, Mapping[str, Any]]] = {
    "adam": (O.Adam, {**CAPTURABLE, "maximize": True}),
    "adamw": (O.AdamW, CAPTURABLE),
    "amsgrad": (O.AdamW, {**CAPTURABLE, "amsgrad": True}),
    "sgd": (O.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "rmsprop": (O.RMSprop, {**CAPTURABLE, "centered": True, "momentum": 0.9}),
    "adagrad": (O.Adagrad, {"lr_decay": 0.1}),
    "adadelta": (O.Adadelta, {**CAPTURABLE, "weight_decay": 0.1}),
    "nadam": (O.NAdam, CAPTURABLE),
    "radam": (O.RAdam, CAPTURABLE),
    "adamax": (O.Adamax, CAPTURABLE),
    "asgd": (O.ASGD, CAPTURABLE),
    "rprop": (O.Rprop, CAPTURABLE),
}


def launches(made: Trace) -> int:
    """Kernels that run on the device, those of operators not counted."""
    assert made.stages.host is not None
    kernels = {k.name: k.triton for k in made.stages.kernels}
    calls = (kernels[c.kernel] for c in made.stages.host.kernel_calls())
    return sum(len(k.launches) for k in calls if k is not None)


def stepping(
    kind: Any, shapes: Sequence[tuple[int, ...]], how: Mapping[str, Any]
) -> Callable[[], Callable[[], Any]]:
    """What makes an optimizer with state, and gives its step."""

    def make() -> Callable[[], Any]:
        params = [nn.Parameter(torch.empty(s)) for s in shapes]
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer = kind(params, **how)
        if kind is not O.Adagrad:  # it has its state already, with steps on the CPU
            optimizer.step()
        step: Callable[[], Any] = optimizer.step
        return step

    return make


@pytest.mark.parametrize("name", some(CASES, 2))
def test_few_launches_however_many_tensors(name: str) -> None:
    kind, how = CASES[name]
    with mock.patch("torch.cuda._lazy_init"):  # Dynamo moves steps to the GPU
        (made,) = trace(stepping(kind, SHAPES, how), model=True, training=False, fullgraph=False)
    assert launches(made) <= 3 and not made.stages.externs()


def test_muon_between_its_products() -> None:
    """What stands before the products of all matrices is done for several of them at once."""
    shapes = [(64, 48), (48, 64)] * 5
    (made,) = trace(stepping(O.Muon, shapes, {"ns_steps": 1}), model=True, training=False)
    assert made.stages.schedule is not None
    assert [len(x.groups) for x in made.stages.schedule.horizontal] == [len(shapes)]
    assert launches(made) <= len(shapes) + 3  # the last product of each takes the update in


def clip(*grads: torch.Tensor) -> None:
    """``clip_grad_norm_``, but for its look at what the norm is."""
    norms = torch._foreach_norm(list(grads), 2.0)
    total = torch.linalg.vector_norm(torch.stack(norms), 2.0)
    torch._foreach_mul_(list(grads), torch.clamp(1.0 / (total + 1e-6), max=1.0))


@pytest.mark.parametrize("alike", [True, False])
def test_gradients_are_clipped_in_few_launches(alike: bool) -> None:
    """Norms of any size share a body: parts of all, what adds them up, the norm, the products.

    Equal tensors that one factor multiplies are no kernel of all either, but one launch.
    """
    shapes = [(1024, 64 if alike else 64 + k) for k in range(12)]
    (made,) = trace(clip, *(data(*s) for s in shapes), training=False)
    assert launches(made) <= 4 and made.stages.schedule is not None
    assert all(len(g.write_buffers()) == 1 for g in made.stages.schedule.steps)
