"""Whole programs through the backend: training loops and what real code does around a model."""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from judge import assert_close, error
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint

from litz import explain
from tests.quick import some

OPTIONS = {"check_ir": True}


def litz(fn: Any, **more: Any) -> Any:
    return torch.compile(fn, backend="litz", options=OPTIONS, **more)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 5))


def batches(n: int) -> list[tuple[Tensor, Tensor]]:
    gen = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 12, generator=gen), torch.randint(0, 5, (8,), generator=gen))
        for _ in range(n)
    ]


def near(a: Any, b: Any, limit: float = 1e-5) -> None:
    """Two states or lists of tensors agree but for rounding that steps have carried along.

    What is zero in exact arithmetic (a bias before a norm) is noise: it counts by the largest.
    """
    pairs = [(a[k], b[k]) for k in b] if isinstance(b, dict) else list(zip(a, b, strict=True))
    largest = max(y.detach().double().norm().item() for _, y in pairs)
    for x, y in pairs:
        assert x.dtype is y.dtype and x.shape == y.shape
        if y.dtype.is_floating_point:
            own = y.detach().double()
            distance = (x.detach().double() - own).norm().item()
            assert distance <= limit * max(own.norm().item(), 1e-2 * largest)
        else:
            assert torch.equal(x, y)


# --- optimizers -----------------------------------------------------------------------------------

Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "adamw, loops": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "adam, tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2), capturable=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


# The model is the same for all of them, and is compiled with these.
MODEL_TOO = ("momentum", "adamw")


def train_with(
    make: Optimizer, compiled: bool, model_too: bool = True, steps: int = 5
) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = mlp()
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    forward = litz(model) if compiled and model_too else model
    step = litz(optimizer.step) if compiled else optimizer.step
    losses = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        step()
        scheduler.step()
        losses.append(loss.detach())
    return model, losses


@pytest.mark.parametrize("name", some(OPTIMIZERS, 4))
def test_optimizer_steps(name: str) -> None:
    """The optimizer compiled, the learning rate falling: parameters follow eager's."""
    make = OPTIMIZERS[name]
    eager, eager_losses = train_with(make, compiled=False)
    mine, losses = train_with(make, compiled=True, model_too=name in MODEL_TOO)
    # Adam divides by the root of a tiny second moment: it makes rounding errors larger.
    near(mine.state_dict(), eager.state_dict(), 1e-4)
    near(losses, eager_losses, 1e-4)


def test_a_whole_step_in_one_function() -> None:
    """Forward, backward and update in one compiled function (Dynamo breaks at ``backward``)."""

    def run(compiled: bool) -> nn.Module:
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss.detach()

        step = litz(step) if compiled else step
        for x, y in batches(3):
            step(x, y)
        return model

    near(run(True).state_dict(), run(False).state_dict(), 1e-4)


def test_gradients_accumulate() -> None:
    model = mlp()
    twin = copy.deepcopy(model)
    compiled = litz(model)
    for x, y in batches(3):
        F.cross_entropy(compiled(x), y).backward()
        F.cross_entropy(twin(x), y).backward()
    near([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


# --- modules with state ---------------------------------------------------------------------------


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 16, 3, stride=2)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.stem(x)))
        return self.head(F.adaptive_avg_pool2d(F.silu(self.down(x)), 1).flatten(1))


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_train(channels_last: bool) -> None:
    """Running statistics move as eager's do, then evaluation uses them; layouts are kept."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = ConvNet().to(memory_format=layout)
    twin = copy.deepcopy(model)
    compiled = litz(model)
    for _ in range(3):
        x = torch.randn(4, 3, 12, 12).contiguous(memory_format=layout)
        for call, m in ((compiled, model), (twin, twin)):
            m.zero_grad()
            call(x).square().mean().backward()
        near([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
        strides = [p.grad.stride() for p in model.parameters() if p.grad is not None]
        assert strides == [p.grad.stride() for p in twin.parameters() if p.grad is not None]
    near(dict(model.named_buffers()), dict(twin.named_buffers()))
    model.eval(), twin.eval()
    with torch.no_grad():
        x = torch.randn(4, 3, 12, 12).contiguous(memory_format=layout)
        assert_close(compiled(x), twin(x), copy.deepcopy(twin).double()(x.double()))


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.out = nn.Linear(8, 11, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, i: Tensor) -> Tensor:
            return self.out(torch.tanh(self.embed(i)))

    model = Tied()
    twin = copy.deepcopy(model)
    compiled = litz(model, fullgraph=True)
    i = torch.randint(0, 11, (3, 7))
    for call in (compiled, twin):
        F.cross_entropy(call(i).flatten(0, 1), i.flatten()).backward()
    assert len(list(model.parameters())) == 1
    near([model.embed.weight.grad], [twin.embed.weight.grad])


def test_hooks() -> None:
    """Forward hooks see and change values; hooks of tensors and parameters see gradients."""

    def run(compiled: bool) -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = mlp()
        seen: dict[str, Tensor] = {}
        model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        model[2].register_forward_hook(lambda m, args, out: out + args[0].mean())
        model[3].weight.register_hook(lambda g: seen.update(w=g.clone()) or g * 0.5)
        call = litz(model) if compiled else model
        x = batches(1)[0][0].requires_grad_()
        x.register_hook(lambda g: seen.update(x=g.clone()))
        out = call(x)
        out.square().sum().backward()
        return out.detach(), x.grad, seen["w"], seen["x"], *(p.grad for p in model.parameters())

    eager = run(False)
    assert len(eager) == 10
    near(run(True), eager)


def test_buffers_that_forward_writes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
            self.register_buffer("trace", torch.zeros(4))
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            self.trace.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            return x * self.scale - self.trace

    model = Counting()
    twin = copy.deepcopy(model)
    compiled = litz(model, fullgraph=True)
    for _ in range(3):
        x = torch.randn(5, 4)
        compiled(x).sum().backward()
        twin(x).sum().backward()
    assert model.steps.item() == 3
    near(model.state_dict(), twin.state_dict())
    near([model.scale.grad], [twin.scale.grad])


# --- autocast, checkpoints, random numbers --------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool) -> None:
    """bf16 matrix products, fp32 norms and losses, as eager's autocast chooses."""
    model = mlp()

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            out = m(x)
            return out, F.cross_entropy(out, y)

    x, y = batches(1)[0]
    found = []
    for compiled in (False, True):
        m = copy.deepcopy(model)
        call = litz(loss, fullgraph=True) if compiled else loss
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            out, value = call(m, x, y)
        value.backward()
        found.append((out.detach(), value.detach(), [p.grad for p in m.parameters()]))
    exact = copy.deepcopy(model).double()
    ref = exact(x.double())
    ref_loss = F.cross_entropy(ref, y)
    ref_loss.backward()
    eager, mine = found
    assert_close(mine[:2], eager[:2], (ref.detach(), ref_loss.detach()))
    for a, e, p in zip(mine[2], eager[2], exact.parameters(), strict=True):
        assert a.dtype is torch.float32
        assert error(a, p.grad) <= 2 * error(e, p.grad) + 5e-3


@pytest.mark.parametrize("rng", ["litz", "eager"])
def test_checkpoint_repeats_the_dropout_mask(rng: str) -> None:
    """Gradients are zero exactly where the forward dropped, although the mask is drawn again."""

    def block(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(torch.sin(x @ w), 0.5) * 3

    def f(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(block, x, w, use_reentrant=False)

    compiled = torch.compile(f, backend="litz", fullgraph=True, options={**OPTIONS, "rng": rng})
    w = torch.randn(16, 16, requires_grad=True)
    for _ in range(2):
        x = torch.randn(64, 16)
        w.grad = None
        out = compiled(x, w)
        out.sum().backward()
        kept = (out != 0).double()
        assert 0.4 < kept.mean() < 0.6
        z = x.double() @ w.detach().double()
        exact = x.double().T @ (kept * 6 * torch.cos(z))
        assert error(w.grad, exact) < 1e-5


def test_checkpoint_without_random_numbers() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), nn.GELU()) for _ in range(4)))
    twin = copy.deepcopy(model)

    def run(m: nn.Sequential, x: Tensor) -> Tensor:
        for part in m:
            x = checkpoint(part, x, use_reentrant=False)
        return x

    x = torch.randn(6, 12)
    litz(run, fullgraph=True)(model, x).square().sum().backward()
    run(twin, x).square().sum().backward()
    near([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_generators_are_advanced_as_eager_does() -> None:
    """A ``torch.Generator`` argument is honoured: its own stream, not the default one."""

    def f(x: Tensor, g: torch.Generator) -> Tensor:
        noise = torch.empty_like(x).normal_(generator=g)
        return x + noise * 2

    x = torch.zeros(32)
    compiled = litz(f)
    a, b = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    before = torch.get_rng_state()
    for _ in range(2):
        assert torch.equal(compiled(x, a), f(x, b))
    assert torch.equal(a.get_state(), b.get_state())
    assert torch.equal(before, torch.get_rng_state())


# --- torch.func -----------------------------------------------------------------------------------


def test_vmap_and_grad() -> None:
    model = mlp()
    params = {k: p.detach() for k, p in model.named_parameters()}

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, params, (x[None],)), y[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))
    x, y = batches(1)[0]
    near(litz(per_sample, fullgraph=True)(params, x, y), per_sample(params, x, y))


def test_jacobians() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.softmax(x, -1) * x.sum()

    x = torch.randn(4, 6)
    near([litz(vmap(jacrev(f)))(x)], [vmap(jacrev(f))(x)])


def test_numbers_beside_samples_of_one_element() -> None:
    """functorch promotes the number by a copy of it to the sample's type."""
    x = torch.randn(5, 3)
    fns: list[Callable[[Tensor], Tensor]] = [
        lambda a: (a.sum() - 1) ** 2, lambda a: 2.5 * a.sum(), lambda a: a.sum() / a.shape[0],
        lambda a: a.amax() + True, lambda a: (a * 9).int().sum() + 1.5,
    ]  # fmt: skip
    for f in fns:
        near([litz(vmap(f), fullgraph=True)(x)], [vmap(f)(x)])


# --- what falls back ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_sparse_matrices_run_through_aten() -> None:
    sparse = (torch.randn(6, 6) * (torch.rand(6, 6) > 0.6)).to_sparse()
    x = torch.randn(6, 3)

    def f(m: Tensor, x: Tensor) -> Tensor:
        return torch.relu(m @ x) + 1

    # Dynamo says why in its own log, and gives the backend no graph.
    for m in (sparse, sparse.to_sparse_csr()):
        near([litz(f)(m, x)], [f(m, x)])
        assert all(g.stages.fallback for g in explain(f, m, x).graphs)


def test_sparse_embedding_gradients() -> None:
    embed = nn.Embedding(9, 4, sparse=True)
    twin = copy.deepcopy(embed)
    i = torch.randint(0, 9, (5,))
    litz(lambda i: embed(i) * 2)(i).sum().backward()
    (twin(i) * 2).sum().backward()
    assert embed.weight.grad.is_sparse
    near([embed.weight.grad.to_dense()], [twin.weight.grad.to_dense()])


def test_ragged_batches() -> None:
    parts = [torch.randn(n, 4) for n in (3, 1, 5)]
    ragged = torch.nested.nested_tensor(parts, layout=torch.jagged)

    def f(x: Tensor) -> Tensor:
        return torch.sin(x) * 2

    found = litz(f)(ragged)
    for a, e in zip(found.unbind(), f(ragged).unbind(), strict=True):
        near([a], [e])
    assert "a ragged tensor" in str(explain(f, ragged))


# --- other ways in --------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_exported_programs(dynamic: bool) -> None:
    """An exported program's module is compiled again."""
    model = ConvNet().eval()
    x = torch.randn(4, 3, 12, 12)
    sizes = {"x": {0: torch.export.Dim("batch", min=2)}} if dynamic else None
    module = torch.export.export(model, (x,), dynamic_shapes=sizes).module()
    compiled = litz(module)
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for n in (4, 6) if dynamic else (4,):
            x = torch.randn(n, 3, 12, 12)
            assert_close(compiled(x), model(x), exact(x.double()))


def test_compiled_modules_are_saved_and_loaded(tmp_path: Path) -> None:
    model = litz(mlp())
    x = batches(1)[0][0]
    expected = model(x)
    torch.save(model.state_dict(), tmp_path / "state")
    other = litz(mlp())
    assert not torch.equal(other(x), expected)
    other.load_state_dict(torch.load(tmp_path / "state"))
    assert torch.equal(other(x), expected)


def _trainer_loss(tmp_path: Path, how: str = "") -> tuple[list[float], nn.Module]:
    import transformers as tf

    torch.manual_seed(0)
    config = tf.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = tf.BertForSequenceClassification(config)
    data = [
        {"input_ids": torch.randint(0, 40, (9,)), "labels": torch.tensor(k % 2)} for k in range(12)
    ]
    more = {"torch_compile": True, "torch_compile_backend": "litz"} if how == "argument" else {}
    if how == "module":
        model.compile(backend="litz")
    args = tf.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, logging_steps=1,
        report_to=[], use_cpu=True, save_strategy="no", seed=0, disable_tqdm=True, **more,
    )  # fmt: skip
    trainer = tf.Trainer(model=model, args=args, train_dataset=data)
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row], model


@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="Trainer needs the package accelerate"
)
@pytest.mark.parametrize("how", ["argument", "module"])
def test_trainer(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from litz.tools.accelerate import allow

    monkeypatch.setattr("os.environ", dict(os.environ))  # Trainer leaves its choice there
    counters.clear()
    eager, twin = _trainer_loss(tmp_path)
    assert not counters["stats"]["unique_graphs"]
    allow()
    losses, model = _trainer_loss(tmp_path, how)
    assert counters["stats"]["unique_graphs"]
    assert len(losses) == 3 and losses == pytest.approx(eager, abs=1e-4)
    near(model.state_dict(), twin.state_dict(), 1e-3)


def test_what_trainer_does(tmp_path: Path) -> None:
    """Trainer's loop without its package: a compiled model, clipped gradients, a warm-up."""
    import transformers as tf

    config = tf.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = tf.BertForSequenceClassification(config)
    twin = copy.deepcopy(model)
    rows = [(torch.randint(0, 40, (4, 9)), torch.randint(0, 2, (4,))) for _ in range(3)]

    def run(m: nn.Module, call: Any) -> list[Tensor]:
        optimizer = torch.optim.AdamW(m.parameters(), lr=5e-4)
        scheduler = tf.get_linear_schedule_with_warmup(optimizer, 1, 4)
        losses = []
        for tokens, labels in rows:
            loss = call(input_ids=tokens, labels=labels).loss
            loss.backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            m.zero_grad()
            losses.append(loss.detach())
        return losses

    near(run(model, litz(model)), run(twin, twin), 1e-4)
    near(model.state_dict(), twin.state_dict(), 1e-3)
