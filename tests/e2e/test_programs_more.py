"""More of what whole programs do: other optimizers, transforms, control flow, generation."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
from e2e.test_programs import batches, litz, mlp, near
from torch import Tensor, nn
from torch.func import functional_call, hessian, jvp, stack_module_state, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import checkpoint as ckpt

from litz.errors import LitzError, SecondGradientError
from tests.quick import some


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


# --- optimizers and schedules ---------------------------------------------------------------------

OPTIMIZERS = ("Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop", "Adafactor", "Muon")


@pytest.mark.parametrize("name", some(OPTIMIZERS, 3))
def test_other_optimizers(name: str) -> None:
    make = getattr(torch.optim, name, None)
    if make is None:
        pytest.skip(f"this torch has no {name}")

    def run(compiled: bool) -> nn.Module:
        torch.manual_seed(0)
        model = mlp()
        matrices = [p for p in model.parameters() if name != "Muon" or p.ndim == 2]
        optimizer = make(matrices, lr=1e-2)
        step = litz(optimizer.step) if compiled else optimizer.step
        for x, y in batches(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            step()
        return model

    near(run(True).state_dict(), run(False).state_dict(), 1e-4)


def test_an_optimizer_that_calls_the_model() -> None:
    def run(compiled: bool) -> nn.Module:
        torch.manual_seed(0)
        model = mlp()
        call = litz(model) if compiled else model
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        x, y = batches(1)[0]

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(call(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        return model

    near(run(True).state_dict(), run(False).state_dict(), 1e-3)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
    ],
)
def test_schedules_of_a_tensor_rate(make: Callable[[Any], Any]) -> None:
    """The rate is a tensor: it changes without another compilation."""

    def run(compiled: bool) -> nn.Module:
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))
        schedule = make(optimizer)
        step = litz(optimizer.step) if compiled else optimizer.step
        for x, y in batches(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            step()
            schedule.step()
        return model

    near(run(True).state_dict(), run(False).state_dict(), 1e-4)


# --- checkpoints ----------------------------------------------------------------------------------


def gradients(f: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
    own = [a.detach().clone().requires_grad_() for a in args]
    f(*own).sum().backward()
    return [a.grad for a in own]


def test_selective_checkpoints() -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> ckpt.CheckpointPolicy:
        kept = op == torch.ops.aten.mm.default
        return getattr(ckpt.CheckpointPolicy, "MUST_SAVE" if kept else "PREFER_RECOMPUTE")

    contexts = partial(ckpt.create_selective_checkpoint_contexts, policy)

    def block(x: Tensor, w: Tensor) -> Tensor:
        return torch.sigmoid((x @ w).relu() @ w)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return ckpt.checkpoint(block, x, w, use_reentrant=False, context_fn=contexts)

    x, w = torch.randn(6, 6), torch.randn(6, 6)
    near(gradients(litz(f, fullgraph=True), x, w), gradients(f, x, w))


def test_reentrant_checkpoints() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)))

    def f(x: Tensor) -> Tensor:
        return ckpt.checkpoint_sequential(model, 2, x, use_reentrant=True)

    x = torch.randn(3, 6)
    near(gradients(litz(f), x), gradients(f, x))


# --- transforms and hand-written gradients --------------------------------------------------------


def test_transforms_of_transforms() -> None:
    def f(x: Tensor) -> Tensor:
        return (x.sin() * x.cumsum(0)).sum()

    x = torch.randn(5)
    near([litz(hessian(f))(x)], [hessian(f)(x)])

    def forward(x: Tensor) -> Any:
        return jvp(f, (x,), (x * 2,))

    near(litz(forward)(x), forward(x))


def test_an_ensemble() -> None:
    models = [mlp() for _ in range(3)]
    params, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0])

    def f(params: Any, buffers: Any, x: Tensor) -> Tensor:
        def one(p: Any, b: Any) -> Tensor:
            return functional_call(base, (p, b), (x,))

        return vmap(one)(params, buffers)

    x = torch.randn(2, 12)
    near([litz(f, fullgraph=True)(params, buffers, x)], [torch.stack([m(x) for m in models])])


class Cubed(torch.autograd.Function):
    """A gradient by hand, which is not the function's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.k = k
        return x**3 * k

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return g * x * ctx.k * 7, None


def test_gradients_by_hand() -> None:
    def f(x: Tensor) -> Tensor:
        return Cubed.apply(x, 2.0) + 1

    x = torch.randn(4)
    near(gradients(litz(f, fullgraph=True), x), [14 * x])


def test_compiled_autograd() -> None:
    model = mlp()
    twin = copy.deepcopy(model)
    x = batches(1)[0][0]
    twin(x).square().sum().backward()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="litz")):
        litz(model)(x).square().sum().backward()
    near([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


# --- control flow, sequences, generation ----------------------------------------------------------


def test_branches_and_loops_of_the_graph() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,)) + 1

    compiled = litz(f, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        near([compiled(x)], [f(x)])

    def g(x: Tensor) -> Tensor:
        for _, row in zip(range(3), (y * 2 for y in x.unbind(0)), strict=False):
            x = x + row
        return x

    near([litz(g, fullgraph=True)(torch.ones(3, 2))], [g(torch.ones(3, 2))])


def test_a_generator_function() -> None:
    def steps(x: Tensor) -> Iterator[Tensor]:
        for k in range(3):
            x = torch.tanh(x) * k + 1
            yield x

    x = torch.randn(4)
    near(list(litz(steps)(x)), list(steps(x)))


def test_packed_sequences() -> None:
    model = nn.LSTM(4, 6, batch_first=True)

    def f(x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(model(packed)[0], batch_first=True)[0]

    x, lengths = torch.randn(3, 5, 4), torch.tensor([5, 2, 3])
    near([litz(f)(x, lengths)], [f(x, lengths)])


def test_a_saved_export_is_compiled_again() -> None:
    model = mlp()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.randn(4, 12),), dynamic_shapes=({0: batch},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    for p in (loaded, loaded.run_decompositions()):
        compiled = litz(p.module())
        for rows in (4, 7):
            x = torch.randn(rows, 12)
            near([compiled(x)], [model(x)])


@pytest.mark.parametrize("cache", some(["dynamic", "static"], 1))
def test_generation(cache: str) -> None:
    import transformers as tf

    config = tf.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=0,
        eos_token_id=49,
    )  # fmt: skip
    model = tf.GPT2LMHeadModel(config).eval()
    tokens = torch.randint(1, 48, (2, 5))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, **options)
    if cache == "static":
        model.generation_config.cache_implementation = "static"
    model.forward = litz(model.forward, dynamic=cache == "dynamic" or None)
    assert torch.equal(model.generate(tokens, **options), expected)


def test_what_goes_from_operator_to_operator_may_have_another_shape() -> None:
    """The metadata of a bag of 16-bit rows is wrong about a list that its gradient takes."""

    def fn(w: Tensor, scale: Tensor) -> Tensor:
        at, offsets = torch.tensor([1, 7, 2, 7, 3]), torch.tensor([0, 3])
        return F.embedding_bag(at, w * 2, offsets, mode="sum", per_sample_weights=scale).float()

    torch.manual_seed(0)
    w = torch.randn(10, 5, dtype=torch.bfloat16, requires_grad=True)
    scale = torch.randn(5, dtype=torch.bfloat16, requires_grad=True)
    compiled = torch.compile(fn, backend="litz", fullgraph=True)
    mine = torch.autograd.grad(compiled(w, scale).sin().sum(), (w, scale))
    theirs = torch.autograd.grad(fn(w, scale).sin().sum(), (w, scale))
    for m, t in zip(mine, theirs, strict=True):
        torch.testing.assert_close(m, t)


def _written_windows(x: Tensor, size: int, step: int) -> Tensor:
    windows = x.unfold(1, size, step).transpose(0, 1)
    windows *= 3
    windows[0] = -1
    return x


IMAGE = torch.randint(256, (2, 3, 270, 270), dtype=torch.uint8)
COMPLEX = torch.randn(5, 5, dtype=torch.complex64)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.linalg.pinv(x) @ x,
        lambda x: torch.pinverse(x).imag,
        lambda x: x.pinverse().real,
        lambda x: torch.linalg.matrix_rank(x.real, out=torch.empty((), dtype=torch.int64)),
        lambda x: (x.real.abs() + 1).polygamma_(1),
        lambda x: torch.quantize_per_tensor(x.real, 0.1, 0, torch.qint8).dequantize().t(),
        lambda x: F.multilabel_margin_loss(x.real, torch.tensor([[3, 0, -1, 1, 2]] * 5)),
        lambda x: F.interpolate(IMAGE, (130, 130), mode="bilinear"),
        lambda x: F.interpolate(IMAGE, (130, 130), None, "bicubic"),
        lambda x: F.interpolate(IMAGE, (33, 33), mode="bilinear", antialias=True),
        lambda x: _written_windows(x.real.clone(), 2, 2),
        lambda x: _written_windows(x.real.clone(), 1, 2),
    ],
)
def test_what_is_traced_wrongly_runs_in_eager_mode(fn: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(fn, backend="litz", fullgraph=True)
    torch.testing.assert_close(compiled(COMPLEX), fn(COMPLEX))


def test_gradients_that_pytorch_cannot_trace_are_eager_modes() -> None:
    """Of antialiased bicubic images of open sizes: its metadata of them takes numbers alone."""

    def fn(image: Tensor, like: Tensor) -> Tensor:
        return F.interpolate(image, like.shape[-2:], mode="bicubic", antialias=True) + like

    compiled = torch.compile(fn, backend="litz", fullgraph=True, dynamic=True)
    image = torch.randn(1, 2, 4, 4, requires_grad=True)
    for like in (torch.randn(1, 2, 7, 6), torch.randn(1, 2, 3, 9)):
        found, expected = compiled(image, like), fn(image, like)
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(found)
        grads = [torch.autograd.grad(out, image, weight) for out in (found, expected)]
        torch.testing.assert_close(*grads)


def test_forward_mode_keeps_its_tangents() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.sin() * x

    def tangent(fn: Callable[[Tensor], Tensor]) -> Tensor | None:
        with fwd.dual_level():
            return fwd.unpack_dual(fn(fwd.make_dual(x.detach(), t))).tangent

    x, t = torch.randn(2, 5, dtype=torch.float64)
    x.requires_grad_()
    compiled = torch.compile(fn, backend="litz", fullgraph=True)
    result = compiled(x)
    compiled(x.detach())  # nothing that was compiled outside of the level serves in it
    torch.testing.assert_close(tangent(compiled), tangent(fn))
    torch.testing.assert_close(compiled(x.detach()), fn(x.detach()))
    with fwd.dual_level():
        with pytest.raises(LitzError, match="call the function in the dual level too"):
            torch.autograd.grad(result, x, fwd.make_dual(t, t), retain_graph=True)
        (mine,) = torch.autograd.grad(result, x, t)
    torch.testing.assert_close(mine, torch.autograd.grad(fn(x), x, t)[0])


def test_gradients_of_a_batch_at_once() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w).sin() * 2

    def gradients(fn: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        y, nested = fn(x, w), torch._vmap_internals._vmap  # as a jacobian of a jacobian has it
        twice = nested(
            lambda a: nested(lambda b: torch.autograd.grad(y, w, a * b, retain_graph=True))(v)
        )
        some = torch.autograd.grad(y, (x, w), v, is_grads_batched=True, retain_graph=True)
        jacobian = torch.autograd.functional.jacobian(fn, (x, w), vectorize=True)
        return (*some, *jacobian, *twice(v[:2]))

    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    v = torch.randn(6, 3, 5, dtype=torch.float64)
    compiled = torch.compile(fn, backend="litz", fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(fn))


# --- gradients of gradients -----------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradient_penalties(dynamic: bool, tmp_path: Path) -> None:
    """Compiled and from the cache, at the first call and past idle wrappers, to the third order."""

    def fn(x: Tensor, w: Tensor, n: int) -> tuple[Tensor, int, Tensor]:
        y = torch.tanh(x @ w).exp()
        return y.sum() * n, n + 1, y.detach() * 2

    def gradients(fn: Callable[..., Any], rows: int) -> tuple[Tensor, ...]:
        x = given[:rows].clone().requires_grad_()
        h = (x * 2).relu()  # is not kept for its gradient alone
        value = fn(h, w, rows)[0]
        (first,) = torch.autograd.grad(value, h, create_graph=True)
        penalty = (first.norm(dim=1) - 1).square().mean() + value.square()
        second = torch.autograd.grad(penalty, (x, w), create_graph=True)
        third = torch.autograd.grad(second[1].square().sum(), (x, w))
        return penalty.detach(), *[t.detach() for t in second], *third

    given = torch.randn(60, 40, dtype=torch.float64)
    w = torch.randn(40, 30, dtype=torch.float64, requires_grad=True)
    options = {"cache_dir": str(tmp_path)}
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend="litz", dynamic=dynamic, options=options)
        for rows in (50, 50, 60):
            torch.testing.assert_close(gradients(compiled, rows), gradients(fn, rows))


@pytest.mark.parametrize("case", ["random", "gone", "written"])
def test_what_cannot_run_again_says_so(case: str) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = F.dropout(x.sin()) if case == "random" else x.sin()
        return (z * x).exp() + y

    x = torch.randn(50, 40, requires_grad=True)
    y = torch.randn(50, 40)
    compiled = torch.compile(fn, backend="litz", options={"check_ir": True})
    state = torch.get_rng_state()
    for _ in range(2):
        own = y.clone()
        value = compiled(x, own).sum()
        if case == "written":
            own.zero_()
        if case == "gone":
            del own
        (grad,) = torch.autograd.grad(value, x, create_graph=True)
        if case == "random":
            state = torch.get_rng_state()
        with pytest.raises(SecondGradientError, match={"gone": "in memory"}.get(case, case)):
            grad.sum().backward()
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("case", ["function", "cast", "gone", "writes"])
def test_second_gradients_that_would_be_missed_in_silence(case: str) -> None:
    """Autograd functions are traced without their gradients; nobody may go by what is gone."""

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * ctx.saved_tensors[0]

    def fn(x: Tensor) -> Tensor:
        if case == "writes":
            count.add_(1)
        return Exp.apply(x) * 2 if case == "function" else x.tanh().exp().sum(1)

    count = torch.zeros(3)

    x = torch.randn(50, 40, requires_grad=True)
    compiled = torch.compile(fn, backend="litz")
    for _ in range(2):
        with torch.autocast("cpu", enabled=case == "cast"):
            value = compiled(x * 2 if case == "gone" else x).sum()
        with pytest.raises(SecondGradientError):
            (grad,) = torch.autograd.grad(value, x, create_graph=True)
            torch.autograd.grad(value + grad.square().sum(), x)


@pytest.mark.parametrize("cast", [False, True])
def test_gradients_of_what_keeps_statistics(cast: bool) -> None:
    """Operators that refuse statistics that want gradients; casts are not those of who asks."""
    layers = nn.Linear(20, 20), nn.BatchNorm1d(20), nn.Tanh()
    model = nn.Sequential(*layers).double().eval()
    x = torch.randn(30, 20, dtype=torch.float64, requires_grad=True)

    def gradient(fn: Callable[..., Any]) -> Tensor:
        (grad,) = torch.autograd.grad(fn(x).square().sum(), x, create_graph=True)
        penalty = grad.square().sum()
        with torch.autocast("cpu", enabled=cast and fn is not model):
            return torch.autograd.grad(penalty, x)[0]

    torch.testing.assert_close(gradient(torch.compile(model, backend="litz")), gradient(model))


def test_nobody_asks_for_gradients_of_gradients() -> None:
    class Constant(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:
            return None

    x = torch.randn(50, 40, requires_grad=True)
    value = torch.compile(lambda x: x.tanh().exp(), backend="litz")(x).square().sum()
    (grad,) = torch.autograd.grad(value, x, create_graph=True)
    (Constant.apply(grad).sum() + x.sum()).backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones_like(x))


def test_statistics_are_not_counted_again() -> None:
    """A program that writes its buffers is refused, and they stay as they are."""
    model = nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20), nn.Tanh())
    compiled = torch.compile(model, backend="litz")
    x = torch.randn(30, 20, requires_grad=True)
    (grad,) = torch.autograd.grad(compiled(x).square().sum(), x, create_graph=True)
    with pytest.raises(SecondGradientError, match="writes into"):
        grad.sum().backward()
    assert model[1].num_batches_tracked == 1
