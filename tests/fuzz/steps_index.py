"""Reads and writes at positions that are data, without changing an argument."""

from __future__ import annotations

import torch

from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Step
from tests.fuzz.steps_views import shaped


def is_index(t: torch.Tensor) -> bool:
    return t.dtype is torch.int64


def valid(index: torch.Tensor, size: int, negative: bool = False) -> bool:
    if index.numel() == 0:
        return True
    low = -size if negative else 0
    return int(index.min()) >= low and int(index.max()) < size


def distinct(index: torch.Tensor) -> bool:
    return len(set(index.flatten().tolist())) == index.numel()


def place(d: Draft, negative: bool = False) -> tuple[int, int, int] | None:
    """A tensor, one of its dimensions, and a value that holds positions there."""
    k = d.pick(shaped)
    if k is None:
        return None
    x = d.tensor(k)
    dim = d.rng.randrange(x.ndim)
    # Dynamo reads a 0-d position as a number, and gives up where its sign matters.
    # The fake result of other positions than contiguous ones has other strides than the real one.

    def fits(t: torch.Tensor) -> bool:
        plain = is_index(t) and t.ndim > 0 and t.is_contiguous()
        return plain and valid(t, x.shape[dim], negative)

    at = d.pick(fits)
    return None if at is None else (k, dim, at)


def read(d: Draft) -> Made:
    found = place(d, negative=True)
    if found is None:
        return None
    k, dim, at = found
    x, i = d.tensor(k), d.tensor(at)
    lead = ":, " * dim
    texts = [f"{{0}}[{lead}{{1}}]"] * 2
    plain = valid(i, x.shape[dim])
    if plain and i.ndim == 1:
        texts.append(f"{{0}}.index_select({dim}, {{1}})")
    if plain and i.ndim == x.ndim:
        texts += [f"torch.gather({{0}}, {dim}, {{1}})"] * 3
        texts.append(f"torch.take_along_dim({{0}}, {{1}}, {dim})")
    if plain and x.ndim == 2 and dim == 0 and x.is_floating_point():
        texts.append("F.embedding({1}, {0})")
    if plain:
        texts.append("torch.take({0}, {1})")
    return Step(d.rng.choice(texts), (k, at), "view" if d.grad else "exact")


def read_two(d: Draft) -> Made:
    """Two index tensors at once, next to each other or apart."""
    k = d.pick(lambda t: t.ndim >= 2)
    if k is None:
        return None
    x = d.tensor(k)
    top = min(x.shape[0], x.shape[-1])
    at = d.pick(lambda t: is_index(t) and t.ndim > 0 and t.is_contiguous() and valid(t, top))
    if at is None:
        return None
    between = ", " + ":, " * (x.ndim - 2) if d.rng.random() < 0.7 or x.ndim == 2 else ", "
    if between == ", " and not valid(d.tensor(at), min(x.shape[:2])):
        return None
    return Step(f"{{0}}[{{1}}{between}{{1}}]", (k, at), "exact")


def scatter(d: Draft) -> Made:
    found = place(d)
    if found is None:
        return None
    k, dim, at = found
    x, i = d.tensor(k), d.tensor(at)
    kind = "rough" if x.is_floating_point() else "discrete"
    if i.ndim == x.ndim:
        src = d.pick(lambda t: t.dtype is x.dtype and t.shape == i.shape)
        if src is None:
            src = d.pick(lambda t: t.dtype is x.dtype and t.shape == x.shape)
        if src is None:
            return None
        how = d.rng.choice(("sum", "sum", "amax", "amin", "mean", "prod"))
        own = d.rng.choice(("True", "False"))
        texts = [
            f"{{0}}.scatter_add({dim}, {{1}}, {{2}})",
            f"{{0}}.scatter_reduce({dim}, {{1}}, {{2}}, '{how}', include_self={own})",
            f"{{0}}.scatter({dim}, {{1}}, 2)",
        ]
        if i.ndim == 1 and distinct(i):
            texts.append(f"{{0}}.scatter({dim}, {{1}}, {{2}})")
        return Step(d.rng.choice(texts), (k, at, src), kind)
    if i.ndim != 1:
        return None
    form = (*x.shape[:dim], i.numel(), *x.shape[dim + 1 :])
    src = d.pick(lambda t: t.dtype is x.dtype and tuple(t.shape) == form)
    if src is not None and d.rng.random() < 0.8:
        texts = [f"{{0}}.index_add({dim}, {{1}}, {{2}})"]
        texts.append(f"{{0}}.index_add({dim}, {{1}}, {{2}}, alpha=2)")
        if distinct(i):
            texts.append(f"{{0}}.index_copy({dim}, {{1}}, {{2}})")
        return Step(d.rng.choice(texts), (k, at, src), kind)
    return Step(f"{{0}}.index_fill({dim}, {{1}}, 3)", (k, at), "exact")


def put(d: Draft) -> Made:
    """``index_put`` along the first dimension."""
    k = d.pick(shaped)
    if k is None:
        return None
    x = d.tensor(k)
    at = d.pick(lambda t: is_index(t) and t.ndim > 0 and valid(t, x.shape[0], negative=True))
    if at is None:
        return None
    i = d.tensor(at)
    src = d.pick(
        lambda t: (
            t.dtype is x.dtype
            and t.ndim <= i.ndim + x.ndim - 1
            and all(
                a in (1, b)
                for a, b in zip(reversed(t.shape), reversed((*i.shape, *x.shape[1:])), strict=False)
            )
        )
    )
    if src is None:
        return None
    if distinct(i) and valid(i, x.shape[0]) and d.rng.random() < 0.5:
        return Step("torch.index_put({0}, ({1},), {2})", (k, at, src), "exact")
    kind = "rough" if x.is_floating_point() else "discrete"
    return Step("torch.index_put({0}, ({1},), {2}, accumulate=True)", (k, at, src), kind)


def counted(d: Draft) -> Made:
    """Positions made from a size."""
    k = d.pick(shaped)
    if k is None:
        return None
    x = d.tensor(k)
    dim = d.rng.randrange(x.ndim)
    texts = (
        f"torch.arange({{0}}.shape[{dim}], device={{0}}.device)",
        f"torch.arange({{0}}.shape[{dim}]).flip(0)",
        f"(torch.arange({{0}}.shape[{dim}]) // 2)",
        f"torch.arange({{0}}.shape[{dim}], dtype=torch.float32)",
        f"torch.ones({{0}}.shape[{dim}], {d.rng.choice((1, 2, 3))})",
        f"torch.eye({{0}}.shape[{dim}])[:3]",
    )
    return Step(d.rng.choice(texts), (k,), "exact")


MAKERS: tuple[tuple[float, Maker], ...] = (
    (2, read),
    (0.5, read_two),
    (1.4, scatter),
    (0.8, put),
    (0.7, counted),
)
