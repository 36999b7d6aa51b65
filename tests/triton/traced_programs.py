"""Programs as CUDA has them, compiled without a GPU: every stage, and what operators are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import copysign, prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.optim.adamw import adamw

pytest.importorskip("triton.language")

from cubin import resources  # noqa: E402
from traces import (  # noqa: E402
    Spec,
    Trace,
    cuda_on_paper,
    cudnn_attention,
    data,
    efficient_attention,
    flash_attention,
    floats,
    misplaced,
    trace,
)

from litz import backend  # noqa: E402
from litz.artifact import from_bytes, to_bytes  # noqa: E402
from litz.binding import Recorder  # noqa: E402
from litz.graph import fused_attention  # noqa: E402
from litz.host.arguments import arguments  # noqa: E402
from litz.host.lines import (  # noqa: E402
    Align,
    Allocate,
    CallExtern,
    Free,
    Place,
    Reuse,
    View,
    host_text,
)
from litz.index import const, product, size_hint  # noqa: E402
from litz.ir.program import Extern, TensorRef  # noqa: E402
from litz.ir.text import program_text  # noqa: E402
from litz.ir.verify import verify  # noqa: E402
from litz.kernel.blocks.recipe import BlockRecipe  # noqa: E402
from litz.options import make_options  # noqa: E402
from litz.runtime.arguments import checked  # noqa: E402
from litz.runtime.triton.pool import find_triton  # noqa: E402
from litz.targets.parts import TritonPart  # noqa: E402
from litz.targets.records import part_from  # noqa: E402
from litz.targets.tools import cache_of  # noqa: E402
from tests.quick import some  # noqa: E402

aten = torch.ops.aten
Tensor = torch.Tensor
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
LAST = torch.channels_last
SEED = "aten.randint.low"


@dataclass(frozen=True)
class Case:
    """A program.  calls: operators that CUDA's graphs of it have.  graphs: how many there are."""

    fn: Callable[..., Any]
    specs: tuple[Spec, ...]
    calls: tuple[str, ...] = ()
    model: bool = False
    graphs: int = 2
    dynamic: bool = True


def beside_another(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """Attention whose gradient lies in rows of another's; see ``layouts.stated_by``."""
    out = cudnn_attention(q, k, v).transpose(1, 2).flatten(2)
    return torch.cat((out, x), 2).sum(1)


def upsampled(x: Tensor, y: Tensor) -> Tensor:
    """Images of several sizes, brought to one."""
    nearest = F.interpolate(x, size=(12, 20)) + F.interpolate(y, size=(12, 20))
    return nearest + F.interpolate(x, size=(12, 20), mode="bilinear")


def downsampled(x: Tensor) -> tuple[Tensor, ...]:
    """The operator itself, for images of several sizes."""
    back = aten.upsample_nearest2d_backward
    return tuple(back(x, (12, 20), (2, 3, *size)) for size in ((6, 10), (5, 7), (3, 20), (12, 9)))


def bag(weight: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
    return F.embedding_bag(indices, weight, offsets, mode="sum")


def masked_dropout(x: Tensor, w: Tensor) -> Tensor:
    return F.dropout(F.gelu(x @ w), 0.1)


def stepped(*tensors: Tensor) -> tuple[Tensor, ...]:
    """One step of AdamW over parameters, gradients, both moments, and step counts."""
    groups = [list(tensors[i::5]) for i in range(5)]
    adamw(
        *groups[:4], [], groups[4], foreach=True, capturable=True, amsgrad=False,
        beta1=0.9, beta2=0.999, lr=1e-3, weight_decay=0.1, eps=1e-8,
        maximize=False,
    )  # fmt: skip
    return tensors


def optimized(*shapes: tuple[int, ...]) -> tuple[Spec, ...]:
    return tuple(s for shape in shapes for s in (*[data(*shape)] * 4, data()))


class Steps(nn.Module):
    """A few steps of a recurrent cell, which CUDA fuses."""

    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell = cell(12, 20)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for row in x.unbind(1):
            state = self.cell(row, state)
        return state[0] if isinstance(state, tuple) else state


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.last = nn.ConvTranspose2d(16, 4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.silu(self.norm(self.conv(x))))


def autocast(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=BF16):
        return F.layer_norm(F.linear(x, w, b).relu(), (w.shape[0],))


def indexed(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    y[:, i % 4] = v[:1, :1]
    return x.index_put((i,), v, accumulate=True), y


def joined(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The first two products write into the result; the third's rows would begin at 8 bytes."""
    return torch.cat((x @ a, x @ b, x @ c), 1), F.pad(a @ c, (0, 2))


def scattered(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    more = x.scatter_reduce(1, i, v, "amax", include_self=False)
    return x.scatter_add(1, i, v), more, torch.gather(x, 1, i)


def uneven_loss(h: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """The vocabulary's rows are not multiples of 16 bytes."""
    return F.cross_entropy(F.linear(h, w).float(), target, ignore_index=-1)


def biased(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """Attention with a function of scores that captures a tensor."""
    return flex_attention(  # type: ignore[return-value]
        q, k, v, score_mod=lambda s, b, h, i, j: s + (j - i) * slopes[h], enable_gqa=True
    )


def learned(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, table: Tensor) -> Tensor:
    """Attention whose function of scores captures what trains: sums of heads, and of distances."""
    return flex_attention(  # type: ignore[return-value]
        q, k, v, score_mod=lambda s, b, h, i, j: s * slopes[h] + table[h, i - j + 192],
        enable_gqa=True,
    )  # fmt: skip


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = torch.softmax(q @ k.mT * 0.1 + mask, -1, dtype=torch.float32).to(q.dtype)
    return weights @ v


def in_blocks(q: Tensor, k: Tensor, v: Tensor, count: Tensor, which: Tensor) -> Tensor:
    """Attention whose mask says which blocks of keys are met."""
    mask = BlockMask.from_kv_blocks(
        count, which, count, which, 128, lambda b, h, i, j: i >= j, (250, 250)
    )
    return flex_attention(q, k, v, block_mask=mask)  # type: ignore[return-value]


def qkv(*shape: int, dtype: torch.dtype = F32, form: Any = None) -> tuple[Spec, ...]:
    return (floats(*shape, dtype=dtype, form=form),) * 3


EFFICIENT = "aten._scaled_dot_product_efficient_attention.default"
BACK = "aten._scaled_dot_product_efficient_attention_backward.default"
HEADS = (4 * 13 * 16, 16, 4 * 16, 1)  # heads next to each other, as projections leave them
CASES: dict[str, Case] = {
    "attention": Case(efficient_attention, qkv(2, 4, 24, 16), (EFFICIENT, BACK)),
    "attention_mask": Case(
        efficient_attention, (*qkv(2, 4, 13, 16), floats(2, 1, 13, 13)), (EFFICIENT, BACK)
    ),
    "attention_mask_f16": Case(
        efficient_attention,
        (*qkv(2, 4, 24, 16, dtype=F16, form=None), data(24, 24, dtype=F16)),
        (EFFICIENT, BACK),
    ),
    "attention_of_projections": Case(
        lambda x, w: efficient_attention(
            *(x @ w).view(2, 13, 3, 4, 16).permute(2, 0, 3, 1, 4), causal=True
        ),
        (floats(2, 13, 64), floats(64, 192)),
        (EFFICIENT, BACK),
        dynamic=False,
    ),
    "attention_dropout": Case(
        partial(efficient_attention, dropout=0.1), qkv(2, 4, 13, 16, form=HEADS), (EFFICIENT, BACK)
    ),
    "flash_bf16": Case(
        partial(flash_attention, causal=True),
        qkv(2, 4, 24, 16, dtype=BF16),
        ("aten._scaled_dot_product_flash_attention_backward.default",),
    ),
    "flash_uneven_heads": Case(
        partial(flash_attention, dropout=0.1),
        qkv(2, 4, 24, 13, dtype=F16),
        ("aten._scaled_dot_product_flash_attention_backward.default",),
    ),
    "cudnn_beside": Case(
        beside_another,
        (*(floats(3, 2, 23, 16, dtype=BF16) for _ in range(3)), floats(3, 23, 128, dtype=BF16)),
        ("aten._scaled_dot_product_cudnn_attention_backward.default",),
    ),
    "cudnn_bf16": Case(
        cudnn_attention,
        qkv(2, 4, 24, 16, dtype=BF16),
        ("aten._scaled_dot_product_cudnn_attention_backward.default",),
    ),
    "decomposed_attention": Case(
        F.scaled_dot_product_attention, (*qkv(2, 4, 13, 16), data(13, 13, dtype=torch.bool))
    ),
    "flex": Case(
        biased,
        (
            floats(2, 4, 256, 64, dtype=BF16),
            *(floats(2, 2, 192, 64, dtype=BF16) for _ in range(2)),
            data(4),
        ),
    ),
    "flex_captured": Case(
        learned,
        (
            floats(2, 4, 250, 64, dtype=BF16),
            *(floats(2, 2, 192, 64, dtype=BF16) for _ in range(2)),
            floats(4),
            floats(4, 500, dtype=BF16),
        ),
        dynamic=False,
    ),
    "attention_by_hand": Case(
        by_hand,
        (*(data(2, 4, 250, 128, dtype=BF16) for _ in range(3)), data(2, 1, 250, 250, dtype=BF16)),
        graphs=1,
        dynamic=False,
    ),
    "flex_blocks": Case(
        in_blocks,
        (
            *qkv(2, 4, 250, 128, dtype=F16),
            data(1, 1, 2, dtype=torch.int32),
            data(1, 1, 2, 2, dtype=torch.int32),
        ),
        dynamic=False,
    ),
    "flex_decoding": Case(
        lambda q, k, v: flex_attention(q, k, v, enable_gqa=True),
        (data(2, 8, 1, 64, dtype=BF16), *(data(2, 2, 3000, 64, dtype=BF16) for _ in range(2))),
        graphs=1,
    ),
    "convolutions": Case(
        Convolved,
        (floats(2, 8, 12, 12, form=LAST),),
        ("aten.convolution_backward.default",),
        model=True,
    ),
    "convolutions_same": Case(
        lambda x, w: F.conv2d(x, w, padding="same"),
        (data(2, 8, 14, 3), data(6, 8, 3, 2)),
        ("aten.convolution.default",),
        graphs=1,
    ),
    "products_of_one_row": Case(
        lambda x, w: torch.relu(x.expand(64, 24) @ w) + x.expand(64, 24)[:, :16],
        (data(1, 24, dtype=BF16), data(24, 16, dtype=BF16)),
        ("aten.mm.default",),
        graphs=1,
    ),
    "batch_norm": Case(partial(nn.BatchNorm2d, 6), (floats(3, 6, 5, 7),), model=True),
    "batch_norm_last": Case(
        partial(nn.BatchNorm2d, 6), (floats(3, 6, 5, 7, dtype=BF16, form=LAST),), model=True
    ),
    "layer_norm": Case(
        lambda x, w, b: F.layer_norm(x, (70,), w, b),
        (floats(40, 70, dtype=BF16), floats(70, dtype=BF16), floats(70, dtype=BF16)),
    ),
    "group_norm": Case(
        lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)),
        (floats(2, 16, 9, 9, form=LAST), floats(16), floats(16)),
    ),
    "embedding_bag": Case(
        bag,
        (floats(50, 24), data(30, dtype=torch.int64), data(6, dtype=torch.int64)),
        dynamic=False,
    ),
    "embedding": Case(
        lambda w, i: F.embedding(i, w, padding_idx=0),
        (floats(50, 24, dtype=BF16), data(4, 9, dtype=torch.int64)),
        ("aten.embedding_dense_backward.default",),
    ),
    "upsample": Case(
        upsampled,
        (floats(2, 3, 5, 7), floats(2, 3, 6, 10, form=LAST)),
    ),
    "upsample_gradients": Case(
        downsampled,
        (data(2, 3, 12, 20),),
        ("aten.upsample_nearest2d_backward.default",),
        graphs=1,
        dynamic=False,
    ),
    "upsample_cubic": Case(
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=True),
        (floats(1, 2, 6, 7),),
    ),
    "dropout": Case(masked_dropout, (floats(24, 40), floats(40, 33))),
    "adamw_foreach": Case(stepped, optimized((20, 30), (7,), (3, 5, 9)), graphs=1, dynamic=False),
    "lstm_cell": Case(
        partial(Steps, nn.LSTMCell),
        (floats(5, 3, 12),),
        ("aten._thnn_fused_lstm_cell.default",),
        model=True,
    ),
    "gru": Case(partial(nn.GRU, 12, 20, batch_first=True), (floats(5, 3, 12),), model=True),
    "grid_sample": Case(
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False),
        (floats(2, 3, 9, 11), floats(2, 5, 4, 2)),
    ),
    "index_put": Case(
        indexed, (floats(10, 6), data(3, dtype=torch.int64), floats(3, 6)), dynamic=False
    ),
    "joined": Case(
        joined,
        (floats(300, 256), floats(256, 256), floats(256, 258), floats(256, 254)),
    ),
    "scatter": Case(scattered, (floats(10, 20), data(10, 4, dtype=torch.int64), floats(10, 4))),
    "uneven_vocabulary": Case(
        uneven_loss,
        (floats(12, 32, dtype=BF16), floats(1003, 32, dtype=BF16), data(12, dtype=torch.int64)),
    ),
    "autocast": Case(autocast, (floats(24, 40), floats(50, 40), floats(50))),
    "pooled": Case(
        lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 3, 2, 1), 3),
        (floats(2, 4, 15, 15, form=LAST),),
    ),
    "sorted": Case(
        lambda x: (x.sort(1).values[:, :5], x.topk(3).values, x.cumsum(1)), (floats(7, 30),)
    ),
}
# Those whose symbolic sizes PyTorch takes long for are traced with known sizes alone.
SLOW = ("convolutions", "group_norm", "gru", "grid_sample", "upsample_cubic")
DYNAMIC = [n for n, c in CASES.items() if c.dynamic and n not in SLOW]
# What is lowered, printed and built alike need not be built twice.
BUILT = (
    "attention_mask", "batch_norm_last", "layer_norm", "uneven_vocabulary", "lstm_cell",
    "flex_captured", "flex_blocks", "attention_by_hand", "flex_decoding",
)  # fmt: skip
# Gradients are faster with some values in memory than in smaller blocks: those of wide heads, and
# before Triton 3.7 those of what functions capture.
OLD = tuple(map(int, find_triton().version.split(".")[:2])) < (3, 7)
SPILLING = ("flex_blocks", *(("flex_captured",) if OLD else ()))


def compiled(name: str, dynamic: bool = False) -> list[Trace]:
    c = CASES[name]
    return trace(c.fn, *c.specs, model=c.model, dynamic=dynamic)


def check(made: list[Trace]) -> None:
    for t in made:
        s = t.stages
        assert not s.fallback
        assert s.program is not None and s.schedule is not None and s.host is not None
        verify(s.program, "lowering")
        assert "return" in host_text(s.host) and s.source is not None
        # Numbers that the host computes may be C++.
        assert all((k.triton is not None) == (k.device == "cuda:0") for k in s.kernels)
        assert misplaced(t) == []
        assert_read_as_written(t)


def assert_read_as_written(t: Trace) -> None:
    """Kernels that come out of an artifact's bytes are what the compilation made."""
    made = t.stages.artifact
    assert made is not None and made.not_portable == ""
    read = from_bytes(to_bytes(made))
    assert to_bytes(read) == to_bytes(made)
    for k, part in zip(t.stages.kernels, map(part_from, read.kernels), strict=True):
        if isinstance(part, TritonPart):
            assert k.triton is not None
            assert (part.name, part.device, part.kernel) == (k.name, k.device, k.triton)
        else:
            assert part.source == k.source


@pytest.mark.parametrize("name", some(CASES, len(CASES) // 8))
def test_program(name: str) -> None:
    made = compiled(name)
    check(made)
    case = CASES[name]
    assert len(made) == case.graphs
    calls = {c for t in made for c in t.calls()}
    assert not any("higher_order" in c for c in calls)
    assert calls.issuperset(case.calls), sorted(calls)
    if name in BUILT:
        build(made, 256 if name in SPILLING else 0)


def build(made: list[Trace], spilled: int = 0) -> None:
    for t in made:
        for job, binary in zip(t.jobs, t.build(cache_of("", 0)), strict=True):
            _, local = resources(binary.code)
            assert local <= spilled, f"{job.name} spills {local} bytes a thread"


@pytest.mark.parametrize("name", some(DYNAMIC, len(DYNAMIC) // 6))
def test_dynamic_sizes(name: str) -> None:
    made = compiled(name, dynamic=True)
    check(made)
    assert len(made) == CASES[name].graphs


@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_between_launches_is_the_host_programs(dynamic: bool) -> None:
    """It is there for the call alone, and as large as the sizes of the arguments ask for."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = x[:, None] * torch.arange(1 << 17, device="cuda")
        return wide.square().sum(1), wide.logsumexp(1)

    (made,) = trace(fn, floats(6), training=False, dynamic=dynamic)
    check([made])
    host = made.stages.host
    assert host is not None
    kernels = {k.name: k.triton for k in made.stages.kernels}
    own = [b for call in host.kernel_calls() for b in call.temporaries]
    assert own and {b.device for b in own} == {"cuda:0"}
    assert all(bool(b.shape[0].free) == dynamic for b in own)
    lines = list(host.lines)
    for call in host.kernel_calls():
        made_of = kernels[call.kernel]
        assert made_of is not None and len(made_of.params) == len(call.buffers)
        at = lines.index(call)
        for name in (b.name for b in call.temporaries):
            if Allocate(name) in lines[:at]:
                assert Free(name) in lines[at:]
            else:  # in the memory of what is dead
                assert [x for x in lines[:at] if isinstance(x, Place) and x.buffer == name]


@pytest.mark.parametrize(
    ("width", "dtype", "each"),
    [(514, torch.float32, 4), (514, torch.bfloat16, 4), (1024, torch.float32, 8)],
)
def test_many_loads_of_a_point(width: int, dtype: torch.dtype, each: int) -> None:
    """Where rows divide blocks, neighbours share loads; elsewhere each element has its own."""
    x = data(4, 32, 256, width // 2, dtype=dtype)
    (made,) = trace(lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"), x, training=False)
    kernel = max(made.stages.kernels, key=lambda k: len(k.source))
    config = kernel.recipe.kernels[0].configs[0]  # type: ignore[union-attr]
    assert prod(size for _, size in config.blocks) == each * 32 * config.warps


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_device_on_paper_goes_again() -> None:
    found = torch.accelerator.current_accelerator
    before = found()
    for _ in range(2):
        with cuda_on_paper():
            assert str(found()) == "cuda"
        assert found() == before


# --- faults that only a GPU's graphs showed ---


@pytest.mark.parametrize("keys", [13, 15])
@pytest.mark.parametrize("batch", [(), (2, 1), (2, 4)])
@pytest.mark.parametrize("training", [True, False])
def test_rows_of_masks_stay_aligned(keys: int, batch: tuple[int, ...], training: bool) -> None:
    """PyTorch pads a mask and takes a slice of that, so that the kernel finds its rows aligned."""
    specs = (*qkv(2, 4, keys, 16), data(*batch, keys, keys))
    made = trace(efficient_attention, *specs, training=training)
    check(made)
    for t in made:
        (call,) = t.stages.externs()
        (mask,) = (r for r in call.refs() if [*map(size_hint, r.shape[2:])] == [keys, keys])
        assert all(size_hint(s) * 4 % 16 == 0 for s in mask.strides[:-1])


@pytest.mark.parametrize("name", ["attention", "attention_dropout", "flash_bf16"])
def test_random_state_may_lie_on_the_host(name: str) -> None:
    """The metadata has it on the GPU; what only operators see is theirs, wherever it lies."""
    _, backward = compiled(name)
    program = backward.stages.program
    assert program is not None
    values = [n.meta["val"] for n in backward.graph.graph.find_nodes(op="placeholder")]
    state = {i for i, v in enumerate(values) if v.dtype in (torch.int64, torch.uint64)}
    assert len(state) == 2 and all(values[i].device.type == "cuda" for i in state)
    for i in state:
        values[i] = torch.zeros(values[i].shape, dtype=values[i].dtype)
    run = checked(list, len(values), arguments(program), always=False)
    for _ in range(2):
        assert all(a is b for a, b in zip(run(list(values)), values, strict=True))


def test_state_of_attention_is_nobody_elses_memory() -> None:
    """Where it lies on the host, a kernel that wrote there would write anywhere."""

    def program(q: Tensor, k: Tensor, v: Tensor, w: Tensor, labels: Tensor) -> Tensor:
        q = (q @ q.mT).softmax(-1) @ q  # where the most memory is live, which is not to grow
        rows = efficient_attention(q, k, v).sum((1, 2))
        # With two numbers of a row each in memory: 8 bytes, as the state has.
        return F.cross_entropy(rows @ w, labels)

    specs = (*(data(2, 4, 64, 16) for _ in range(3)), data(16, 2), data(2, dtype=torch.int64))
    (made,) = trace(program, *specs, training=False)
    host = made.stages.host
    assert host is not None
    calls = [x.extern for x in host.lines if isinstance(x, CallExtern)]
    (attention,) = (x for x in calls if "attention" in x.target_name)
    state = set(attention.outputs[1:])
    taken = {x.old if isinstance(x, Reuse) else x.owner for x in host.lines
             if isinstance(x, Reuse | Place | View)}  # fmt: skip
    assert len(state) == 3 and not state & taken


def test_masks_in_blocks_are_made_without_masks_of_scores() -> None:
    def fn(q: Tensor) -> Tensor:
        mask = create_block_mask(lambda b, h, i, j: i - j < 100, None, None, 4096, 4096, "cuda")
        return flex_attention(q, q, q, block_mask=mask)  # type: ignore[return-value]

    (made,) = trace(fn, data(1, 2, 4096, 16, dtype=BF16), training=False)
    check([made])
    program = made.stages.program
    assert program is not None
    sizes = [size_hint(product(b.shape)) for b in program.buffers.values() if b.kind != "input"]
    assert sorted(sizes)[-2:] == [32 * 32, 2 * 4096 * 16]
    # Two sorts of 32 x 32 numbers among them.
    assert len(made.stages.kernels) <= 6 and not made.stages.externs()


def test_what_a_kernel_reads_must_lie_where_it_says() -> None:
    """The other side: memory of the host would be read as the GPU's."""
    (made,) = trace(lambda x: x * 2 + 1, data(8), training=False)
    assert made.stages.program is not None
    run = checked(list, 1, arguments(made.stages.program), always=False)
    with pytest.raises(TypeError, match="is on cpu, not on cuda:0"):
        run([torch.zeros(8)])


@pytest.mark.parametrize("dtype", [BF16, F16, F32, torch.float64])
def test_zeros_keep_their_sign(dtype: torch.dtype) -> None:
    """Triton makes a literal -0.0 the positive zero."""
    (made,) = trace(lambda x: (x / -0.0, x * 0.0), data(70, dtype=dtype), training=False)
    (kernel,) = made.stages.kernels
    assert "-0.0," not in kernel.source and "bitcast=True" in kernel.source
    build([made])


def test_gradients_for_cudnn_lie_as_its_results() -> None:
    """PyTorch's plans do not tell apart how gradients lie."""
    made = trace(beside_another, *CASES["cudnn_beside"].specs)
    (call,) = (c for c in made[1].stages.externs() if "cudnn_attention_backward" in c.target_name)
    gradient, out = call.args[0], call.args[4]
    assert isinstance(gradient, TensorRef) and isinstance(out, TensorRef)
    assert gradient.strides == out.strides
    rate = call.args[13]
    assert (
        isinstance(rate, float) and rate == 0.0 and copysign(1.0, rate) < 0
    )  # eager mode's plans are others


def test_several_results_in_the_memory_of_an_uneven_product() -> None:
    """It is copied once into eager's layout, and they share that."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y, y.reshape(-1)

    (made,) = trace(fn, data(330, 264, dtype=BF16), data(264, 257, dtype=BF16), training=False)
    program = made.stages.program
    assert program is not None
    whole, flat = program.outputs
    assert isinstance(whole, TensorRef) and isinstance(flat, TensorRef)
    assert whole.buffer == flat.buffer and "272" in str(made.stages.externs()[0])


def test_saved_logits_keep_padded_rows() -> None:
    """They are saved where the product leaves them: nothing as large is stored beside them."""
    forward, backward = trace(
        uneven_loss, floats(300, 264, dtype=BF16), floats(1003, 264, dtype=BF16),
        data(300, dtype=torch.int64),
    )  # fmt: skip
    for t in (forward, backward):
        of_logits = [
            b for b in t.stages.program.buffers.values() if str(b.shape).startswith("(300, 10")
        ]
        assert of_logits and {str(b.strides) for b in of_logits} == {"(1008, 1)"}
        assert len(of_logits) == (1 if t is forward else 2)
    (mm,) = (n for n in backward.graph.graph.nodes if n.op == "placeholder" and n.name == "mm")
    assert mm.meta["val"].stride() == (1008, 1)
    assert str(forward.stages.externs()[0].reason).count("1008 for 1003") == 1


@pytest.mark.parametrize("training", [False, True])
def test_bias_of_convolutions_is_added_by_the_kernel_behind_them(training: bool) -> None:
    images = Spec((4, 8, 9, 9), F16, training, torch.channels_last)
    weights = Spec((8, 8, 3, 3), F16, training), Spec((8,), F16, training)
    forward, *_ = trace(
        lambda x, w, b: F.gelu(F.conv2d(x, w, b)), images, *weights, training=training
    )
    (call,) = (x for x in forward.stages.program.nodes if isinstance(x, Extern))
    assert call.args[2] is None and len(forward.stages.kernels) == 1


def test_gradients_of_bias_are_summed_where_gradients_are_made() -> None:
    images = Spec((4, 8, 9, 9), F16, True, torch.channels_last)
    weights = Spec((8, 8, 3, 3), F16, True), Spec((8,), F16, True)
    _, backward = trace(lambda x, w, b: F.gelu(F.conv2d(x, w, b)), images, *weights)
    (call,) = (x for x in backward.stages.program.nodes if isinstance(x, Extern))
    assert call.args[-1] == (True, True, False) and len(backward.stages.kernels) == 1


def heads_by_hand(x: Tensor, w: Tensor) -> Tensor:
    """A layer of heads of 64, with attention as it is written out."""
    q, k, v = (x @ w).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4)
    weights = ((q * 0.125) @ k.transpose(-2, -1)).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(-2).float().square().mean()


@pytest.mark.parametrize("kind", ["cudnn", "flash", ""])
def test_attention_by_hand_trains_by_a_librarys_kernels(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_attention, "attention_choice", lambda *_: kind)
    specs = floats(4, 512, 256, dtype=BF16), floats(256, 768, dtype=BF16)
    forward, backward = made = trace(heads_by_hand, *specs)
    check(made)
    called = [n for t in made for n in t.calls() if "scaled_dot_product" in n]
    names = (f"aten._scaled_dot_product_{kind}_attention{way}.default" for way in ("", "_backward"))
    assert called == [*names][: 2 if kind else 0]
    assert [bool(t.stages.fused) for t in made] == [bool(kind)] * 2
    assert forward.stages.program is not None
    sizes = [b.shape for b in forward.stages.program.buffers.values()]
    scores = sum(len(s) > 1 and s[-1] is s[-2] is const(512) for s in sizes)
    assert bool(scores) is not bool(kind)
    if kind:  # the result lies as the layer reads it
        assert not any(op == "clone" for n in forward.stages.program.nodes for op in n.origins)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("ndim", [3, 4])
def test_attention_by_hand_of_arguments_looks_where_they_begin(
    by_rows: bool, ndim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries read vectors of 16 bytes; arguments begin anywhere, what they are saved as too."""
    monkeypatch.setattr(fused_attention, "attention_choice", lambda *_: "flash")

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(-2, -3) if by_rows else x for x in (q, k, v))
        return torch.softmax(q @ k.mT, -1) @ v

    sizes = (1024, 64, 64) if by_rows else (64, 1024, 64)
    spec = floats(*(2,) * (ndim - 3), *sizes, dtype=BF16)
    made = trace(fn, spec, spec, spec)
    check(made)
    for t in made:
        (call,) = (e for e in t.stages.externs() if "scaled_dot_product" in e.target_name)
        refs = [a for a in call.args if isinstance(a, TensorRef) and a.dtype.is_float]
        assert sum(r.buffer.startswith("primals") for r in refs) == 3
        host, buffers = t.stages.host, t.stages.program.buffers
        outside = {r for r in refs if buffers[r.buffer].kind == "input"}
        aligned = {x.buffer: x.ref for x in host.lines if isinstance(x, Align)}
        assert {*aligned.values()} == outside
        called = next(
            x.extern
            for x in host.lines
            if isinstance(x, CallExtern) and x.extern.target is call.target
        )
        handed = [a for a in called.args if isinstance(a, TensorRef) and a.dtype.is_float]
        assert [aligned.get(a.buffer, a) for a in handed] == refs


def test_small_wide_attention_trains_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where products of scores are quicker than the slower of the kernels."""
    monkeypatch.setattr(fused_attention, "attention_choice", lambda *_: "flash")

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (torch.softmax(q @ k.mT, -1) @ v) * 1.0

    forward, _ = trace(fn, *(floats(64, 128, 256, dtype=BF16) for _ in range(3)))
    assert not forward.stages.fused and "aten.bmm.default" in forward.calls()


# Head size, function of scores; rows, what they meet and warps of the result's, the query's and the
# keys' kernel.
CHOICES: dict[str, tuple[int, Any, list[tuple[int, int, int]]]] = {
    "biased": (64, lambda x, j, i, slope: x + (j - i) * slope, [(64, 128, 4)] * 3),
    "capped": (
        128,
        lambda x, j, i, slope: torch.tanh(x * slope),
        [(64, 64, 4), (128, 64, 8), (128, 64, 8)],
    ),
}


@pytest.mark.parametrize("name", some(CHOICES, 1))
def test_what_is_chosen_for_large_attention(name: str) -> None:
    size, score, blocks = CHOICES[name]

    def fn(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, *tables: Tensor) -> Any:
        causal = lambda b, h, i, j: i >= j  # noqa: E731
        mask = BlockMask((4096, 4096), *tables, (128, 128), causal)  # type: ignore[arg-type]
        modify = lambda s, b, h, i, j: score(s, j, i, slopes[h])  # noqa: E731
        return flex_attention(q, k, v, score_mod=modify, block_mask=mask)

    given = (*qkv(2, 16, 4096, size, dtype=BF16), data(16))
    table = data(1, 1, 32, dtype=torch.int32), data(1, 1, 32, 32, dtype=torch.int32)
    graphs = trace(fn, *given, *table * 4)
    made = [k for g in graphs for k in g.stages.kernels if k.plan.skeleton is not None]
    first = [k.recipe.kernels[0] for k in made if isinstance(k.recipe, BlockRecipe)]
    found = [k.configs[0] for k in first]
    assert [(c.block("x"), c.block("r"), c.warps) for c in found] == blocks
    # Queries begin with those that see most; programs of some heads take turns.
    assert [k.downward for k in first] == [True, True, False]
    assert [k.together for k in first] == [c.block("x") // 4 for c in found]
    for k in made:
        # One loop, which passes by the mask where nothing is masked.
        assert k.source.count("for turn in") == k.source.count("if turn <") == 1
        assert k.source.count("tl.swizzle2d(") == 1
        # Positions are floats of rows and of columns, no difference of both in each score.
        assert "rindex - xindex" not in k.source and "xindex - rindex" not in k.source
    texts = [program_text(g.stages.program) for g in graphs if g.stages.program is not None]
    assert not any("round_to" in text for text in texts)


@pytest.mark.parametrize(
    ("fn", "mode", "left"),
    [
        (torch.histc, "default", True),
        (torch.histc, "reduce-overhead", False),
        (lambda x: torch.histc(x).sin(), "default", False),
    ],
)
def test_one_call_of_aten_is_made_by_dynamos_graph(
    fn: Any, mode: str, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, found = backend._left_to_aten, []

    def asked(gm: Any, made: Any, recorder: Any) -> bool:
        found.append(own(gm, made, Recorder(make_options({"mode": mode, "check_calls": False}))))
        return False

    monkeypatch.setattr(backend, "_left_to_aten", asked)
    (made,) = trace(fn, data(20), training=False)
    assert found == [left]
    # Who launches nothing enters no device.
    assert ("cuda.device(" in made.stages.source.source) is bool(made.stages.kernels)


def test_returned_logits_are_a_copy_of_padded_ones() -> None:
    """As language models return them: a view of the product, of which nothing wider is saved."""

    def loss(h: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(h, w)
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), y.view(-1)), logits

    specs = floats(4, 128, 256, dtype=BF16), floats(5003, 256, dtype=BF16)
    forward, backward = trace(loss, *specs, data(4, 128, dtype=torch.int64))
    host = forward.stages.host
    assert host is not None
    logits = [b for n, b in host.buffers.items() if Allocate(n) in host.lines and len(b.shape) > 1]
    wide = [b for b in logits if size_hint(product(b.shape)) >= 512 * 5003]
    assert [b.dtype.name for b in wide] == ["bf16", "bf16"]
    assert sorted(size_hint(b.strides[-2]) for b in wide) == [5003, 5056]
    check([forward, backward])


def test_a_norm_s_gradient_reads_its_matrices_once() -> None:
    """What rows of it need, and the gradients of weight and bias, which sum columns."""

    def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (256,), w, b)

    _, backward = trace(normed, floats(8192, 256), floats(256), floats(256))
    (kernel,) = backward.stages.kernels
    assert isinstance(kernel.recipe, BlockRecipe)
    assert [k.form for k in kernel.recipe.kernels] == ["crossed", "passes"]
    check([backward])


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
def test_a_norm_and_its_loss_store_nothing_but_the_gradient(norm: Callable[..., Tensor]) -> None:
    """The row that has a scale adds up its part of the loss; what is cheap is computed twice."""

    def normed(x: Tensor, w: Tensor) -> Tensor:
        return norm(x, (256,), w).square().mean()

    forward, backward = trace(normed, floats(1024, 256), floats(256))
    for made, large in ((forward, 0), (backward, 1)):
        assert made.stages.program is not None
        temps = [b for b in made.stages.program.buffers.values() if b.kind == "temp"]
        assert sum([str(n) for n in b.shape] == ["1024", "256"] for b in temps) == large
    assert [len(k.plan.params) for k in forward.stages.kernels] == [4 + (norm is F.layer_norm), 2]


ALONE: tuple[tuple[Callable[..., Any], Spec, list[str]], ...] = (
    (torch.rand_like, data(8, 8), ["aten.rand_like.default"]),
    (lambda x: torch.rand_like(x) * 2, data(8, 8), [SEED]),
    (lambda x: (torch.rand_like(x), torch.rand_like(x)), data(8, 8), [SEED]),
    (lambda x: x.clone().cauchy_(), data(8, 8), ["empty_strided", "aten.cauchy_.default"]),
    (lambda x: (x.exponential_(), None)[1], data(8, 8), ["aten.exponential_.default"]),
    (lambda x: F.fractional_max_pool2d(x, 3, 4), data(2, 3, 16, 16),
     ["aten.rand.default", "aten.fractional_max_pool2d.default"]),
    (lambda x: F.dropout(x, 0.3), floats(64, 64), ["aten.native_dropout.default"]),
    (lambda x: F.dropout(x, 0.3), floats(2048, 1024), [SEED]),
    (torch.rand_like, data(512, 1024), [SEED]),
    (lambda x: F.dropout(x.exp(), 0.3), floats(64, 64), [SEED]),
    (lambda x: F.rrelu(x, training=True), floats(64, 64),
     ["empty_strided", "aten.rrelu_with_noise.default"]),
    (lambda x: F.rrelu(x, training=True), floats(512, 1024), [SEED]),
)  # fmt: skip


@pytest.mark.parametrize("case", some(ALONE, 5))
def test_numbers_that_nothing_is_fused_with_are_drawn_in_one_launch(
    case: tuple[Callable[..., Any], Spec, list[str]],
) -> None:
    fn, spec, calls = case
    forward, *_ = trace(fn, spec)
    assert [x.target_name for x in forward.stages.externs()] == calls
    assert (SEED in calls) == bool(forward.stages.kernels)


def test_gradients_of_pools_read_what_their_gradient_is_computed_of() -> None:
    """The loss's gradient is one number, which no point divides by itself, nor asks a mask for."""

    def loss(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2).square().mean()

    *_, made = trace(loss, floats(4, 32, 61, 61))
    (kernel,) = made.stages.kernels
    assert kernel.source.count("tl.store") == kernel.source.count("litz.div") == 1
    assert "tl.load(b0)" in kernel.source and "tl.minimum" not in kernel.source
