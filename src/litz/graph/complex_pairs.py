"""Complex numbers as pairs of real ones, so that kernels compute them.

Of a complex tensor in memory the parts are strided views (``view_as_real``).  What is computed from
it stays two real values until something wants it whole: ATen, or who called the graph.  What only
views memory stays a view, and a call alone between whole tensors stays one of ATen's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from litz.dataclass import dataclass
from litz.graph.aliasing import is_view_op, shown, viewed
from litz.graph.calls import argument
from litz.graph.values import add_call, same_dims, same_value

aten = torch.ops.aten

Part = Any  # a real node, or a number that stands for all elements
Pair = tuple[Part, Part]
READS: Final = (aten.gather.default, aten.index.Tensor, aten.index_select.default)
REAL: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def compute_in_pairs(gm: GraphModule) -> bool:
    """Replace complex arithmetic by real arithmetic on both parts."""
    return any(map(_is_complex, gm.graph.nodes)) and _Rewriting(gm).run()


def _is_complex(value: object) -> bool:
    if isinstance(value, Node):
        val = value.meta.get("val")
        return isinstance(val, torch.Tensor) and val.is_complex()
    return isinstance(value, complex)


def _is_tensor(n: Node) -> bool:
    return isinstance(n.meta.get("val"), torch.Tensor)


@dataclass
class _Rewriting:
    """pairs: of complex values, as far as they were asked for.

    computed: those that are in no memory, and views of them.
    """

    gm: GraphModule
    pairs: dict[Node, Pair] = field(default_factory=dict)
    computed: dict[Node, None] = field(default_factory=dict)

    def run(self) -> bool:
        changed = False
        for n in list(self.gm.graph.nodes):
            given = [a for a in n.all_input_nodes if _is_complex(a)]
            if not (given or _is_complex(n)) or not self.applies(n, given):
                continue
            at = _At(self, n, n)
            made = at.fitting(RULES[n.target](at, n))
            if made is None:
                continue
            changed = True
            if _is_complex(n):
                self.pairs[n] = made
                self.computed[n] = None
            else:
                n.replace_all_uses_with(made)
                self.gm.graph.erase_node(n)
        for n in reversed(self.computed):
            if n.users and not is_view_op(n.target):
                at = _At(self, n, n)
                whole = at.fitting(at.whole(self.pairs[n]))
                if whole is not None:
                    n.replace_all_uses_with(whole)
            if not n.users:
                self.gm.graph.erase_node(n)
        return changed

    def applies(self, n: Node, given: Sequence[Node]) -> bool:
        """Whether a call is computed from parts."""
        if n.target not in RULES or not all(map(self.has_parts, given)):
            return False
        computed = any(a in self.computed for a in given)
        if not _is_complex(n):
            return not self.shown(n) if computed else not is_view_op(n.target)
        if n.meta["val"].dtype not in REAL or is_view_op(n.target) or computed:
            return computed
        made = bool(not given and n.all_input_nodes)
        given_parts = all(a.op == "placeholder" for a in n.all_input_nodes)
        if n.target is aten.complex.default and given_parts:
            made = False  # ATen puts together what it is given in one call
        return made or any(map(self.goes_on, n.users))

    def has_parts(self, n: Node) -> bool:
        val = n.meta["val"]
        if n in self.computed:
            return True
        if n.target in VIEWS:
            base = n.args[0]
            return not _is_complex(base) or isinstance(base, Node) and self.has_parts(base)
        return val.dtype in REAL and val.layout is torch.strided and not val.is_conj()

    def shown(self, n: Node) -> bool:
        """Whether results lie in the memory that a value is a view of, and show that it is one."""
        while (base := viewed(n)) is not None:
            n = base
        return len(shown(n)) > 1

    def goes_on(self, user: Node) -> bool:
        """Whether a reader of a value takes its parts, itself or behind views."""
        if _is_complex(user) and user.target in VIEWS:
            return any(map(self.goes_on, user.users))
        return user.target in RULES

    def parts(self, value: Any) -> Pair:
        """Both parts of an argument; a real tensor's second one is zero."""
        if isinstance(value, complex):
            return value.real, value.imag
        if not _is_complex(value):
            return value, 0.0
        if value not in self.pairs:
            behind = value.next
            while behind.op == "placeholder":
                behind = behind.next
            at = _At(self, value, behind)
            self.pairs[value] = VIEWS.get(value.target, _in_memory)(at, value)
        return self.pairs[value]


@dataclass(frozen=True)
class _At:
    """Makes calls in front of a node, for the value ``n``."""

    rewriting: _Rewriting
    n: Node
    before: Node

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        with self.n.graph.inserting_before(self.before):
            return add_call(self.n, target, args, kwargs)

    def fitting(self, made: Any) -> Any:
        """What is made for the value, or None if that is laid out otherwise."""
        if made is None or isinstance(made, tuple):  # real ones in the shape of complex ones
            return made if _is_complex(self.n) else None
        return made if same_value(made.meta["val"], self.n.meta["val"], idle=False) else None

    @property
    def dtype(self) -> torch.dtype:
        """Of the parts that the call computes with."""
        values = [a.meta["val"] for a in (self.n, *self.n.all_input_nodes) if _is_complex(a)]
        return REAL[values[0].dtype]

    @property
    def kind(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "device": self.n.meta["val"].device}

    def parts(self, value: Any) -> Pair:
        """Both parts of an argument, of the type that the call computes in."""
        re, im = self.rewriting.parts(value)
        return self.cast(re), self.cast(im)

    def cast(self, x: Part) -> Part:
        if not isinstance(x, Node):
            return x
        if not _is_tensor(x):  # a number that is not known
            return self(aten.full.default, [], x, **self.kind)
        same = x.meta["val"].dtype is self.dtype
        return x if same else self(aten._to_copy.default, x, dtype=self.dtype)

    def filled(self, x: Part) -> Node:
        """A part with all elements of the value."""
        val = self.n.meta["val"]
        if isinstance(x, Node):
            same = same_dims(x.meta["val"].shape, val.shape)
            return x if same else self(aten.expand.default, x, list(val.shape))
        return self(aten.full.default, list(val.shape), x, **self.kind)

    def whole(self, pair: Pair) -> Node:
        """The value in memory, its dimensions in the order in which they lie."""
        val = self.n.meta["val"]
        known = all(isinstance(s, int) for s in val.stride())  # to compare others takes guards
        order = sorted(range(val.dim()), key=lambda k: -val.stride(k) if known else k)
        parts = [self(aten.permute.default, self.filled(x), order) for x in pair]
        made = self(aten.view_as_complex.default, self(aten.stack.default, parts, -1))
        if order == sorted(order):
            return made
        return self(aten.permute.default, made, [order.index(k) for k in range(val.dim())])

    # Of nodes a call, of numbers a number.

    def neg(self, x: Part) -> Part:
        return self(aten.neg.default, x) if isinstance(x, Node) else -x

    def mul(self, x: Part, y: Part) -> Part:
        if not isinstance(x, Node):
            x, y = y, x
        return self(aten.mul.Tensor, x, y) if isinstance(x, Node) else x * y

    def add(self, x: Part, y: Part) -> Part:
        x, y = (x, y) if isinstance(x, Node) else (y, x)
        return self(aten.add.Tensor, x, y) if isinstance(x, Node) else x + y

    def sub(self, x: Part, y: Part) -> Part:
        if not isinstance(x, Node) and isinstance(y, Node):
            return self(aten.rsub.Scalar, y, x)
        return self(aten.sub.Tensor, x, y) if isinstance(x, Node) else x - y


def _in_memory(at: _At, n: Node) -> Pair:
    return _selected(at, at(aten.view_as_real.default, n))


def _selected(at: _At, pairs: Node) -> Pair:
    return at(aten.select.int, pairs, -1, 0), at(aten.select.int, pairs, -1, 1)


# --- calls ----------------------------------------------------------------------------------------


def _each(at: _At, n: Node, target: Any = None) -> Pair:
    """The same call of either part; a number is one for all elements of the result."""
    call = partial(at, target or n.target)
    re, im = (
        call(x, *n.args[1:], **n.kwargs) if isinstance(x, Node) else x
        for x in at.rewriting.parts(n.args[0])
    )
    return re, im


def _gathered(at: _At, n: Node) -> Pair | None:
    """The same call of either part, in which each element of an argument counts."""
    mixed = n.target not in READS and not all(
        map(_is_complex, filter(_is_tensor, n.all_input_nodes))
    )
    if mixed or n.kwargs.get("dtype") is not None:
        return None

    def call(k: int) -> Node:
        def part(a: Node) -> Node:
            whole = _At(at.rewriting, a, at.before)
            return whole.filled(at.rewriting.parts(a)[k]) if _is_complex(a) else a

        args, kwargs = torch.fx.map_arg((n.args, dict(n.kwargs)), part)
        return at(n.target, *args, **kwargs)

    return call(0), call(1)


def _conjugate(at: _At, n: Node) -> Pair:
    re, im = at.parts(n.args[0])
    return re, at.neg(im)


def _product(at: _At, x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    re = at.sub(at.mul(a, c), at.mul(b, d))
    return re, at.add(at.mul(a, d), at.mul(b, c))


def _sum(at: _At, n: Node, sign: float) -> Pair:
    """Eager mode multiplies by a complex alpha, of which inf has a nan."""
    x, y = (at.parts(v) for v in n.args[:2])
    alpha: Any = argument(n, 2, "alpha", 1)
    factor = (
        (at.mul(at.cast(alpha), sign), 0.0) if isinstance(alpha, Node) else at.parts(sign * alpha)
    )
    re, im = _product(at, y, factor)
    return at.add(x[0], re), at.add(x[1], im)


def _angle(at: _At, n: Node) -> Node:
    re, im = map(at.filled, at.parts(n.args[0]))
    return at(aten.atan2.default, im, re)


def _sgn(at: _At, n: Node) -> Pair:
    """z / abs(z), and 0 for 0."""
    re, im = map(at.filled, at.parts(n.args[0]))
    size = at(aten.hypot.default, re, im)
    zero = at(aten.eq.Scalar, size, 0)
    found = [at(aten.div.Tensor, x, size) for x in (re, im)]
    re, im = (at(aten.masked_fill.Scalar, x, zero, 0) for x in found)
    return re, im


def _complex(at: _At, n: Node) -> Pair | None:
    """Both parts as they are given; ATen refuses parts of two types, metadata does not."""
    if len({a.meta["val"].dtype for a in n.all_input_nodes}) > 1:
        return None
    re, im = map(at.filled, n.args)
    return re, im


def _polar(at: _At, n: Node) -> Pair:
    size, angle = n.args
    re, im = (at.mul(size, at(f, angle)) for f in (aten.cos.default, aten.sin.default))
    return re, im


def _where(at: _At, n: Node) -> Pair:
    of, *values = n.args
    parts = zip(*(map(at.filled, at.parts(v)) for v in values), strict=True)
    re, im = (at(aten.where.self, of, *each) for each in parts)
    return re, im


def _full(at: _At, n: Node) -> Pair:
    re, im = at.parts(argument(n, 1, "fill_value", 0))
    return at.filled(re) if isinstance(re, Node) else re, im


def _copied(at: _At, n: Node) -> Pair | None:
    """The second argument, in the shape and type of the first, whose elements do not count."""
    return at.parts(n.args[1]) if _is_complex(n) else None


def _padded(at: _At, n: Node) -> Pair | None:
    return None if argument(n, 2, "value", 0) else _gathered(at, n)


def _as_real(at: _At, n: Node) -> Node:
    base = n.args[0]
    assert isinstance(base, Node)
    own = _At(at.rewriting, base, at.before)
    return at(aten.stack.default, [own.filled(x) for x in at.rewriting.parts(base)], -1)


VIEWS: Final[Mapping[Any, Callable[[_At, Node], Pair]]] = {
    **dict.fromkeys(
        (
            aten.alias.default, aten.detach.default, aten.expand.default, aten.permute.default,
            aten.select.int, aten.slice.Tensor, aten.squeeze.default, aten.squeeze.dim,
            aten.squeeze.dims, aten.t.default, aten.transpose.int, aten.unsqueeze.default,
        ),
        _each,
    ),
    # Parts that lie apart are copied where the whole is viewed as well.
    **dict.fromkeys(
        (aten.view.default, aten._unsafe_view.default, aten.reshape.default),
        partial(_each, target=aten.reshape.default),
    ),
    aten._conj.default: _conjugate,
    aten.resolve_conj.default: lambda at, n: at.parts(n.args[0]),
    aten.view_as_complex.default: lambda at, n: _selected(at, n.all_input_nodes[0]),
}  # fmt: skip

RULES: Final[Mapping[Any, Callable[[_At, Node], Any]]] = {
    **VIEWS,
    **dict.fromkeys(
        (aten.clone.default, aten.flip.default, aten.repeat.default),
        _each,
    ),
    **dict.fromkeys(
        (
            *READS, aten.cat.default, aten.mean.dim, aten.roll.default, aten.select_scatter.default,
            aten.slice_scatter.default, aten.stack.default, aten.sum.default, aten.sum.dim_IntList,
            aten.select_backward.default, aten.slice_backward.default,
        ),
        _gathered,
    ),
    aten.neg.default: lambda at, n: tuple(map(at.neg, at.parts(n.args[0]))),
    aten._conj_physical.default: _conjugate,
    aten.conj_physical.default: _conjugate,
    **dict.fromkeys(
        (aten.mul.Tensor, aten.mul.Scalar),
        lambda at, n: _product(at, *map(at.parts, n.args[:2])),
    ),
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), partial(_sum, sign=1.0)),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), partial(_sum, sign=-1.0)),
    aten.abs.default: lambda at, n: at(aten.hypot.default, *map(at.filled, at.parts(n.args[0]))),
    aten.angle.default: _angle,
    aten.sgn.default: _sgn,
    aten.polar.default: _polar,
    aten.complex.default: _complex,
    aten.where.self: _where,
    aten.copy.default: _copied,
    aten.constant_pad_nd.default: _padded,
    aten.full.default: _full,
    aten.full_like.default: _full,
    **dict.fromkeys((aten.new_zeros.default, aten.zeros_like.default), lambda at, n: (0.0, 0.0)),
    aten.view_as_real.default: _as_real,
}  # fmt: skip
