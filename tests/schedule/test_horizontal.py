"""Horizontal groups: who may share a launch, in which order, and what the verifier refuses."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from litz.errors import VerifyError
from litz.ir.parse import parse
from litz.ir.program import Program
from litz.schedule.build import schedule
from litz.schedule.fuse import FusionSettings
from litz.schedule.groups import Group, HorizontalGroup, Schedule
from litz.schedule.horizontal import SLACK, arrange, verify_launches
from tests.text_cases import resolve

UNFUSED = FusionSettings(fuel=0)


def all_of_them(groups: Sequence[Group], wanted: bool) -> Iterable[tuple[Sequence[Group], str]]:
    return [(groups, "wanted" if wanted else "all")]


def loops(name: str, reads: str, writes: str, size: int, device: str = "cpu") -> str:
    return f"""  {name} = loops [i0 < {size}] @{device} from (node) {{
    %0: f32 = load {reads}[i0]
    %1: f32 = add %0, f32(1.0)
    store {writes}[i0] = %1
  }}
"""


def program(
    inputs: dict[str, int], temps: dict[str, int], body: str, returned: str = ""
) -> Program:
    kinds = {**dict.fromkeys(inputs, "input"), **dict.fromkeys(temps, "temp")}
    sizes = {**inputs, **temps}
    lines = "".join(f"  {n}: f32[{s}]{{1}} @cpu {kinds[n]}\n" for n, s in sizes.items())
    text = f"program({', '.join(inputs)}) {{\n{lines}{body}  return ({returned})\n}}"
    return parse(text, resolve=resolve)


def steps_of(s: Schedule) -> list[tuple[str, ...]]:
    """The nodes of each step, in order."""
    return [step.nodes for step in s.steps if isinstance(step, Group)]


def in_place(count: int) -> Program:
    """Two kernels on each of some tensors, the second on what the first wrote."""
    sizes = {f"a{k}": 8 + k for k in range(count)}
    body = "".join(
        loops(f"loops{2 * k + j}", f"a{k}", f"a{k}", 8 + k) for k in range(count) for j in range(2)
    )
    return program(sizes, {}, body)


def test_kernels_move_to_the_first_of_their_depth() -> None:
    s = schedule(in_place(3), UNFUSED)
    found = arrange(s, all_of_them)
    verify_launches(s, found)
    assert steps_of(found) == [(f"loops{k}",) for k in (0, 2, 4, 1, 3, 5)]
    first, second = found.horizontal
    assert first.groups == ("group0", "group2", "group4")
    assert first.reason == "all; they need nothing of each other at depth 0"
    assert second.reason.endswith("at depth 1")
    assert [x.name for x in found.started] == ["group0", "group1"]


@pytest.mark.parametrize(
    ("starts", "alone"), [((0, 4, 8), False), ((0, 3, 8), True), ((4, 0, 8), True)]
)
def test_parts_of_one_memory(starts: tuple[int, ...], alone: bool) -> None:
    """Those that lie behind each other need no order among them; who reads all runs behind them."""
    body = "".join(
        loops(f"loops{k}", f"a{k}", "c", 4).replace("c[i0]", f"c[i0 + {at}]")
        for k, at in enumerate(starts)
    )
    body += loops("loops3", "c", "d", 12)
    sizes = {**{f"a{k}": 4 for k in range(3)}, "c": 12, "d": 12}
    s = schedule(program(sizes, {}, body), UNFUSED)
    found = arrange(s, all_of_them)
    verify_launches(s, found)
    groups = [x.groups for x in found.horizontal]
    assert groups == ([] if alone else [("group0", "group1", "group2")])


def test_parts_of_one_memory_that_is_written_again() -> None:
    """Who writes all of it, or gives a view of it, stays behind them."""
    parts = (loops(f"loops{k}", "a", "c", 4).replace("c[i0]", f"c[i0 + {4 * k}]") for k in range(2))
    body = "".join(parts) + loops("loops2", "b", "c", 8) + loops("loops3", "b", "d", 8)
    s = schedule(program({"a": 4, "b": 8, "c": 8, "d": 8}, {}, body), UNFUSED)
    found = arrange(s, all_of_them)
    verify_launches(s, found)
    assert [x.groups for x in found.horizontal] == [("group0", "group1", "group3")]
    assert found.steps[-1].name == "group2"


def test_calls_of_operators_stay_where_they_are() -> None:
    body = loops("loops0", "a", "a", 4) + loops("loops1", "b", "b", 4)
    call = '  call = extern aten.sin.out(a) -> (c) @cpu out from (sin) because "a test"\n'
    last = loops("loops2", "d", "d", 4)
    sizes = dict.fromkeys("abd", 4)
    s = schedule(program(sizes, {"c": 4}, body + call + last, "c"), UNFUSED)
    found = arrange(s, all_of_them)
    verify_launches(s, found)
    assert [x.groups for x in found.horizontal] == [("group0", "group1")]
    assert [x.name for x in found.steps] == [x.name for x in s.steps]


def called(count: int, target: str = "aten.sin.out") -> Schedule:
    """Some tensors, each with a kernel before a call of an operator and one behind it."""
    body = "".join(
        loops(f"loops{2 * k}", f"a{k}", f"b{k}", 4)
        + f'  call{k} = extern {target}(b{k}) -> (c{k}) @cpu out from (x) because "a test"\n'
        + loops(f"loops{2 * k + 1}", f"c{k}", f"d{k}", 4)
        for k in range(count)
    )
    given = {f"{n}{k}": 4 for k in range(count) for n in "ad"}
    temps = {f"{n}{k}": 4 for k in range(count) for n in "bc"}
    return schedule(program(given, temps, body), UNFUSED)


@pytest.mark.parametrize("count", [3, 12])
def test_launches_are_shared_across_calls_where_that_saves_many(count: int) -> None:
    s = called(count)
    found = arrange(s, all_of_them)
    verify_launches(s, found)
    if count == 3:
        assert found.steps == s.steps
        assert [x.groups for x in found.horizontal] == [("group2", "group3"), ("group5", "group6")]
    else:
        assert [len(x.groups) for x in found.horizontal] == [count, count]
        names = ["group", "call", "group"]
        assert [n.rstrip("0123456789") for n in (x.name for x in found.steps)] == [
            n for n in names for _ in range(count)
        ]


def test_counters_gather_across_calls() -> None:
    """But for one that a kernel reads too: it stays in front of that."""
    count = 4
    body = "".join(
        f"  step{k} = loops [] @cpu from (step) {{\n    %0: f32 = load n{k}[0]\n"
        f"    %1: f32 = add %0, f32(1.0)\n    store n{k}[0] = %1\n  }}\n"
        f'  call{k} = extern aten.sin.out(a{k}) -> (c{k}) @cpu out from (x) because "a test"\n'
        for k in range(count)
    )
    sizes = {f"{n}{k}": 1 for k in range(count) for n in "na"}
    text = program(sizes, {f"c{k}": 1 for k in range(count)}, body + loops("last", "n2", "n2", 1))
    found = arrange(s := schedule(text, UNFUSED), all_of_them)
    verify_launches(s, found)
    assert [x.groups for x in found.horizontal] == [("group0", "group2", "group6")]


def test_counters_stay_behind_the_calls_that_give_their_steps() -> None:
    text = parse(
        """program(x, n0, n1, n2) {
  symbol u0 in [0, 9]
  x: i64[1]{1} @cpu input
  n0: i64[1]{1} @cpu input
  n1: i64[1]{1} @cpu input
  n2: i64[1]{1} @cpu input
  a0 = loops [] @cpu from (step) {
    %0: i64 = load n0[0]
    %1: i64 = add %0, i64(1)
    store n0[0] = %1
  }
  call = extern aten._local_scalar_dense.default(x) -> (_) @cpu symbols (0: u0) from (x) because "a"
  a1 = loops [] @cpu from (step) {
    %0: i64 = load n1[0]
    %1: i64 = index u0
    %2: i64 = add %0, %1
    store n1[0] = %2
  }
  a2 = loops [] @cpu from (step) {
    %0: i64 = load n2[0]
    %1: i64 = add %0, i64(1)
    store n2[0] = %1
  }
  return ()
}""",
        resolve=resolve,
    )
    s = schedule(text, UNFUSED)
    found = arrange(s, all_of_them)
    verify_launches(s, found)
    assert steps_of(found) == [("a0",), ("a2",), ("a1",)]
    early = [s.steps[k] for k in (0, 2, 1, 3)]
    with pytest.raises(VerifyError, match="other values"):
        verify_launches(s, replace(s, steps=tuple(early)))


def test_calls_with_effects_of_their_own_end_a_run() -> None:
    s = called(12, "aten.bernoulli.out")
    assert arrange(s, all_of_them).steps == s.steps


def test_a_partition_of_the_user_keeps_numbers_apart() -> None:
    s = schedule(in_place(4), UNFUSED)
    found = arrange(s, all_of_them, {"group0": 1, "group4": 1, "group2": 7})
    verify_launches(s, found)
    names = [x.groups for x in found.horizontal]
    assert names == [("group0", "group4"), ("group1", "group3", "group5", "group7")]
    wanted = "wanted; they need nothing of each other at depth 0, number 1 of the user's partition"
    assert found.horizontal[0].reason == wanted


@pytest.mark.parametrize("size", [8, SLACK])
def test_large_temporaries_do_not_all_live_at_once(size: int) -> None:
    """Each tensor's kernels hand a temporary on; together all of these would live at one time."""
    count = 16
    temps = {f"t{k}": size for k in range(count)}
    ends = {f"a{k}": 1 for k in range(count)}
    body = "".join(
        loops(f"loops{2 * k}", "x", f"t{k}", size) + loops(f"loops{2 * k + 1}", f"t{k}", f"a{k}", 1)
        for k in range(count)
    )
    s = schedule(program({"x": size, **ends}, temps, body), UNFUSED)
    found = arrange(s, all_of_them)
    verify_launches(s, found)
    alive = max((len(x.groups) for x in found.horizontal), default=1)
    assert alive == count if size == 8 else alive <= 2


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_keep_what_every_step_sees(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"a{k}" for k in range(6)]
    body = "".join(
        loops(f"loops{k}", rng.choice(names), rng.choice(names), 4)
        for k in range(rng.randint(2, 25))
    )
    s = schedule(program(dict.fromkeys(names, 4), {}, body), UNFUSED)
    found = arrange(s, all_of_them)
    verify_launches(s, found)
    assert sorted(x.name for x in found.steps) == sorted(x.name for x in s.steps)


# --- what the verifier refuses ---


def broken(found: Schedule, *groups: str) -> Schedule:
    return replace(found, horizontal=(HorizontalGroup(groups, "by hand"),))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (("group0", "group1"), "group0 and group1 write a0"),
        (("group0", "group2"), "they do not follow each other"),
        (("group0",), "not two or more"),
        (("group0", "group9"), "not two or more"),
        (("group1", "group1"), "runs once"),
    ],
)
def test_broken_groups(groups: tuple[str, ...], message: str) -> None:
    s = schedule(in_place(3), UNFUSED)
    with pytest.raises(VerifyError, match=message):
        verify_launches(s, broken(s, *groups))


def test_a_member_reads_what_another_writes() -> None:
    body = loops("loops0", "a", "b", 4) + loops("loops1", "c", "a", 4)
    s = schedule(program(dict.fromkeys("abc", 4), {}, body), UNFUSED)
    with pytest.raises(VerifyError, match="group0 reads a, which group1 writes"):
        verify_launches(s, broken(s, "group0", "group1"))


def test_a_member_in_two_groups() -> None:
    body = "".join(loops(f"loops{k}", f"a{k}", f"a{k}", 4) for k in range(3))
    s = schedule(program({f"a{k}": 4 for k in range(3)}, {}, body), UNFUSED)
    both = tuple(HorizontalGroup((f"group{k}", f"group{k + 1}"), "by hand") for k in range(2))
    with pytest.raises(VerifyError, match="a group runs once"):
        verify_launches(s, replace(s, horizontal=both))


def test_members_on_different_devices() -> None:
    body = loops("loops0", "a", "a", 4) + loops("loops1", "b", "b", 4)
    s = schedule(program(dict.fromkeys("ab", 4), {}, body), UNFUSED)
    other = tuple(replace(x, device="cuda") if i else x for i, x in enumerate(s.steps))  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match="different devices"):
        verify_launches(s, replace(broken(s, "group0", "group1"), steps=other))


def test_an_order_that_changes_what_a_step_sees() -> None:
    s = schedule(in_place(2), UNFUSED)
    first, second, *rest = s.steps
    with pytest.raises(VerifyError, match="meets other values"):
        verify_launches(s, replace(s, steps=(second, first, *rest)))


def test_a_step_that_is_lost() -> None:
    s = schedule(in_place(2), UNFUSED)
    with pytest.raises(VerifyError):
        verify_launches(s, replace(s, steps=s.steps[:-1]))
