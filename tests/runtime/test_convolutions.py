"""Convolutions by libraries: which way is taken, and what cuDNN is told, without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.runtime import cudnn
from litz.runtime.cache import Cache
from litz.runtime.convolutions import (
    Apart,
    Call,
    Convolution,
    Convolutions,
    Images,
    convolution,
    problem_of,
)
from litz.runtime.cublaslt import Gpu
from litz.runtime.instance import Instance

Tensor = torch.Tensor
HOW: dict[str, Any] = {"stride": [2, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 2}


def images(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    gen = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=gen)
    return x.to(dtype).to(memory_format=torch.channels_last)


def given(what: str = "sba", dtype: torch.dtype = torch.bfloat16) -> Images:
    x, w = images(3, 8, 7, 6, dtype=dtype), images(16, 4, 3, 3, dtype=dtype)
    out = images(3, 16, 4, 6, dtype=dtype)
    rows = torch.float32 if "s" in what else dtype
    scale = torch.rand(16) + 0.5 if "s" in what else None
    bias = torch.randn(16).to(rows) if "b" in what else None
    return Images(x, w, out, scale, bias, images(3, 16, 4, 6, dtype=dtype) if "a" in what else None)


def exact(o: Images, epilogue: str) -> Tensor:
    y = F.conv2d(o.image.double(), o.weight.double(), None, **HOW)
    row = (1, -1, 1, 1)
    y = y if o.scale is None else y * o.scale.double().view(row)
    y = y if o.bias is None else y + o.bias.double().view(row)
    y = y if o.added is None else y + o.added.double()
    return y.relu() if epilogue else y


@pytest.mark.parametrize("epilogue", ["", "relu"])
@pytest.mark.parametrize("what", ["", "b", "s", "ba", "sba"])
def test_aten_computes_all_of_it(what: str, epilogue: str) -> None:
    o = given(what)
    kind = {k: v for k, v in o.operands.items() if k not in ("image", "weight")}
    found = convolution(o.image, o.weight, **kind, **HOW, epilogue=epilogue)
    assert found is o.out
    wanted = exact(o, epilogue)
    assert (found.double() - wanted).norm() <= 0.01 * wanted.norm()


class Ways:
    """A library whose ways compute the same; those of odd names take nan for zero."""

    version = "ways 1"

    def __init__(self, count: int = 4) -> None:
        self.names = [str(k) for k in range(1, count + 1)]
        self.bound: list[str] = []

    def instances(self, problem: Convolution, most: int) -> Sequence[Instance]:
        return [Instance(self.version, k) for k in self.names[:most]]

    def told(self, problem: Convolution) -> None:
        return None

    def bind(self, problem: Convolution, instance: Instance) -> Call:
        self.bound.append(instance.what)
        plain = Apart().bind(problem, Instance(""))
        if instance.what == "4":
            raise RuntimeError("there is no such way")

        def call(o: Images) -> None:
            plain(o)
            if int(instance.what) % 2:
                o.out.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)

        return call


def test_the_first_way_that_keeps_nan_is_taken_and_kept(tmp_path: Path) -> None:
    o, ways = given("b"), Ways()

    def made() -> Convolutions:
        return Convolutions(lambda _: (Apart(), ways), Cache(tmp_path), 0.0, lambda _: Wall())

    first = made()
    for mark in (torch.nan, torch.inf):
        x = o.image.clone()
        x[1, 2, 3, 4] = mark
        first.convolution(x, o.weight, out=o.out, bias=o.bias, **HOW, epilogue="relu")
        wanted = exact(Images(x, o.weight, o.out, None, o.bias), "relu")
        assert torch.equal(o.out.isnan(), wanted.isnan())
    assert ways.bound == ["1", "2", "2"] and [x.instance.what for x in first.chosen.values()] == [
        "2"
    ]
    ways.bound.clear()
    made().convolution(o.image, o.weight, out=o.out, bias=o.bias, **HOW, epilogue="relu")
    assert ways.bound == ["2"]  # nothing is tried again
    packaged = Convolutions(
        lambda _: (Apart(), ways), None, 0.0, lambda _: Wall(), dict(first.chosen)
    )
    packaged.convolution(o.image, o.weight, out=o.out, bias=o.bias, **HOW, epilogue="relu")
    assert ways.bound == ["2", "2"]


def test_without_a_way_that_keeps_nan_aten_computes_it(tmp_path: Path) -> None:
    o, ways = given("ba"), Ways(1)
    made = Convolutions(lambda _: (Apart(), ways), Cache(tmp_path), 0.0, lambda _: Wall())
    kind = {"bias": o.bias, "added": o.added}
    made.convolution(o.image, o.weight, out=o.out, **kind, **HOW, epilogue="relu")  # type: ignore[arg-type]
    assert {x.instance.library for x in made.chosen.values()} == {Apart.version}
    wanted = exact(o, "relu")
    assert (o.out.double() - wanted).norm() <= 0.01 * wanted.norm()


def test_a_way_that_cannot_be_bound_is_atens_and_no_elements_are_marked(tmp_path: Path) -> None:
    o, ways = given("b"), Ways(1)
    ways.names = ["2"]
    kind = {"bias": o.bias, **HOW, "epilogue": "relu"}
    made = Convolutions(lambda _: (Apart(), ways), Cache(tmp_path), 0.0, lambda _: Wall())
    made.convolution(o.image, o.weight, out=o.out, **kind)
    (key,) = made.chosen
    made.chosen[key] = replace(made.chosen[key], instance=Instance(ways.version, "4"))
    made.bound.clear()
    o.out.fill_(torch.nan)
    made.convolution(o.image, o.weight, out=o.out, **kind)
    wanted = exact(Images(o.image, o.weight, o.out, None, o.bias), "relu")
    assert (o.out.double() - wanted).norm() <= 0.01 * wanted.norm()
    ways.names = []  # as a library that takes no empty tensors
    made.convolution(o.image[:0], o.weight, out=o.out[:0], **kind)


def test_without_cudnn_aten_computes_it(tmp_path: Path) -> None:
    o, ways = given("b"), Ways()
    made = Convolutions(lambda _: (Apart(), ways), Cache(tmp_path), 0.0, lambda _: Wall())
    with torch.backends.cudnn.flags(enabled=False):
        made.convolution(o.image, o.weight, out=o.out, bias=o.bias, **HOW)
    assert not ways.bound


class Wall:
    device_name = "wall"

    def now(self) -> float:
        return 0.0

    def measure(self, run: Any, times: int) -> list[float]:
        raise AssertionError("nothing is measured")


# --- what cuDNN is told ---------------------------------------------------------------------------


class Paper:
    """A cuDNN that computes nothing, and keeps what it is told."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[int, dict[int, list[Any]]]] = {}
        self.gone: list[int] = []
        self.ran: list[tuple[int, int]] = []
        self.notes = [[0], [5], [4], [0, 2]]

        class Version:
            restype: Any = None

            def __call__(self) -> int:
                return 91900

        self.cudnnGetVersion = Version()

    def cudnnCreate(self, at: Any) -> int:  # noqa: N802
        at._obj.value = 7
        return 0

    def cudnnSetStream(self, handle: Any, stream: Any) -> int:  # noqa: N802
        assert (handle.value, stream.value) == (7, 9)
        return 0

    def cudnnBackendCreateDescriptor(self, kind: Any, at: Any) -> int:  # noqa: N802
        at._obj.value = len(self.made) + 1
        self.made[at._obj.value] = kind.value, {}
        return 0

    def cudnnBackendSetAttribute(self, what: Any, name: Any, of: Any, count: Any, held: Any) -> int:  # noqa: N802
        assert len(held) == count.value
        self.made[what.value][1][name.value] = list(held)
        return 0

    def cudnnBackendGetAttribute(  # noqa: N802
        self, what: Any, name: Any, of: Any, most: Any, count: Any, held: Any
    ) -> int:
        kind, told = self.made[what.value]
        values: list[Any] = []
        if name.value == 202:  # ways, whose engines are numbered
            for k, way in enumerate(list(held)[: len(self.notes)]):
                self.made[way][1][0] = [k]
                values.append(way)
        elif name.value == 300:
            self.made[held[0]][1][0] = told[0]
            values = [held[0]]
        elif name.value == 1301:
            values = told[0]
        elif name.value == 1303:
            values = self.notes[told[0][0]]
        elif name.value == 302:
            values = [held[0]]
        elif name.value in (600, 601):
            values = [name.value - 500]
        elif name.value == 402:
            values = [1024]
        for k, v in enumerate(values):
            held[k] = v
        count._obj.value = len(values)
        return 0

    def cudnnBackendFinalize(self, what: Any) -> int:  # noqa: N802
        return 0

    def cudnnBackendDestroyDescriptor(self, what: Any) -> int:  # noqa: N802
        self.gone.append(what.value)
        return 0

    def cudnnBackendExecute(self, handle: Any, plan: Any, given: Any) -> int:  # noqa: N802
        self.ran.append((plan.value, given.value))
        return 0

    def of(self, kind: str) -> list[dict[int, list[Any]]]:
        return [told for number, told in self.made.values() if number == cudnn.KINDS[kind]]


class Nowhere(Gpu):
    def current(self) -> Any:
        return nullcontext()

    def stream(self) -> int:
        return 9

    def records(self) -> bool:
        return False


class Recorded(Nowhere):
    def records(self) -> bool:
        return True


def test_a_convolution_is_told_as_a_graph() -> None:
    paper = Paper()
    library, o = cudnn.Cudnn(paper, Nowhere(0)), given()
    p = problem_of(o, **HOW, epilogue="relu")
    found = library.instances(p, 8)
    # Transforms are left out.
    assert [x.what for x in found] == ["0 100=101", "2 100=101", "3 100=101"]
    assert library.version == found[0].library == "cudnn 91900"
    (how,), steps = paper.of("convolution"), paper.of("pointwise")
    assert (how[103], how[104], how[105]) == ([2, 1], [1, 1], [1, 1])
    assert [s[0] for s in steps] == [[cudnn.MUL], [cudnn.ADD], [cudnn.ADD], [cudnn.RELU]]
    tensors = {t[906][0]: t for t in paper.of("tensor")}
    out = tensors[cudnn.NUMBERS["out"]]
    assert (out[902], out[903], out[901]) == ([3, 16, 4, 6], [384, 1, 96, 16], [9])
    assert tensors[cudnn.NUMBERS["scale"]][902] == [1, 16, 1, 1]
    between = [t for t in tensors.values() if t[907] == [True]]
    assert len(between) == 4 and all(t[901] == [cudnn.SINGLE] for t in between)


def test_sums_have_one_order_where_that_is_asked_for() -> None:
    library, o = cudnn.Cudnn(Paper(), Nowhere(0)), given()
    torch.use_deterministic_algorithms(True)
    try:
        p = problem_of(o, **HOW, epilogue="relu")
    finally:
        torch.use_deterministic_algorithms(False)
    assert [x.what[0] for x in library.instances(p, 8)] == ["0", "3"]


def test_a_call_hands_over_where_tensors_are() -> None:
    paper = Paper()
    library, o = cudnn.Cudnn(paper, Nowhere(0)), given("b")
    p = problem_of(o, **HOW, epilogue="relu")
    library.bind(p, Instance(library.version, "5 2=3"))(o)
    assert paper.ran and paper.of("engine")[0][1301] == [5] and paper.of("knob")[0][601] == [3]
    (pack,) = paper.of("given")
    at = dict(zip(pack[1000], pack[1001], strict=True))
    assert at == {cudnn.NUMBERS[k]: x.data_ptr() for k, x in o.operands.items()}
    assert {*paper.gone} == {*paper.made}  # nothing stays


def test_graphs_keep_the_plans_that_they_run() -> None:
    paper = Paper()
    library, o = cudnn.Cudnn(paper, Nowhere(0)), given("b")
    p, way = problem_of(o, **HOW, epilogue="relu"), Instance("", "5")
    bound = library.bind(p, way)
    library._gpu = Recorded(0)
    with pytest.raises(RuntimeError, match="recorded"):
        library.bind(p, way)
    bound(o)
    plan = bound.plan.value
    del bound
    assert paper.ran[0][0] == plan and plan not in paper.gone


def test_what_it_cannot_take() -> None:
    library, o = cudnn.Cudnn(Paper(), Nowhere(0)), given("b")
    assert library.instances(problem_of(o, **HOW), 8)
    single = given("b", torch.float32)
    assert not library.instances(problem_of(single, **HOW), 8)
    turned = Images(o.image.contiguous(), o.weight, o.out, None, o.bias)
    assert not library.instances(problem_of(turned, **HOW), 8)


def test_statuses_say_whether_there_is_none_or_it_fails() -> None:
    paper = Paper()
    library, p = cudnn.Cudnn(paper, Nowhere(0)), problem_of(given(), **HOW)
    paper.cudnnBackendFinalize = lambda what: 3001  # type: ignore[method-assign]
    assert not library.instances(p, 8)
    paper.cudnnBackendFinalize = lambda what: 5000  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="5000"):
        library.instances(p, 8)
    assert ctypes.sizeof(cudnn.HELD[cudnn.BOOL]) == 1
