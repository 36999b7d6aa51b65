"""``as_strided``, ``set_`` and their kind: what they address is memory as eager lays it out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from judge import check
from torch import Tensor

import litz
from tests.quick import some

torch.manual_seed(0)


def windows(x: Tensor) -> Tensor:
    """Overlapping windows, as sliding attention makes them."""
    y = (x * 2).contiguous()
    return torch.as_strided(y, (3, 4, y.shape[1]), (2 * y.shape[1], y.shape[1], 1)) + 1


CASES: dict[str, Callable[[Tensor], object]] = {
    "permuted": lambda x: torch.as_strided(x.t() * 2, (12,), (2,), 3) + 0.5,
    "sliced": lambda x: torch.as_strided((x * 2)[2:], (12,), (1,), 0),
    "sliced at its own offset": lambda x: torch.as_strided((x * 2)[2:], (12,), (1,)),
    "through views": lambda x: torch.as_strided(
        (x.t() * 2)[1:].unsqueeze(0).chunk(2, 2)[1], (2, 5), (1, 3), 4
    ),
    "of a sum": lambda x: torch.as_strided(x.sum(0, keepdim=True) * 2, (3, 2), (1, 2)),
    "twice": lambda x: torch.as_strided(torch.as_strided(x * 2, (4, 3), (3, 1)), (6,), (2,), 1) + 1,
    "windows": windows,
    "scattered": lambda x: torch.as_strided_scatter(x.t() * 2, x[:2, :3].exp(), (2, 3), (7, 2), 5),
    "scattered into a slice": lambda x: torch.as_strided_scatter(
        (x * 2)[1:4], x[0, :4], (4,), (3,), 1
    ),
    "scattered over all": lambda x: torch.as_strided_scatter(x.t() * 2, x.sin(), (8, 6), (1, 8), 0),
    "copied": lambda x: torch.as_strided_copy(x.t() * 2, (5,), (3,), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_computed_values(name: str) -> None:
    check(lambda x: CASES[name](x), torch.randn(8, 6))
    check(lambda x: CASES[name](x), torch.randn(6, 8).t())


@pytest.mark.parametrize("name", ["permuted", "sliced", "windows", "twice"])
def test_gradients(name: str) -> None:
    check(lambda x: CASES[name](x), torch.randn(8, 6, requires_grad=True), grad=True)


def test_inputs_keep_their_own_storage() -> None:
    big = torch.randn(40)
    view = big[10:22].view(3, 4)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.as_strided(x[1:], (4,), (2,), 1) + 1, torch.as_strided(x * 1, (4,), (2,), 1)

    compiled = torch.compile(f, backend="litz", options={"verify": True})
    for a, e in zip(compiled(view), f(view), strict=True):
        assert torch.equal(a, e)


@pytest.mark.parametrize("keep", [False, True])
def test_global_pooling_trains(keep: bool) -> None:
    """ATen's average over the last dimensions ends in ``as_strided``."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = F.adaptive_avg_pool1d(F.layer_norm(x, (8,)).transpose(1, 2), 1)
        return y * w if keep else torch.flatten(y, 1) @ w

    x = torch.randn(2, 5, 8, requires_grad=True)
    check(f, x, torch.randn(8, 1 if keep else 3, requires_grad=True), grad=True)
    found = litz.explain(f, x, torch.randn(8, 1 if keep else 3))
    assert not any("as_strided" in e.op for e in found.externs)


def test_symbolic_sizes() -> None:
    def f(x: Tensor) -> Tensor:
        y = (x * 2)[1:]
        return torch.as_strided(y, (y.shape[0], 2), (y.shape[1], 1), 1) + x.sum()

    check(f, torch.randn(7, 5), dynamic=True)
    check(f, torch.randn(9, 6), dynamic=True)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("strides", [(3, 3), (1, 5), (6, 2)])
def test_view_as_another_type_of_what_has_gaps(grad: bool, strides: tuple[int, int]) -> None:
    """In memory of one width, a value is replaced by itself as an integer."""

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, y.view(torch.int32).copy_(y)

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", fullgraph=True)
    base = torch.randn(400) * 4
    x = torch.randn(3, requires_grad=grad)
    results, memory = [], []
    for f in (fn, compiled):
        memory.append(base.clone())
        y = memory[-1].as_strided((40, 1) if strides == (3, 3) else (5, 3), strides, 16)
        results.append(f(x, y)[1])
    assert torch.equal(*results) and results[0].stride() == results[1].stride()
    assert torch.equal(*(m.view(torch.int32) for m in memory))


def test_a_copy_of_what_has_gaps_lives_as_long_as_its_views() -> None:
    """The memory of what a view is taken of is not given to the next such copy."""

    def gapped(x: Tensor) -> Tensor:
        return torch.empty_strided((256, 256), (260, 1)).copy_(x).view(torch.int16)

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        v = gapped(-x)
        return v + gapped(x * 5 + v[:, :256]), v.clone()

    def written(x: Tensor, y: Tensor) -> Tensor:
        v = y.copy_(-x).view(torch.int16)
        return v + gapped(x * 5 + v[:, :256])

    torch._dynamo.reset()
    x, y = torch.randn(256, 256), torch.zeros(256 * 260).as_strided((256, 256), (260, 1))
    assert all(map(torch.equal, torch.compile(fn, backend="litz")(x), fn(x)))
    assert torch.equal(torch.compile(written, backend="litz")(x, y), written(x, y))


def of_a_value(x: Tensor, n: int) -> tuple[Tensor, ...]:
    y = x.sin()
    v = y[3:].view(-1, n)
    return y, v, v @ v.mT


SYMBOLIC: dict[str, Callable[[Tensor, int], Tensor | tuple[Tensor, ...]]] = {
    "product": lambda x, n: (x.reshape(-1, n), x.reshape(-1, n) @ x.reshape(-1, n).mT),
    "sort": lambda x, n: (x.view(n, -1), x.view(n, -1).sort(0)[1]),
    "of a piece": lambda x, n: (x[3:].view(-1, n).t(), x[3:].view(-1, n).cumsum(0)),
    "as another type": lambda x, n: x.view(-1, n).view(torch.int32),
    "complex": lambda x, n: torch.view_as_complex(x[: 4 * n].view(-1, n, 2)),
    "of a value": of_a_value,
}


PIECES = ((16, 15, 3), (4, 27, 6), (0, 15, 3))
WHOLE = ((16, 12, 3), (4, 36, 6), (0, 12, 3))
SIZES = {name: PIECES if name.startswith("of a") else WHOLE for name in SYMBOLIC}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", some(SYMBOLIC, 3))
def test_returned_views_of_symbolic_sizes(name: str, grad: bool) -> None:
    """They lie where eager has them, whoever wanted them in memory besides."""
    torch._dynamo.reset()
    fn = SYMBOLIC[name]
    compiled = torch.compile(fn, backend="litz", dynamic=True, fullgraph=True)
    for at, size, n in SIZES[name]:
        x = torch.arange(100.0)[at : at + size].requires_grad_(grad)
        sides = [(out if isinstance(out, tuple) else (out,)) for out in (compiled(x, n), fn(x, n))]
        for actual, eager in zip(*sides, strict=True):
            torch.testing.assert_close(actual, eager)
            assert actual.storage_offset() == eager.storage_offset()
            assert actual.stride() == eager.stride()
        whose = [[_lie_together(a, x) for a in out] for out in sides]
        within = [[_lie_together(a, out[0]) for a in out] for out in sides]
        assert (whose[0], within[0]) == (whose[1], within[1])


def _lie_together(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_view_strides_of_a_size_that_became_one() -> None:
    """A saved view of products is what the backward was compiled for."""

    def f(s: Tensor, c: Tensor) -> Tensor:
        return torch.einsum("bclhn,bchpn->bclhp", c, s.transpose(1, 2).sin()[:, :-1])

    compiled = torch.compile(f, backend="litz", dynamic=True)
    for n in (3, 2, 4):
        args = [torch.randn(2, 2, n, 3, 4), torch.randn(2, n - 1, 4, 2, 4)]
        own = [[a.clone().requires_grad_() for a in args] for _ in range(2)]
        for fn, leaves in zip((compiled, f), own, strict=True):
            fn(*leaves).sum().backward()
        for actual, eager in zip(*own, strict=True):
            torch.testing.assert_close(actual.grad, eager.grad)


def test_a_copy_of_a_view_stays_one() -> None:
    """The value that it was taken of has been overwritten since."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        v = y.view(-1)
        below, across = v.sort()[0], y.sort(0)[0]
        z = y.index_add(0, torch.tensor([0]), torch.ones(1, x.shape[1]) * 100)
        return v * v.sin(), v, below, across, z

    for dynamic in (False, True):
        check(f, torch.randn(2, 3), dynamic=dynamic, judge=False)
        x = torch.randn(2, 3, requires_grad=True)
        check(f, x, dynamic=dynamic, judge=False, grad=True)


NEGATED: dict[str, Callable[[Tensor], Tensor]] = {
    "imaginary part": lambda z: z.conj().imag + 0,
    "returned": lambda z: z.conj().imag,
    "of a value": lambda z: (z * 2).conj().imag * 2,
    "itself": lambda z: torch._neg_view(z.real).view(2, 2).sum(0),
    "written": lambda z: z.clone().conj().imag.mul_(3) + 1,
}


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", NEGATED)
def test_lazily_negated_views(name: str, verify: bool) -> None:
    """Their memory holds other numbers than they do."""
    z = torch.randn(4, dtype=torch.complex64)
    check(lambda z: NEGATED[name](z), z, judge=False, verify=verify)


def test_arguments_that_are_lazily_negated() -> None:
    z = torch.randn(4, dtype=torch.complex64)
    compiled = torch.compile(lambda x: (x * 2, x.sum(), x), backend="litz")
    for x in (z.conj().imag, z.imag, z.conj().imag):
        for actual, eager in zip(compiled(x), (x * 2, x.sum(), x), strict=True):
            torch.testing.assert_close(actual, eager)


def test_what_becomes_the_memory_of_an_argument_is_its_own() -> None:
    """Assigned ``data`` of averaged weights, which the program goes on to read."""

    def step(k: Tensor, q: Tensor, x: Tensor) -> Tensor:
        k.data = k.data * 0.9 + q * 0.1
        return (x @ k).sin().softmax(-1) @ k.t()

    results = []
    for run in (torch.compile(step, backend="litz"), step):
        k, q, x = (torch.linspace(-1, 1, 72).view(6, 12).roll(i).clone() for i in range(3))
        for _ in range(2):
            out = run(k, q, x[:, :6])
        results.append((k, out))
        assert k.untyped_storage().nbytes() == 4 * 72
    torch.testing.assert_close(*results)
