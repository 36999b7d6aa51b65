"""Folding small subgraphs that no input reaches.

A folded value is what ATen computes, once, while compiling.  Where all of its elements are the same
bits it becomes ``full``, which kernels take as an immediate; a matrix product, or what tensor
constants went into, becomes a tensor constant.  What else is computed from indices alone (masks of
``arange``) stays: a kernel makes it faster than it loads it.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from litz.graph.aliasing import leaves, shares_memory, written
from litz.graph.calls import is_random
from litz.graph.values import attribute_value

aten = torch.ops.aten
LIMIT = 4096
"""Elements of a value that is worth a look."""

MAKERS = frozenset({
    aten.full.default, aten.zeros.default, aten.ones.default, aten.scalar_tensor.default,
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.eye.default,
    aten.linspace.default,
})  # fmt: skip
PRODUCTS = frozenset({
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.dot.default,
    aten.mv.default, aten.addmv.default,
})  # fmt: skip
LIFTS = (aten.lift_fresh_copy.default, aten.lift_fresh.default)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fold_constants(gm: GraphModule) -> bool:
    """Replace small values that depend on no input; True where there was one."""
    constant = _constant_nodes(gm)
    wanted = [n for n in constant if _is_worth(n, constant)]
    if not wanted:
        return False
    touched = written(gm)
    values: dict[Node, torch.Tensor | None] = {}
    changed = False
    for n in wanted:
        if n not in touched and not leaves(n):
            value = _evaluate(gm, n, values)
            tensors = constant[n] or n.target in PRODUCTS
            changed |= value is not None and _replace(gm, n, value, from_tensors=tensors)
    return changed


def _constant_nodes(gm: GraphModule) -> dict[Node, bool]:
    """Values that no input reaches; True for those that tensor constants go into."""
    found: dict[Node, bool] = {}
    for n in gm.graph.nodes:
        if n.op == "get_attr":
            if _is_small(n) and is_literal(n):
                found[n] = True
        elif n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload):
            inputs = n.all_input_nodes
            known = n.target in MAKERS if not inputs else all(a in found for a in inputs)
            if known and _is_small(n) and _is_pure(n.target):
                found[n] = any(found[a] for a in inputs)
    return found


def _is_small(n: Node) -> bool:
    val = n.meta.get("val")
    return (
        isinstance(val, torch.Tensor)
        and val.device.type == "cpu"
        and val.layout is torch.strided
        and all(type(s) is int for s in val.shape)
        and 0 < val.numel() <= LIMIT
        and not val.is_complex()
        and not val.is_quantized
    )


def is_literal(n: Node) -> bool:
    """Whether a tensor constant was written down in the code, so that nobody can change it."""
    return all(u.target in LIFTS for u in n.users)


def _is_pure(target: torch._ops.OpOverload) -> bool:
    schema = target._schema
    return target.namespace == "aten" and not (
        is_random(target) or schema.is_mutable or "empty" in schema.name
    )


def _is_worth(n: Node, constant: dict[Node, bool]) -> bool:
    """A computed value that something reads which is no constant itself."""
    if n.op != "call_function" or n.target in MAKERS or shares_memory(n):
        return False
    return any(u not in constant for u in n.users)


def _evaluate(
    gm: GraphModule, n: Node, values: dict[Node, torch.Tensor | None]
) -> torch.Tensor | None:
    """What ATen makes of a constant node; None where it refuses, or makes something else."""
    if n not in values:
        known = {a: _evaluate(gm, a, values) for a in n.all_input_nodes}
        values[n] = None
        if all(v is not None for v in known.values()):
            values[n] = _run(gm, n, known)
    return values[n]


def _run(gm: GraphModule, n: Node, known: dict[Node, torch.Tensor | None]) -> torch.Tensor | None:
    val = n.meta["val"]
    try:
        if n.op == "get_attr":
            result = attribute_value(gm, n)
        else:
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), known.__getitem__)
            assert callable(n.target)
            with torch.no_grad():
                result = n.target(*args, **kwargs)
    except Exception:
        return None  # it raises when the graph runs, as in eager
    plain = type(result) is torch.Tensor and result.device.type == "cpu"
    if not plain or result.dtype is not val.dtype or result.shape != val.shape:
        return None
    return result if result.stride() == val.stride() else None


def _replace(gm: GraphModule, n: Node, value: torch.Tensor | None, *, from_tensors: bool) -> bool:
    assert value is not None
    new = _as_full(n, value)
    if new is None and from_tensors:
        name = f"_litz_constant_{n.name}"
        gm.register_buffer(name, value.detach().clone(memory_format=torch.preserve_format))
        with gm.graph.inserting_before(n):
            new = gm.graph.get_attr(name)
    if new is None:
        return False
    new.meta.update(n.meta)
    n.replace_all_uses_with(new)
    gm.graph.erase_node(n)
    return True


def _as_full(n: Node, value: torch.Tensor) -> Node | None:
    """A call of ``full`` in front of ``n``, where it makes the same bits."""
    if not value.is_contiguous() or value.element_size() not in _BITS:
        return None
    number = value.flatten()[0].item()
    again = torch.full(value.shape, number, dtype=value.dtype, device=value.device)
    bits = _BITS[value.element_size()]
    if not torch.equal(value.view(bits), again.view(bits)):
        return None
    with n.graph.inserting_before(n):
        return n.graph.call_function(
            aten.full.default,
            (list(value.shape), number),
            {
                "dtype": value.dtype,
                "layout": torch.strided,
                "device": value.device,
                "pin_memory": False,
            },
        )
