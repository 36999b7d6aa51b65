"""From what a compilation left behind to the record of one graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from torch.fx import GraphModule

from litz.artifact import Artifact
from litz.graph.calls import count_calls
from litz.host.lines import CallExtern, CallKernel, host_text
from litz.ir.body import Load, Op, walk
from litz.ir.program import Extern, Program, Template
from litz.ir.text import program_text
from litz.kernel.nodes import roots, row_start
from litz.kernel.plan import KernelPlan
from litz.report.lines import node_line
from litz.report.memory import memory_of
from litz.report.record import Graph, GraphNode, Line, Refused, Step
from litz.report.record import Kernel as KernelRecord
from litz.runtime.cuda_graphs import CudaGraphs
from litz.runtime.shipped import NOT_BUILT, shipped
from litz.schedule.groups import Schedule, bytes_hint
from litz.schedule.text import schedule_text
from litz.stages import Stages
from litz.targets.kernels import Kernel
from litz.targets.traffic import call_bytes, kernel_bytes, kernel_ops, node_bytes, node_ops

_LAYING_OUT = frozenset({"aten.clone.default", "aten.copy.default", "aten.copy_.default"})
_CASTS = frozenset({"cast", "bitcast", "round_to"})


class Gathered:
    """One graph's record, its distinct kernels, and the user's lines that it names."""

    def __init__(self, name: str, kind: str, gm: GraphModule, stages: Stages) -> None:
        all_of = list(stages.parts())
        graphs = [gm, *(s.graph for s in all_of[1:])]
        prefixes = [name, *(f"{name}.{i}" for i in range(1, len(all_of)))]
        parts = [_Part(p, g) for p, g in zip(prefixes, graphs, strict=True)]
        steps: tuple[Step, ...] = ()
        refused: tuple[Refused, ...] = ()
        memory = None
        if not stages.fallback and stages.host is not None:
            steps = tuple(s for p, own in zip(parts, all_of, strict=True) for s in p.steps(own))
            assert stages.program and stages.schedule
            refused = tuple(_refused(name, stages.schedule))
            memory = memory_of(stages.host, name, parts[0].makers(stages.program))
        self.lines = {k: line for p in parts for k, line in p.lines.items()}
        self.kernels = {k.name: _kernel(k, stages) for own in all_of for k in own.kernels}
        said = filter(None, (*stages.fused, stages.regions, stages.repeats, *stages.pieces))
        self.graph = Graph(
            name,
            kind,
            next(iter(parts[0].lines), ""),
            count_calls(gm),
            stages.fallback,
            "; ".join(said),
            _recording(stages.cuda_graphs),
            _why_python(stages.artifact),
            dict(stages.seconds),
            _texts(gm, stages),
            tuple(n for p in parts for n in p.nodes()),
            steps,
            refused,
            memory,
        )


def _why_python(artifact: Artifact | None) -> str:
    """Why the native executor does not run it; "" if it does, and where nobody wants it."""
    plan = "" if artifact is None else artifact.host.plan
    if artifact is None or isinstance(plan, str):
        return str(plan)
    built = shipped() is not None or artifact.options.get("host") in ("native", "fx")
    return "" if built else NOT_BUILT


class _Part:
    """A graph, or the body of control flow in it: its nodes, their lines, and its steps."""

    def __init__(self, prefix: str, gm: GraphModule | None) -> None:
        self.lines: dict[str, Line] = {}
        self._prefix = prefix
        self._steps: Counter[str] = Counter()  # that compute a node, by its name
        found = () if gm is None else gm.graph.nodes
        self._nodes = {n.name: n for n in found if n.op == "call_function"}
        self._at = {name: self._known(node_line(n)) for name, n in self._nodes.items()}

    def _known(self, line: Line | None) -> str:
        if line is None:
            return ""
        self.lines[line.id] = line
        return line.id

    def nodes(self) -> Iterator[GraphNode]:
        """The calls in the graph."""
        for name, n in self._nodes.items():
            yield GraphNode(f"{self._prefix}.{name}", str(n.target), self._at[name])

    def steps(self, stages: Stages) -> Iterator[Step]:
        """What its host program calls, in order."""
        assert stages.host and stages.schedule and stages.program
        kernels = {k.name: k for k in stages.kernels}
        origins = {s.name: s.origins for s in stages.schedule.steps}
        joined = {x.groups[0]: x.groups for x in stages.schedule.horizontal}
        self._steps.update(n for own in origins.values() for n in set(own))
        for call in stages.host.calls():
            if isinstance(call, CallKernel):
                groups = joined.get(call.group, (call.group,))
                names = tuple(dict.fromkeys(n for g in groups for n in origins[g]))
                yield self._kernel_step(kernels[call.kernel], call, names, stages.program)
            else:
                yield self._extern_step(call, stages.program)

    def _kernel_step(
        self, k: Kernel, call: CallKernel, names: Sequence[str], program: Program
    ) -> Step:
        params = [p for plan in k.members or (k.plan,) for p in plan.params]
        named = list(zip(params, call.buffers, strict=False))
        return Step(
            step_id(self._prefix, call),
            "kernel",
            k.name,
            tuple(f"{self._prefix}.{n}" for n in names),
            self._lines(names),
            tuple(b for p, b in named if p.mode != "out"),
            tuple(b for p, b in named if p.mode != "in"),
            kernel_bytes(k, call, program.buffers),
            self._apart(names),
            kernel_ops(k),
            transposed=self._transposed(k, names),
            launches=1 if k.triton is None else len(k.triton.launches),
        )

    def _extern_step(self, call: CallExtern, program: Program) -> Step:
        e = call.extern
        known = [self._nodes[n] for n in e.origins if n in self._nodes]
        return Step(
            step_id(self._prefix, call),
            "aten",
            plain_name(e),
            tuple(f"{self._prefix}.{n}" for n in e.origins),
            self._lines(e.origins),
            e.read_buffers(),
            e.write_buffers(),
            moved := call_bytes(e, program.buffers),
            moved,
            max((node_ops(n) for n in known), default=0),
            e.reason or "no reason was given",
        )

    def _lines(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(x for n in names if (x := self._at.get(n, ""))))

    def _apart(self, names: Sequence[str]) -> int:
        """Each node's bytes count once, in equal parts for the steps that compute it."""
        known = [(self._nodes[n], self._steps[n]) for n in names if n in self._nodes]
        return sum(node_bytes(n) // steps for n, steps in known)

    def _transposed(self, k: Kernel, names: Sequence[str]) -> str:
        """The line of a copy that lays out anew what lies otherwise; '' where a kernel has none."""
        nodes = [self._nodes[n] for n in names if n in self._nodes and self._at[n]]
        asked = [n.name for n in nodes if str(n.target) in _LAYING_OUT]
        if asked and _moves_across(k.plan):
            return self._at[asked[-1]]
        return self._at[nodes[-1].name] if nodes and _only_moves(k.plan) else ""

    def makers(self, program: Program) -> Mapping[str, str]:
        """The line that first fills each buffer, where it is known."""
        found: dict[str, str] = {}
        for n in reversed(program.nodes):
            known = [x for o in n.origins if (x := self._at.get(o))]
            found |= dict.fromkeys(n.write_buffers() if known else (), known[-1] if known else "")
        return found


def _moves_across(plan: KernelPlan) -> bool:
    """Whether what a plan stores lies along another dim than something that it loads."""
    if plan.lane is None:
        return False
    found = [n.index for n in walk(roots(plan.stores)) if isinstance(n, Load)]
    found += [s.index for s in plan.stores]
    return plan.tile is not None or any(
        plan.lane in index.free and row_start(index, plan.lane) is None for index in found
    )


def _only_moves(plan: KernelPlan) -> bool:
    """Whether a plan is a copy across dims: no arithmetic but casts."""
    ops = [n for n in walk(roots(plan.stores)) if isinstance(n, Op) and n.name not in _CASTS]
    return not ops and not plan.reduced and _moves_across(plan)


def step_id(prefix: str, call: CallKernel | CallExtern) -> str:
    """The id of a call's step.  prefix: the id of its graph, and of its body there."""
    return f"{prefix}.{call.group if isinstance(call, CallKernel) else call.extern.name}"


def plain_name(e: Extern) -> str:
    """The operator as the user's graph has it, whichever variant is called."""
    name = e.target_name
    return f"{name[:-4]}.default" if e.out_variant and name.endswith(".out") else name


def _refused(prefix: str, s: Schedule) -> Iterator[Refused]:
    """Pairs that stay apart, by what one kernel would not move: what both touch."""
    steps = {x.name: x for x in s.steps}
    for a, b, why in s.refused:
        one, other = steps.get(a), steps.get(b)
        if one is not None and other is not None:
            mine = {*one.read_buffers(), *one.write_buffers()}
            shared = mine & {*other.read_buffers(), *other.write_buffers()}
            lost = sum(bytes_hint(s.program.buffers[n]) for n in shared)
            yield Refused(f"{prefix}.{a}", f"{prefix}.{b}", why, lost)


def _kernel(k: Kernel, stages: Stages) -> KernelRecord:
    found = stages.choices.get(k.name)
    ways: tuple[str, ...] = ()
    if k.ways is not None:
        ways = tuple(k.ways.lines(found.index, found.seconds) if found else k.ways.lines())
    steps = stages.schedule.steps if stages.schedule else ()
    made = [s.reason for s in steps if isinstance(s, Template) and s.name in k.groups]
    ways += tuple(f"template (chosen): {why}" for why in dict.fromkeys(made) if why)
    return KernelRecord(k.name, k.target.language, k.device, k.text, k.source, ways)


def _recording(graphs: CudaGraphs | str | None) -> str:
    if graphs is None:
        return ""
    if isinstance(graphs, str):
        return f"not a CUDA graph: {graphs}"
    return f"CUDA graphs: {graphs.recorded} recorded" + (graphs.reason and f"; {graphs.reason}")


def _texts(gm: GraphModule, s: Stages) -> Mapping[str, str]:
    texts = {"graph": _fx(gm)}
    if s.program is not None:
        texts["program"] = program_text(s.program)
    if s.schedule is not None:
        texts["schedule"] = schedule_text(s.schedule)
    if s.host is not None:
        texts["host"] = host_text(s.host)
    if s.source is not None:
        texts["code"] = s.source.source
    return texts


def _fx(gm: GraphModule) -> str:
    """The graph as Python; what a pass has left in a form without it, node by node."""
    try:
        return str(gm.print_readable(print_output=False)).strip()
    except Exception:  # the text is for people, and what they asked for is more than it
        return "\n".join(n.format_node() or str(n) for n in gm.graph.nodes)
