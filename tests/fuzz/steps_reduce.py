"""Reductions, normalisations, scans, and products of matrices."""

from __future__ import annotations

import torch

from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Step
from tests.fuzz.steps_pointwise import is_float
from tests.fuzz.steps_views import shaped


def _dims(d: Draft, x: torch.Tensor) -> str:
    if x.ndim >= 2 and d.rng.random() < 0.35:
        dims = d.rng.sample(range(x.ndim), d.rng.randint(1, x.ndim))
        return f"({', '.join(map(str, dims))},)"
    return str(d.dim(x))


def _keep(d: Draft) -> str:
    return d.rng.choice((", keepdim=True", ""))


def bounded(count: int) -> str:
    """Bounds of factors, so many of which do not overflow: then zero times infinity is nobody's."""
    return "-1.5, 1.5" if count <= 24 else "-1.1, 1.1" if count <= 110 else "-1, 1"


def total(d: Draft) -> Made:
    """Sums, means, variances and norms of floats; sums and products of integers."""
    k = d.pick(shaped)
    if k is None:
        return None
    x = d.tensor(k)
    if not x.is_floating_point():
        text = d.rng.choice(
            (
                f"{{0}}.sum({_dims(d, x)}{_keep(d)})",
                f"{{0}}.prod({d.dim(x)}{_keep(d)})",
                "{0}.sum()",
                f"torch.count_nonzero({{0}}, {d.dim(x)})",
                f"{{0}}.cumsum({d.dim(x)})",
                f"({{0}} % 1000).sum({d.dim(x)}, dtype=torch.float32)",
                f"{{0}}.all({d.dim(x)}{_keep(d)})",
                f"{{0}}.any({d.dim(x)}{_keep(d)})",
            )
        )
        return Step(text, (k,), "rough" if "float32" in text else "discrete")
    text = d.rng.choice(
        (
            f"{{0}}.sum({_dims(d, x)}{_keep(d)})",
            f"{{0}}.sum({_dims(d, x)}{_keep(d)})",
            f"{{0}}.mean({_dims(d, x)}{_keep(d)})",
            f"{{0}}.var({_dims(d, x)}, correction={d.rng.randint(0, 1)}{_keep(d)})",
            f"{{0}}.std({_dims(d, x)}{_keep(d)})",
            "{0}.sum()",
            "{0}.mean()",
            f"{{0}}.clamp({bounded(max(x.shape))}).prod({d.dim(x)}{_keep(d)})",
            f"{{0}}.norm(dim={d.dim(x)}{_keep(d)})",
            f"torch.linalg.vector_norm({{0}}, 1, dim={d.dim(x)})",
            f"torch.nansum({{0}}, {d.dim(x)})",
            f"torch.logsumexp({{0}}, {_dims(d, x)}{_keep(d)})",
            f"{{0}}.sum({d.dim(x)}, dtype=torch.float64)",
            f"torch.var_mean({{0}}, {d.dim(x)})[0]",
        )
    )
    return Step(text, (k,), "rough")


def extreme(d: Draft) -> Made:
    k = d.exact(shaped)
    if k is None:
        return None
    x = d.tensor(k)
    texts = [
        f"{{0}}.amax({_dims(d, x)}{_keep(d)})",
        f"{{0}}.amin({_dims(d, x)}{_keep(d)})",
        f"{{0}}.any({d.dim(x)}{_keep(d)})",
        f"{{0}}.all({d.dim(x)}{_keep(d)})",
        f"{{0}}.max({d.dim(x)}{_keep(d)})[0]",
        f"{{0}}.max({d.dim(x)}{_keep(d)})[1]",
        f"{{0}}.min({d.dim(x)}{_keep(d)})[1]",
        f"{{0}}.argmax({d.dim(x)}{_keep(d)})",
        f"{{0}}.argmin({d.dim(x)}{_keep(d)})",
        "{0}.max()",
        "{0}.argmax()",
        "{0}.any()",
        f"torch.aminmax({{0}}, dim={d.dim(x)})[1]",
        f"{{0}}.cummax({d.dim(x)})[0]",
        f"{{0}}.sort(dim={d.dim(x)}, stable=True)[1]",
        f"{{0}}.sort({d.dim(x)}, descending=True)[0]",
    ]
    text = d.rng.choice(texts)
    if x.is_floating_point() and ("max" in text or "min" in text) and "arg" not in text:
        # Which of 0.0 and -0.0 is the larger depends on the order; a sum with 0 has one sign.
        text = text if text.endswith("[1]") and "aminmax" not in text else f"{text} + 0"
    return Step(text, (k,), "discrete")


def along(d: Draft) -> Made:
    """Results of the input's shape: softmax, scans, norms."""
    k = d.pick(lambda t: is_float(t) and t.ndim > 0)
    if k is None:
        return None
    x = d.tensor(k)
    last = x.shape[-1]
    texts = [
        f"torch.softmax({{0}}, {d.dim(x)})",
        f"torch.softmax({{0}}, {d.dim(x)})",
        f"F.log_softmax({{0}}, {d.dim(x)})",
        f"{{0}}.cumsum({d.dim(x)})",
        f"{{0}}.clamp({bounded(max(x.shape))}).cumprod({d.dim(x)})",
        f"torch.logcumsumexp({{0}}, {d.dim(x)})",
        f"F.normalize({{0}}, dim={d.dim(x)})",
        f"{{0}} - {{0}}.mean({d.dim(x)}, keepdim=True)",
        f"{{0}} / ({{0}}.abs().sum({d.dim(x)}, keepdim=True) + 1)",
        f"F.layer_norm({{0}}, ({last},))",
        f"F.layer_norm({{0}}, ({last},))",
        f"F.rms_norm({{0}}, ({last},))",
        f"{{0}}.diff(dim={d.dim(x)})",
    ]
    if x.ndim >= 2:
        texts.append(f"F.layer_norm({{0}}, {tuple(x.shape[-2:])})")
        c = x.shape[1]
        groups = next((g for g in (4, 3, 2, 1) if c % g == 0), 1)
        texts.append(f"F.group_norm({{0}}, {groups})")
        texts.append("F.batch_norm({0}, None, None, training=True)")
    if x.ndim >= 3:
        texts.append("F.instance_norm({0})")
    return Step(d.rng.choice(texts), (k,), "rough")


def product(d: Draft) -> Made:
    k = d.pick(lambda t: is_float(t) and t.ndim >= 2)
    if k is None:
        return None
    x = d.tensor(k)
    if d.rng.random() < 0.4:
        return Step("{0} @ {0}.mT", (k,), "rough")

    def fits(t: torch.Tensor) -> bool:
        if t.dtype is not x.dtype or t.ndim < 1 or t.ndim > 3:
            return False
        return t.shape[-1 if t.ndim == 1 else -2] == x.shape[-1]

    other = d.pick(fits)
    if other is not None:
        return Step("{0} @ {1}", (k, other), "rough")
    other = d.pick(lambda t: t.dtype is x.dtype and t.ndim == 2 and t.shape[-1] == x.shape[-1])
    return None if other is None else Step("F.linear({0}, {1})", (k, other), "rough")


def window(d: Draft) -> Made:
    """Pooling and resampling."""
    k = d.pick(lambda t: is_float(t) and t.ndim in (3, 4) and min(t.shape) > 0)
    if k is None:
        return None
    n = d.tensor(k).ndim - 2
    size = d.rng.choice((2, 3))
    texts = [
        f"F.avg_pool{n}d({{0}}, {size}, {d.rng.choice((1, 2))}, padding={d.rng.choice((0, 1))})",
        f"F.adaptive_avg_pool{n}d({{0}}, {d.rng.choice((1, 2, 3))})",
        f"F.interpolate({{0}}, scale_factor=2, mode='{'linear' if n == 1 else 'bilinear'}')",
        "F.interpolate({0}, scale_factor=2, mode='nearest')",
    ]
    if d.rng.random() < 0.4 and not d.machine.is_rough(k):
        return Step(f"F.max_pool{n}d({{0}}, {size}, 1) + 0", (k,), "discrete")
    return Step(d.rng.choice(texts), (k,), "rough")


MAKERS: tuple[tuple[float, Maker], ...] = (
    (3, total),
    (2, extreme),
    (2.5, along),
    (0.5, product),
    (0.5, window),
)
