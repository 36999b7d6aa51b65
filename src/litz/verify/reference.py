"""What graph nodes mean: ATen itself, in the graph's own types, in float64, or perturbed.

Perturbed evaluations (Monte Carlo arithmetic: Parker, 1997) multiply every value by ``1 + u * eps``
with random ``u`` in [-1/2, 1/2] and ``eps`` of the value's own type, as one rounding does.  How far
they scatter is what rounding alone can do to a result, discontinuities included.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from litz.dataclass import dataclass
from litz.graph.aliasing import is_view_op

aten = torch.ops.aten

Env = dict[Node, Any]
# Comparisons, whose outcome rounding decides where both sides are about equal.
COMPARISONS = frozenset((aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge))
NEARLY = 4.0  # rounding errors between numbers that count as about equal


@dataclass
class Perturbation:
    """Random relative errors: ``scale`` times those of rounding."""

    scale: float
    seed: int
    generators: dict[torch.device, torch.Generator] = field(default_factory=dict)

    def __call__(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``x`` (float64) with errors as large as those of ``dtype``."""
        return x * (1 + self.scale * torch.finfo(dtype).eps * self._draw(x))

    def compared(
        self, outcome: torch.Tensor, sides: Sequence[torch.Tensor], eps: float
    ) -> torch.Tensor:
        """The outcome of a comparison; where the sides are about equal, it may be either."""
        a, b = sides
        size = torch.maximum(a.abs(), b.abs())
        about = (a - b).abs() < NEARLY * self.scale * eps * size
        return outcome ^ (about & (self._draw(outcome) > 0))

    def _draw(self, x: torch.Tensor) -> torch.Tensor:
        """A number of [-1/2, 1/2) for each element."""
        g = self.generators.get(x.device)
        if g is None:
            g = self.generators[x.device] = torch.Generator(x.device)
            g.manual_seed(self.seed)
        u = torch.empty(x.shape, dtype=torch.float64, device=x.device)
        return u.uniform_(-0.5, 0.5, generator=g)


@dataclass(frozen=True)
class Rule:
    """The meaning of a random operator, given what it drew.

    drawn: the position of the result that shows what was drawn.  results: from the arguments and
    that result to all results.
    """

    drawn: int
    results: Callable[..., tuple[Any, ...]]


def _dropout(mask: torch.Tensor, x: torch.Tensor, p: float, train: Any) -> tuple[Any, ...]:
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return torch.mul(torch.mul(x, mask), scale), mask


RULES: Mapping[object, Rule] = {aten.native_dropout.default: Rule(1, _dropout)}

# Their results depend on the type of their arguments, not on the values alone.
OWN_TYPE_ONLY = frozenset(
    ("view.dtype", "nan_to_num", "nextafter", "frexp", "histc", "bitwise_left_shift")
)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for floating types, complex128 for complex ones; others as they are."""
    if dtype.is_floating_point:
        return torch.float64
    return torch.complex128 if dtype.is_complex else dtype


def widen(value: Any) -> Any:
    """Tensors in float64, with the same strides where they describe memory once."""
    if isinstance(value, torch.Tensor):
        dtype = wide_dtype(value.dtype)
        return value if value.dtype is dtype else value.to(dtype)
    if isinstance(value, list | tuple):
        return type(value)(widen(v) for v in value)
    return value


class Reference:
    """Evaluates nodes in all the ways from the same leaves.

    leaves: values of nodes, in their own types.  drawn: what random operators drew.
    number: the value of a symbolic number that a call has as an argument.
    Every evaluation raises what ATen raises.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        leaves: Mapping[Node, Any],
        drawn: Mapping[Node, Any],
        number: Callable[[Any], Any],
    ) -> None:
        self.nodes, self.leaves, self.drawn, self.number = nodes, leaves, drawn, number
        self._own: Env | None = None
        self._exact: Env | None = None

    def own(self) -> Env:
        """In the graph's own types: what eager computes."""
        if self._own is None:
            env: Env = dict(self.leaves)
            for n in self.nodes:
                env[n] = self._call(n, env)
            self._own = env
        return self._own

    def exact(self) -> Env:
        """In float64."""
        if self._exact is None:
            self._exact = self._wide(None)
        return self._exact

    def perturbed(self, scale: float, seed: int) -> Env:
        """In float64 with random relative errors: ``scale`` times those of rounding."""
        return self._wide(Perturbation(scale, seed))

    def _wide(self, perturb: Perturbation | None) -> Env:
        own = self.own()
        env: Env = {}
        for n, v in self.leaves.items():
            env[n] = _perturbed(widen(v), v, perturb)
        for n in self.nodes:
            value = self._wide_call(n, env, own)
            # What only moves data neither rounds nor may come apart from what it is a view of.
            moves = is_view_op(n.target) or n.target is operator.getitem
            env[n] = value if moves else _perturbed(value, own[n], perturb)
            if perturb is not None and _compares(n):
                env[n] = self._compared(n, env, own, perturb)
        return env

    def _compared(self, n: Node, env: Env, own: Env, perturb: Perturbation) -> torch.Tensor:
        """A comparison of floats; not of two that are 0, which no rounding moves."""
        outcome: torch.Tensor = env[n]
        given = [own[a] for a in n.args if isinstance(a, Node)]
        types = [v.dtype for v in given if isinstance(v, torch.Tensor) and v.is_floating_point()]
        if not types:
            return outcome
        sides = [env[a] if isinstance(a, Node) else a for a in n.args[:2]]
        if not all(isinstance(v, torch.Tensor | int | float) for v in sides):
            return outcome
        wide = [torch.as_tensor(v, dtype=torch.float64, device=outcome.device) for v in sides]
        return perturb.compared(outcome, wide, max(torch.finfo(t).eps for t in types))

    def _wide_call(self, n: Node, env: Env, own: Env) -> Any:
        if not _is_tensor_valued(own[n]):
            return own[n]  # numbers steer what follows: they are Litz's own, not better ones
        if reads_storage(n):
            return widen(own[n])
        if not _wants_own_type(n.target):
            try:
                return widen(self._call(n, env, wide_dtype))
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                pass  # no float64 for this operator: its own type has to do
        narrow = {a: _like(env[a], own[a]) for a in n.all_input_nodes}
        return widen(self._call(n, narrow))

    def _call(
        self, n: Node, env: Mapping[Node, Any], dtype: Callable[[torch.dtype], Any] | None = None
    ) -> Any:
        def leaf(v: Any) -> Any:
            if isinstance(v, Node):
                return env[v]
            if isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool):
                return self.number(v)
            if isinstance(v, torch.dtype) and dtype is not None:
                return dtype(v)
            return v

        args: Any = map_aggregate(n.args, leaf)
        kwargs: Any = map_aggregate(n.kwargs, leaf)
        rule = RULES.get(n.target)
        if rule is not None:
            return rule.results(self.drawn[n], *args, **kwargs)
        assert callable(n.target)
        if isinstance(n.target, torch._ops.OpOverload):
            args, kwargs = _apart(n.target, args, dict(kwargs), dtype is not None)
        return n.target(*args, **kwargs)


def _apart(
    target: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], wide: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of which those that the call writes are copies, and none asks for a half type."""
    if not target._schema.is_mutable and "half_to_float" not in str(target._schema):
        return args, kwargs
    new = list(args)
    for k, a in enumerate(target._schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            if k < len(new):
                new[k] = _copy(new[k])
            elif a.name in kwargs:
                kwargs[a.name] = _copy(kwargs[a.name])
        elif a.name == "half_to_float" and wide:
            if k < len(new):
                new[k] = False
            else:
                kwargs[a.name] = False
    return tuple(new), kwargs


def _copy(value: Any) -> Any:
    return map_aggregate(value, lambda v: v.clone() if isinstance(v, torch.Tensor) else v)


def reads_storage(n: Node) -> bool:
    """Whether the call looks at its argument's memory, beyond the elements that it shows."""
    return getattr(n.target, "overloadpacket", None) in (aten.as_strided, aten.as_strided_copy)


def _is_tensor_valued(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_tensor_valued(v) for v in value)
    return isinstance(value, torch.Tensor)


def _wants_own_type(target: object) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    packet = target._schema.name.partition("::")[2]
    return packet in OWN_TYPE_ONLY or f"{packet}.{target._overloadname}" in OWN_TYPE_ONLY


def _compares(n: Node) -> bool:
    return getattr(n.target, "overloadpacket", None) in COMPARISONS


def _perturbed(value: Any, own: Any, perturb: Perturbation | None) -> Any:
    if perturb is None:
        return value
    if isinstance(value, list | tuple):
        return tuple(_perturbed(v, o, perturb) for v, o in zip(value, own, strict=True))
    if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
        return perturb(value, own.dtype) if own.dtype.is_floating_point else value
    return value


def _like(value: Any, own: Any) -> Any:
    """``value`` in the type that it has in the graph."""
    if isinstance(value, list | tuple):
        return type(value)(_like(v, o) for v, o in zip(value, own, strict=True))
    if isinstance(value, torch.Tensor) and value.dtype is not own.dtype:
        return value.to(own.dtype)
    return value
