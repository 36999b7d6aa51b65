"""Masks of attention that hide nothing, or what comes later, in Dynamo's graphs.

Libraries that make masks of positions cannot look at them while they are traced, and hand attention
one that is true throughout, or triangular: PyTorch then takes slower kernels, or none, than for no
mask and for ``is_causal``.  It chooses them while AOTAutograd traces, so this comes before.  What a
mask holds is proven for each element by index algebra, for open sizes too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from litz import index
from litz.dataclass import dataclass
from litz.graph.calls import argument
from litz.graph.original import copy_of
from litz.graph.recurrences import add_call
from litz.graph.writes import checkpointed, plain_name, written_memory
from litz.index import ONE, ZERO, Const, Expr, const, symbol, var
from litz.index.border import NotRepresentable, from_sympy
from litz.runtime.torch_private import address

ATTENTION: Final = (
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)
KIND: Final = "cuda"  # of devices whose kernels of attention read masks by rows of keys
LARGEST: Final = 1 << 30
"""The largest number that is looked at; sizes are taken to be up to twice as large."""


def drop_idle_masks(gm: GraphModule, same_draws: bool) -> GraphModule:
    """Have attention read no mask that is all true or zero, and be causal by a flag, in place.

    same_draws: whether dropout has to draw what it draws with the mask.  Returns the program as it
    was where attention trains, for eager mode: PyTorch's kernels for no mask, unlike those for one
    of each head, have gradients that cannot be differentiated again.
    """
    plain = gm

    def keep() -> None:
        nonlocal plain
        plain = copy_of(gm) if plain is gm else plain

    graphs = [m.graph for m in gm.modules() if isinstance(m, GraphModule)]
    if any(n.target in ATTENTION for graph in graphs for n in graph.nodes):
        _drop(gm, {}, same_draws, keep)
    return plain


def _drop(
    gm: GraphModule,
    given: Mapping[Node, _Element],
    same_draws: bool,
    keep: Callable[[], None],
) -> None:
    """The same of one graph and those that it runs.

    given: what is known of its inputs.  keep: called before attention that trains is changed.
    """
    try:
        masks = _Masks(gm, given)
    except RuntimeError:  # of tensors without memory
        return
    for n in gm.graph.nodes:
        if (body := checkpointed(gm, n)) is not None:
            pairs = zip(body.graph.find_nodes(op="placeholder"), n.args[1:], strict=False)
            known = {
                p: masks.known[a] for p, a in pairs if isinstance(a, Node) and a in masks.known
            }
            _drop(body, known, same_draws, keep)
        if n.op != "call_function" or n.target not in ATTENTION:
            continue
        mask, causal = argument(n, 3, "attn_mask"), argument(n, 5, "is_causal", False)
        draws = same_draws and argument(n, 4, "dropout_p", 0.0) != 0.0
        if not isinstance(mask, Node) or causal is not False or draws:
            continue
        kind = masks.kind(n, mask)
        is_bias = kind is None and masks.is_bias(mask)
        if (kind is not None or is_bias) and _meta(n).requires_grad:
            keep()
        if kind is not None:
            rest = dict(zip(("attn_mask", "dropout_p", "is_causal"), n.args[3:], strict=False))
            rest |= {"attn_mask": None, "is_causal": kind == "causal"}
            n.args, n.kwargs = n.args[:3], {**n.kwargs, **rest}
            masks.erase(mask)
        elif is_bias:
            _by_rows(mask)
    gm.recompile()


def _by_rows(mask: Node) -> None:
    """Lay a mask out by rows of keys, without which PyTorch has no kernel of attention on GPUs.

    For masks that leave no row without a key: what such a row is differs by kernel.
    """
    value = _meta(mask)
    if not isinstance(value, Tensor) or value.device.type != KIND or value.ndim < 2:
        return
    step, keys = value.stride(-1), value.shape[-1]
    if not isinstance(step, int) or step == 1 or (isinstance(keys, int) and keys == 1):
        return
    # What is expanded stays so, but for the keys.
    same = [isinstance(k, int) and k == 0 for k in value.stride()[:-1]]
    one = tuple(slice(0, 1) if x else slice(None) for x in same)
    at = mask
    while at.op == at.next.op == "placeholder":
        at = at.next
    graph = mask.graph
    with graph.inserting_before(at.next):
        made = add_call(graph, operator.getitem, mask, one) if any(same) else mask
        made = add_call(graph, torch.Tensor.contiguous, made)
        made = add_call(graph, torch.Tensor.expand_as, made, mask) if any(same) else made
    for n in list(mask.users):
        if n.target in ATTENTION and argument(n, 3, "attn_mask") is mask:
            n.replace_input_with(mask, made)


@dataclass(frozen=True)
class _Pick:
    """A float by a condition."""

    on: Expr
    yes: float
    no: float


_Element = Expr | _Pick
"""An element at an index, whose variables are ``_axes`` of its tensor's shape."""


class _Unknown(Exception):
    """What a call gives is not known."""


class _Masks:
    """What is known of tensors that are computed from positions alone."""

    def __init__(self, gm: GraphModule, given: Mapping[Node, _Element]) -> None:
        self.scope: dict[str, Expr] = {}
        self.sizes: dict[Any, Expr] = {}
        self.known: dict[Node, _Element] = {}
        written = written_memory(gm)
        for n in gm.graph.nodes:
            rule, value = RULES.get(_name(n)), _meta(n)
            if not isinstance(value, Tensor) or address(value) in written:
                continue
            if n in given:
                self.known[n] = given[n]
            if rule is None:
                continue
            more = {k: v for k, v in n.kwargs.items() if k not in PLAIN}
            try:
                self.known[n] = self.typed(n, rule(self, n, *n.args, **more))
            except (_Unknown, NotRepresentable, TypeError, IndexError, KeyError):
                continue  # the latter of arguments that a rule does not take

    def kind(self, n: Node, mask: Node) -> str | None:
        """What a mask is to attention: "none", "causal", or something else, or more than a mask."""
        query, key, m = (_meta(x) for x in (argument(n, 0, "query"), argument(n, 1, "key"), mask))
        if mask not in self.known or m.requires_grad:
            return None
        try:
            sizes, own, keys = self.shape(query), self.shape(m), self.shape(key)[-2]
        except (_Unknown, NotRepresentable):
            return None
        scores = (*sizes[:-1], keys)
        if len(own) > len(scores) or keys.lo is None or keys.lo < 1:
            return None
        pairs = zip(own[::-1], scores[::-1], strict=False)
        if not all(a is ONE or a is b for a, b in pairs):  # it makes results larger
            return None
        e = self.known[mask]
        if isinstance(e, _Pick):
            if (e.yes, e.no) not in ((0.0, 0.0), (0.0, -math.inf), (-math.inf, 0.0)):
                return None
            e = _where(e.on, e.yes == 0, e.no == 0)
        if e is ONE:
            return "none"
        if own[-2:] != (keys, keys):  # what is causal of rectangles is not the same to all kernels
            return None
        *_, i, j = _axes(own)
        return "causal" if e is index.le(j, i) else None

    def is_bias(self, mask: Node) -> bool:
        """Whether a mask is learned, but for what a number hides that leaves each row a key."""
        n: Any = mask
        if _name(n) == "where" and len(n.args) == 3 and not isinstance(n.args[2], Node):
            try:
                shape = self.shape(n)
                *_, i, j = axes = _axes(shape)
                seen = self.at(n.args[0], axes)
            except (_Unknown, NotRepresentable, ValueError):  # the latter of one dim
                return False
            own = i if shape[-1] is shape[-2] else ZERO
            first, same = (_moved(seen, {j: x} if j is not ZERO else {}) for x in (ZERO, own))
            if ONE not in (seen, first, same):
                return False
            n = n.args[1]
        while isinstance(n, Node) and RULES.get(_name(n)) in MOVES:
            n = n.args[0]
        return isinstance(n, Node) and n.target is F.embedding

    def erase(self, mask: Node) -> None:
        """Take away what nobody reads any more."""
        left = [mask]
        while left:
            n = left.pop()
            if not n.users and n in self.known and n.op != "placeholder":
                del self.known[n]
                left += n.all_input_nodes
                n.graph.erase_node(n)

    # --- sizes and elements ---------------------------------------------------------------------

    def size(self, x: Any) -> Expr:
        """An integer as an expression."""
        x = _meta(x)
        if isinstance(x, int) and abs(x) <= LARGEST:
            return const(int(x))
        if not isinstance(x, torch.SymInt) or x.node.is_nested_int():
            raise _Unknown
        env, e = x.node.shape_env, x.node.expr
        if e in self.sizes:
            return self.sizes[e]
        for s in sorted(e.free_symbols, key=str):
            low = env.bound_sympy(s).lower
            least = int(low) if getattr(low, "is_Integer", False) else None
            self.scope.setdefault(str(s), symbol(str(s), least, 2 * LARGEST))
        return self.sizes.setdefault(e, from_sympy(e, self.scope))

    def shape(self, x: Any) -> tuple[Expr, ...]:
        v = _meta(x)
        if not isinstance(v, Tensor):
            raise _Unknown
        return tuple(map(self.size, v.shape))

    def at(self, x: Any, place: Sequence[Expr]) -> _Element:
        """The element of a tensor at a place, aligned at its last dim; or a number."""
        if not isinstance(x, Node) or not isinstance(_meta(x), Tensor):
            return _Pick(ONE, x, x) if isinstance(x, float) else self.size(x)
        if x not in self.known:
            raise _Unknown
        own = _axes(self.shape(x))
        if len(own) > len(place):
            raise _Unknown
        pairs = zip(own[::-1], place[::-1], strict=False)
        return _moved(self.known[x], {v: e for v, e in pairs if v is not ZERO})

    def typed(self, n: Node, e: _Element) -> _Element:
        """An element as its tensor's type has it."""
        dtype = n.meta["example_value"].dtype
        if dtype is torch.bool:
            return index.truth(e) if isinstance(e, Expr) else _where(e.on, e.yes != 0, e.no != 0)
        if dtype is torch.int64 and isinstance(e, _Pick) and e.on is ONE and e.yes.is_integer():
            return self.size(int(e.yes))
        if dtype is torch.int64 and isinstance(e, Expr) and _fits(e):
            return e
        if not dtype.is_floating_point:
            raise _Unknown
        e = _floating(e)
        if not _holds(dtype, e):
            raise _Unknown
        return e

    # --- what calls compute ---------------------------------------------------------------------

    def arange(self, n: Node, *given: Any, start: Any = 0, end: Any = None, step: Any = 1) -> Expr:
        given = given if end is None else (*given, end)
        start, step = given[0] if len(given) > 1 else start, (*given[2:], step)[0]
        (i,) = _axes(self.shape(n))
        return self.size(start) + self.size(step) * i

    def zeros(self, n: Node, *_: Any, **__: Any) -> Expr:
        return ZERO

    def ones(self, n: Node, *_: Any, **__: Any) -> Expr:
        return ONE

    def full(self, n: Node, *given: Any, fill_value: Any = None) -> _Element:
        return self.at(given[-1] if fill_value is None else fill_value, ())

    def aligned(self, n: Node, x: Any, *_: Any, **__: Any) -> _Element:
        """What is only broadcast, or of another type."""
        return self.at(x, _axes(self.shape(n)))

    def pointwise(self, n: Node, *given: Any) -> _Element:
        name, axes = _name(n), _axes(self.shape(n))
        if name in ("invert", "bitwise_not") and _meta(n).dtype is not torch.bool:
            raise _Unknown
        of = [v if isinstance(v := _meta(x), float | Tensor) else 0 for x in given]
        return _computed(name, torch.result_type(of[0], of[-1]), *(self.at(x, axes) for x in given))

    def where(self, n: Node, c: Any, a: Any, b: Any) -> _Element:
        axes = _axes(self.shape(n))
        on = self.at(c, axes)
        if on in (ONE, ZERO):
            return self.at(a if on is ONE else b, axes)
        yes, no = self.at(a, axes), self.at(b, axes)
        if not isinstance(on, Expr):
            raise _Unknown
        if isinstance(yes, Expr) and isinstance(no, Expr):
            return _where(on, yes, no) if yes.is_bool and no.is_bool else index.where(on, yes, no)
        return _picked(on, _floating(yes), _floating(no))

    def masked_fill(self, n: Node, x: Any, mask: Any, value: Any) -> _Element:
        return self.where(n, mask, value, x)

    def triangle(self, n: Node, x: Any, diagonal: int = 0) -> _Element:
        (*_, i, j), e = _axes(self.shape(n)), self.known[x] if x in self.known else None
        if e is None:
            raise _Unknown
        d = i + self.size(diagonal)
        seen = index.le(j, d) if _name(n) == "tril" else index.le(d, j)
        if isinstance(e, Expr):
            return index.and_(seen, e) if e.is_bool else index.where(seen, e, ZERO)
        return _picked(seen, e, _Pick(ONE, 0.0, 0.0))

    def viewed(self, n: Node, x: Any, *_: Any, **__: Any) -> _Element:
        """Dims of one element come and go."""
        own, shape = self.shape(x), self.shape(n)
        if _meta(x).dtype is not _meta(n).dtype:
            raise _Unknown
        if [s for s in own if s is not ONE] != [s for s in shape if s is not ONE]:
            raise _Unknown
        left = iter([v for v in _axes(shape) if v is not ZERO])
        return self.at(x, [ZERO if s is ONE else next(left) for s in own])

    def transpose(self, n: Node, x: Any, dim0: int, dim1: int) -> _Element:
        axes = [*_axes(self.shape(n))]
        axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
        return self.at(x, axes)

    def permute(self, n: Node, x: Any, *dims: Any) -> _Element:
        order = dims[0] if isinstance(dims[0], list | tuple) else dims
        axes = dict(zip(order, _axes(self.shape(n)), strict=True))
        return self.at(x, [axes[k] for k in range(len(axes))])

    def cumsum(self, n: Node, x: Any, dim: int) -> _Element:
        e = self.known.get(x)
        if not isinstance(e, Const):
            raise _Unknown
        return e * (_axes(self.shape(n))[dim] + ONE)

    def diff(self, n: Node, x: Any, count: int = 1, dim: int = -1, prepend: Any = None) -> Expr:
        """Of places; with one element before, where that is as far from the first as others are."""
        axes = [*_axes(self.shape(n))]
        i = axes[dim]

        def at(of: Any, place: Expr) -> Expr:
            axes[dim] = place
            e = self.at(of, axes)
            if not isinstance(e, Expr):
                raise _Unknown
            return e

        if count != 1:
            raise _Unknown
        if prepend is None:
            return at(x, i + ONE) - at(x, i)
        first = at(x, ZERO) - at(prepend, ZERO)
        if self.shape(prepend)[dim] is not ONE or at(x, i) - at(x, i - ONE) is not first:
            raise _Unknown
        return first

    def getitem(self, n: Node, x: Any, places: Any) -> _Element:
        """By slices, integers and tensors of places; the latter beside each other."""
        some = [*places] if isinstance(places, tuple) else [places]
        shape, axes = self.shape(x), [*_axes(self.shape(n))]
        rest = [slice(None)] * (len(shape) - sum(p is not None and p is not ... for p in some))
        dots = next((k for k, p in enumerate(some) if p is ...), len(some))
        some[dots : dots + 1] = rest
        tensors = [k for k, p in enumerate(some) if isinstance(_meta(p), Tensor)]
        if tensors and tensors != [*range(tensors[0], tensors[-1] + 1)]:
            raise _Unknown
        if any(isinstance(p, bool) for p in some):
            raise _Unknown
        if any(_meta(some[k]).dtype is not torch.int64 for k in tensors):
            raise _Unknown
        wide = max((_meta(some[k]).ndim for k in tensors), default=0)
        sizes, at, shared = iter(shape), list[Expr](), list[Expr]()
        for k, p in enumerate(some):
            if p is None:
                axes.pop(0)
            elif k in tensors:
                if k == tensors[0]:
                    shared, axes = axes[:wide], axes[wide:]
                at.append(_within(self.at(p, shared), next(sizes)))
            elif isinstance(p, slice):
                low, size = self.size(p.start or 0), next(sizes)
                if p.step not in (None, 1) or not index.provably_le(ZERO, low):
                    raise _Unknown
                # What begins beyond the end is empty: nothing is asked of its elements.
                at.append(ZERO if size is ONE else axes[0] + low)
                axes.pop(0)
            else:
                at.append(_within(self.size(p), next(sizes)))
        return self.at(x, at)


def _axes(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(ZERO if s is ONE else var(f"i{k}", s) for k, s in enumerate(shape))


def _moved(e: _Element, places: Mapping[Expr, Expr]) -> _Element:
    if isinstance(e, Expr):
        return index.substitute(e, places)
    return _pick(index.substitute(e.on, places), e.yes, e.no)


def _pick(on: Expr, yes: float, no: float) -> _Pick:
    """One number twice where the condition is known."""
    if on is ZERO:
        return _Pick(ONE, no, no)
    return _Pick(on, yes, yes if on is ONE else no)


def _within(e: _Element, size: Expr) -> Expr:
    """A place that is none from the end."""
    if isinstance(e, Expr) and index.provably_le(ZERO, e) and index.provably_lt(e, size):
        return e
    raise _Unknown


def _fits(e: Expr) -> bool:
    """Whether 64 bits hold it."""
    return e.lo is not None and e.hi is not None and -(1 << 63) <= e.lo and e.hi < 1 << 63


def _floating(e: _Element) -> _Pick:
    if isinstance(e, _Pick):
        return e
    if isinstance(e, Const) and abs(e.value) < 1 << 8:  # all types hold it
        return _Pick(ONE, float(e.value), float(e.value))
    if not e.is_bool:
        raise _Unknown
    return _Pick(e, 1.0, 0.0)


def _holds(dtype: torch.dtype, p: _Pick) -> bool:
    """Whether a type has both numbers as they are."""
    t = torch.finfo(dtype)

    def holds(x: float) -> bool:
        within = t.tiny <= abs(x) <= t.max and (2 * math.frexp(x)[0] / t.eps).is_integer()
        return within or x == 0 or math.isinf(x)

    return holds(p.yes) and holds(p.no)


def _where(on: Expr, yes: Expr | bool, no: Expr | bool) -> Expr:
    """Of truth values."""
    return index.or_(index.and_(on, yes), index.and_(index.not_(on), no))


def _picked(on: Expr, yes: _Pick, no: _Pick) -> _Pick:
    """Where that is one of two numbers again."""
    found = {x for p in (yes, no) for x in ((p.yes,) if p.on is ONE else (p.yes, p.no))}
    if len(found) == 1:
        return yes
    if len(found) != 2:
        raise _Unknown
    a, b = sorted(found)
    return _pick(_where(on, *(_where(p.on, p.yes == a, p.no == a) for p in (yes, no))), a, b)


def _computed(name: str, dtype: torch.dtype, *given: _Element) -> _Element:
    """A function of elements, of a type."""
    if all(isinstance(e, Expr) for e in given):
        return INTEGERS[name](*given)
    numbers = [*map(_floating, given)]
    on = {p.on for p in numbers} - {ONE}
    if len(on) > 1 or name not in FLOATS or not all(_holds(dtype, p) for p in numbers):
        raise _Unknown
    yes, no = (FLOATS[name](*x) for x in zip(*((p.yes, p.no) for p in numbers), strict=True))
    condition = on.pop() if on else ONE
    return _where(condition, yes, no) if isinstance(yes, bool) else _pick(condition, yes, no)


def _truths(function: Callable[..., Expr]) -> Callable[..., Expr]:
    """A function of truth values: of integers it goes bit by bit."""

    def of(*given: Expr) -> Expr:
        if not all(e.is_bool or e in (ZERO, ONE) for e in given):
            raise _Unknown
        return function(*given)

    return of


def _quotient(a: Expr, b: Expr) -> Expr:
    if not isinstance(b, Const) or b.value <= 0:
        raise _Unknown
    return index.floordiv(a, b)


COMPARISONS: Final = tuple("eq ne lt le gt ge".split())
INTEGERS: Final[dict[str, Callable[..., Expr]]] = {
    **{name: getattr(index, name) for name in COMPARISONS},
    **dict.fromkeys(("and", "and_", "bitwise_and", "logical_and", "mul"), _truths(index.and_)),
    **dict.fromkeys(("or", "or_", "bitwise_or", "logical_or"), _truths(index.or_)),
    **dict.fromkeys(("invert", "bitwise_not", "logical_not"), _truths(index.not_)),
    **dict.fromkeys(("floordiv", "floor_divide"), _quotient),
    "add": operator.add,
    "sub": operator.sub,
    "neg": operator.neg,
}
FLOATS: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(operator, name) for name in (*COMPARISONS, "add", "sub", "mul", "neg")
}
RULES: Final[dict[str, Callable[..., _Element]]] = {
    **dict.fromkeys("zeros new_zeros zeros_like".split(), _Masks.zeros),
    **dict.fromkeys("ones new_ones ones_like".split(), _Masks.ones),
    **dict.fromkeys("full new_full full_like".split(), _Masks.full),
    **dict.fromkeys(
        (
            "tensor scalar_tensor to type bool long float half bfloat16 contiguous clone detach "
            "expand expand_as broadcast_to"
        ).split(),
        _Masks.aligned,
    ),
    **dict.fromkeys("view reshape unsqueeze squeeze".split(), _Masks.viewed),
    **dict.fromkeys(("tril", "triu"), _Masks.triangle),
    **dict.fromkeys(INTEGERS, _Masks.pointwise),
    **{
        name: getattr(_Masks, name)
        for name in "arange where masked_fill transpose permute cumsum diff getitem".split()
    },
}
MOVES: Final = tuple(RULES[name] for name in ("to", "unsqueeze", "transpose", "permute", "getitem"))
FUNCTIONS: Final = {
    getattr(home, name): name for home in (operator, torch) for name in RULES if hasattr(home, name)
}
PLAIN: Final = frozenset("dtype device layout pin_memory requires_grad memory_format copy".split())
"""Arguments that say nothing of elements but by their type."""


def _name(n: Node) -> str:
    """Of a call whose rule is known, as far as its name says."""
    return plain_name(str(n.target)) if n.op == "call_method" else FUNCTIONS.get(n.target, "")


def _meta(x: Any) -> Any:
    """The value that Dynamo traced, of a node."""
    return x.meta.get("example_value") if isinstance(x, Node) else x
