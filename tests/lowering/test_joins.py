"""Concatenation, padding, repetition and writes into a part, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.ir import body
from litz.ir.program import Loops, Program
from tests.lowering.evaluate import check, check_training, extern_names, lower_fn, nests

Fn = Callable[..., Any]
X = torch.randn(3, 4, 6)
Y = torch.randn(3, 2, 6)
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def masks(program: Program) -> int:
    roots = [r for n in program.nodes if isinstance(n, Loops) for s in n.stores for r in s.roots()]
    return sum(isinstance(n, body.Masked) for n in body.walk(roots))


# --- cat ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_cat(dtype: torch.dtype) -> None:
    x, y = (X > 0, Y > 0) if dtype == torch.bool else (X.to(dtype), Y.to(dtype))

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cat([x, y], 1), torch.cat([x, x]), torch.cat([y, x, y, x, y], -2)

    check(fn, x, y)


def test_cat_stores_every_input_into_its_slice() -> None:
    program = check(lambda x, y: torch.cat([x, y], 1), X, Y)
    assert nests(program) == 2 and masks(program) == 0
    written = {s.buffer for n in program.nodes if isinstance(n, Loops) for s in n.stores}
    assert len(written) == 1


def test_rotary_embedding_is_one_nest() -> None:
    def fn(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, c = q.chunk(2, -1)
        return q * cos + torch.cat([-c, a], -1) * sin

    program = check(fn, torch.randn(2, 3, 5, 8), torch.randn(5, 8), torch.randn(5, 8))
    assert nests(program) == 1 and masks(program) > 0


def test_cat_before_a_product_is_stored() -> None:
    program = check(
        lambda x, y: torch.cat([x, y], 0) @ y.t(), torch.randn(3, 4), torch.randn(2, 4),
        externs=["aten.mm"],
    )  # fmt: skip
    assert masks(program) == 0


def test_cat_of_many_or_costly_inputs_is_stored() -> None:
    many = lower_fn(lambda x: torch.cat([x * k for k in range(9)]) + 1, X)
    costly = lower_fn(lambda x: torch.cat([x.exp().tanh().erf().sin() for _ in range(2)]) + 1, X)
    assert masks(many) == 0 and masks(costly) == 0


def test_cat_of_unlike_types_and_nothing() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.cat([x, y.to(torch.bfloat16)], 1),
            torch.cat([x.long(), y], 1) * 2,
            torch.cat([e, x, x[:0]]),
            torch.cat([x]),
            torch.cat([e, e]),
        )

    check(fn, X, Y, torch.empty(0))


def test_cat_of_computed_parts_reads_them_in_place() -> None:
    check(lambda x, y: torch.cat([x * 2, y + 1, x.sin()], 1).relu(), X, Y)


def test_cat_of_single_columns() -> None:
    x = torch.randn(5, 1)
    check(lambda x: torch.cat([x, -x, x * 2], 1) + 1, x)


def test_cat_keeps_channels_last() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: torch.cat([x, x * 2], 1), x)


def test_cat_backward() -> None:
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    check_training(lambda x, y: torch.cat([x.sin(), y * 1.5], 1) * 2, x, y)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_stack(dim: int) -> None:
    check(lambda x: torch.stack([x, x * 2, x - 1], dim), X)
    check(lambda x: torch.stack([x, x * 2], dim) + 1, X)


# --- padding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pad", [(1, 2), (0, 3, 2, 0), (-1, 2), (-1, -2, 1, 1), (2, 1, 0, 0, 1, 0), (0, 0)]
)
@pytest.mark.parametrize("value", [0.0, 1 / 3, float("-inf")])
def test_constant_pad(pad: tuple[int, ...], value: float) -> None:
    check(lambda x: F.pad(x, pad, value=value), X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool])
def test_constant_pad_types(dtype: torch.dtype) -> None:
    x = X > 0 if dtype == torch.bool else (X * 9).to(dtype)
    check(lambda x: F.pad(x, (1, 2, 3, 0), value=1), x)


def test_pad_fuses_with_its_neighbours() -> None:
    program = check(lambda x: F.pad(x.sin(), (1, 1)).exp() + 1, X)
    assert nests(program) == 1


def test_pad_of_nothing() -> None:
    check(lambda x: F.pad(x[:, :0], (0, 0, 1, 2), value=2.0), X)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_other_pads(mode: str) -> None:
    check(lambda x: F.pad(x, (2, 3), mode=mode), X)
    check(lambda x: F.pad(x, (2, 1, 1, 3), mode=mode), X[None])
    check(lambda x: F.pad(x, (2, 1, 1, 0, 1, 1), mode=mode), X[None, None])
    check(lambda x: F.pad(x, (-1, 2), mode=mode), X)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_a_layout_that_metadata_do_not_say_is_left_to_aten(mode: str) -> None:
    """Eager's volumes stay in channels-last, which metadata call contiguous."""
    volume = torch.randn(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d)
    torch._dynamo.reset()
    pad = torch.compile(lambda x: F.pad(x, (1,) * 6, mode=mode), backend="litz", dynamic=False)
    eager = F.pad(volume, (1,) * 6, mode=mode)
    assert torch.equal(pad(volume), eager) and pad(volume).stride() == eager.stride()
    check(lambda x: F.pad(x, (1,) * 6, mode=mode).sum((1, 2, 3, 4)), volume)  # turned as it is read
    check(lambda x: F.pad(x, (1,) * 6, mode=mode), volume.contiguous())


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [
    lambda x: x.roll(1, 0),
    lambda x: x.roll((1, -2), (1, 2)),
    lambda x: x.roll(50, 2) + x.roll(-3),
    lambda x: x.flip(0),
    lambda x: x.flip(-1, 1).flip(1) + 1,
    lambda x: x.repeat(2, 1, 3),
    lambda x: x.repeat(2, 1, 1, 2) * 2,
    lambda x: x.tile(2, 2),
    lambda x: x[:, :1].repeat(1, 5, 1),
    lambda x: x.repeat_interleave(3, 1),
    lambda x: x.repeat_interleave(2),
    lambda x: x.repeat(0, 1, 1),
    lambda x: torch.stack(torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij")),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_orders(fn: Fn, dtype: torch.dtype) -> None:
    check(fn, (X * 8).to(dtype))


@pytest.mark.parametrize("fn", [
    lambda x: F.pixel_shuffle(x, 2),
    lambda x: F.pixel_unshuffle(x, 2),
    lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2) * 2, 2),
    lambda x: F.channel_shuffle(x, 4),
])  # fmt: skip
def test_shuffles(fn: Fn) -> None:
    check(fn, torch.randn(2, 8, 4, 6))


@pytest.mark.parametrize("fn", [
    lambda x: x.split(2, 1),
    lambda x: x.split([1, 3, 2], 2),
    lambda x: x.chunk(3, -1),
    lambda x: x.unbind(1),
    lambda x: torch.split_copy(x, 2, 1),
    lambda x: torch.unbind_copy(x, 1),
    lambda x: torch.unsafe_split(x * 2, 2, 1),
    lambda x: [p * 2 for p in (x + 1).split(2, 1)],
])  # fmt: skip
def test_pieces(fn: Fn) -> None:
    check(lambda x: [p.clone() for p in fn(x)], X)


# --- writes into a part ---------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [
    lambda x, y: torch.select_scatter(x, x[:, 0] * 2, 1, 2),
    lambda x, y: torch.select_scatter(x, y[0], 0, -1) if y.shape[1] == x.shape[1] else x,
    lambda x, y: torch.slice_scatter(x, y, 1, 1, 3),
    lambda x, y: torch.slice_scatter(x, y, 1, -2),
    lambda x, y: torch.slice_scatter(x, y, 1, 0, 4, 2),
    lambda x, y: torch.slice_scatter(x, y, 1, 1, 99, 2),
    lambda x, y: torch.slice_scatter(x, y[:, :0], 1, 2, 2),
    lambda x, y: torch.slice_scatter(x, x * 2, 1),
    lambda x, y: torch.diagonal_scatter(x, x[:, 0, :4] * 3, 0, 1, 2),
    lambda x, y: torch.diagonal_scatter(x, x[:, 0, :4] * 3, 2, 1, 2),
    lambda x, y: torch.diagonal_scatter(x, x[:, 0, :2] * 3, -2, 1, 2),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_scatter_into_a_part(fn: Fn, dtype: torch.dtype) -> None:
    check(fn, (X * 8).to(dtype), (Y * 8).to(dtype))


def test_writes_through_views() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 1:3] = y
        x[:, :, -1] += 1
        x[0].diagonal().mul_(2)
        return x * 2

    program = check(fn, X, Y)
    assert not extern_names(program)


def test_a_nan_next_to_a_written_part_stays_there() -> None:
    x = X.clone()
    x[:, 0] = float("nan")
    check(lambda x, y: torch.slice_scatter(x, y, 1, 0, 2), x, Y)


# --- dynamic sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [
    lambda x, y: torch.cat([x, y], 1),
    lambda x, y: torch.cat([x, y], 1).sin(),
    lambda x, y: F.pad(x, (1, 2, 0, 1)),
    lambda x, y: x.roll(1, 1),
    lambda x, y: x.flip(1),
    lambda x, y: x.repeat(1, 2, 1),
    lambda x, y: torch.slice_scatter(x, y, 1, 1, 3),
    lambda x, y: torch.stack([x, x]),
    lambda x, y: F.pad(x, (2, 1), mode="reflect"),
])  # fmt: skip
def test_dynamic(fn: Fn) -> None:
    check(fn, X, Y, dynamic=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_chunk_cat(dtype: torch.dtype) -> None:
    x = torch.arange(40).reshape(5, 8).to(dtype)
    y, z = torch.arange(7).to(dtype), torch.arange(42).reshape(7, 3, 2).to(dtype)
    check(lambda *ts: torch.ops.aten._chunk_cat(list(ts), 0, 3), x, y, z)
    check(lambda *ts: torch._chunk_cat(list(ts), 1, 4), x, x[:, 1:6] * 2)
    check(lambda *ts: torch._chunk_cat(list(ts), -1, 5), x, x + 1)


def test_slices_are_written_where_their_tensor_lies() -> None:
    """Circular padding copies edges within one tensor; what is read later is not overwritten."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        y = F.pad(x, (1, 1), mode="circular")
        return y.slice_scatter(y[:, :4] + 1, 1, 2, 6)  # the two overlap

    def kept(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2 + x.sin()
        return y.slice_scatter(y[:, :2], 1, 3, 5), y

    x = torch.randn(3, 7)
    for pad in ((2, 1), (0, 3)):
        program = check(lambda x, p=pad: F.pad(x, p, mode="circular"), x)
        assert sum(b.kind == "temp" for b in program.buffers.values()) == 1
    check(lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), torch.randn(2, 3, 5, 6))
    check(shifted, x)
    check(kept, x)


def test_slices_of_expanded_memory_are_written_elsewhere() -> None:
    """No element of a temporary takes the place of several; a size of one has any stride."""

    def columns(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        y = (a @ b).expand(3, 5)
        z = torch.slice_scatter(y, a[:, :2], 1, 2, 4)
        return [z, z * 2]

    def alone(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        y = (a @ b).expand(1, 3, 1)
        z = torch.slice_scatter(y, y[:1] + 1, 0, 0, 1)
        return [z, z * 2]

    for fn in (columns, alone):
        check(fn, torch.randn(3, 4), torch.randn(4, 1), externs=("mm",))
