"""Calls that go to ATen as they are: arguments as exact strided views, effects from the schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node as FxNode

from litz.graph.aliasing import is_view_op, passed, sharing, viewed, writes
from litz.graph.calls import leaves, op_name, operator_called, takes_objects
from litz.index import Expr, symbol
from litz.ir.body import Const
from litz.ir.program import Extern, HostFloat, TensorRef
from litz.lowering.context import GraphUnsupported, WrongMetadata
from litz.lowering.handed import handed
from litz.lowering.layouts import CONTRACTIONS, laid_out, stated_by, with_own_plans
from litz.lowering.numbers import (
    SCALAR_READS,
    assert_deferred,
    assign_solution,
    is_symbolic,
    read,
    require,
)
from litz.lowering.reasons import MATRIX_PRODUCT, SIZED_BY_DATA, family_reason
from litz.lowering.state import GraphLowering
from litz.lowering.storing import copied, settled
from litz.lowering.strides import apart, same_layout, with_idle_strides
from litz.lowering.symbols import Solution, solve
from litz.lowering.torch_types import to_torch
from litz.lowering.values import Opaque, TensorValue
from litz.runtime.fake import unset_fake_temporarily

aten = torch.ops.aten

# Ops that are left to ATen on purpose, and why; others have no lowering yet.
BY_CHOICE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "mm addmm bmm baddbmm addmv mv dot addbmm _int_mm _grouped_mm _scaled_mm "
            "_scaled_grouped_mm _weight_int8pack_mm"
        ).split(),
        MATRIX_PRODUCT,
    ),
    "_weight_int4pack_mm": "a product with weights that lie as ATen's kernel alone reads them",
    **dict.fromkeys(
        "convolution convolution_backward _convolution".split(),
        "a convolution: ATen's libraries compute it",
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
        ),
        "attention: ATen has a fused kernel for it",
    ),
    **dict.fromkeys(
        ("_local_scalar_dense", "item", "nonzero"), "its result decides what Python does next"
    ),
    **dict.fromkeys(("sort", "topk", "cumsum", "cumprod"), "a sort or scan: ATen computes it"),
}


# Of these the result is memory of its own.  (The schema of an op cannot promise that: some return
# an argument where there is nothing to do.)
FRESH = frozenset(BY_CHOICE) - {"_local_scalar_dense", "item"}


def why_extern(target: object) -> str:
    """The reason for calling ``target`` as it is when no lowering has been tried."""
    name = op_name(target)
    return BY_CHOICE.get(name) or family_reason(name)


def call_extern(low: GraphLowering, n: FxNode, reason: str) -> Any:
    """Add the call of ``n`` as an extern; returns its result(s)."""
    target = n.target
    if not isinstance(target, torch._ops.OpOverload):
        raise GraphUnsupported(f"a call of {target}")
    _check_writes(low, n)
    args = with_own_plans(target, tuple(argument(low, a, n) for a in n.args))
    kwargs = tuple((k, argument(low, v, n)) for k, v in n.kwargs.items())
    if takes_objects(target) or target is aten.set_.source_Tensor:
        args, kwargs = lasting(low, args), lasting(low, kwargs)
    effects = sharing(target)
    mutated = tuple(dict.fromkeys(_roots(low, passed(effects.written, args, dict(kwargs)))))
    for root in mutated:
        low.readers.before_mutation(root, n)
    val = n.meta.get("val")
    single = not isinstance(val, tuple | list)
    vals: tuple[Any, ...] = tuple(val) if isinstance(val, tuple | list) else (val,)
    alias = next(_roots(low, passed(effects.shared, args, dict(kwargs))), None)
    fresh = alias is None and op_name(target) in FRESH
    mark = len(low.b.nodes)
    results = add_call(
        low, n, target, args, kwargs, vals, reason,
        mutates=mutated, alias=alias, kind="fresh" if fresh else "extern", single=single,
    )  # fmt: skip
    if low.settings.check_calls:
        made = low.b.nodes[mark:]
        call = next(x for x in made if isinstance(x, Extern) and x.target is target)
        low.handed[call.name] = handed(low, n, args, kwargs)
    return results[0] if single else results


def add_call(
    low: GraphLowering,
    n: FxNode,
    target: object,
    args: tuple[object, ...],
    kwargs: tuple[tuple[str, object], ...],
    vals: Sequence[Any],
    reason: str,
    *,
    mutates: tuple[str, ...] = (),
    alias: str | None = None,
    kind: str = "extern",
    single: bool = True,
    called: str = "",
) -> tuple[Any, ...]:
    """Add the call of an operator, and give its results: one for each of ``vals``.

    vals: the results as the graph's metadata has them.  alias: the buffer whose memory they share.
    kind: of their buffers.
    single: the operator returns its one result as it is and no tuple.  called: its printed name.
    """
    b = low.b
    results: list[Any] = []
    names: list[str | None] = []
    symbols: list[tuple[int, Expr | HostFloat]] = []
    for position, v in enumerate(vals):
        value, name = _result(low, n, v, position, alias, kind, symbols)
        results.append(value)
        names.append(name)
    sizes, checks, solutions = _sizes(low, n, names)
    b.extern(
        target, args, tuple(names), _device(vals), reason, target_name=called, kwargs=kwargs,
        single=single, symbols=tuple(symbols), mutates=mutates, sizes=sizes, checks=checks,
    )  # fmt: skip
    for whole, found in solutions:
        assign_solution(low, whole, found)
    layouts = [low.b.buffers[name] for name in names if name is not None]
    require(low, *(e for buf in layouts for e in (*buf.shape, *buf.strides)))
    given = (*(s for _, s in symbols if isinstance(s, Expr)), *(s for s, _, _ in sizes))
    assert_deferred(low, (*given, *(found.unknown for _, found in solutions)))
    return tuple(results)


def _result(
    low: GraphLowering,
    n: FxNode,
    v: Any,
    position: int,
    alias: str | None,
    kind: str,
    symbols: list[tuple[int, Expr | HostFloat]],
) -> tuple[Any, str | None]:
    b = low.b
    if isinstance(v, torch.Tensor):
        low.symbols.settle_ones(v.shape)
        r = low.result(v)
        if r is None:
            name = f"buf{len(b.buffers)}"
            return b.opaque(name, v, alias=alias), name
        # Of attention the first result alone is surely there: against the metadata its random state
        # lies on the CPU, and statistics that nobody asked for are missing.
        own = "extern" if kind == "fresh" and position else kind
        buf = b.new_buffer(r.dtype, r.shape, r.strides, r.device, own, alias=alias)
        return b.of_buffer(buf), buf.name
    if is_symbolic(v) or n.target in SCALAR_READS:
        number = read(low, n, v)
        symbols.append((position, number))
        return number, None
    if isinstance(v, list | tuple):
        raise GraphUnsupported("a call that returns lists of tensors among other results")
    return v, None


Size = tuple[Expr, int, int]


def _sizes(
    low: GraphLowering, n: FxNode, names: Sequence[str | None]
) -> tuple[tuple[Size, ...], tuple[Size, ...], list[tuple[Expr, Solution]]]:
    """Symbols that are a size of a result; sizes to check; symbols to compute from sizes."""
    sizes: list[Size] = []
    checks: list[Size] = []
    solutions: list[tuple[Expr, Solution]] = []
    depends = bool(n.meta.get("unbacked_bindings"))
    if not depends and _is_said_to_be_fixed(n):
        raise WrongMetadata(f"PyTorch fixes the size of {n.target}'s result, which depends on data")
    data = depends or low.symbols.from_data(low.env.get(a) for a in n.all_input_nodes)
    for position, name in enumerate(names):
        for dim, e in enumerate(low.b.buffers[name].shape if name is not None else ()):
            missing = low.symbols.missing((e,))
            found = solve(e, missing)
            if missing == (e,):
                low.symbols.give(e, data=data)
                sizes.append((e, position, dim))
            elif found is not None:
                whole = symbol(low.symbols.fresh("size"), e.lo, e.hi)
                low.symbols.give(whole, data=data)
                low.symbols.give(found.unknown, data=data)
                sizes.append((whole, position, dim))
                solutions.append((whole, found))
            elif depends and not missing:
                checks.append((e, position, dim))
    return tuple(sizes), tuple(checks), solutions


def _is_said_to_be_fixed(n: FxNode) -> bool:
    """Whether metadata of fixed sizes is about what depends on data.

    Where a size that is not known meets one that may be 1 (the indices of an ``index_select`` whose
    result is broadcast), backward graphs of PyTorch 2.11 take it for 1.
    """
    if op_name(n.target) not in SIZED_BY_DATA:
        return False
    read = (a.meta.get("val") for a in n.all_input_nodes)
    return not any(isinstance(v, torch.Tensor) and _may_be_empty(v) for v in read)


def _may_be_empty(v: torch.Tensor) -> bool:
    return not all(isinstance(size, int) and size > 0 for size in v.shape)


def argument(low: GraphLowering, value: Any, by: FxNode) -> object:
    """An argument of the call that ``by`` stands for, laid out as the metadata states."""
    v = low.env[value] if isinstance(value, FxNode) else value
    if isinstance(v, TensorValue):
        assert isinstance(value, FxNode)
        return _tensor(low, value, v, by)
    if isinstance(v, Opaque):
        return v.ref
    if isinstance(v, list | tuple):
        return tuple(argument(low, x, by) for x in v)
    if isinstance(v, torch.SymInt):
        return low.expr(v)
    return v


def _tensor(low: GraphLowering, n: FxNode, v: TensorValue, by: FxNode) -> TensorRef:
    """The value of ``n`` in memory as ``by`` may take it: laid out as the metadata states."""
    meta = low.result(stated_by(n, by))
    target = operator_called(by)
    stated = meta if target not in CONTRACTIONS and not _may_share(target) else None
    if v.ref is None:
        v = _held(low, v, by) or settled(low, n, v, stated)
    if stated is not None and not same_layout(v.memory, stated.strides):
        v = laid_out(low.b, v.without_memory(), stated)
    if is_view_op(by.target):
        return _as_in_eager(low, n, v, by)
    # Some operators look at strides along dimensions of one element as well.
    return v.memory if stated is None else with_idle_strides(v.memory, stated.strides)


def _held(low: GraphLowering, v: TensorValue, by: FxNode) -> TensorValue | None:
    """A number that a call reads, as a constant: no kernel makes it each time.

    None where the call may return it as it is, for then who called the program may write there.
    """
    results = leaves([by.meta.get("val")])
    if v.device != "cpu" or v.shape or not isinstance(v.node, Const) or not results:
        return None
    if _may_share(by.target) or takes_objects(by.target):
        return None
    if not all(isinstance(r, torch.Tensor) and r.dim() for r in results):
        return None
    buf = low.b.new_buffer(v.dtype, (), (), v.device, "constant")
    with unset_fake_temporarily():
        low.b.constants[buf.name] = torch.full((), v.node.value, dtype=to_torch(v.dtype))
    return low.b.of_buffer(buf)


def _as_in_eager(low: GraphLowering, n: FxNode, v: TensorValue, by: FxNode) -> TensorRef:
    """What a view is taken of, laid out as in eager mode: so the graph describes the view."""
    meta = low.result(n.meta["val"])
    if meta is None:
        return v.memory
    if not same_layout(v.memory, meta.strides):
        if not apart(meta):
            raise GraphUnsupported(f"{by.target} of what lies elsewhere in eager mode")
        v = copied(low, n, v, meta.strides)
    # A view as another type looks at the strides of single elements too.
    return with_idle_strides(v.memory, meta.strides) if by.target is aten.view.dtype else v.memory


def lasting(low: GraphLowering, value: Any) -> Any:
    """Arguments for a script object, which keeps what it is handed for as long as it likes, or for
    an input that shall be one's memory: of memory that the program would give to others, a copy.
    """
    if isinstance(value, tuple):
        return tuple(lasting(low, v) for v in value)
    if not isinstance(value, TensorRef):
        return value
    root = low.b.buffers[low.b.root(value.buffer)]
    if root.kind not in ("temp", "fresh"):
        return value
    copy = low.b.new_buffer(value.dtype, value.shape, value.strides, root.device, "extern")
    reason = "what is handed it may keep it"
    low.b.extern(aten.clone.default, (value,), (copy.name,), root.device, reason)
    return low.b.of_buffer(copy).ref


def _may_share(target: object) -> bool:
    """Whether an operator writes to an argument, or may return one or a view of it."""
    effects = sharing(target)
    return (effects.shared, effects.written) != ((), ())


def _check_writes(low: GraphLowering, n: FxNode) -> None:
    """Decline a write through a view that index algebra cannot show: it would go into a copy."""
    for to in writes(n):
        while not _in_memory(low, to) and (source := viewed(to)) is not None:
            if _in_memory(low, source):
                name = op_name(to.target)
                raise GraphUnsupported(f"a write through {name}, of which there is but a copy")
            to = source


def _in_memory(low: GraphLowering, n: FxNode) -> bool:
    v = low.env.get(n)
    return isinstance(v, TensorValue) and v.ref is not None


def _roots(low: GraphLowering, values: Iterable[object]) -> Iterator[str]:
    return (low.b.root(v.buffer) for v in values if isinstance(v, TensorRef))


def _device(vals: Sequence[Any]) -> str:
    return next((str(v.device) for v in vals if isinstance(v, torch.Tensor)), "cpu")
