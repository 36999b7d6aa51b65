"""What stands between Dynamo and a compiled graph: nothing that has nothing to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad

from litz.backend import compile_with
from litz.options import make_options

X = torch.arange(12.0).view(3, 4)


def frames_of_aot(call: Callable[[], Any]) -> set[str]:
    """The functions of AOTAutograd that a call runs."""
    return frames_in("_functorch/_aot_autograd/runtime_wrappers", call)


def frames_of_litz(call: Callable[[], Any]) -> set[str]:
    return frames_in("/litz/", call)


def frames_in(part: str, call: Callable[[], Any]) -> set[str]:
    """The functions that a call runs of files with that part in their names."""
    found = set()

    def seen(frame: Any, event: str, _: Any) -> None:
        if event == "call" and part in frame.f_code.co_filename.replace("\\", "/"):
            found.add(frame.f_code.co_name)

    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def kinds_of(
    fn: Callable[..., Any], *args: Any, dynamic: bool = False, **options: Any
) -> tuple[list[str], Callable[..., Any]]:
    """The kinds of graphs that Litz was told to compile, and what it made."""
    kinds: list[str] = []

    def backend(gm: Any, inputs: Any) -> Any:
        def tell(kind: str, graph: Any, stages: Any) -> None:
            kinds.append(f"{kind}: {stages.fallback}")

        return compile_with(gm, inputs, make_options(options, None), tell)

    torch._dynamo.reset()
    made = torch.compile(fn, backend=backend, dynamic=dynamic)
    wanted, got = fn(*(a.clone() for a in args)), made(*args)
    torch.testing.assert_close(got, wanted)
    return kinds, made


@pytest.mark.parametrize("times", [1, 2])  # compiled, and from the cache
def test_graphs_without_gradients_are_called_past_idle_wrappers(times: int, tmp_path: Any) -> None:
    options = {"cache_dir": str(tmp_path)}
    for _ in range(times):
        torch._dynamo.reset()
        made = torch.compile(lambda x: x.exp() * 2, backend="litz", options=options)
        made(X)
    if frames_of_aot(lambda: made(X)):  # another PyTorch's wrappers
        assert torch.__version__ > "2.14"
    result = made(X)
    assert not result.requires_grad and torch.is_grad_enabled()
    with torch.no_grad():
        torch.testing.assert_close(made(X), X.exp() * 2)
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("times", [1, 2])  # compiled, and from the cache
def test_training_is_called_past_idle_wrappers(times: int, tmp_path: Any) -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x * w).exp()
        return y.square().mean(), y.detach() + x.shape[0], y.sum(0)

    options = {"cache_dir": str(tmp_path)}
    for _ in range(times):
        torch._dynamo.reset()
        made = torch.compile(loss, backend="litz", options=options, dynamic=False)
        x, w = X.clone().requires_grad_(), torch.ones(4, requires_grad=True)
        trained(made, x, w)
    got = trained(made, x, w)
    if frames_of_aot(lambda: trained(made, x, w)):  # another PyTorch's wrappers
        assert torch.__version__ > "2.14"
    torch.testing.assert_close(got, trained(loss, x, w))
    value, apart, rows = made(x, w)
    assert not apart.requires_grad and "CompiledFunction" in value.grad_fn.name()
    # Laid out otherwise than the backward graph was compiled for.
    (grad,) = torch.autograd.grad(rows.sum(), w, retain_graph=True)
    torch.testing.assert_close(grad, torch.autograd.grad(loss(x, w)[2].sum(), w)[0])
    torch.autograd.grad(value, w, retain_graph=True)
    (grad,) = torch.autograd.grad(value, w, create_graph=True)
    (eager,) = torch.autograd.grad(loss(x, w)[0], w, create_graph=True)
    for a, b in zip(
        torch.autograd.grad(grad.sum(), (x, w)),
        torch.autograd.grad(eager.sum(), (x, w)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    torch.autograd.grad(value, w)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, w)
    value, *_ = made(x, w)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("contiguous", [True, False])
def test_saved_tensors_are_unpacked_once(contiguous: bool) -> None:
    """Checkpointing raises where hooks ask again; gradients may lie otherwise than expected."""
    made = torch.compile(lambda x: (x.sigmoid() * x).exp(), backend="litz", dynamic=False)
    x = X.clone().requires_grad_()
    given = torch.ones_like(x) if contiguous else torch.ones(()).expand_as(x)
    packed: list[torch.Tensor] = []
    unpacked: list[torch.Tensor] = []

    def keep(into: list[torch.Tensor], saved: torch.Tensor) -> torch.Tensor:
        into.append(saved)
        return saved

    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(
            partial(keep, packed), partial(keep, unpacked)
        ):
            result = made(x)
        result.backward(given)
    assert packed and len(unpacked) == len(packed)


def trained(fn: Callable[..., Any], *leaves: torch.Tensor) -> list[torch.Tensor]:
    """Results of a function and the gradients of its first one."""
    results = fn(*leaves)
    return [*results, *torch.autograd.grad(results[0], leaves)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (x * w, w[0]),  # a view
        lambda x, w: x.detach() * w,  # no gradient for an argument
        lambda x, w: x.mul_(2) * w,  # written
    ],
)
def test_wrappers_of_training_with_something_to_do_are_called(fn: Callable[..., Any]) -> None:
    x, w = X.clone().requires_grad_(), torch.ones(4, requires_grad=True)
    made = torch.compile(fn, backend="litz", dynamic=False)

    def step(fn: Callable[..., Any] = made) -> Any:
        found = torch.utils._pytree.tree_leaves(fn(x * 1, w))[0]
        return torch.autograd.grad(found.sum(), [x, w], allow_unused=True)

    for _ in range(2):
        torch.testing.assert_close(step(), step(fn))
    assert "runtime_wrapper" in frames_of_aot(step)


def test_an_error_leaves_gradients_on() -> None:
    made = torch.compile(lambda x, i: x[i] + 1, backend="litz", dynamic=False)
    made(X, torch.tensor([0, 2]))
    with pytest.raises(Exception, match="(?i)index"):
        made(X, torch.tensor([0, 9]))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.exp(), x[0]),  # a view
        lambda x: x.mul_(1),  # written
    ],
)
def test_wrappers_with_something_to_do_are_called(fn: Callable[..., Any]) -> None:
    _, made = kinds_of(fn, X.clone())
    assert "runtime_wrapper" in frames_of_aot(lambda: made(X.clone()))


@pytest.mark.parametrize(
    ("fn", "alone"),
    [
        (lambda x: x.t(), True),
        (lambda x: (x.view(-1), x[1:], x.chunk(2, 1)), True),
        (lambda x: x.contiguous(), True),
        (lambda x: torch.dropout(x, 0.0, True), True),
        (lambda x: x.t().contiguous(), False),
        (lambda x: x.t().add_(1), False),
        (lambda x: (x[0], x + 1), False),
        (lambda x: torch.ones(3), False),
        (lambda x: torch._foreach_add_([x], 1.0), False),
    ],
)
def test_views_alone_are_left_to_eager_mode(fn: Callable[..., Any], alone: bool) -> None:
    kinds, made = kinds_of(lambda x: fn(x), X.clone())
    assert (kinds == ["eager: it makes views alone"]) == alone
    if alone:
        leaf = X.clone().requires_grad_()
        first, *_ = torch.utils._pytree.tree_leaves(made(leaf))
        assert first.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr()
        first.sum().backward()
        assert leaf.grad is not None


def test_what_writes_into_an_argument_is_not_run_to_find_it() -> None:
    """It makes a tensor inside, which only the trace's mode makes fake."""
    x, out = torch.eye(2) * 4, torch.empty(2, 2)
    kinds, _ = kinds_of(lambda x, out: torch.linalg.inv(x, out=out), x, out)
    assert kinds == ["inference: "]
    assert torch.equal(out, torch.eye(2) / 4)


@pytest.mark.parametrize("times", [1, 2])  # compiled, and from the cache
def test_one_call_of_aten_is_made_by_dynamos_graph(times: int, tmp_path: Any) -> None:
    options = {"cache_dir": str(tmp_path), "check_calls": False}
    x = X[:, :3].contiguous() + torch.eye(3)
    for _ in range(times):
        torch._dynamo.reset()
        made = torch.compile(torch.linalg.det, backend="litz", options=options)
        torch.testing.assert_close(made(x), torch.linalg.det(x))
    assert not frames_of_litz(lambda: made(x))
    several = torch.compile(lambda x: torch.linalg.eigh(x), backend="litz", options=options)
    torch.testing.assert_close(several(x @ x.t()), torch.linalg.eigh(x @ x.t()))
    assert not frames_of_litz(lambda: several(x @ x.t()))
    # Nor is the level of forward-mode AD looked at, which eager mode heeds.
    whole = torch.compile(lambda x: torch.complex(x, x), backend="litz", options=options)
    torch.testing.assert_close(whole(x), torch.complex(x, x))
    assert not frames_of_litz(lambda: whole(x))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert forward_ad.unpack_dual(whole(dual)).tangent is not None
    two = torch.compile(lambda x: torch.linalg.det(x) + 1, backend="litz", options=options)
    torch.testing.assert_close(two(x), torch.linalg.det(x) + 1)
    assert frames_of_litz(lambda: two(x))


@pytest.mark.parametrize(
    ("fn", "size", "options", "work"),
    [
        (lambda x: x.exp(), 4, {}, "1"),
        (lambda x: x.exp().sum(), 4, {}, "2"),
        (lambda x: x.exp(), 96, {}, "2.1"),
        (lambda x: x.exp().sum(), 96, {}, ""),
        (lambda x: torch._foreach_exp([x] * 9)[0], 64, {}, ""),
        (lambda x: x.sigmoid() * x + 1, 4, {}, ""),
        (lambda x: torch.dropout(x, 1e-9, True), 4, {}, ""),  # its numbers are Litz's
        (lambda x: x.exp(), 4, {"dynamic": True}, ""),
        (lambda x: x.exp(), 4, {"check_calls": True}, ""),
    ],
)
def test_small_training_steps_run_in_eager_mode(
    fn: Callable[..., Any], size: int, options: dict[str, Any], work: str
) -> None:
    x = torch.randn(size, size).requires_grad_()
    kinds, made = kinds_of(lambda x: fn(x), x.exp(), **{"check_calls": False, **options})
    reason = f"eager: its calls' work, {work}, is less than that of an autograd function, 3"
    assert (kinds == [reason]) if work else (kinds[0] == "forward: ")
    (grad,) = torch.autograd.grad(made(x).sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(fn(x).sum(), x)[0])
