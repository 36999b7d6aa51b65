"""``associative_scan``: running states by a function of the program's, in one nest.

A function may be a scan's if it gives each element of a state from the same elements of two: then
it is nodes over ``Given``.  Any other, and one that captures tensors, stays the operator's, which
computes it step by step.  16-bit floats are combined in f32, and each result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule
from torch.fx import Node as FxNode

from litz.graph.calls import higher_order_name
from litz.graph.dialect import ASSOCIATIVE
from litz.graph.values import attribute_value
from litz.index import contiguous_strides, linear, var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Load, Node, Op, Rewriter, Store, walk
from litz.ir.dtype import DType
from litz.ir.reductions import FUNCTION
from litz.ir.scans import function_faults
from litz.lowering.context import Unsupported
from litz.lowering.state import GraphLowering
from litz.lowering.strides import result_strides
from litz.lowering.values import ONE, ZERO, Opaque, TensorValue, axes

Inline = Callable[[GraphModule, Sequence[Any]], list[Any]]
GIVEN = "~given"  # stands for the memory of a function's argument


def lower_associative_scan(low: GraphLowering, n: FxNode, inline: Inline) -> Any:
    """The results, None for those that nobody reads; None where the operator has to compute it."""
    if higher_order_name(n.target) != ASSOCIATIVE:
        return None
    mark = len(low.b.nodes)
    try:
        return _lowered(low, n, inline)
    except Unsupported as e:
        low.b.roll_back(mark)
        low.declined[n] = str(e)
        return None


def _lowered(low: GraphLowering, n: FxNode, inline: Inline) -> Any:
    function, operands, captured = n.args
    assert isinstance(function, FxNode)
    numbers = low.map(tuple(captured))  # type: ignore[arg-type]
    if any(isinstance(v, TensorValue | Opaque) for v in numbers):
        raise Unsupported("a function that captures tensors")
    vals: Any = n.meta["val"]
    xs, results = low.map(tuple(operands)), [low.result(v) for v in vals]  # type: ignore[arg-type]
    if not all(isinstance(x, TensorValue) for x in xs) or None in results:
        raise Unsupported("an argument of a type that only ATen handles")
    shape = xs[0].shape
    if any(x.shape != shape or x.device != xs[0].device for x in xs):
        raise Unsupported("states whose parts differ in shape or device")
    if shape[0] is ONE or ZERO in shape:
        return tuple(x.without_memory() for x in xs)
    module: Any = attribute_value(low.gm, function)
    one = TensorValue(xs[0].dtype, shape[1:], xs[0].device, lazy=xs[0].node)
    combine = _combined(low, module, [x.dtype for x in xs], one, numbers, inline)
    own, over = axes(shape), var("r0", shape[0])
    elements = tuple(body.cast(x.at([over, *own[1:]]), _held(x.dtype)) for x in xs)
    read = {u.args[1] for u in n.users}
    stores: list[Store] = []
    out: list[TensorValue | None] = []
    for i, (x, r) in enumerate(zip(xs, results, strict=True)):
        assert r is not None
        if i not in read:
            out.append(None)
            continue
        made = low.b.allocate(x.dtype, shape, x.device, result_strides(r))
        found = body.scan(FUNCTION, str(i), over, own[0], elements, combine)
        stores.append(made.memory.store(own, found))
        out.append(made)
    if stores:
        low.b.add_loops(own, (over,), tuple(stores), xs[0].device)
    return tuple(out)


def _held(dtype: DType) -> DType:
    """The type in which a part of a state is combined."""
    return d.U8 if dtype is d.BOOL else dtype.opmath


def _combined(
    low: GraphLowering,
    module: GraphModule,
    types: Sequence[DType],
    like: TensorValue,
    numbers: Sequence[Any],
    inline: Inline,
) -> tuple[Node, ...]:
    """The function of two states that a graph of calls is.

    like: of the shape of a state's parts.  numbers: sizes that the function is given besides.
    """
    shape, given = like.shape, []
    for k, dtype in enumerate((*types, *types)):
        node = body.load(dtype, f"{GIVEN}{k}", linear(axes(shape), contiguous_strides(shape)))
        given.append(TensorValue(dtype, shape, like.device, lazy=node))
    mark = len(low.b.nodes)
    found = inline(module, [*given, *numbers])
    if len(low.b.nodes) > mark:
        raise Unsupported("a function that is not pointwise")
    if any(not isinstance(v, TensorValue) or v.shape != shape for v in found):
        raise Unsupported("a function whose results have another shape")
    memo = {}
    for k, x in enumerate(given):
        held = body.given(_held(x.dtype), k)
        memo[x.node] = body.cast(held, x.dtype)
        if held.dtype.is_float and held.dtype is not x.dtype:
            memo[body.cast(x.node, held.dtype)] = held
    rewrite = Rewriter(replace=lambda _, n: _unrounded(n), memo=memo)
    out = tuple(
        _unrounded(body.cast(rewrite(v.node), _held(t))) for v, t in zip(found, types, strict=True)
    )
    if any(isinstance(v, Load) for v in walk(out)):
        raise Unsupported("a function that is not pointwise")
    for why in function_faults(out, [body.given(_held(t), 0) for t in types]):
        raise Unsupported(why)
    return out


def _unrounded(n: Node) -> Node:
    """Without the rounding to 16 bits of what goes on in f32."""
    if isinstance(n, Op) and n.name == "round_to":
        return n.args[0]
    if isinstance(n, Op) and n.name == "cast" and n.dtype is d.F32:
        inner = n.args[0]
        if isinstance(inner, Op) and inner.name == "cast" and inner.dtype.bits == 16:
            return inner.args[0] if inner.args[0].dtype is d.F32 else n
    return n
