"""Attention written by hand that trains is one call, wherever nobody can tell; else it stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import functional as F

from litz.graph import fused_attention
from litz.graph.dropout import drop_idle_dropout
from litz.graph.fused_attention import Sizes, fuse_attention

B, H, T, N, D = 2, 3, 21, 13, 16
WIDE = 24  # elements of a row, where it is a part of one
SCALE = 0.3


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v


def scaled_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = ((q * SCALE) @ k.mT).softmax(dim=-1)
    return F.dropout(weights, 0.0) @ v


def as_transformers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def of_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.mT) * SCALE, 2), v)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores *= 2.0
    scores /= 4.0
    out = scores.softmax(-1) @ v
    out += 1.0
    return out


def joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads lie behind one another, as layers have them."""
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    out = torch.softmax(q @ k.transpose(-2, -1) * SCALE, -1) @ v
    return out.transpose(1, 2).reshape(B, T, H * D) * 2.0


FOUND = (plain, scaled_before, as_transformers, of_three, in_place, joined)


def weights_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights.sum(-1)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).tril(), -1) @ v


def other_sign(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * -SCALE, -1) @ v


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k * 1.0
    scores = q.detach() @ k.detach().mT
    k.detach().mul_(2.0)
    return torch.softmax(scores, -1) @ (v * 1.0)


def other_type(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q.float() @ k.float().mT, -1).to(v.dtype) @ v


def by_columns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.mT.contiguous().mT
    return torch.softmax(q @ k.mT, -1) @ v


def changed_by_a_flag(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.detach() * 1.0
    scores = q.detach() @ k.mT
    F.relu(k, inplace=True)
    return torch.softmax(scores * SCALE, -1) @ v


def changed_by_position(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.detach() * 1.0
    scores = q.detach() @ k.mT
    F.hardtanh(k, -0.1, 0.1, 1)  # type: ignore[arg-type]
    return torch.softmax(scores * SCALE, -1) @ v


def changed_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.detach() * 1.0
    scaled = q * SCALE
    F.relu(q, inplace=True)
    return torch.softmax(scaled @ k.mT, -1) @ v


def changed_by_statistics(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k.detach() * 1.0
    scores = q @ k.mT
    F.batch_norm(q.detach()[0, 0], k[0, 0, 0], k[0, 0, 1], training=True)
    return torch.softmax(scores * SCALE, -1) @ v


def denormal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / 1e-320, -1) @ v


def underflow(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * 1e-30 * 1e-30, -1) @ v


LEFT = (
    weights_too, masked, other_sign, over_queries, changed, other_type, by_columns,
    changed_by_a_flag, changed_by_position, changed_before, changed_by_statistics, denormal,
    underflow,
)  # fmt: skip


def flash(*given: Any, scale: float) -> tuple[Tensor]:
    """What stands for ATen's call here: its result lies as libraries have it."""
    q, k, v = given[:3]
    out = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), scale=scale).to(q.dtype)
    return (out.transpose(1, 2).contiguous().transpose(1, 2),)


def operands(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = (T, N, N)
    return [torch.randn(B, H, n, D).to(dtype).requires_grad_() for n in sizes]


def compiled(fn: Callable[..., Any], said: list[str], told: list[Sizes]) -> Callable[..., Any]:
    """``fn`` behind the pass, as eager mode runs what it left."""

    def choose(sizes: Sizes, kind: str) -> str:
        told.append(sizes)
        return f"by {kind}"

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        drop_idle_dropout(gm)
        plain, found = fuse_attention(gm, choose)
        assert (plain is gm) is not bool(found)
        assert all("flash" not in str(n.target) for n in plain.graph.nodes)
        said.extend(found)
        gm.graph.lint()
        return gm.forward

    torch._dynamo.reset()
    return torch.compile(fn, backend=backend, dynamic=False)


@pytest.fixture(autouse=True)
def gpu() -> Any:
    """A GPU's kernel, that any device has."""
    targets = {**fused_attention.CALLS, "flash": (flash, ())}
    with (
        mock.patch.object(fused_attention, "attention_choice", lambda *_: "flash"),
        mock.patch.object(fused_attention, "CALLS", targets),
        mock.patch.object(fused_attention, "DEVICE", "cpu"),
    ):
        yield


def error(out: Tensor, exact: Tensor) -> float:
    return ((out.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("fn", FOUND, ids=lambda f: f.__name__)
def test_attention_that_trains_is_one_call(fn: Callable[..., Any]) -> None:
    said: list[str] = []
    told: list[Sizes] = []
    given, same, exact = operands(), operands(), [x.double() for x in operands()]
    out, eager, wanted = compiled(fn, said, told)(*given), fn(*same), fn(*exact)
    assert said == ["by flash"]
    assert told == [Sizes(B * H * T * N, B * H * T * D, D)]
    assert (out.shape, out.stride(), out.dtype) == (eager.shape, eager.stride(), eager.dtype)
    assert error(out, wanted) <= 1.5 * error(eager, wanted)
    grad = torch.randn(out.shape)
    ours = torch.autograd.grad(out, given, grad.to(out.dtype))
    eagers = torch.autograd.grad(eager, same, grad.to(out.dtype))
    right = [x.detach().requires_grad_() for x in exact]
    for a, b, c in zip(
        ours, eagers, torch.autograd.grad(fn(*right), right, grad.double()), strict=True
    ):
        assert error(a, c) <= 1.5 * error(b, c)


@pytest.mark.parametrize("fn", LEFT, ids=lambda f: f.__name__)
def test_what_differs_stays(fn: Callable[..., Any]) -> None:
    said: list[str] = []
    compiled(fn, said, [])(*operands())
    assert not said


@pytest.mark.parametrize("again", [False, True])
def test_what_is_a_view_of_a_product_lies_as_it(again: bool) -> None:
    """A reshape that copies in no layout but the kernel's, or in no layout at all."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = (torch.softmax(q @ k.mT * SCALE, -1) @ v).transpose(1, 2).reshape(B, T, H, D)
        if again:
            return y.transpose(1, 2).view(B * H, T, D) * 2.0
        return y.as_strided((B * T * H * D,), (1,)) * torch.arange(B * T * H * D)

    said: list[str] = []
    out = compiled(fn, said, [])(*operands())
    assert said
    assert error(out, fn(*(x.double() for x in operands()))) < 0.01


def test_a_permuted_product_is_copied_as_before() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = (torch.softmax(q @ k.mT * SCALE, -1) @ v).permute(0, 2, 1, 3).contiguous()
        return y.view(-1) * torch.arange(B * T * H * D)

    said: list[str] = []
    out = compiled(fn, said, [])(*operands())
    assert said
    assert error(out, fn(*(x.double() for x in operands()))) < 0.01


def wide(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.randn(B, H, n, WIDE + 24).to(dtype).requires_grad_() for n in (T, N, N)]


@pytest.mark.parametrize("begin", [0, 1, 8])
@pytest.mark.parametrize("kind", ["inside", "outside", "computed"])
def test_operands_that_vectors_of_memory_do_not_fit_stay(begin: int, kind: str) -> None:
    """Libraries read 16 bytes at once; where an argument begins is known when it is there."""

    def part(x: Tensor) -> Tensor:
        return x[..., begin : begin + D]

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kind == "computed":
            q, k, v = (x * 2.0 for x in (q, k, v))
        return plain(*(x if kind == "outside" else part(x) for x in (q, k, v)))

    given = wide()
    if kind == "outside":
        given = [part(x).detach().requires_grad_() for x in given]
    said: list[str] = []
    out = compiled(fn, said, [])(*given)
    # What outside memory holds is copied, wherever it begins.
    assert bool(said) is (kind != "computed" or begin % 8 == 0)
    exact = fn(*(x.detach().double() for x in given))
    assert error(out.detach(), exact) <= 1.5 * error(fn(*given).detach(), exact)


@pytest.mark.parametrize("step", [WIDE, WIDE + 4])
def test_rows_that_are_no_whole_vectors_apart_stay(step: int) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain(*((x * 2.0)[..., :D] for x in (q, k, v)))

    said: list[str] = []
    compiled(fn, said, [])(
        *(torch.randn(B, H, n, step).bfloat16().requires_grad_() for n in (T, N, N))
    )
    assert bool(said) is (step % 8 == 0)


@pytest.mark.parametrize("heads", [1, H])
def test_arguments_are_handed_on_as_they_are(heads: int) -> None:
    """Where they begin the host program looks; only steps that fit no vectors are mended here."""
    seen: list[Any] = []

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        seen.extend(fuse_attention(gm, lambda *_: "pays")[1])
        (call,) = (n for n in gm.graph.nodes if n.target is fused_attention.CALLS["flash"][0])
        seen.extend(n.target for n in call.args[:3])
        return gm.forward

    torch._dynamo.reset()
    given = [x[:, :heads].contiguous().detach() for x in operands()]
    given[2] = torch.cat([given[2], given[2][..., :3]], -1)[..., :D]  # steps of odd bytes
    torch.compile(plain, backend=backend)(*(x.requires_grad_() for x in given))
    assert seen[0] == "pays" and [t is torch.clone for t in seen[1:]] == [False, False, True]


def test_what_does_not_pay_is_the_same_program() -> None:
    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        before = [*gm.graph.nodes]
        plain, said = fuse_attention(gm, lambda *_: None)
        assert plain is gm and not said
        assert [*gm.graph.nodes] == before
        return gm.forward

    torch._dynamo.reset()
    torch.compile(plain, backend=backend)(*operands())


def test_what_does_not_train_stays() -> None:
    said: list[str] = []
    with torch.no_grad():
        compiled(plain, said, [])(*operands())
    compiled(plain, said, [])(*(x.detach() for x in operands()))
    compiled(plain, said, [])(*operands(torch.float32))
    torch.use_deterministic_algorithms(True)
    try:
        compiled(plain, said, [])(*operands())
    finally:
        torch.use_deterministic_algorithms(False)
    assert not said


def test_what_the_caller_writes_into_is_no_part_of_the_gradient() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain(q, k, v).transpose(1, 2).flatten(2)

    said: list[str] = []
    given = operands()
    out = compiled(fn, said, [])(*given)
    assert said
    assert not out._is_view()
