"""The printed Python of host programs: its text, and what it does when it runs."""

from __future__ import annotations

import math

import pytest
import torch

from litz.host.lines import (
    Allocate,
    BindSize,
    CallExtern,
    CallKernel,
    CallSegment,
    Comment,
    EnterDevice,
    Free,
    HostProgram,
    LeaveDevice,
    Line,
    Place,
    Return,
    Reuse,
    Workspace,
    host_text,
)
from litz.host.python import print_host
from litz.host.segment import segment_tables
from litz.index import as_expr, floordiv, max_, symbol
from litz.ir import dtype as d
from litz.ir.program import Buffer, Extern, TensorRef
from litz.loading.values import load_host

aten = torch.ops.aten
S0, S1 = symbol("s0", 2, None, 8), symbol("s1", 0, 64, 4)


def buffer(name: str, *shape: object, dtype: d.DType = d.F32, kind: str = "temp", **kw) -> Buffer:
    sizes = tuple(as_expr(s) for s in shape)
    strides = [as_expr(1)]
    for s in sizes[:0:-1]:
        strides.append(strides[-1] * s)
    own = tuple(strides[::-1]) if shape else ()
    return Buffer(name, dtype, sizes, kw.pop("strides", own), kw.pop("device", "cpu"), kind, **kw)


def whole(b: Buffer) -> TensorRef:
    return TensorRef(b.name, b.dtype, b.shape, b.strides, as_expr(0))


def extern(target: object, args: tuple, outputs: tuple, kwargs: tuple = (), **kw) -> CallExtern:
    name = kw.pop("target_name", str(target))
    return CallExtern(Extern("e", target, name, args, kwargs, outputs, "cpu", "", **kw))


def host(inputs: str, buffers: list[Buffer], lines: list[Line], **kw) -> HostProgram:
    return HostProgram(tuple(inputs.split()), {b.name: b for b in buffers}, tuple(lines), **kw)


X = buffer("x", S0, 4, kind="input")
W = buffer("w", 4, 4, kind="input")


def test_a_module_in_full():
    y, z = buffer("buf0", S0, 4), buffer("buf1", S0, 4)
    t, big = buffer("buf2", 4), buffer("buf3", 2048, 1024)
    transposed = TensorRef("w", d.F32, W.shape, (as_expr(1), as_expr(4)), as_expr(0))
    column = TensorRef("buf3", d.F32, (S0,), (as_expr(2),), S0 - 1)
    calls = (
        CallKernel("k0", ("x", "buf2", "buf0"), (S0,)),
        CallKernel("k1", ("buf2", "buf3"), (S0, S0 * 4)),
    )
    program = host(
        "x w",
        [X, W, y, z, t, big],
        [
            Comment("two kernels"),
            BindSize(S0, 0, 0),
            Workspace("workspace_0", 256, "cpu"),
            Allocate("buf0"),
            Allocate("buf3"),
            Place("buf2", "workspace_0", 128),
            CallSegment("segment_0", calls),
            Free("workspace_0"),
            Free("x"),
            Allocate("buf1"),
            extern(aten.mm.out, (whole(y), transposed), ("buf1",), out_variant=True),
            Free("buf0"),
            Free("w"),
            Return((whole(z), column, S0 * 2, None)),
        ],
    )
    printed = print_host(program)
    assert printed.source == (
        "import torch\n"
        "from litz.runtime.prelude import "
        "empty_large, empty_strided, in_memory, reinterpret, workspace\n"
        "\n"
        "_t0 = torch.float32\n"
        "_op1 = torch.mm\n"
        "\n\n"
        "def call(args):\n"
        "    x, w = args\n"
        "    args.clear()\n"
        "    # two kernels\n"
        "    s0 = x.shape[0]\n"
        "    workspace_0 = workspace(256)\n"
        "    v_workspace_0_ptr = workspace_0.data_ptr()\n"
        "    buf0 = empty_strided((s0, 4), (4, 1), _t0)\n"
        "    buf3 = empty_large((2048, 1024), (1024, 1), _t0)\n"
        "    segment_0((x.data_ptr() or (x := in_memory(x)).data_ptr()), "
        "v_workspace_0_ptr + 128, buf0.data_ptr(), "
        "buf3.data_ptr(), s0, 4*s0)\n"
        "    del workspace_0, x\n"
        "    buf1 = empty_strided((s0, 4), (4, 1), _t0)\n"
        "    _op1(buf0, reinterpret(w, (4, 4), (1, 4), 0), out=buf1)\n"
        "    return (buf1, reinterpret(buf3, (s0,), (2,), s0 - 1), 2*s0, None)\n"
    )
    assert printed.segments == ("segment_0",) and printed.kernels == () and printed.values == {}
    (table,) = segment_tables(program)
    assert (table.name, table.n_ptrs, table.n_ints) == ("segment_0", 4, 2)
    assert table.steps == (("k0", (0, 1, 2), (0,)), ("k1", (1, 3), (0, 1)))
    assert "place buf2 = workspace_0+128" in host_text(program)

    seen = []
    call = load_host(printed.source, {"segment_0": lambda *a: seen.append(a)})
    args = [torch.randn(5, 4), torch.randn(4, 4)]
    outputs = call(args)
    assert args == [] and outputs[2:] == (10, None)
    assert outputs[1].shape == (5,) and outputs[1].stride() == (2,)
    assert outputs[1].storage_offset() == 4
    assert len(seen[0]) == 6 and seen[0][4:] == (5, 20)


def run(program: HostProgram, args: list, **namespace: object) -> tuple:
    printed = print_host(program)
    return load_host(printed.source, {**printed.namespace(), **namespace})(args)


def returned(value: object) -> object:
    """What comes of a value that is passed through a call and back."""
    box: list[object] = []
    program = host("x", [X], [BindSize(S0, 0, 0), extern(box.append, (value,), ()), Return(())])
    run(program, [torch.randn(5, 4)])
    return box[0]


class Opaque:
    pass


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -3, 1 << 40, 1.5, -0.0, math.inf, -math.inf, "a'b\n\"", (), (1,)]
    + [[1, 2], (1, (2.5, [None])), torch.float16, torch.strided, torch.channels_last]
    + [torch.device("cpu"), torch.device("cuda:1"), ..., Opaque(), torch.Generator()],
    ids=lambda v: repr(v).split(" at ")[0],
)
def test_argument_values(value: object):
    got = returned(value)
    assert type(got) is type(value) and got == value
    if isinstance(value, float):
        assert math.copysign(1, got) == math.copysign(1, value)


def test_nan_and_symbolic_arguments():
    assert math.isnan(returned(math.nan))
    assert returned(((S0 + 1) * 3, floordiv(S0, 2), max_(S0, 7))) == (18, 2, 7)


@pytest.mark.parametrize(
    "view, expected",
    [
        (((S0, 4), (4, 1), 0, d.F32), lambda x: x),
        (((4, S0), (1, 4), 0, d.F32), lambda x: x.t()),
        (((2,), (2,), S0, d.F32), lambda x: x.flatten()[5:8:2]),
        (((S0, 4), (4, 1), 0, d.I32), lambda x: x.view(torch.int32)),
        (((S0, 8), (8, 1), 0, d.BF16), lambda x: x.view(torch.bfloat16)),
        (((3,), (1,), 2, d.I32), lambda x: x.view(torch.int32).flatten()[2:5]),
    ],
)
def test_views(view, expected):
    shape, strides, offset, dtype = view
    ref = TensorRef(
        "x",
        dtype,
        tuple(map(as_expr, shape)),
        tuple(map(as_expr, strides)),
        as_expr(offset),
    )
    # The input is a view itself: offsets count from its first element.
    x = torch.randn(9, 4)[4:]
    out = run(host("x", [X], [BindSize(S0, 0, 0), Return((ref,))]), [x])[0]
    assert out.shape == expected(x).shape and out.stride() == expected(x).stride()
    assert out.dtype == expected(x).dtype
    assert torch.equal(*(t.contiguous().view(torch.uint8) for t in (out, expected(x))))  # nans too
    assert out.data_ptr() == expected(x).data_ptr()


def test_extern_results():
    a, b = buffer("a", S0, 2, kind="extern"), buffer("b", S0, 2, kind="extern")
    x = torch.randn(5, 4)
    split = extern(aten.split.Tensor, (whole(X), 2, 1), ("a", "b"), single=False)
    got = run(host("x", [X, a, b], [split, Return((whole(a), whole(b)))]), [x])
    assert torch.equal(got[0], x[:, :2]) and torch.equal(got[1], x[:, 2:])
    one = extern(aten.split.Tensor, (whole(X), 4, 1), ("a",), single=False)
    assert torch.equal(run(host("x", [X, a], [one, Return((whole(a),))]), [x])[0], x)
    unused = extern(aten.split.Tensor, (whole(X), 2, 1), (None, "b"), single=False)
    assert torch.equal(run(host("x", [X, b], [unused, Return((whole(b),))]), [x])[0], x[:, 2:])


def test_numbers_from_externs():
    u0 = symbol("u0", 0, None)
    item = extern(aten._local_scalar_dense.default, (whole(X),), (None,), symbols=((0, u0),))
    assert run(host("x", [X], [item, Return((u0 + 1,))]), [torch.tensor(41)]) == (42,)


def test_results_into_memory_of_the_program():
    y, m, v = buffer("y", 5, 4), buffer("m", 5, 1), buffer("v", 5, 1)
    x = torch.randn(5, 4)
    plain = extern(aten.neg.default, (whole(X),), ("y",), out_variant=True)
    got = run(host("x", [X, y], [Allocate("y"), plain, Return((whole(y),))]), [x])
    assert torch.equal(got[0], -x)
    no_out = extern(aten.silu_backward.default, (whole(X), whole(X)), ("y",), out_variant=True)
    got = run(host("x", [X, y], [Allocate("y"), no_out, Return((whole(y),))]), [x])
    assert torch.equal(got[0], aten.silu_backward(x, x))
    no_form = extern(lambda t: t * 2, (whole(X),), ("y",), out_variant=True, target_name="twice")
    got = run(host("x", [X, y], [Allocate("y"), no_form, Return((whole(y),))]), [x])
    assert torch.equal(got[0], x * 2)
    norm = extern(
        aten.native_layer_norm.default,
        (whole(X), (4,), None, None, 1e-5),
        ("y", "m", "v"),
        out_variant=True,
        single=False,
    )
    lines = [*map(Allocate, "ymv"), norm, Return((whole(y), whole(m), whole(v)))]
    got = run(host("x", [X, y, m, v], lines), [x])
    expected = aten.native_layer_norm(x, [4], None, None, 1e-5)
    assert all(torch.equal(g, e) for g, e in zip(got, expected, strict=True))
    pair = extern(lambda t: (t, -t), (whole(X),), ("y", None), out_variant=True, single=False)
    got = run(host("x", [X, y], [Allocate("y"), pair, Return((whole(y),))]), [x])
    assert torch.equal(got[0], x)


def test_promised_strides_are_kept_for_kernels():
    y = buffer("y", 4, 5, kind="extern")  # row-major, but t() gives column-major
    t = extern(aten.t.default, (whole(X),), ("y",))
    call = CallKernel("k", ("y",))
    seen = []
    x = torch.randn(5, 4)
    for lines, strides in (
        ([t, CallSegment("seg", (call,)), Return((whole(y),))], (5, 1)),
        ([t, Return((whole(y),))], (1, 4)),
    ):
        got = run(host("x", [X, y], lines), [x], seg=lambda *a: seen.append(a))
        assert got[0].stride() == strides and torch.equal(got[0], x.t())
    printed = print_host(host("x", [X, y], [t, call, Return((whole(y),))]))
    assert "y.stride()" in printed.source and printed.kernels == ("k",)


def test_reuse_moves_memory_and_pointers():
    a, b, c = buffer("a", 4, 4), buffer("b", 8, 2), buffer("c", 4, 4, dtype=d.I32)
    calls = (CallKernel("k0", ("x", "a")), CallKernel("k1", ("a", "b", "c")))
    lines = [
        Allocate("a"),
        Place("c", "a", 0),
        Reuse("b", "a"),
        CallSegment("seg", calls),
        Return((whole(b),)),
    ]
    seen = []
    got = run(host("x", [X, a, b, c], lines), [torch.randn(4, 4)], seg=lambda *p: seen.append(p))
    address = got[0].data_ptr()
    assert seen[0][1:] == (address, address, address)
    assert got[0].shape == (8, 2)


def test_names_that_python_does_not_take():
    names = ["class", "torch", "args", "_t0", "a.b", "a b", "segment_0", "call", "empty_strided"]
    buffers = [buffer(n, 4, kind="input") for n in names]
    out = buffer("min", 4)
    lines: list[Line] = [Allocate("min"), CallSegment("segment_0", (CallKernel("k", ("min",)),))]
    lines.append(Return(tuple(whole(b) for b in [*buffers, out])))
    program = HostProgram(tuple(names), {b.name: b for b in [*buffers, out]}, tuple(lines))
    tensors = [torch.randn(4) for _ in names]
    got = run(program, list(tensors), segment_0=lambda p: None)
    assert all(g is t for g, t in zip(got, tensors, strict=False))


def test_constants_are_bound_by_the_loader():
    c = buffer("c", 4, kind="constant")
    value = torch.randn(4)
    seen = []
    program = host(
        "x",
        [X, c],
        [CallSegment("seg", (CallKernel("k", ("c",)),)), Return((whole(c),))],
        constants={"c": value},
    )
    assert run(program, [None], seg=lambda p: seen.append(p))[0] is value
    assert seen == [value.data_ptr()]


def test_inputs_die_with_their_last_use():
    import weakref

    x = torch.randn(5, 4)
    gone = weakref.ref(x)
    alive = []
    y = buffer("y", 5, 4, kind="extern")
    lines = [
        extern(aten.neg.default, (whole(X),), ("y",)),
        Free("x"),
        extern(lambda t: alive.append(gone() is not None), (whole(y),), ()),
        Return((whole(y),)),
    ]
    args = [x]
    del x
    run(host("x", [X, y], lines), args)
    assert alive == [False]


def test_devices_are_entered_and_left():
    g = buffer("g", 4, device="cuda:1", kind="temp")
    lines = [
        EnterDevice("cuda:1"),
        Allocate("g"),
        CallKernel("k0", ("g",), (as_expr(4),)),
        LeaveDevice("cuda:1"),
        Return((whole(g),)),
    ]
    printed = print_host(host("x", [X, g], lines))
    assert printed.source.split("args.clear()\n")[1] == (
        "    with torch.cuda.device(1):\n"
        "        g = _empty2((4,), (1,), dtype=_t0, device=_d1)\n"
        "        k0(g.data_ptr(), 4)\n"
        "    return (g,)\n"
    )
    compile(printed.source, "m", "exec")


def test_no_arguments_and_no_results():
    assert run(host("", [], [Return(())]), []) == ()
    assert run(host("s0", [], [BindSize(S0, 0, None), Return((S0,))]), [9]) == (9,)
    assert run(host("n", [], [BindSize(S0, 0, None), Return((S0,))]), [9]) == (9,)
