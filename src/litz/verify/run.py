"""A compiled graph whose runs are checked call by call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from litz.dataclass import dataclass
from litz.graph.aliasing import is_view_op
from litz.host.lines import CallKernel, HostProgram, Probe
from litz.index import Expr, evaluate
from litz.ir.program import Buffer, Extern, Program, TensorRef
from litz.ir.text import ValuePrinter
from litz.lowering.torch_types import to_torch
from litz.runtime.arguments import BoxedCall
from litz.runtime.strided import addresses, copy_as_it_is
from litz.schedule.groups import Schedule
from litz.schedule.text import step_lines
from litz.verify.compare import Difference, compare, same_bits
from litz.verify.random import doubt
from litz.verify.reference import Reference, reads_storage
from litz.verify.report import Finding, Report, WatchedStep
from litz.verify.targets import START, Key, Target, Targets, find_targets

log = logging.getLogger("litz")

Place = tuple[Any, int]


@dataclass
class Watch:
    """Checks the runs of one compiled graph; ``probe`` is what its host program calls.

    checked: how many values were compared so far; unchecked: nodes whose meaning nothing computes.
    """

    gm: GraphModule
    program: Program
    steps: tuple[WatchedStep, ...]
    targets: Targets
    report: Report
    checked: int = 0
    unchecked: dict[str, str] = field(default_factory=dict)
    _runs: threading.local = field(default_factory=threading.local)

    def probe(
        self, step: int, after: bool, places: Sequence[Place], numbers: Sequence[int]
    ) -> None:
        """Called by the host program with (tensor, byte offset) of each buffer of the probe."""
        run: _Run = self._runs.stack[-1]
        with _quiet():
            run.probe(step, after, places, numbers)

    def feeders(self, number: int) -> list[int]:
        """Earlier steps of whose results this one reads some that nothing has checked."""
        shown = {t.binding.ref.buffer for v in self.targets.by_step.values() for t in v}
        found: dict[int, None] = {}
        todo = [number]
        while todo:
            at = todo.pop()
            hidden = {b for b in self.steps[at].before if b not in shown}
            for k in range(at):
                if k not in found and hidden & self.steps[k].written:
                    found[k] = None
                    todo.append(k)
        return sorted(found)

    def wrap(self, call: BoxedCall) -> BoxedCall:
        """``call`` with its inputs and results checked too."""

        def checked(args: list[Any]) -> Any:
            stack = self._runs.__dict__.setdefault("stack", [])
            run = _Run(self, tuple(args))
            stack.append(run)
            try:
                with _quiet():
                    run.start()
                outputs = call(args)
                with _quiet():
                    run.finish(outputs)
                return outputs
            finally:
                stack.pop()

        return checked


def watch(
    gm: GraphModule,
    program: Program,
    schedule: Schedule,
    steps: tuple[WatchedStep, ...],
    folder: str,
    options: Mapping[str, object],
) -> Watch:
    """The checker of a graph's runs.

    folder: where inputs and repros are saved.  options: of the compile, for the repro.
    """
    targets = find_targets(gm, program, schedule)
    found = Watch(gm, program, steps, targets, Report(gm.graph, folder, dict(options)))
    why = "random, of script objects, or of undefined contents"
    found.unchecked.update(dict.fromkeys(targets.unchecked, why))
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Reference computations leave no trace in autograd and follow no autocast."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield


@dataclass
class _Write:
    """What a step left in a buffer: its contents, where they lie, and which step it was."""

    step: int
    value: torch.Tensor
    span: tuple[int, int]


class _Run:
    """One run.  recorded: graph values as Litz computed them; written: contents of buffers."""

    def __init__(self, owner: Watch, args: tuple[Any, ...]) -> None:
        self.owner, self.args = owner, args
        self.program = owner.program
        self.recorded: dict[Key, Any] = {}
        self.written: dict[str, _Write] = {}
        self.history: list[tuple[int, str, tuple[int, int]]] = []
        self.sizes: dict[Expr, int] = {}

    # --- the course of a run ---------------------------------------------------------------

    def start(self) -> None:
        placeholders = [n for n in self.owner.gm.graph.nodes if n.op == "placeholder"]
        for n, value in zip(placeholders, self.args, strict=True):
            if (n, None) in self.owner.targets.last_use:
                whole = any(reads_storage(u) or is_view_op(u.target) for u in n.users)
                self.recorded[n, None] = _with_storage(value) if whole else _snapshot(value)
        for n in self.owner.gm.graph.nodes:
            if n.op == "get_attr" and (n, None) in self.owner.targets.last_use:
                self.recorded[n, None] = self.program.constants.get(n.name)
        for symbol, at, dim in self.program.symbols:
            value = self.args[at] if dim is None else self.args[at].shape[dim]
            self.sizes.setdefault(symbol, int(value))
        tensors = dict(zip(self.program.inputs, self.args, strict=True))
        places = {k: (v, 0) for k, v in (tensors | dict(self.program.constants)).items()}
        self.check(START, places)
        self.args = ()

    def probe(
        self, number: int, after: bool, places: Sequence[Place], numbers: Sequence[int]
    ) -> None:
        step = self.owner.steps[number]
        shown = dict(zip(step.after if after else step.before, places, strict=True))
        if not after:
            self.look_for_damage(number, shown)
            return
        self.sizes.update(zip(step.numbers, numbers, strict=True))
        self.note_writes(number, step, shown)
        self.check(number, shown)
        self.recorded = {
            k: v for k, v in self.recorded.items() if self.owner.targets.last_use[k] > number
        }

    def finish(self, outputs: Any) -> None:
        """Results must be what was checked when it was written."""
        refs = self.program.outputs
        for k, (ref, value) in enumerate(zip(refs, outputs, strict=True)):
            known = self.written.get(ref.buffer) if isinstance(ref, TensorRef) else None
            if known is None or not isinstance(ref, TensorRef) or self.opaque(ref.buffer):
                continue
            was = self.view((known.value, 0), ref, self.program.buffers[ref.buffer])
            if not same_bits(was, value):
                step = self.owner.steps[known.step]
                raise self.owner.report.error(
                    f"result {k} of the graph is not what kernel {step.kernel} wrote to "
                    f"{ref.buffer}",
                    step.kernel,
                    self.culprits(ref.buffer, known),
                    step.origins,
                )

    # --- memory ----------------------------------------------------------------------------

    def opaque(self, buffer: str) -> bool:
        return self.program.buffers[buffer].kind == "opaque"

    def note_writes(self, number: int, step: WatchedStep, shown: Mapping[str, Place]) -> None:
        """Remember the contents of what the step wrote, and of what shares memory with that."""
        roots = {self.program.root(b) for b in step.written}
        for name, place in shown.items():
            if self.program.root(name) not in roots or self.opaque(name):
                continue
            value = self.whole(name, place)
            span = addresses(value)
            self.written[name] = _Write(number, copy_as_it_is(value), span)
            self.history.append((number, name, span))
        for name in [b for b in self.written if b not in shown]:
            if self.program.root(name) in roots:
                del self.written[name]  # changed through an alias, unseen

    def look_for_damage(self, number: int, shown: Mapping[str, Place]) -> None:
        """What earlier steps wrote must be there still when it is read."""
        step = self.owner.steps[number]
        for name, place in shown.items():
            known = self.written.get(name)
            if known is None or same_bits(known.value, self.whole(name, place)):
                continue
            if name in step.written and name not in step.before:
                continue
            writer = self.owner.steps[known.step]
            raise self.owner.report.error(
                f"{name}, which kernel {writer.kernel} wrote (step {known.step}), has changed "
                f"before kernel {step.kernel} (step {number}) reads it: its memory was reused",
                step.kernel,
                self.culprits(name, known),
                writer.origins,
            )

    def culprits(self, name: str, known: _Write) -> str:
        """Who has written where ``name`` lies since it was written."""
        low, high = known.span
        root = self.program.root(name)
        for number, other, (first, last) in reversed(self.history):
            if number > known.step and first < high and low < last:
                if self.program.root(other) != root:
                    kernel = self.owner.steps[number].kernel
                    return f"overwritten by {other} of kernel {kernel} (step {number})"
        return "nothing that the host program knows of has written there"

    def whole(self, name: str, place: Place) -> torch.Tensor:
        b = self.program.buffers[name]
        return self.view(place, b.whole, b)

    def view(self, place: Place, ref: TensorRef, b: Buffer) -> torch.Tensor:
        """The memory that ``ref`` describes; ``place``: the tensor of its buffer and an offset."""
        tensor, nbytes = place
        dtype = to_torch(ref.dtype)
        shape, strides = ([evaluate(e, self.sizes) for e in v] for v in (ref.shape, ref.strides))
        offset = evaluate(ref.offset, self.sizes)
        flat = torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage())
        first = tensor.storage_offset() * tensor.element_size() + nbytes
        offset += first // dtype.itemsize
        return torch.as_strided(flat, shape, strides, offset)

    # --- values ----------------------------------------------------------------------------

    def check(self, number: int, shown: Mapping[str, Place]) -> None:
        """Compare every graph value that this step has made visible; keep those wanted later."""
        targets = self.owner.targets.by_step.get(number, ())
        findings = []
        for t in targets:
            place = shown.get(t.binding.ref.buffer)
            if place is None or not isinstance(place[0], torch.Tensor):
                continue
            actual = self.read(t, place, number)
            if actual is None:
                continue
            if t.key in self.owner.targets.last_use and t.key not in self.recorded:
                self.recorded[t.key] = _snapshot(actual)
            if t.nodes or t.key[0].op == "call_function":
                found = self.judge(t, actual)
                findings += [found] if found is not None else []
        if findings:
            raise self.owner.report.wrong(
                None if number == START else self.owner.steps[number],
                number,
                findings,
                self.hints(number, shown) if number != START else (),
            )

    def hints(self, number: int, shown: Mapping[str, Place]) -> Iterator[str]:
        """What else may be to blame than the kernel itself."""
        for name, place in shown.items():
            known = self.written.get(name)
            if known is None or known.step == number or self.opaque(name):
                continue
            if not same_bits(known.value, self.whole(name, place)):
                yield f"it has changed an input of its own, {name}: their memory overlaps"
        feeders = [self.owner.steps[k] for k in self.owner.feeders(number)]
        if feeders:
            names = ", ".join(f"{s.kernel} ({', '.join(s.origins)})" for s in feeders)
            yield f"it reads what no graph node shows, from {names}"

    def read(self, t: Target, place: Place, number: int) -> torch.Tensor | None:
        if t.binding.whole:
            tensor: torch.Tensor = place[0]
            return tensor
        try:
            return self.view(place, t.binding.ref, self.program.buffers[t.binding.ref.buffer])
        except KeyError:
            self.skip(t, "its size is not known")
            return None
        except RuntimeError as e:
            kernel = self.owner.steps[number].kernel if number != START else ""
            raise self.owner.report.error(
                f"{t.key[0].name} lies outside of its buffer {t.binding.ref.buffer}",
                kernel,
                str(e),
                (t.key[0].name,),
            ) from e

    def judge(self, t: Target, actual: torch.Tensor) -> Finding | None:
        n = t.key[0]
        if not t.nodes:
            why = doubt(n, actual)
            return None if why is None else Finding(t, None, why, actual, None, self.leaves(t))
        leaves = self.leaves(t)
        plain = {k[0]: v for k, v in leaves.items() if k[1] is None}
        drawn = {k[0]: v for k, v in leaves.items() if k[1] is not None}
        reference = Reference(t.nodes, plain, drawn, self.number)
        try:
            eager = reference.own()[n]
        except Exception as e:
            self.skip(t, f"ATen cannot compute it: {type(e).__name__}: {e}")
            return None
        if not isinstance(eager, torch.Tensor):
            return None
        self.owner.checked += 1
        if eager.dtype is not actual.dtype or eager.shape != actual.shape:
            why = (
                f"it is {actual.dtype} of shape {tuple(actual.shape)} "
                f"instead of {eager.dtype} of shape {tuple(eager.shape)}"
            )
            return Finding(t, None, why, actual, eager, leaves)
        if same_bits(actual, eager):
            return None
        return self.judge_exactly(t, actual, eager, reference)

    def judge_exactly(
        self, t: Target, actual: torch.Tensor, eager: torch.Tensor, reference: Reference
    ) -> Finding | None:
        n = t.key[0]
        try:
            exact = reference.exact()[n]
        except Exception as e:
            log.info("%s is judged by eager alone: %s", n.name, e)
            exact = eager

        def sample(units: float, seed: int) -> torch.Tensor | None:
            try:
                value: torch.Tensor = reference.perturbed(units, seed)[n]
            except Exception:  # a perturbed index or size may be out of range
                return None
            return value if value.shape == actual.shape else None

        if exact.shape != actual.shape or not _comparable(actual):
            exact = eager
        found: Difference | None = compare(actual, exact, eager, sample)
        return None if found is None else Finding(t, found, "", actual, exact, self.leaves(t))

    def leaves(self, t: Target) -> dict[Key, Any]:
        return {k: self.recorded.get(k) for k in t.leaves}

    def number(self, value: Any) -> Any:
        """The value that a symbolic number has in this run."""
        known = {str(s): v for s, v in self.sizes.items()}
        expr = value.node.expr
        exact = expr.subs({s: known[str(s)] for s in expr.free_symbols})
        return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)](exact)

    def skip(self, t: Target, why: str) -> None:
        if t.key[0].name not in self.owner.unchecked:
            self.owner.unchecked[t.key[0].name] = why
            log.info("%s is not checked: %s", t.key[0].name, why)


def _comparable(x: torch.Tensor) -> bool:
    """Whether float64 (or complex128) holds every value of the type."""
    return x.dtype.is_floating_point or x.dtype.is_complex or not x.is_quantized


def _snapshot(value: Any) -> Any:
    """A copy that keeps the strides, where each element is in memory once."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _with_storage(value: Any) -> Any:
    """A copy with all the memory that the tensor is a view of."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return _snapshot(value)
    bytes_ = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
    own = torch.empty(0, dtype=value.dtype, device=value.device)
    own.set_(bytes_.clone().untyped_storage(), value.storage_offset(), value.shape, value.stride())
    return own.conj() if value.is_conj() else own


def steps_of(schedule: Schedule, host: HostProgram) -> tuple[WatchedStep, ...]:
    """The steps of a host program with probes, one a step of the schedule."""
    values = ValuePrinter(schedule.program.buffers, schedule.program.constants)
    probes = {(p.step, p.after): p for p in host.lines if isinstance(p, Probe)}
    kernels = host.kernel_calls()
    steps = []
    for k, s in enumerate(schedule.steps):
        name, own = (s.target_name, ()) if isinstance(s, Extern) else _called(next(kernels))
        before, after = probes[k, False], probes[k, True]
        steps.append(
            WatchedStep(
                name,
                before.buffers,
                after.buffers,
                after.numbers,
                frozenset((*s.write_buffers(), *own)),
                s.origins,
                partial(step_lines, s, values),
            )
        )
    return tuple(steps)


def _called(call: CallKernel) -> tuple[str, tuple[str, ...]]:
    return call.kernel, tuple(b.name for b in call.temporaries)
