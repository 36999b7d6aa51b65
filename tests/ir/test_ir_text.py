"""The text form: readable, deterministic, and read back to an equal value."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from litz.index import as_expr, symbol, var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Store, float_text, stores_lines
from litz.ir.ops import OPS
from litz.ir.parse import NestReader, ParseError, parse
from litz.ir.program import Buffer, Contraction, Extern, Loops, Program, Subgraph, TensorRef
from litz.ir.text import program_text

EXAMPLE = """\
program(arg0_1, arg1_1, weight, s0) {
  symbol s0 in [2, inf] hint 8
  symbol u0 in [0, 99]
  bind s0 = 0.0
  bind s0 = 3
  arg0_1: f32[s0, 768]{768, 1} @cpu input
  arg1_1: i64[s0]{1} @cpu input
  weight: bf16[100, 768]{768, 1} @cpu input
  fixed: f32[768]{1} @cpu constant
  buf0: f32[s0, 768]{768, 1} @cpu temp
  buf1: f32[s0]{1} @cpu temp
  buf2: f32[s0, 64]{64, 1} @cpu temp
  buf3: f32[s0, 64]{64, 1} @cpu extern
  buf4: f32[64, s0]{1, 64} @cpu extern alias buf3
  buf5: f32[64, 768]{768, 1} @cpu temp
  constant fixed
  loops0 = loops [i0 < s0, i1 < 768] @cpu from (embedding, gelu) {
    %0: i64 = load arg1_1[i0]
    %1: bf16 = load weight[768*t0 + i1; t0 in [0, 99] := %0]
    %2: f32 = cast %1 to f32
    %3: i64 = index i1//64
    %4: bool = lt %3, i64(3)
    %5: f32 = load fixed[i1]
    %6: f32 = masked %4, %5, f32(-float.inf)
    %7: f32 = add %2, %6
    %8: f32 = round_to %7 to bf16
    store buf0[768*i0 + i1] = %8
    %9: bool = ne %0, i64(-1)
    store add buf1[t1; t1 in [0, 99] hint 7 := %0] = f32(0.5) if %9
  }
  loops1 = loops [i0 < s0] reduce [r0 < 12, r1 < 64] @cpu {
    %0: f32 = load buf0[768*i0 + 64*r0 + r1]
    %1: f32 = reduce max [r0, r1] %0
    %2: f32 = sub %0, %1
    %3: f32 = exp %2
    %4: f32 = reduce sum [r0, r1] %3
    %5: f32 = load buf1[i0]
    %6: f32 = mul %4, %5
    store buf1[i0] = %6
  }
  extern0 = extern aten.mm.out(buf0, fixed: f32[768, 64]{0, 1}+0) -> (buf2) @cpu out because 'GEMM'
  extern1 = extern aten.item(buf1: f32[]{}+s0 - 1) -> (_) @cpu symbols (0: u0) because "it's data"
  extern2 = extern aten.op(buf2, $(2*s0), 3, -0.5, True, None, 'a, "b"', (1,), [$(s0), 2], torch.bfloat16, torch.device("cpu"), dim=-1, eps=float.nan, opt=()) -> (buf3, buf4, _) @cpu multi mutates (buf0) from (split) because ''
  contraction0 = contraction [m 64, n 768, k s0] in f32 (buf4, buf0, bias=fixed, alpha=0.5, beta=$(s0)) -> (buf5) @cpu from (addmm) because 'larger'
  return (buf3, buf4: f32[s0]{64}+3, $(s0 + u0), None, 2)
}"""  # noqa: E501


def resolve(name: str) -> object:
    special = {"torch.bfloat16": torch.bfloat16, "torch.device": torch.device}
    return special.get(name, f"<{name}>")


def test_a_program_prints_as_it_was_read():
    program = parse(EXAMPLE, resolve=resolve)
    assert program_text(program) == EXAMPLE
    assert parse(program_text(program), resolve=resolve) == program


WITH_BODIES = """\
program(p, x, s0) {
  symbol s0 in [2, inf] hint 8
  bind s0 = 2
  p: bool[]{} @cpu input
  x: f32[s0]{1} @cpu input
  buf0: f32[s0]{1} @cpu extern
  body body0 = program(a) {
    a: f32[4]{1} @cpu input
    buf0: f32[4]{1} @cpu extern
    body body0 = program() {
      return ()
    }
    extern0 = extern higher_order.invoke_subgraph(@body0, (a,)) -> (buf0) @cpu multi because ''
    return (buf0,)
  }
  body body1 = program(a) {
    a: f32[4]{1} @cpu input
    return (a,)
  }
  extern0 = extern higher_order.cond(@body0, @body1, p, (x,)) -> (buf0) @cpu multi because ''
  return (buf0,)
}"""


def test_bodies_print_as_they_were_read():
    program = parse(WITH_BODIES)
    assert program_text(program) == WITH_BODIES
    assert [*program.bodies] == ["body0", "body1"] and [*program.bodies["body0"].bodies] == [
        "body0"
    ]
    (call,) = program.nodes
    assert isinstance(call, Extern) and call.bodies == (Subgraph("body0"), Subgraph("body1"))
    assert call.read_buffers() == ("p", "x")
    with pytest.raises(ParseError, match="line 21: the program returns nothing"):
        parse(WITH_BODIES.replace("  return (buf0,)\n}", "}"))


def test_what_was_read_is_what_was_meant():
    p = parse(EXAMPLE, resolve=resolve)
    s0, u0 = symbol("s0", 2, None, 8), symbol("u0", 0, 99)
    assert p.inputs == ("arg0_1", "arg1_1", "weight", "s0")
    assert p.symbols == ((s0, 0, 0), (s0, 3, None))
    assert p.constants == {"fixed": "<fixed>"}
    assert p.buffers["buf4"] == Buffer(
        "buf4", d.F32, (as_expr(64), s0), (as_expr(1), as_expr(64)), "cpu", "extern", "buf3"
    )
    first, second, mm, item, op, product = p.nodes
    assert isinstance(first, Loops) and first.origins == ("embedding", "gelu")
    assert first.axes == (var("i0", s0), var("i1", 768))
    scatter = first.stores[1]
    index = body.load(d.I64, "arg1_1", var("i0", s0))
    t1 = symbol("t1", 0, 99, 7)
    mask = body.op("ne", index, body.const(d.I64, -1))
    assert scatter == Store("buf1", t1, body.const(d.F32, 0.5), "add", ((t1, index),), mask)
    assert isinstance(second, Loops) and [str(a) for a in second.reduce_axes] == ["r0", "r1"]
    assert isinstance(mm, Extern) and mm.out_variant and mm.target == "<aten.mm.out>"
    view = TensorRef(
        "fixed", d.F32, (as_expr(768), as_expr(64)), (as_expr(0), as_expr(1)), as_expr(0)
    )
    assert mm.args[1] == view
    assert isinstance(item, Extern) and item.symbols == ((0, u0),) and item.outputs == (None,)
    assert isinstance(op, Extern) and not op.single and op.mutates == ("buf0",)
    assert op.args[1:7] == (2 * s0, 3, -0.5, True, None, 'a, "b"')
    assert op.args[7:] == ((1,), [s0, 2], torch.bfloat16, torch.device("cpu"))
    assert type(op.args[2]) is int
    assert dict(op.kwargs)["dim"] == -1 and math.isnan(dict(op.kwargs)["eps"])
    assert isinstance(product, Contraction) and product.accumulate is d.F32
    assert (product.alpha, product.beta, product.reason) == (0.5, s0, "larger")
    assert [r.buffer for r in product.refs()] == ["fixed", "buf4", "buf0"]
    assert product.axes == {"m": as_expr(64), "n": as_expr(768), "k": s0}
    assert p.outputs[2:] == (s0 + u0, None, 2)


def read_back(store: Store) -> Store:
    reader = NestReader({})
    for line in stores_lines((store,)):
        reader.line(line)
    (found,) = reader.stores
    return found


def test_each_node_is_printed_once():
    x = body.load(d.F32, "b", var("i", 4))
    for _ in range(40):  # as a tree this has 2^40 nodes
        x = body.op("add", x, x)
    assert len(repr(x).split("; ")) == 41


def test_node_text_serves_half_built_nodes():
    assert repr(body.Node.__new__(body.Op)).startswith("<Op:")
    assert repr(body.const(d.F32, -0.0)) == "f32(-0.0)"
    assert repr(body.const(d.BOOL, True)) == "bool(True)"


@pytest.mark.parametrize(
    "bits",
    [0x0, 0x8000000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000]
    + [0xFFF8000000000000, 0x7FF8000000000001, 0x1, 0x3FB999999999999A, 0x7FEFFFFFFFFFFFFF],
)
def test_literals_keep_their_bits(bits: int):
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    node = body.op("neg", body.const(d.F64, value))
    store = Store("b", as_expr(0), node)
    again = read_back(store)
    assert again.value is node, float_text(value)


@pytest.mark.parametrize("dtype", d.ALL, ids=str)
def test_literals_of_every_type(dtype: d.DType):
    for value in (0, 1, True):
        node = body.op("where", body.load(d.BOOL, "m", as_expr(0)), *[body.const(dtype, value)] * 2)
        again = read_back(Store("b", as_expr(0), node))
        assert again.value is node


def test_symbols_of_one_name_and_other_ranges_stay_apart():
    load = body.load(d.I64, "n", as_expr(0))
    a, b = (
        body.load(d.F32, "x", symbol("t0", 0, hi), ((symbol("t0", 0, hi), load),)) for hi in (3, 7)
    )
    assert a is not b
    again = read_back(Store("o", as_expr(0), body.op("add", a, b)))
    assert again.value is body.op("add", a, b)


def operand(kind: str, name: str) -> body.Node:
    dtype = {"b": d.BOOL, "i": d.I32, "f": d.F32, "h": d.BF16, "l": d.I64}[kind.strip("*")[-1]]
    return body.load(dtype, name, as_expr(0))


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_is_read_back(name: str):
    row = OPS[name]
    to = {"round_to": d.BF16, "bitcast": d.F16, "cast": d.F64}.get(name)
    assert row.takes_dtype == (to is not None)
    args = [operand(kind, f"b{k}") for k, kind in enumerate(row.kinds)]
    node = body.op(name, *args, to=to)
    again = read_back(Store("o", as_expr(0), node))
    assert again.value is node


BROKEN = [
    ("f32 = load fixed[i1]", "f32 = load fixed[i7]", 23, "i7"),
    ("lt %3, i64(3)", "lt %33, i64(3)", 22, "%33 is not defined"),
    ("%4: bool = lt", "%4: f32 = lt", 22, "has dtype bool, not f32"),
    ("f32 = exp %2", "f32 = expp %2", 35, "expp"),
    ("reduce sum", "reduce product", 36, "no reduction 'product'"),
    ("store add buf1", "store plus buf1", 29, "no store mode 'plus'"),
    ("store buf1[i0] = %6", "store buf1[i0] %6", 39, "a store without a value"),
    ("%1: f32 = reduce max", "%0: f32 = reduce max", 33, "%0 is defined twice"),
    ("i1 < 768] @cpu from", "i1] @cpu from", 17, "not a loop variable"),
    ("buf0: f32[s0, 768]", "buf0: f33[s0, 768]", 10, "no dtype 'f33'"),
    ("buf0: f32[s0, 768]", "buf0: f32[s1, 768]", 10, "s1"),
    ("  buf1: f32[s0]", "  buf0: f32[s0]", 11, "declared twice"),
    ("symbol u0 in [0, 99]", "symbol u0 [0, 99]", 3, "not a symbol"),
    ("aten.mm.out(buf0,", "aten.mm.out(buf00,", 41, "no buffer 'buf00'"),
    ("program(", "programme(", 1, "not a program's head"),
    ("m 64, n 768", "m 64, n 76", 44, "are m 64, n 768, k s0, not m 64, n 76, k s0"),
    ("  return (buf3", "  give (buf3", 45, "not a line of a program"),
]


@pytest.mark.parametrize("old, new, line, message", BROKEN)
def test_errors_name_the_line(old: str, new: str, line: int, message: str):
    assert EXAMPLE.count(old) == 1
    with pytest.raises(ParseError) as e:
        parse(EXAMPLE.replace(old, new), resolve=resolve)
    assert str(e.value).startswith(f"line {line}: ")
    assert message in str(e.value)


def test_missing_ends_are_errors():
    with pytest.raises(ParseError, match="has no end"):
        parse(EXAMPLE.rstrip("}"), resolve=resolve)
    with pytest.raises(ParseError, match="returns nothing"):
        parse("program() {\n}")


def test_programs_without_anything():
    empty = Program((), {}, (), ())
    assert program_text(empty) == "program() {\n  return ()\n}"
    assert parse(program_text(empty)) == empty
