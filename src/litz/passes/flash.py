"""Attention of plain scores by a library: a softmax of scaled products, times values.

A template that neither modifies nor masks its scores is what PyTorch's libraries have kernels for,
where operands lie as these take them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar, Final

from litz.dataclass import dataclass
from litz.index import (
    ONE,
    Const,
    Expr,
    Substitution,
    contiguous_strides,
    divides,
    divisions,
    floordiv,
    linear,
    product,
    size_hint,
    split_linear,
    var,
)
from litz.ir import attention
from litz.ir.body import Load
from litz.ir.dtype import BF16, F16
from litz.ir.program import Extern, Program, Template, TensorRef
from litz.passes.costs import Costs
from litz.passes.rivals import Behind, part
from litz.passes.uses import Uses
from litz.runtime.attention import WHOLE, WIDEST
from litz.runtime.attention import attention as attention_call

KIND: Final = "cuda"  # of the devices whose libraries have it
TARGET: Final = "litz.runtime.attention.attention"
REASON: Final = "attention of plain scores: PyTorch's libraries compute it"
OWN = 0.36  # of what matrix units can do: what the template reaches
EXPONENTIALS: Final = 1 / 16  # of the operations on float32, so many in the same time
# What libraries reach with the gradient, of what matrix units can do, and bytes that they move for
# each element of a query.
TRAINED: Final = {"cudnn": (0.66, 37), "flash": (0.35, 51)}
CALLS: Final = 4  # kernels of theirs
STEPS: Final = 8  # kernels that take as many steps
PASSES: Final = 11  # over the scores, forward and backward, where each is written or read
PRODUCTS: Final = 43  # bytes for each element of a query, likewise
HOST: Final = 2.5  # launches that a call takes as long as, beside what it computes


@dataclass(frozen=True)
class TakeAttention:
    """Templates of attention that libraries have as well become their calls, where that pays.

    costs: of devices, by their kinds.  rivals: measures both ways where somebody can.
    """

    costs: Mapping[str, Costs]
    rivals: Behind | None = field(default=None, repr=False)
    name: ClassVar[str] = "take attention"

    def __call__(self, program: Program) -> Program:
        known = [n for n in program.nodes if isinstance(n, Template) and n.device.startswith(KIND)]
        made = {n: c for n in known if (c := library_call(program, n)) is not None}
        if not made:
            return program
        uses = Uses(program)
        chosen = {n.name: taken for n, c in made.items() if (taken := self._chosen(uses, n, c))}
        return _replaced(program, chosen)

    def _chosen(self, uses: Uses, own: Template, call: Extern) -> Extern | None:
        """The call where a library takes less time, with its reason."""
        costs = self.costs.get(KIND)
        if costs is None or not costs.attention:
            return None
        if self.rivals is not None and (apart := part(uses, (own,))) is not None:
            tried = self.rivals(_replaced(apart, {own.name: call}), apart)
            if tried is not None:
                return call if tried.index == 0 else None
        (out,), (query, *_) = call.outputs, call.args
        assert out is not None and isinstance(query, TensorRef)
        b, size = uses.program.buffers[out], query.shape[-1]
        keys = own.reduce_axes[0].extent  # type: ignore[attr-defined]
        scores = size_hint(product((*query.shape[:-1], keys)))
        work = 4 * scores * size_hint(size) / costs.matrix
        template = costs.fill + work / OWN
        # Libraries compute exponentials while matrix units wait, and lay a result out as a query.
        library = work / costs.attention + scores / (EXPONENTIALS * costs.single)
        library += HOST * costs.launch
        rows = zip(query.shape, query.strides, contiguous_strides(query.shape), strict=True)
        if any(step is not plain for size, step, plain in rows if size is not ONE):
            library += 2 * b.dtype.bytes * size_hint(product(b.shape)) / costs.memory
        if template <= library:
            return None
        said = f"{library * 1e6:.0f} us estimated, {template * 1e6:.0f} by a kernel of its own"
        return replace(call, reason=f"{REASON}: {said}")


def training_seconds(
    costs: Costs, scores: int, elements: int, head: int, kind: str
) -> tuple[float, float]:
    """Estimates of attention of 16-bit floats with its gradient: step by step, and by a library.

    scores, elements: how many, and of queries; head: elements of a row.  kind: whose, ``cudnn`` or
    ``flash``.
    """
    work = 3.5 * 4 * scores * head / costs.matrix
    is_near = 2 * 2 * scores <= costs.near  # weights and their gradient
    own = PASSES * 2 * scores / (costs.cache if is_near else costs.memory)
    own += STEPS * costs.launch + PRODUCTS * elements / costs.memory
    part, moved = TRAINED[kind]
    library = CALLS * costs.launch + work / part + moved * elements / costs.memory
    return own, library + 2 * scores / (EXPONENTIALS * costs.single)


def _replaced(p: Program, calls: Mapping[str, Extern]) -> Program:
    nodes = tuple(calls.get(n.name, n) for n in p.nodes)
    made = {out: p.buffers[out] for c in calls.values() for out in c.outputs if out is not None}
    buffers = {**p.buffers, **{k: replace(b, kind="extern") for k, b in made.items()}}
    return replace(p, nodes=nodes, buffers=buffers)


# --- what libraries take --------------------------------------------------------------------------


def library_call(program: Program, t: Template) -> Extern | None:
    """The call that computes a template; None where no library has it, or other operands."""
    if t.skeleton.kind != attention.KIND or t.skeleton.slots or len(t.stores) != 1:
        return None
    p = attention.parts(t.stores, t.axes)
    number, score = attention.factored(attention.without_roundings(p.score))
    out, kind = program.buffers[p.out.buffer], p.query.dtype
    inner, columns = (v.extent for v in (p.inner, p.columns))  # type: ignore[attr-defined]
    fits = kind in (F16, BF16) and {p.key.dtype, p.value.dtype, out.dtype} == {kind}
    fits &= inner is columns and isinstance(inner, Const)
    if score is not p.dot or p.guarded or not fits or out.kind != "temp" or out.alias is not None:
        return None
    if inner.value % WHOLE or inner.value > WIDEST:
        return None
    # The result lies row by row, in the order of the axes.
    steps = contiguous_strides(tuple(v.extent for v in t.axes))  # type: ignore[attr-defined]
    if len(t.axes) > 4 or out.strides != contiguous_strides(out.shape):
        return None
    if p.out.index is not linear(t.axes, steps):
        return None
    batch, move = _batch(t.axes[:-2], (p.query, p.key, p.value))
    given = [
        _operand(x, move, (*batch, *sides))
        for x, sides in (
            (p.query, (p.rows, p.inner)), (p.key, (p.keys, p.inner)), (p.value, (p.keys, p.columns))
        )
    ]  # fmt: skip
    if None in given:
        return None
    return Extern(
        t.name, attention_call, TARGET, tuple(given), (("scale", number), ("shape", out.shape)),
        (p.out.buffer,), t.device, REASON, origins=t.origins,
    )  # fmt: skip


def _batch(axes: tuple[Expr, ...], given: Sequence[Load]) -> tuple[tuple[Expr, ...], Substitution]:
    """Variables of batches and of heads, and what the axes are by them."""
    one = var("none", ONE)
    counts = {d.den for d in divisions(x.index for x in given) if d.num in axes}
    if len(axes) == len(counts) == 1 and divides((count := counts.pop()), axes[0].extent):  # type: ignore[attr-defined]
        high, low = var("batch", floordiv(axes[0].extent, count)), var("head", count)  # type: ignore[attr-defined]
        return (high, low), Substitution({axes[0]: high * count + low})
    return (*axes, one, one)[:2], Substitution({})


def _operand(x: Load, move: Substitution, dims: tuple[Expr, ...]) -> TensorRef | None:
    """What a load reads as a view of its buffer: batches, heads, rows, elements in order."""
    found = split_linear(move(x.index), dims)
    if found is None or x.indirect:
        return None
    steps, offset = found
    shape = tuple(v.extent for v in dims)  # type: ignore[attr-defined]
    # Where there is one of a kind, no step is ever taken.
    strides = tuple(
        shape[-1] if size is ONE and v is not dims[-1] else steps[v]
        for v, size in zip(dims, shape, strict=True)
    )
    numbers = [s.value for s in (*strides[:-1], offset) if isinstance(s, Const)]
    whole = len(numbers) == len(dims) and not any(n % WHOLE for n in numbers)
    if not whole or strides[-1] is not ONE or 0 in numbers[:-1]:
        return None
    return TensorRef(x.buffer, x.dtype, shape, strides, offset)
