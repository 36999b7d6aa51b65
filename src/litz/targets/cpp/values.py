"""Spelling of nodes in C++: constants, index expressions, memory accesses and ops.

The same text serves scalars and vectors, because the header overloads its functions.  Only memory
accesses and index values differ: what their index does along the lanes decides their form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import reduce

from litz.dataclass import dataclass
from litz.index import (
    CPP,
    Expr,
    Var,
    const,
    render,
    split_linear,
)
from litz.ir.bits import signed_bits
from litz.ir.body import Const, Index, Load, Masked, Op
from litz.ir.dtype import BF16, F32, I32, I64, DType
from litz.ir.exact import holds
from litz.ir.ops import CHECKS, CPP_TYPES, cpp_text
from litz.kernel.lanes.access import Access, access, first_lanes
from litz.kernel.lanes.neighbours import DIVISIONS
from litz.kernel.nodes import int_value
from litz.targets.cpp.tree import Let, Put, Ref

# Bounds are known to be int64_t: functions that are no templates compile faster.
DIALECT = replace(
    CPP,
    min="litz::least({0}, {1})",
    max="litz::greatest({0}, {1})",
    floordiv="litz::floor_div({0}, {1})",
    floormod="litz::floor_mod({0}, {1})",
)


def ctype(dtype: DType) -> str:
    return CPP_TYPES[dtype.name]


def converted(text: str, source: DType, to: DType) -> str:
    return text if source is to else f"litz::cast<{ctype(to)}>({text})"


def literal(n: Const) -> str:
    """A constant, exactly."""
    return number(n.value, n.dtype)


def number(value: bool | int | float, dtype: DType) -> str:
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_float:
        if dtype.bits == 16:
            return f"litz::cast<{ctype(dtype)}>({_float(float(value), F32)})"
        return _float(float(value), dtype)
    n = int(value)
    if dtype.bits == 64:
        if dtype.kind == "uint":
            return f"litz::u64({n % 2**64}ULL)"
        return f"litz::i64({n}LL)" if n != -(2**63) else f"litz::i64({n + 1}LL - 1)"
    return f"{ctype(dtype)}({n})" if n != -(2**31) else f"{ctype(dtype)}({n + 1} - 1)"


def _float(value: float, dtype: DType) -> str:
    bits = dtype.bits
    if math.isnan(value):
        payload = signed_bits(value, dtype)
        if payload == signed_bits(math.nan, dtype):
            return f"litz::nan{bits}"
        return f"litz::bitcast<{ctype(dtype)}>({number(payload, I64 if bits == 64 else I32)})"
    if math.isinf(value):
        return f"litz::inf{bits}" if value > 0 else f"(-litz::inf{bits})"
    text = f"{int(value)}.0" if value == int(value) and abs(value) < 2**20 else value.hex()
    if value == 0 and math.copysign(1.0, value) < 0:
        text = "-0.0"
    text += "f" if bits == 32 else ""
    return f"({text})" if text.startswith("-") else text


@dataclass(slots=True)
class Speller:
    """Spells nodes inside a loop.

    lane: the variable of the vector loop around, None outside; count: the C++ name of the number of
    valid lanes in a tail, None in whole vectors.
    called: the kernel's own functions for some ops, by the ops' names.
    """

    lanes: int
    lane: Var | None = None
    count: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    called: Mapping[str, str] = field(default_factory=dict)

    # --- pieces -------------------------------------------------------------------------------

    def vtype(self, dtype: DType) -> str:
        return f"litz::Vec<{ctype(dtype)}, {self.lanes}>"

    def vector(self, r: Ref, ordered: bool = True) -> str:
        """All lanes of a value, in order unless they need not be."""
        if r.apart and ordered:
            return f"litz::in_order({r.text})"
        return r.text if r.vec else f"{self.vtype(r.dtype)}({r.text})"

    def valid(self) -> str:
        """The mask of a tail's lanes."""
        return f"litz::first_n<{self.lanes}>({self.count})"

    def mask(self, *masks: Ref | None) -> str | None:
        parts = [self.vector(m) for m in masks if m is not None]
        if not parts:
            return None
        if self.count is not None:
            parts.append(self.valid())
        return " & ".join(parts) if len(parts) == 1 else "(" + " & ".join(parts) + ")"

    def index(self, e: Expr, names: Mapping[str, str] | None = None) -> str:
        return render(e, DIALECT, {**self.names, **names} if names else self.names)

    def per_lane(self, e: Expr, data: Mapping[str, Ref], wrap: str = "{}") -> str:
        """A lambda that gives ``wrap`` of ``e`` in lane j."""
        names = {k: f"{r.text}[j]" if r.vec else r.text for k, r in data.items()}
        head = ""
        if self.lane is not None and self.lane in e.free:
            names[self.lane.name] = "x_"
            head = f"const int64_t x_ = {self.lane.name} + j; "
        body = wrap.format(self.index(e, names))
        return f"[&](int64_t j) LITZ_LAMBDA {{ {head}return {body}; }}"

    def access(self, e: Expr, data: Mapping[str, Ref]) -> Access:
        if self.lane is None:
            return Access("same")
        varying = [v for v in e.free if str(v) in data and data[str(v)].vec]
        return access(e, self.lane, self.lanes, varying)

    def scalar_index(self, e: Expr, data: Mapping[str, Ref]) -> str:
        return self.index(e, {k: r.text for k, r in data.items()})

    # --- nodes --------------------------------------------------------------------------------

    def let(self, s: Let) -> str:
        n = s.node
        if isinstance(n, Load):
            return self.load(n, s)
        if isinstance(n, Index):
            return self.index_value(n.expr, s.vec)
        if isinstance(n, Masked):
            a, b, c = (self.vector(r, not s.form) if s.vec else r.text for r in s.args)
            return f"litz::where({a}, {b}, {c})"
        assert isinstance(n, Op)
        return self.op(n, s)

    def range_mask(self, n: Op) -> str | None:
        """A comparison that holds in the first lanes of a vector, or in all but those."""
        found = None if self.lane is None else first_lanes(n, self.lane)
        if found is None:
            return None
        count, inside = found
        return f"{'' if inside else '!'}litz::first_n<{self.lanes}>({self.index(count)})"

    def op(self, n: Op, s: Let) -> str:
        mask = self.range_mask(n) if s.vec else None
        if mask is not None:
            return mask
        args = [self.vector(r, not s.form) if s.vec else r.text for r in s.args]
        if n.name in CHECKS:
            mask = self.mask(s.mask) or (self.valid() if self.count else None)
            if s.vec:
                args.append(mask or f"litz::Vec<bool, {self.lanes}>(true)")
            return f"litz::{n.name}({', '.join(args)}, bad)"
        dtype = s.args[-1].dtype
        if s.vec and n.name in DIVISIONS and dtype.is_int and self.count:
            # Lanes past the end hold zeros, and dividing integers by zero traps.
            one = number(1, dtype)
            args[1] = f"litz::where({self.valid()}, {args[1]}, {self.vtype(dtype)}({one}))"
        if n.name in self.called:
            return f"{self.called[n.name]}({', '.join(args)})"
        if n.name == "cast" and n.param is BF16 and holds(n.args[0], BF16):
            return f"litz::cut<litz::bf16>({args[0]})"
        return cpp_text(n.name, args, dtype, n.param)

    def index_value(self, e: Expr, vec: bool, dtype: DType = I64) -> str:
        """A whole number of an iteration, or one a lane."""
        kind = ctype(dtype)
        start = f"{kind}({self.index(e)})"
        if not vec:
            return start
        how = self.access(e, {})
        if how.kind == "same":
            return f"litz::Vec<{kind}, {self.lanes}>({start})"
        if how.offsets:
            start = start if how.first is None else f"{kind}({self.index(how.first)})"
            return f"litz::places<{self.lanes}>({start}, {self.listed(how.offsets)})"
        if how.kind in ("near", "any"):
            return f"litz::each<{self.lanes}>({self.per_lane(e, {}, kind + '({})')})"
        step = f", {kind}({self.index(how.stride)})" if how.stride is not None else ""
        return f"litz::iota<{self.lanes}>({start}{step})"

    @staticmethod
    def listed(offsets: Sequence[int]) -> str:
        return f"litz::Offsets<{', '.join(map(str, offsets))}>()"

    def load(self, n: Load, s: Let) -> str:
        data = {str(v): r for (v, _), r in zip(n.indirect, s.args, strict=True)}
        if not s.vec:
            return f"{n.buffer}[{self.scalar_index(n.index, data)}]"
        how = self.access(n.index, data)
        mask = self.mask(s.mask)
        at = "" if how.kind == "any" else self.scalar_index(n.index, data)
        width = f"<{self.lanes}>"
        if how.kind == "same":
            one = f"{n.buffer}[{at}]"
            if mask is not None:
                one = f"litz::hany({mask}) ? {one} : {number(0, n.dtype)}"
            return f"{self.vtype(n.dtype)}({one})"
        if how.kind == "next":
            p = f"{n.buffer} + ({at})"
            if mask is not None:
                fill = f"{self.vtype(n.dtype)}({number(0, n.dtype)})"
                return f"litz::load_masked({p}, {mask}, {fill})"
            if self.count is not None:
                return f"litz::load_partial{width}({p}, {self.count})"
            return f"litz::load{width}({p})"
        rest = mask or (self.valid() if self.count else None)
        if how.kind == "repeat" and mask is None:
            count = f", {self.count}" if self.count else ""
            return f"litz::load_repeated{width[:-1]}, {how.times}>({n.buffer} + ({at}){count})"
        if how.kind == "near":
            return self.load_near(n, how, data, mask)
        if how.kind == "step" and how.stride in (const(2), const(-1)):
            back = how.stride is not const(2)
            form = "back" if back else s.form or "evens"
            if form == "seconds":
                at = self.scalar_index(n.index - 1, data)
            rest = rest if back else mask or self.count
            return f"litz::load_{form}{width}({n.buffer} + ({at}){', ' + rest if rest else ''})"
        if how.kind == "step" and mask is None:
            assert how.stride is not None
            place = f"{n.buffer} + ({at}), {self.index(how.stride)}"
            if self.count:
                fill = number(0, n.dtype)
                return f"litz::load_strided_partial{width}({place}, {self.count}, {fill})"
            return f"litz::load_strided{width}({place})"
        found = self.vector_index(n.index, data) if not how.offsets else None
        if how.offsets:
            found = at, f"litz::places<{self.lanes}>(litz::i64(0), {self.listed(how.offsets)})"
        if found is not None and self.count and mask is None:
            place = f"{n.buffer} + ({found[0]}), {found[1]}"
            return f"litz::gather_first{width}({place}, {self.count}, {number(0, n.dtype)})"
        if found is not None:
            tail = f", {rest}, {self.vtype(n.dtype)}({number(0, n.dtype)})" if rest else ""
            return f"litz::gather{width}({n.buffer} + ({found[0]}), {found[1]}{tail})"
        limit = mask or self.count
        lead = f"{limit}, " if limit else ""
        return f"litz::each{width}({lead}{self.per_lane(n.index, data, n.buffer + '[{}]')})"

    def load_near(self, n: Load, how: Access, data: Mapping[str, Ref], mask: str | None) -> str:
        """Mostly neighbours, as the first and the last lane tell."""
        kinds = f"{self.lanes}, {str(how.up).lower()}, {str(how.down).lower()}"
        limit = mask or self.count
        lead = f", {limit}" if limit else ""
        at = self.per_lane(n.index, data)
        return f"litz::load_near<{kinds}>({n.buffer}{lead}, {at})"

    def vector_index(self, e: Expr, data: Mapping[str, Ref]) -> tuple[str, str] | None:
        """An index that is linear in the lane and in data: where it begins, and all lanes' values.

        None for others.  Apart, so that loops which only move the beginning leave the values alone.
        """
        varying = [v for v in e.free if str(v) in data and data[str(v)].vec]
        split = split_linear(e, [*varying, *([self.lane] if self.lane in e.free else [])])
        if split is None:
            return None
        steps, rest = split
        names = {k: r.text for k, r in data.items() if not r.vec}
        step = steps.pop(self.lane, None) if self.lane is not None else None
        terms = []
        if step is not None and self.lane is not None:
            rest = rest + self.lane * step
            step_text = f"litz::i64({self.index(step)})"
            terms.append(f"litz::iota<{self.lanes}>(litz::i64(0), {step_text})")
        for v, c in steps.items():
            plain = c.is_const and int_value(c) == 1
            times = data[str(v)].text
            terms.append(
                times if plain else f"litz::mul({times}, litz::i64({self.index(c, names)}))"
            )
        values = reduce("litz::add({}, {})".format, terms)
        return self.index(rest, names), values

    # --- stores -------------------------------------------------------------------------------

    def put(self, s: Put) -> str:
        store = s.store
        data = {str(v): r for (v, _), r in zip(store.indirect, s.indirect, strict=True)}
        vec = s.value.vec or any(r.vec for r in s.indirect) or (s.mask is not None and s.mask.vec)
        if self.lane is not None and (self.lane in store.index.free or store.mode != "set"):
            vec = True
        if not vec:
            return self._put_scalar(s, data)
        value = self.vector(s.value)
        mask = self.mask(s.mask)
        if s.between is not None:
            at = f"{store.buffer} + ({self.scalar_index(store.index, data)})"
            count = f", {self.count}" if self.count else ""
            both = s.value, s.between
            apart = all(r.apart for r in both) and not count
            form = "neighbours" if apart else "pairs"
            values = ", ".join(self.vector(r, not apart) for r in both)
            return f"litz::store_{form}({at}, {values}{count});"
        how = self.access(store.index, data)
        if how.kind == "next" and store.mode == "set":
            p = f"{store.buffer} + ({self.scalar_index(store.index, data)})"
            if mask is not None:
                return f"litz::store_masked({p}, {value}, {mask});"
            if self.count is not None:
                return f"litz::store_partial({p}, {value}, {self.count});"
            if s.stream:
                return f"litz::store_stream({p}, {value}, kept_);"
            return f"litz::store({p}, {value});"
        if how.kind == "step" and how.stride is const(-1) and store.mode == "set":
            if mask is None and self.count is None:
                at = self.scalar_index(store.index, data)
                return f"litz::store_back({store.buffer} + ({at}), {value});"
        if how.kind == "next" and mask is None and s.value.dtype.bits != 16:
            return self._put_update(s, f"{store.buffer} + ({self.scalar_index(store.index, data)})")
        limit = mask or self.count
        lead = f"{limit}, " if limit else ""
        index = self.per_lane(store.index, data)
        update = f"litz::put_each<litz::update::{store.mode}>"
        return f"{update}({store.buffer}, {value}, {lead}{index});"

    def _put_update(self, s: Put, at: str) -> str:
        """A contiguous update: no two lanes meet."""
        update = f"litz::update::{s.store.mode}::apply"
        value = self.vector(s.value)
        if self.count is None:
            return f"litz::store({at}, {update}(litz::load<{self.lanes}>({at}), {value}));"
        old = f"litz::load_partial<{self.lanes}>({at}, {self.count})"
        return f"litz::store_partial({at}, {update}({old}, {value}), {self.count});"

    def _put_scalar(self, s: Put, data: Mapping[str, Ref]) -> str:
        store = s.store
        at = f"{store.buffer}[{self.scalar_index(store.index, data)}]"
        value = s.value.text
        if store.mode != "set":
            value = f"litz::update::{store.mode}::apply({at}, {value})"
        guard = f"if ({s.mask.text}) " if s.mask is not None else ""
        return f"{guard}{at} = {value};"
