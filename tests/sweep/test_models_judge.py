"""What other draws of a model's weights say of an error that one of them showed."""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from models_judge import Found, Size, beyond_sway, settle  # noqa: E402

FAR, NEAR = Size(9.0, 1.0, 2.0), Size(1.0, 1.0, 2.0)


def found(*sizes: Size, blind: bool = False) -> Found:
    names = [f"w{k}" for k in range(len(sizes))]
    return Found(sizes=dict(zip(names, sizes, strict=True)), blind={"w0": "?"} if blind else {})


def test_what_most_draws_show_is_wrong() -> None:
    assert settle(found(FAR), [found(FAR), found(FAR)])[0] == {"w0": FAR}
    assert settle(found(FAR), []) == ({"w0": FAR}, {})


def test_what_one_draw_shows_is_chance() -> None:
    assert settle(found(FAR), [found(NEAR), found(NEAR)]) == ({}, {"w0": FAR})
    assert settle(found(FAR), [found(blind=True)]) == ({}, {"w0": FAR})


def test_what_is_not_finite_is_wrong_even_so() -> None:
    endless = Size(math.inf, 1.0, 2.0)
    assert settle(found(endless), [found(blind=True)])[0] == {"w0": endless}


def test_what_moves_as_far_by_a_last_bit_is_chance() -> None:
    moved, still = found(Size(5.0, 1.0, 2.0)), found(Size(1.1, 1.0, 2.0))
    assert beyond_sway(["w0"], found(FAR), moved) == set()
    assert beyond_sway(["w0"], found(FAR), still) == beyond_sway(["w0"], found(FAR), Found())
    assert beyond_sway(["w0"], found(FAR), still) == {"w0"}
    assert beyond_sway(["w0"], found(Size(math.inf, 1.0, 2.0)), moved) == {"w0"}
    assert beyond_sway(["w0", "w1"], found(NEAR, FAR), still) == {"w1"}
