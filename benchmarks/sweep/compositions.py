"""Hand-picked compositions, each over sizes, types and layouts."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.sweep.tensors import Job, Place, leaf
from benchmarks.workloads import group_norm_silu, rotary

Builder = Callable[[Place], Job]


def of_matrix(fn: Callable[[Tensor], object], low: float = -3.0) -> Builder:
    return lambda p: Job(fn, (p.matrix(low),))


def with_rows(fn: Callable[..., object], count: int) -> Builder:
    """A matrix and ``count`` vectors as long as a row."""

    def build(p: Place) -> Job:
        x = p.matrix()
        return Job(fn, (x, *(p.make(x.shape[-1]) for _ in range(count))))

    return build


def of_image(fn: Callable[..., object], weights: int = 0, channels: int = 32) -> Builder:
    def build(p: Place) -> Job:
        x = p.image(channels)
        return Job(fn, (x, *(p.make(x.shape[1], low=0.5, high=1.5) for _ in range(weights))))

    return build


def training(build: Builder, rest: Callable[[object], Tensor] | None = None) -> Builder:
    """The same as a loss whose gradients with respect to all floating inputs are wanted."""

    def built(p: Place) -> Job:
        job = build(p)
        fn = job.fn

        def loss(*args: Tensor) -> Tensor:
            out = fn(*args)
            scalar: Tensor = rest(out) if rest else out.square().mean()
            return scalar

        args = [leaf(a) if a.is_floating_point() else a for a in job.args]
        return Job(loss, tuple(args), training=True)

    return built


# --- of a matrix ----------------------------------------------------------------------------------


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w)


def add_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x + r, x.shape[-1:], w, b)


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-6) / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8), scale


def block_divide(x: Tensor) -> Tensor:
    blocks = torch.unflatten(x, -1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-6)
    return (blocks / scale).flatten(-2)


def block_divide_down(x: Tensor) -> Tensor:
    return block_divide(x.t()).t()


def of_blocks(fn: Callable[[Tensor], Tensor], down: bool) -> Builder:
    def build(p: Place) -> Job:
        rows, columns = (-(-n // 32) * 32 if turned else n for n, turned in sides(p, down))
        return Job(fn, (p.laid_out((rows, columns)),))

    return build


def sides(p: Place, down: bool) -> tuple[tuple[int, bool], tuple[int, bool]]:
    rows, columns = p.sides()
    return (rows, down), (columns, not down)


def even(fn: Callable[[Tensor], object]) -> Builder:
    """Of a matrix with an even number of columns."""

    def build(p: Place) -> Job:
        rows, columns = p.sides()
        return Job(fn, (p.laid_out((rows, columns + columns % 2)),))

    return build


def add_transposed(p: Place) -> Job:
    rows, columns = p.sides()
    return Job(lambda x, y: x + y.t(), (p.laid_out((rows, columns)), p.make(columns, rows)))


def two(fn: Callable[..., object]) -> Builder:
    return lambda p: Job(fn, (p.matrix(), p.matrix()))


def masked_softmax(p: Place) -> Job:
    x = p.matrix()
    mask = p.make(*x.shape, dtype=torch.bool)
    return Job(lambda x, m: x.masked_fill(m, -1e4).softmax(-1), (x, mask))


def gather_rows(fn: Callable[..., object]) -> Builder:
    """A table and as many numbers of its rows as it has."""

    def build(p: Place) -> Job:
        x = p.matrix()
        return Job(fn, (x, p.indices(x.shape[0], x.shape[0])))

    return build


def embedded_mean(p: Place) -> Job:
    """The mean of 16 embedded rows each."""
    x = p.matrix()
    return Job(lambda x, i: x[i].mean(1), (x, p.indices(x.shape[0], max(x.shape[0] // 16, 1), 16)))


def embedding(p: Place) -> Job:
    x = p.matrix()
    return Job(lambda x, i: F.embedding(i, x), (x, p.indices(x.shape[0], max(x.shape[0] // 4, 1))))


def along_rows(fn: Callable[..., object]) -> Builder:
    """Numbers of columns, as many as the matrix has elements."""

    def build(p: Place) -> Job:
        x = p.matrix()
        return Job(fn, (x, p.indices(x.shape[1], *x.shape)))

    return build


def scattered_rows(x: Tensor, i: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, i, x)


def cross_entropy(p: Place) -> Job:
    x = leaf(p.matrix())
    target = p.indices(x.shape[1], x.shape[0])
    return Job(lambda x, t: F.cross_entropy(x.float(), t), (x, target), training=True)


def rope(p: Place) -> Job:
    heads, width = 8, 64
    length = max(p.size // (heads * width), 1) | (1 if p.layout == "odd" else 0)
    q, k = p.laid_out((1, heads, length, width)), p.laid_out((1, heads, length, width))
    return Job(rotary, (q, k, p.make(length, width), p.make(length, width)))


def complex_rope(p: Place) -> Job:
    heads, width = 8, 64
    length = max(p.size // (heads * width), 1)
    x = p.laid_out((1, length, heads, width))
    angle = torch.randn(length, width // 2, device=p.device)
    turn = torch.polar(torch.ones_like(angle), angle)

    def fn(x: Tensor, turn: Tensor) -> Tensor:
        pairs = torch.view_as_complex(torch.unflatten(x.float().contiguous(), -1, (-1, 2)))
        return torch.view_as_real(pairs * turn[None, :, None]).flatten(-2).to(x.dtype)

    return Job(fn, (x, turn))


def unpacked(p: Place) -> Job:
    """Two numbers of 4 bits in a byte, a scale for each row."""
    rows, columns = p.sides()
    x = p.make(rows, columns, low=0, high=255, dtype=torch.uint8)

    def fn(x: Tensor, scale: Tensor) -> Tensor:
        pairs = torch.stack([(x & 15), (x >> 4)], -1).flatten(-2)
        return (pairs.to(scale.dtype) - 8) * scale

    return Job(fn, (x, p.make(rows, 1)))


def adamw(p: Place) -> Job:
    w, g, m = (p.matrix() for _ in range(3))
    v = p.matrix(0.0)

    def fn(w: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m = m.lerp(g, 0.1)
        v = v * 0.999 + 0.001 * g * g
        return w * 0.999 - 1e-3 * m / (v.sqrt() + 1e-8), m, v

    return Job(fn, (w, g, m, v))


def logsumexp_of(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


def var_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, -1, correction=0)


def argmax(x: Tensor) -> Tensor:
    return x.argmax(-1)


def pad_reflect(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1), mode="reflect")


def euler(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(8):
        x = x + 0.1 * torch.tanh(x * w)
    return x


def spectrum(p: Place) -> Job:
    n = max(p.size, 2048)
    window = torch.hann_window(512, device=p.device)

    def fn(x: Tensor, window: Tensor) -> Tensor:
        found = torch.stft(x, 512, 128, window=window, return_complex=True)
        return found.abs().square().clamp(min=1e-10).log10()

    return Job(fn, (torch.randn(n, device=p.device), window))


MATRIX: dict[str, Builder] = {
    "gelu": of_matrix(F.gelu),
    "gelu_tanh": of_matrix(lambda x: F.gelu(x, approximate="tanh")),
    "silu": of_matrix(F.silu),
    "tanh": of_matrix(torch.tanh),
    "lgamma": of_matrix(torch.lgamma, 0.1),
    "erf": of_matrix(torch.erf),
    "chain": of_matrix(lambda x: torch.relu(x * 2 + 1) * torch.sigmoid(x)),
    "copy": of_matrix(torch.clone),
    "transposed_copy": of_matrix(lambda x: x.t().contiguous()),
    "cast": of_matrix(lambda x: x.to(torch.float16)),
    "bias_gelu": with_rows(lambda x, b: F.gelu(x + b), 1),
    "add": two(torch.add),
    "add_transposed": add_transposed,
    "where": two(lambda x, y: torch.where(x > y, x, y * 0.5)),
    "sum_all": of_matrix(lambda x: x.sum(), 0.0),
    "sum_rows": of_matrix(lambda x: x.sum(-1), 0.0),
    "sum_columns": of_matrix(lambda x: x.sum(0), 0.0),
    "mean_columns": of_matrix(lambda x: x.mean(0), 0.0),
    "max_columns": of_matrix(lambda x: x.amax(0)),
    "var_mean": of_matrix(var_mean),
    "norm": of_matrix(lambda x: x.norm()),
    "argmax": of_matrix(argmax),
    "logsumexp": of_matrix(logsumexp_of),
    "softmax": of_matrix(lambda x: x.softmax(-1)),
    "softmax_columns": of_matrix(lambda x: x.softmax(0)),
    "log_softmax": of_matrix(lambda x: x.log_softmax(-1)),
    "masked_softmax": masked_softmax,
    "layer_norm": with_rows(layer_norm, 2),
    "add_norm": lambda p: Job(add_norm, (p.matrix(), *with_rows(layer_norm, 2)(p).args)),
    "rms_norm": with_rows(rms_norm, 1),
    "swiglu": even(swiglu),
    "quantised": of_matrix(quantised),
    "block_divide": of_blocks(block_divide, False),
    "block_divide_down": of_blocks(block_divide_down, True),
    "cumsum": of_matrix(lambda x: x.cumsum(-1)),
    "cumsum_columns": of_matrix(lambda x: x.cumsum(0)),
    "roll": of_matrix(lambda x: x.roll((1, 3), (0, 1))),
    "flip": of_matrix(lambda x: x.flip(0, 1)),
    "cat": two(lambda x, y: torch.cat([x, y * 2], -1)),
    "stack": two(lambda x, y: torch.stack([x, y], -1)),
    "tril": of_matrix(torch.tril),
    "pad": of_matrix(lambda x: F.pad(x, (1, 2, 3, 4))),
    "index_select": gather_rows(lambda x, i: x.index_select(0, i)),
    "index_select_mean": gather_rows(lambda x, i: x.index_select(0, i).mean(-1)),
    "embedded_mean": embedded_mean,
    "embedding": embedding,
    "gather": along_rows(lambda x, i: x.gather(1, i)),
    "scatter_add": along_rows(lambda x, i: torch.zeros_like(x).scatter_add(1, i, x)),
    "index_add": gather_rows(scattered_rows),
    "rope": rope,
    "complex_rope": complex_rope,
    "unpacked": unpacked,
    "adamw": adamw,
    "euler": with_rows(euler, 1),
    "spectrum": spectrum,
    "sort": of_matrix(lambda x: x.sort(-1)),
    "topk": of_matrix(lambda x: x.topk(min(4, x.shape[-1]), -1)),
    "cross_entropy_training": cross_entropy,
    "layer_norm_training": training(with_rows(layer_norm, 2)),
    "rms_norm_training": training(with_rows(rms_norm, 1)),
    "gelu_training": training(of_matrix(F.gelu)),
    "softmax_training": training(of_matrix(lambda x: x.softmax(-1))),
    "embedding_training": training(embedding),
    "cumprod_training": training(of_matrix(lambda x: (x * 0.1 + 1).cumprod(-1))),
}

IMAGE: dict[str, Builder] = {
    "group_norm_silu": of_image(group_norm_silu, 2),
    "instance_norm": of_image(F.instance_norm),
    "batch_norm": of_image(lambda x, m, v: F.batch_norm(x, m, v), 2),
    "batch_norm_training": training(
        of_image(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), 2)
    ),
    "max_pool": of_image(lambda x: F.max_pool2d(x, 3, 2, 1)),
    "avg_pool": of_image(lambda x: F.avg_pool2d(x, 2)),
    "avg_pool_training": training(of_image(lambda x: F.avg_pool2d(x, 2))),
    "max_pool_training": training(of_image(lambda x: F.max_pool2d(x, 3, 2, 1))),
    "adaptive_pool": of_image(lambda x: F.adaptive_avg_pool2d(x, 2)),
    "mean": of_image(lambda x: x.mean((2, 3))),
    "bilinear": of_image(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "bilinear_pool": of_image(
        lambda x: F.max_pool2d(
            F.pad(F.interpolate(x, scale_factor=2, mode="bilinear"), (1,) * 4), 2
        )
    ),
    "bicubic": of_image(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
    "nearest": of_image(lambda x: F.interpolate(x, scale_factor=2)),
    "pad_reflect": of_image(pad_reflect),
    "pixel_shuffle": of_image(lambda x: F.pixel_shuffle(x[:, :28], 2)),
    "to_channels_last": of_image(lambda x: x.permute(0, 2, 3, 1).contiguous()),
    "bias_relu": of_image(lambda x, b: F.relu(x + b[:, None, None]), 1),
}

COMPOSITIONS = MATRIX | IMAGE
