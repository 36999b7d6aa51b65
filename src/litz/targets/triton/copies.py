"""One launch for many calls of a kernel that depend on each other in nothing.

The last axis of the grid counts the calls.  A program finds its arguments by a few branches on that
number, so that the kernel's body is there once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from litz.targets.triton.source import Launch, TritonKernel

POINTERS = 256  # arguments of a launch at most: they have to fit into 4 KiB
FEWER = 64  # of one that works long: every argument takes registers from it
SHORT = 1 << 15  # points of a kernel that does not


def most_copies(kernel: TritonKernel, points: int) -> int:
    """How many calls of a kernel over ``points`` one launch can do; 1 if it must go by itself."""
    if len(kernel.launches) != 1 or not kernel.params:
        return 1
    (launch,) = kernel.launches
    if launch.ints or launch.narrow is not None or (len(launch.grid) > 2 and not launch.flat):
        return 1
    return max(1, (POINTERS if points < SHORT else FEWER) // len(kernel.params))


def copied(kernel: TritonKernel, name: str, count: int) -> TritonKernel:
    """The kernel over ``count`` sets of arguments, those of the first call first."""
    (launch,) = kernel.launches
    pointers = [replace(p, name=f"{p.name}_{c}") for c in range(count) for p in launch.pointers]
    scalars = [replace(v, name=f"{v.name}_{c}") for c in range(count) for v in launch.scalars]
    many = replace(
        launch,
        name=name,
        source=_source(launch, name, count),
        pointers=tuple(pointers),
        scalars=tuple(scalars),
        copies=count,
    )
    params = [replace(p, name=f"{p.name}_{c}") for c in range(count) for p in kernel.params]
    return replace(kernel, params=tuple(params), launches=(many,), extents=None)


def _source(launch: Launch, name: str, count: int) -> str:
    own = [p.name for p in launch.pointers], [v.name for v in launch.scalars]
    before, _, rest = launch.source.partition(f"def {launch.name}(")
    blocks, _, body = rest.partition("):\n")
    constants = [a for a in blocks.split(", ") if ":" in a]
    arguments = [f"{a}_{c}" for names in own for c in range(count) for a in names]
    head = f"def {name}({', '.join([*arguments, *constants])}):\n"
    choice = "\n".join(_choose([*own[0], *own[1]], 0, count, 1))
    return f"{before}{head}    copy = tl.program_id(2)\n{choice}\n{body}"


def _choose(names: Sequence[str], first: int, end: int, depth: int) -> Iterator[str]:
    """Lines that name the arguments of call number ``copy``, one of ``first`` to ``end``."""
    indent = "    " * depth
    if end - first == 1:
        yield from (f"{indent}{a} = {a}_{first}" for a in names)
        return
    middle = (first + end) // 2
    yield f"{indent}if copy < {middle}:"
    yield from _choose(names, first, middle, depth + 1)
    yield f"{indent}else:"
    yield from _choose(names, middle, end, depth + 1)
