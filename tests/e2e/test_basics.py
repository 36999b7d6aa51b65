"""torch.compile(backend="litz") end to end: elementwise graphs, views, mutation, aliasing."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import tomllib
import torch
import torch._dynamo.backends.registry as registry
from judge import check

import litz.entry
from litz.runtime.shipped import shipped

torch.manual_seed(0)


def r(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape).to(dtype).requires_grad_(grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (64, 48), (3, 5, 17)])
def test_elementwise_chain(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check(
        lambda x, y: (torch.sigmoid(x) * y + 1, (x - y).abs().sqrt()),
        r(*shape, dtype=dtype),
        r(*shape, dtype=dtype),
    )


def test_broadcasting() -> None:
    check(lambda x, y, z: x * y + z, r(8, 1, 5), r(3, 1), r(5))


def test_transposed_operands() -> None:
    check(lambda x, y: x + y.t(), r(50, 70), r(70, 50))
    check(lambda x, y: (x.transpose(0, 1) * y).permute(2, 0, 1) + 1, r(4, 5, 6), r(5, 4, 6))


def test_views_of_computed_values() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        a = y.view(2, 3, 8).transpose(1, 2).reshape(16, 3)
        return a + 1, y[1:, ::2] - 1, y.view(-1)[3:].neg()

    check(f, r(6, 8))


def test_integer_arithmetic() -> None:
    a = torch.randint(-50, 50, (33,))
    b = torch.randint(1, 9, (33,))
    check(
        lambda x, y: (x // y, x % y, x & y, x << 2, torch.div(x, y, rounding_mode="trunc"), x / y),
        a,
        b,
    )


def test_mixed_types() -> None:
    x, i = r(20), torch.randint(0, 5, (20,))
    check(
        lambda x, i: (x + i, x > i, torch.where(i > 2, x, 0.0), x.to(torch.float64) * 3),
        x,
        i,
        judge=False,
    )


def test_input_mutation() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y[1:].add_(x[:-1])
        return x + y

    check(f, r(9, 4), r(9, 4))


def test_result_is_old_value_of_mutated_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        old = x.clone()
        x.add_(1)
        return old

    check(f, r(10))


def test_swap_inputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        t = x.clone()
        x.copy_(y)
        y.copy_(t)

    check(f, r(10), r(10))


def test_mutation_through_flipped_view() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.copy_(x.flip(0))
        return x

    check(f, r(17, 3))


def test_outputs_alias_inputs() -> None:
    x = r(6, 4)
    compiled = torch.compile(lambda x: (x.view(4, 6), x.t(), x + 1), backend="litz")
    a, b, c = compiled(x)
    assert a.data_ptr() == x.data_ptr() == b.data_ptr() != c.data_ptr()
    assert b.stride() == x.t().stride()


def test_outputs_alias_each_other() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y.t()

    compiled = torch.compile(f, backend="litz")
    a, b = compiled(r(5, 6))
    assert a.data_ptr() == b.data_ptr()
    a.zero_()
    assert not b.any()


def test_empty_and_scalar() -> None:
    check(lambda x: (x + 1, x.sum()), r(0, 4))
    check(lambda x, y: x * y, r(4, 4), torch.tensor(3.0))


def test_nothing_with_strides_of_zero() -> None:
    """Memory of no elements is not written to, though every stride is that of an expanded dim."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x.expand(3, 0, 5, 7), None, None, training=True)

    x = torch.ones(1, 1, 1)
    got, wanted = torch.compile(f, backend="litz", fullgraph=True)(x), f(x)
    assert (got.shape, got.stride()) == (wanted.shape, wanted.stride())
    assert wanted.stride() == (0, 0, 0, 0)


def test_reductions_to_empty_results() -> None:
    check(lambda x: (x.mean((-1, -2), True), x.amax(2), x.var(1)), r(0, 8, 5))
    check(lambda x: torch.nn.functional.adaptive_avg_pool1d(x, 5), r(0, 8, 8))
    check(lambda x: torch.nn.functional.glu(x, 1), r(0, 8), judge=False)


def test_gradients() -> None:
    check(lambda x, y: (x * y).tanh() + x.exp(), r(8, 5, grad=True), r(8, 5, grad=True), grad=True)
    check(lambda x, w: torch.relu(x @ w).sum(1), r(8, 5, grad=True), r(5, 3, grad=True), grad=True)


def test_threads_that_compile_first_at_once_find_the_backend() -> None:
    """PyTorch loads and registers in each; those that wait for the import come second."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    ((group, named),) = project["entry-points"].items()
    for threads in (1, 2):
        loaded = [EntryPoint("litz", named["litz"], group).load() for _ in range(threads)]
        for backend in loaded:
            registry.register_backend(backend, name="litz")
    assert registry.lookup_backend("litz") is litz.entry.litz


def test_dynamic_shapes_compile_once() -> None:
    graphs = 0

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        nonlocal graphs
        graphs += 1
        from litz.entry import litz

        return litz(gm, inputs)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y + 1).transpose(0, 1).reshape(-1)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend=backend, dynamic=True)
    for n, m in ((3, 4), (17, 5), (64, 33), (2, 100)):
        x, y = r(n, m), r(n, m)
        assert torch.equal(compiled(x, y), f(x, y))
    assert graphs == 1


def test_graph_break_and_python_state() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    compiled = torch.compile(f, backend="litz")
    for x in (torch.ones(5), -torch.ones(5)):
        assert torch.equal(compiled(x), f(x))


def test_complex_goes_to_aten() -> None:
    x = torch.randn(6, dtype=torch.complex64)
    compiled = torch.compile(lambda x: (x * 2, torch.view_as_real(x) + 1, x.abs()), backend="litz")
    for a, e in zip(compiled(x), (x * 2, torch.view_as_real(x) + 1, x.abs()), strict=False):
        assert torch.allclose(a, e)


def test_constant_tensors_survive_calls() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, torch.tensor([1.0, 2.0, 3.0]), x).cumsum(0)

    compiled = torch.compile(f, backend="litz")
    x = torch.tensor([-1.0, 1.0, 2.0])
    for _ in range(3):
        assert torch.equal(compiled(x), f(x))


def test_as_strided_of_computed_values() -> None:
    """It looks at memory, so the values before it must lie where eager puts them."""
    x, y = r(12, 10)[1::2, ::3].t(), r(6).expand(4, 6)
    check(lambda x, y: (x + y).as_strided((3, 2), (2, 5), 1) * 2, x, y)
    check(lambda x: (x + 1)[1:].as_strided((3, 2), (1, 4)) * 2, r(4, 6))
    check(lambda x: (x + 1).as_strided((3, 2), (1, 4), 2) * 2, r(5, 6), dynamic=True)


def test_a_size_from_data_that_metadata_fixes() -> None:
    """The gradient of what fills indices counts each once; PyTorch 2.11 says that there is one."""

    def fn(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.index_fill(x, -1, torch.tensor([2, 1, 4, 2, 2]), value)

    x, value = torch.randn(5, 5), torch.randn((), requires_grad=True)
    weights = torch.randn(5, 5)
    (mine,) = torch.autograd.grad(torch.compile(fn, backend="litz")(x, value), value, weights)
    (eager,) = torch.autograd.grad(fn(x, value), value, weights)
    torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("jobs", [1, 3])
def test_as_many_sources_as_compilers_may_run(jobs: int, tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (((x.sin() @ x).cos() @ x).tanh() @ x).exp()

    torch._dynamo.reset()
    options = {"jobs": jobs, "cache_dir": str(tmp_path)}
    x = torch.rand(5, 5)
    torch.testing.assert_close(torch.compile(fn, backend="litz", options=options)(x), fn(x))
    runtime = shipped() is None  # else nothing is left to build of it
    assert len(list(tmp_path.glob("v1/cpp/*/*.cpp"))) == jobs + runtime
