"""Masks of attention that are proven to hide nothing, or what comes later."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from litz.graph import masks
from litz.graph.masks import ATTENTION, drop_idle_masks

Make = Callable[[Tensor], Any]
INF, LEAST = math.inf, torch.finfo(torch.float32).min


def places(x: Tensor) -> tuple[Tensor, Tensor]:
    n = x.shape[-2]
    q, k = torch.arange(n) + 0, torch.arange(0, n, 1)
    return q[None, None, :, None], k[None, None, None, :]


def causal(x: Tensor) -> Tensor:
    q, k = places(x)
    return k <= q


def packed(x: Tensor) -> Tensor:
    """As transformers tell sequences apart that lie in one row."""
    at = torch.arange(x.shape[-2]).unsqueeze(0).expand(x.shape[0], -1)
    number = (torch.diff(at, prepend=at[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    b, (q, k) = torch.arange(x.shape[0])[:, None, None, None], places(x)
    seen = q.new_ones((), dtype=torch.bool) & (k <= q).to(x.device)
    return (seen & (number[b, q] == number[b, k])).expand(x.shape[0], -1, -1, -1)


def written(x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool)
    mask[1:].fill_(False)
    return mask


def written_before(x: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[-2], x.shape[-2])
    row = mask[0]
    torch.add(mask[0], 1.0, out=row)
    return mask


def through_a_function(x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[-2], x.shape[-2])
    F.threshold(mask, 2.0, -INF, True)
    return mask - 1.0


def by_name(x: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[-2], x.shape[-2])
    torch.exp_(input=mask[:, :2])
    return mask


def means(x: Tensor) -> Tensor:
    n = x.shape[-2]
    mean = torch.zeros(n)
    F.batch_norm(x[0].mT.reshape(-1, n).exp(), mean, torch.ones(n), None, None, True, 1.0)
    return mean.expand(n, n)


def short_rows(x: Tensor) -> Tensor:
    table = torch.ones(x.shape[-2], x.shape[-2])
    F.embedding(torch.tensor([0, 1]), table, max_norm=0.5)
    return table.transpose(0, 1) - 1.0


def doubled(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2]) + 2**29
    for _ in range(34):
        at = at + at
    return (at >= 0)[None]


def known_at_the_first(x: Tensor) -> Tensor:
    seen = causal(x)
    return torch.where(seen, -1.0, 1.0)[..., :1] < torch.where(seen, 0.0, 0.5)


def square(x: Tensor, number: float) -> Tensor:
    return torch.full((x.shape[-2], x.shape[-2]), number)


NOTHING: dict[str, Make] = {
    "places of queries": lambda x: (places(x)[0] >= 0).expand(x.shape[0], -1, -1, x.shape[-2]),
    "ones": lambda x: torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool),
    "one number": lambda x: torch.ones(1, 1, dtype=torch.bool),
    "zeros": lambda x: torch.zeros(x.shape[-2], x.shape[-2]),
    "inverted": lambda x: (
        (1.0 - torch.ones(x.shape[0], x.shape[-2]))[:, None, None, :] * torch.finfo(x.dtype).min
    ),
    "of lists": lambda x: (
        ~torch.zeros_like(torch.zeros(x.shape[-2], dtype=torch.long)).bool()[None]
    ),
    "either": lambda x: torch.logical_or(places(x)[1] <= places(x)[0], places(x)[1] > places(x)[0]),
    "methods": lambda x: places(x)[0].__ge__(0).__and__(places(x)[1].__ne__(-1)),
    "chosen where all are": lambda x: torch.where(places(x)[0] >= 0, 0.0, x[:1, :1, :, :1]),
    "chosen where none are": lambda x: torch.where(places(x)[0] < 0, -INF, 0.0),
    "wide windows": lambda x: (places(x)[0] - places(x)[1]).neg() < x.shape[-2],
    "known at the first": known_at_the_first,
    "large blocks": lambda x: places(x)[0] // 64 == places(x)[1] // 64,
}
CAUSAL: dict[str, Make] = {
    "places": causal,
    "packed": packed,
    "triangle": lambda x: torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril(),
    "upper": lambda x: ~torch.triu(torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool), 1),
    "added": lambda x: torch.triu(square(x, -INF), diagonal=1),
    "chosen": lambda x: torch.where(causal(x), 0.0, -INF),
    "filled": lambda x: square(x, 0.0).masked_fill(~causal(x), -INF),
    "permuted": lambda x: causal(x).permute(0, 1, 3, 2).permute([0, 1, 3, 2]),
    "less": lambda x: places(x)[1].transpose(2, 3).view(1, 1, -1, 1) + 1 > places(x)[1],
    "windows": lambda x: causal(x) & (places(x)[1] > places(x)[0] - 64),
    "counted": lambda x: (torch.ones(x.shape[-2]).long().cumsum(0) - 1)[None] <= places(x)[0],
}
OTHERS: dict[str, Make] = {
    "strictly": lambda x: places(x)[1] < places(x)[0],
    "narrow windows": lambda x: causal(x) & (places(x)[1] > places(x)[0] - 3),
    "small blocks": lambda x: places(x)[0] // 4 == places(x)[1] // 4,
    "backwards": lambda x: causal(x).transpose(-1, -2),
    "a number": lambda x: square(x, -1.0),
    "nothing": lambda x: torch.zeros(x.shape[-2], x.shape[-2], dtype=torch.bool),
    "some": lambda x: torch.triu(square(x, -1e9), diagonal=1),
    "values": lambda x: x[:1, :1, :, :1] > -1000,
    "written": written,
    "written before": written_before,
    "through a function": through_a_function,
    "by an operator": lambda x: square(x, 0.0).__isub__(1.0),
    "floats": lambda x: (torch.arange(float(x.shape[-2])) >= 0)[None],
    "bits": lambda x: (~(~causal(x)).long()).bool(),
    "bits by name": lambda x: torch.ones(x.shape[-2], x.shape[-2]).long().bitwise_not() == 0,
    "a start by position": lambda x: (torch.arange(5, end=5 + x.shape[-2]) < x.shape[-2])[None],
    "of fewer digits": lambda x: square(x, 1.0).half() > 0.9999,
    "beyond the largest": lambda x: square(x, -INF).half().triu(1) >= -1e9,
    "rounded": lambda x: square(x, 41.0) * (1 / 41) == 1.0,
    "a number as it is not": lambda x: square(x, 0.1).double() > 0.1,
    "written by name": by_name,
    "written means": means,
    "written tables": short_rows,
    "overflows": doubled,
    "bytes": lambda x: (torch.arange(x.shape[-2]).to(torch.int8) >= 0)[None],
}
EXPECTED = [
    *((make, "none") for make in NOTHING.values()),
    *((make, "causal") for make in CAUSAL.values()),
    *((make, "") for make in OTHERS.values()),
]
NAMES = [*NOTHING, *CAUSAL, *OTHERS]


def attend(make: Make, x: Tensor, y: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, y, y.sin(), attn_mask=make(x))


def found(
    fn: Callable[..., Tensor], *inputs: Tensor, draws: bool = False, dynamic: bool = False
) -> list[str]:
    """What is left of masks; the graph computes what it did."""
    kinds = []

    def backend(gm: GraphModule, _inputs: Any) -> Callable[..., Any]:
        drop_idle_masks(gm, draws)
        gm.graph.lint()
        for n in gm.graph.nodes:
            if n.target in ATTENTION:
                masked = n.kwargs.get("attn_mask") is not None or len(n.args) > 3
                causal = n.kwargs.get("is_causal")
                kinds.append("" if masked else "causal" if causal else "none")
        return gm.forward

    torch._dynamo.reset()
    call = torch.compile(fn, backend=backend, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(call(*inputs), fn(*inputs), equal_nan=True)
    return kinds


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("make", "kind"), EXPECTED, ids=NAMES)
def test_what_is_proven_is_left_out(make: Make, kind: str, dynamic: bool) -> None:
    if dynamic and make in (NOTHING["large blocks"], CAUSAL["windows"]):
        kind = ""  # it depends on the length
    x = torch.randn(2, 3, 10, 8)
    assert found(lambda x: attend(make, x, x), x, dynamic=dynamic) == [kind]


@pytest.mark.parametrize("make", [NOTHING["ones"], CAUSAL["triangle"], OTHERS["values"]])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_arguments_by_name(make: Make, position: int) -> None:
    x = torch.randn(2, 3, 10, 8)
    names = ["query", "key", "value"][position:]

    def fn(x: Tensor) -> Tensor:
        rest = dict.fromkeys(names, x)
        return F.scaled_dot_product_attention(*[x] * position, **rest, attn_mask=make(x))  # type: ignore[misc, arg-type]

    assert found(fn, x) == [dict(EXPECTED)[make]]


@pytest.mark.parametrize("nested", [False, True])
def test_second_gradients(nested: bool) -> None:
    """PyTorch has them for what it computes with masks of three dims alone."""
    x = torch.randn(2, 3, 10, 8, dtype=torch.double, requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        return attend(lambda x: torch.zeros(3, x.shape[-2], x.shape[-2]).to(x.dtype), x, x)

    def loss(x: Tensor) -> Tensor:
        out = checkpoint(layer, x, use_reentrant=False) if nested else layer(x)
        return out.sin().sum()

    def second(loss: Callable[[Tensor], Tensor]) -> Tensor:
        (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
        return torch.autograd.grad(first.cos().sum(), x)[0]

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="litz", fullgraph=True)
    torch.testing.assert_close(second(compiled), second(loss))


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.randn(2, 3, 10, 8)
        assert found(lambda x: attend(causal, x, x), x) == ["causal"]
        assert found(lambda x: attend(written, x, x), x) == [""]


def test_rectangles() -> None:
    """Where keys are more than queries, kernels differ in what is causal."""
    x, y = torch.randn(2, 3, 10, 8), torch.randn(2, 3, 12, 8)
    seen: Make = lambda x: torch.ones(10, 12, dtype=torch.bool)  # noqa: E731
    assert found(lambda x, y: attend(seen, x, y), x, y) == ["none"]
    assert found(lambda x, y: attend(lambda x: seen(x).tril(), x, y), x, y) == [""]


def test_a_mask_that_would_make_results_larger_is_refused() -> None:
    x = torch.randn(1, 3, 10, 8)
    seen: Make = lambda x: torch.ones(4, 1, 1, 1, dtype=torch.bool)  # noqa: E731
    with pytest.raises(RuntimeError, match="broadcast"):
        found(lambda x: attend(seen, x, x), x)
    assert found(lambda x: attend(seen, x, x), x.expand(4, 3, 10, 8)) == ["none"]


def by_checkpoint(x: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x.sin(), attn_mask=mask)


def by_checkpoint_and_written(x: Tensor, mask: Tensor) -> Tensor:
    out = by_checkpoint(x, mask)
    mask[..., :2] = True
    return out


@pytest.mark.parametrize("layer", [by_checkpoint, by_checkpoint_and_written])
def test_checkpoints(layer: Callable[..., Tensor]) -> None:
    x = torch.randn(2, 3, 10, 8, requires_grad=True)
    kinds = []

    def fn(x: Tensor) -> Tensor:
        mask = causal(x)
        for _ in range(2):
            x = checkpoint(layer, x, mask, use_reentrant=False)
        return x

    def backend(gm: GraphModule, _inputs: Any) -> Callable[..., Any]:
        drop_idle_masks(gm, False)
        for m in gm.modules():
            graph = getattr(m, "graph", None)
            for n in [] if graph is None else graph.nodes:
                if n.target in ATTENTION:
                    kinds.append(n.kwargs.get("is_causal", False))
        return gm.forward

    torch._dynamo.reset()
    expected = fn(x)
    torch.testing.assert_close(torch.compile(fn, backend=backend)(x), expected)
    assert True in kinds if layer is by_checkpoint else True not in kinds


def test_users_operators_that_write() -> None:
    with torch.library._scoped_library("masks_test", "FRAGMENT") as lib:

        def fill(x: Tensor) -> None:
            x.fill_(-INF)

        lib.define("hide(Tensor(a!) x) -> ()")
        lib.impl("hide", fill, "CompositeExplicitAutograd")
        lib.impl("hide", lambda x: None, "Meta")

        def fn(x: Tensor) -> Tensor:
            mask = torch.zeros(10, 10)
            torch.ops.masks_test.hide(mask[:, 3:])
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

        assert found(fn, torch.randn(2, 3, 10, 8)) == [""]


def bias(x: Tensor, table: Tensor) -> Tensor:
    """As T5 has it: of heads, and of distances."""
    n = x.shape[-2]
    distances = (torch.arange(n)[:, None] - torch.arange(n)[None, :]).abs()
    return F.embedding(distances, table).permute([2, 0, 1]).unsqueeze(0)


Biased = Callable[[Tensor, Tensor], Tensor]
BIASES: list[tuple[Biased, bool]] = [
    (bias, True),
    (lambda x, t: torch.where(NOTHING["places of queries"](x), bias(x, t), LEAST), True),
    (lambda x, t: torch.where(causal(x), bias(x, t), LEAST), True),
    (lambda x, t: torch.where(causal(x).transpose(-1, -2), bias(x, t), -INF), True),
    (lambda x, t: torch.where(OTHERS["strictly"](x), bias(x, t), LEAST), False),
    (lambda x, t: torch.where(x[:, :1, :, :1] > 0, bias(x, t), LEAST), False),
    (lambda x, t: (x[:1, :1, :, :1] > 0).expand(-1, -1, -1, 10), False),
    (lambda x, t: torch.where(x[:1, :1, :, :1] > 0, 0.0, -INF).expand(-1, -1, -1, 10), False),
]


@pytest.mark.parametrize(("make", "laid"), BIASES)
def test_biases_lie_by_rows_of_keys(
    make: Biased, laid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch's kernels of attention on GPUs want them, where no row may be hidden wholly."""
    monkeypatch.setattr(masks, "KIND", "cpu")
    steps = []

    def fn(x: Tensor, table: Tensor) -> Tensor:
        mask = make(x, table)
        return attend(lambda _: mask, attend(lambda _: mask, x, x), x)

    def backend(gm: GraphModule, _inputs: Any) -> Callable[..., Any]:
        drop_idle_masks(gm, False)
        gm.graph.lint()
        calls = [n for n in gm.graph.nodes if n.target in ATTENTION]
        made = {n.kwargs["attn_mask"] for n in calls}
        steps.extend(n.meta["example_value"].stride(-1) for n in made)
        return gm.forward

    torch._dynamo.reset()
    x, table = torch.randn(2, 3, 10, 8, requires_grad=True), torch.randn(10, 3, requires_grad=True)
    expected = torch.autograd.grad(fn(x, table).sum(), (x, table), allow_unused=True)
    made = torch.compile(fn, backend=backend)(x, table)
    found = torch.autograd.grad(made.sum(), (x, table), allow_unused=True)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert steps == [1] if laid else steps[0] != 1


def test_dropout_that_has_to_draw_the_same() -> None:
    def fn(x: Tensor) -> Tensor:
        mask = torch.ones(10, 10, dtype=torch.bool)
        return F.scaled_dot_product_attention(x, x, x, mask, 1e-9)

    x = torch.randn(2, 3, 10, 8)
    assert found(fn, x, draws=True) == [""]
    assert found(fn, x) == ["none"]


@pytest.mark.parametrize("make", [NOTHING["places of queries"], packed, OTHERS["small blocks"]])
def test_gradients(make: Make) -> None:
    x = torch.randn(2, 3, 12, 8, dtype=torch.double, requires_grad=True)
    y = torch.randn(2, 3, 12, 8, dtype=torch.double, requires_grad=True)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return attend(make, x, y).cos().sum()

    torch._dynamo.reset()
    expected = torch.autograd.grad(loss(x, y), (x, y))
    compiled = torch.compile(loss, backend="litz", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, y), (x, y)), expected)
