"""Dataclasses with methods that are compiled late do what Python's do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading
from dataclasses import field
from typing import Any

import pytest

from litz import dataclass as ours

KINDS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for eq in (False, True)
]


def classes(make: Any, kind: dict[str, bool]) -> tuple[type, type, type]:
    """The same three classes, one of them below another."""

    @make(**kind)
    class Point:
        x: int
        y: int = 2
        names: list[str] = field(default_factory=list)
        note: str = field(default="", compare=False, repr=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "names", [*self.names, "seen"])

    @make(**kind)
    class Named(Point):
        z: tuple[Any, ...] = ()
        made: dict[str, int] = field(init=False, default_factory=dict)

    @make(**kind)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    return Point, Named, Own


def outcome(run: Any) -> Any:
    """What a function gives or raises."""
    try:
        return run()
    except Exception as e:
        return type(e)


CALLS = [((1,), {}), ((1, 3), {"note": "n"}), ((1, 2, ["a"]), {}), ((), {}), ((1,), {"q": 1})]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_they_do_what_pythons_do(kind: dict[str, bool]) -> None:
    for mine, theirs in zip(
        classes(ours.dataclass, kind), classes(dataclasses.dataclass, kind), strict=True
    ):
        assert dataclasses.is_dataclass(mine)
        made: list[list[Any]] = []
        for cls in (mine, theirs):
            values = [outcome(lambda a=a, k=k, cls=cls: cls(*a, **k)) for a, k in CALLS]  # type: ignore[misc]
            made.append(values)
        for a, b in zip(*made, strict=True):
            assert isinstance(a, type) == isinstance(b, type)
            if isinstance(a, type):
                assert a is b
                continue
            assert (repr(a) == repr(b)) or "object at" in repr(a)
            assert dataclasses.asdict(a) == dataclasses.asdict(b)
        pairs = [[v for v in values if not isinstance(v, type)] for values in made]
        equal = [[[v == w for w in vs] for v in vs] for vs in pairs]
        assert equal[0] == equal[1]
        hashed = [[type(outcome(lambda v=v: hash(v))) for v in vs] for vs in pairs]  # type: ignore[misc]
        assert hashed[0] == hashed[1]
        for name in ("x", "nothing"):
            sets = [outcome(lambda v=vs[0], n=name: setattr(v, n, 5)) for vs in pairs]  # type: ignore[misc]
            if name == "x" or not kind["frozen"]:
                assert sets[0] == sets[1]
        deletes = [outcome(lambda v=vs[0]: delattr(v, "x")) for vs in pairs]  # type: ignore[misc]
        assert deletes[0] == deletes[1]


def test_hashes_are_those_of_the_compared_fields() -> None:
    point = classes(ours.dataclass, KINDS[-1])[0]
    frozen: Any = ours.dataclass(frozen=True)

    @frozen
    class Pair:
        a: int
        b: float = field(default=0.0, compare=False)

    assert hash(Pair(1, 2.0)) == hash(Pair(1, 3.0)) == hash((1,)) and Pair(1, 2.0) == Pair(1)
    assert Pair(1) != Pair(2) and Pair(1) != (1, 0.0) and dataclasses.replace(Pair(1), a=2).a == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(point(1))  # it has a list


@ours.dataclass(frozen=True, slots=True)
class Kept:
    a: int
    b: tuple[int, ...] = (1, 2)


def test_copies_and_pickles() -> None:
    for copied in (copy.copy(Kept(3)), copy.deepcopy(Kept(3)), pickle.loads(pickle.dumps(Kept(3)))):
        assert copied == Kept(3) and type(copied) is Kept


def test_threads_make_the_first_at_once() -> None:
    point = classes(ours.dataclass, KINDS[-1])[0]
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.append(point(1))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 8 and len({repr(m) for m in made}) == 1


IMPORTS = """
import sys, time
import torch
before, began = set(sys.modules), time.process_time()
import litz
took = time.process_time() - began
print(took, *sorted(m for m in set(sys.modules) - before if not m.startswith("litz")))
"""


def test_importing_litz_costs_little_beside_torch() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    took = [r.stdout.split() for r in runs]
    assert not took[0][1:], "what importing litz loads besides"
    assert min(float(t[0]) for t in took) < 0.05
