"""The reductions: one table that everything about them is read from.

A row says how elements come together: the state that holds some of them, the state of none and of
one, how two states combine, and what is read off in the end.  With it stand each target's spelling
and what a test may draw.  To add a reduction of one value a state is to add a row; how a position
is kept beside a value, and how moments are, the targets know by the state's parts.

A ``Reduce`` node names what it wants read off, its *kind*: ``welford_mean`` and ``welford_m2`` are
two results of one row.  A row without any serves several nodes at once, which a target recognises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

from litz.dataclass import dataclass
from litz.ir.dtype import F64, I64, DType
from litz.ir.ops import accepts

Scalar = bool | int | float
State = tuple[Any, ...]
Repeated = Literal["", "same", "times"]
Identity = Callable[[DType], Scalar]
NOWHERE: Final = (1 << 63) - 1  # a position behind all others
FUNCTION: Final = "function"  # the kind of scans that combine by what the program says


@dataclass(frozen=True, slots=True)
class Part:
    """One number of a state.

    identity: of no elements; dtype: its type, None the elements'.
    cpp: C++ template of what is read off it, given the number of elements too.
    """

    name: str
    identity: Identity
    dtype: DType | None = None
    cpp: str = "{0}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a ``Reduce`` node gives: ``part`` of the state, after ``finish``.

    empty: of no elements, and some value where there is none; single: of one element, None for
    the element itself.  repeated: of the same elements several times: the same, or so many times
    what it is of them once.
    """

    name: str
    part: str
    empty: Scalar
    single: Scalar | None = None
    finish: Callable[[State], Scalar] | None = None
    repeated: Repeated = ""


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """One reduction.

    elements: the kinds of element types, as letters of the op table.
    exact: those of them with which the order of combining changes no bit.
    op: the op of the table that combines two states of one part.
    lift: the state of an element at its position; combine: of two; both from ``op`` if not given.
    update: the mode of stores that combine a value with what is in memory.
    best: of a search for a position, the kind that gives the value there.
    totals: the type in which C++ brings partial results of floats together; running: in which it
    keeps what a scan of floats has come to.
    cpp: the C++ function of two states; cpp_fold: template of a vector's lanes; cpp_lanes: the
    function that scans a vector's lanes behind a state, where it is not the steps of ``cpp``.
    triton: Triton template of two states, or of whether the first comes first in a search;
    triton_fold: of a block ``{0}`` (and positions ``{at}``) along an axis, which stays.
    triton_atomic: the types for which programs may update one place of memory at once.
    scan: Triton's function of two states, earlier ones first, where there are scans of the row.
    whole: what a scan gives at a position depends on all of the row: it is a sort, and the identity
    comes behind all elements.
    samples: which elements a test draws, where their order shows: ``any``, ``small`` ones about 1,
    or ``finite`` ones.
    """

    name: str
    state: tuple[Part, ...]
    results: tuple[Result, ...]
    elements: str
    exact: str
    op: str = ""
    lift: Callable[[Scalar, int], State] = lambda x, at: (x,)
    combine: Callable[[State, State], State] | None = None
    update: str = ""
    best: str = ""
    totals: DType | None = None
    running: DType | None = None
    cpp: str = ""
    cpp_fold: str = ""
    cpp_lanes: str = ""
    triton: str = ""
    triton_fold: str = ""
    triton_atomic: tuple[str, ...] = ()
    scan: str = ""
    whole: bool = False
    samples: str = "any"

    @property
    def positional(self) -> bool:
        """Whether the state says where a value was found."""
        return any(p.name == "at" for p in self.state)

    @property
    def counts(self) -> bool:
        """Whether the state says how many elements it holds: moments."""
        return any(p.name == "count" for p in self.state)

    def part(self, name: str) -> Part:
        return next(p for p in self.state if p.name == name)

    def takes(self, dtype: DType) -> bool:
        """Whether elements may be of a type."""
        return accepts(self.elements, dtype)

    def identity(self, dtype: DType) -> Scalar:
        """The first part of the state of no elements.

        Combined with an element it gives that, but for the sum of -0.0, which is 0.0 in eager too.
        """
        return self.state[0].identity(dtype)

    def total(self, dtype: DType) -> DType:
        """The type in which C++ brings partial results together."""
        return self.totals if self.totals is not None and dtype.is_float else dtype

    def carried(self, dtype: DType) -> DType:
        """The type in which C++ keeps what a scan has come to."""
        return self.running if self.running is not None and dtype.is_float else dtype


# --- states in Python -------------------------------------------------------------------------


def _always(value: Scalar) -> Identity:
    return lambda dtype: value


def _least(dtype: DType) -> Scalar:
    if dtype.is_float:
        return -math.inf
    if dtype.kind == "bool":
        return False
    return -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0


def _greatest(dtype: DType) -> Scalar:
    if dtype.is_float:
        return math.inf
    if dtype.kind == "bool":
        return True
    return (1 << (dtype.bits - (dtype.kind == "int"))) - 1


def _search(largest: bool, later: bool = False) -> Callable[[State, State], State]:
    """The better value, nan before all, of equal ones the first, or the last."""

    def place(s: State) -> tuple[bool, float, int]:
        value, at = s
        missing = value != value
        return (not missing, 0 if missing else -value if largest else value, -at if later else at)

    return lambda a, b: a if place(a) <= place(b) else b


def _moments(a: State, b: State) -> State:
    """Mean, squared deviations and count of two samples as of one (Chan et al., 1979)."""
    (mean_a, m2_a, n_a), (mean_b, m2_b, n_b) = a, b
    n = n_a + n_b
    if not n_a or not n_b:
        return a if n_a else b
    off = mean_b - mean_a
    return (mean_a + off * (n_b / n), m2_a + m2_b + off * off * (n_a * n_b / n), n)


def _exponentials(a: State, b: State) -> State:
    """The maximum, and the sum of exponentials of what lies below it (Milakov, 2018)."""
    top = _largest(a[0], b[0])
    if top == -math.inf:
        return (top, 0.0)
    return (top, a[1] * _exp(a[0] - top) + b[1] * _exp(b[0] - top))


def _log_add_exp(a: State, b: State) -> State:
    """The logarithm of the sum of two exponentials, infinite ones included."""
    top = _largest(a[0], b[0])
    if math.isinf(top) or top != top:
        return (top,)
    return (top + math.log1p(math.exp(min(a[0], b[0]) - top)),)


def _largest(a: float, b: float) -> float:
    return math.nan if a != a or b != b else max(a, b)


def _exp(x: float) -> float:
    return math.exp(x) if x == x else x


# --- rows -------------------------------------------------------------------------------------

_INTS: Final = ("i32", "i64", "u32", "u64")
_FLOATS: Final = ("f32", "f64")


def _simple(
    name: str,
    elements: str,
    exact: str,
    op: str,
    identity: Identity,
    empty: Scalar,
    repeated: Repeated = "",
    **more: Any,
) -> Reduction:
    """A state of one part: an associative op and its identity."""
    return Reduction(
        name,
        (Part("value", identity),),
        (Result(name, "value", empty, repeated=repeated),),
        elements,
        exact,
        op,
        cpp=f"litz::{op}",
        cpp_fold=f"litz::h{name}({{0}})",
        triton_fold=f"litz.{name}({{0}}, {{axis}})",
        **more,
    )


def _searched(name: str, largest: bool) -> Reduction:
    return Reduction(
        name,
        (Part("value", _least if largest else _greatest), Part("at", _always(NOWHERE), I64)),
        (Result(name, "at", 0, 0),),
        "bif",
        "bif",
        lift=lambda x, at: (x, at),
        combine=_search(largest),
        best="max" if largest else "min",
        cpp=f"litz::take<{str(largest).lower()}>",
        cpp_fold=f"litz::fold_arg<{str(largest).lower()}>({{0}}, {{1}})",
        triton=f"litz.better({{0}}, {{1}}, {largest})",
        triton_fold=f"litz.position({{0}}, {{at}}, {{axis}}, {largest})",
    )


def _latest(largest: bool) -> Reduction:
    """A running best value and its position: nan before all, of equal ones the last."""

    return Reduction(
        "cummax" if largest else "cummin",
        (Part("value", _least if largest else _greatest), Part("at", _always(-1))),
        (),
        "if",
        "if",
        lift=lambda x, at: (x, at),
        combine=_search(largest, later=True),
        cpp=f"litz::take_last<{str(largest).lower()}>",
        cpp_lanes=f"litz::scan_latest<{str(largest).lower()}>",
        scan="latest_max" if largest else "latest_min",
    )


SUM: Final = _simple(
    "sum", "if", "i", "add", _always(0), 0, "times", update="add", totals=F64, triton="{0} + {1}",
    triton_atomic=(*_INTS, "f16", "bf16", *_FLOATS), running=F64, scan="plus",
)  # fmt: skip
MAX: Final = _simple(
    "max", "bif", "bif", "maximum", _least, 0, "same", update="max",
    triton="litz.maximum({0}, {1})", triton_atomic=(*_INTS, *_FLOATS), scan="maximum",
)  # fmt: skip
MOMENTS: Final = Reduction(
    "welford",
    (
        Part("mean", _always(0), cpp="litz::mean_of({0}, {1})"),
        Part("m2", _always(0)),
        Part("count", _always(0), F64),
    ),
    (
        Result("welford_mean", "mean", math.nan, finish=lambda s: s[0] if s[2] else math.nan),
        Result("welford_m2", "m2", 0, 0),
    ),
    "f",
    "",
    lift=lambda x, at: (x, x - x, 1),
    combine=_moments,
    totals=F64,
    cpp="litz::chan",
    samples="finite",
)
EXPONENTIALS: Final = Reduction(
    "softmax",
    (Part("max", _least), Part("total", _always(0))),
    (),
    "f",
    "",
    lift=lambda x, at: (x, 1.0 if x > -math.inf else x - x if x != x else 0.0),
    combine=_exponentials,
    samples="finite",
)

_ROWS: Final = (
    SUM,
    _simple(
        "prod", "if", "i", "mul", _always(1), 1, update="mul", triton="{0} * {1}",
        samples="small", triton_atomic=(*_INTS, *_FLOATS), running=F64, scan="times",
    ),
    MAX,
    _simple(
        "min", "bif", "bif", "minimum", _greatest, 0, "same", update="min",
        triton="litz.minimum({0}, {1})", triton_atomic=(*_INTS, *_FLOATS), scan="minimum",
    ),
    _simple("any", "b", "b", "or_", _always(0), 0, "same", triton="litz.either({0}, {1})"),
    _simple("all", "b", "b", "and_", _always(1), 1, "same", triton="litz.both({0}, {1})"),
    _searched("argmax", True),
    _searched("argmin", False),
    MOMENTS,
    EXPONENTIALS,
    Reduction(
        "logaddexp", (Part("value", _least),), (), "f", "", combine=_log_add_exp,
        running=F64, cpp="litz::log_add_exp", cpp_lanes="litz::scan_log_add_exp",
        scan="log_add_exp", samples="finite",
    ),
    _latest(True),
    _latest(False),
)  # fmt: skip


SORT: Final = Reduction(
    "sort", (Part("value", _greatest),), (), "i", "i", cpp="litz::sort", scan="sort", whole=True
)  # in ascending order; no reduction, as all elements are its state


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, and what they are found by: the kinds of nodes, the modes of stores."""

    rows: tuple[Reduction, ...]
    results: Mapping[str, tuple[Reduction, Result]]
    updates: Mapping[str, Reduction]


def table(rows: Sequence[Reduction]) -> Table:
    return Table(
        tuple(rows),
        MappingProxyType({k.name: (r, k) for r in rows for k in r.results}),
        MappingProxyType({r.update: r for r in rows if r.update}),
    )


TABLE: Final = table(_ROWS)


def reduction(kind: str) -> Reduction:
    """The row of a kind of ``Reduce`` nodes."""
    return TABLE.results[kind][0]


def result_of(kind: str) -> Result:
    return TABLE.results[kind][1]


def scanned(name: str) -> Reduction:
    """The row of a kind of ``Scan`` nodes."""
    return next(r for r in (*TABLE.rows, SORT) if r.name == name and r.scan)


@lru_cache
def of_function(parts: int) -> Reduction:
    """The row of scans by a function of the program's: a state of so many parts, 0, 1 and so on.

    There is no state of no elements: identities are what stands where nobody looks.
    """
    state = tuple(Part(str(i), _always(0)) for i in range(parts))
    return Reduction(FUNCTION, state, (), "bif", "")


def by_update(mode: str) -> Reduction:
    """The row of a mode of stores that update memory."""
    return TABLE.updates[mode]


def result_dtype(kind: str, element: DType) -> DType:
    """The type of a ``Reduce`` node."""
    row, found = TABLE.results[kind]
    return row.part(found.part).dtype or element
