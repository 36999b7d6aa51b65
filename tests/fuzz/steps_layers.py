"""What neural networks are made of: products of matrices of uneven sizes, and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tests.fuzz.generate import Draft, Made, Maker, layout
from tests.fuzz.program import Input, Step

TYPES = ("float32", "float32", "bfloat16", "float16", "float64")
BATCHES = (1, 1, 2, 3)
UNEVEN = (1, 2, 7, 13, 16, 31, 65)
# From 256 on, products of 16-bit matrices on GPUs may be made even.
BIG = (257, 259, 264, 300, 333, 389)
KEYS = (1, 2, 5, 7, 13, 16, 33, 65)
HEAD_SIZES = (1, 3, 4, 8, 16, 20, 32, 64)
MOST_INPUTS = 14


class Operands:
    """Arguments of a step to be: values that are there, and inputs made for it, in order."""

    def __init__(self, d: Draft, *there: int) -> None:
        self.d = d
        self.at = list(there)

    def new(
        self,
        dtype: str,
        shape: Sequence[int],
        *,
        order: tuple[int, ...] | None = None,
        keep: tuple[int, ...] = (),
        grad: bool = True,
        odd: bool = True,
    ) -> None:
        """Another input.  order: see Input.  grad: it may want one.  odd: in any layout."""
        rng = self.d.rng
        wants = grad and self.d.grad and rng.random() < 0.8
        seed = rng.randrange(1 << 30)
        i = Input(dtype, tuple(shape), order=order or (), seed=seed, grad=wants, keep=keep)
        if order is None and odd and rng.random() < 0.25:
            i = layout(rng, i)
        at = self.d.add_input(i)
        self.at = [k + (k >= at) for k in self.at] + [at]

    @property
    def next(self) -> int:
        """The number of the first step that reads them."""
        return len(self.d.machine.values)


def tame(t: torch.Tensor, most: float = 30.0) -> bool:
    """Whether floats are such that sums of some hundred products of them are ordinary numbers."""
    if not t.is_floating_point() or not t.numel():
        return False
    return bool(torch.isfinite(t).all()) and float(t.abs().max()) <= most


def some_type(d: Draft) -> str:
    return d.float_type or d.rng.choice(TYPES)


def crowded(d: Draft) -> bool:
    return len(d.inputs) >= MOST_INPUTS


EPILOGUES = (
    "torch.relu({0})", "F.gelu({0})", "{0} * 0.125", "F.silu({0}) + 1", "{0}.sum(-1)",
    "{0}.mean(0)", "torch.softmax({0}, -1)", "{0}.transpose(0, -1)",
    "{0} + {0}.mean(-1, keepdim=True)", "{0}.to(torch.float32)", "{0}.reshape(-1)",
    "{0}.mT.contiguous()", "F.dropout({0}, 0.3, training=False)",
)  # fmt: skip


def with_epilogue(d: Draft, steps: list[Step], at: int, chance: float = 0.6) -> list[Step]:
    """Steps, and what often follows: something elementwise, a reduction.  at: their result."""
    if d.rng.random() < chance:
        text = d.rng.choice(EPILOGUES)
        kind = "view" if "transpose" in text or "reshape" in text else "rough"
        steps.append(Step(text, (at,), kind))
    return steps


# --- products ------------------------------------------------------------------------------------


def _sides(d: Draft, count: int) -> tuple[int, ...]:
    """Sizes of matrices: small, or all large."""
    pool = BIG if d.rng.random() < 0.2 else UNEVEN
    return tuple(d.rng.choice(pool) for _ in range(count))


def _flipped(d: Draft, rank: int) -> tuple[int, ...] | None:
    """An order in memory: often that of the transposed matrix."""
    if d.rng.random() < 0.35:
        return (*range(rank - 2), rank - 1, rank - 2)
    return None


def matrices(d: Draft) -> Made:
    """Products of two matrices, with a bias or a third one added."""
    if crowded(d):
        return None
    m, k, n = _sides(d, 3)
    dtype = some_type(d)
    x = d.pick(lambda t: t.ndim == 2 and tame(t)) if d.rng.random() < 0.5 else None
    ops = Operands(d)
    if x is not None:
        ops.at, (m, k) = [x], d.tensor(x).shape
        dtype = str(d.tensor(x).dtype)[6:]
    else:
        ops.new(dtype, (m, k), order=_flipped(d, 2))
    text, third = d.rng.choice(
        (
            ("torch.mm({0}, {1})", None),
            ("{0} @ {1}", None),
            ("torch.addmm({2}, {0}, {1})", (n,)),
            ("torch.addmm({2}, {0}, {1}, beta=0.5, alpha=2)", (n,)),
            ("torch.addmm({2}, {0}, {1})", (m, n)),
            ("torch.addmm({2}, {0}, {1})", (1, n)),
            ("F.linear({0}, {1})", None),
            ("F.linear({0}, {1}, {2})", (n,)),
            ("torch.einsum('ij,kj->ki', {0}, {1})", None),
            ("torch.einsum('ij,kj->ik', {0}, {1}) + {2}", (n,)),
            ("({0} @ {1} + {2})", (n,)),
        )
    )
    by_rows = "linear" in text or "einsum" in text
    ops.new(dtype, (n, k) if by_rows else (k, n), order=_flipped(d, 2))
    if third is not None:
        ops.new(dtype, third)
    at = ops.next
    return with_epilogue(d, [Step(text, tuple(ops.at), "rough")], at)


def batches(d: Draft) -> Made:
    """Products of batches of matrices."""
    if crowded(d):
        return None
    m, k, n = _sides(d, 3)
    b = d.rng.choice(BATCHES)
    dtype = some_type(d)
    ops = Operands(d)
    x = d.pick(lambda t: t.ndim == 3 and tame(t)) if d.rng.random() < 0.5 else None
    if x is not None:
        ops.at, (b, m, k) = [x], d.tensor(x).shape
        dtype = str(d.tensor(x).dtype)[6:]
    else:
        ops.new(dtype, (b, m, k), order=d.rng.choice((_flipped(d, 3), (1, 0, 2))))
    text, second, third = d.rng.choice(
        (
            ("torch.bmm({0}, {1})", (b, k, n), None),
            ("torch.bmm({0}, {1}.mT)", (b, n, k), None),
            ("{0} @ {1}", (b, k, n), None),
            ("{0} @ {1}", (k, n), None),
            ("F.linear({0}, {1}, {2})", (n, k), (n,)),
            ("F.linear({0}, {1})", (n, k), None),
            ("torch.baddbmm({2}, {0}, {1})", (b, k, n), (b, m, n)),
            ("torch.baddbmm({2}, {0}, {1}, beta=0.5, alpha=0.25)", (b, k, n), (1, 1, n)),
            ("torch.einsum('bij,bkj->bik', {0}, {1})", (b, n, k), None),
            ("torch.einsum('bij,bkj->kib', {0}, {1})", (b, n, k), None),
            ("torch.einsum('bij,jk->bik', {0}, {1})", (k, n), None),
            ("torch.matmul({0}[None], {1})", (2, 1, k, n), None),
        )
    )
    ops.new(dtype, second, order=_flipped(d, len(second)))
    if third is not None:
        ops.new(dtype, third)
    at = ops.next
    return with_epilogue(d, [Step(text, tuple(ops.at), "rough")], at)


def perceptron(d: Draft) -> Made:
    """Two layers with something between, and a residual."""
    if crowded(d):
        return None
    m, k, n = _sides(d, 3)
    dtype = some_type(d)
    ops = Operands(d)
    lead = d.rng.choice(((m,), (d.rng.choice(BATCHES), min(m, 33))))
    ops.new(dtype, (*lead, k))
    ops.new(dtype, (n, k))
    ops.new(dtype, (n,))
    ops.new(dtype, (k, n))
    x, w1, b1, w2 = ops.at
    at = ops.next
    between = d.rng.choice(("F.gelu({0})", "torch.relu({0})", "F.silu({0})", "torch.tanh({0}) * 2"))
    scale = f"{{0}} * {round(1 / max(k, 1) ** 0.5, 4)}"
    return [
        Step(d.rng.choice(("{0}", f"F.layer_norm({{0}}, ({k},))")) + " * 1.0", (x,), "rough"),
        Step("F.linear({0}, {1}, {2})", (at, w1, b1), "rough"),
        Step(scale, (at + 1,), "rough"),
        Step(between, (at + 2,), "rough"),
        Step("F.linear({0}, {1})", (at + 3, w2), "rough"),
        Step("{0} + {1}", (at + 4, x), "rough"),
    ]


# --- attention -----------------------------------------------------------------------------------


def _mask(d: Draft, ops: Operands, dtype: str, sizes: tuple[int, int, int, int]) -> list[Step]:
    """A mask as the last of the operands or as steps behind them; one key of a row is never masked.

    A row without keys is nan in some kernels of eager and 0 in others.
    """
    b, h, s, t = sizes
    form = d.rng.choice(
        ((s, t), (b, 1, s, t), (1, h, s, t), (b, 1, 1, t), (b, h, s, t), (1, 1, s, t))
    )
    keep = (1,) if len(form) == 4 and form[1] > 1 else ()
    how = d.rng.choice(("float", "bool", "bool", "inf", "tril"))
    if how == "tril" and (t < 1 or len(form) != 2):
        how = "bool"
    ops.new(dtype if how == "float" else "float32", form, keep=keep, grad=how == "float")
    if how == "float":
        return []
    seen = f"({{0}} >= {{0}}.amax(-1, keepdim=True) - {d.rng.choice(('0.0', '0.8', '1.5', '9.0'))})"
    if how == "tril":
        seen = "torch.ones_like({0}).tril() > 0"
    steps = [Step(seen, (ops.at[-1],), "discrete")]
    if how == "inf":
        hidden = d.rng.choice(("-inf", "-inf", "-1e4"))
        steps.append(Step(f"torch.where({{0}}, 0.0, {hidden}).to(torch.{dtype})", (ops.next,)))
    return steps


def attention(d: Draft) -> Made:
    """``scaled_dot_product_attention``: masks, groups of heads, odd counts of keys, layouts."""
    if crowded(d):
        return None
    rng = d.rng
    b, s, t, e = (rng.choice(x) for x in (BATCHES, KEYS, KEYS, HEAD_SIZES))
    t = s if rng.random() < 0.3 else t
    shared = rng.choice((1, 1, 1, 2, 3))
    heads = rng.choice((1, 2, 3))
    width = e if rng.random() < 0.8 else rng.choice(HEAD_SIZES)
    dtype = some_type(d)
    ops = Operands(d)
    rank = 4 if shared > 1 or rng.random() < 0.85 else 3
    order = (0, 2, 1, 3) if rank == 4 and rng.random() < 0.4 else None
    shapes = ((b, heads * shared, s, e), (b, heads, t, e), (b, heads, t, width))
    for shape in shapes:
        shape = shape if rank == 4 else (shape[0], *shape[2:])
        ops.new(dtype, shape, order=order, keep=(1, 3) if rank == 4 else (2,))
    steps: list[Step] = []
    extra = rng.choice(("", "", ", scale=0.3", ", scale=1.0"))
    extra += ", enable_gqa=True" if shared > 1 else ""
    masked = rng.random()
    if masked < 0.25:
        extra += ", is_causal=True"
    elif masked < 0.75 and rank == 4:
        steps = _mask(d, ops, dtype, (b, heads * shared, s, t))
        mask = ops.next + len(steps) - 1 if steps else ops.at[3]
        ops.at = [*ops.at[:3], mask]
        extra = ", attn_mask={3}" + extra
    steps.append(
        Step(f"F.scaled_dot_product_attention({{0}}, {{1}}, {{2}}{extra})", tuple(ops.at), "rough")
    )
    at = ops.next + len(steps) - 1
    if rank == 4 and rng.random() < 0.6:
        steps.append(
            Step("{0}.transpose(1, 2).reshape({0}.shape[0], {0}.shape[2], -1)", (at,), "view")
        )
        at += 1
    return with_epilogue(d, steps, at, 0.4)


def spelled_attention(d: Draft) -> Made:
    """Attention as it is written by hand: two products with a softmax between them."""
    if crowded(d):
        return None
    rng = d.rng
    b, h, s, t, e = (rng.choice(x) for x in (BATCHES, (1, 2, 3), KEYS, KEYS, HEAD_SIZES))
    dtype = some_type(d)
    ops = Operands(d)
    order = (0, 2, 1, 3) if rng.random() < 0.4 else None
    for shape in ((b, h, s, e), (b, h, t, e), (b, h, t, e)):
        ops.new(dtype, shape, order=order, keep=(1, 3))
    masks = _mask(d, ops, dtype, (b, h, s, t)) if rng.random() < 0.6 else []
    q, k, v, *rest = ops.at
    at = ops.next
    steps = list(masks)
    mask = at + len(masks) - 1 if masks else rest[0] if rest else None
    is_bool = len(masks) == 1
    scale = round(e**-0.5, 4)
    text = rng.choice(
        (f"({{0}} @ {{1}}.mT) * {scale}", f"({{0}} * {scale}) @ {{1}}.transpose(-2, -1)")
    )
    steps.append(Step(text, (q, k), "rough"))
    if mask is not None:
        apply = "{0}.masked_fill(~{1}, -inf)" if is_bool else "{0} + {1}"
        steps.append(Step(apply, (at + len(steps) - 1, mask), "rough"))
    soft = ["{0}.softmax(-1)", "torch.softmax({0}, -1)"]
    if dtype != "float64":
        soft.append(f"torch.softmax({{0}}.to(torch.float32), -1).to(torch.{dtype})")
    steps.append(Step(rng.choice(soft), (at + len(steps) - 1,), "rough"))
    steps.append(Step("{0} @ {1}", (at + len(steps) - 1, v), "rough"))
    return with_epilogue(d, steps, at + len(steps) - 1, 0.4)


def block(d: Draft) -> Made:
    """Self-attention between two linear layers, as transformers have it."""
    if crowded(d):
        return None
    rng = d.rng
    b, s, h, e = (rng.choice(x) for x in (BATCHES, KEYS, (1, 2, 3), (4, 7, 16)))
    c = h * e
    dtype = some_type(d)
    ops = Operands(d)
    ops.new(dtype, (b, s, c), keep=(2,))
    ops.new(dtype, (3 * c, c), keep=(0, 1))
    ops.new(dtype, (c, c), keep=(0, 1))
    ops.new(dtype, (c,), keep=(0,))
    x, w, out, gain = ops.at
    at = ops.next
    causal = rng.choice(("", ", is_causal=True"))
    heads = f".unflatten(-1, ({h}, {e})).transpose(1, 2)"
    norm = rng.choice((f"F.layer_norm({{0}}, ({c},), {{1}})", f"F.rms_norm({{0}}, ({c},), {{1}})"))
    half = round(c**-0.5, 4)
    return [
        Step(norm, (x, gain), "rough"),
        Step(f"F.linear({{0}}, {{1}}) * {half}", (at, w), "rough"),
        Step(f"{{0}}[..., :{c}]{heads}", (at + 1,), "view"),
        Step(f"{{0}}[..., {c}:{2 * c}]{heads}", (at + 1,), "view"),
        Step(f"{{0}}[..., {2 * c}:]{heads}", (at + 1,), "view"),
        Step(
            f"F.scaled_dot_product_attention({{0}}, {{1}}, {{2}}{causal})",
            (at + 2, at + 3, at + 4),
            "rough",
        ),
        Step("{0}.transpose(1, 2).flatten(2)", (at + 5,), "view"),
        Step(f"F.linear({{0}}, {{1}}) * {half} + {{2}}", (at + 6, out, x), "rough"),
    ]


PLAIN: tuple[Callable[[Draft], Made], ...] = (matrices, batches, attention, perceptron, block)
MAKERS: tuple[tuple[float, Maker], ...] = (
    (0.8, matrices),
    (0.6, batches),
    (0.3, perceptron),
    (0.8, attention),
    (0.4, spelled_attention),
    (0.3, block),
)
