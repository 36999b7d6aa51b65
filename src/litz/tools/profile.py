"""``litz.profile`` and ``litz profile FILE``: measures a program step by step."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from torch.fx import GraphModule

from litz.backend import compile_with
from litz.compiler import on_gpu
from litz.dynamo import apart, heard_breaks
from litz.errors import LitzError
from litz.host.lines import CallKernel
from litz.options import Options, make_options
from litz.report.collect import Collector
from litz.report.gather import step_id
from litz.report.profile import BACKWARD, Event, Profile, Row, Timing
from litz.report.record import Report, Step
from litz.report.timing import (
    AHEAD,
    EagerTimer,
    Interval,
    Mark,
    Operator,
    Timer,
    between,
    in_turns,
    mark,
    queued,
)
from litz.reporting import Listener
from litz.runtime.meeting import rank
from litz.runtime.native import Runtime, Segment
from litz.targets.cpp.toolchain import build, runtime_unit
from litz.targets.tools import Tools
from litz.tools.explain import (
    run_script,
    say,
    script_title,
    takes_files,
    takes_script,
    title_of,
    write,
    write_files,
)
from litz.tools.roofline import roofline

WATCHED = 20
"""Watched calls whose medians count."""


class Session:
    """Compiles with a timer on each graph, and makes a profile of what ran."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.collector = Collector()
        self.listener = Listener(self.collector.hear, stages=True, timer=self._timer)
        self._timers: list[Timer] = []

    def _timer(self, graph: GraphModule) -> Timer:
        self._timers.append(timer := Timer(on_gpu(graph)))
        return timer

    @property
    def cuda(self) -> bool:
        return any(t.cuda for t in self._timers)

    def clear(self) -> None:
        """What ran so far does not count."""
        for t in self._timers:
            t.clear()

    def profile(self, title: str, calls: int, watched: float) -> Profile:
        """calls: of the program since ``clear``, of ``watched`` seconds each."""
        device = "cuda" if self.cuda else "cpu"
        machine = roofline(device, Tools(self.options).cache)
        launch = 0.0 if self.cuda else _launch_seconds(self.options)
        medians = self._medians(launch)
        report = self.collector.report(
            title,
            self.options,
            machine,
            lambda s: replace(s, seconds=medians[s.id][1].device) if s.id in medians else s,
        )
        rows = tuple(_rows(report, medians, calls))
        return Profile(report, (Timing("litz", 0.0, watched, rows, self._events()),), machine)

    def _medians(self, launch: float) -> dict[str, tuple[int, Interval]]:
        """How often each step ran, and its time without what launching takes, by its id."""
        found = {}
        for n, c in enumerate(self.collector.compiled):
            t, host = c.stages.timer, c.stages.host
            if isinstance(t, Timer) and host is not None:
                for call, x in zip(host.calls(), t.medians(), strict=False):
                    native = isinstance(call, CallKernel)
                    own = max(x.device - launch, 1e-9) if native else x.device
                    found[step_id(f"g{n}", call)] = (len(t.runs), Interval(x.host, own))
        return found

    def _events(self) -> tuple[Event, ...]:
        """The last run of each graph, as it was."""
        last = [
            (n, c.stages.host, t.runs[-1])
            for n, c in enumerate(self.collector.compiled)
            if isinstance(t := c.stages.timer, Timer) and t.runs and c.stages.host is not None
        ]
        found: list[Event] = []
        for n, host, run in sorted(last, key=lambda x: x[2].start[0]):
            origin = last[0][2].start if self.cuda else min(x[2].start for x in last)
            begin = 0.0 if run.start is origin else run.start[0] - origin[0]
            found.append(Event(f"g{n}", begin, run.whole.device, ""))
            for call, (start, seconds) in zip(host.calls(), run.spans(run.start), strict=False):
                name = call.kernel if isinstance(call, CallKernel) else call.extern.target_name
                found.append(Event(name, begin + start, seconds, step_id(f"g{n}", call)))
        return tuple(found)


def _rows(report: Report, medians: Mapping[str, tuple[int, Interval]], calls: int) -> Iterator[Row]:
    found = []
    for g in report.graphs:
        for s in (s for s in g.steps if s.id in medians):
            runs, x = medians[s.id]
            found.append(_row(s, g.kind, x, max(round(runs / calls), 1)))
    yield from sorted(found, key=lambda r: -r.seconds)


def _row(s: Step, kind: str, x: Interval, times: int) -> Row:
    lines = (BACKWARD,) if kind == "backward" else s.lines
    figures = (times, x.device * times, x.host * times, s.bytes * times, s.ops * times)
    return Row(s.id, s.kind, s.name, lines, *figures, s.launches * times, s.reason)


def _launch_seconds(options: Options) -> float:
    """What calling a native segment takes that does nothing."""
    tools = Tools(options)
    try:
        empty = Segment(Runtime(build((runtime_unit(),), tools.toolchain, tools.cache)[0]), [], 2)
    except LitzError:
        return 0.0
    found = []
    for _ in range(200):
        start = mark(False)
        empty(0, 0)
        found.append(mark(False)[0] - start[0])
    return median(found)


EagerRun = tuple[Mark, list[Operator], Mark]


def _eager_run(call: Callable[[], Any], cuda: bool) -> EagerRun:
    """One call in eager mode, operator by operator."""
    with EagerTimer(cuda) as timer, queued(AHEAD, cuda):
        origin = mark(cuda)
        call()
        end = mark(cuda)
    return origin, timer.calls, end


def _can_be_watched(call: Callable[[], Any]) -> bool:
    """Whether a call in eager mode can be; control flow cannot, which PyTorch itself compiles."""
    try:
        _eager_run(call, False)
    except Exception:  # if it is the user's own, it comes again
        return False
    return True


def _eager(runs: Sequence[EagerRun], cuda: bool) -> Timing:
    """Medians over those calls that do the same as the last."""
    same = [r for r in runs if len(r[1]) == len(runs[-1][1])]
    origin, calls, end = same[-1]
    rows, events = [], []
    for i, c in enumerate(calls):
        host = median(r[1][i].end[0] - r[1][i].start[0] for r in same)
        device = median(between(r[1][i].start, r[1][i].end) for r in same)
        lines = (BACKWARD,) if c.line is None else (c.line.id,)
        rows.append(Row(f"eager.{i}", "aten", c.name, lines, 1, device, host, c.bytes, c.ops))
        events.append(Event(c.name, between(origin, c.start), device, f"eager.{i}"))
    rows.sort(key=lambda r: -r.seconds)
    return Timing("eager", 0.0, end[0] - origin[0], tuple(rows), tuple(events))


def profile(
    fn: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    against: Sequence[str] = ("eager",),
    seconds: float = 2.0,
) -> Profile:
    """Measure ``fn`` under Litz, and under each backend of ``against``; see ``litz.profile``."""
    session, eager = Session(make_options(options)), []
    call = partial(fn, *args, **kwargs)
    with apart():  # eager mode compiles control flow, and under the watch otherwise than without
        watches = "eager" in against and _can_be_watched(call)
    with apart() as compile:
        with session.listener, heard_breaks(session.collector.hear_break):
            watched: Any = compile(fn, backend=_litz(session.options))
            for _ in range(3):
                watched(*args, **kwargs)
            session.clear()
            spent = []
            for _ in range(WATCHED):  # in turns: what else the machine does meets both
                with queued(AHEAD, session.cuda):
                    start = perf_counter()
                    watched(*args, **kwargs)
                    spent.append(perf_counter() - start)
                if watches:
                    eager.append(_eager_run(call, session.cuda))
        found = session.profile(title_of(fn), WATCHED, median(spent))
        timings = {"litz": found.timings[0]}
        timings |= {name: Timing(name, 0.0, 0.0, (), ()) for name in against}
        if eager:
            timings["eager"] = _eager(eager, session.cuda)
        ways = _ways(fn, session.options, against, compile)
        calls = {n: partial(f, *args, **kwargs) for n, f in ways.items()}
        for way in calls.values():
            for _ in range(3):
                way()
        # Ranks call as often as each other, whatever their clocks say.
        turns = (3, 100) if rank() is None else (WATCHED, WATCHED)
        whole = in_turns(tuple(calls.values()), seconds, session.cuda, *turns)
    known = [replace(timings[n], seconds=x) for n, x in zip(calls, whole, strict=True)]
    return replace(found, timings=tuple(known))


def _litz(options: Options) -> Callable[..., Any]:
    return lambda gm, inputs: compile_with(gm, inputs, options)


def _ways(
    fn: Any, options: Options, against: Sequence[str], compile: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """The program as each backend runs it."""
    ways: dict[str, Callable[..., Any]] = {"litz": compile(fn, backend=_litz(options))}
    for name in against:
        ways[name] = fn if name == "eager" else compile(fn, backend=name)
    return ways


def profile_script(path: str, arguments: Sequence[str] = ()) -> Profile:
    """Run a Python program and measure all that ``backend="litz"`` compiled in it.

    First calls, which build kernels, do not count.
    """
    session = Session(make_options())
    run_script(path, arguments, session.listener, session.collector)
    timers = (c.stages.timer for c in session.collector.compiled)
    runs = [t.runs for t in timers if isinstance(t, Timer)]
    for own in runs:
        if len(own) > 1:
            del own[0]
    calls = Counter(map(len, runs)).most_common(1)[0][0] if runs else 1
    watched = sum(median(x.whole.device for x in r) for r in runs if r)
    return session.profile(script_title(path), calls or 1, watched)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="litz profile", description=__doc__)
    takes_script(made)
    made.add_argument("--csv", metavar="FILE", help="write a line for each step")
    made.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto")
    takes_files(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    asked = parser().parse_args(arguments)
    found = profile_script(asked.file, asked.arguments)
    for file, text in ((asked.csv, found.to_csv), (asked.trace, found.to_trace)):
        if file:
            write(file, text())
    write_files(found.report, asked)
    say(str(found))
    return 0
