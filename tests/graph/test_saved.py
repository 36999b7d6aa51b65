"""What a forward graph saves: no log-softmax where statistics of its rows will do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode

from litz.backend import compile_with
from litz.graph import saved
from litz.options import make_options
from litz.stages import Stages
from tests.quick import some

aten = torch.ops.aten
LOG_SOFTMAX = aten._log_softmax.default
Loss = Callable[[Tensor, Tensor, Tensor], Any]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)


def shifted(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """As language models have it: each position says what the next one is."""
    logits = (x @ w).view(4, 6, -1).float()[:, :-1].contiguous()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(4, 6)[:, 1:].reshape(-1))


def capped(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(20 * torch.tanh((x @ w).float() / 20), y, ignore_index=3)


def images(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy((x @ w).view(2, 3, 4, -1).permute(0, 3, 1, 2), y.view(2, 3, 4))


def preferred(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Log-probabilities of what was chosen."""
    return F.log_softmax(x @ w, -1).gather(1, y[:, None]).sum().sigmoid()


def twice_read(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logits = x @ w
    return F.cross_entropy(logits, y), logits


def columns(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """A log-softmax lies row by row however its logits do."""
    return F.log_softmax((x @ w).t(), 0).view(-1).sin().sum() * y.sum()


def viewed(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The caller gets a copy: PyTorch would not see that somebody writes a view of a saved one."""
    logits = (x @ w).view(4, 6, -1)
    return F.cross_entropy(logits.view(24, -1), y), logits


def returned(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    p = F.log_softmax(x @ w, -1)
    return F.nll_loss(p, y), p


def multiplied(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return (F.log_softmax(x @ w, -1) @ w.t()).sum() * y.sum()


# Whether the forward graph saves the log-softmax itself.
LOSSES: dict[str, tuple[Loss, bool]] = {
    "plain": (lambda x, w, y: F.cross_entropy(x @ w, y), False),
    "smoothed": (lambda x, w, y: F.cross_entropy(x @ w, y, label_smoothing=0.1), False),
    "shifted": (shifted, False),
    "capped": (capped, False),
    "images": (images, False),
    "preferred": (preferred, False),
    "columns": (columns, False),
    "logits too": (twice_read, False),
    "views of logits too": (viewed, False),
    "two classes": (lambda x, w, y: F.cross_entropy((x @ w)[:, :2], y % 2), True),
    "no classes": (lambda x, w, y: F.log_softmax(x @ w[:, :0], -1).sum() + (x @ w).sum(), True),
    "returned": (returned, True),
    "multiplied": (multiplied, True),
}


def compiled(fn: Any, found: list[tuple[str, GraphModule]], **how: Any) -> Any:
    def backend(gm: GraphModule, inputs: Any) -> Any:
        def observe(kind: str, graph: GraphModule, _: Stages) -> None:
            found.append((kind, graph))

        return compile_with(gm, inputs, make_options({}), observe)

    torch._dynamo.reset()
    return torch.compile(fn, backend=backend, **how)


@pytest.mark.parametrize("rows", (24, 240))
def test_of_many_logits_that_are_an_argument_the_softmax_is_saved(rows: int) -> None:
    """They may be written before the backward pass, which computes no exponentials.

    Of few the program stays one that eager mode runs at less cost.
    """
    x, y = draw(rows, 40) * 3, torch.arange(rows) % 40 - 1  # the first is ignored
    x[1, 2] = -torch.inf

    def gradient(fn: Any, dtype: torch.dtype) -> Tensor:
        leaf = x.to(dtype, copy=True).requires_grad_()
        total = fn(leaf, y.where(y >= 0, -100))
        with torch.no_grad():
            leaf.zero_()
        (found,) = torch.autograd.grad(total, leaf)
        return found

    graphs: list[tuple[str, GraphModule]] = []
    found = gradient(compiled(F.cross_entropy, graphs), torch.float32)
    own, exact = (gradient(F.cross_entropy, t) for t in (torch.float32, torch.float64))
    assert (found.double() - exact).norm() <= 2 * (own.double() - exact).norm()
    names = [{n.target for n in graph.graph.nodes} for _, graph in graphs]
    assert (LOG_SOFTMAX in names[0]) == (rows == 24)
    assert torch.ops.aten.exp.default not in names[1]


@pytest.mark.parametrize("dtype", some([torch.float32, torch.bfloat16], 1), ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_log_softmax_is_computed_again(name: str, dtype: torch.dtype) -> None:
    loss, kept = LOSSES[name]

    def step(fn: Any, to: torch.dtype) -> list[Tensor]:
        given = (draw(24, 8, dtype=dtype) * 3, draw(8, 40, dtype=dtype))
        x, w = (t.to(to).requires_grad_() for t in given)
        out = fn(x, w, torch.arange(24) % 40)
        first = out[0] if isinstance(out, tuple) else out
        return [first.detach(), *torch.autograd.grad(first, (x, w))]

    graphs: list[tuple[str, GraphModule]] = []
    found, own = step(compiled(loss, graphs), dtype), step(loss, dtype)
    for a, e, exact in zip(found, own, step(loss, torch.float64), strict=True):
        assert a.dtype is e.dtype
        limit = 2 * (e.double() - exact).norm() + 1e-6 * exact.norm()
        assert (a.double() - exact).norm() <= limit
    names = {n.target for n in graphs[0][1].graph.nodes if isinstance(n, FxNode)}
    assert graphs[0][0] == "forward" and (LOG_SOFTMAX in names) is kept


# How many matrices the forward graph saves: what is normed, and what that cannot give.
NORMS: dict[str, tuple[Loss, int]] = {
    "loss": (lambda x, w, y: F.layer_norm(x @ w, (40,)).square().mean() * y.sum(), 1),
    "squares": (lambda x, w, y: F.rms_norm(x @ w, (40,), w[0]).square().mean() * y.sum(), 1),
    "gelu": (lambda x, w, y: F.gelu(F.layer_norm(x @ w, (40,))).sin().sum(), 1),
    "multiplied": (lambda x, w, y: (F.layer_norm(x @ w, (40,)) @ w.t()).sin().sum(), 2),
    "rms": (lambda x, w, y: F.rms_norm(x @ w, (40,)).sin().sum(), 1),
    "groups": (lambda x, w, y: F.group_norm(x @ w, 4).sin().sum(), 1),
    "batch": (lambda x, w, y: F.batch_norm(x @ w, None, None, training=True).sin().sum(), 1),
}


@pytest.mark.parametrize("name", NORMS)
def test_what_a_norm_is_made_into_is_computed_again(name: str) -> None:
    loss, count = NORMS[name]
    given = draw(24, 8, dtype=torch.float64), draw(8, 40, dtype=torch.float64)
    graphs: list[tuple[str, GraphModule]] = []
    x, w = (t.requires_grad_() for t in given)
    grads = [
        torch.autograd.grad(fn(x, w, torch.arange(24)), (x, w))
        for fn in (compiled(loss, graphs), loss)
    ]
    torch.testing.assert_close(*grads)
    saved: Any = graphs[0][1].graph.output_node().args[0]
    kept = [n for n in saved if [*n.meta["val"].shape] == [24, 40]]
    assert graphs[0][0] == "forward" and len(kept) == count


def shifted_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, var = torch.zeros_like(w), torch.ones_like(w)
    return F.batch_norm(x.sin(), mean, var, w, b, training=True).square().sum()


def fixed_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Statistics are not its argument's."""
    return F.batch_norm(x.sin(), w.detach(), w.detach().abs() + 1, w, b).square().sum()


def grouped_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x.sin(), 2, w, b).square().sum()


@pytest.mark.parametrize("fn", [shifted_norm, fixed_norm, grouped_norm])
def test_norms_of_channels_are_computed_again(fn: Loss) -> None:
    given = [draw(3, 6, 5, 7), draw(6), draw(6)]
    grads = []
    for run, to in ((compiled(fn, []), torch.float32), (fn, torch.float32), (fn, torch.float64)):
        args = [t.to(to).requires_grad_() for t in given]
        grads.append(torch.autograd.grad(run(*args), args))
    for mine, own, exact in zip(*grads, strict=True):
        limit = 2 * (own - exact).norm() + 1e-6 * exact.norm()
        assert (mine - exact).norm() <= limit


def test_logits_that_a_caller_writes_do_not_change_gradients() -> None:
    given = draw(24, 8, dtype=torch.bfloat16), draw(8, 40, dtype=torch.bfloat16)
    x, w = (t.requires_grad_() for t in given)
    grads = []
    for fn in (compiled(viewed, []), viewed):
        out, logits = fn(x, w, torch.arange(24))
        assert logits.shape == (4, 6, 40) and logits.is_contiguous()
        logits.detach().zero_()
        grads.append(torch.autograd.grad(out, (x, w)))
    for mine, own in zip(*grads, strict=True):
        torch.testing.assert_close(mine, own, atol=2e-3, rtol=2e-2)


def shown_twice(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    logits = x @ w
    return F.cross_entropy(logits, y), logits.detach(), logits.detach().view(4, 6, -1)


def parts_shown(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    logits = (x @ w).view(4, 6, -1)
    return F.cross_entropy(logits.view(24, -1), y), logits, logits[:, 1:]


@pytest.mark.parametrize("fn", [shown_twice, parts_shown])
def test_results_that_share_memory_do_so_uncopied(fn: Loss) -> None:
    graphs: list[tuple[str, GraphModule]] = []
    x, w = draw(24, 8).requires_grad_(), draw(8, 40).requires_grad_()
    _, first, second = compiled(fn, graphs)(x, w, torch.arange(24))
    with torch.no_grad():
        first.zero_()
    assert not second.any()
    assert not any(n.target is aten.clone.default for n in graphs[0][1].graph.nodes)


def test_infinite_and_missing_logits_stay_as_in_eager_mode() -> None:
    """A row's largest element may be infinite, all of them -inf, or one nan."""
    x = draw(5, 7)
    x[0, 2], x[1], x[2, 3], x[3, :6] = torch.inf, -torch.inf, torch.nan, -torch.inf

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x * 1.0, y, reduction="none")

    def step(fn: Any) -> list[Tensor]:
        given = x.clone().requires_grad_()
        out = fn(given, torch.tensor([2, 0, 1, 6, 3]))
        return [out.detach(), *torch.autograd.grad(out.sum(), given)]

    for a, e in zip(step(compiled(loss, [])), step(loss), strict=True):
        torch.testing.assert_close(a, e, equal_nan=True)


def test_what_is_given_is_not_saved_in_its_place() -> None:
    """Whoever gave logits may write them, as in eager mode, before the backward graph runs."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x, y)

    def step(fn: Any) -> Tensor:
        x, y = draw(6, 9).requires_grad_(), torch.arange(6)
        logits = x * 2
        out = fn(logits, y)
        logits.mul_(3)
        return torch.autograd.grad(out, x)[0]

    torch.testing.assert_close(step(compiled(loss, [])), step(loss))


def test_open_sizes() -> None:
    graphs: list[tuple[str, GraphModule]] = []
    loss = compiled(LOSSES["plain"][0], graphs, dynamic=True)
    for rows in (6, 11):
        x, w, y = draw(rows, 8), draw(8, 40).requires_grad_(), torch.arange(rows)
        found = torch.autograd.grad(loss(x, w, y), w)[0]
        torch.testing.assert_close(found, torch.autograd.grad(F.cross_entropy(x @ w, y), w)[0])
    assert len(graphs) == 2
    assert not any(n.target is LOG_SOFTMAX for n in graphs[0][1].graph.nodes)


@pytest.mark.parametrize("columns,row", [(520, 520), (515, 528)])
def test_rows_of_saved_products(columns: int, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks through all results for whom rows are whole already."""
    with FakeTensorMode():
        val = torch.empty(512, columns, dtype=torch.bfloat16, device="cuda")
    forward, backward = Graph(), Graph()
    made = forward.call_function(aten.mm.default, (forward.placeholder("x"),) * 2)
    own = backward.placeholder(made.name)
    made.meta["val"] = own.meta["val"] = val
    forward.output((made,))
    backward.output((own,))
    asked: list[FxNode] = []
    monkeypatch.setattr(saved, "owner", lambda n: asked.append(n) or n)
    saved.save_less(GraphModule({}, forward), GraphModule({}, backward), 0)
    assert own.meta["val"].stride() == (row, 1)
    assert bool(asked) == (row != columns)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (x @ w).sin(),
        lambda x, w: (x[1:] @ w).tanh()[1:] * w.unbind(0)[2],
        lambda x, w: (x.view(2, 3, 8) * w.select(0, 1)).exp(),
    ],
)
def test_of_views_of_inputs_inputs_are_saved(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    graphs: list[tuple[str, GraphModule]] = []
    run = compiled(fn, graphs)
    x, w = draw(6, 8).requires_grad_(), draw(8, 8).requires_grad_()
    mine = torch.autograd.grad(run(x, w).sum(), (x, w))
    for m, t in zip(mine, torch.autograd.grad(fn(x, w).sum(), (x, w)), strict=True):
        torch.testing.assert_close(m, t)
    for written in (x, w):
        result = run(x, w).sum()
        with torch.no_grad():
            written.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()
    assert [kind for kind, _ in graphs] == ["forward", "backward"]


def cast(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y)


def cast_sum(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy((x + x.t()).float(), y)


def cast_shown(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    wide = (x + x.t()).float()
    return F.cross_entropy(wide, y), wide


@pytest.mark.parametrize(("fn", "narrow"), [(cast, 1), (cast_sum, 1), (cast_shown, 0)])
def test_what_is_only_widened_is_saved_as_it_was(fn: Callable[..., Any], narrow: int) -> None:
    """Whoever gave it may write it before the backward pass, as in eager mode."""
    graphs: list[tuple[str, GraphModule]] = []
    grads = []
    for run in (compiled(fn, graphs), fn):
        x = draw(64, 64, dtype=torch.bfloat16).requires_grad_()
        given = x * 1
        out = run(given, torch.arange(64))
        with torch.no_grad():
            given.zero_()
        grads.append(torch.autograd.grad(out[0] if isinstance(out, tuple) else out, x)[0])
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-2)
    values: Any = graphs[0][1].graph.output_node().args[0]
    kinds = [n.meta["val"].dtype for n in values[1:] if n.meta["val"].numel() == 64 * 64]
    assert graphs[0][0] == "forward" and kinds.count(torch.bfloat16) == narrow


def renormed(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The factor, of few operations, is computed anew by the backward pass, of the old numbers."""
    wide = x.std(0)
    out = (x / wide * (wide.detach() / s).clamp(0.3, 3)).pow(3).sum()
    s.mul_(0.9).add_(wide.detach(), alpha=0.1)
    return out, s.sum()


def renormed_in_part(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    out = (x[:, 1:] * (s[1:] / 3).clamp(-1, 1) * x[:, 1:]).sum()
    s[2:] = 5
    return out, s.view(2, 2)


def replaced(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    out = (x[:, 1:] * (s[1:] / 3).clamp(-1, 1) * x[:, 1:]).sum()
    s.data = s.data * 0.9 + x.detach().mean(0)
    return out, s.sum()


@pytest.mark.parametrize("fn", [renormed, renormed_in_part, replaced])
def test_what_the_program_writes_is_saved_as_it_was(fn: Callable[..., Any]) -> None:
    results = []
    for run in (compiled(fn, []), fn):
        x, s = draw(5, 4).requires_grad_(), draw(4).abs()
        out, shown = run(x, s)
        results.append((torch.autograd.grad(out, x)[0], shown, s))
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("columns", [3, 600])
def test_a_table_may_be_written_before_the_backward_pass(columns: int) -> None:
    """Rows that were picked are saved, and not where they stood."""

    def grad(fn: Callable[..., Any]) -> Tensor:
        torch.manual_seed(0)
        table = torch.nn.Parameter(torch.randn(40, columns))
        out = fn(table)
        with torch.no_grad():
            table.mul_(2)
        return torch.autograd.grad(out, table)[0]

    def cubes(table: Tensor) -> Tensor:
        return F.embedding(torch.tensor([5, 2, 39, 5, 5, 0, 17, 39]), table).pow(3).sum()

    torch.testing.assert_close(grad(compiled(cubes, [])), grad(cubes))
