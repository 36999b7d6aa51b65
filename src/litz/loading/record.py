"""What a package says of its program: how it is called, its constants, and what it was built for.

All of it is data (``litz.runtime.records``): sizes are texts of index expressions, structures of
arguments and results are PyTorch's JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from litz.artifact import dtype_of
from litz.dataclass import dataclass
from litz.runtime.instance import Chosen
from litz.runtime.records import Leaf, Records

Plain = None | bool | int | float | str


@dataclass(frozen=True)
class TensorInput:
    """A tensor that the caller hands in.

    shape: in elements, texts of expressions over ``Program.symbols``; strides the same.
    contiguous: whether these are the strides of a contiguous tensor.  written: the program writes
    into it.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    shape: tuple[str, ...]
    strides: tuple[str, ...]
    contiguous: bool
    written: bool


@dataclass(frozen=True)
class NumberInput:
    """An integer that the caller hands in.  value: an expression."""

    name: str
    value: str


@dataclass(frozen=True)
class ObjectInput:
    """A script object that the caller hands in.  type: its class, as TorchScript has it."""

    name: str
    type: str


@dataclass(frozen=True)
class FixedInput:
    """What the program was exported for and takes nothing else in place of."""

    name: str
    value: Plain


Input = TensorInput | NumberInput | ObjectInput | FixedInput


@dataclass(frozen=True)
class Binding:
    """Where a symbol's value comes from: ``(size - rest) // factor``.

    input: its place among the inputs.  dim: of a tensor; 0 for a number.
    """

    symbol: str
    input: int
    dim: int
    rest: int
    factor: int


@dataclass(frozen=True)
class Bounds:
    """Least and largest value of a symbol; None where there is no bound."""

    low: int
    high: int | None


@dataclass(frozen=True)
class Tensor:
    """A constant: a parameter, a buffer or a tensor of the module, by its full name.

    entry: of the package, has all between its first element and its last.  Of equal entries the
    memory is one, in a loaded program too.  shape, strides: in elements.  written: the program
    writes into it, so that each loaded program has a copy of its own.
    """

    name: str
    entry: str
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    written: bool


@dataclass(frozen=True)
class Output:
    """One leaf of the results.

    kind: ``result`` (of the graph) or ``argument`` (of the graph, handed on), ``position`` says
    which, or ``value``.
    """

    kind: str
    position: int = 0
    value: Plain = None


@dataclass(frozen=True)
class Unit:
    """A shared object in an entry, and the kernels in it."""

    entry: str
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class Launch:
    """One launch of a GPU kernel, by the name under which its launcher calls it.

    choice: the text of a module whose ``call`` hands a launch on to one of the variants.
    arguments: names and types; packed: of the cells that hold them, where these are others.
    binaries: by variant, entries by what they were built for (``sm_90``, ``ptx_80``).
    """

    name: str
    choice: str
    arguments: tuple[tuple[str, str], ...]
    packed: tuple[str, ...] | None
    binaries: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Launcher:
    """A GPU kernel.

    source: the text of a module whose ``call`` makes its launches.  words, numbers: the same for
    the native executor (``litz.runtime.launchers.Launcher``).
    """

    name: str
    device: str
    source: str
    words: tuple[int, ...]
    numbers: tuple[int | None, ...]
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class Built:
    """The binaries of an artifact; bodies: those of the artifact's bodies."""

    units: tuple[Unit, ...]
    launchers: tuple[Launcher, ...]
    bodies: Mapping[str, Built]


@dataclass(frozen=True)
class Target:
    """The program as it was built for an instruction set.

    needs: abilities of the processor, as Linux names them.  artifact, runtime, executor: entries;
    the last two are shared objects, and empty where no kernel is C++: there the process that loads
    the package has the executor.  products: what computes libraries' products
    (``Products.chosen``), as far as they were tuned.  runtime, which runs
    segments, is for processes without Python and where the executor, which does so too, fits not.
    """

    name: str
    system: str
    needs: tuple[str, ...]
    artifact: str
    built: Built
    runtime: str
    executor: str
    products: Mapping[str, Chosen]


@dataclass(frozen=True)
class Program:
    """A packaged program.

    arguments of the graph are all constants, then the inputs that are not fixed.
    guards: conditions on symbols under which the code holds.
    in_spec, out_spec: structures of (args, kwargs) and of what is returned.
    targets: the best first.  versions: of the packages that made it.
    """

    inputs: tuple[Input, ...]
    symbols: Mapping[str, Bounds]
    bindings: tuple[Binding, ...]
    guards: tuple[str, ...]
    constants: tuple[Tensor, ...]
    outputs: tuple[Output, ...]
    in_spec: str
    out_spec: str
    targets: tuple[Target, ...]
    versions: Mapping[str, str]


_RECORDS = Records(
    {
        torch.dtype: Leaf(lambda t: str(t).removeprefix("torch."), dtype_of),
        torch.device: Leaf(str, torch.device),
    }
)


def to_json(program: Program) -> bytes:
    """The program's bytes: the same for equal programs."""
    return json.dumps(_RECORDS.write(program), sort_keys=True).encode()


def from_json(data: bytes) -> Program:
    """The program of which ``to_json`` gave the bytes.  Raises ValueError for others."""
    try:
        program: Program = _RECORDS.read(Program, json.loads(data))
    except (TypeError, LookupError, AttributeError, RuntimeError) as e:
        raise ValueError(f"{e}") from e
    return program
