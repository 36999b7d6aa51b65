"""The functions of a C++ kernel: what runs a range of units of work, and what hands them out."""

from __future__ import annotations

from litz.index import as_expr, const, product
from litz.kernel.lanes.choose import STACK
from litz.kernel.lanes.recipe import STREAM, STREAM_THREADS
from litz.kernel.nodes import extent, int_value
from litz.kernel.plan import KernelPlan
from litz.targets.cpp.sum_printer import SumPrinter
from litz.targets.cpp.tree import Array, Kernel, Split
from litz.targets.cpp.values import Speller, ctype


class FunctionPrinter(SumPrinter):
    """Prints the functions of one kernel."""

    def functions(self) -> None:
        """Those that the kernel calls, for scalars and vectors alike."""
        for op, name in self.called.items():
            head = "template <class... T> static LITZ_CALLED auto"
            self.lines.append(f"{head} {name}(T... x) {{ return litz::{op}(x...); }}")

    def part(self) -> None:
        """The function that a thread runs, on its units."""
        k = self.kernel
        room = ", char* room_" if k.split is not None else ""
        self.function(k, "part", f"int64_t unit_, const int64_t units_{room}")
        if k.split is not None:
            self.rooms(k.split)
            size, stop = k.split.size, self.expr(extent(k.split.by))
            self.line(f"const int64_t from_ = unit_ * {size};")
            self.line(f"const int64_t to_ = litz::least({stop}, units_ * {size});")
        self.decompose()
        self.finish_function(k)

    def end(self, split: Split) -> None:
        """The function that one thread runs after all others."""
        k = split.end
        self.function(k, "end", "char* room_, const int64_t parts_")
        self.rooms(split)
        points = self.expr(split.points)
        self.line(f"const int64_t cells_ = {len(split.slots)} * ({points});")
        self.finish_function(k)

    def function(self, k: Kernel, name: str, arguments: str) -> None:
        self.lines.append(
            f"static int {k.name}_{name}(void* const* ptrs, const int64_t* ints, {arguments}) {{"
        )
        self.arguments(k.plan)
        if k.checks:
            self.line("int bad = 0;")
        for a in k.arrays:
            self.array(a)

    def array(self, a: Array) -> None:
        """On the stack where its size is known, and not large."""
        size, kind = as_expr(a.size), ctype(a.dtype)
        if size.is_const and int_value(size) * a.dtype.bytes <= STACK:
            self.line(f"alignas(64) {kind} {a.name}[{self.expr(size)}];")
            return
        self.line(f"const litz::Scratch {a.name}_s({a.dtype.bytes} * ({self.expr(size)}));")
        self.line(f"if (!{a.name}_s.at) return litz::no_memory;")
        self.line(f"{kind}* const {a.name} = ({kind}*){a.name}_s.at;")

    def finish_function(self, k: Kernel) -> None:
        start = len(self.lines)
        self.block(k.body, Speller(k.lanes, called=self.called))
        body = "\n".join(self.lines[start:])
        if "kept_);" in body:
            threads = f"litz::least(omp_get_num_threads(), {STREAM_THREADS})"
            few = f"{self.expr(k.past)} < {threads} * int64_t({STREAM})"
            kept = "0" if k.past is const(0) else few
            self.lines.insert(start, f"  const litz::u64 kept_ = {kept};")
        if "_stream" in body:
            self.line("litz::stream_fence();")
        self.line("return bad;" if k.checks else "return 0;")
        self.lines.append("}")

    def rooms(self, split: Split) -> None:
        points = self.expr(split.points)
        for i, slot in enumerate(split.slots):
            kind = ctype(slot.dtype)
            self.line(f"{kind}* {slot.name} = ({kind}*)(room_ + {8 * i} * ({points}));")

    def arguments(self, plan: KernelPlan) -> None:
        for i, p in enumerate(plan.params):
            kind = f"{ctype(p.dtype)}*"
            if p.mode == "in":
                kind = "const " + kind
            # No __restrict: an output may lie in the memory of an input that dies here.
            self.line(f"{kind} {p.name} = ({kind})ptrs[{i}];")
        self.sizes(plan)

    def sizes(self, plan: KernelPlan) -> None:
        for i, s in enumerate(plan.ints):
            self.line(f"const int64_t {s} = ints[{i}];")

    def decompose(self) -> None:
        """Where this thread's first unit lies in every unit dim."""
        k = self.kernel
        if not k.units:
            return
        rest = "unit_"
        for i, v in reversed(list(enumerate(k.units))):
            count = self.expr(self.unit_count(v))
            text = rest if i == 0 else f"{rest} % ({count})"
            if v in k.grains:
                text = f"({text}) * {k.grains[v]}"
            self.line(f"int64_t {self.start_of(v)} = {text};")
            if i:
                self.line(f"const int64_t unit_{i} = {rest} / ({count});")
                rest = f"unit_{i}"

    def call(self) -> None:
        """The function that says what a call is, to run with others."""
        k = self.kernel
        self.lines.append(
            f"static litz::Call {k.name}_call(void* const* ptrs, const int64_t* ints) {{"
        )
        self.sizes(k.plan)
        units = self.expr(product(self.unit_count(v) for v in k.units))
        work = self.expr(k.work if k.work is not None else const(0))
        self.line(f"return {{{k.name}_part, ptrs, ints, {units}, {work}}};")
        self.lines.append("}")

    def entry(self, linkage: str, grain: int) -> None:
        k = self.kernel
        self.lines.append(f"{linkage} int {k.name}(void* const* ptrs, const int64_t* ints) {{")
        if k.before:
            self.arguments(k.plan)
            self.line(k.before)
        else:
            self.sizes(k.plan)
        work = self.expr(k.work if k.work is not None else const(0))
        if k.split is not None:
            cells = f"{len(k.split.slots)} * ({self.expr(k.split.points)})"
            units = self.expr(k.split.units)
            call = f"run_split({k.name}_part, {k.name}_end, ptrs, ints, {units}, {cells}, "
        else:
            units = self.expr(product(self.unit_count(v) for v in k.units))
            call = f"run_units({k.name}_part, ptrs, ints, {units}, "
            work = work if k.units else "0"
        self.line(f"return litz::{call}{work}, {grain});")
        self.lines.append("}")


def print_kernel(kernel: Kernel, grain: int, linkage: str = 'extern "C"') -> str:
    """The functions of one kernel.  grain: work that is worth a thread."""
    p = FunctionPrinter(kernel)
    p.functions()
    p.part()
    if kernel.split is not None:
        p.end(kernel.split)
    p.entry(linkage, grain)
    return "\n".join(p.lines) + "\n"


def print_part(kernel: Kernel) -> str:
    """The functions of a kernel that runs beside others (``litz::run_calls``)."""
    p = FunctionPrinter(kernel)
    p.functions()
    p.part()
    p.call()
    return "\n".join(p.lines) + "\n"


def print_split(kernel: Kernel) -> str:
    """The functions of a reduction that threads divide, to run in step with another kernel."""
    assert kernel.split is not None
    p = FunctionPrinter(kernel)
    p.functions()
    p.part()
    p.end(kernel.split)
    return "\n".join(p.lines) + "\n"
