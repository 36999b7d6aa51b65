"""Programs: buffers and the nodes that fill them, in order, with every effect explicit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from litz.dataclass import dataclass
from litz.index import ZERO, Expr, Var, linear
from litz.ir.body import Index, Load, Node, Store, StoreMode, cast, load, loads, walk
from litz.ir.dtype import DType

# What symbols of an index stand for: data.
Indirect = tuple[tuple[Expr, Node], ...]
Stores = Callable[[], tuple[Store, ...]]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor's memory.

    shape, strides: in elements; device: ``cpu`` or ``cuda:0``.
    kind: ``input`` (an argument of the program), ``temp`` (allocated by it), ``extern`` (returned
    by an extern call, which allocates it), ``fresh`` (likewise, and nobody else holds the memory,
    so that it may be written once it is dead), ``constant`` (a tensor of the program, under its
    name in ``Program.constants``) or ``opaque`` (passed on whole: complex, sparse, foreign).
    alias: the buffer whose memory an extern's output shares, if any.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: str
    kind: str = "temp"
    alias: str | None = None

    @property
    def whole(self) -> TensorRef:
        """All of it, as a view."""
        return TensorRef(self.name, self.dtype, self.shape, self.strides, ZERO)


def root_of(buffers: Mapping[str, Buffer], name: str) -> str:
    """The buffer that owns the memory of ``name``; a name of no buffer is its own."""
    while (b := buffers.get(name)) is not None and b.alias is not None:
        name = b.alias
    return name


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A strided view of a buffer, as extern calls and outputs see it.

    offset: in elements of ``dtype`` from the buffer's first element.
    """

    buffer: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr

    def place(self, index: Sequence[Expr]) -> Expr:
        """Where the element at ``index`` lies, in elements from the buffer's first one."""
        return linear(index, self.strides, self.offset)

    def load(self, index: Sequence[Expr], indirect: Indirect = ()) -> Load:
        """The element at ``index``, in which data may stand for symbols."""
        return load(self.dtype, self.buffer, self.place(index), indirect)

    def store(
        self,
        index: Sequence[Expr],
        value: Node,
        mode: StoreMode = "set",
        indirect: Indirect = (),
        mask: Node | None = None,
    ) -> Store:
        """The store of ``value``, as the view's type, to the element at ``index``."""
        value = cast(value, self.dtype)
        return Store(self.buffer, self.place(index), value, mode, indirect, mask)


@dataclass(frozen=True, slots=True)
class HostFloat:
    """A float that the host computes while the program runs, or reads from data.

    Extern calls take it as it is; a kernel takes its bits, which are an integer like any other.
    A truth that a graph returns is kept in the same way.
    name: of the input or of the extern's result that it is.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A body of control flow, as an extern call takes it: a program among the program's bodies.

    The body's inputs are what the call's tuples hold, one after the other.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Nest:
    """What runs ``stores`` for each point of ``axes``; reductions run over ``reduce_axes``.

    read, wrote: the buffers that it reads and writes, once somebody has asked.
    later: makes the stores of one that has none yet (``with_stores_later``).
    """

    name: str
    axes: tuple[Expr, ...]
    reduce_axes: tuple[Expr, ...]
    stores: tuple[Store, ...]
    device: str
    read: tuple[str, ...] | None = field(default=None, init=False, compare=False, repr=False)
    wrote: tuple[str, ...] | None = field(default=None, init=False, compare=False, repr=False)
    later: Stores | None = field(default=None, init=False, compare=False, repr=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:  # of a slot that is empty
            if name != "stores" or self.later is None:
                raise AttributeError(f"{type(self).__name__} has no {name}")
            object.__setattr__(self, "stores", self.later())
            return self.stores

    def reads(self) -> tuple[Load, ...]:
        return loads(r for s in self.stores for r in s.roots())

    def read_buffers(self) -> tuple[str, ...]:
        if self.read is None:
            names = {n.buffer: None for n in self.reads()}
            for s in self.stores:  # an update reads what it updates
                if s.updates:
                    names[s.buffer] = None
            return noted_reads(self, names)
        return self.read

    def write_buffers(self) -> tuple[str, ...]:
        if self.wrote is None:
            object.__setattr__(self, "wrote", tuple({s.buffer: None for s in self.stores}))
        assert self.wrote is not None
        return self.wrote


_Nest = TypeVar("_Nest", bound=Nest)


def with_stores_later(n: _Nest, make: Stores, reads: Iterable[str], writes: Iterable[str]) -> _Nest:
    """A new nest, whose stores are made when somebody asks for them.

    reads, writes: the buffers that they do; with those and its plan most of the compiler has done.
    """
    object.__delattr__(n, "stores")
    object.__setattr__(n, "later", make)
    object.__setattr__(n, "wrote", tuple(dict.fromkeys(writes)))
    noted_reads(n, reads)
    return n


@dataclass(frozen=True, slots=True)
class Loops(Nest):
    """A loop nest as lowering makes it.

    origins: names of the graph nodes it computes, in topological order.
    """

    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Skeleton:
    """How a template runs what it says: a hand-written form of a kernel, with bodies in its slots.

    kind: which, by name.  slots: values that it needs beside the stores; sizes: numbers likewise.
    What both mean stands with the kind (``litz.ir.attention``).
    """

    kind: str
    slots: tuple[Node, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Template(Nest):
    """A loop nest whose kernel is a skeleton that its bodies are put into.

    The stores say all that it computes, as those of any nest do; a skeleton says how, better than
    loops could.  origins: as of ``Loops``.  nodes: in a schedule, the program's nests in it.
    reason: why it, and no library; no part of the text.
    """

    skeleton: Skeleton
    origins: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    reason: str = field(default="", compare=False)

    def reads(self) -> tuple[Load, ...]:
        return loads(nest_roots(self))


@dataclass(frozen=True, slots=True)
class Extern:
    """A call of an operator as it is.

    target: the callable; target_name: its printed name (``aten.mm.default``).
    args, kwargs: Python values, ``TensorRef``s and ``Expr``s, nested in tuples as the op has them.
    outputs: the buffers it fills, one a result (None: a result that is no tensor or unused).
    symbols: results that are numbers: (position, symbol or float) pairs.
    sizes: symbols that get their value from a size of a result: (symbol, position of the result,
    dimension).  checks: likewise, sizes that must be as they say.
    out_variant: the result may be written into memory that the program allocated; an argument
    ``out`` is the part of the output's buffer that it fills, if not all.  What a named argument
    views of an output is filled too, and not read.
    mutates: buffers that it writes in place.  reason: why it is not a loop nest.
    read: as of ``Nest``.
    """

    name: str
    target: object
    target_name: str
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    outputs: tuple[str | None, ...]
    device: str
    reason: str
    single: bool = True
    symbols: tuple[tuple[int, Expr | HostFloat], ...] = ()
    out_variant: bool = False
    mutates: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    sizes: tuple[tuple[Expr, int, int], ...] = ()
    checks: tuple[tuple[Expr, int, int], ...] = ()
    read: tuple[str, ...] | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def is_number(self) -> bool:
        """Whether the call only computes numbers from numbers."""
        if not self.symbols or self.mutates or any(o is not None for o in self.outputs):
            return False
        return next(self.refs(), None) is None

    @property
    def bodies(self) -> tuple[Subgraph, ...]:
        """The bodies that it runs, if it is control flow."""
        return tuple(a for a in self.args if isinstance(a, Subgraph))

    @property
    def is_assertion(self) -> bool:
        """Whether the call only raises where a number of the host is false."""
        return self.target_name == "aten._assert_scalar.default"

    @property
    def part(self) -> object:
        """What it fills of its output's buffer, if not all."""
        return dict(self.kwargs).get("out") if self.out_variant else None

    def refs(self) -> Iterator[TensorRef]:
        filled = self.outputs if self.out_variant else ()
        named = (v for _, v in self.kwargs)
        read = (v for v in named if not (isinstance(v, TensorRef) and v.buffer in filled))
        for a in (*self.args, *read):
            yield from _refs(a)

    def read_buffers(self) -> tuple[str, ...]:
        if self.read is None:
            return noted_reads(self, (r.buffer for r in self.refs()))
        return self.read

    def write_buffers(self) -> tuple[str, ...]:
        names = {o: None for o in self.outputs if o is not None}
        return (*names, *(m for m in self.mutates if m not in names))


def noted_reads(n: Nest | Extern, names: Iterable[str]) -> tuple[str, ...]:
    """What it shall answer from now on to who asks which buffers it reads: these, each once."""
    found = tuple(dict.fromkeys(names))
    object.__setattr__(n, "read", found)
    return found


def _refs(value: object) -> Iterator[TensorRef]:
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _refs(v)


@dataclass(frozen=True, slots=True)
class Contraction:
    """A matrix product of which nobody has chosen yet who computes it.

    ``out[b, m, n] = beta * bias[b, m, n] + alpha * sum over k of left[b, m, k] * right[b, k, n]``,
    without ``b`` where left and right are matrices.

    left, right: of one type, as they lie in memory.  bias: broadcast to the result; None: there is
    none.  out: the buffer that is filled.  accumulate: the type of the sum.
    alpha, beta: numbers, which may be the host's.  reason: what passes have changed, and why.
    """

    name: str
    left: TensorRef
    right: TensorRef
    bias: TensorRef | None
    out: str
    accumulate: DType
    device: str
    alpha: object = 1
    beta: object = 1
    origins: tuple[str, ...] = ()
    reason: str = ""

    @property
    def axes(self) -> dict[str, Expr]:
        """The sizes of the axes ``b`` (of a batch alone), ``m``, ``n`` and ``k``."""
        *batch, m, k = self.left.shape
        return {**dict(zip("b", batch, strict=False)), "m": m, "n": self.right.shape[-1], "k": k}

    def refs(self) -> tuple[TensorRef, ...]:
        """The tensors it reads, bias first, as ATen's operators take them."""
        return (*(() if self.bias is None else (self.bias,)), self.left, self.right)

    def read_buffers(self) -> tuple[str, ...]:
        return tuple({r.buffer: None for r in self.refs()})

    def write_buffers(self) -> tuple[str, ...]:
        return (self.out,)


ProgramNode = Loops | Template | Extern | Contraction


def made_numbers(n: Extern) -> tuple[str, ...]:
    """Names of the symbols and floats that a call gives values to."""
    return (*(number_name(x) for _, x in n.symbols), *(str(s) for s, _, _ in n.sizes))


def used_numbers(n: ProgramNode | Nest, buffers: Mapping[str, Buffer]) -> tuple[str, ...]:
    """Names of the symbols and floats that running a node needs, each once."""
    if isinstance(n, Nest):
        made = [buffers.get(s.buffer) for s in n.stores]
        found = [*nest_numbers(n)]
    elif isinstance(n, Contraction):
        made = [buffers.get(n.out)]
        found = [*numbers((n.refs(), n.alpha, n.beta))]
    else:
        made = [buffers.get(o) for o in n.outputs if o is not None and n.out_variant]
        found = [*numbers((n.args, tuple(v for _, v in n.kwargs)))]
    found += numbers(tuple((b.shape, b.strides) for b in made if b is not None))
    return tuple({number_name(x): None for x in found})


def number_name(number: Expr | HostFloat) -> str:
    return number.name if isinstance(number, HostFloat) else str(number)


def nest_roots(n: Nest) -> tuple[Node, ...]:
    """The nodes that a nest evaluates, those of a skeleton's slots too."""
    slots = n.skeleton.slots if isinstance(n, Template) else ()
    return (*(r for s in n.stores for r in s.roots()), *slots)


def nest_numbers(n: Nest) -> Iterator[Expr | HostFloat]:
    """The symbols that a nest's loops and accesses use, but for those that are bound to data."""
    yield from numbers((n.axes, n.reduce_axes))
    for x in (*walk(nest_roots(n)), *n.stores):
        if isinstance(x, (Load, Store)):
            bound = [s for s, _ in x.indirect]
            yield from numbers(tuple(f for f in x.index.free if f not in bound))
        elif isinstance(x, Index):
            yield from numbers(x.expr)


def numbers(value: object) -> Iterator[Expr | HostFloat]:
    """The symbols and floats below nested values, those of loops' extents too."""
    if isinstance(value, Expr):
        for x in value.free:
            yield from numbers(x.extent) if isinstance(x, Var) else (x,)
    elif isinstance(value, HostFloat):
        yield value
    elif isinstance(value, TensorRef):
        yield from numbers((value.shape, value.strides, value.offset))
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from numbers(v)


@dataclass(frozen=True, slots=True)
class Binding:
    """The value of a graph node (result ``position`` of several) lies at ``ref``.

    It does behind the program node ``behind`` (None: from the start), and until a later one writes
    the same memory.  whole: the buffer is opaque, so its tensor is the value.
    """

    node: str
    position: int | None
    ref: TensorRef
    behind: str | None
    whole: bool = False


@dataclass(frozen=True)
class Program:
    """Buffers and nodes in an order that is valid to run.

    inputs: names in argument order: a buffer, or the name of a number.
    outputs: what is returned: tensor views, integer expressions, floats of the host, None or
    Python scalars.
    symbols: the size symbols, with where each is read: (symbol, argument position, dimension);
    dimension None means that the argument is the integer itself.
    bodies: of control flow, by their names: programs of their own, as their compilation left them.
    bindings: where the graph's values lie, for checkers of a run; no part of the text.
    """

    inputs: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    nodes: tuple[ProgramNode, ...]
    outputs: tuple[object, ...]
    symbols: tuple[tuple[Expr, int, int | None], ...] = ()
    constants: Mapping[str, object] = field(default_factory=dict)
    bodies: Mapping[str, Program] = field(default_factory=dict)
    bindings: tuple[Binding, ...] = field(default=(), compare=False)

    def root(self, buffer: str) -> str:
        """The buffer that owns the memory of ``buffer``."""
        return root_of(self.buffers, buffer)

    def output_refs(self) -> tuple[TensorRef, ...]:
        return tuple(o for o in self.outputs if isinstance(o, TensorRef))
