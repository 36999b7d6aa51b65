"""Script objects (TorchBind) in graphs: methods and operators that take them, in packages too."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

import litz
from litz.artifact import from_bytes, to_bytes
from litz.binding import bind
from litz.compiler import compile_graph
from litz.errors import PackageError
from litz.options import make_options
from litz.runtime.fake import FakeTensorMode
from litz.runtime.plan import Plan
from litz.runtime.script_objects import Stored, made, stored
from litz.tools.explain import explain
from tests.native import built, called

LIBRARY = Path(torch.__path__[0], "lib", "libtorchbind_test.so")
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="PyTorch without its test classes")

HOSTS = ("native", "python", "fx")


@pytest.fixture(scope="module", autouse=True)
def classes() -> Iterator[None]:
    from torch.testing._internal import torchbind_impls

    torch.ops.load_library(str(LIBRARY))
    torchbind_impls.register_fake_operators()
    torchbind_impls.register_fake_classes()
    logging.disable(logging.WARNING)  # of methods that the fake classes have not
    yield
    logging.disable(logging.NOTSET)


def foo(x: int = 10, y: int = 20) -> Any:
    return torch.classes._TorchScriptTesting._Foo(x, y)


def queue() -> Any:
    return torch.classes._TorchScriptTesting._TensorQueue(torch.full((1,), -1.0))


class Scaled(torch.nn.Module):
    """An object as an attribute: its method, and an operator that takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.foo = foo()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.foo.add_tensor(x).relu() * self.weight
        return torch.ops._TorchScriptTesting.takes_foo(self.foo, y).tanh()


def turned(q: Any, x: torch.Tensor) -> torch.Tensor:
    """Keeps temporaries whose memory others would take over."""
    for n in range(1, 4):
        q.push(x * n)
        x = torch.mm(x, x).relu()
    first = q.pop()
    torch.ops._TorchScriptTesting.queue_push(q, x + 1)
    return first - q.pop() + x


def content(q: Any) -> list[torch.Tensor]:
    return [q.pop() for _ in range(q.size())]


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(fn, backend="litz", fullgraph=True, options=options)


@pytest.mark.parametrize("host", HOSTS)
def test_an_attribute(host: str) -> None:
    module, x = Scaled(), torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module, host=host)(x), module(x))
        calls = explain(module, (x,), {}, {"host": host}).report.graphs[0]
    assert len(calls.steps) > 3 and not calls.host, calls


@pytest.mark.parametrize("options", [{"host": h} for h in HOSTS] + [{"verify": True}])
def test_an_argument_that_keeps_tensors(options: dict[str, Any]) -> None:
    ours, eagers, x = queue(), queue(), torch.randn(8, 8)
    for _ in range(2):
        out, wanted = compiled(turned, **options)(ours, x), turned(eagers, x)
        torch.testing.assert_close(out, wanted)
    left, right = content(ours), content(eagers)
    assert len(left) == len(right) == 4
    torch.testing.assert_close(left, right)


def test_calls_whose_result_nobody_reads() -> None:
    def fn(q: Any, x: torch.Tensor) -> torch.Tensor:
        q.push(x)
        q.push(x + 1)
        q.pop()
        torch.ops._TorchScriptTesting.queue_pop(q)
        q.push(x)
        q.push(x)
        return x * 2

    ours, x = queue(), torch.randn(3)
    compiled(fn)(ours, x)
    assert [bool(torch.equal(kept, x)) for kept in content(ours)] == [True, True]


def test_equal_layers() -> None:
    module, x = torch.nn.Sequential(*(Scaled() for _ in range(4))), torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module)(x), module(x))


# --- kept ------------------------------------------------------------------------------------


def test_objects_as_data() -> None:
    q, x = queue(), torch.randn(2, 3)
    q.push(x)
    data, wanted = stored(q), [x.clone()]
    made(data).pop().zero_()  # in memory of its own
    torch.testing.assert_close(content(made(data)), wanted)
    with pytest.raises(RuntimeError, match="not known"):
        made(Stored("__torch__.torch.classes.nobody.Has", 1))


@pytest.mark.filterwarnings("ignore")
def test_states_that_are_no_data() -> None:
    weight = torch.quantize_per_tensor(torch.randn(8, 16), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    with pytest.raises(ValueError, match="no plain data"):
        stored(packed)


def test_an_artifact() -> None:
    """A constant of a graph: the live object here, a copy behind bytes."""
    graph = torch.fx.Graph()
    x, held = graph.placeholder("x"), graph.get_attr("foo")
    call = graph.call_function(torch.ops.higher_order.call_torchbind, (held, "add_tensor", x))
    graph.output((call,))
    object_ = foo(1, 2)
    gm = GraphModule({"foo": object_}, graph)
    with FakeTensorMode():
        for n in (x, call):
            n.meta["val"] = torch.empty(3)
    artifact = compile_graph(gm, make_options({}))
    assert isinstance(artifact.host.plan, Plan), artifact.host.plan
    near, far = bind(artifact), bind(from_bytes(to_bytes(artifact)))
    object_.increment(5)
    ones = torch.ones(3)
    assert torch.equal(near([ones])[0], ones * 13)
    assert torch.equal(far([ones])[0], ones * 3)


def test_a_package(tmp_path: Path) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scaled, self.kept = Scaled(), queue()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.push(x * 2)
            return self.scaled(x) + self.kept.pop()

    module, x = Counting(), torch.randn(4)
    module.kept.push(torch.zeros(4))
    program = torch.export.export(module, (x,), strict=False)
    litz.package(program, tmp_path / "p.litz")
    loaded, other = litz.load(tmp_path / "p.litz"), litz.load(tmp_path / "p.litz")
    with torch.no_grad():
        wanted = [module(x) for _ in range(2)]
    torch.testing.assert_close([loaded(x), loaded(x)], wanted)
    torch.testing.assert_close(other(x), wanted[0])


def test_an_argument_of_a_package(tmp_path: Path) -> None:
    class Turned(torch.nn.Module):
        def forward(self, q: Any, x: torch.Tensor) -> torch.Tensor:
            return turned(q, x)

    x = torch.randn(8, 8)
    program = torch.export.export(Turned(), (queue(), x), strict=False)
    litz.package(program, tmp_path / "p.litz")
    loaded, ours, eagers = litz.load(tmp_path / "p.litz"), queue(), queue()
    torch.testing.assert_close(loaded(ours, x), turned(eagers, x))
    torch.testing.assert_close(content(ours), content(eagers))
    with pytest.raises(PackageError, match=r"the input q is a .*\._Foo, not a .*\._TensorQueue"):
        loaded(foo(), x)
    with pytest.raises(PackageError, match="the input q is a Tensor, not a "):
        loaded(x, x)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_a_package_from_cpp(tmp_path: Path) -> None:
    program = torch.export.export(Scaled(), (torch.randn(4),), strict=False)
    litz.package(program, tmp_path / "p.litz")
    (tmp_path / "x").write_bytes(bytes(16))
    done = called(built(tmp_path), tmp_path / "p.litz", f"float32:4:{tmp_path}/x")
    assert "the program holds a script object: it needs Python" in done.stderr


def test_what_is_not_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(Scaled(), (torch.randn(4),), strict=False)

    def refuse(x: object) -> Stored:
        raise ValueError("it has no __getstate__")

    monkeypatch.setattr("litz.tools.exported.stored", refuse)
    with pytest.raises(PackageError, match="foo cannot be packaged: it has no"):
        litz.package(program, tmp_path / "p.litz")
