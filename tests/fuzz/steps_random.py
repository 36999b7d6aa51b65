"""Random numbers, recomputation in the backward, and regions of autocast and without gradients."""

from __future__ import annotations

from dataclasses import replace

from tests.fuzz import steps_conv, steps_layers, steps_pointwise, steps_reduce
from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Draw, Step
from tests.fuzz.steps_layers import Operands, crowded, some_type, tame
from tests.fuzz.steps_pointwise import is_float


def _pure(low: float, high: float, mean: float | None = None, spread: float = 0.0) -> Draw:
    return Draw("{0}", "", low, high, mean, spread)


INF = float("inf")
UNIT = _pure(0, 1, 0.5, 0.289)
NORMAL = _pure(-9, 9, 0, 1)
NUMBERS: tuple[tuple[str, Draw], ...] = (
    ("torch.rand_like({0})", UNIT),
    ("torch.rand_like({0})", UNIT),
    ("torch.randn_like({0})", NORMAL),
    ("torch.rand({0}.shape)", UNIT),
    ("torch.randn({0}.shape[0], 5)", NORMAL),
    ("torch.randn(3, {0}.shape[-1], dtype=torch.float64)", NORMAL),
    ("torch.rand((3, 7))", UNIT),
    ("torch.bernoulli({0}.sigmoid())", _pure(0, 1)),
    ("torch.bernoulli(torch.full({0}.shape, 0.3))", _pure(0, 1, 0.3, 0.459)),
    ("torch.empty_like({0}).bernoulli_(0.25)", _pure(0, 1, 0.25, 0.434)),
    ("torch.empty_like({0}).uniform_(-1, 2)", _pure(-1, 2, 0.5, 0.867)),
    ("torch.empty_like({0}).normal_(1, 2)", _pure(-17, 19, 1, 2)),
    ("torch.empty_like({0}).exponential_()", _pure(0, INF, 1, 1)),
    ("torch.normal(0.0, 1.0, {0}.shape)", NORMAL),
    ("torch.randint_like({0}, 10)", _pure(0, 9, 4.5, 2.88)),
    ("torch.randint(-3, 4, {0}.shape)", _pure(-3, 3, 0, 2.01)),
    ("torch.randperm({0}.shape[0])", _pure(0, 1e6)),
    ("torch.multinomial({0}.abs() + 0.1, 3, replacement=True)", _pure(0, 1e6)),
    # Of others PyTorch's metadata states the input's strides: the result is contiguous.
    ("torch.poisson({0}.abs().contiguous())", _pure(0, INF)),
)
USES = (
    "{0} + 0.1 * {1}", "{0} * ({1} > 0.5)", "torch.where({1} < 0.3, {0}, 0)", "{0} * {1} + {1}",
    "({0} * {1}).sum(-1)", "({1} - {1}.mean()) * {0}",
)  # fmt: skip


def numbers(d: Draft) -> Made:
    """Random numbers, and something that reads them."""
    k = d.pick(lambda t: t.ndim > 0 and tame(t))
    if k is None:
        return None
    text, draw = d.rng.choice(NUMBERS)
    at = len(d.machine.values)
    steps = [Step(text, (k,), "drawn", draw=draw)]
    if "_like" in text and d.rng.random() < 0.8:
        use = d.rng.choice(USES)
        kind = "rough" if "sum" in use or "mean" in use else "exact"
        steps.append(Step(use, (k, at), kind))
    return steps


def _dropped(gives: str, share: float, checked: bool = True) -> Draw:
    """Of what drops a share of its elements."""
    kept = 1 - share
    spread = (share * kept) ** 0.5
    return Draw("{0} != 0", f"{gives} * {{1}} / {kept}", 0, 1, kept if checked else None, spread)


CHECKPOINT = "torch.utils.checkpoint.checkpoint({body}, {args}, use_reentrant=False)"


def _checkpointed(body: str, args: str = "{0}") -> str:
    return CHECKPOINT.replace("{body}", body).replace("{args}", args)


DROPOUTS: tuple[tuple[str, Draw], ...] = (
    ("F.dropout({0}, 0.3)", _dropped("{0}", 0.3)),
    ("F.dropout({0}, 0.5)", _dropped("{0}", 0.5)),
    ("F.dropout({0} * 2 + {0}, 0.1)", _dropped("({0} * 2 + {0})", 0.1)),
    ("F.dropout(torch.tanh({0}), 0.25)", _dropped("torch.tanh({0})", 0.25)),
    (_checkpointed("lambda x: F.dropout(torch.tanh(x), 0.25)"), _dropped("torch.tanh({0})", 0.25)),
    (_checkpointed("lambda x: F.dropout(x * 3, 0.5).sin()"), Draw(
        "{0} != 0", "torch.sin({0} * 3 * {1} * 2)", 0, 1, 0.5, 0.5)),
)  # fmt: skip


def dropout(d: Draft) -> Made:
    """Elements or whole channels dropped; what was is to be the same in the backward."""
    k = d.pick(lambda t: t.ndim > 0 and tame(t, 8.0))
    if k is None:
        return None
    if d.tensor(k).ndim == 4 and d.rng.random() < 0.3:
        return Step("F.dropout2d({0}, 0.4)", (k,), "rough", draw=_dropped("{0}", 0.4, False))
    text, draw = d.rng.choice(DROPOUTS)
    at = len(d.machine.values)
    steps = [Step(text, (k,), "rough", draw=draw)]
    if d.rng.random() < 0.5:
        after = ("{0} + {1}", "{0} * {1}", "F.layer_norm({0} + {1}, {0}.shape[-1:])")
        steps.append(Step(d.rng.choice(after), (at, k), "rough"))
    return steps


RECOMPUTED = (
    "lambda x: torch.softmax(x * 2, -1).sin()", "lambda x: F.gelu(x) * x.sigmoid()",
    "lambda x: F.layer_norm(x.tanh(), x.shape[-1:])", "lambda x: x.exp().cumsum(-1).log1p()",
)  # fmt: skip


def recomputed(d: Draft) -> Made:
    """What the backward computes again."""
    k = None if crowded(d) else d.pick(lambda t: t.ndim > 0 and tame(t, 8.0))
    if k is None:
        return None
    if d.rng.random() < 0.6:
        return Step(_checkpointed(d.rng.choice(RECOMPUTED)), (k,), "rough")
    x = d.tensor(k)
    ops = Operands(d, k)
    ops.new(str(x.dtype)[6:], (d.rng.choice((1, 7, 16)), x.shape[-1]))
    text = _checkpointed("lambda x, w: F.linear(x, w).relu()", "{0}, {1}")
    return Step(text, tuple(ops.at), "rough")


# --- regions -------------------------------------------------------------------------------------

INSIDE: tuple[Maker, ...] = (
    *steps_layers.PLAIN,
    *steps_layers.PLAIN,
    steps_layers.spelled_attention,
    steps_conv.convolution,
    steps_conv.normalised_convolution,
    steps_conv.running,
    steps_conv.weighted,
    steps_reduce.along,
    steps_reduce.product,
    steps_pointwise.unary,
    steps_pointwise.binary,
)


def _under(made: Made, under: str) -> Made:
    if made is None:
        return None
    steps = [made] if isinstance(made, Step) else made
    return [replace(s, under=under) for s in steps]


def autocast(d: Draft) -> Made:
    """Part of a program in a 16-bit type; its arguments are mostly of 32 bits."""
    dtype = d.rng.choice(("bfloat16", "bfloat16", "float16"))
    d.float_type = d.rng.choice(("float32", "float32", "float32", some_type(d)))
    try:
        return _under(d.rng.choice(INSIDE)(d), f"autocast {dtype}")
    finally:
        d.float_type = ""


def without_grad(d: Draft) -> Made:
    """Part of a program that wants no gradients."""
    if not d.grad:
        return None
    made = d.rng.choice(INSIDE)(d)
    steps = [made] if isinstance(made, Step) else made or ()
    if any(s.writes for s in steps):
        return None
    made = list(_under(made, "no_grad") or ())
    k = d.pick(lambda t: is_float(t) and t.requires_grad)
    if made and k is not None and tame(d.tensor(k)):
        at = len(d.machine.values) + len(made) - 1
        made.append(Step("{0} * {1}.mean()", (k, at), "rough"))
    return made


MAKERS: tuple[tuple[float, Maker], ...] = (
    (0.7, numbers),
    (0.5, dropout),
    (0.3, recomputed),
    (1.0, autocast),
    (0.3, without_grad),
)
