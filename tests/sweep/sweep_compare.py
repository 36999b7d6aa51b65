"""Comparing a compiled call with eager's: values, types, strides, aliases, effects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

# How far rounding alone may lead where eager happens to be exact, in units in the last place.
ULPS = 2
# The same where eager itself is the reference: both err.
ULPS_OF_EAGER = 8
EPS = {t: torch.finfo(t).eps for t in (torch.float64, torch.float32, torch.bfloat16, torch.float16)}
# Per element, relative to it and to the largest one (of 1 to 64): looser, so that one bad element
# stands out of a large norm.
ELEMENT = {torch.float64: 32, torch.float32: 32, torch.bfloat16: 4, torch.float16: 4}
WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}


def copy_input(x: Any) -> Any:
    """A leaf with the same values, strides and offset in memory of its own."""
    if not isinstance(x, torch.Tensor):
        return x
    with torch.no_grad():
        if x.layout is not torch.strided or x.is_conj() or x.is_neg():
            out = x.detach().clone()
        else:
            storage = x.untyped_storage().clone()
            out = torch.empty(0, dtype=x.dtype, device=x.device).set_(
                storage, x.storage_offset(), x.shape, x.stride()
            )
    return out.requires_grad_(x.requires_grad)


def widen(x: Any) -> Any:
    """Floating values (and names of their types) in twice the precision."""
    if isinstance(x, torch.Tensor) and x.dtype in WIDE:
        return x.detach().to(WIDE[x.dtype]).requires_grad_(x.requires_grad)
    if isinstance(x, torch.dtype):
        return WIDE.get(x, x)
    return copy_input(x)


def widen_integers(x: Any) -> Any:
    """Integers in float64."""
    if not isinstance(x, torch.Tensor) or x.dtype is torch.bool:
        return copy_input(x)
    return x.detach().double()


def agree(eager: Any, exact: Any) -> bool:
    """Whether results in float64 mean the same as eager's of integers."""
    pairs = zip(pytree.tree_leaves(eager), pytree.tree_leaves(exact), strict=False)
    return all(
        e.shape == r.shape and torch.allclose(e.double(), r.double(), 1e-3, 1e-6, equal_nan=True)
        for e, r in pairs
        if isinstance(e, torch.Tensor) and e.is_floating_point()
    )


def _real(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x.dtype.is_complex:
        if x.dtype is torch.complex32:
            x = x.to(torch.complex64)
        x = torch.view_as_real(x.resolve_conj())
    return x.resolve_neg()


def _norm_error(x: torch.Tensor, ref: torch.Tensor, where: torch.Tensor) -> float:
    top = (x[where] - ref[where]).norm().item()
    below = ref[where].norm().item()
    return top / below if below else top


def norm_errors(a: torch.Tensor, e: torch.Tensor, r: torch.Tensor) -> tuple[float, float]:
    """How far a result and eager's are from ``r``, where all three are finite."""
    x, y, z = (_real(t).cpu().double() for t in (a, e, r))
    finite = torch.isfinite(x) & torch.isfinite(y) & torch.isfinite(z)
    return _norm_error(x, z, finite), _norm_error(y, z, finite)


def _compare_floats(
    a: torch.Tensor, e: torch.Tensor, r: torch.Tensor | None, gradient: bool
) -> str:
    """Special values as eager's; the error against ``r`` at most twice eager's own.

    gradient: what is left of terms near 1 that cancel counts by its absolute error.
    """
    x, y = a.double(), e.double()
    odd = ~torch.isfinite(x) | ~torch.isfinite(y)
    wrong = odd & ~((x == y) | (torch.isnan(x) & torch.isnan(y)))
    z = y if r is None else r.double()
    if wrong.any():
        # Where eager overflowed on the way, the exact value is right too.
        if r is not None and bool(_near(x, z, a.dtype)[wrong].all()):
            odd = odd | wrong
        else:
            k = int(wrong.flatten().nonzero()[0])
            return f"{x.flatten()[k].item()} instead of {y.flatten()[k].item()} at {k}"
    finite = ~odd & torch.isfinite(z)
    if not finite.any():
        return ""
    mine, theirs = _norm_error(x, z, finite), _norm_error(y, z, finite)
    floor = EPS[a.dtype] * (ULPS_OF_EAGER if r is None else ULPS)
    limit = 2 * theirs + floor
    small = gradient and float((x - z)[finite].abs().max()) <= 4 * floor
    if not (mine <= limit or small or math.isnan(mine)):
        return f"error {mine:.2e}, eager's {theirs:.2e}"
    slack = 2 * (y - z).abs().nan_to_num(0.0, 0.0, 0.0)
    off = finite & ~_near(x, y, a.dtype) & ~_near(x, z, a.dtype, slack)
    if off.any():
        k = int(off.flatten().nonzero()[0])
        return f"{x.flatten()[k].item()} instead of {y.flatten()[k].item()} at {k}"
    return ""


def _near(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype, slack: Any = 0.0) -> torch.Tensor:
    tolerance = ELEMENT[dtype] * EPS[dtype]
    finite = y[torch.isfinite(y)]
    largest = min(max(1.0, float(finite.abs().max())), 64.0) if finite.numel() else 1.0
    return (
        (x == y)
        | (torch.isnan(x) & torch.isnan(y))
        | ((x - y).abs() <= tolerance * (y.abs() + largest) / 2 + slack)
    )


def layout_difference(a: torch.Tensor, e: torch.Tensor) -> str:
    """Type, shape, layout, device, strides of dimensions that have several elements."""
    for what in ("dtype", "shape", "layout", "device", "requires_grad"):
        if getattr(a, what) != getattr(e, what):
            return f"{what} {getattr(a, what)} instead of {getattr(e, what)}"
    if e.layout is not torch.strided:
        return ""
    if a.is_conj() != e.is_conj() or a.is_neg() != e.is_neg():
        return "a conjugate or negative bit"
    pairs = [(p, q) for p, q, s in zip(a.stride(), e.stride(), e.shape, strict=True) if s > 1]
    if e.numel() and any(p != q for p, q in pairs):
        return f"strides {a.stride()} instead of {e.stride()}"
    return ""


def value_difference(a: torch.Tensor, e: torch.Tensor, r: Any, gradient: bool = False) -> str:
    if e.is_quantized or e.numel() == 0 and e.layout is torch.strided:
        return ""
    if e.dtype.is_complex or e.dtype.is_floating_point:
        # On a GPU the many small steps below would take longer than what they compare.
        p, q = _real(a).cpu(), _real(e).cpu()
        s = _real(r).cpu() if isinstance(r, torch.Tensor) and r.shape == e.shape else None
        if s is not None and (s.shape != q.shape or s.dtype is not torch.float64):
            s = None
        if q.dtype not in EPS:
            p, q, s = p.float(), q.float(), None
        return _compare_floats(p, q, s, gradient)
    p, q = _real(a).cpu(), _real(e).cpu()
    if torch.equal(p, q):
        return ""
    k = int((p != q).flatten().nonzero()[0])
    return f"{p.flatten()[k].item()} instead of {q.flatten()[k].item()} at {k}"


def difference(
    actual: Any, eager: Any, ref: Any = None, *, values: bool = True, gradient: bool = False
) -> str:
    """What distinguishes two results (trees of tensors and numbers); empty where nothing does."""
    flat, spec = pytree.tree_flatten(actual)
    flat_e, spec_e = pytree.tree_flatten(eager)
    if spec != spec_e:
        return f"structure {spec} instead of {spec_e}"
    flat_r = pytree.tree_leaves(ref) if ref is not None else []
    if len(flat_r) != len(flat):
        flat_r = [None] * len(flat)
    for k, (a, e, r) in enumerate(zip(flat, flat_e, flat_r, strict=True)):
        if not isinstance(e, torch.Tensor):
            if type(a) is not type(e) or (values and not _same_number(a, e)):
                return f"result {k}: {a!r} instead of {e!r}"
            continue
        if not isinstance(a, torch.Tensor):
            return f"result {k}: a {type(a).__name__} instead of a tensor"
        found = layout_difference(a, e)
        if not found and values:
            found = value_difference(a, e, r, gradient)
        if found:
            return f"result {k}: {found}"
    return ""


def _same_number(a: Any, e: Any) -> bool:
    if isinstance(a, float):
        return math.isclose(a, e, rel_tol=1e-6) or (math.isnan(a) and math.isnan(e)) or a == e
    return bool(a == e)


def _storage(x: Any) -> int:
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or not x.numel():
        return 0
    try:
        return int(x.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def aliases(
    outs: Sequence[Any], inputs: Sequence[Sequence[Any]]
) -> list[list[tuple[int, bool, int]]]:
    """For each result of each case: the first tensor of all, inputs before results, in whose memory
    it lies (-1: its own), whether it is that tensor, and its offset there."""
    table: dict[int, tuple[int, Any]] = {}
    count = 0
    for x in (x for case in inputs for x in case):
        if place := _storage(x):
            table.setdefault(place, (count, x))
        count += 1
    found = []
    for case in outs:
        rows = []
        for r in pytree.tree_leaves(case):
            place = _storage(r)
            k, x = table.setdefault(place, (count, r)) if place else (count, r)
            shared = k != count
            rows.append((k, r is x, int(r.storage_offset())) if shared else (-1, False, 0))
            count += 1
        found.append(rows)
    return found
