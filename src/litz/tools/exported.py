"""From ``torch.export.ExportedProgram`` to a graph of the corridor, and the record of its calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.export import graph_signature as gs
from torch.fx import GraphModule, Node, map_arg
from torch.utils import _pytree as pytree

from litz.dataclass import dataclass
from litz.errors import PackageError
from litz.graph.tokens import drop_tokens
from litz.index import Expr, Symbol, const, product, split_linear, symbol
from litz.index.border import NotRepresentable, from_sympy
from litz.index.expr import Const
from litz.loading.record import (
    Binding,
    Bounds,
    FixedInput,
    Input,
    NumberInput,
    Output,
    Plain,
    TensorInput,
)
from litz.runtime.script_objects import stored
from litz.runtime.strided import why_not_told

__all__ = ["Exported", "exported", "guards_of", "place_of"]

_aten = torch.ops.aten
_metadata = _aten._assert_tensor_metadata.default
_UNBOUNDED = 1 << 48
_CONSTANTS = (gs.InputKind.PARAMETER, gs.InputKind.BUFFER, gs.InputKind.CONSTANT_TENSOR)
_WRITES = {
    gs.OutputKind.BUFFER_MUTATION,
    gs.OutputKind.USER_INPUT_MUTATION,
    getattr(gs.OutputKind, "PARAMETER_MUTATION", gs.OutputKind.BUFFER_MUTATION),
}


@dataclass(frozen=True, eq=False)
class Exported:
    """A program's graph, and what its record says of calls.

    graph: functional but for writes of arguments at its end; takes the constants, then the inputs
    that are not fixed.  constants: tensors by name, in order; written: names of those that the
    program writes into.  env: the shape environment, None without symbols; conditions: those that
    it was traced under, in PyTorch's terms.  examples: the leaves of what it was exported with.
    """

    graph: GraphModule
    inputs: tuple[Input, ...]
    symbols: Mapping[str, Bounds]
    bindings: tuple[Binding, ...]
    constants: Mapping[str, torch.Tensor]
    written: frozenset[str]
    outputs: tuple[Output, ...]
    in_spec: str
    out_spec: str
    env: Any
    conditions: tuple[Any, ...]
    examples: tuple[Any, ...] = ()

    @property
    def on_cpu(self) -> bool:
        """Whether an argument of the graph is a tensor on the CPU."""
        devices = [i.device for i in self.inputs if isinstance(i, TensorInput)]
        devices += [x.device for x in self.constants.values()]
        return any(d.type == "cpu" for d in devices) or not devices


def exported(program: ExportedProgram) -> Exported:
    """Take an exported program apart.  Raises PackageError for what no package can hold."""
    try:
        program = program.run_decompositions(_composite(program))
    except Exception as e:  # what it does not take it asserts, or fails on
        said = str(e).partition("\n")[0]
        raise PackageError(
            f"litz: PyTorch makes no functional graph of the program ({type(e).__name__}: {said})"
        ) from e
    signature, graph = program.graph_signature, program.graph_module
    drop_tokens(graph)
    for n in graph.graph.find_nodes(op="call_function", target=_metadata):
        graph.graph.erase_node(n)  # the export checks casts; what kernels read is checked anyway
    nodes = {n.name: n for n in graph.graph.find_nodes(op="placeholder")}
    sizes = _Sizes(program, nodes)
    written = {o.target: o.arg.name for o in signature.output_specs if o.kind in _WRITES}
    inputs: list[Input] = []
    tokens: set[Node] = set()
    constants: dict[str, torch.Tensor] = {}
    for spec in signature.input_specs:
        if spec.kind in _CONSTANTS:
            assert spec.target is not None
            constants[spec.target] = _constant(program, spec)
        elif spec.kind is gs.InputKind.USER_INPUT:
            inputs.append(sizes.input(spec.arg, str(spec.arg.name) in written))
            if isinstance(inputs[-1], FixedInput) and spec.arg.name in nodes:
                graph.graph.erase_node(nodes[spec.arg.name])
        elif spec.kind is gs.InputKind.CUSTOM_OBJ:
            _hold(graph, nodes[spec.arg.name], program.constants[str(spec.target)])
        elif spec.kind is gs.InputKind.TOKEN:
            tokens.add(nodes[spec.arg.name])
        else:
            raise PackageError(
                f"litz: the program holds {spec.target or spec.arg.name}, "
                f"a {spec.kind.name.lower().replace('_', ' ')}: a package holds tensors alone"
            )
    _leave_out(graph, tokens)
    outputs = _outputs(graph, signature)
    _check_memory(constants, written)
    spec = program.call_spec
    return Exported(
        graph,
        tuple(inputs),
        sizes.bounds,
        sizes.bindings(inputs),
        constants,
        frozenset(written).intersection(constants),
        outputs,
        _text(spec.in_spec, "arguments"),
        _text(spec.out_spec, "results"),
        sizes.env,
        () if sizes.env is None else tuple(g.expr for g in sizes.env.guards),
        tuple(pytree.tree_leaves(program.example_inputs or ())),
    )


def _hold(graph: GraphModule, n: Node, value: Any) -> None:
    """Make a constant of the graph of an input that is a script object."""
    if not isinstance(value, torch.ScriptObject):
        raise PackageError(f"litz: the program holds {n.name}, a {type(value).__name__}")
    try:
        stored(value)
    except ValueError as e:
        raise PackageError(f"litz: the script object {n.name} cannot be packaged: {e}") from e
    setattr(graph, n.name, value)
    with graph.graph.inserting_after(list(graph.graph.find_nodes(op="placeholder"))[-1]):
        held = graph.graph.create_node("get_attr", n.name)
    held.meta = n.meta
    n.replace_all_uses_with(held)
    graph.graph.erase_node(n)


def _leave_out(graph: GraphModule, tokens: Collection[Node]) -> None:
    """Leave out inputs that nothing but the output hands on."""
    (end,) = graph.graph.find_nodes(op="output")
    end.args = map_arg(end.args, lambda n: None if n in tokens else n)
    for token in tokens:
        if token.users:
            raise PackageError("litz: the program has calls with effects that Litz cannot order")
        graph.graph.erase_node(token)


def _composite(program: ExportedProgram) -> dict[Any, Any]:
    """PyTorch's operators that are composed of others by definition, with what they are.

    The export keeps some whole that ``torch.compile`` takes apart by functions in Python
    (``upsample_bilinear2d.vec``): here they are taken apart, too.
    """
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    table: Any = default_decompositions()
    found = {
        op: made
        for op, made in table.items()
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
    }
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, GraphModule)]
    called = dict.fromkeys(n.target for graph in graphs for n in graph.nodes)
    for op in called:
        made = op.py_kernels.get(key) if isinstance(op, torch._ops.OpOverload) else None
        if callable(made):
            found.setdefault(op, made)
    return found


def _constant(program: ExportedProgram, spec: gs.InputSpec) -> torch.Tensor:
    assert spec.target is not None
    if spec.kind is gs.InputKind.CONSTANT_TENSOR or spec.persistent is False:
        found = program.constants[spec.target]
    else:
        found = program.state_dict[spec.target]
    reason = why_not_told(found)
    if reason or not isinstance(found, torch.Tensor):
        raise PackageError(f"litz: {spec.target} cannot be packaged: {reason or 'no tensor'}")
    return found.detach()


def _check_memory(constants: Mapping[str, torch.Tensor], written: Mapping[str, str]) -> None:
    """What the program writes into may share memory with nothing else, but be the same."""
    storages = {n: x.untyped_storage()._cdata for n, x in constants.items() if x.numel()}
    for name in set(written).intersection(storages):
        for other, storage in storages.items():
            same = place_of(constants[name]) == place_of(constants[other])
            if storage == storages[name] and not same:
                raise PackageError(
                    f"litz: the program writes into {name}, which shares memory with {other}"
                )


def place_of(x: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors, with elements, that are the same memory read the same way."""
    return x.data_ptr(), x.dtype, x.shape, x.stride()


def _outputs(graph: GraphModule, signature: gs.ExportGraphSignature) -> tuple[Output, ...]:
    """The program's results; its writes become calls of ``copy_`` at the graph's end."""
    (end,) = graph.graph.find_nodes(op="output")
    places = {n: i for i, n in enumerate(graph.graph.find_nodes(op="placeholder"))}
    of = {
        s.target if s.kind is not gs.InputKind.USER_INPUT else s.arg.name: s.arg.name
        for s in signature.input_specs
    }
    names = {n.name: n for n in places}
    results: list[Any] = []
    outputs: list[Output] = []
    for spec, value in zip(signature.output_specs, end.args[0], strict=True):
        if spec.kind in _WRITES:
            with graph.graph.inserting_before(end):
                target = names[of[spec.target]]
                made = graph.graph.call_function(_aten.copy_.default, (target, value))
                made.meta["val"] = target.meta["val"]
        elif spec.kind is gs.OutputKind.TOKEN:
            continue
        elif spec.kind is not gs.OutputKind.USER_OUTPUT:
            raise PackageError(f"litz: the program returns {spec.kind.name.lower()}")
        elif isinstance(spec.arg, gs.ConstantArgument):
            outputs.append(Output("value", value=_plain(spec.arg.value, "a result")))
        elif value in places:
            outputs.append(Output("argument", places[value]))
        elif isinstance(value, Node):
            outputs.append(Output("result", len(results)))
            results.append(value)
        else:
            outputs.append(Output("value", value=_plain(value, "a result")))
    end.args = (tuple(results),)
    graph.graph.lint()
    graph.recompile()
    return tuple(outputs)


def _plain(value: object, what: str) -> Plain:
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]
    raise PackageError(f"litz: {what} of the program is a {type(value).__name__}")


def _text(spec: pytree.TreeSpec, what: str) -> str:
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError) as e:
        raise PackageError(f"litz: the structure of the program's {what} is no data: {e}") from e


class _Sizes:
    """Sizes of a program's inputs as expressions, and where their symbols come from."""

    def __init__(self, program: ExportedProgram, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self.env: Any = None
        self.scope: dict[str, Symbol] = {}
        self.bounds: dict[str, Bounds] = {}
        found = [s for n in nodes.values() for s in _symbolic(n.meta.get("val"))]
        if not found:
            return
        self.env = found[0].node.shape_env
        free = {x for s in found for x in s.node.expr.free_symbols}
        for x in sorted(free, key=str):
            own = program.range_constraints.get(x)
            ranges = self.env.bound_sympy(x)
            # Where PyTorch says 2 it takes 0 and 1 too: it told these sizes apart when it traced.
            low = int((own or ranges).lower)
            low = 0 if low == 2 else low
            high = _finite((own or ranges).upper)
            self.bounds[str(x)] = Bounds(low, high)
            self.scope[str(x)] = symbol(str(x), low, high)

    def expr(self, size: Any) -> Expr:
        if isinstance(size, int):
            return const(size)
        return self.of(size.node.expr)

    def of(self, expr: Any) -> Expr:
        """An expression of PyTorch's over the inputs' symbols.  Raises PackageError."""
        try:
            return from_sympy(expr, self.scope)
        except (NotRepresentable, KeyError) as e:
            raise PackageError(f"litz: a size of the program is {expr}, which {e}") from e

    def input(self, arg: Any, written: bool) -> Input:
        if isinstance(arg, gs.ConstantArgument):
            return FixedInput(arg.name, _plain(arg.value, f"the input {arg.name}"))
        val = self._nodes[arg.name].meta["val"]
        if isinstance(val, torch.SymInt):
            return NumberInput(arg.name, str(self.expr(val)))
        if not isinstance(val, torch.Tensor):
            return FixedInput(arg.name, _plain(val, f"the input {arg.name}"))
        shape = [self.expr(n) for n in val.shape]
        strides = [self.expr(n) for n in val.stride()]
        dense = [product(shape[k + 1 :]) for k in range(len(shape))]
        same = all(n == const(1) or a == b for n, a, b in zip(shape, strides, dense, strict=True))
        return TensorInput(
            arg.name,
            val.dtype,
            val.device,
            tuple(map(str, shape)),
            tuple(map(str, strides)),
            same,
            written,
        )

    def bindings(self, inputs: Sequence[Input]) -> tuple[Binding, ...]:
        """Where each symbol is found: in a size that is the symbol, or else a multiple of it."""
        found: dict[str, Binding] = {}
        for exact in (True, False):
            for n, i in enumerate(inputs):
                if isinstance(i, FixedInput):
                    continue
                val = self._nodes[i.name].meta["val"]
                for dim, size in enumerate(val.shape if isinstance(i, TensorInput) else (val,)):
                    b = _binding(self.expr(size), n, dim)
                    if b and b.symbol not in found and (not exact or (b.rest, b.factor) == (0, 1)):
                        found[b.symbol] = b
        lost = self.scope.keys() - found.keys()
        if lost:
            raise PackageError(f"litz: no input's size says what {', '.join(sorted(lost))} is")
        return tuple(found[name] for name in sorted(found))


def _binding(e: Expr, n: int, dim: int) -> Binding | None:
    symbols = tuple(s for s in e.free if isinstance(s, Symbol))
    split = split_linear(e, symbols) if len(symbols) == 1 else None
    if split is None:
        return None
    factor, rest = split[0][symbols[0]], split[1]
    if not isinstance(factor, Const) or not isinstance(rest, Const) or factor.value <= 0:
        return None
    return Binding(symbols[0].name, n, dim, rest.value, factor.value)


def _symbolic(val: Any) -> list[Any]:
    sizes = (*val.shape, *val.stride()) if isinstance(val, torch.Tensor) else (val,)
    return [s for s in sizes if isinstance(s, torch.SymInt)]


def _finite(bound: Any) -> int | None:
    try:
        number = int(bound)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return number if number < _UNBOUNDED else None


def guards_of(found: Exported, conditions: Sequence[Any]) -> tuple[str, ...]:
    """The conditions under which code holds: the trace's, and those that compiling added.

    conditions: the latter, in PyTorch's terms.
    Raises PackageError for one that Litz's expressions cannot state.
    """
    scope = {n: symbol(n, b.low, b.high) for n, b in found.symbols.items()}
    out: dict[str, None] = {}
    for c in (*found.conditions, *conditions):
        own = found.env.replace(c)
        try:
            e = from_sympy(own, scope)
        except (NotRepresentable, KeyError) as error:
            raise PackageError(f"litz: the code holds only while {own}: {error}") from error
        if not e.is_const:
            out[str(e)] = None
    return tuple(out)
