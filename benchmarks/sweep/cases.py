"""Which cases there are: an operator, a type and a layout in several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.sweep import operators
from benchmarks.sweep.compositions import COMPOSITIONS, IMAGE
from benchmarks.sweep.programs import PROGRAMS
from benchmarks.sweep.tensors import Job, Place

F32, BF16 = torch.float32, torch.bfloat16

# Elements.  The largest is 256 MB of float32.
SIZES = (1, 1000, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
OTHERS = ("odd", "transposed", "sliced", "broadcast", "batch1")
LARGEST = 1 << 20
"""Of operators of the database: what is slow of large ones shows at this size."""
STREAMING = frozenset(
    ("gelu", "chain", "copy", "transposed_copy", "cast", "add", "add_transposed", "sum_all")
    + (
        "sum_rows",
        "sum_columns",
        "softmax",
        "layer_norm",
        "index_select",
        "roll",
        "group_norm_silu",
    )
)
"""Compositions whose largest size is timed on the CPU too; what it shows of others 64 MB show."""


@dataclass(frozen=True)
class Group:
    """Cases that share a program but for their sizes.

    op: a composition's name, or an entry of the database after its kind ("unary.exp").
    """

    family: str
    op: str
    dtype: torch.dtype
    layout: str
    sizes: tuple[int, ...]

    def case(self, size: int) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.family}/{self.op}/{dtype}/{self.layout}/{size}"

    def cases(self) -> Iterator[str]:
        return (self.case(size) for size in self.sizes)


def groups(device: str) -> list[Group]:
    """All of them, in an order in which each part is a mixture of all families."""
    found = [*compositions(device), *programs(), *database(device)]
    stride = 37
    return [g for k in range(stride) for g in found[k::stride]]


def compositions(device: str) -> Iterator[Group]:
    for name in COMPOSITIONS:
        image = name in IMAGE
        sizes = SIZES if device == "cuda" or name in STREAMING else SIZES[:-1]
        family = "image" if image else "training" if name.endswith("_training") else "matrix"
        yield Group(family, name, F32, "plain", sizes[1:] if image else sizes)
        yield Group(family, name, BF16, "plain", (1 << 16, 1 << (22 if device == "cpu" else 24)))
        others = ("odd", "channels_last", "sliced", "batch1") if image else OTHERS
        for layout in others:
            yield Group(family, name, F32, layout, (1 << 20,) if layout == "batch1" else (1 << 22,))


def programs() -> Iterator[Group]:
    for name in PROGRAMS:
        yield Group("program", name, F32, "plain", (1000, 1 << 16, 1 << 20))


def database(device: str) -> Iterator[Group]:
    for name in operators.database():
        kind = operators.kind(name)
        dtype = operators.type_of(name, F32, device)
        if dtype is None:
            continue
        if kind == "sample":
            yield Group(kind, name, dtype, "plain", (0,))
            continue
        yield Group(kind, name, dtype, "plain", (1, LARGEST))
        layouts = {"unary": ("transposed",), "binary": ("broadcast", "transposed")}
        for layout in layouts.get(kind, ("transposed", "odd")):
            yield Group(kind, name, dtype, layout, (LARGEST,))
        if dtype is F32 and operators.type_of(name, BF16, device):
            yield Group(kind, name, BF16, "plain", (LARGEST,))


def build(group: Group, size: int, device: str) -> Job:
    """The call of a case; the same values each time.  Raises what makes it impossible."""
    torch.manual_seed(0)
    place = Place(size, group.dtype, group.layout, device)
    if group.family == "program":
        return PROGRAMS[group.op](place)
    if group.op in COMPOSITIONS and group.family in ("matrix", "image", "training"):
        return COMPOSITIONS[group.op](place)
    return operators.build(group.op, place)


def asked(case: str, only: Sequence[str]) -> bool:
    """Whether a case has one of these parts in its name, with a slash before and behind it."""
    return not only or any(part in f"/{case}/" for part in only)


def chosen(found: Sequence[Group], only: Sequence[str]) -> list[Group]:
    """The groups with a case that is asked for."""
    return [g for g in found if any(asked(c, only) for c in g.cases())]
