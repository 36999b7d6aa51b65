"""The table from ATen overloads to lowerings, filled by the family modules when they are imported.

A lowering is a function ``fn(ctx: Call, x, y, *, dim, ..)`` that returns a ``TensorValue`` (or a
tuple of them, None for results that nobody reads).  It takes of the operator's arguments what it
names, bound by the operator's schema and with the schema's defaults: positional parameters take the
leading arguments in order, under names of their own (``*rest`` those that are left); keyword-only
ones take arguments by name (``**rest`` those that are left).  A default of its own stands for an
argument that only some of its overloads have.  Tensors come as ``TensorValue`` and symbolic
integers as ``Expr``.  It raises ``Unsupported(reason)`` to have the call made by ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from inspect import CO_VARARGS, CO_VARKEYWORDS, unwrap
from typing import Any, TypeVar

import torch

from litz.dataclass import dataclass
from litz.ir import body
from litz.ir.body import Node, Scalar
from litz.ir.dtype import DType
from litz.lowering.context import Builder
from litz.lowering.eager import EagerNumerics, eager_on
from litz.lowering.values import ZERO, Shape, TensorValue

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)


@dataclass(frozen=True)
class Result:
    """What the graph says of one tensor result: shape and strides in elements, type, device."""

    dtype: DType
    shape: Shape
    strides: Shape
    device: str


@dataclass(frozen=True)
class Call:
    """One operator call being lowered.

    b: the program under construction.  mutate: see ``before_mutation``.
    result: metadata of the (first) tensor result.
    results: of all results (None for non-tensors).  n_users: how often the result is read.
    used: positions of results that are read, for ops with several.
    last_use: whether a value lies in memory that may be written, as nothing else reads it later,
    but perhaps another argument beside it.
    meta: the fake-tensor value of the node, for what else a lowering needs to know.
    """

    b: Builder
    node: torch.fx.Node
    mutate: Callable[[str, torch.fx.Node], None]
    results: tuple[Result | None, ...]
    n_users: int
    used: frozenset[int]
    last_use: Callable[..., bool] = lambda v, beside=None: False

    @property
    def result(self) -> Result:
        return self.nth_result(0)

    def nth_result(self, position: int) -> Result:
        """Metadata of a result that is a tensor."""
        r = self.results[position]
        assert r is not None
        return r

    @property
    def dtype(self) -> DType:
        return self.result.dtype

    @property
    def shape(self) -> Shape:
        return self.result.shape

    @property
    def eager(self) -> EagerNumerics:
        """What eager mode's kernels do where the result lies."""
        return eager_on(self.result.device)

    @property
    def empty(self) -> bool:
        """Whether the result is known to have no elements."""
        return ZERO in self.shape

    def value(self, node: Node) -> TensorValue:
        """The result whose element over ``axes(self.shape)`` is ``node``, rounded to its type."""
        r = self.result
        return TensorValue(r.dtype, r.shape, r.device, lazy=body.cast(node, r.dtype))

    def full(self, value: Scalar) -> TensorValue:
        """The result with one value everywhere."""
        return self.value(body.const(self.dtype, value))

    def cast(self, x: TensorValue, to: DType | None = None) -> TensorValue:
        """``x`` as another type, the result's if none is given, converted as a user's cast does."""
        to = to or self.dtype
        return x if x.dtype is to else x.with_node(self.b.user_cast(x.node, to))

    def before_mutation(self, target: TensorValue) -> None:
        """To be called before a lowering writes into memory that other values may read."""
        self.mutate(self.b.root(target.memory.buffer), self.node)


@dataclass(frozen=True)
class Bound:
    """A lowering as one overload calls it: ``fn`` gets the arguments that ``of`` names.

    of: the function whose parameters count, from number ``skip`` on.  also: arguments that ``fn``
    takes by name besides.
    """

    overload: torch._ops.OpOverload
    fn: Lowering
    of: Callable[..., Any]
    skip: int
    also: tuple[str, ...]

    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The arguments that are handed on by position, and by name.

        Raises ValueError for a parameter that the overload has no argument for.
        """
        code = self.of.__code__
        own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        wanted, named = own[self.skip : code.co_argcount], own[code.co_argcount :] + self.also
        arguments = self.overload._schema.arguments
        count = len(arguments) if code.co_flags & CO_VARARGS else len(wanted)
        leading = tuple(a.name for a in arguments[:count] if not a.kwarg_only)
        if code.co_flags & CO_VARKEYWORDS:
            named += tuple(a.name for a in arguments if a.name not in (*leading, *named))
        known = {a.name for a in arguments}
        optional = self.of.__kwdefaults__ or {}
        missing = [n for n in named if n not in known and n not in optional]
        missing += wanted[len(leading) : len(wanted) - len(self.of.__defaults__ or ())]
        if missing:
            what = f"{self.of.__module__}.{self.of.__qualname__}"
            raise ValueError(f"{what}: {self.overload} has no argument {', '.join(missing)}")
        return leading, tuple(n for n in named if n in known)

    @cached_property
    def places(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """``names`` with the places of the arguments in the schema."""
        place = {a.name: k for k, a in enumerate(self.overload._schema.arguments)}
        leading, named = self.names()
        return [(place[n], n) for n in leading], [(place[n], n) for n in named]

    @cached_property
    def defaults(self) -> dict[str, Any]:
        arguments = self.overload._schema.arguments
        return {a.name: a.default_value for a in arguments if a.has_default_value()}

    def __call__(self, ctx: Call, *args: Any, **kwargs: Any) -> Any:
        leading, named = self.places
        count = len(args)
        rest = self.defaults | kwargs
        return self.fn(
            ctx,
            *(args[k] if k < count else rest[name] for k, name in leading),
            **{name: args[k] if k < count else rest[name] for k, name in named},
        )


_TABLE: dict[torch._ops.OpOverload, Lowering] = {}
_NAMED: dict[str, Lowering] = {}


def lower(
    *overloads: torch._ops.OpOverload,
    of: Callable[..., Any] | None = None,
    skip: int = 1,
    also: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Register a lowering for operator overloads (once each).

    of, skip, also: see ``Bound``; else its own parameters count, or those of what it wraps.
    Raises ValueError for one that an overload has no argument for.
    """

    def register(fn: F) -> F:
        for o in overloads:
            if o in _TABLE:
                raise ValueError(f"{o} has two lowerings")
            bound = Bound(o, fn, of or unwrap(fn), skip, also)
            bound.names()
            _TABLE[o] = bound
        return fn

    return register


def lower_rows(*rows: tuple[Any, ...]) -> Callable[[F], F]:
    """Register a lowering for rows of an overload and values that it takes before the arguments."""

    def register(fn: F) -> F:
        for overload, *values in rows:
            given = partial(_with_values, fn, values)
            lower(overload, of=fn, skip=1 + len(values))(given)
        return fn

    return register


def _with_values(fn: Lowering, values: list[Any], ctx: Call, *args: Any, **kwargs: Any) -> Any:
    return fn(ctx, *values, *args, **kwargs)


def lower_named(name: str) -> Callable[[F], F]:
    """Register a lowering for an operator that PyTorch defines when it first uses it."""

    def register(fn: F) -> F:
        _NAMED[name] = fn
        return fn

    return register


def find(target: object) -> Lowering | None:
    if not isinstance(target, torch._ops.OpOverload):
        return None
    found = _TABLE.get(target)
    if found is None and (late := _NAMED.get(target._schema.name)) is not None:
        found = _TABLE[target] = Bound(target, late, late, 1, ())
    return found
