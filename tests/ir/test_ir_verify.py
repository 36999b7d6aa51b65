"""Every rule of the verifier: a good program passes, and each way to break it is named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from litz.errors import VerifyError
from litz.index import Expr, as_expr, symbol, var
from litz.ir import body
from litz.ir import dtype as d
from litz.ir.body import Store
from litz.ir.parse import parse
from litz.ir.program import Buffer, Loops, Program
from litz.ir.verify import RULES, verify

GOOD = """\
program(arg0_1, arg1_1, s0) {
  symbol s0 in [2, inf] hint 8
  bind s0 = 0.0
  arg0_1: f32[s0, 64]{64, 1} @cpu input
  arg1_1: i64[8]{1} @cpu input
  fixed: f32[64, 32]{32, 1} @cpu constant
  buf0: f32[8, 64]{64, 1} @cpu temp
  buf1: f32[8]{1} @cpu temp
  buf2: f32[8, 32]{32, 1} @cpu temp
  buf3: f32[8, 32]{32, 1} @cpu extern
  buf4: f32[8, 32]{32, 1} @cpu extern alias buf3
  buf5: f32[10, 64]{64, 1} @cpu temp
  buf6: f32[8, 8]{8, 1} @cpu temp
  constant fixed
  loops0 = loops [i0 < 8, i1 < 64] @cpu {
    %0: i64 = load arg1_1[i0]
    %1: f32 = load arg0_1[64*t0 + i1; t0 in [0, 7] := %0]
    %2: i64 = index i1
    %3: bool = lt %2, i64(63)
    %4: f32 = load fixed[i1 + 2000]
    %5: f32 = masked %3, %4, f32(0.0)
    %6: f32 = add %1, %5
    store buf0[64*i0 + i1] = %6
  }
  loops1 = loops [i0 < 8] reduce [r0 < 64] @cpu {
    %0: f32 = load buf0[64*i0 + r0]
    %1: f32 = reduce sum [r0] %0
    store buf1[i0] = %1
  }
  loops2 = loops [i0 < 8] @cpu {
    %0: i64 = load arg1_1[i0]
    %1: bool = ne %0, i64(0)
    %2: f32 = load buf1[i0]
    store add buf0[64*t0; t0 in [0, 7] := %0] = %2 if %1
  }
  extern0 = extern aten.mm.out(buf0, fixed) -> (buf2) @cpu out because 'GEMM'
  extern1 = extern op(buf2, $(s0)) -> (buf3, _) @cpu multi symbols (1: u0) mutates (buf1) because ''
  extern2 = extern aten.view(buf3) -> (buf4) @cpu because ''
  mm3 = contraction [m 8, n 8, k 32] in f32 (buf2, buf3: f32[32, 8]{1, 32}+0) -> (buf6) @cpu
  loops3 = loops [i0 < 8, i1 < 64] @cpu {
    store buf5[64*i0 + i1] = f32(1.0)
  }
  loops4 = loops [i0 < 2, i1 < 64] @cpu {
    store buf5[64*i0 + i1 + 512] = f32(2.0)
  }
  body body0 = program(a, b) {
    a: f32[8]{1} @cpu input
    b: f32[8]{1} @cpu input
    c: f32[8]{1} @cpu temp
    loops0 = loops [i0 < 8] @cpu {
      %0: f32 = load a[i0]
      store c[i0] = %0
    }
    return (c,)
  }
  buf7: f32[8]{1} @cpu extern
  extern3 = extern higher_order.cond(@body0, buf1, (buf1, buf1)) -> (buf7) @cpu multi because ''
  return (buf4, buf1, buf5, $(s0 + u0), None)
}""".replace("constant fixed\n", "constant fixed\n  symbol u0 in [0, inf]\n")

BROKEN = [
    ("body", "cond(@body0", "cond(@body9", "runs body9, which there is not"),
    ("body", "(buf1, buf1)", "(buf1,)", "body0 takes 2 inputs, extern3 gives 1"),
    ("bounds", "%0: f32 = load a[i0]", "%0: f32 = load a[i0 + 8]", "leaves the 8 elements of a"),
    ("contraction", "buf6: f32[8, 8]{8, 1} @cpu temp", "buf6: f64[8, 8]{8, 1} @cpu temp", "is f64"),
    ("contraction", "buf6: f32[8, 8]{8, 1} @cpu temp", "buf6: f32[8, 9]{9, 1} @cpu temp", "sizes"),
    ("contraction", "buf3: f32[32, 8]{1, 32}+0", "buf3: f32[16, 8]{1, 32}+0", "do not agree"),
    ("device", "buf6: f32[8, 8]{8, 1} @cpu", "buf6: f32[8, 8]{8, 1} @cuda", "buf6 does not lie"),
    ("buffer", "-> (buf6)", "-> (buf66)", "no buffer buf66"),
    ("defined", "in f32 (buf2, buf3: f32", "in f32 (buf5: f32[8, 32]{32, 1}+0, buf3: f32", "buf5"),
    ("buffer", "-> (buf3, _)", "-> (buf33, _)", "no buffer buf33"),
    ("buffer", "mutates (buf1)", "mutates (buf11)", "no buffer buf11"),
    ("buffer", "load buf0[", "load buf00[", "no buffer buf00"),
    ("layout", "buf2: f32[8, 32]{32, 1}", "buf2: f32[8, 32]{32}", "2 sizes and 1 strides"),
    ("layout", "buf1: f32[8]", "buf1: f32[-8]", "has the size -8"),
    ("kind", "buf1: f32[8]{1} @cpu temp", "buf1: f32[8]{1} @cpu tmp", "of kind 'tmp'"),
    ("alias", "alias buf3", "alias buf4", "alias of buf4 leads to buf4"),
    ("alias", "alias buf3", "alias buf9", "alias of buf4 leads to buf9"),
    ("input", "(arg0_1, arg1_1, s0)", "(arg0_1, arg1_1, arg0_1)", "one name"),
    ("input", "bind s0 = 0.0", "bind s0 = 9", "argument 9"),
    ("input", "bind s0 = 0.0", "bind s0 = 0.2", "dimension 2 of arg0_1"),
    ("input", "64]{64, 1} @cpu input", "64]{64, 1} @cpu temp", "input arg0_1 is of kind 'temp'"),
    ("name", "loops1 = ", "loops0 = ", "two nodes are named loops0"),
    ("name", "reduce [r0 < 64] @cpu", "reduce [r0 < 64, i0 < 3] @cpu", "one name"),
    ("defined", "%0: f32 = load buf0[64*i0 + r0]", "%0: f32 = load buf5[64*i0 + r0]", "reads buf5"),
    ("defined", "aten.mm.out(buf0", "aten.mm.out(buf3", "takes buf3 before"),
    ("defined", "mutates (buf1)", "mutates (buf5)", "into buf5 before"),
    ("once", "buf5[64*i0 + i1 + 512] = f32(2.0)", "buf1[i0] = f32(2.0)", ""),
    ("output", "-> (buf2) @cpu out", "-> (buf2) @cpu", "binds buf2"),
    ("output", "-> (buf4) @cpu", "-> (buf3) @cpu", "binds buf3 a second time"),
    ("output", "-> (buf4) @cpu", "-> (arg0_1) @cpu", "of kind 'input'"),
    ("output", "-> (buf3, _) @cpu multi", "-> (buf3, _) @cpu", "one result and 2 outputs"),
    ("output", "store buf1[i0]", "store fixed[i0]", "of kind 'constant'"),
    ("output", "store buf1[i0]", "store buf3[i0]", "before an extern returns it"),
    ("dtype", "store buf1[i0] = %1", "store arg1_1[i0] = %1", "a store of f32 to arg1_1"),
    ("symbol", "$(s0 + u0)", "$(s0 + v0)", "value of v0"),
    ("symbol", "buf2, $(s0)", "buf2, $(u0)", "value of u0"),
    ("symbol", "bind s0 = 0.0\n", "\n", "value of s0"),
    ("bounds", "load buf0[64*i0 + r0]", "load buf0[64*i0 + r0 + 1]", "leaves the 512 elements"),
    ("bounds", "load buf0[64*i0 + r0]", "load buf0[64*i0 + r0 - 1]", "leaves the 512 elements"),
    ("bounds", "load buf0[64*i0 + r0]", "load buf0[r0 // 4 + 512]", "leaves the 512 elements"),
    ("bounds", "buf5[64*i0 + i1 + 512]", "buf5[64*i0 + i1 + 640]", "leaves the 640 elements"),
    ("skeleton", "buf1[i0] = %1", "buf1[i0] = %1\nskeleton matmul [] sizes []", "is no product"),
    ("skeleton", "buf1[i0] = %1", "buf1[i0] = %1\nskeleton knot [] sizes []", "no skeleton knot"),
    ("device", "[r0 < 64] @cpu", "[r0 < 64] @cuda:0", "runs on cuda:0, buf0 lies on cpu"),
]


def good() -> Program:
    return parse(GOOD)


def test_a_good_program_passes():
    verify(good(), "lowering")


@pytest.mark.parametrize("rule, old, new, message", BROKEN)
def test_broken_programs(rule: str, old: str, new: str, message: str):
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if "v0" in message:
        text = text.replace("symbol u0", "symbol v0 in [0, 9]\n  symbol u0")
    if rule == "once":  # the same buffer filled twice, unread in between
        text = (
            GOOD.replace("buf5: f32[10, 64]", "buf5: f32[8, 64]")
            .replace("[i0 < 2, i1 < 64]", "[i0 < 8, i1 < 64]")
            .replace(" + 512]", "]")
        )
        message = "loops4 overwrites buf5, which loops3 stored"
    with pytest.raises(VerifyError) as e:
        verify(parse(text), "lowering")
    assert f"rule {rule!r}" in str(e.value), str(e.value)
    assert message in str(e.value)
    assert str(e.value).startswith("after lowering: ")


I0, R0 = var("i0", 8), var("r0", 4)
BUFFERS = {
    "x": Buffer("x", d.F32, (as_expr(8), as_expr(4)), (as_expr(4), as_expr(1)), "cpu", "input"),
    "y": Buffer("y", d.F32, (as_expr(8),), (as_expr(1),), "cpu"),
    "n": Buffer("n", d.I64, (as_expr(8),), (as_expr(1),), "cpu", "input"),
    "flag": Buffer("flag", d.BOOL, (as_expr(8),), (as_expr(1),), "cpu", "input"),
}


def x_at(index: object) -> body.Load:
    return body.load(d.F32, "x", as_expr(index))  # type: ignore[arg-type]


def forged(node: body.Node, **fields: object) -> body.Node:
    """A node that the constructors would have refused."""
    new = type(node).__new__(type(node))
    slots = {s for c in type(node).__mro__ for s in getattr(c, "__slots__", ())} - {"__weakref__"}
    for s in slots:
        setattr(new, s, fields.get(s, getattr(node, s)))
    return new


ROW = body.reduce("sum", (R0,), x_at(4 * I0 + R0))
T0 = symbol("t0", 0, 7)
NODES = [
    ("variable", Store("y", I0, x_at(var("j0", 8))), "j0 is no variable"),
    ("variable", Store("y", var("i0", 7), x_at(I0)), "i0 is no variable"),
    ("full-space", Store("y", I0, x_at(4 * I0 + R0)), "r0 is used outside"),
    ("full-space", Store("y", I0 + R0, x_at(I0)), "stored at a reduced variable"),
    ("reduce", Store("y", I0, body.reduce("sum", (I0,), x_at(I0))), "over [i0]"),
    ("reduce", Store("y", I0, body.reduce("sum", (R0, R0), x_at(I0 + R0))), "over [r0, r0]"),
    ("reduce", Store("y", I0, body.reduce("sum", (), x_at(I0))), "over []"),
    ("scan", Store("y", I0, body.scan("sum", "value", I0, I0, (x_at(I0),))), "a scan over i0"),
    (
        "scan",
        Store("y", I0, body.scan("sum", "value", R0, I0, (x_at(R0), x_at(R0)))),
        "starts with what depends on r0",
    ),
    (
        "operand",
        Store(
            "y",
            I0,
            body.scan("cummax", "value", R0, I0, (x_at(R0), x_at(R0), x_at(I0), body.index(I0))),
        ),
        "a scan cummax of f32, f32, f32, i64",
    ),
    ("variable", Store("y", I0, body.scan("sum", "value", R0, var("j0", 8), (x_at(R0),))), "j0"),
    ("dtype", Store("y", I0, body.cast(body.load(d.F32, "n", I0), d.F32)), "load of f32 from n"),
    ("dtype", Store("y", I0, body.load(d.I64, "n", I0)), "store of i64 to y"),
    ("mask", Store("y", I0, x_at(I0), mask=body.load(d.I64, "n", I0)), "mask of type i64"),
    (
        "mask",
        Store("y", I0, body.masked(body.load(d.I64, "n", I0), x_at(I0), ROW)),
        "condition of type i64",
    ),
    (
        "operand",
        Store("y", I0, forged(body.op("neg", x_at(I0)), args=(body.load(d.BOOL, "flag", I0),))),
        "neg",
    ),
    (
        "operand",
        Store("y", I0, forged(body.op("lt", x_at(I0), ROW), dtype=d.F32)),
        "lt gives bool, not f32",
    ),
    ("indirect", Store("y", T0, x_at(I0), indirect=((T0, x_at(I0)),)), "bound to f32"),
    (
        "indirect",
        Store("y", I0, x_at(I0), indirect=((T0, body.load(d.I64, "n", I0)),)),
        "t0 of y is bound",
    ),
    ("buffer", Store("z", I0, x_at(I0)), "no buffer z"),
    ("bounds", Store("y", I0 + 1, x_at(I0)), "leaves the 8 elements"),
]


def verify_nest(
    store: Store,
    after: str = "lowering",
    reduce_axes: tuple[Expr, ...] = (R0,),
    buffers: Mapping[str, Buffer] = BUFFERS,
) -> None:
    """Check a program of one nest, over ``I0``."""
    nest = Loops("nest", (I0,), reduce_axes, (store,), "cpu")
    inputs = tuple(name for name, b in buffers.items() if b.kind == "input")
    verify(Program(inputs, buffers, (nest,), ()), after)


@pytest.mark.parametrize("rule, store, message", NODES, ids=range(len(NODES)))
def test_broken_nests(rule: str, store: Store, message: str):
    with pytest.raises(VerifyError) as e:
        verify_nest(store)
    assert f"rule {rule!r}" in str(e.value), str(e.value)
    assert message in str(e.value)


def test_groups_may_store_the_full_space():
    center = body.op("sub", x_at(4 * I0 + R0), ROW)
    x = BUFFERS["x"]
    buffers = {**BUFFERS, "z": Buffer("z", d.F32, x.shape, x.strides, "cpu")}
    store = Store("z", 4 * I0 + R0, center)
    verify_nest(store, "schedule", buffers=buffers)
    with pytest.raises(VerifyError, match="full-space"):
        verify_nest(store, buffers=buffers)


def test_every_rule_is_tested():
    tested = {rule for rule, *_ in BROKEN} | {rule for rule, *_ in NODES}
    assert tested == set(RULES)


def test_steps_stand_in_for_the_nodes():
    p = good()
    verify(p, "schedule", p.nodes)
    with pytest.raises(VerifyError, match="reads buf0 before"):
        verify(p, "schedule", p.nodes[1:])


def test_the_message_shows_the_place():
    text = GOOD.replace("load buf0[64*i0 + r0]", "load buf0[64*i0 + r0 + 1]")
    with pytest.raises(VerifyError) as e:
        verify(parse(text), "lowering")
    assert str(e.value) == (
        "after lowering: buf0[64*i0 + r0 + 1] leaves the 512 elements of buf0\n"
        "  rule 'bounds': no access lies outside of its buffer\n"
        "    loops0 = loops [i0 < 8, i1 < 64] @cpu {\n"
        "      ...\n"
        "    loops1 = loops [i0 < 8] reduce [r0 < 64] @cpu {\n"
        ">>>   %0: f32 = load buf0[64*i0 + r0 + 1]\n"
        "    ^ buf0[64*i0 + r0 + 1] leaves the 512 elements of buf0\n"
        "      %1: f32 = reduce sum [r0] %0\n"
        "      store buf1[i0] = %1\n"
        "    }\n"
        "    loops2 = loops [i0 < 8] @cpu {\n"
        "      ..."
    )


def test_nothing_is_outside_of_what_never_runs():
    empty = Loops("l", (var("i0", 0),), (), (Store("y", I0 * 0 + 9, body.const(d.F32, 0)),), "cpu")
    verify(Program((), {"y": BUFFERS["y"]}, (empty,), ()), "lowering")


def test_shared_nodes_are_walked_once():
    x: body.Node = x_at(I0)
    for _ in range(60):  # 2^60 paths
        x = body.op("add", x, x)
    verify_nest(Store("y", I0, x), reduce_axes=())
