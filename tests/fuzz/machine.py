"""Running a program step by step, in its own types and in float64 beside them.

The float64 shadow is anchored to eager's bits wherever those are determined: only steps that may
round differently are recomputed from shadows.  So the shadow is what exact arithmetic gives after
the same decisions (comparisons, casts to integers, indices) as eager's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tests.fuzz.program import Draw, Input, Program, Step, entered, one_step, tensors
from tests.fuzz.undetermined import open_result

MAX_ELEMENTS = 1 << 21
# Algorithms that transform their operands (Winograd, FFT) err with the largest of the elements.
TRANSFORMS = ("F.conv",)
TRANSFORMED = 8.0
# A smaller number may have become the zero that tells what a dropout dropped.
TINY = 1e-6


class Rejected(Exception):
    """The step has no defined result here."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def storage(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def overlapping(x: torch.Tensor) -> bool:
    """Whether elements may share memory (a write to it would depend on the order)."""
    at = 1
    for st, s in sorted((abs(st), s) for st, s in zip(x.stride(), x.shape, strict=True) if s > 1):
        if st < at:
            return True
        at = st * s
    return False


def fits(x: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a cast of floats to an integer type is defined, and not by a hair."""
    if not bool(torch.isfinite(x).all()):
        return False
    if x.numel() == 0 or dtype is torch.bool:
        return True
    info = torch.iinfo(dtype)
    wide = x.double().trunc()
    return bool(wide.min() >= info.min) and bool(wide.max() <= float(info.max) * (1 - 2**-20))


def _result_size(step: Step, args: list[Any]) -> int:
    """How many elements a result will have, as far as that shows without memory for it."""
    if not any(isinstance(a, torch.Tensor) and a.numel() ** 2 > MAX_ELEMENTS for a in args):
        return 0

    def shape_of(a: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            return a
        return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")

    try:
        out = one_step(step.text, len(args), False)(*map(shape_of, args))
    except Exception:  # its shape depends on data, or eager refuses it too
        return 0
    sizes = [
        t.numel() for t in (out if isinstance(out, tuple | list) else (out,)) if hasattr(t, "numel")
    ]
    return max(sizes, default=0)


class Machine:
    """The state after some steps.

    noise: seed of roundings that are added to the shadow.
    draws: what steps drew (see ``Draw``), by the number of their value; others draw here.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        noise: int | None = None,
        draws: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        self.grad = any(i.grad for i in inputs)
        # CUDA's kernels promise less than the CPU's: quotients by numbers are products, say.
        self.cuda = any(i.device == "cuda" for i in inputs)
        self.values: list[Any] = list(tensors(inputs))
        self.shadows: list[Any] = list(tensors(inputs, exact=True))
        self.inputs = len(self.values)
        # Memory whose elements may differ by rounding; memory that must not become so.
        self.rough: set[int] = set()
        self.pinned: set[int] = set()
        self.expanded: set[int] = set()
        self.drawn: set[int] = set()
        self.draws = draws or {}
        self.noise = None if noise is None else torch.Generator().manual_seed(noise)

    def insert_input(self, i: Input) -> None:
        """Another argument behind the others."""
        self.values.insert(self.inputs, tensors((i,))[0])
        self.shadows.insert(self.inputs, tensors((i,), exact=True)[0])
        self.inputs += 1
        self.grad |= i.grad

    def marks(self) -> tuple[frozenset[int], ...]:
        """What is known of memories; to be restored where values are taken back."""
        return tuple(map(frozenset, (self.rough, self.pinned, self.expanded, self.drawn)))

    def restore(self, marks: tuple[frozenset[int], ...]) -> None:
        self.rough, self.pinned, self.expanded, self.drawn = map(set, marks)

    def is_rough(self, k: int) -> bool:
        v = self.values[k]
        return isinstance(v, torch.Tensor) and storage(v) in self.rough

    def run(self, step: Step) -> None:
        """Append the value of one step; raises Rejected (or what eager raises) and may leave
        written arguments changed."""
        args = [self.values[a] for a in step.args]
        self._admit(step, args)
        if _result_size(step, args) > MAX_ELEMENTS:
            raise Rejected("a result that would fill the memory")
        if step.draw is not None:
            self._draw(step, step.draw, args)
            return
        with entered(step.under, False):
            out = one_step(step.text, len(args), False)(*args)
        if step.text.startswith("!"):
            out = args[0]
        for t in out if isinstance(out, tuple | list) else (out,):
            self._check_result(step, args, t)
        shadows = [self.shadows[a] for a in step.args]
        if self.noise is not None and step.kind == "rough":
            # A sum rounds on the way: its error goes with the largest of its terms.  Those that it
            # writes it may leave as they are, but for what it does write: see below.
            n = int(step.writes)
            shaken = [self._shaken(s, e, step) for s, e in zip(shadows, args, strict=True)]
            shadows = [*shadows[:n], *shaken[n:]]
        elif self.noise is not None and self.grad and step.kind != "view" and not step.writes:
            shadows = [self._shaken_back(s, e) for s, e in zip(shadows, args, strict=True)]
        before = [s.detach().clone() for s in shadows[: self._shakes_written(step)]]
        if ".view(torch." in step.text:
            shadow = out  # the bits of another width would be others: see _settle
        else:
            with default_dtype(torch.float64), entered(step.under, True):
                shadow = one_step(step.text, len(args), True)(*shadows)
        for s, e, was in zip(shadows, args, before, strict=False):
            s.add_(self._shaken(was, e, step) - was)
        if step.text.startswith("!"):
            shadow = shadows[0]
        loose = step.kind == "rough" or any(map(self.is_rough, step.args))
        if (self.grad or self.cuda) and step.kind == "exact":
            loose = True
        if isinstance(out, tuple | list):
            pairs = list(zip(out, shadow, strict=True))
        else:
            pairs = [(out, shadow)]
        made = [self._settle(step, e, s, loose) for e, s in pairs]
        if loose:
            self.rough.update(storage(t) for t in args[: step.writes] if t.is_floating_point())
        self.values.append(out)
        self.shadows.append(tuple(made) if isinstance(out, tuple | list) else made[0])
        if step.writes and not self.grad:
            self._anchor_all()

    def _draw(self, step: Step, draw: Draw, args: list[Any]) -> None:
        """A step of random numbers: those that were drawn elsewhere, or eager's."""
        known = self.draws.get(len(self.values))
        torch.manual_seed(len(self.drawn))
        with entered(step.under, False), torch.no_grad():
            like = one_step(step.text, len(args), False)(*args)
        self._check_result(step, args, like)
        seen = one_step(draw.seen, 1, False)(like) if known is None else known
        if draw.pure:
            like.copy_(seen)
            self.values.append(like)
            self.shadows.append(like.double() if like.is_floating_point() else like.clone())
            self.drawn.add(storage(like))
            return
        gives = one_step(draw.gives, len(args) + 1, False)
        with entered(step.under, False):
            out = gives(*args, seen.to(like.dtype)).to(like.dtype)
        if out.stride() != like.stride():
            raise Rejected("a layout that eager's kernel gives and its formula does not")
        with default_dtype(torch.float64), entered(step.under, True):
            exact = one_step(draw.gives, len(args) + 1, True)
            shadow = exact(*(self.shadows[a] for a in step.args), seen.double())
        self.values.append(out)
        self.shadows.append(self._settle(step, out, shadow, True))
        self.drawn.add(storage(out))

    def _shakes_written(self, step: Step) -> int:
        """How many of what a step writes err by what it finds there: a mean taken off, say."""
        shakes = self.noise is not None and step.kind == "rough" and not self.grad
        return int(step.writes) if shakes else 0

    def _admit(self, step: Step, args: list[Any]) -> None:
        if not all(isinstance(a, torch.Tensor) or step.kind == "view" for a in args):
            raise Rejected("a tuple as an argument")
        rough = any(map(self.is_rough, step.args))
        if step.kind in ("discrete", "cast") and rough:
            raise Rejected("a decision on a rounded value")
        why = open_result(step.text, [a for a in args if isinstance(a, torch.Tensor)], self.cuda)
        if why:
            raise Rejected(why)
        if step.draw is not None and not step.draw.pure:
            for a in args:
                if bool((a.abs() < TINY).any()) or not bool(torch.isfinite(a).all()):
                    raise Rejected("a zero that tells nothing of what was dropped")
        written = args[: step.writes]
        if any(storage(t) in self.drawn for t in written):
            raise Rejected("a write to random numbers, which the judge has to see")
        if len({storage(t) for t in written}) < len(written):
            raise Rejected("writes into the same memory, in any order")
        for target in written:
            if overlapping(target):
                raise Rejected("a write into overlapping memory")
            if storage(target) in self.expanded:
                # Functionalisation undoes an expand by a sum, which rounds, whatever the backend.
                raise Rejected("a write into memory that has an expanded view")
            if "out=" in step.text and not target.is_contiguous():
                raise Rejected("an out= that Dynamo refuses")
            if (rough or step.kind == "rough") and (
                not target.is_floating_point() or storage(target) in self.pinned
            ):
                raise Rejected("rounded values into exact memory")
            if not target.is_floating_point():
                for a in args[1:]:
                    if a.is_floating_point() and not fits(a, target.dtype):
                        raise Rejected("a cast out of range")

    def _check_result(self, step: Step, args: list[Any], out: Any) -> None:
        if not isinstance(out, torch.Tensor) or out.numel() > MAX_ELEMENTS or out.ndim > 6:
            raise Rejected("no result of a size to work with")
        rough = any(map(self.is_rough, step.args))
        if not out.is_floating_point() and (rough and step.kind != "view"):
            raise Rejected("a decision on a rounded value")
        if step.kind == "cast" and not out.is_floating_point() and args[0].is_floating_point():
            if not fits(args[0], out.dtype):
                raise Rejected("a cast out of range")
        if ".expand(" in step.text:
            self.expanded.add(storage(out))
        if ".view(torch." in step.text:
            if rough:
                raise Rejected("bits of a rounded value")
            self.pinned.add(storage(out))
        for t in (out, *args[: step.writes]):
            if storage(t) in self.pinned and bool(torch.isnan(t).any()):
                raise Rejected("nan where integers are read: its bits are nobody's promise")

    def _settle(self, step: Step, e: torch.Tensor, s: torch.Tensor, loose: bool) -> torch.Tensor:
        if s.shape != e.shape:
            raise Rejected("another shape in float64")
        if e.is_floating_point() and loose:
            self.rough.add(storage(e))
            if self.noise is not None and step.kind != "view":
                if not self.grad and not overlapping(s):
                    s.copy_(self._shaken(s, e, step))
                elif not step.writes:
                    s = self._shaken(s, e, step)
            return s
        if ".view(torch." in step.text:
            return e.detach().clone() if not e.is_floating_point() else e.detach().double()
        if not self.grad and storage(e) not in self.rough and not overlapping(s):
            s.copy_(e)
        return s

    def _shaken(self, shadow: torch.Tensor, like: torch.Tensor, step: Step) -> torch.Tensor:
        """The values with a rounding of the type of ``like`` each, and so their gradients."""
        if not like.is_floating_point():
            return shadow
        eps = torch.finfo(like.dtype).eps
        if step.under.startswith("autocast") and like.dtype is not torch.float64:
            eps = max(eps, torch.finfo(getattr(torch, step.under.partition(" ")[2])).eps)
        transforms = any(w in step.text for w in TRANSFORMS)

        def draw() -> torch.Tensor:
            noise = torch.rand(shadow.shape, generator=self.noise, device="cpu")
            return eps * (2 * noise.to(shadow.device) - 1).double()

        def near(t: torch.Tensor, noise: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            t = t * (1 + noise)
            if transforms and t.numel():
                t = t + TRANSFORMED * other * t.detach().abs().max()
            return t

        out = near(shadow, draw(), draw() if transforms else shadow)
        if not shadow.requires_grad:
            # Nor is the sign of a zero settled that rounding made.
            signs = 2 * torch.randint(0, 2, shadow.shape, generator=self.noise, device="cpu") - 1
            out = torch.where(out == 0, out * signs.to(out.device), out)
        if out.requires_grad:
            back, more = draw(), draw() if transforms else shadow
            out.register_hook(lambda g: None if g is None else near(g, back, more))  # type: ignore[no-untyped-call]
        return out

    def _shaken_back(self, shadow: Any, like: torch.Tensor) -> Any:
        """The same values; what each use of them adds to the gradient rounds by itself."""
        if not shadow.requires_grad:
            return shadow
        eps, out = torch.finfo(like.dtype).eps, shadow.view_as(shadow)
        back = eps * (2 * torch.rand(out.shape, generator=self.noise, device="cpu") - 1)
        back = back.to(shadow.device).double()
        out.register_hook(lambda g: None if g is None else g * (1 + back))
        return out

    def _anchor_all(self) -> None:
        for e, s in zip(self.values, self.shadows, strict=True):
            if isinstance(e, torch.Tensor) and storage(e) not in self.rough and not overlapping(s):
                s.copy_(e)


def replay(
    p: Program,
    inputs: Sequence[Input],
    noise: int | None = None,
    draws: Mapping[int, torch.Tensor] | None = None,
) -> Machine:
    """Run the whole program; raises what a step raises."""
    m = Machine(inputs, noise, draws)
    for s in p.steps:
        m.run(s)
    return m
