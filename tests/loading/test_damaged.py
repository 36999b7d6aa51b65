"""Damaged packages: loading raises PackageError, or what it gives is right."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import litz
from litz import PackageError
from litz.loading.container import Container, Writer

X = torch.arange(12.0).reshape(3, 4)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        self.total.add_(x.sum(0))
        return {"y": (x * self.weight).exp(), "t": (self.total + 1, None)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damaged") / "small.litz"
    litz.package(Small(), path, (X,), dynamic_shapes=({0: Dim("b", max=64)},), isas=("generic",))
    return path


def right(program: Any) -> bool:
    found = program(X)
    same = torch.equal(found["t"][0], X.sum(0) + 1) and found["t"][1] is None
    return same and torch.allclose(found["y"], (X * torch.arange(4.0)).exp())


# --- damage ----------------------------------------------------------------------------------


def flip(data: bytearray, r: random.Random) -> bytearray:
    for _ in range(r.choice((1, 1, 2, 20))):
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    return data


def cut(data: bytearray, r: random.Random) -> bytearray:
    return data[: r.randrange(len(data))]


def lose(data: bytearray, r: random.Random) -> bytearray:
    at = r.randrange(len(data))
    del data[at : at + r.choice((1, 64, 4096))]
    return data


def blank(data: bytearray, r: random.Random) -> bytearray:
    at, n = r.randrange(len(data)), r.choice((1, 64, 4096))
    data[at : at + n] = bytes(len(data[at : at + n]))
    return data


def repeat(data: bytearray, r: random.Random) -> bytearray:
    at, n = r.randrange(len(data)), r.choice((1, 64, 4096))
    return data[:at] + data[at : at + n] + data[at:]


def swap(data: bytearray, r: random.Random) -> bytearray:
    n = r.choice((8, 64, 512))
    a, b = (r.randrange(len(data) - n) for _ in range(2))
    data[a : a + n], data[b : b + n] = data[b : b + n], data[a : a + n]
    return data


def end(data: bytearray, r: random.Random) -> bytearray:
    """What stands at the end says where all else is."""
    at = len(data) - 1 - r.randrange(160)
    data[at] = r.choice(b"0123456789 \n\x00z")
    return data


DAMAGE: tuple[Callable[[bytearray, random.Random], bytearray], ...] = (
    *(flip, cut, lose, blank, repeat, swap, end),
)


def check(package: Path, count: int) -> None:
    whole, other = package.read_bytes(), package.with_name("other.litz")
    refused = 0
    for seed in range(count):
        r = random.Random(seed)
        other.write_bytes(r.choice(DAMAGE)(bytearray(whole), r))
        try:
            program = litz.load(other, check=True)
        except PackageError as e:
            assert str(other) in str(e), e
            refused += 1
            continue
        assert right(program), seed
    assert refused > 0.6 * count  # what fills entries up is read by nobody


def test_damaged_files(package: Path) -> None:
    assert right(litz.load(package))
    check(package, 200)


@pytest.mark.slow
def test_many_damaged_files(package: Path) -> None:
    check(package, 5000)


# --- other contents under right digests ------------------------------------------------------


@pytest.mark.parametrize("entry", ["generic/runtime.so", "generic/executor.so"])
def test_either_library_runs_segments(package: Path, entry: str) -> None:
    container, other = Container(package), package.with_name("either.litz")
    with Writer(other) as out:
        for name in container.entries.keys() - {"litz-package"}:
            out.add(name, b"no library" if name == entry else container.read(name))
    assert right(litz.load(other))


VALUES = (None, -1, 0, 1, 7, 1 << 40, -(1 << 70), 0.5, "", "x", "s77", [], {}, [1], True, "float64")


def altered(value: Any, r: random.Random) -> Any:
    """Data of JSON with one thing changed, lost or added."""
    if isinstance(value, dict) and value and r.random() < 0.9:
        key = r.choice(sorted(value))
        if r.random() < 0.05:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: altered(value[key], r)}
    if isinstance(value, list) and value and r.random() < 0.9:
        at = r.randrange(len(value))
        kept = [] if r.random() < 0.1 else [altered(value[at], r)]
        return [*value[:at], *kept, *value[at + 1 :]]
    return r.choice(VALUES)


def check_records(package: Path, count: int) -> None:
    container, other = Container(package), package.with_name("record.litz")
    record = json.loads(container.read("program.json"))
    contents = {n: container.read(n) for n in container.entries if n != "litz-package"}
    refused = 0
    for seed in range(count):
        r = random.Random(seed)
        with Writer(other) as out:
            for name, data in contents.items():
                if name == "program.json":
                    data = json.dumps(altered(record, r)).encode()
                if r.random() > 0.02:
                    out.add(name, data)
        try:
            program = litz.load(other)
            program(X)
        except PackageError:
            refused += 1
    assert refused > 0.6 * count


def test_altered_records(package: Path) -> None:
    check_records(package, 200)


@pytest.mark.slow
def test_many_altered_records(package: Path) -> None:
    check_records(package, 5000)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda data: b"", "is no package of Litz"),
        (lambda data: b"PK\x03\x04 something else", "is no package of Litz"),
        (lambda data: data[:-1], "damaged: its end is missing or altered"),
        (lambda data: data[: len(data) // 2], "damaged: its end is missing or altered"),
        (lambda data: data.replace(b"litz-package 1 ", b"litz-package 2 "), "of version 2"),
        (lambda data: data.replace(b'"entries"', b'"Entries"'), "its table of contents is altered"),
        (
            lambda data: data.replace(X[0].numpy().tobytes(), bytes(16)),
            "the entry constants/weight is altered",
        ),
    ],
)
def test_what_is_said(package: Path, make: Any, words: str) -> None:
    other = package.with_name("said.litz")
    other.write_bytes(make(package.read_bytes()))
    with pytest.raises(PackageError, match=words):
        litz.load(other)
    if "constants" in words:
        assert not right(litz.load(other, check=False)), "whoever asks for no check has none"
    with pytest.raises(PackageError, match="cannot be read: No such file"):
        litz.load(package.with_name("none.litz"))
