"""Convolutions, and normalisations with their statistics, weights and running averages."""

from __future__ import annotations

from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Step
from tests.fuzz.steps_layers import BATCHES, Operands, crowded, some_type, tame, with_epilogue

EXTENTS = {1: (3, 7, 16, 33), 2: (3, 5, 7, 8, 14), 3: (3, 4, 5)}
CHANNELS = (1, 2, 3, 4, 6, 8, 16)
NORMED = (2, 3, 5, 7, 16, 33)


def last(rank: int) -> tuple[int, ...]:
    """The order in memory with channels innermost."""
    return (0, *range(2, rank), 1)


def _convolved(d: Draft) -> tuple[Operands, list[Step], int, str]:
    """A convolution of new operands; its channels and type."""
    rng = d.rng
    n = rng.choice((1, 2, 2, 2, 3))
    dtype = some_type(d)
    groups = rng.choice((1, 1, 1, 2, 3))
    c, out = (groups * rng.choice(CHANNELS[:5] if groups > 1 else CHANNELS) for _ in "io")
    if rng.random() < 0.15:
        groups, out = c, c * rng.choice((1, 2))
    extents = [rng.choice(EXTENTS[n]) for _ in range(n)]
    kernel = [rng.choice((1, 2, 3, 3)) for _ in range(n)]
    turned = rng.random() < 0.25
    ops = Operands(d)
    order = last(n + 2) if n > 1 and rng.random() < 0.5 else None
    ops.new(dtype, (rng.choice(BATCHES), c, *extents), order=order, keep=(1,))
    # Kernels with dimensions of one element in an order of their own: who says what that is?
    weight = (c, out // groups) if turned else (out, c // groups)
    whole = tuple(range(n + 2))
    worder = last(n + 2) if n > 1 and rng.random() < 0.25 and min(*weight, *kernel) > 1 else None
    ops.new(dtype, (*weight, *kernel), order=worder, keep=whole, odd=False)
    bias = rng.random() < 0.5
    if bias:
        ops.new(dtype, (out,), keep=(0,), odd=False)
    stride, dilation = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 1, 2))
    more = f", stride={stride}, padding={rng.choice((0, 1, 1, 2))}, groups={groups}"
    if turned:
        more += f", output_padding={rng.randrange(max(stride, dilation))}, dilation={dilation}"
    elif stride == 1 and rng.random() < 0.2:
        more = f", padding='same', dilation={dilation}, groups={groups}"
    else:
        more += f", dilation={dilation}"
    name = f"F.conv_transpose{n}d" if turned else f"F.conv{n}d"
    text = f"{name}({{0}}, {{1}}, {'{2}' if bias else 'None'}{more})"
    return ops, [Step(text, tuple(ops.at), "rough")], out, dtype


def convolution(d: Draft) -> Made:
    if crowded(d):
        return None
    ops, steps, _, _ = _convolved(d)
    return with_epilogue(d, steps, ops.next)


def convolution_of_that(d: Draft) -> Made:
    """Of a value that is there."""
    k = None if crowded(d) else d.pick(lambda t: t.ndim in (3, 4) and tame(t))
    if k is None:
        return None
    x = d.tensor(k)
    ops = Operands(d, k)
    size = d.rng.choice((1, 3))
    out = d.rng.choice((2, 5))
    ops.new(str(x.dtype)[6:], (out, x.shape[1], *[size] * (x.ndim - 2)), odd=False)
    text = f"F.conv{x.ndim - 2}d({{0}}, {{1}}, padding={size // 2})"
    return with_epilogue(d, [Step(text, tuple(ops.at), "rough")], ops.next)


def normalised_convolution(d: Draft) -> Made:
    """Convolution, batch norm with running averages, a function, perhaps a residual."""
    if crowded(d):
        return None
    ops, steps, channels, dtype = _convolved(d)
    arity = len(ops.at)
    norm = dtype if d.rng.random() < 0.5 else "float32"
    norm = "float64" if dtype == "float64" else norm
    for k in range(4):
        ops.new(norm, (channels,), keep=(0,), grad=k >= 2, odd=False)
    mean, var, weight, bias = ops.at[arity:]
    steps = [Step(steps[0].text, tuple(ops.at[:arity]), "rough")]
    at = ops.next
    steps.append(_batch_norm(d, (mean, var, at, weight, bias), d.rng.random() < 0.6))
    text = d.rng.choice(("torch.relu({0})", "F.silu({0})", "F.leaky_relu({0}, 0.1)", "{0} * 2"))
    steps.append(Step(text, (at + 1,), "rough"))
    if d.rng.random() < 0.4:
        steps.append(Step("{0} + {1}", (at + 2, at), "rough"))
    return steps


# --- normalisations ------------------------------------------------------------------------------


def _batch_norm(d: Draft, args: tuple[int, ...], training: bool) -> Step:
    """args: running mean and variance, the tensor, weight and bias."""
    if training:
        momentum = d.rng.choice(("0.1", "0.3", "1.0"))
        text = f"F.batch_norm({{2}}, {{0}}, {{1}}, {{3}}, {{4}}, True, {momentum})"
        return Step(text, args, "rough", 2)
    return Step("F.batch_norm({2}, {0}, {1}.abs() + 0.5, {3}, {4}, False)", args, "rough")


def _to_norm(d: Draft, least: int) -> Operands | None:
    """One value to normalise, of two dimensions or more."""
    if crowded(d):
        return None
    if d.rng.random() < 0.4:
        k = d.pick(lambda t: t.ndim >= least and tame(t))
        return None if k is None else Operands(d, k)
    ops = Operands(d)
    rank = d.rng.choice((2, 3, 4, 4)) if least < 3 else d.rng.choice((3, 4))
    sizes = [d.rng.choice(NORMED[: 6 if rank < 4 else 4]) for _ in range(rank)]
    sizes[0] = d.rng.choice(BATCHES) if rank > 2 else sizes[0]
    order = last(rank) if rank == 4 and d.rng.random() < 0.4 else None
    ops.new(some_type(d), sizes, order=order)
    return ops


def running(d: Draft) -> Made:
    """Norms that keep running averages of what they see, and a counter of calls beside them."""
    per_image = d.rng.random() < 0.25
    ops = _to_norm(d, 3 if per_image else 2)
    if ops is None:
        return None
    x = d.tensor(ops.at[0])
    dtype = str(x.dtype)[6:]
    stats = "float32" if x.dtype.itemsize == 2 and d.rng.random() < 0.7 else dtype
    for k in range(4):
        ops.new(stats, (x.shape[1],), grad=k >= 2, odd=False)
    k, mean, var, weight, bias = ops.at
    args = (mean, var, k, weight, bias)
    if per_image:
        text = "F.instance_norm({2}, {0}, {1}, {3}, {4}, True, 0.2)"
        steps = [Step(text, args, "rough", 2)]
    else:
        steps = [_batch_norm(d, args, d.rng.random() < 0.75)]
    at = ops.next
    with_epilogue(d, steps, at, 0.5)
    counter = d.pick(lambda t: t.dtype.is_signed and not t.is_floating_point())
    if counter is not None and d.rng.random() < 0.3:
        steps.append(Step("{0}.add_(1)", (counter,), "exact", 1))
    return steps


def weighted(d: Draft) -> Made:
    """Norms over other dimensions than the batch, with weights."""
    ops = _to_norm(d, 2)
    if ops is None:
        return None
    x = d.tensor(ops.at[0])
    dtype, rng = str(x.dtype)[6:], d.rng
    how = rng.choice(("layer", "layer2", "group", "rms", "instance"))
    count = 1 if how == "rms" else 2
    if how in ("layer", "rms"):
        form = tuple(x.shape[-1:])
    elif how == "layer2":
        form = tuple(x.shape[-2:])
    else:
        form = (x.shape[1],)
    if how == "instance" and x.ndim < 3:
        return None
    for _ in range(count):
        ops.new(dtype, form)
    sizes = ", ".join(f"{{0}}.shape[{k}]" for k in range(-len(form), 0))
    groups = next(g for g in (4, 3, 2, 1) if x.shape[1] % g == 0)
    texts = {
        "layer": f"F.layer_norm({{0}}, ({sizes},), {{1}}, {{2}})",
        "layer2": f"F.layer_norm({{0}}, ({sizes}), {{1}}, {{2}}, 1e-3)",
        "rms": f"F.rms_norm({{0}}, ({sizes},), {{1}}, 1e-5)",
        "group": f"F.group_norm({{0}}, {groups}, {{1}}, {{2}})",
        "instance": "F.instance_norm({0}, None, None, {1}, {2})",
    }
    return with_epilogue(d, [Step(texts[how], tuple(ops.at), "rough")], ops.next)


def averaged(d: Draft) -> Made:
    """A buffer that follows what passes by, without a gradient."""
    k = None if crowded(d) else d.pick(lambda t: t.ndim > 0 and tame(t))
    if k is None:
        return None
    x = d.tensor(k)
    ops = Operands(d, k)
    ops.new(str(x.dtype)[6:], tuple(x.shape[1:]), grad=False, odd=False)
    k, buffer = ops.at
    follow = d.rng.choice(
        ("{0}.lerp_({1}.detach().mean(0), 0.1)", "{0}.copy_({1}.detach().amax(0))")
    )
    steps = [Step(follow, (buffer, k), "rough", 1)]
    if d.rng.random() < 0.7:
        steps.append(Step(d.rng.choice(("{1} - {0}", "{1} * {0} + {1}")), (buffer, k), "rough"))
    return steps


MAKERS: tuple[tuple[float, Maker], ...] = (
    (0.7, convolution),
    (0.3, convolution_of_that),
    (0.6, normalised_convolution),
    (0.6, running),
    (0.6, weighted),
    (0.3, averaged),
)
