"""Memory plans never change results: freed memory is poisoned, reuse is random programs' own."""

from __future__ import annotations

from dataclasses import replace

import torch
from host_doubles import Arena, natives, prelude
from host_programs import S0, Maker, schedules
from hypothesis import HealthCheck, Phase, given, settings
from peak import peak_bytes

from litz.host.inplace import inplace_pairs
from litz.host.lines import (
    Allocate,
    BindSize,
    Free,
    HostProgram,
    Place,
    Reuse,
    Workspace,
    host_text,
)
from litz.host.memory import plan_memory
from litz.host.plan import plan
from litz.host.python import print_host
from litz.index import as_expr
from litz.loading.values import load_host
from litz.schedule.groups import Group, Schedule


def run(host: HostProgram, schedule: Schedule) -> tuple[list[torch.Tensor], Arena]:
    arena = Arena()
    groups = {s.name: s for s in schedule.steps if isinstance(s, Group)}
    source = print_host(host)
    call = load_host(source.source, {**source.namespace(), **natives(host, groups)})
    call.__globals__.update(prelude(arena))
    gen = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(8, 8, generator=gen) if name in host.buffers else 8 for name in host.inputs
    ]
    out = call(tensors)
    assert tensors == []
    assert out[-2:] == (None, 7)
    return [o for o in out if isinstance(o, torch.Tensor)], arena


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(schedules())
def test_plans_keep_results(made):
    schedule, kernels = made
    plain = plan(schedule, kernels)
    pairs = pairs_of(schedule)
    expected, _ = run(plain, schedule)
    ideal = peak_bytes(plain)
    for options in ({"segments": False}, {"slack": 0}, {}, {"slack": 1 << 12}, None):
        if options is None:  # as on a GPU
            options, planned = {}, moved(plan_memory(moved(plain, "cuda:0"), pairs), "cpu")
            assert not planned.segments()
        else:
            planned = plan_memory(plain, pairs, **options)
        got, arena = run(planned, schedule)
        for e, g in zip(expected, got, strict=True):
            assert torch.equal(e, g), host_text(planned)
            assert not e.isnan().any()
        peak = peak_bytes(planned)
        assert peak <= ideal + options.get("slack", 1 << 20), host_text(planned)
        assert arena.peak <= peak, host_text(planned)


def moved(host: HostProgram, device: str) -> HostProgram:
    """A program of one device on another."""
    lines = [replace(x, device=device) if isinstance(x, Workspace) else x for x in host.lines]
    buffers = {n: replace(b, device=device) for n, b in host.buffers.items()}
    return replace(host, buffers=buffers, lines=tuple(lines))


def test_small_temporaries_on_a_gpu_share_an_arena():
    """But for those that more than kernels see, and large ones."""
    maker = Maker(1)
    (a,) = maker.group("flip", ["arg0_1"], 1, 8)
    (b,) = maker.group("flip", [a], 1, 8)
    c = maker.extern("out", b)
    (d,) = maker.group("flip", [c], 1, 8)
    (e,) = maker.group("flip", [d], 1, 8)
    plain = moved(plan(maker.finish([e]), maker.kernels), "cuda:0")
    planned = plan_memory(plain)
    (arena,) = [x for x in planned.lines if isinstance(x, Workspace)]
    assert (arena.nbytes, arena.device) == (256, "cuda:0")
    assert {x.buffer for x in planned.lines if isinstance(x, Place)} == {a, d}
    side, one = as_expr(1 << 10), as_expr(1)
    layout = {"shape": (side, side), "strides": (side, one)}
    large = {n: replace(x, **layout) for n, x in plain.buffers.items()}
    planned = plan_memory(replace(plain, buffers=large))
    assert not any(isinstance(x, Workspace) for x in planned.lines), host_text(planned)


def pairs_of(schedule: Schedule) -> dict[str, tuple[tuple[str, str], ...]]:
    buffers = schedule.program.buffers
    return {s.name: inplace_pairs(s, buffers) for s in schedule.steps if isinstance(s, Group)}


def fixed_example() -> str:
    """The text and source of a plan that uses every device of memory planning."""
    maker = Maker()
    (a,) = maker.group("pointwise", ["arg0_1"], 1, 8)
    b, c = maker.group("flip", [a, "arg1_1"], 2, 8)
    (e,) = maker.group("flip", [b, c], 1, 8)
    (f,) = maker.group("pointwise", [e], 1, 8)
    g = maker.extern("plain", f)
    (h,) = maker.group("flip", [g], 1, 8)
    (i,) = maker.group("rowsum", [h, f], 1, 8)
    schedule = maker.finish([i])
    planned = plan_memory(plan(schedule, maker.kernels), pairs_of(schedule), slack=0)
    return host_text(planned) + "\n" + print_host(planned).source


def test_a_plan_in_full():
    assert fixed_example().split("\nimport torch")[0] == EXPECTED


EXPECTED = """\
host(arg0_1, arg1_1) {
  workspace workspace_0: 512 bytes @cpu
  allocate buf6: f32[8, 8]{8, 1} @cpu temp
  place buf5 = buf6+0
  place buf2 = buf6+0
  place buf3 = workspace_0+0
  place buf4 = workspace_0+256
  segment segment_0 {
    k_group0(arg0_1, buf2)
    k_group1(buf2, arg1_1, buf3, buf4)
    k_group2(buf3, buf4, buf5)
    k_group3(buf5, buf6)
  }
  free workspace_0
  free arg0_1
  free arg1_1
  extern4 = extern aten.mul.Scalar(buf6, 0.5) -> (buf7) @cpu because 'test'
  allocate buf9: f32[8, 8]{8, 1} @cpu temp
  place buf8 = buf9+0
  segment segment_1 {
    k_group5(buf7, buf8)
    k_group6(buf8, buf6, buf9)
  }
  free buf6
  free buf7
  return (buf9, None, 7)
}"""


def test_a_dead_input_gives_its_memory():
    maker = Maker(1)
    (a,) = maker.group("pointwise", ["arg0_1"], 1, 8)
    out = maker.extern("out", a)  # `a` and the result of the next kernel must be tensors
    (b,) = maker.group("pointwise", [a], 1, 8)
    schedule = maker.finish([b, out])
    planned = plan_memory(plan(schedule, maker.kernels), pairs_of(schedule))
    assert Reuse(b, a) in planned.lines


def test_memory_of_inputs_and_externs_is_left_alone():
    maker = Maker(1)
    e = maker.extern("plain", "arg0_1")
    (a,) = maker.group("pointwise", ["arg0_1", e], 1, 8)
    schedule = maker.finish([a])
    assert pairs_of(schedule) == {"group1": ()}
    planned = plan_memory(plan(schedule, maker.kernels), {"group1": ((a, e), (a, "arg0_1"))})
    assert not any(isinstance(line, (Reuse, Place)) for line in planned.lines)


def test_aliases_keep_memory_alive():
    maker = Maker(1)
    (a,) = maker.group("pointwise", ["arg0_1"], 1, 8)
    view = maker.extern("alias", a)
    (b,) = maker.group("flip", ["arg0_1"], 1, 8)  # `a` is dead by name, its alias is not
    (c,) = maker.group("pointwise", [view], 1, 8)
    schedule = maker.finish([b, c])
    planned = plan_memory(plan(schedule, maker.kernels), pairs_of(schedule))
    assert Reuse(b, a) not in planned.lines
    run(planned, schedule)


def test_memory_lent_within_a_segment_is_lent_once():
    maker = Maker(2)
    x, y = maker.extern("out", "arg0_1"), maker.extern("out", "arg1_1")
    (t,) = maker.group("flip", [x, y], 1, 8)  # t lies in r's memory, so x and y must not
    (u,) = maker.group("flip", [t], 1, 8)
    (r,) = maker.group("flip", [u], 1, 8)
    schedule = maker.finish([r])
    plain = plan(schedule, maker.kernels)
    expected, _ = run(plain, schedule)
    planned = plan_memory(plain, pairs_of(schedule))
    assert Place(t, r, 0) in planned.lines
    got, _ = run(planned, schedule)
    assert torch.equal(got[0], expected[0]), host_text(planned)


def test_temporaries_of_kernels_are_planned_as_all_memory_is():
    """They share memory with each other and with what is written later, and count in the peak."""
    for rows in (8, S0):
        maker = Maker(1)
        maker.symbolic = rows is S0
        (a,) = maker.group("flip", ["arg0_1"], 1, rows, 2)
        (b,) = maker.group("flip", [a], 1, rows, 1)
        schedule = maker.finish([b])
        plain = plan(schedule, maker.kernels)
        assert plain.lines.index(Free("group0.t0")) < plain.lines.index(Allocate(b))
        assert peak_bytes(plain) == 3 * 256
        planned = plan_memory(plain, {})
        assert any(isinstance(line, Place) and line.buffer == "group1.t0" for line in planned.lines)
        assert peak_bytes(planned) == 3 * 256
        got, _ = run(planned, schedule)
        expected, _ = run(plain, schedule)
        assert torch.equal(got[0], expected[0])


def test_memory_of_an_extern_is_held_as_long_as_views_of_it():
    """A result lends its memory to temporaries from the start on only where that is free."""
    maker = Maker()
    view = maker.extern("alias", maker.extern("plain", "arg0_1"))
    a = maker.extern("out", view)
    maker.extern("out", "arg1_1")
    schedule = maker.finish([maker.extern("out", a)])
    plain = plan(schedule, maker.kernels)
    assert peak_bytes(plain) == peak_bytes(plan_memory(plain, {}, slack=0)) == 2 * 256


def test_what_a_segment_frees_late_counts_for_the_arena():
    maker = Maker()
    (a,) = maker.group("flip", ["arg0_1", maker.extern("plain", "arg0_1")], 1, 8)
    b, _ = maker.group("flip", ["arg0_1"], 2, 8)
    maker.group("flip", ["arg0_1"], 2, 8)
    schedule = maker.finish([b, maker.extern("alias", a)])
    plain = plan(schedule, maker.kernels)
    planned = plan_memory(plain, {}, slack=0)
    assert peak_bytes(planned) <= peak_bytes(plain) == 4 * 256, host_text(planned)


def test_equal_symbolic_sizes_share():
    maker = Maker(1)
    maker.symbolic = True
    (a,) = maker.group("flip", ["arg0_1"], 1, S0)
    (b,) = maker.group("flip", [a], 1, S0)
    (c,) = maker.group("flip", [b], 1, S0)
    schedule = maker.finish([c])
    planned = plan_memory(plan(schedule, maker.kernels), pairs_of(schedule))
    assert sum(isinstance(line, Allocate) for line in planned.lines) == 2
    assert not any(isinstance(line, Workspace) for line in planned.lines)
    assert peak_bytes(planned) == 2 * 256


def test_a_segment_that_would_need_more_is_cut():
    maker = Maker(1)
    names = ["arg0_1"]
    for _ in range(6):  # each result is only read by an extern at the end, one at a time
        names += maker.group("flip", [names[-1]], 1, 8)
    schedule = maker.finish([names[-1]])
    plain = plan(schedule, maker.kernels)
    for slack in (0, 1 << 20):
        planned = plan_memory(plain, {}, slack=slack)
        assert peak_bytes(planned) <= peak_bytes(plain) + slack == 512 + slack
        assert len(planned.segments()) == 1  # the output's memory serves before it is born


def test_what_the_forward_graph_saved_counts_until_it_is_freed():
    """An arena that begins while it is there would lift the peak of a backward graph."""
    planned = {}
    for saved in ("arg1_1", "primals_1"):
        maker = Maker(0)
        for name, rows in (("tangents_1", 8), (saved, 1 << 19)):
            maker.inputs.append(name)
            maker.buffer(name, rows, "input")
        a = maker.extern("out", "tangents_1")
        (b,) = maker.group("pointwise", [a, saved], 1, 8)
        wide = [maker.group("pointwise", [b], 1, 1 << 17)[0]]
        wide += maker.group("flip", [wide[0]], 1, 1 << 17)
        (c,) = maker.group("pointwise", [wide[1]], 1, 8)
        plain = plan(maker.finish([c]), maker.kernels)
        planned[saved] = plan_memory(plain, {}, segments=False)
    taken = {
        saved: next(i for i, line in enumerate(p.lines) if isinstance(line, Workspace))
        for saved, p in planned.items()
    }
    assert taken["primals_1"] < taken["arg1_1"]


def test_kernels_stay_apart_when_asked():
    maker = Maker(1)
    (a,) = maker.group("flip", ["arg0_1"], 1, 8)
    (b,) = maker.group("flip", [a], 1, 8)
    schedule = maker.finish([b])
    planned = plan_memory(plan(schedule, maker.kernels), segments=False)
    assert planned.segments() == () and len(list(planned.kernel_calls())) == 2
    run(planned, schedule)


def test_unused_inputs_die_first():
    maker = Maker(3)
    (a,) = maker.group("flip", ["arg1_1"], 1, 8)
    planned = plan_memory(plan(maker.finish([a]), maker.kernels))
    assert planned.lines[:2] == (Free("arg0_1"), Free("arg2_1"))


def test_an_input_lives_until_its_sizes_are_read():
    maker = Maker(1)
    maker.buffer("arg0_1", S0, "input")
    (a,) = maker.group("pointwise", [], 1, S0)
    schedule = maker.finish([a])
    by_size = replace(schedule, program=replace(schedule.program, symbols=((S0, 0, 0),)))
    planned = plan_memory(plan(by_size, maker.kernels))
    assert planned.lines[:2] == (BindSize(S0, 0, 0), Free("arg0_1"))


def test_other_devices_run_kernel_by_kernel_in_memory_of_their_own():
    maker = Maker(1)
    (a,) = maker.group("flip", ["arg0_1"], 1, 8)
    (b,) = maker.group("flip", [a], 1, 8)
    (c,) = maker.group("flip", [b], 1, 8)
    for name in ("arg0_1", b, c):  # only `a` stays on the CPU
        maker.buffers[name] = replace(maker.buffers[name], device="cuda:0")
    maker.steps = [replace(g, device="cuda:0") for g in maker.steps]
    planned = plan_memory(plan(maker.finish([c]), maker.kernels), {"group1": ((b, a),)})
    kinds = [type(line).__name__ for line in planned.lines]
    assert kinds[0] == "EnterDevice" and kinds[-2:] == ["LeaveDevice", "Return"]
    assert planned.segments() == () and kinds.count("CallKernel") == 3
    assert kinds.count("Allocate") == 3 and "Reuse" not in kinds


def test_what_goes_by_value_to_another_device_is_a_tensor_of_its_own():
    """One that lies in an arena would be taken for the whole of it."""
    maker = Maker(1)
    (a,) = maker.group("flip", ["arg0_1"], 1, 8)
    (b,) = maker.group("flip", ["arg0_1"], 1, 8)
    (c,) = maker.group("flip", [a, b], 1, 8)
    maker.buffers[c] = replace(maker.buffers[c], device="cuda:0")
    maker.steps[-1] = replace(maker.steps[-1], device="cuda:0")
    planned = plan_memory(plan(maker.finish([c]), maker.kernels))
    assert not any(isinstance(line, Place) for line in planned.lines), host_text(planned)
    called = [line for line in print_host(planned).source.splitlines() if ".item()" in line]
    assert len(called) == 1 and f"{a}.item(), {b}.item()" in called[0]
