"""Users' operators that write arguments: as eager calls them, in place where nothing can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz

Tensor = torch.Tensor


@torch.library.custom_op("litz_test::add_", mutates_args={"x"})
def add_(x: Tensor, k: float) -> None:
    x.add_(k)


@torch.library.custom_op("litz_test::scaled", mutates_args={"x", "y"})
def scaled(x: Tensor, y: Tensor, *, by: int = 2) -> Tensor:
    x.mul_(by)
    y.add_(x.sum().to(y.dtype))
    return x + 1


@scaled.register_fake
def _(x: Tensor, y: Tensor, *, by: int = 2) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("litz_test::add_other_", mutates_args={"x"})
def add_other_(x: Tensor, other: Tensor, again: Tensor | None = None) -> None:
    x.mul_(2)
    x.add_(other)
    if again is not None:
        x.add_(again)


@torch.library.custom_op("litz_test::fill_", mutates_args={"xs"})
def fill_(xs: list[Tensor], value: float) -> None:
    for i, x in enumerate(xs):
        x.fill_(value + i)


@torch.library.custom_op("litz_test::optional_", mutates_args={"x", "y"})
def optional_(x: Tensor, y: Tensor | None = None) -> None:
    x.neg_()
    if y is not None:
        y.neg_()


@torch.library.custom_op("litz_test::strided_", mutates_args={"x"})
def strided_(x: Tensor, weights: Tensor) -> None:
    """Looks at the memory itself: strides count."""
    x.as_strided((x.numel(),), (1,), x.storage_offset()).add_(float(weights.stride(0)))


def temporary(x: Tensor) -> Any:
    y = x * 2
    add_(y, 1.5)
    return y.sin()


def twice(x: Tensor) -> Any:
    y = x * 2
    before = y.sin()
    add_(y, 1.5)
    between = y + before
    add_(y, -0.25)
    return between, y


def an_old_value(x: Tensor) -> Any:
    y = x * 2
    old = y.clone()
    add_(y, 1.5)
    return old, y, old * y


def an_input(x: Tensor) -> Any:
    add_(x, 1.5)
    return x.cos()


def an_input_twice(x: Tensor) -> Any:
    a = x.sin()
    add_(x, 1.5)
    b = x.sin()
    add_(x[1], 2.0)
    return a, b, x * 2


def views(x: Tensor) -> Any:
    y = x + 1
    add_(y[1:], 1.5)
    add_(y[:, 2], 10.0)
    add_(y.t()[3:], 100.0)
    return y, y.sum(0)


def views_of_an_input(x: Tensor) -> Any:
    add_(x[1:3], 1.5)
    add_(x.t()[1:], 7.0)
    return x + 1


def diagonal(x: Tensor) -> Any:
    y = x + 1
    add_(y.diagonal(), 5.0)
    return y


def two_views_of_one(x: Tensor) -> Any:
    y = x + 1
    out = scaled(y[:2], y[2:])
    return out, y


def results(x: Tensor) -> Any:
    y, z = x + 1, x - 1
    out = scaled(y, z, by=3)
    return out * y, z


def a_list(x: Tensor) -> Any:
    y, z = x + 1, x.new_empty(5)
    fill_([y[0], z], 3.0)
    return y, z


def optional(x: Tensor) -> Any:
    y, z = x + 1, x + 2
    optional_(y)
    optional_(z, y)
    return y, z


def of_itself(x: Tensor) -> Any:
    y = x + 1
    add_other_(y, y)
    return y


def of_its_copy(x: Tensor) -> Any:
    y = x + 1
    add_other_(y, y.clone(), again=y)
    return y


def of_an_input_itself(x: Tensor) -> Any:
    add_other_(x, x)
    return x + 1


def expanded(x: Tensor) -> Any:
    y = x[:1].clone()
    add_other_(y, x[1:2])
    return y.expand(3, -1), x * y


def by_strides(x: Tensor) -> Any:
    y = (x + 1).t()
    strided_(y, (x * 2).t())
    return y


def integers(x: Tensor) -> Any:
    y = x.to(torch.int64)
    optional_(y)
    z = x.half()
    add_(z, 0.5)
    return y, z, y + z


def complexes(x: Tensor) -> Any:
    y = torch.complex(x, x + 1)
    add_(y, 3)
    return y.real + 1, y


def unread(x: Tensor) -> Any:
    y = torch.empty_like(x)
    fill_([y], 2.0)
    return y + x


# PyTorch 2.11 runs such a call without its optional argument in eager mode only.
OPTIONAL = (optional, integers) if torch.__version__ >= "2.12" else ()
PROGRAMS = (
    temporary, twice, an_old_value, an_input, an_input_twice, views, views_of_an_input, diagonal,
    two_views_of_one, results, a_list, of_itself, of_its_copy, of_an_input_itself, expanded,
    by_strides, complexes, unread, *OPTIONAL,
)  # fmt: skip


def check(fn: Callable[[Tensor], Any], dynamic: bool = False, **options: Any) -> None:
    x = torch.arange(20.0).reshape(4, 5) / 7
    mine, theirs = x.clone(), x.clone()
    compiled = torch.compile(
        fn, backend="litz", fullgraph=True, dynamic=dynamic, options={"check_ir": True, **options}
    )
    got, want = compiled(mine), fn(theirs)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    flat, wanted = (r if isinstance(r, tuple) else (r,) for r in (got, want))
    assert [r.stride() for r in flat] == [r.stride() for r in wanted]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_as_eager(fn: Callable[[Tensor], Any], dynamic: bool) -> None:
    check(fn, dynamic)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_no_graph_goes_to_aten_for_it(fn: Callable[[Tensor], Any]) -> None:
    for sizes in ((), (0, 1)):
        x = torch.ones(4, 5)
        for dim in sizes:
            torch._dynamo.maybe_mark_dynamic(x, dim)
        (graph,) = litz.explain(fn, x).graphs
        assert not graph.stages.fallback


@pytest.mark.parametrize(
    ("fn", "kernels"),
    [(temporary, 2), (an_input, 1), (views, 2), (views_of_an_input, 1), (unread, 1)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_nothing_is_copied(fn: Callable[[Tensor], Any], kernels: int) -> None:
    """Loop nests compute what the program says, and none copies."""
    (graph,) = litz.explain(fn, torch.ones(4, 5)).graphs
    assert graph.stages.program is not None
    assert len(graph.stages.kernels) == kernels


def test_in_training() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        scale = w.detach().abs()
        add_(scale, 1.0)
        y = (x @ w).relu() * scale.mean()
        noise = torch.zeros_like(y)
        add_(noise, 0.5)
        return (y + noise).sin().sum()

    x, w = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    v = w.detach().clone().requires_grad_()
    torch.compile(fn, backend="litz", fullgraph=True)(x, w).backward()
    fn(x, v).backward()
    torch.testing.assert_close(w.grad, v.grad)


def test_the_older_wrapper() -> None:
    """Programs that were exported hold ``auto_functionalized``."""

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y, z = x + 1, x * 2
            fill_([y, z[0]], 3.0)
            add_(x, 2.0)
            return y + z, x.sin()

    x = torch.randn(4, 5)
    exported = torch.export.export(Model(), (x.clone(),)).run_decompositions({})
    assert "auto_functionalized" in exported.graph_module.code
    mine, theirs = x.clone(), x.clone()
    got = torch.compile(exported.module(), backend="litz", fullgraph=True)(mine)
    torch.testing.assert_close(got, Model()(theirs))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("tag", ["out", "inplace"])
def test_tagged_operators(tag: str) -> None:
    if not hasattr(torch.Tag, tag):
        pytest.skip(f"torch {torch.__version__} has no tag {tag}")
    with torch.library._scoped_library("litz_tagged", "DEF") as lib:
        tags = (getattr(torch.Tag, tag),)
        if tag == "out":
            schema = "double(Tensor x, *, Tensor(a!) out) -> Tensor(a!)"

            def body(x: Tensor, *, out: Tensor) -> Tensor:
                return out.copy_(x * 2)
        else:
            schema = "double(Tensor(a!) x) -> Tensor(a!)"

            def body(x: Tensor) -> Tensor:  # type: ignore[misc]
                return x.mul_(2)

        lib.define(schema, tags=tags)
        lib.impl("double", body, "CompositeExplicitAutograd")
        lib.impl("double", body, "Meta")
        op = torch.ops.litz_tagged.double.default

        def fn(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x + 1
            z = op(x, out=y) if tag == "out" else op(y)
            return z.sin(), y

        x = torch.randn(4, 5)
        got = torch.compile(fn, backend="litz", fullgraph=True)(x)
        torch.testing.assert_close(got, fn(x))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("begin", [0, 2], ids=lambda n: f"from_{n}")
@pytest.mark.parametrize("offset", [0, 6, 15])
def test_a_part_of_an_argument_that_begins_behind_its_memory(
    offset: int, begin: int, dynamic: bool
) -> None:
    """Rows of a view: in which rows of the view they lie, not of the memory."""

    def fn(x: Tensor) -> Tensor:
        add_(x[begin : begin + 2], 1.0)
        return x[:3] * 2

    torch._dynamo.reset()
    mine, theirs = torch.zeros(60), torch.zeros(60)
    args = [m.as_strided((8, 3), (3, 1), offset) for m in (mine, theirs)]
    got = torch.compile(fn, backend="litz", fullgraph=True, dynamic=dynamic)(args[0])
    torch.testing.assert_close(got, fn(args[1]), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("before", ["nothing", "row", "all", "filled"])
@pytest.mark.parametrize("rows", ["slice", "diagonal"])
def test_a_part_of_an_argument_that_was_written_before(
    rows: str, before: str, dynamic: bool
) -> None:
    """Of the argument's memory in eager; the graph has a new value, in memory of its own."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        if before == "row":
            x[1] *= 2
        elif before == "all":
            x.mul_(2)
        elif before == "filled":
            torch.add(y, 1, out=x)
        add_(x[1:3] if rows == "slice" else x.diagonal(1), 1.0)
        z = y * 2
        add_(z[1:4], 1.0)
        return x[:3] - z[:3]

    torch._dynamo.reset()
    memory = torch.arange(60.0)
    mine, theirs = memory.clone(), memory.clone()
    (x, y), (u, v) = (
        [m.as_strided((8, 3), (3, 1), 6), m[30:54].view(8, 3)] for m in (mine, theirs)
    )
    got = torch.compile(fn, backend="litz", fullgraph=True, dynamic=dynamic)(x, y.clone())
    torch.testing.assert_close(got, fn(u, v.clone()), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
