"""Reading the text form of programs back (``litz.ir.text`` writes it and documents it)."""

from __future__ import annotations

import ast
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, get_args

from litz.dataclass import dataclass
from litz.index import Expr, symbol, var
from litz.index import parse as parse_expr
from litz.ir import body, reductions
from litz.ir.body import Node, Store, StoreMode
from litz.ir.dtype import BY_NAME, DType
from litz.ir.program import (
    Buffer,
    Contraction,
    Extern,
    HostFloat,
    Loops,
    Program,
    ProgramNode,
    Skeleton,
    Subgraph,
    Template,
    TensorRef,
)
from litz.ir.text import sizes_text

Resolve = Callable[[str], object]
_OPEN, _CLOSE = "([{", ")]}"
_LAYOUT = re.compile(r"(\w+)\[(.*)\]\{(.*)\}")
_SYMBOL = re.compile(r"(\S+) in \[(\S+), (\S+)\](?: hint (-?\d+))?")
_DEFINITION = re.compile(r"(%\d+): (\w+) = (\w+) (.*)")
_SCAN = re.compile(r"(\w+)\.(\w+) \[(\S+) to (.*?)\] (.*?)(?: from (.*?))?(?: by \{(.*)\})?")
_STORE = re.compile(r"store (?:(\w+) )?([^\s\[]+)(\[.*)")
_NEST = re.compile(r"(\S+) = loops \[(.*?)\](?: reduce \[(.*?)\])? @(\S+)(?: from \((.*)\))? \{")
_SKELETON = re.compile(r"skeleton (\w+) \[(.*)\] sizes \[(.*)\]")
_EXTERN = re.compile(r"(\S+) = extern ([^\s(]+)(\(.*)")
_CONTRACTION = re.compile(r"(\S+) = contraction \[(.*?)\] in (\w+) (\(.*)")
_PROGRAM = re.compile(r"program\((.*)\) \{")
_BUFFER = re.compile(r"(\S+): (\S.*\}) @(\S+) (\w+)(?: alias (\S+))?")


class ParseError(ValueError):
    """Text that is no program: the message names the line."""


def _outside(text: str) -> Iterator[tuple[int, str, int]]:
    """Place, character and depth in brackets (before an opening one) of what is in no string."""
    depth, quote, escaped = 0, "", False
    for i, c in enumerate(text):
        if quote:
            if escaped or c == "\\":
                escaped = not escaped
            elif c == quote:
                quote = ""
            continue
        depth -= c in _CLOSE
        yield i, c, depth
        depth += c in _OPEN
        if c in "'\"":
            quote = c


def split(text: str, separator: str = ",") -> list[str]:
    """Split at ``separator`` outside of brackets and strings; strips, drops an empty end."""
    cuts = [i for i, c, depth in _outside(text) if c == separator and depth == 0]
    parts = [text[a + 1 : b].strip() for a, b in zip([-1, *cuts], [*cuts, None], strict=True)]
    return parts if parts[-1] else parts[:-1]


def bracketed(text: str) -> tuple[str, str]:
    """``(inside) rest`` -> ``inside``, ``rest``."""
    for i, c, depth in _outside(text):
        if c in _CLOSE and depth == 0:
            return text[1:i], text[i + 1 :].strip()
    raise ParseError(f"unbalanced brackets in {text!r}")


def parse_float(text: str) -> float:
    """The inverse of ``litz.ir.body.float_text``."""
    sign = -1.0 if text.startswith("-") else 1.0
    name = text.lstrip("-")
    if name == "float.inf":
        return sign * math.inf
    if name == "float.nan":
        return math.nan
    if name.startswith("float.bits_"):
        return float(struct.unpack(">d", bytes.fromhex(name[len("float.bits_") :]))[0])
    return float(text)


def _dtype(text: str) -> DType:
    if text not in BY_NAME:
        raise ParseError(f"no dtype {text!r}")
    return BY_NAME[text]


def parse_symbol(text: str) -> Expr:
    """``s0 in [2, inf] hint 8``"""
    m = _match(_SYMBOL, text, "a symbol")
    lo = None if m[2] == "-inf" else int(m[2])
    hi = None if m[3] == "inf" else int(m[3])
    return symbol(m[1], lo, hi, None if m[4] is None else int(m[4]))


def _match(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    m = pattern.fullmatch(text)
    if m is None:
        raise ParseError(f"not {what}: {text!r}")
    return m


def parse_axes(text: str, scope: Mapping[str, Expr]) -> dict[str, Expr]:
    """``i0 < 128, i1 < s0`` -> the variables by name."""
    axes: dict[str, Expr] = {}
    for part in split(text):
        name, found, extent = part.partition(" < ")
        if not found:
            raise ParseError(f"not a loop variable with its extent: {part!r}")
        axes[name] = var(name, parse_expr(extent, {**scope, **axes}))
    return axes


@dataclass
class NestReader:
    """Reads the lines of one nest."""

    scope: Mapping[str, Expr]
    nodes: dict[str, Node] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    skeleton: Skeleton | None = None

    def line(self, text: str) -> None:
        if text.startswith("skeleton "):
            m = _match(_SKELETON, text, "a skeleton")
            slots = tuple(self.node(part) for part in split(m[2]))
            self.skeleton = Skeleton(m[1], slots, tuple(int(n) for n in split(m[3])))
            return
        if text.startswith("store "):
            self.stores.append(self.store(text))
            return
        m = _match(_DEFINITION, text, "a node or a store")
        name, dtype, kind, rest = m.groups()
        if name in self.nodes:
            raise ParseError(f"{name} is defined twice")
        node = self.definition(_dtype(dtype), kind, rest)
        if node.dtype.name != dtype:
            raise ParseError(f"{name} has dtype {node.dtype}, not {dtype}")
        self.nodes[name] = node

    def node(self, text: str) -> Node:
        if text.startswith("%"):
            if text not in self.nodes:
                raise ParseError(f"{text} is not defined")
            return self.nodes[text]
        name, found, rest = text.partition("(")
        if not found or not rest.endswith(")"):
            raise ParseError(f"not a node: {text!r}")
        dtype, literal = _dtype(name), rest[:-1]
        if dtype.is_float:
            return body.const(dtype, parse_float(literal))
        return body.const(dtype, literal == "True" if dtype.kind == "bool" else int(literal))

    def args(self, text: str) -> tuple[Node, ...]:
        return tuple(self.node(part) for part in split(text))

    def access(self, text: str) -> tuple[Expr, tuple[tuple[Expr, Node], ...], str]:
        """``[index; t0 in [0, 9] := %1] rest``"""
        inside, rest = bracketed(text)
        index, *bound = split(inside, ";")
        indirect = []
        for part in bound:
            left, found, right = part.partition(" := ")
            if not found:
                raise ParseError(f"not a binding: {part!r}")
            indirect.append((parse_symbol(left), self.node(right)))
        scope = {**self.scope, **{str(s): s for s, _ in indirect}}
        return parse_expr(index, scope), tuple(indirect), rest

    def definition(self, dtype: DType, kind: str, rest: str) -> Node:
        if kind == "load":
            buffer, _, access = rest.partition("[")
            index, indirect, _ = self.access("[" + access)
            return body.load(dtype, buffer, index, indirect)
        if kind == "index":
            return body.index(parse_expr(rest, self.scope))
        if kind == "masked":
            return body.masked(*self.args(rest))
        if kind == "reduce":
            reduction, _, tail = rest.partition(" ")
            if reduction not in reductions.TABLE.results:
                raise ParseError(f"no reduction {reduction!r}")
            names, value = bracketed(tail)
            axes = tuple(self._axis(n) for n in split(names))
            return body.reduce(reduction, axes, self.node(value))
        if kind == "scan":
            return self._scan(rest)
        if kind == "given":
            return body.given(dtype, int(rest))
        operands, found, to = rest.rpartition(" to ")
        param = _dtype(to) if found else None
        return body.op(kind, *self.args(operands if found else rest), to=param)

    def _scan(self, text: str) -> Node:
        """``sum.value [r0 to i1] %3 from %4``"""
        m = _match(_SCAN, text, "a scan")
        if m[7]:
            return body.scan(m[1], m[2], *self._along(m), self.args(m[5]), _function(m[7]))
        if not any(r.name == m[1] and r.scan for r in (*reductions.TABLE.rows, reductions.SORT)):
            raise ParseError(f"no scan {m[1]!r}")
        args = (*self.args(m[5]), *self.args(m[6] or ""))
        return body.scan(m[1], m[2], *self._along(m), args)

    def _along(self, m: re.Match[str]) -> tuple[Expr, Expr]:
        return self._axis(m[3]), parse_expr(m[4], self.scope)

    def _axis(self, name: str) -> Expr:
        if name not in self.scope:
            raise ParseError(f"no variable {name!r}")
        return self.scope[name]

    def store(self, text: str) -> Store:
        m = _match(_STORE, text, "a store")
        mode = m[1] or "set"
        if mode not in get_args(StoreMode):
            raise ParseError(f"no store mode {mode!r}")
        index, indirect, rest = self.access(m[3])
        if not rest.startswith("= "):
            raise ParseError(f"a store without a value: {text!r}")
        value, found, mask = rest[2:].partition(" if ")
        cond = self.node(mask) if found else None
        return Store(m[2], index, self.node(value), mode, indirect, cond)  # type: ignore[arg-type]


def _function(text: str) -> tuple[Node, ...]:
    """``%0: f32 = given 0; %1: f32 = given 1; give %1``"""
    reader = NestReader({})
    *lines, last = text.split("; ")
    for line in lines:
        reader.line(line)
    return reader.args(last.removeprefix("give "))


class _At:
    """Puts the line's number on errors."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ValueError, KeyError, TypeError)) and not getattr(
            error, "placed", False
        ):
            message = error.args[0] if error.args else error
            placed = ParseError(f"line {self.number}: {message}")
            placed.placed = True  # type: ignore[attr-defined]
            raise placed from error


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            yield number, line


def _nest(
    head: str, lines: Iterator[tuple[int, str]], scope: Mapping[str, Expr]
) -> Loops | Template:
    m = _match(_NEST, head, "a loop nest")
    axes = parse_axes(m[2], scope)
    reduced = parse_axes(m[3] or "", {**scope, **axes})
    reader = NestReader({**scope, **axes, **reduced})
    for number, line in lines:
        if line == "}":
            origins = tuple(split(m[5] or ""))
            loops = tuple(axes.values()), tuple(reduced.values())
            stores = tuple(reader.stores)
            if reader.skeleton is not None:
                return Template(m[1], *loops, stores, m[4], reader.skeleton, origins)
            return Loops(m[1], *loops, stores, m[4], origins)
        with _At(number):
            reader.line(line)
    raise ParseError(f"nest {m[1]} has no end")


@dataclass
class ProgramReader:
    """Reads a program's lines; what is declared is in scope from there on."""

    resolve: Resolve | None
    scope: dict[str, Expr] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    symbols: list[tuple[Expr, int, int | None]] = field(default_factory=list)
    nodes: list[ProgramNode] = field(default_factory=list)
    bodies: dict[str, Program] = field(default_factory=dict)
    outputs: tuple[object, ...] | None = None

    def line(self, text: str, lines: Iterator[tuple[int, str]]) -> None:
        word = text.partition(" ")[0]
        if word == "symbol":
            s = parse_symbol(text[len("symbol ") :])
            self.scope[str(s)] = s
        elif word == "bind":
            self._bind(text)
        elif word == "body":
            name, _, head = text[len("body ") :].partition(" = ")
            self.bodies[name] = _program(head, lines, self.resolve)
        elif word == "constant":
            self.constants[text[len("constant ") :]] = self._resolve(text[len("constant ") :])
        elif word == "return":
            value = self.value(text[len("return ") :])
            assert isinstance(value, tuple)
            self.outputs = value
        elif _EXTERN.fullmatch(text):
            self.nodes.append(self.extern(text))
        elif _CONTRACTION.fullmatch(text):
            self.nodes.append(self.contraction(text))
        elif " = " in text:
            self.nodes.append(_nest(text, lines, self.scope))
        else:
            self._buffer(text)

    def _resolve(self, name: str) -> object:
        return name if self.resolve is None else self.resolve(name)

    def _bind(self, text: str) -> None:
        m = _match(re.compile(r"bind (\S+) = (\d+)(?:\.(\d+))?"), text, "a binding")
        self.symbols.append((self.expr(m[1]), int(m[2]), None if m[3] is None else int(m[3])))

    def _buffer(self, text: str) -> None:
        m = _match(_BUFFER, text, "a line of a program")
        if m[1] in self.buffers:
            raise ParseError(f"buffer {m[1]} is declared twice")
        self.buffers[m[1]] = Buffer(m[1], *self.layout(m[2]), m[3], m[4], m[5])

    def expr(self, text: str) -> Expr:
        return parse_expr(text, self.scope)

    def layout(self, text: str) -> tuple[DType, tuple[Expr, ...], tuple[Expr, ...]]:
        m = _match(_LAYOUT, text, "a layout")
        shape, strides = (tuple(self.expr(e) for e in split(m[i])) for i in (2, 3))
        return _dtype(m[1]), shape, strides

    def value(self, text: str) -> Any:
        """The inverse of ``litz.ir.text.ValuePrinter``."""
        if text.startswith("$("):
            return self.expr(text[2:-1])
        if text.startswith("$"):
            return self.constants[text[1:]]
        if text.startswith("#"):
            return HostFloat(text[1:])
        if text.startswith("@"):
            return Subgraph(text[1:])
        if text[0] in "([":
            items = [self.value(part) for part in split(text[1:-1])]
            return tuple(items) if text[0] == "(" else items
        if text[0] in "'\"" or text in ("None", "True", "False"):
            return ast.literal_eval(text)
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        if re.match(r"-?(\d|float\.)", text):
            return parse_float(text)
        if text.startswith("torch."):
            return self._torch_value(text)
        return self.ref(text)

    def _torch_value(self, text: str) -> object:
        name, found, argument = text.partition("(")
        value = self._resolve(name)
        if not found:
            return value
        if not callable(value):
            raise ParseError(f"{name} cannot be resolved")
        return value(ast.literal_eval(argument[:-1]))

    def ref(self, text: str) -> TensorRef:
        name, found, layout = text.partition(": ")
        if not found:
            if name not in self.buffers:
                raise ParseError(f"no buffer {name!r}")
            return self.buffers[name].whole
        end = layout.rindex("}")
        plus = layout[end + 1 :]
        if not plus.startswith("+"):
            raise ParseError(f"a view without an offset: {text!r}")
        return TensorRef(name, *self.layout(layout[: end + 1]), self.expr(plus[1:]))

    def call(self, text: str) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...], _CallTail]:
        """Arguments by place and by name, and what follows them."""
        inside, rest = bracketed(text)
        args: list[object] = []
        kwargs: list[tuple[str, object]] = []
        for part in split(inside):
            keyword = re.match(r"([A-Za-z_]\w*)=(.*)", part, re.S)
            if keyword:
                kwargs.append((keyword[1], self.value(keyword[2])))
            else:
                args.append(self.value(part))
        return tuple(args), tuple(kwargs), _CallTail(rest)

    def contraction(self, text: str) -> Contraction:
        m = _match(_CONTRACTION, text, "a contraction")
        (left, right), named, tail = self.call(m[4])
        given = {"bias": None, **dict(named)}
        (out,) = split(tail.group("->"))
        device, origins = tail.word("@"), tuple(split(tail.group("from")))
        reason = ast.literal_eval(tail.rest("because")) if tail.text else ""
        made = Contraction(
            m[1], left, right, out=out, accumulate=_dtype(m[3]), device=device, origins=origins,
            reason=reason, **given,
        )  # fmt: skip
        if sizes_text(made) != m[2]:
            raise ParseError(f"the operands' sizes are {sizes_text(made)}, not {m[2]}")
        return made

    def extern(self, text: str) -> Extern:
        m = _match(_EXTERN, text, "an extern call")
        args, kwargs, tail = self.call(m[3])
        outputs = tuple(None if o == "_" else o for o in split(tail.group("->")))
        device = tail.word("@")
        single, out = not tail.flag("multi"), tail.flag("out")
        bound = [part.partition(": ") for part in split(tail.group("symbols"))]
        symbols = tuple(
            (int(p), HostFloat(s[1:]) if s.startswith("#") else self.expr(s)) for p, _, s in bound
        )
        sizes, checks = (
            tuple(self._size(part) for part in split(tail.group(word)))
            for word in ("sizes", "checks")
        )
        mutates, origins = tuple(split(tail.group("mutates"))), tuple(split(tail.group("from")))
        reason = ast.literal_eval(tail.rest("because"))
        target = self._resolve(m[2])
        return Extern(
            m[1], target, m[2], args, kwargs, outputs, device, reason, single,
            symbols, out, mutates, origins, sizes, checks,
        )  # fmt: skip

    def _size(self, text: str) -> tuple[Expr, int, int]:
        m = _match(re.compile(r"(\d+)\.(\d+): (.*)"), text, "a size of a result")
        return self.expr(m[3]), int(m[1]), int(m[2])


class _CallTail:
    """What follows a call's arguments, taken from the left."""

    def __init__(self, text: str) -> None:
        self.text = text

    def flag(self, word: str) -> bool:
        found = self.text == word or self.text.startswith(word + " ")
        if found:
            self.text = self.text[len(word) :].strip()
        return found

    def group(self, word: str) -> str:
        if not self.text.startswith(word + " ("):
            return ""
        inside, self.text = bracketed(self.text[len(word) + 1 :])
        return inside

    def word(self, mark: str) -> str:
        if not self.text.startswith(mark):
            raise ParseError(f"expected {mark!r} at {self.text!r}")
        found, _, self.text = self.text[len(mark) :].partition(" ")
        return found

    def rest(self, word: str) -> str:
        if not self.flag(word):
            raise ParseError(f"expected {word!r} at {self.text!r}")
        return self.text


def parse(text: str, *, resolve: Resolve | None = None) -> Program:
    """The program that ``litz.ir.text.program_text`` printed.

    resolve: gives the object of an extern's target (``aten.mm.default``), of a torch value
    (``torch.float32``, ``torch.device``) or of a constant; without it the name stands for itself.
    Raises ``ParseError`` with the line's number.
    """
    lines = _lines(text)
    number, head = next(lines, (1, ""))
    with _At(number):
        return _program(head, lines, resolve)


def _program(head: str, lines: Iterator[tuple[int, str]], resolve: Resolve | None) -> Program:
    """A program from its head on; its lines are taken up to its end."""
    m = _match(_PROGRAM, head, "a program's head")
    reader = ProgramReader(resolve)
    number = 1
    for number, line in lines:
        if line == "}":
            break
        with _At(number):
            reader.line(line, lines)
    else:
        with _At(number):
            raise ParseError("the program has no end")
    with _At(number):
        if reader.outputs is None:
            raise ParseError("the program returns nothing")
    return Program(
        tuple(split(m[1])),
        reader.buffers,
        tuple(reader.nodes),
        reader.outputs,
        tuple(reader.symbols),
        reader.constants,
        reader.bodies,
    )
