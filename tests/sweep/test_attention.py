"""A few cases of the attention sweep, and how its cases are chosen."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from attention_cases import REFUSED, Spec, likely, pairs_of, parse, select, wanted_pairs
from attention_run import Call, compare, run_case
from sweep_farm import again, settled, verdict

from tests.farm import Lost

# Dynamic sizes and whole blocks take seconds each: the sweep itself has them.
COUNTS = {"forward": 8, "no_grad": 8, "backward": 4}


def quick_cases() -> list[Spec]:
    small = [s for s in select("cpu") if s.use == "call" and int(s.size) <= 96]
    return [s for mode, n in COUNTS.items() for s in [s for s in small if s.mode == mode][:n]]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_pair_of_options_occurs_where_eager_should_take_it(device: str) -> None:
    cases = select(device)
    assert all(parse(s.key) == s for s in cases)
    taken = [asdict(s) for s in cases if likely(asdict(s), device)]
    assert len(cases) - len(taken) == REFUSED
    assert wanted_pairs(device) == {p for s in taken for p in pairs_of(s)} & wanted_pairs(device)


@pytest.mark.parametrize("spec", quick_cases(), ids=lambda s: s.key)
def test_attention_is_as_eager_has_it(spec: Spec) -> None:
    row = run_case(spec, "cpu")
    assert row.state in ("ok", "refused", "upstream"), row.detail


def test_what_eager_refuses_is_refused() -> None:
    key = "call/cudnn/float32/none/13/same/4:4/8/1/bhld/default/0/forward"
    row = run_case(parse(key), "cpu")
    assert row.state == "refused" and "viable backend" in row.detail, row


def test_gradients_that_float64_cannot_judge_are_judged_by_norm() -> None:
    eager = torch.linspace(-4, 4, 4096)
    mine = eager.clone()
    mine[300] += 2e-4
    worse = eager * (1 + 1e-5)
    for found, exact, same in ((mine, None, True), (mine, eager, False), (worse, None, False)):
        calls = [[Call([], [x], [])] for x in (found, eager)]
        judge = None if exact is None else [Call([], [exact.double()], [])]
        assert (compare(*calls, judge) == "") == same


def test_a_case_that_ends_its_process_is_tried_alone() -> None:
    (alone,) = again(Lost({"case": "x"}, "status 1: CUDA error", "", 1, 2.0))
    assert alone == {"case": "x", "alone": "status 1: CUDA error"}
    for stage, status, state in (
        ("eager", -6, "refused"), ("eager, traced", -6, "upstream"), ("litz", -6, "FAIL"),
        ("eager", None, "FAIL"),
    ):  # fmt: skip
        gone = Lost(alone, "status -6", stage, status, 2.0)
        assert again(gone) == [] and verdict(gone, "refused")["state"] == state
    assert settled({"case": "x"}, {"state": "ok"})["state"] == "ok"
    assert settled(alone, {"state": "ok"})["state"] == "FAIL"
