"""Random schedules for tests of the host, with a reference that plans nothing."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from litz.host.lines import CallKernel
from litz.index import Expr, as_expr, symbol, var
from litz.ir import body
from litz.ir.dtype import F32
from litz.ir.program import Buffer, Extern, Program, TensorRef
from litz.schedule.groups import Group, Schedule

S0 = symbol("s0", 2, 64, 8)


class Maker:
    """Builds a schedule step by step; every buffer has shape (rows, 8)."""

    def __init__(self, n_inputs: int = 2) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Group | Extern] = []
        self.kernels: dict[str, CallKernel] = {}
        self.inputs: list[str] = []
        self.symbolic = False
        for i in range(n_inputs):
            name = f"arg{i}_1"
            self.inputs.append(name)
            self.buffer(name, 8, "input")

    def buffer(
        self, name: str, rows: Expr | int, kind: str = "temp", alias: str | None = None
    ) -> Buffer:
        shape = (as_expr(rows), as_expr(8))
        b = Buffer(name, F32, shape, (as_expr(8), as_expr(1)), "cpu", kind, alias)
        self.buffers[name] = b
        return b

    def fresh(self, rows: Expr | int, kind: str = "temp", alias: str | None = None) -> Buffer:
        return self.buffer(f"buf{len(self.buffers)}", rows, kind, alias)

    def ref(self, name: str) -> TensorRef:
        b = self.buffers[name]
        return TensorRef(name, b.dtype, b.shape, b.strides, as_expr(0))

    def group(
        self, form: str, sources: list[str], n_outputs: int, rows: Expr | int, temps: int = 0
    ) -> list[str]:
        """One kernel of ``form``: pointwise, flip (reads mirrored), rowsum, softmax-like center.

        temps: how many temporaries it takes, each of a value a point; it fills them with anything.
        """
        i, j = var("i0", as_expr(rows)), var("i1", 8)
        at = 8 * i + j
        reduced: tuple[Expr, ...] = ()
        if form in ("rowsum", "center"):
            reduced = (j,)
        outs = [self.fresh(rows).name for _ in range(n_outputs)]
        value = body.const(F32, 0.25)
        for k, s in enumerate(sources):
            own = 8 * self.clip(i, s, rows) + (7 - j if form == "flip" else j)
            term = body.op("mul", body.load(F32, s, own), body.const(F32, 0.5 + k))
            value = body.op("add", value, term)
        if reduced:
            total = body.reduce("sum", reduced, value)
            value = body.op("add", total, value) if form == "center" else total
        stores = []
        for k, o in enumerate(outs):
            target = body.op("mul", value, body.const(F32, 1.0 / (k + 2)))
            stores.append(body.Store(o, at if form != "rowsum" else 8 * i, target))
        if form == "rowsum":  # a row's sum is spread over the row, so that all of it is defined
            first = 8 * self.clip(i, sources[0], rows) + j
            stores = [
                body.Store(o, at, body.op("add", body.load(F32, sources[0], first), s.value))
                for o, s in zip(outs, stores, strict=True)
            ]
        name = f"group{len(self.steps)}"
        axes = (i,) if reduced else (i, j)
        self.steps.append(Group(name, axes, reduced, tuple(stores), "cpu", (name,)))
        ints = (rows,) if isinstance(rows, Expr) else ()
        temporaries = tuple(
            Buffer(f"{name}.t{k}", F32, (8 * as_expr(rows),), (as_expr(1),), "cpu")
            for k in range(temps)
        )
        buffers = dict.fromkeys([*sources, *outs, *(t.name for t in temporaries)])
        self.kernels[name] = CallKernel(f"k_{name}", tuple(buffers), ints, name, temporaries)
        return outs

    def clip(self, i: Expr, source: str, rows: Expr | int) -> Expr:
        """Buffers of other heights are read at row 0."""
        return i if self.buffers[source].shape[0] is as_expr(rows) else as_expr(0)

    def extern(self, form: str, source: str) -> str:
        aten = torch.ops.aten
        b = self.buffers[source]
        args: tuple[object, ...] = (self.ref(source), 0.5)
        if form == "alias":
            out = self.fresh(b.shape[0], "extern", alias=source)
            target, args = aten.alias.default, args[:1]
        elif form == "out":
            out = self.fresh(b.shape[0])
            target, args = aten.neg.default, args[:1]
        else:
            out = self.fresh(b.shape[0], "extern")
            target = aten.mul.Scalar
        self.steps.append(
            Extern(
                f"extern{len(self.steps)}",
                target,
                str(target),
                args,
                (),
                (out.name,),
                "cpu",
                "test",
                out_variant=form == "out",
            )
        )
        return out.name

    def finish(self, outputs: list[str]) -> Schedule:
        binds = ((S0, len(self.inputs), None),) if self.symbolic else ()
        inputs = (*self.inputs, *(["s0"] if self.symbolic else []))
        values = (*(self.ref(o) for o in outputs), None, 7)
        program = Program(inputs, self.buffers, (), values, binds)
        return Schedule(program, tuple(self.steps))


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Schedule, dict[str, CallKernel]]:
    maker = Maker()
    maker.symbolic = draw(st.booleans())
    heights: list[Expr | int] = [8, 8, 8, 2] + ([S0] if maker.symbolic else [])
    for _ in range(draw(st.integers(1, 9))):
        names = list(maker.buffers)
        recent = names[-6:]
        if draw(st.integers(0, 3)):
            form = draw(st.sampled_from(["pointwise", "pointwise", "flip", "rowsum", "center"]))
            sources = draw(st.lists(st.sampled_from(recent), min_size=1, max_size=3, unique=True))
            rows, outputs = draw(st.sampled_from(heights)), draw(st.integers(1, 2))
            maker.group(form, sources, outputs, rows, draw(st.sampled_from([0, 0, 1, 2])))
        else:
            maker.extern(
                draw(st.sampled_from(["alias", "out", "plain"])), draw(st.sampled_from(recent))
            )
    names = list(maker.buffers)
    outputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    return maker.finish([*outputs, names[-1]]), maker.kernels
