"""The corpus is compiled the same twice, and what differs is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.replay import compare
from tests.replay.__main__ import EXPECTATIONS, ROOT, recorded
from tests.replay.corpus import corpus
from tests.replay.record import record


def graph(**given: Any) -> dict[str, Any]:
    made = {"kernels": {}, "host": "", "calls": [], "launches": 1, "bytes": 8, "of_calls": 0}
    return {**made, "whole": "", **given}


def test_the_corpus_is_large_and_expected() -> None:
    entries = corpus()
    assert len(entries) >= 150
    assert {e.device for e in entries.values()} == {"cpu", "cuda"}
    assert any(e.dynamic for e in entries.values()) and any(e.training for e in entries.values())
    assert compare.read_expectations(EXPECTATIONS.read_text()).keys() == entries.keys()


@pytest.mark.slow
def test_entries_are_recorded_alike_and_as_expected() -> None:
    """In processes of their own, as always: a GPU on paper is for a whole process."""
    expected = compare.read_expectations(EXPECTATIONS.read_text())
    found = recorded(ROOT, "/rotary")
    assert {"cpp/rotary", "triton/rotary"} <= found.keys()
    assert compare.grown({k: expected[k] for k in found}, found) == []
    here = [g.as_json() for g in record(corpus()["cpp/rotary"])]
    assert found["cpp/rotary"] == json.loads(json.dumps({"graphs": here}))


def test_texts_are_recorded_for_both_targets() -> None:
    """Which reads the recipes of their kernels back."""
    for name, entry in corpus().items():
        if entry.text:
            cpp, triton = record(entry)
            on_cpu = cpp.kernels.values()
            assert all("int64_t" in s or "triton.jit" in s for s in on_cpu), name
            assert all("triton.jit" in s for s in triton.kernels.values()), name


def test_differences() -> None:
    old = {"graphs": [graph(kernels={"k1": "// x\nfor a\n"}, calls=["mm"])]}
    assert list(compare.differences("x", old, old)) == []
    new = {"graphs": [graph(kernels={"k2": "// x\nfor b\n"}, launches=2)]}
    lines = list(compare.differences("x", old, new))
    assert lines[:3] == ["== x", "  launches 1 -> 2, calls 1 -> 0", "  graph 0"]
    assert "      -for a" in lines and "      +for b" in lines and "      -mm" in lines
    moved = {"graphs": [graph(kernels={"k1": "// x\nfor a\n"}, calls=["mm"], host="free b")]}
    assert "    host" in list(compare.differences("x", old, moved))
    failed = list(compare.differences("x", old, {"error": "KeyError: 3"}))
    assert failed == ["== x", "  compiled  ->  KeyError: 3"]


def test_what_grows_is_worse() -> None:
    recorded = {"a": {"graphs": [graph(), graph()]}, "b": {"error": "KeyError: 3"}, "c": {}}
    text = compare.write_expectations({"a": recorded["a"]})
    expected = compare.read_expectations(text)
    assert expected == {"a": (2, 16, 0, 0)}
    assert compare.grown(expected, {"a": recorded["a"]}) == []
    assert compare.grown(expected, {"a": {"graphs": [graph()]}}) == []  # less
    assert compare.grown({**expected, "z": (0, 0, 0, 0)}, recorded) == [
        "b: KeyError: 3", "c: it is not among the expectations", "z: it is not in the corpus",
    ]  # fmt: skip
    assert compare.grown({"a": (2, 12, 0, 0)}, {"a": recorded["a"]}) == ["a: bytes 12 -> 16"]
