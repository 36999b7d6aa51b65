"""Operators that one line names: losses, joins of channels, copies of views, lists of tensors."""

from __future__ import annotations

import torch

from tests.fuzz.compare import is_dense
from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Step
from tests.fuzz.steps_index import distinct, is_index, valid
from tests.fuzz.steps_pointwise import is_bool, is_float, is_whole
from tests.fuzz.steps_reduce import bounded
from tests.fuzz.steps_views import shaped

# On floats of exact bits.
DISCRETE = (
    "torch.isposinf({0})", "torch.isneginf({0})", "torch.angle({0})", "torch.frexp({0})[0]",
    "torch.frexp({0}.nan_to_num())[1]", "torch.isin({0}, {0}.flatten())",
    "torch.bucketize({0}, torch.arange(-2, 3))", "torch.where({0} > 0, {0}, 1)",
    "torch.where({0} < 1, 2, {0})", "torch.bucketize({0}, torch.arange(-2, 3), right=True)",
    "torch.nonzero_static({0}, size=5)", "torch.count_nonzero({0})", "torch.unique({0}).amax()",
    "torch.isreal({0})", "{0}.bool()", "{0}.ne(0).float()",
)  # fmt: skip
# On floats; slopes are bounded.
SMOOTH = (
    "torch.logit({0}.clamp(0.05, 0.95), 1e-3)", "torch.special.xlog1py({0}, {0}.abs())",
    "torch.polygamma(1, {0}.abs() + 1)", "torch.mvlgamma({0}.abs() + 2, 2)",
    "F.rrelu({0})", "{0}.rad2deg()", "torch.special.i0e({0})", "torch.special.erfcx({0}.abs())",
    "torch.float_power({0}.abs() + 1, 1.5)", "torch.ldexp({0}, torch.tensor(2))",
    "F.dropout({0}, 0.0)", "F.alpha_dropout({0}, 0.5, training=False)", "F.relu6({0} * 3)",
    "torch.special.expit({0})",
    "torch.special.entr({0}.abs() + 0.1)", "torch.special.ndtr({0})",
    "torch.nn.functional.softmin({0}, 0)",
    "{0} * {0}.numel()", "{0}.sum() / {0}.numel()", "{0}.softmax(-1).sum(0)",
)  # fmt: skip
PAIR = (
    "torch.dist({0}, {1})", "F.l1_loss({0}, {1})", "F.mse_loss({0}, {1})",
    "F.smooth_l1_loss({0}, {1}, reduction='sum')", "F.kl_div({0}, {1}.abs() + 0.1)",
    "F.binary_cross_entropy_with_logits({0}, {1})",
    "F.binary_cross_entropy({0}.sigmoid(), {1}.sigmoid())", "F.soft_margin_loss({0}, {1})",
    "F.poisson_nll_loss({0}, {1})", "F.gaussian_nll_loss({0}, {1}, {1}.abs() + 1)",
    "torch.lerp({0}, {1}, {0}.sigmoid())", "torch.addcmul({0}, {1}, {0})",
    "F.cosine_similarity({0}, {1}, 0)", "torch.clamp({0}, {1} - 1, {1} + 1) + 0",
    "torch.clamp({0}, min={1}) + 0", "torch.clamp({0}, max={1}) + 0",
    "torch._foreach_add([{0}, {1}], 2)[1]", "torch._foreach_mul([{0}, {1}], [{1}, {1}])[0]",
    "torch._foreach_lerp([{0}, {1}], [{1}, {0}], 0.3)[1]", "torch._foreach_norm([{0}, {1}])[0]",
    "torch._foreach_sigmoid([{0}, {1}])[0]", "torch._foreach_maximum([{0}, {1}], 0.25)[0]",
    "torch._foreach_addcmul([{0}, {1}], [{1}, {0}], [{0}, {0}], 0.5)[1]",
    "torch.where({0}.isnan(), {1}, {0})", "torch.nextafter({0}, {1})",
)  # fmt: skip


def elementwise(d: Draft) -> Made:
    form = d.rng.random()
    if form < 0.3:
        k = d.exact(is_float)
        return None if k is None else Step(d.rng.choice(DISCRETE), (k,), "discrete")
    if form < 0.6:
        k = d.pick(lambda t: is_float(t) and t.ndim > 0)
        return None if k is None else Step(d.rng.choice(SMOOTH), (k,), "rough")
    k = d.exact(lambda t: is_float(t) and t.ndim > 0)
    if k is None:
        return None
    x = d.tensor(k)
    other = d.exact(lambda t: t.shape == x.shape and t.dtype is x.dtype)
    return None if other is None else Step(d.rng.choice(PAIR), (k, other), "rough")


def _rank_two(x: torch.Tensor, d: Draft) -> list[str]:
    texts = ["torch.block_diag({0}, {0})", "torch.fliplr({0})", "torch.flipud({0})"]
    texts += ["torch.permute_copy({0}, (1, 0))", "torch.t_copy({0})", "{0}.T.tile(2)"]
    if is_dense(x):
        texts.append("torch.diagonal_scatter({0}, torch.zeros_like({0}.diagonal()))")
    return texts


def _channels(x: torch.Tensor) -> list[str]:
    texts: list[str] = []
    if x.ndim == 4 and x.shape[1] % 4 == 0 and x.shape[1]:
        texts.append("F.pixel_shuffle({0}, 2)")
    if x.ndim == 4 and x.shape[-1] % 2 == 0 and x.shape[-2] % 2 == 0:
        texts.append("F.pixel_unshuffle({0}, 2)")
    if x.ndim == 4 and is_float(x) and min(x.shape) > 0:
        texts.append("F.unfold({0}, 2, padding=1)")
    if x.ndim >= 3 and x.shape[1] % 2 == 0 and x.shape[1]:
        texts.append("F.channel_shuffle({0}, 2)")
    return texts


def moved(d: Draft) -> Made:
    """Elements in another arrangement, in memory of their own."""
    k = d.pick(shaped)
    if k is None:
        return None
    x = d.tensor(k)
    a, n = d.dim(x), x.shape
    at = d.rng.randint(0, max(n[a] - 1, 0))
    texts = [
        "torch.diag_embed({0})",
        f"{{0}}.tile({d.rng.choice((1, 2))}, 2)",
        f"torch.slice_copy({{0}}, {a}, {at})",
        f"torch.select_copy({{0}}, {a}, {at})",
        f"torch.unsqueeze_copy({{0}}, {a})",
        "torch.view_copy({0}, (-1,))",
        f"torch.narrow_copy({{0}}, {a}, {at}, {n[a] - at})",
        "torch.hstack(({0}, {0}))",
        "torch.vstack(({0}, {0}))",
        "torch.dstack(({0}, {0} + 1))",
        "torch.atleast_3d({0})",
        f"{{0}}.swapaxes({a}, 0)",
        "torch.broadcast_tensors({0}, {0}[:1])[1].clone()",
        "{0}.new_full({0}.shape, 2)",
        "{0}.new_ones({0}.shape[0])",
        "{0}.reshape({0}.shape[0], -1)",
        "{0}.view({0}.shape)",
        "{0}.expand(2, *{0}.shape)",
        "{0}[: {0}.shape[0] // 2]",
        f"torch.full(({{0}}.shape[{a}],), {{0}}.shape[{a}])",
        f"torch.unbind_copy({{0}}, {a})[{at}]",
        f"torch.split_copy({{0}}, {at + 1}, {a})[0]",
        *(_rank_two(x, d) if x.ndim == 2 else []),
        *_channels(x) * 3,
    ]
    if is_dense(x):  # of others the result has gaps too, or elements that share memory
        texts += [
            f"torch.select_scatter({{0}}, torch.zeros_like({{0}}.select({a}, {at})), {a}, {at})",
            f"torch.slice_scatter({{0}}, {{0}}.narrow({a}, 0, {at}).flip(0), {a}, 0, {at})",
            f"torch.slice_scatter({{0}}, {{0}}.narrow({a}, 0, {at}) + 1, {a}, 0, {at})",
        ]
    if n[a] % 2 == 0 and n[a] and is_float(x):
        texts.append(f"F.glu({{0}}, {a})")
    text = d.rng.choice(texts)
    rough = "F.glu" in text or "F.unfold" in text
    return Step(text, (k,), "rough" if rough else "exact")


def summary(d: Draft) -> Made:
    """Reductions that give two results, rank elements, or stand on others."""
    k = d.pick(lambda t: is_float(t) and t.ndim > 0)
    if k is None:
        return None
    x = d.tensor(k)
    a = d.dim(x)
    if d.rng.random() < 0.35 and not d.machine.is_rough(k) and x.shape[a]:
        top = d.rng.randint(1, x.shape[a])
        ranked = (
            f"torch.topk({{0}}, {top}, {a})[0]",
            f"torch.kthvalue({{0}}, {top}, {a})[0]",
            f"{{0}}.median({a})[0]",
            f"{{0}}.cummin({a})[0]",
            "torch.msort({0})",
            "torch.searchsorted({0}.flatten().sort()[0], {0})",
        )
        return Step(f"{d.rng.choice(ranked)} + 0", (k,), "discrete")
    texts = [
        f"torch.std_mean({{0}}, {a})[0]",
        f"torch.std_mean({{0}}, {a})[1]",
        f"torch.var_mean({{0}}, {a}, keepdim=True)[1]",
        "{0}.norm(1)",
        f"{{0}}.norm(3, {a})",
        f"torch.linalg.vector_norm({{0}}, inf, {a})",
        f"torch.renorm({{0}}, 2, {a}, 1.5)" if x.ndim > 1 else "{0}.var()",
        f"{{0}}.clamp({bounded(x.numel())}).prod()",
        f"torch.trapezoid({{0}}, dim={a})",
        "torch.cov({0})" if x.ndim == 2 else "{0}.std()",
        f"{{0}}.softmax({a}).max({a})[0]",
    ]
    return Step(d.rng.choice(texts), (k,), "rough")


def nested(d: Draft) -> Made:
    """A reduction of a reduction, and the first one spread over what it came from."""
    k = d.pick(lambda t: is_float(t) and t.ndim > 0)
    if k is None:
        return None
    x = d.tensor(k)
    at = len(d.machine.values)
    first = d.rng.choice(("sum", "mean", "sum", "logsumexp"))
    steps = [Step(f"{{0}}.{first}({d.dim(x)}, keepdim=True)", (k,), "rough")]
    between = d.rng.choice(("{0} - {1}", "{0} * {1}", "({0} - {1}).square()", "{1}.abs() + 1"))
    steps.append(Step(between, (k, at), "rough"))
    second = d.rng.choice(("sum", "mean", "var", "softmax", "cumsum"))
    steps.append(Step(f"{{0}}.{second}({d.dim(x)})", (at + 1,), "rough"))
    if d.rng.random() < 0.6:
        last = d.rng.choice(("{0}.sum()", "{0}.mean(0)", "{0}.sum(-1).sum()", "{0}.std()"))
        steps.append(Step(last, (at + 2,), "rough"))
    if d.rng.random() < 0.4:
        steps.append(Step("{0} + {1}", (at, at + len(steps) - 1)))
    return steps


def paired(d: Draft) -> Made:
    """Layers that take a second tensor of a shape of its own."""
    k = d.pick(lambda t: is_float(t) and t.ndim >= 2 and min(t.shape) > 0)
    if k is None:
        return None
    x = d.tensor(k)
    c = x.shape[1]
    weight = d.pick(lambda t: t.dtype is x.dtype and tuple(t.shape) == (c,))
    if weight is not None and d.rng.random() < 0.7:
        texts = [
            "F.prelu({0}, {1})",
            "F.batch_norm({0}, {1}, {1}.abs() + 0.5)",
            "F.batch_norm({0}, None, None, {1}, {1}, training=True)",
            "F.group_norm({0}, 1, {1}, {1})",
        ]
        if x.ndim == 2:
            texts += ["F.layer_norm({0}, {1}.shape, {1}, {1})", "F.rms_norm({0}, {1}.shape, {1})"]
            texts += ["torch.mv({0}, {1})", "torch.addr({0}, {0}[:, 0], {1})", "{0} @ {1}"]
        return Step(d.rng.choice(texts), (k, weight), "rough")
    labels = d.pick(lambda t: is_index(t) and t.shape == x.shape[:1] and valid(t, c))
    if x.ndim == 2 and labels is not None and d.rng.random() < 0.7:
        texts = [
            "F.cross_entropy({0}, {1})",
            "F.cross_entropy({0}, {1}, reduction='none', label_smoothing=0.1)",
            "F.nll_loss(F.log_softmax({0}, 1), {1}, ignore_index=0, reduction='sum')",
            "F.multi_margin_loss({0}, {1})",
        ]
        return Step(d.rng.choice(texts), (k, labels), "rough")
    texts = ["torch.einsum('...i,...j->...ij', {0}, {0})", "torch.cov({0}.flatten(1))"]
    if x.ndim == 3:
        texts.append("F.scaled_dot_product_attention({0}, {0}, {0})")
        texts.append("torch.bmm({0}, {0}.mT)")
    if x.ndim == 2 and x.shape[1] > 1:
        texts += [
            "torch.cdist({0}, {0} + 1)",
            "{0}.T @ {0}",
            "torch.addmm({0} @ {0}.T, {0}, {0}.T)",
        ]
    if x.ndim == 4:
        texts += ["F.interpolate({0}, size=(3, 5), mode='nearest-exact')"]
        texts += ["F.interpolate({0}, scale_factor=1.5, mode='area')"]
        texts += [
            "F.interpolate({0}, size=(4, 4), mode='bicubic')",
            "F.adaptive_avg_pool2d({0}, 2)",
        ]
    return Step(d.rng.choice(texts), (k,), "rough")


def by_data(d: Draft) -> Made:
    """Results whose size is data, and what becomes of them; masks as sources."""
    mask = d.exact(is_bool)
    if mask is None:
        return None
    m = d.tensor(mask)
    k = d.exact(lambda t: t.shape == m.shape)
    if k is None:
        return None
    floats = d.tensor(k).is_floating_point()
    texts = ["{0}.masked_scatter({1}, {0}.flatten().flip(0))", "{0}.masked_fill({1}, 0.5)"]
    if d.grad or m.ndim == 0:
        return Step(d.rng.choice(texts), (k, mask), "exact")
    sums = ["{0}[{1}].sum()", "({0}[{1}] * 2 + 1).sum()", "torch.masked_select({0}, {1}).sum()"]
    sums += ["({1}.nonzero() + 1).sum(0) + {0}.sum()", "({0} * {1}.sum().item()).sum()"]
    text = d.rng.choice([*sums, *texts])
    return Step(text, (k, mask), "rough" if floats and text in sums else "exact")


def positions(d: Draft) -> Made:
    """Writes at positions, in the forms that are rarer."""
    k = d.pick(shaped)
    if k is None:
        return None
    x = d.tensor(k)
    at = d.pick(lambda t: is_index(t) and t.ndim == 1 and valid(t, x.shape[0]))
    if at is None:
        return None
    i = d.tensor(at)
    kind = "rough" if x.is_floating_point() else "discrete"
    texts = ["F.one_hot({1}, {0}.shape[0])", "torch.take_along_dim({0}.flatten(), {1})"]
    if i.ndim == x.ndim:
        texts += [
            "{0}.scatter(0, {1}, 3, reduce='multiply')",
            "{0}.scatter(0, {1}, 2, reduce='add')",
        ]
    src = d.pick(lambda t: t.dtype is x.dtype and tuple(t.shape) == (i.numel(), *x.shape[1:]))
    if src is not None:
        how = d.rng.choice(("prod", "amax", "amin", "mean"))
        form = f"{{0}}.index_reduce(0, {{1}}, {{2}}, '{how}', include_self={d.rng.random() < 0.5})"
        if how == "mean" and not x.is_floating_point():
            form = "{0}.index_add(0, {1}, {2})"
        if distinct(i) and x.ndim == 1 and d.rng.random() < 0.5:
            form = "torch.put({0}, {1}, {2})"
        return Step(form, (k, at, src), kind)
    return Step(d.rng.choice(texts), (k, at), kind if "scatter" in texts[-1] else "exact")


def whole(d: Draft) -> Made:
    """Integers with integers of other widths, and shifts by them."""
    k = d.exact(is_whole)
    other = None if k is None else d.exact(is_whole)
    if k is None or other is None:
        return None
    texts = (
        "{0} << ({1} & 3)", "{0} >> ({1} & 3)", "torch.isin({0}, {1})", "{0} ** ({1} & 3)",
        "torch.lcm({0} & 7, {1} & 7)", "torch.bitwise_and({0}, {1})", "3 & {0}", "7 ^ {0}",
        "20 % ({0} | 1)", "100 // ({0}.abs() | 1)", "torch.bucketize({0}, {1}.flatten().sort()[0])",
        "{0} / ({1}.abs() | 1)", "torch.where({0} > {1}, {0}, {1})", "{0}.float() + {1}",
    )  # fmt: skip
    return Step(d.rng.choice(texts), (k, other), "discrete")


MAKERS: tuple[tuple[float, Maker], ...] = (
    (2.5, elementwise),
    (2, moved),
    (1, summary),
    (1.5, nested),
    (1, paired),
    (0.5, by_data),
    (0.6, positions),
    (0.7, whole),
)
