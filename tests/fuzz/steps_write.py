"""Writes into arguments, results and views of them."""

from __future__ import annotations

import torch

from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Step
from tests.fuzz.steps_index import distinct, is_index, valid
from tests.fuzz.steps_pointwise import is_bool

EXACT = (
    "{0}.add_(1)", "{0}.mul_(2)", "{0}.neg_()", "{0}.zero_()", "{0}.fill_(3)", "{0}.clamp_(-1, 1)",
    "{0}.relu_()", "{0}.abs_()", "{0}.sub_(0.5)", "{0}.clamp_(min=0)",
    "!{0}[...] = 2", "!{0}[::2] = 1", "!{0}[-1] = 0", "!{0}[1:] += 1", "{0}.tril_()",
    "{0}.square_()",
)  # fmt: skip
ROUGH = ("{0}.exp_()", "{0}.tanh_()", "{0}.sigmoid_()", "{0}.sin_()", "F.silu({0}, inplace=True)")
BINARY = (
    "{0}.add_({1})", "{0}.mul_({1})", "{0}.sub_({1})", "{0}.copy_({1})", "{0}.copy_({1})",
    "{0}.add_({1}, alpha=2)", "!{0}[:] = {1}", "{0}.div_({1}.abs() + 1)",
    "torch.add({0}, {1}, out={0})",
)  # fmt: skip


def in_place(d: Draft) -> Made:
    k = d.pick()
    if k is None:
        return None
    x = d.tensor(k)
    if x.is_floating_point() and d.rng.random() < 0.25:
        return Step(d.rng.choice(ROUGH), (k,), "rough", True)
    return Step(d.rng.choice(EXACT), (k,), "exact", True)


def in_place_with(d: Draft) -> Made:
    k = d.pick()
    if k is None:
        return None
    x = d.tensor(k)
    wide = tuple(x.shape)

    def fits(t: torch.Tensor) -> bool:
        if t.ndim > len(wide):
            return False
        pairs = zip(reversed(t.shape), reversed(wide), strict=False)
        return all(a in (1, b) for a, b in pairs)

    other = d.pick(fits)
    if other is None:
        return None
    text = d.rng.choice(BINARY)
    if "copy_" not in text and "[:]" not in text:
        if d.machine.is_rough(other) and not x.is_floating_point():
            return None
    return Step(text, (k, other), "exact", True)


def from_itself(d: Draft) -> Made:
    """A tensor overwritten with another arrangement of itself."""
    k = d.pick(lambda t: t.ndim > 0)
    if k is None:
        return None
    x = d.tensor(k)
    texts = [
        "{0}.copy_({0}.flip(0))",
        "!{0}[1:] = {0}[:-1].clone()",
        "{0}.add_({0}.flip(-1))",
        "{0}.mul_({0}.select(0, 0))",
        "!{0}[0] = {0}[-1]",
        "{0}.add_({0}[:1])",
        "{0}.copy_({0}.roll(1, 0))",
    ]
    if x.ndim >= 2 and x.shape[-1] == x.shape[-2]:
        texts += ["{0}.copy_({0}.mT.clone())", "{0}.add_({0}.mT)", "{0}.mT.add_({0})"]
    if x.is_floating_point():
        texts.append("{0}.sub_({0}.mean(0, keepdim=True))")
        texts.append("{0}.div_({0}.abs().sum() + 1)")
    text = d.rng.choice(texts)
    kind = "rough" if "mean" in text or "sum" in text else "exact"
    return Step(text, (k,), kind, True)


def through_view(d: Draft) -> Made:
    """A write through a view, then a read of the base through another."""
    k = d.pick(lambda t: t.ndim > 0 and t.numel() > 0)
    if k is None:
        return None
    x = d.tensor(k)
    dim = d.rng.randrange(x.ndim)
    views = (
        f"{{0}}.select({dim}, 0)",
        f"{{0}}.transpose({dim}, -1)",
        f"{{0}}[{':, ' * dim}::2]",
        f"{{0}}.narrow({dim}, 0, {max(x.shape[dim] // 2, 1)})",
        "{0}.unsqueeze(0)",
        f"{{0}}.diagonal(0, {dim}, {x.ndim - 1})",
        "{0}.view(-1)",
    )
    reads = ("{0}.flip(0) * 2", "{0}.sum()", "{0} + 1", f"{{0}}.amax({dim}) + 0", "{0}.clone()")
    at = len(d.machine.values)
    read = d.rng.choice(reads)
    return (
        Step(d.rng.choice(views), (k,), "view"),
        Step(d.rng.choice(EXACT), (at,), "exact", True),
        Step(read, (k,), "rough" if "sum" in read else "exact"),
    )


def scattered(d: Draft) -> Made:
    """Writes at positions that are data."""
    k = d.pick(lambda t: t.ndim > 0)
    if k is None:
        return None
    x = d.tensor(k)
    if d.rng.random() < 0.3:
        mask = d.pick(lambda t: is_bool(t) and t.shape == x.shape)
        if mask is None:
            return None
        text = d.rng.choice(("{0}.masked_fill_({1}, 2)", "!{0}[{1}] = 1", "{0}.mul_({1})"))
        return Step(text, (k, mask), "exact", True)
    at = d.pick(lambda t: is_index(t) and t.ndim > 0 and valid(t, x.shape[0]))
    if at is None or at == k:
        return None
    i = d.tensor(at)
    kind = "rough" if x.is_floating_point() else "exact"
    if i.ndim == x.ndim and all(a <= b for a, b in zip(i.shape, x.shape, strict=True)):
        src = d.pick(lambda t: t.dtype is x.dtype and t.shape == i.shape)
        texts = ["{0}.scatter_(0, {1}, 2)"]
        if src is not None:
            texts += ["{0}.scatter_add_(0, {1}, {2})", "{0}.scatter_reduce_(0, {1}, {2}, 'amax')"]
            if x.ndim == 1 and distinct(i):
                texts.append("{0}.scatter_(0, {1}, {2})")
        text = d.rng.choice(texts)
        return Step(
            text, (k, at, src) if "{2}" in text and src is not None else (k, at), kind, True
        )
    if i.ndim != 1:
        return None
    row = d.pick(lambda t: t.dtype is x.dtype and t.shape == x.shape[1:])
    texts = ["!{0}[{1}] = 1", "{0}.index_fill_(0, {1}, 2)"]
    if row is not None:
        texts += ["!{0}[{1}] = {2}", "{0}.index_put_(({1},), {2}, accumulate=True)"] * 2
    text = d.rng.choice(texts)
    return Step(text, (k, at, row) if "{2}" in text and row is not None else (k, at), kind, True)


MAKERS: tuple[tuple[float, Maker], ...] = (
    (1.4, in_place),
    (1.2, in_place_with),
    (0.8, from_itself),
    (0.9, through_view),
    (0.9, scattered),
)
