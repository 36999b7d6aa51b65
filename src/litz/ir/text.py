"""The text form of loop nests and programs; ``litz.ir.body`` has that of nodes and stores.

Deterministic, one line a node, every distinct node once; ``litz.ir.parse`` reads it back to an
equal value.  The grammar, by example::

    program(arg0_1, s0) {
      symbol s0 in [2, inf] hint 8
      bind s0 = 0.0
      arg0_1: f32[s0, 768]{768, 1} @cpu input
      buf0: f32[s0, 768]{768, 1} @cpu temp
      buf1: f32[s0, 64]{64, 1} @cpu extern alias buf9
      constant c0
      op0 = loops [i0 < s0, i1 < 768] reduce [r0 < 3] @cpu from (add_1, gelu) {
        %0: f32 = load arg0_1[768*i0 + i1]
        %1: i64 = load arg1_1[i0]
        %2: f32 = load arg2_1[i1 + 768*t0; t0 in [0, 99] := %1]
        %3: f32 = mul %0, f32(0.5)
        %4: f32 = reduce sum [r0] %3
        %5: f32 = scan sum.value [r0 to i1] %3 from %4
        store buf0[768*i0 + i1] = %4
        store add buf2[t0; t0 in [0, 99] := %1] = %4 if %5
      }
      op1 = extern aten.mm.default(buf0, b: f32[4, 2]{1, 4}+0, k=1) -> (buf3) @cpu out because "r"
      op2 = extern aten.nonzero.default(b0) -> (b1) @cpu sizes (0.0: u0) because "r"
      op3 = extern operator.truediv($(u0), 3) -> (_) @cpu symbols (0: #half) because "r"
      op4 = contraction [m 4, n 2, k 8] in f32 (x, w, bias=v, alpha=2) -> (buf4) @cpu from (addmm)
      return (buf3, $(s0), #half, None)
    }
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from litz.index import ZERO, Expr, Var
from litz.ir.body import Namer, Store, float_text, stores_lines, symbol_text
from litz.ir.dtype import DType
from litz.ir.program import (
    Buffer,
    Contraction,
    Extern,
    HostFloat,
    Loops,
    Nest,
    Program,
    ProgramNode,
    Skeleton,
    Subgraph,
    Template,
    TensorRef,
    nest_numbers,
    numbers,
)

INDENT = "  "


def axes_text(axes: Iterable[Expr]) -> str:
    """Loop variables with their extents: ``i0 < 128, i1 < 768``."""
    return ", ".join(f"{a} < {a.extent}" if isinstance(a, Var) else str(a) for a in axes)


def nest_lines(n: Nest, origins: Sequence[str] = ()) -> list[str]:
    """A nest of stores as lines; origins: of which graph nodes."""
    reduced = f" reduce [{axes_text(n.reduce_axes)}]" if n.reduce_axes else ""
    source = f" from ({', '.join(origins)})" if origins else ""
    head = f"{n.name} = loops [{axes_text(n.axes)}]{reduced} @{n.device}{source} {{"
    skeleton = n.skeleton if isinstance(n, Template) else None
    return [head, *(INDENT + line for line in nest_body_lines(n.stores, skeleton)), "}"]


def nest_body_lines(stores: Sequence[Store], skeleton: Skeleton | None) -> list[str]:
    """The lines of a nest's body; a template's last one is its skeleton's."""
    name = Namer()
    lines = stores_lines(stores, name)
    if skeleton is not None:
        lines += name.lines(skeleton.slots)
        slots = ", ".join(map(name, skeleton.slots))
        lines.append(f"skeleton {skeleton.kind} [{slots}] sizes {list(skeleton.sizes)}")
    return lines


def layout_text(dtype: DType, shape: Sequence[Expr], strides: Sequence[Expr]) -> str:
    """``f32[4, 8]{8, 1}``"""
    return f"{dtype}[{', '.join(map(str, shape))}]{{{', '.join(map(str, strides))}}}"


def buffer_text(b: Buffer) -> str:
    alias = "" if b.alias is None else f" alias {b.alias}"
    return f"{b.name}: {layout_text(b.dtype, b.shape, b.strides)} @{b.device} {b.kind}{alias}"


def is_whole(ref: TensorRef, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the view is the buffer's own."""
    b = buffers.get(ref.buffer)
    return (
        b is not None
        and ref.dtype is b.dtype
        and ref.offset is ZERO
        and ref.shape == b.shape
        and ref.strides == b.strides
    )


def ref_text(ref: TensorRef, buffers: Mapping[str, Buffer]) -> str:
    """A view: the buffer's name where it is the buffer's own, else with layout and offset."""
    if is_whole(ref, buffers):
        return ref.buffer
    return f"{ref.buffer}: {layout_text(ref.dtype, ref.shape, ref.strides)}+{ref.offset}"


class ValuePrinter:
    """Text of the Python values of extern arguments and program outputs."""

    def __init__(
        self, buffers: Mapping[str, Buffer], constants: Mapping[str, object] | None = None
    ) -> None:
        self.buffers = buffers
        self.opaque = {id(v): k for k, v in (constants or {}).items()}

    def __call__(self, value: object) -> str:
        if isinstance(value, TensorRef):
            return ref_text(value, self.buffers)
        if isinstance(value, Expr):
            return f"$({value})"
        if isinstance(value, HostFloat):
            return f"#{value.name}"
        if isinstance(value, Subgraph):
            return f"@{value.name}"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float):
            return float_text(value)
        if isinstance(value, tuple):
            return f"({', '.join(map(self, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(map(self, value))}]"
        if id(value) in self.opaque:
            return f"${self.opaque[id(value)]}"
        return _object_text(value)


def _object_text(value: object) -> str:
    """Torch's small value types by their public spelling, without importing torch."""
    kind = type(value)
    if kind.__module__ == "torch":
        if kind.__name__ == "device":
            return f'torch.device("{value}")'
        if kind.__name__ in ("dtype", "layout", "memory_format"):
            return str(value)
    return f"<{kind.__module__}.{kind.__qualname__}>"


def _sizes_text(sizes: Iterable[tuple[Expr, int, int]]) -> str:
    return ", ".join(f"{at}.{dim}: {e}" for e, at, dim in sizes)


def extern_text(n: Extern, values: ValuePrinter | None = None) -> str:
    """One line for an extern call; without ``values`` every view is written in full."""
    values = values or ValuePrinter({})
    args = [values(a) for a in n.args] + [f"{k}={values(v)}" for k, v in n.kwargs]
    outs = ", ".join("_" if o is None else o for o in n.outputs)
    parts = [f"{n.name} = extern {n.target_name}({', '.join(args)}) -> ({outs}) @{n.device}"]
    parts += ["multi"] if not n.single else []
    parts += ["out"] if n.out_variant else []
    if n.symbols:
        bound = ", ".join(
            f"{at}: {f'#{s.name}' if isinstance(s, HostFloat) else s}" for at, s in n.symbols
        )
        parts.append(f"symbols ({bound})")
    if n.sizes:
        parts.append(f"sizes ({_sizes_text(n.sizes)})")
    if n.checks:
        parts.append(f"checks ({_sizes_text(n.checks)})")
    parts += [f"mutates ({', '.join(n.mutates)})"] if n.mutates else []
    parts += [f"from ({', '.join(n.origins)})"] if n.origins else []
    parts.append(f"because {n.reason!r}")
    return " ".join(parts)


def contraction_text(n: Contraction, values: ValuePrinter | None = None) -> str:
    """One line for a matrix product; without ``values`` every view is written in full."""
    values = values or ValuePrinter({})
    args = [values(n.left), values(n.right)]
    args += [] if n.bias is None else [f"bias={values(n.bias)}"]
    args += [f"{k}={values(v)}" for k, v in (("alpha", n.alpha), ("beta", n.beta)) if v != 1]
    source = f" from ({', '.join(n.origins)})" if n.origins else ""
    why = f" because {n.reason!r}" if n.reason else ""
    head = f"{n.name} = contraction [{sizes_text(n)}] in {n.accumulate} ({', '.join(args)})"
    return f"{head} -> ({n.out}) @{n.device}{source}{why}"


def sizes_text(n: Contraction) -> str:
    """``m 128, n 64, k 32``"""
    return ", ".join(f"{axis} {size}" for axis, size in n.axes.items())


def node_lines(n: ProgramNode | Nest, values: ValuePrinter | None = None) -> list[str]:
    if isinstance(n, Extern):
        return [extern_text(n, values)]
    if isinstance(n, Contraction):
        return [contraction_text(n, values)]
    return nest_lines(n, n.origins if isinstance(n, Loops | Template) else ())


def marked(lines: Sequence[str], at: int, message: str) -> list[str]:
    """The lines with a mark on one of them, and a message below it."""
    out = ["    " + line for line in lines]
    out[at : at + 1] = [">>> " + lines[at], f"    ^ {message}"]
    return out


def program_symbols(p: Program) -> tuple[Expr, ...]:
    """Every size symbol of a program, in order of first use; data binds others in place."""
    found: list[Expr | HostFloat] = [s for s, _, _ in p.symbols]
    values: list[object] = [(b.shape, b.strides) for b in p.buffers.values()]
    found += numbers(values)
    for n in p.nodes:
        if isinstance(n, Nest):
            found += nest_numbers(n)
        elif isinstance(n, Contraction):
            found += numbers((n.refs(), n.alpha, n.beta))
        else:
            given = [s for _, s in n.symbols], [s for s, _, _ in (*n.sizes, *n.checks)]
            found += numbers((given, n.args, [v for _, v in n.kwargs]))
    found += numbers(p.outputs)
    return tuple(dict.fromkeys(s for s in found if isinstance(s, Expr)))


def program_text(p: Program, head: str = "") -> str:
    """The whole program; ``litz.ir.parse.parse`` gives it back.  head: comments above it."""
    values = ValuePrinter(p.buffers, p.constants)
    lines = [f"symbol {symbol_text(s)}" for s in program_symbols(p)]
    for s, position, dim in p.symbols:
        lines.append(f"bind {s} = {position}" + ("" if dim is None else f".{dim}"))
    lines += [buffer_text(b) for b in p.buffers.values()]
    lines += [f"constant {name}" for name in p.constants]
    for name, inner in p.bodies.items():
        first, *rest = program_text(inner).splitlines()
        lines += [f"body {name} = {first}", *rest]
    for n in p.nodes:
        lines += node_lines(n, values)
    lines.append(f"return {values(p.outputs)}")
    body = "\n".join(INDENT + line for line in lines)
    comments = "".join(f"# {line}\n" for line in head.splitlines())
    return f"{comments}program({', '.join(p.inputs)}) {{\n{body}\n}}"
