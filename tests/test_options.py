"""Options from the environment."""

from __future__ import annotations

import warnings

import pytest

from litz.options import make_options


def test_an_unknown_variable_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITZ_FUEL", "3")
    monkeypatch.setenv("LITZ_NUMERIC", "fast")
    with pytest.warns(match="LITZ_NUMERIC is ignored: no option; did you mean LITZ_NUMERICS?") as w:
        assert make_options().fuel == 3
    assert len(w) == 1
    monkeypatch.delenv("LITZ_NUMERIC")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_options()
        make_options(environ={"LITZ_NUMERIC": "fast"})  # not this process's


def test_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITZ_NUMERIC", "fast")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            make_options()
    assert len(found) == 1
