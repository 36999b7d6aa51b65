"""A short run of random programs, of a fresh seed each time, which it prints.

``FUZZ_SEED`` runs one seed again; ``python -m tests.fuzz --batch SEED:N`` shows and shrinks
what a graph of it found.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
import torch.nn.functional as F

from tests.fuzz import compare
from tests.fuzz.machine import replay
from tests.fuzz.program import Draw, Input, Program, Step, function, merged, source, tensors
from tests.fuzz.run import Failure, batch, run_batch
from tests.fuzz.shrink import pruned, script, shrink
from tests.quick import some

ASKED = os.environ.get("FUZZ_SEED", "random")
SEED = random.SystemRandom().randrange(1 << 30) if ASKED == "random" else int(ASKED)
# Mostly layers, torch's own random numbers, dynamic sizes, layers with gradients.
GRAPHS = (1, 2, 3, 4)


# The seed must not be part of the test's name: workers of a parallel run each draw their own.
@pytest.mark.parametrize("number", some(GRAPHS, 2))
def test_random_programs(number: int) -> None:
    print(f"FUZZ_SEED={SEED}, graph {number}")
    count, failures = run_batch(batch(SEED, number))
    assert count
    for f in failures:
        print(script(shrink(f, budget=60)))
    assert not failures, f"FUZZ_SEED={SEED} graph {number}: {failures[0].mismatches}"


# --- the fuzzer itself ---------------------------------------------------------------------------

A = Input("float32", (4, 6), seed=1)
PLAIN = Program(
    (A,), (Step("{0} * 2", (0,)), Step("{0}.exp()", (1,), "rough"), Step("{0}.t()", (1,), "view")),
    (2, 3),
)  # fmt: skip


def found(p: Program, wrong: object) -> list[str]:
    """What ``wrong`` (used as if it were the compiled program) is blamed for."""
    m = replay(p, p.inputs)
    wanted = compare.expectations(p, m)
    return [str(x) for x in compare.compare(p, p.inputs, wrong, m, wanted)]  # type: ignore[arg-type]


def test_the_program_itself_is_no_mismatch() -> None:
    assert found(PLAIN, function(PLAIN)) == []


def test_faults_are_seen() -> None:
    exp = torch.exp

    def off(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        y[1, 1] += 1e-3
        return exp(y), y.t()

    def bits(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return exp(y), torch.nextafter(y, y + 1).t()

    def writes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        x[0, 0] = 0
        return exp(y), y.t()

    def beyond(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.as_strided((1,), (1,), 25).fill_(9)
        return exp(x * 2), (x * 2).t()

    def lies(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return exp(x * 2), (x * 2).t().contiguous()

    def shares(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.stack((exp(x * 2), x * 2))
        return y[0], y[1].t()

    for wrong, where in (
        (off, "result 0"), (bits, "result 1"), (writes, "argument 0"), (beyond, "argument 0"),
        (lies, "result 1: strides"), (shares, "aliases"),
    ):  # fmt: skip
        why = found(PLAIN, wrong)
        assert any(w.startswith(where) for w in why), (wrong.__name__, why)


def test_gradients_that_cancel_have_the_errors_of_their_terms() -> None:
    """Of ``x / x`` it is zero, and what is left of 1 / x - 1 / x is rounding."""
    x = Input("float32", (4096,), seed=1, grad=True)
    p = Program((x,), (Step("{0} * 3", (0,)), Step("{0} / {1}", (1, 1))), (2,))

    def other(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = x * 3, x * torch.tensor(3 + 2**-22).nextafter(torch.tensor(4.0))
        return (y / z * (z / y).detach(),)

    def wrong(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x / x + 1e-3 * (x - x.detach()),)

    assert found(p, other) == []
    assert found(p, wrong)


def test_gradients_are_of_weights_that_the_type_holds() -> None:
    x = Input("bfloat16", (2, 21), seed=1)
    w = Input("float32", (2, 1), seed=2, grad=True)
    p = Program((x, w), (Step("{0} + {1}.to(torch.bfloat16)", (0, 1), "rough"),), (2,))

    def off(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x + w.bfloat16()) + (w - w.detach()).bfloat16() * 0.02,)

    assert found(p, function(p)) == []
    assert found(p, off)


DROPPED = Draw("{0} != 0", "{0} * {1} / 0.7", 0, 1, 0.7, 0.459)
LUCK = Program(
    (Input("float32", (40, 60), seed=1, grad=True),),
    (
        Step("F.dropout({0}, 0.3)", (0,), "rough", draw=DROPPED),
        Step("torch.rand_like({0})", (0,), "drawn", draw=Draw("{0}", "", 0, 1, 0.5, 0.289)),
        Step("{0} * ({1} > 0.5)", (1, 2)),
    ),
    (3,),
).with_draws


def test_random_numbers_may_be_others_but_the_same_everywhere() -> None:
    f = function(LUCK)

    def luckier(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.dropout(x, 0.2) * (0.8 / 0.7)
        r = torch.rand_like(x) ** 0.8
        return y * (r > 0.5), y, r

    def again(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, r = F.dropout(x, 0.3), torch.rand_like(x)
        return y * (torch.rand_like(x) > 0.5), y, r

    def backward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, r = F.dropout(x, 0.3), torch.rand_like(x)
        z = y * (r > 0.5)
        return z.detach() + (w := F.dropout(x, 0.3)) - w.detach(), y.detach() + x - x.detach(), r

    assert found(LUCK, f) == []
    assert {w.partition(":")[0] for w in found(LUCK, luckier)} == {"draw 1", "draw 2"}
    assert [w.partition(":")[0] for w in found(LUCK, again)][0] == "result 0"
    assert [w.partition(":")[0] for w in found(LUCK, backward)] == ["gradient 0"]


def test_merged_programs_are_their_parts() -> None:
    both = merged([PLAIN, PLAIN])
    parts = function(PLAIN)(*tensors(PLAIN.inputs))
    whole = function(both)(*tensors(both.inputs))
    assert len(whole) == 2 * len(parts)
    for k, x in enumerate(whole):
        assert torch.equal(x, parts[k % len(parts)])


def test_shrinking_keeps_the_fault() -> None:
    """A compiler that gets every ``exp`` wrong: one step and one small input remain."""

    def fails(p: Program) -> Failure | None:
        replay(p, p.inputs)
        return Failure(p, ("result 0: wrong",)) if ".exp()" in source(p) else None

    steps = (
        Step("{0} + {1}", (0, 1)),
        Step("{0}.t()", (2,), "view"),
        Step("{0}.exp()", (3,), "rough"),
        Step("{0}.sum(0)", (4,), "rough"),
        Step("{0} - 1", (0,)),
    )
    p = Program((A, Input("float32", (4, 6), step=2, offset=3)), steps, (5, 6))
    f = fails(p)
    assert f is not None
    small = shrink(f, fails).program
    assert [s.text for s in small.steps] == ["{0}.exp()"]
    assert len(small.inputs) == 1 and max(small.inputs[0].shape) <= 2
    compile(script(Failure(small, ("result 0: wrong",))), "script", "exec")


def test_pruning_keeps_writes() -> None:
    steps = (Step("{0}.add_(1)", (0,), writes=True), Step("{0} * 2", (0,)), Step("{0} * 3", (0,)))
    kept = pruned(Program((A,), steps, (2,)))
    assert [s.text for s in kept.steps] == ["{0}.add_(1)", "{0} * 2"]


def test_generation_is_deterministic() -> None:
    from tests.fuzz.generate import generate

    for grad in (False, True):
        first, second = (generate("7:3:1", grad=grad) for _ in range(2))
        assert first == second


def test_gradients_of_one_place_are_one_number() -> None:
    """However a view was made: how elements of one place share their gradient is a convention."""
    x = torch.tensor(2.0).expand(4).requires_grad_()
    views = x.view(4), x.as_strided((4,), (0,))
    one, other = (compare.gradients([v], [x], [v.dtype])[0] for v in views)
    assert one is not None and torch.equal(one, torch.ones(4))
    assert other is not None and torch.equal(one, other)
    (wrong,) = compare.gradients([x.view(4) * 2], [x], [x.dtype])
    assert wrong is not None and not torch.equal(one, wrong)
