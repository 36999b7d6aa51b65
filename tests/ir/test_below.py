"""What a body knows of the nodes below it: loads, size, whether anything reduces or scans."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from litz.index import symbol, var
from litz.ir import body
from litz.ir.body import REDUCES, SCANS, Node
from litz.ir.dtype import F32, I64

ROW, V = var("x0", 4), var("r0", 30)


def drawn(seed: int) -> list[Node]:
    """Nodes of all kinds, many of which share what they are computed from."""
    draw = random.Random(seed)
    found: list[Node] = [body.const(F32, 1), body.load(F32, "a", ROW), body.load(F32, "b", V)]
    for k in range(40):
        x, y, z = (draw.choice(found[-12:]) for _ in range(3))
        at = symbol(f"p{k}")
        picked = body.load(F32, draw.choice("cd"), at, ((at, body.cast(x, I64)),))
        kinds = (
            body.op("add", x, y), body.op("exp", x), picked, body.reduce("sum", (V,), x),
            body.masked(body.op("lt", x, y), y, z), body.scan("sum", "value", V, ROW, (x,)),
        )  # fmt: skip
        found.append(kinds[draw.choices(range(6), (4, 2, 2, 1, 2, 1))[0]])
    return found


def walked(roots: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(n for n in body.walk(roots) if isinstance(n, body.Load))


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_a_walk_finds(seed: int) -> None:
    nodes = drawn(seed)
    asked = random.Random(seed).sample(nodes, len(nodes))  # in any order
    for a, b in zip(asked, asked[1:], strict=False):
        assert body.loads((a,)) == walked((a,))
        assert body.loads((a, b, a)) == walked((a, b, a))
        below = list(body.walk((a,)))
        assert a.size >= len(below)
        assert bool(a.folds & REDUCES) == any(isinstance(n, body.Reduce) for n in below)
        assert bool(a.folds & SCANS) == any(isinstance(n, body.Scan) for n in below)
        assert body.scans((a, b)) == tuple(n for n in body.walk((a, b)) if isinstance(n, body.Scan))
    assert body.loads(()) == ()


def test_a_growing_body_is_not_walked_again_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    first = body.load(F32, "a", ROW)
    value: Node = first
    monkeypatch.setattr(body, "walk", None)
    for _ in range(100):
        value = body.op("add", value, body.load(F32, "b", ROW))
        assert body.loads((value,)) == (first, body.load(F32, "b", ROW))
