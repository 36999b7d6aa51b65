"""Products by libraries: which way is chosen and kept, and what cuBLASLt is told, without a GPU."""

from __future__ import annotations

import ctypes
import glob
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from litz.runtime import cublaslt
from litz.runtime.cache import Cache
from litz.runtime.products import (
    EPILOGUES,
    Aten,
    Call,
    Instance,
    Library,
    Operands,
    Problem,
    Products,
    problem_of,
    product,
)

Tensor = torch.Tensor


def given(
    m: int = 8, n: int = 16, k: int = 24, dtype: torch.dtype = torch.bfloat16, added: str = "row"
) -> Operands:
    gen = torch.Generator().manual_seed(0)
    rand = lambda *shape: torch.randn(*shape, generator=gen).to(dtype)  # noqa: E731
    rows = {"row": (n,), "whole": (m, n), "": None}[added]
    bias = None if rows is None else rand(*rows)
    return Operands(rand(m, k), rand(n, k).t(), bias, torch.empty(m, n, dtype=dtype))


def problem(o: Operands, epilogue: str = "", beta: float = 1, alpha: float = 1) -> Problem:
    return problem_of(o, beta, alpha, epilogue)


def exact(o: Operands, epilogue: str, beta: float = 1, alpha: float = 1) -> Tensor:
    value = alpha * (o.left.double() @ o.right.double())
    value = value if o.added is None else value + beta * o.added.double()
    if epilogue == "gelu_backward":
        assert o.aux is not None
        x = o.aux.double()
        return torch.ops.aten.gelu_backward(value, x, approximate="tanh")  # type: ignore[no-any-return]
    if epilogue == "gelu":
        return torch.nn.functional.gelu(value, approximate="tanh")
    return value.relu() if epilogue else value


# --- ATen, and the function that host programs name -----------------------------------------------


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("added", ["", "row", "whole"])
@pytest.mark.parametrize("batches", [False, True])
def test_aten_is_a_library(epilogue: str, added: str, batches: bool) -> None:
    o = given(added=added)
    if batches:
        left, right, out = (x.expand(3, *x.shape).contiguous() for x in (o.left, o.right, o.out))
        o = Operands(left, right, o.added, out)
    numbers = {"beta": 0.5, "alpha": 2.0} if added == "whole" else {"beta": 1.0, "alpha": 1.0}
    if epilogue.startswith("gelu"):
        o = replace(o, aux=torch.randn(o.out.shape).to(o.out.dtype))
    found = product(o.left, o.right, o.added, out=o.out, epilogue=epilogue, aux=o.aux, **numbers)
    assert found is o.out
    wanted = exact(o, epilogue, **numbers)
    assert (found.double() - wanted).norm() <= 0.01 * wanted.norm()
    if epilogue == "gelu" and o.aux is not None:
        wanted = exact(o, "", **numbers)
        assert (o.aux.double() - wanted).norm() <= 0.01 * wanted.norm()


def test_a_factor_counts_before_the_sum_is_rounded() -> None:
    left, right = (torch.full((8, 8), 200.0, dtype=torch.float16) for _ in range(2))
    for batches in ((), (2,)):
        a, b = left.expand(*batches, 8, 8), right.expand(*batches, 8, 8)
        out = torch.full(a.shape, torch.nan, dtype=torch.float16)
        assert product(a, b, out=out, alpha=0.125).isfinite().all()
        assert torch.equal(out, torch.full_like(out, 40000.0))


def test_either_of_pytorchs_names_for_tf32_may_be_used() -> None:
    o, matmul = given(dtype=torch.float32), torch.backends.cuda.matmul
    try:
        assert not problem(o).tf32
        matmul.allow_tf32 = True
        assert problem(o).tf32
        matmul.allow_tf32 = False
        matmul.fp32_precision = "tf32"
        assert problem(o).tf32 and not problem(given()).tf32
    finally:
        matmul.fp32_precision = "none"


# --- which way is chosen --------------------------------------------------------------------------


class Slow:
    """A library whose ways take as long as they are called."""

    def __init__(self, version: str, milliseconds: Sequence[float]) -> None:
        self.version, self.took = version, milliseconds
        self.bound: list[str] = []
        self.ran: list[str] = []

    def instances(self, problem: Problem, most: int) -> Sequence[Instance]:
        return [Instance(self.version, str(t)) for t in self.took[:most]]

    def told(self, problem: Problem) -> None:
        return None

    def bind(self, problem: Problem, instance: Instance) -> Call:
        self.bound.append(instance.what)
        if float(instance.what) < 0:
            raise RuntimeError("there is no such way")

        def call(o: Operands) -> None:
            self.ran.append(instance.what)
            time.sleep(float(instance.what) / 1000)
            torch.mm(o.left, o.right, out=o.out)

        return call


class Wall:
    device_name = "wall"

    def now(self) -> float:
        return time.perf_counter()

    def measure(self, run: Callable[[], None], times: int) -> list[float]:
        def one() -> float:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        return [one() for _ in range(times)]


def products(folder: Path, *libraries: Library, seconds: float = 5) -> Products:
    return Products(lambda _: libraries, Cache(folder), seconds, lambda _: Wall())


def test_the_quickest_way_is_chosen_once_and_kept(tmp_path: Path) -> None:
    first, second = Slow("first 1", [4]), Slow("second 1", [8, 1, -1])
    o = given(added="")
    made = products(tmp_path, first, second)
    out = made.product(o.left, o.right, out=o.out)
    assert out is o.out and second.ran[-1] == "1"
    count = len(first.ran) + len(second.ran)
    made.product(o.left, o.right, out=o.out)
    assert len(first.ran) + len(second.ran) == count + 1 and made.seconds < 5
    again = Slow("second 1", [8, 1, -1])  # another process
    products(tmp_path, first, again).product(o.left, o.right, out=o.out)
    assert again.bound == again.ran == ["1"]
    packaged = Slow("second 1", [8, 1, -1])  # without a cache, as packages run
    alone = Products(lambda _: (first, packaged), None, 0.0, lambda _: Wall(), made.chosen)
    alone.product(o.left, o.right, out=o.out)
    assert packaged.bound == packaged.ran == ["1"]
    newer = Slow("second 2", [8])  # another version: nothing is known of its ways
    products(tmp_path, first, newer).product(o.left, o.right, out=o.out)
    assert "8" in newer.ran and first.ran[-1] == "4"


def test_the_first_library_is_the_default(tmp_path: Path) -> None:
    first, second = Slow("first 1", [1]), Slow("second 1", [0])
    o = given(added="")
    products(tmp_path, first, second, seconds=0).product(o.left, o.right, out=o.out)
    assert first.ran == ["1"] and not second.bound


def test_a_library_that_fails_offers_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Slow):
        def instances(self, problem: Problem, most: int) -> Sequence[Instance]:
            raise RuntimeError("no handle")

    first, o = Slow("first 1", [10, 0]), given(added="")
    products(tmp_path, first, Broken("second 1", [])).product(o.left, o.right, out=o.out)
    assert first.ran[-1] == "0" and "second 1 offers nothing" in caplog.text


class Careless(Slow):
    """Its relu takes nan for a number that is below zero."""

    def bind(self, problem: Problem, instance: Instance) -> Call:
        call = super().bind(problem, instance)

        def relu(o: Operands) -> None:
            call(o)
            whole = float(instance.what) == 0
            o.out.copy_(o.out.relu().nan_to_num(nan=0, posinf=torch.inf) if whole else o.out.relu())

        return relu


def test_ways_that_lose_what_is_not_finite_are_none(tmp_path: Path) -> None:
    second = Careless("second 1", [0, 1])
    o = given(added="")
    made = products(tmp_path, Careless("first 1", [8]), second)
    made.product(o.left, o.right, out=o.out, epilogue="relu")
    assert second.ran[-1] == "1" and second.ran.count("0") == 1
    plain = Careless("second 1", [0, 10])  # without an activation there is nothing to lose
    products(tmp_path, Careless("first 1", [8]), plain).product(o.left, o.right, out=o.out)
    assert plain.ran[-1] == "0"


def test_aten_s_own_epilogue_is_a_way_where_it_is_what_it_is_elsewhere() -> None:
    for fuses, row, count in ((True, "row", 2), (True, "", 1), (False, "row", 1)):
        p = problem(given(added=row), "relu")
        assert len(Aten(fuses).instances(p, 8)) == count
    o = given()
    p = problem(o, "relu")
    Aten(True).bind(p, Aten(True).instances(p, 8)[1])(o)
    wanted = exact(o, "relu")
    assert (o.out.double() - wanted).norm() <= 0.01 * wanted.norm()


def test_other_sizes_are_other_problems(tmp_path: Path) -> None:
    first, second = Slow("first 1", [2]), Slow("second 1", [0])
    made = products(tmp_path, first, second)
    for m in (4, 8):
        o = given(m=m, added="")
        made.product(o.left, o.right, out=o.out)
        torch.testing.assert_close(o.out, o.left @ o.right)
    assert len(made.bound) == 2


# --- what cuBLASLt is told ------------------------------------------------------------------------


def test_structures_are_as_large_as_the_library_s() -> None:
    assert ctypes.sizeof(cublaslt.Algorithm) == 64
    assert ctypes.sizeof(cublaslt.Found) == 64 + 8 + 4 + 4 + 16


class Paper:
    """A cuBLASLt that computes nothing, and keeps what it is told."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[str, dict[int, int], tuple[int, ...]]] = {}
        self.gone: list[int] = []
        self.asked: list[tuple[Any, ...]] = []
        self.status = 0
        self.cublasLtGetVersion = lambda: 130100
        paper = self

        class Version:
            restype: Any = None

            def __call__(self) -> int:
                return 130100

        self.cublasLtGetVersion = Version()  # type: ignore[assignment]
        for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference"):
            name = f"cublasLt{kind}"
            setattr(self, f"{name}Create", lambda at, *x, k=kind: paper.create(k, at, *x))
            setattr(self, f"{name}SetAttribute", self.set)
            setattr(self, f"{name}Destroy", lambda x: self.gone.append(x.value) or 0)

    def create(self, kind: str, at: Any, *given: Any) -> int:
        number = len(self.made) + 1
        at._obj.value = number
        self.made[number] = kind, {}, tuple(x.value for x in given)
        return 0

    def set(self, what: Any, attribute: Any, value: Any, size: Any) -> int:
        assert size.value == ctypes.sizeof(value._obj)
        self.made[what.value][1][attribute.value] = value._obj.value or 0
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *given: Any) -> int:  # noqa: N802
        handle, desc, a, b, c, d, preference, most, found, count = given
        self.asked.append(("heuristic", desc.value, a.value, b.value, c.value, d.value))
        assert handle.value == 7
        found[0].algorithm.data[0], found[0].workspace = 5, 1024
        found[1].state = 15
        count._obj.value = min(2, most.value)
        return self.status

    def cublasLtMatmul(self, *given: Any) -> int:  # noqa: N802
        self.asked.append(("matmul", *given))
        return 0


class Nowhere(cublaslt.Gpu):
    def current(self) -> Any:
        return nullcontext()

    def handle(self) -> int:
        return 7

    def stream(self) -> int:
        return 9


def told(paper: Paper) -> tuple[dict[int, int], list[tuple[Any, ...]]]:
    """The attributes of the last product that was asked for, and its layouts: A, B, C and D."""
    _, desc, *layouts = next(x for x in reversed(paper.asked) if x[0] == "heuristic")
    return paper.made[desc][1], [(*paper.made[x][2], paper.made[x][1]) for x in layouts]


BF16 = cublaslt.TYPES[torch.bfloat16]


def test_a_product_is_told_column_by_column() -> None:
    paper = Paper()
    lt = cublaslt.CublasLt(paper, Nowhere(0))
    assert lt.version == "cublasLt 130100"
    p = problem(given(8, 16, 24), "gelu")
    (found,) = lt.instances(p, 4)
    attributes, layouts = told(paper)
    # right lies as [16, 24] row by row, and is turned; left as it is.
    assert (attributes[cublaslt.TRANS_A], attributes[cublaslt.TRANS_B]) == (1, 0)
    assert attributes[cublaslt.EPILOGUE] == 36 and attributes[cublaslt.BIAS_TYPE] == BF16
    assert layouts == [
        (BF16, 24, 16, 24, {}), (BF16, 24, 8, 24, {}), (BF16, 16, 8, 16, {}), (BF16, 16, 8, 16, {}),
    ]  # fmt: skip
    assert found.library == lt.version and found.workspace == 1024
    assert bytes.fromhex(found.what)[:8] == (5).to_bytes(8, "little") and len(found.what) == 128
    assert sorted(paper.gone) == sorted(paper.made)  # nothing stays


@pytest.mark.parametrize(
    ("epilogue", "added", "number"),
    [
        *(("", "", 1), ("relu", "", 2), ("gelu", "", 32)),
        *(("", "row", 4), ("relu", "row", 6), ("", "whole", 1)),
    ],
)
def test_epilogues(epilogue: str, added: str, number: int) -> None:
    paper = Paper()
    cublaslt.CublasLt(paper, Nowhere(0)).instances(problem(given(added=added), epilogue), 4)
    assert told(paper)[0][cublaslt.EPILOGUE] == number


def with_aux(o: Operands) -> Operands:
    return replace(o, aux=torch.empty(o.out.shape, dtype=o.out.dtype))


@pytest.mark.parametrize(
    ("epilogue", "added", "number"),
    [("gelu", "", 160), ("gelu", "row", 164), ("gelu_backward", "", 192)],
)
def test_the_input_of_an_activation_is_kept_or_given(
    epilogue: str, added: str, number: int
) -> None:
    paper, o = Paper(), with_aux(given(added=added))
    lt, p = cublaslt.CublasLt(paper, Nowhere(0)), problem(o, epilogue)
    (found,) = lt.instances(p, 4)
    attributes = told(paper)[0]
    assert attributes[cublaslt.EPILOGUE] == number and attributes[cublaslt.AUX_STEP] == 16
    lt.bind(p, found)(o)
    assert o.aux is not None
    assert paper.made[paper.asked[-1][2].value][1][cublaslt.AUX_POINTER] == o.aux.data_ptr()


def test_batches_have_counts_and_steps() -> None:
    paper, o = Paper(), given(added="")
    left = o.left.expand(3, *o.left.shape)  # one for all
    right, out = torch.empty(3, 24, 16, dtype=o.left.dtype), torch.empty(3, 8, 16).bfloat16()
    cublaslt.CublasLt(paper, Nowhere(0)).instances(problem(Operands(left, right, None, out)), 4)
    attributes, (a, b, _, d) = told(paper)
    assert (attributes[cublaslt.TRANS_A], attributes[cublaslt.TRANS_B]) == (0, 0)
    assert [x[-1][cublaslt.BATCHES] for x in (a, b, d)] == [3, 3, 3]
    assert [x[-1][cublaslt.BATCH_STEP] for x in (a, b, d)] == [24 * 16, 0, 8 * 16]


def test_a_call_passes_addresses_stream_and_workspace() -> None:
    paper, o = Paper(), given()
    lt, p = cublaslt.CublasLt(paper, Nowhere(0)), problem(o)
    (found,) = lt.instances(p, 4)
    lt.bind(p, found)(o)
    _, handle, desc, _, a, *_, algorithm, room, size, stream = paper.asked[-1]
    assert (handle.value, stream.value, size.value) == (7, 9, 1024) and room.value
    assert a.value == o.right.data_ptr() and algorithm._obj.data[0] == 5
    assert o.added is not None
    assert paper.made[desc.value][1][cublaslt.BIAS_POINTER] == o.added.data_ptr()


def cases() -> Iterator[tuple[str, Operands, dict[str, Any]]]:
    o = given()
    yield "a type of none", given(dtype=torch.float64), {}
    yield "types that differ", replace(o, out=o.out.float()), {}
    yield "steps in both directions", replace(o, left=torch.empty(8, 48).bfloat16()[:, ::2]), {}
    yield "a result column by column", replace(o, out=torch.empty(16, 8).bfloat16().t()), {}
    yield "a scaled row", o, {"beta": 0.5}
    yield "a row of another type", replace(o, added=torch.empty(16)), {}
    yield "a column", replace(o, added=torch.empty(8, 1).bfloat16()), {}
    yield "nothing", given(m=0), {}
    yield "a slope behind a sum", with_aux(given()), {"epilogue": "gelu_backward"}
    uneven = replace(given(), aux=torch.empty(8, 20).bfloat16()[:, :16])
    yield "an input in uneven rows", uneven, {"epilogue": "gelu"}
    yield (
        "a slope in float32",
        with_aux(given(dtype=torch.float32, added="")),
        {"epilogue": "gelu_backward"},
    )


@pytest.mark.parametrize("name", [name for name, *_ in cases()])
def test_what_cublaslt_does_not_take(name: str) -> None:
    (o, numbers) = next((o, x) for n, o, x in cases() if n == name)
    paper, p = Paper(), problem(o, **numbers)
    assert not cublaslt.CublasLt(paper, Nowhere(0)).instances(p, 4) and not paper.asked


def test_no_way_is_no_fault_and_others_are() -> None:
    paper, p = Paper(), problem(given())
    lt = cublaslt.CublasLt(paper, Nowhere(0))
    paper.status = 14
    with pytest.raises(RuntimeError, match="AlgoGetHeuristic failed with status 14"):
        lt.instances(p, 4)


def real() -> Any:
    """The library of a package that is installed, whose descriptors need no GPU."""
    for place in sys.path:
        for path in glob.glob(f"{place}/nvidia/*/lib/libcublasLt.so.*"):
            return ctypes.CDLL(path)
    return None


@pytest.mark.skipif(real() is None, reason="no cuBLASLt is installed")
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_the_library_takes_the_descriptors(epilogue: str) -> None:
    lt = cublaslt.CublasLt(real(), Nowhere(0))
    o = given() if epilogue in ("", "relu") else with_aux(given())
    made = cublaslt._Descriptors(lt, problem(o, epilogue))
    value, size = ctypes.c_int(), ctypes.c_size_t()
    get = real().cublasLtMatmulDescGetAttribute
    wanted = {cublaslt.TRANS_A: 1, cublaslt.TRANS_B: 0, cublaslt.BIAS_TYPE: BF16}
    for attribute, number in wanted.items():
        assert not get(made.product, attribute, ctypes.byref(value), 4, ctypes.byref(size))
        assert value.value == number and size.value == 4


def test_without_cuda_there_is_aten_alone() -> None:
    assert [type(x) for x in cublaslt.libraries(torch.device("cpu"))] == [Aten]
