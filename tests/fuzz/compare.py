"""What a compiled run must share with eager: bits where they are determined, else closeness to
float64; dtype, shape and strides; the memory of the arguments; which results share memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz.machine import Machine, overlapping, replay, storage
from tests.fuzz.program import Draw, Input, Program, function, memory, one_step, tensors

# What rounding alone may cost where eager happens to be exact, relative to the largest element.
FLOOR = {
    torch.float64: 1e-13,  # the shadow rounds as eager does, but for the order of sums
    torch.float32: 2e-6,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}
NOISE_RUNS = 4
SEED = 11  # of the random numbers that a compiled program draws


@dataclass(frozen=True)
class Expected:
    """One tensor that eager made, its float64 shadow, and whether its bits are determined.

    floor: see FLOOR; a gradient gathers in the types on its way, of which one may be float32.
    scale: what its terms are as large as at least, though they may cancel.
    """

    what: str
    eager: torch.Tensor
    shadow: torch.Tensor | None
    rough: bool
    floor: float = 0.0
    scale: float = 0.0


@dataclass(frozen=True)
class Mismatch:
    """what: ``result 3``, ``argument 0``, ...; why: how it differs.  result: its position or -1."""

    what: str
    why: str
    result: int = -1
    excess: float = float("inf")

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


def expectations(p: Program, m: Machine) -> list[Expected]:
    """Results, then whole memories of the arguments, then gradients."""
    found = []
    for n, r in enumerate(p.results):
        found.append(Expected(f"result {n}", m.values[r], m.shadows[r], m.is_rough(r)))
    for n in range(len(p.inputs)):
        x, s = m.values[n], m.shadows[n]
        found.append(Expected(f"argument {n}", memory(x), memory(s), m.is_rough(n)))
    if p.grad:
        results = [m.values[r] for r in p.results]
        kinds = [r.dtype for r in results]
        eager = gradients(results, m.values[: len(p.inputs)], kinds)
        exact = gradients([m.shadows[r] for r in p.results], m.shadows[: len(p.inputs)], kinds)
        single = any(v.dtype is torch.float32 for v in _floats(m.values))
        coarsest = FLOOR[torch.float32] if single else 0.0
        for n, (e, s) in enumerate(zip(eager, exact, strict=True)):
            if e is not None:
                found.append(Expected(f"gradient {n}", e, s, True, coarsest, scale=1.0))
    return found


def _floats(values: Sequence[Any]) -> list[torch.Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]


def gradients(
    results: Sequence[Any], inputs: Sequence[Any], kinds: Sequence[torch.dtype]
) -> list[torch.Tensor | None]:
    """Of a sum of the results, with weights that the types of eager's results hold exactly.

    Where elements of an argument are one place (an expanded dim), each has their mean: how they
    share is a convention, and as_strided's, by which AOTAutograd makes views anew, is that one.
    """
    outs = [(r, t) for r, t in zip(results, kinds, strict=True) if r.requires_grad]
    outs = [(r, t) for r, t in outs if r.is_floating_point()]
    wanted = [x for x in inputs if x.requires_grad]
    if not outs or not wanted:
        return [None] * len(inputs)
    seeds = [
        torch.linspace(0.5, 1.5, r.numel(), dtype=torch.float64).reshape(r.shape).to(t).to(r.dtype)
        for r, t in outs
    ]
    made = torch.autograd.grad([r for r, _ in outs], wanted, seeds, allow_unused=True)
    shared = iter([g if g is None else _of_places(g, x) for g, x in zip(made, wanted, strict=True)])
    return [next(shared) if x.requires_grad else None for x in inputs]


def _of_places(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    dims = [
        d for d, (n, st) in enumerate(zip(x.shape, x.stride(), strict=True)) if n > 1 and not st
    ]
    return gradient.mean(dims, keepdim=True).expand(x.shape) if dims else gradient


# --- one tensor ----------------------------------------------------------------------------------


def same_bits(a: torch.Tensor, e: torch.Tensor) -> str:
    """Why two tensors of determined bits differ (any nan equals any nan), or nothing."""
    if not e.is_floating_point():
        wrong = a != e
    else:
        both = torch.isnan(a) & torch.isnan(e)
        wrong = ~both & ((a != e) | (torch.signbit(a) != torch.signbit(e)))
    count = int(wrong.sum())
    if not count:
        return ""
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"{count} of {e.numel()} elements differ, first {at}: {a[at].item()}, eager {e[at].item()}"
    )


def _worst(a: torch.Tensor, ref: torch.Tensor) -> tuple[float, float]:
    d = a - ref
    return float(d.abs().max()), float(d.norm())


def error(a: torch.Tensor, x: Expected, noise: Sequence[torch.Tensor]) -> tuple[str, float]:
    """Why rounded values are too far from float64, and by what factor; or nothing.

    noise: the shadow with other roundings along the way: what a correct result may be.
    """
    e = x.eager.detach().double()
    got = a.detach().double()
    odd = ~torch.isfinite(e) | ~torch.isfinite(got)
    differs = odd & (got != e) & ~(torch.isnan(got) & torch.isnan(e))
    assert x.shadow is not None
    ref = x.shadow.detach().double()
    # A number that the type holds, of which eager has none: sums on its way overflowed, in the
    # order that eager takes them.
    top = torch.finfo(x.eager.dtype).max
    differs &= torch.isfinite(e) | ~(ref.abs() < 0.9 * top)
    # What the type makes of the exact number: eager's sinh overflows before it has to.
    differs &= got != ref.to(x.eager.dtype).double()
    # Where another rounding gives another number, it may give infinity: a quotient by about 0.
    for s in noise:
        other = s.detach().double()
        differs &= torch.isfinite(other) & ((other - ref).abs() <= 0.1 * ref.abs())
    if bool(differs.any()) and not _near_overflow(ref[differs], top):
        at = tuple(int(i) for i in differs.nonzero()[0])
        return f"{got[at].item()} at {at}, eager {e[at].item()}", float("inf")
    keep = ~odd & torch.isfinite(ref)
    if not bool(keep.any()):
        return "", 0.0
    got, e, ref = got[keep], e[keep], ref[keep]
    mine, theirs = _worst(got, ref), _worst(e, ref)
    spread = [_worst(s.detach().double()[keep].nan_to_num(), ref) for s in noise]
    size = (max(x.scale, float(ref.abs().max())), max(x.scale, float(ref.norm())))
    tiny = torch.finfo(x.eager.dtype).smallest_normal
    for k, name in enumerate(("largest", "total")):
        allowed = 2 * theirs[k] + max(x.floor, FLOOR[x.eager.dtype]) * size[k] + 8 * tiny
        allowed += 6 * max((s[k] for s in spread), default=0.0)
        if mine[k] > allowed:
            text = f"{name} error {mine[k]:.3e}, eager's {theirs[k]:.3e}, of {size[k]:.3e}"
            return text, mine[k] / allowed
    return "", 0.0


def _near_overflow(exact: torch.Tensor, top: float) -> bool:
    """Whether values are about as large as a type allows: rounding decides about infinity."""
    return bool((exact.abs() > 0.9 * top).all()) and bool((exact.abs() < 1.1 * top).all())


def is_dense(x: torch.Tensor) -> bool:
    span = sum((s - 1) * st for s, st in zip(x.shape, x.stride(), strict=True))
    return span + 1 == x.numel() and not overlapping(x)


def layout(a: torch.Tensor, e: torch.Tensor, promised: Sequence[Sequence[int]] = ()) -> str:
    """promised: the strides that the operators' meta functions gave, where those differ."""
    if a.dtype != e.dtype:
        return f"{a.dtype} instead of {e.dtype}"
    if a.shape != e.shape:
        return f"shape {tuple(a.shape)} instead of {tuple(e.shape)}"
    steps = zip(a.stride(), e.stride(), e.shape, strict=True)
    apart = e.numel() and any(p != q for p, q, s in steps if s > 1)
    if apart and a.stride() not in promised:
        return f"strides {a.stride()} instead of {e.stride()}"
    if a.requires_grad != e.requires_grad:
        return f"requires_grad {a.requires_grad}"
    return ""


# --- a whole run ---------------------------------------------------------------------------------


def sharing(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Pairs that share memory."""
    ids = [storage(t) for t in tensors]
    return [
        (i, j)
        for i in range(len(ids))
        for j in range(i)
        if ids[i] == ids[j] and tensors[i].numel() and tensors[j].numel()
    ]


def compare(
    p: Program,
    inputs: Sequence[Input],
    compiled: Callable[..., Any],
    m: Machine,
    wanted: Sequence[Expected],
) -> list[Mismatch]:
    """Run ``compiled`` on fresh arguments and list what differs from the machine's run.

    Where the program draws random numbers, the machine runs again with those that were drawn.
    """
    args = tensors(inputs)
    torch.manual_seed(SEED)
    got = list(compiled(*args))
    draws: dict[int, torch.Tensor] = {}
    if p.draws:
        draws = drawn(p, got)
        unfit = unfit_draws(p, inputs, got, draws, m)
        if unfit:
            return unfit
        m = replay(p, inputs, draws=draws)
        wanted = expectations(p, m)
    actual = [*got, *map(memory, args)]
    if p.grad:
        actual += [g for g in gradients(got, args, [r.dtype for r in got]) if g is not None]
    if len(actual) != len(wanted):
        return [Mismatch("gradients", f"{len(actual)} tensors instead of {len(wanted)}")]
    found: list[Mismatch] = []
    rough: list[int] = []
    for n, (a, x) in enumerate(zip(actual, wanted, strict=True)):
        at = n if n < len(got) else -1
        why = layout(a, x.eager)
        if why.startswith("strides") and n < len(got):
            known = promised_strides(p, inputs)
            why = layout(a, x.eager, [strides for shape, strides in known if shape == a.shape])
        elif why.startswith("strides") and x.what.startswith("gradient"):
            # Of dense layouts the meta functions do not always predict eager's.  Views of arguments
            # of symbolic sizes AOTAutograd makes anew by as_strided, whose gradient has the
            # argument's strides.
            own = [t.stride() for t in args if t.shape == a.shape] if p.others else []
            right = is_dense(a) and is_dense(x.eager) or a.stride() in own
            why = "" if right else why
        if not why and not x.rough:
            why = same_bits(a, x.eager)
        elif not why:
            text, _ = error(a, x, ())
            if text:
                rough.append(n)
        if why:
            found.append(Mismatch(x.what, why, at))
    found += _judge_rough(p, inputs, rough, actual, wanted, len(got), draws)
    eager = [*m.values[: len(p.inputs)], *(m.values[r] for r in p.results)]
    ours, theirs = sharing([*args, *got]), sharing(eager)
    if ours != theirs:
        extra = [q for q in ours if q not in theirs], [q for q in theirs if q not in ours]
        found.append(
            Mismatch("aliases", f"memory shared by {extra[0]}, not by {extra[1]} (arguments first)")
        )
    return found


# --- random numbers ------------------------------------------------------------------------------


def drawn(p: Program, got: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """What a program drew, by the number of the value, read off its results."""
    return {
        k: one_step(d.seen, 1, False)(got[p.results.index(k)].detach()).clone()
        for k, d in p.draws.items()
    }


def unfit_draws(
    p: Program,
    inputs: Sequence[Input],
    got: Sequence[torch.Tensor],
    draws: Mapping[int, torch.Tensor],
    m: Machine,
) -> list[Mismatch]:
    """Random numbers that eager cannot draw, or that torch's own stream does not hold."""
    found = []
    for k, d in p.draws.items():
        at = p.results.index(k)
        why = layout(got[at], m.values[k]) or _improbable(draws[k].double(), d)
        if why:
            found.append(Mismatch(f"draw {k}", why, at))
    if found or p.rng != "eager":
        return found
    torch.manual_seed(SEED)
    theirs = drawn(p, function(p)(*tensors(inputs)))
    for k, e in theirs.items():
        why = same_bits(draws[k], e)
        if why:
            found.append(Mismatch(f"draw {k} of torch's stream", why, p.results.index(k)))
    return found


def _improbable(x: torch.Tensor, d: Draw) -> str:
    if not x.numel():
        return ""
    if not bool(((x >= d.low) & (x <= d.high)).all()):
        return f"a number beyond [{d.low}, {d.high}]"
    # Seven standard deviations of a mean: one false alarm in 10^11, for what is about normal.
    off = abs(float(x.mean()) - d.mean) if d.mean is not None and x.numel() > 30 else 0.0
    if off > 7 * d.spread / x.numel() ** 0.5:
        return f"mean {float(x.mean())} of {x.numel()} numbers, instead of {d.mean}"
    return ""


def promised_strides(
    p: Program, inputs: Sequence[Input]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(shape, strides) of what the graph gives by its metadata, which compilers go by.

    Of dense layouts the meta functions do not always predict eager's: ``index_fill``, say.
    """
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def note(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        for n in next(iter(reversed(gm.graph.nodes))).all_input_nodes:
            val = n.meta.get("val")
            if isinstance(val, torch.Tensor):
                found.append((tuple(val.shape), tuple(val.stride())))
        return make_boxed_func(gm.forward)

    torch._dynamo.reset()
    compiled = torch.compile(function(p), backend=aot_autograd(fw_compiler=note), dynamic=False)
    with contextlib.suppress(RuntimeError):
        compiled(*tensors(inputs))
    return found


def _judge_rough(
    p: Program,
    inputs: Sequence[Input],
    suspects: Sequence[int],
    actual: Sequence[torch.Tensor],
    wanted: Sequence[Expected],
    results: int,
    draws: Mapping[int, torch.Tensor],
) -> list[Mismatch]:
    """Judge again with what other roundings along the way would make of the same program."""
    if not suspects:
        return []
    runs = [expectations(p, replay(p, inputs, noise, draws)) for noise in range(1, NOISE_RUNS + 1)]
    found = []
    for n in suspects:
        noise = [r[n].shadow for r in runs]
        why, excess = error(actual[n], wanted[n], [s for s in noise if s is not None])
        if why:
            at = n if n < results else -1
            found.append(Mismatch(wanted[n].what, why, at, excess))
    return found
