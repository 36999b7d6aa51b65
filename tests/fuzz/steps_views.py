"""Views and other arrangements of the same elements."""

from __future__ import annotations

import torch

from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Step

SAME_WIDTH = {
    torch.float32: "int32",
    torch.int32: "float32",
    torch.float64: "int64",
    torch.float16: "int16",
    torch.bfloat16: "int16",
    torch.int8: "uint8",
    torch.uint8: "int8",
    torch.int64: "float64",
    torch.int16: "bfloat16",
}


def shaped(t: torch.Tensor) -> bool:
    return t.ndim > 0


def _permuted(d: Draft, x: torch.Tensor) -> str:
    dims = list(range(x.ndim))
    d.rng.shuffle(dims)
    return f"{{0}}.permute({', '.join(map(str, dims))})"


def _sliced(d: Draft, x: torch.Tensor) -> str:
    parts = []
    for s in x.shape:
        form = d.rng.randrange(6)
        start = d.rng.randint(0, max(s - 1, 0))
        step = d.rng.choice((2, 2, 3))
        options = (":", ":", f"{start}:", f":{start + 1}", f"{start % 2}::{step}", f"-{start + 1}:")
        parts.append(options[form])
    return f"{{0}}[{', '.join(parts)}]"


def _unflattened(d: Draft, x: torch.Tensor) -> str | None:
    for k, s in enumerate(x.shape):
        for f in (2, 3, 4, 5, 8):
            if s > f and s % f == 0:
                inner = d.rng.choice((f"({f}, -1)", f"(-1, {f})"))
                return f"{{0}}.unflatten({k}, {inner})"
    return None


def view(d: Draft) -> Made:
    k = d.pick(shaped) if d.rng.random() < 0.95 else d.pick()
    if k is None:
        return None
    x = d.tensor(k)
    texts: list[str | None] = [f"{{0}}.unsqueeze({d.rng.randint(-x.ndim - 1, x.ndim)})"]
    if x.ndim:
        a, b = d.dim(x), d.dim(x)
        at = d.rng.randint(-max(x.shape[a], 1), max(x.shape[a] - 1, 0))
        texts += [
            f"{{0}}.transpose({a}, {b})",
            _permuted(d, x),
            _sliced(d, x),
            _sliced(d, x),
            f"{{0}}.select({a}, {at})",
            "{0}.reshape(-1)",
            "{0}.squeeze()",
            f"{{0}}.squeeze({a})",
            "{0}.flatten()",
            f"{{0}}.narrow({a}, {d.rng.randint(0, x.shape[a] // 2)}, {x.shape[a] // 2})",
            f"{{0}}.movedim({a}, {b})",
            f"{{0}}.flip({a})",
            f"{{0}}.flip(({', '.join(map(str, range(x.ndim)))},))",
            f"{{0}}.roll({d.rng.randint(-3, 5)}, {a})",
            f"{{0}}.repeat_interleave(2, {a})",
            f"{{0}}.repeat({', '.join(d.rng.choice('112') for _ in x.shape)})",
            _unflattened(d, x),
            "{0}.contiguous()",
            "{0}.clone()",
            f"{{0}}.unfold({a}, {d.rng.randint(1, max(min(3, x.shape[a]), 1))}, "
            f"{d.rng.randint(1, 3)})",
        ]
    if x.ndim >= 2:
        n = d.rng.randrange(x.ndim - 1)
        texts += [
            f"{{0}}.diagonal({d.rng.randint(-1, 1)}, {n}, {x.ndim - 1})",
            f"{{0}}.flatten({n}, {n + 1})",
            "{0}.mT",
            f"torch.rot90({{0}}, 1, ({n}, {n + 1}))",
            f"{{0}}.transpose({n}, -1).reshape(-1)",
        ]
    text = d.rng.choice([t for t in texts if t is not None])
    return Step(text, (k,), "view")


def expand(d: Draft) -> Made:
    k = d.pick(lambda t: 1 in t.shape or t.ndim < 3)
    if k is None:
        return None
    x = d.tensor(k)
    sizes = [str(d.rng.choice(d.sizes)) if s == 1 else "-1" for s in x.shape]
    if d.rng.random() < 0.4 or not sizes:
        sizes.insert(0, str(d.rng.choice((2, 3))))
    return Step(f"{{0}}.expand({', '.join(sizes)})", (k,), "view")


def pieces(d: Draft) -> Made:
    """Split into several, two of which are used."""
    k = d.pick(lambda t: t.ndim > 0 and max(t.shape) > 1)
    if k is None:
        return None
    x = d.tensor(k)
    dim = max(range(x.ndim), key=lambda n: x.shape[n])
    size = x.shape[dim]
    text = d.rng.choice(
        (
            f"{{0}}.chunk(2, {dim})",
            f"{{0}}.split({(size + 1) // 2}, {dim})",
            f"{{0}}.tensor_split(2, {dim})",
            f"torch.unbind({{0}}, {dim})" if size <= 8 else f"{{0}}.chunk(3, {dim})",
        )
    )
    at = len(d.machine.values)
    return (
        Step(text, (k,), "view"),
        Step("{0}[0]", (at,), "view"),
        Step("{0}[1]", (at,), "view"),
    )


def bits(d: Draft) -> Made:
    """The bits as numbers of another type, of the same width or not."""
    k = d.exact(lambda t: t.dtype in SAME_WIDTH)
    if k is None:
        return None
    if d.rng.random() < 0.3:
        other = d.rng.choice(("uint8", "int16", "int32", "int64", "bfloat16", "float64"))
        return Step(f"{{0}}.view(torch.{other})", (k,), "view")
    return Step(f"{{0}}.view(torch.{SAME_WIDTH[d.tensor(k).dtype]})", (k,), "view")


def as_strided(d: Draft) -> Made:
    """A window over the memory of a fresh contiguous value."""
    k = d.pick(lambda t: t.is_contiguous() and t.numel() >= 4 and t.ndim > 0)
    if k is None:
        return None
    x = d.tensor(k)
    n = x.numel()
    a, b = d.rng.randint(1, n // 2), d.rng.choice((1, 2))
    form = d.rng.choice((((n - 1) // a + 1, 1), (n // 2 // max(b, 1), 2)))
    if form[1] == 1:
        size, stride, offset = (form[0],), (a,), 0
        return Step(f"{{0}}.clone().as_strided({size}, {stride}, {offset})", (k,), "view")
    return Step(f"{{0}}.clone().as_strided(({n // 2}, 2), (1, {b}), 0)", (k,), "view")


def join(d: Draft) -> Made:
    k = d.pick()
    if k is None:
        return None
    x = d.tensor(k)
    same = d.pick(lambda t: t.shape == x.shape) or k
    if d.rng.random() < 0.4 or x.ndim == 0:
        dim = d.rng.randint(0, x.ndim)
        third = d.rng.choice((k, same))
        return Step(f"torch.stack(({{0}}, {{1}}, {{2}}), {dim})", (k, same, third), "exact")
    dim = d.rng.randrange(x.ndim)

    def fits(t: torch.Tensor) -> bool:
        rest = [n for n in range(x.ndim) if n != dim]
        return t.ndim == x.ndim and all(t.shape[n] == x.shape[n] for n in rest)

    others = [d.pick(fits) for _ in range(d.rng.choice((1, 1, 2, 4)))]
    args = (k, *(o for o in others if o is not None))
    names = ", ".join(f"{{{n}}}" for n in range(len(args)))
    return Step(f"torch.cat(({names}), {dim})", args, "exact")


def pad(d: Draft) -> Made:
    k = d.pick(shaped)
    if k is None:
        return None
    x = d.tensor(k)
    a, b = d.rng.randint(-1, 3), d.rng.randint(0, 3)
    if x.ndim >= 2 and d.rng.random() < 0.4:
        mode = d.rng.choice(("reflect", "replicate", "circular"))
        lead = "{0}" if x.ndim in (2, 3) else "{0}[:, None]"
        return Step(f"F.pad({lead}, ({max(a, 0)}, {b}), mode='{mode}')", (k,), "exact")
    amounts = f"({a}, {b})" if x.ndim == 1 or d.rng.random() < 0.5 else f"({a}, {b}, 1, 0)"
    value = d.rng.choice(("0", "1", "-2"))
    return Step(f"F.pad({{0}}, {amounts}, value={value})", (k,), "exact")


MAKERS: tuple[tuple[float, Maker], ...] = (
    (7, view),
    (1.2, expand),
    (0.8, pieces),
    (0.5, bits),
    (0.4, as_strided),
    (1.3, join),
    (0.8, pad),
)
