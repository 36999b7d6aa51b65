"""Writes by custom operators, into ``out=`` arguments and into lists of tensors."""

from __future__ import annotations

import tests.fuzz.custom  # noqa: F401  (defines the operators)
from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Step
from tests.fuzz.steps_pointwise import is_float


def custom(d: Draft) -> Made:
    """Operators that Litz knows nothing of but their schemas."""
    if d.grad:
        return None
    k = d.pick(lambda t: t.ndim > 0)
    if k is None:
        return None
    x = d.tensor(k)
    other = d.pick(lambda t: t.dtype is x.dtype and t.shape == x.shape)
    form = d.rng.randrange(4)
    if form == 0 or other is None or other == k:
        return Step("!torch.ops.litz_fuzz.scale_({0}, 2.0)", (k,), "exact", 1)
    if form == 1:
        return Step("!torch.ops.litz_fuzz.swap_({0}, {1})", (k, other), "exact", 2)
    if form == 2 and d.machine.is_rough(other) >= d.machine.is_rough(k):
        return Step("torch.ops.litz_fuzz.gather_into_({1}, {0})", (other, k), "exact", 1)
    return Step("torch.ops.litz_fuzz.twice({0})", (k,))


OUT_ONE = (
    "torch.neg({1}, out={0})", "torch.abs({1}, out={0})", "torch.mul({1}, 2, out={0})",
    "torch.clamp({1}, -1, 1, out={0})", "torch.add({1}, {0}, out={0})",
    "torch.where({1} > 0, {1}, {0}, out={0})", "torch.maximum({1}, {1}, out={0})",
)  # fmt: skip
OUT_ROUGH = ("torch.exp({1}, out={0})", "torch.sin({1}, out={0})", "torch.tanh({1}, out={0})")


def out(d: Draft) -> Made:
    if d.grad:
        return None
    k = d.pick(lambda t: t.is_contiguous())
    if k is None:
        return None
    x = d.tensor(k)
    same = d.exact(lambda t: t.shape == x.shape and t.dtype is x.dtype)
    if same is not None and d.rng.random() < 0.6:
        if is_float(x) and d.rng.random() < 0.3:
            return Step(d.rng.choice(OUT_ROUGH), (k, same), "rough", True)
        text = d.rng.choice(OUT_ONE)
        return Step(text, (k, same), "exact", True)
    over = d.pick(lambda t: t.dtype is x.dtype and t.ndim > 0 and t.shape[1:] == x.shape)
    if over is not None and is_float(x):
        text = d.rng.choice(("torch.sum({1}, 0, out={0})", "torch.mean({1}, 0, out={0})"))
        return Step(text, (k, over), "rough", True)
    part = d.pick(lambda t: t.ndim > 0 and t.dtype is x.dtype)
    if part is None:
        return None
    fresh = (
        "torch.cat(({0}, {0}), out={0}.new_empty((2 * {0}.shape[0], *{0}.shape[1:])))",
        "torch.add({0}, 1, out=torch.empty_like({0}))",
        "torch.mul({0}, {0}, out={0}.new_empty(0))",
        "torch.stack(({0}, {0}), out={0}.new_empty((2, *{0}.shape)))",
    )
    return Step(d.rng.choice(fresh), (part,), "exact")


LISTS = (
    "!torch._foreach_add_([{0}, {1}], 1)", "!torch._foreach_mul_([{0}, {1}], 2)",
    "!torch._foreach_neg_([{0}, {1}])", "!torch._foreach_copy_([{0}], [{1}])",
    "!torch._foreach_add_([{0}, {1}], [{1}, {1}])", "!torch._foreach_zero_([{0}, {1}])",
)  # fmt: skip


def lists(d: Draft) -> Made:
    k = d.pick(is_float)
    if k is None:
        return None
    x = d.tensor(k)
    other = d.pick(lambda t: t.dtype is x.dtype and t.shape == x.shape and t is not x)
    if other is None or other == k:
        return None
    text = d.rng.choice(LISTS)
    return Step(text, (k, other), "exact", 1 if "copy_" in text else 2)


def window(d: Draft) -> Made:
    """Writes at positions that follow each other, on one tensor."""
    k = d.pick(lambda t: t.ndim > 0 and t.shape[0] > 1)
    if k is None:
        return None
    n = d.tensor(k).shape[0]
    a, b = d.rng.randrange(n), d.rng.randrange(n)
    texts = (
        (f"!{{0}}[{a}] = 1", f"!{{0}}[{b}] += 2"),
        (f"!{{0}}[{a}] += {{0}}[{b}]", f"!{{0}}[{b}] = 0"),
        (f"!{{0}}[{a}:] *= 2", f"!{{0}}[:{b}] = {{0}}[{b}]"),
        (f"{{0}}.index_fill_(0, torch.tensor([{a}]), 3)", f"!{{0}}[torch.tensor([{b}, {a}])] = 4"),
        (f"!{{0}}[torch.tensor([{b}])] += 1", f"{{0}}.index_fill_(0, torch.tensor([{a}]), 1)"),
    )
    return [Step(text, (k,), "exact", True) for text in d.rng.choice(texts)]


MAKERS: tuple[tuple[float, Maker], ...] = (
    (0.5, custom),
    (0.5, out),
    (0.4, lists),
    (0.5, window),
)
