"""Judging compiled results against eager and against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

# What rounding alone may cost where eager happens to be exact: a few units in the last place.
FLOOR = {
    torch.float64: 1e-14,
    torch.float32: 2e-6,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}


def widen(value: Any) -> Any:
    """Floating tensors (and modules) in float64; everything else as it is."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def error(a: torch.Tensor, ref: torch.Tensor) -> float:
    """Relative error ``|a - ref| / |ref|`` over finite elements; inf where specials differ."""
    x, y = a.detach().double(), ref.detach().double()
    odd = ~torch.isfinite(x) | ~torch.isfinite(y)
    if odd.any():
        same = (x == y) | (torch.isnan(x) & torch.isnan(y))
        if not bool(same[odd].all()):
            return float("inf")
        x, y = x[~odd], y[~odd]
    if x.numel() == 0:
        return 0.0
    top = (x - y).norm().item()
    below = y.norm().item()
    return top / below if below else top


def assert_close(actual: Any, eager: Any, ref: Any = None) -> None:
    """Structure, dtype, shape and strides as eager's; error at most twice eager's own."""
    flat, spec = pytree.tree_flatten(actual)
    flat_eager, spec_eager = pytree.tree_flatten(eager)
    assert spec == spec_eager, f"structure {spec} instead of {spec_eager}"
    flat_ref = pytree.tree_leaves(ref) if ref is not None else [None] * len(flat)
    for k, (a, e, r) in enumerate(zip(flat, flat_eager, flat_ref, strict=True)):
        if not isinstance(e, torch.Tensor):
            assert a == e, f"result {k}: {a} instead of {e}"
            continue
        assert a.dtype == e.dtype, f"result {k}: {a.dtype} instead of {e.dtype}"
        assert a.shape == e.shape, f"result {k}: {a.shape} instead of {e.shape}"
        layout = zip(a.stride(), e.stride(), e.shape, strict=True)
        strides = [(p, q) for p, q, s in layout if s > 1]
        assert all(p == q for p, q in strides) or e.numel() == 0, (
            f"result {k}: strides {a.stride()} instead of {e.stride()}"
        )
        if not e.dtype.is_floating_point:
            assert torch.equal(a, e), f"result {k} differs"
            continue
        exact = e if r is None else r
        mine, theirs = error(a, exact), error(e, exact)
        limit = 2 * theirs + FLOOR[e.dtype] * (1.0 if r is None else 0.5)
        assert mine <= limit, f"result {k}: error {mine:.3e}, eager's {theirs:.3e}"


def clone(value: Any) -> Any:
    return pytree.tree_map(
        lambda t: (
            t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
        ),
        value,
    )


def check(
    fn: Callable[..., Any],
    *args: Any,
    grad: bool = False,
    judge: bool = True,
    runs: int = 2,
    dynamic: bool | None = None,
    others: Sequence[tuple[Any, ...]] = (),
    **options: Any,
) -> None:
    """Run ``fn`` eagerly and compiled on copies of ``args``; compare results, inputs, gradients.

    others: further arguments for what is compiled once.
    judge: measure errors against float64 (off for functions that name dtypes).
    """
    torch._dynamo.reset()
    compiled = torch.compile(
        fn, backend="litz", dynamic=dynamic, options={"check_ir": True, **options}, fullgraph=True
    )
    for given in [args, *others] * runs:
        e_args, c_args = clone(given), clone(given)
        eager, actual = fn(*e_args), compiled(*c_args)
        ref = None
        if judge:
            ref = widen(fn) if isinstance(fn, torch.nn.Module) else fn
            ref = ref(*[widen(a) for a in clone(given)])
        assert_close(actual, eager, ref)
        assert_close(list(c_args), list(e_args))
        if grad:
            _check_gradients(eager, actual, e_args, c_args)


def _check_gradients(eager: Any, actual: Any, e_args: Any, c_args: Any) -> None:
    for result in (eager, actual):
        total = sum(
            (t.float() * torch.linspace(0.5, 1.5, t.numel()).view_as(t)).sum()
            for t in pytree.tree_leaves(result)
            if isinstance(t, torch.Tensor) and t.requires_grad
        )
        total.backward()
    for e, c in zip(pytree.tree_leaves(e_args), pytree.tree_leaves(c_args), strict=True):
        if isinstance(e, torch.Tensor) and e.grad is not None:
            assert_close(c.grad, e.grad)
