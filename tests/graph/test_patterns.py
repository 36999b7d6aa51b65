"""The pattern matcher, users' hooks, and what the passes that use it must not change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import graph_cases
import pytest
import torch
from torch.fx import GraphModule

from litz.errors import OptionError
from litz.graph.passes import PIPELINE, run_hook
from litz.graph.patterns import CallPattern, Capture, Match, Rewrites, Rule, rewrite, rule_of
from litz.options import make_options

aten = torch.ops.aten
X, Y = Capture("x"), Capture("y")
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-42, -1.5, 3.4e38)


def after(source: str, *rules: Rule) -> str:
    gm = graph_cases.traced(source)
    rewrite(gm, rules)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    return graph_cases.graph_text(gm)


LOG_EXP = rule_of("log of exp", lambda x: aten.log.default(aten.exp.default(x)), lambda x: x)
SQUARE = rule_of("square", lambda x: aten.mul.Tensor(x, x), lambda x: aten.pow.Tensor_Scalar(x, 2))


def test_a_rule_of_functions() -> None:
    source = 'def f(x: "f32[4]"): return aten.neg.default(aten.log.default(aten.exp.default(x)))'
    assert after(source, LOG_EXP) == "neg = aten.neg.default(x)\nreturn [neg]"


def test_a_capture_that_stands_twice_is_one_value() -> None:
    source = 'def f(x: "f32[4]", y: "f32[4]"): return aten.mul.Tensor(x, x), aten.mul.Tensor(x, y)'
    assert after(source, SQUARE) == (
        "pow_tensor_scalar = aten.pow.Tensor_Scalar(x, 2)\n"
        "mul_1 = aten.mul.Tensor(x, y)\n"
        "return [pow_tensor_scalar, mul_1]"
    )


def test_what_else_reads_an_inner_value_still_does() -> None:
    source = """def f(x: "f32[4]"):
    e = aten.exp.default(x)
    return aten.log.default(e), e
"""
    assert after(source, LOG_EXP) == "exp = aten.exp.default(x)\nreturn [x, exp]"


def test_defaults_match_what_is_left_out_and_nothing_else() -> None:
    made: list[Match] = []

    def note(match: Match) -> None:
        made.append(match)

    rule = Rule("sum", CallPattern(aten.add.Tensor, (X, Y)), note)
    after('def f(x: "f32[4]"): return aten.add.Tensor(x, x, alpha=2)', rule)
    assert not made
    after('def f(x: "f32[4]"): return aten.add.Tensor(x, x, alpha=1)', rule)
    assert len(made) == 1 and made[0]["x"] is made[0]["y"]


@pytest.mark.parametrize(
    ("wanted", "given", "hit"),
    [("2", "2", True), ("2", "2.0", False), ("0.0", "-0.0", False), ("1", "True", False)],
)
def test_numbers_match_by_type_and_bits(wanted: str, given: str, hit: bool) -> None:
    rule = Rule("p", CallPattern(aten.add.Tensor, (X, eval(wanted))), lambda m: m["x"])
    text = after(f'def f(x: "f64[4]"): return aten.neg.default(aten.add.Tensor(x, {given}))', rule)
    assert ("add" not in text) is hit


def test_nested_lists_match() -> None:
    seen: list[Any] = []
    rule = Rule("cat", CallPattern(aten.cat.default, ([X, Y],)), lambda m: seen.append(m["y"]))
    after('def f(x: "f32[4]", y: "f32[3]"): return aten.cat.default([x, y])', rule)
    after('def f(x: "f32[4]", y: "f32[3]"): return aten.cat.default([x, y, x])', rule)
    assert [n.name for n in seen] == ["y"]


def test_a_replacement_of_another_kind_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    source = 'def f(x: "f32[4, 3]"): return aten.neg.default(aten.sin.default(x))'
    for new in (
        lambda x: aten.sin.default(aten.t.default(x)),
        lambda x: aten._to_copy.default(aten.sin.default(x), dtype=torch.float64),
    ):
        rule = rule_of("turned", lambda x: aten.sin.default(x), new)
        with caplog.at_level(logging.WARNING, logger="litz"):
            text = after(source, rule)
        assert text == "sin = aten.sin.default(x)\nneg = aten.neg.default(sin)\nreturn [neg]"
        assert "'turned'" in caplog.text
        caplog.clear()


def test_bad_patterns_are_refused() -> None:
    with pytest.raises(ValueError, match="overloads"):
        rule_of("vague", lambda x: aten.add(x, 1), lambda x: x)
    with pytest.raises(ValueError, match="no ATen operator"):
        rule_of("python", lambda x: x + 1, lambda x: x)
    with pytest.raises(ValueError, match="calls no operator"):
        rule_of("nothing", lambda x: x, lambda x: x)
    with pytest.raises(TypeError, match="lacks its argument"):
        CallPattern(aten.add.Tensor, (X,))


# --- hooks ---


def compiled(f: Callable[..., Any], **options: object) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, backend="litz", options=options)


class Swap:
    """sin for cos: a hook that can be seen in the result."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, gm: GraphModule) -> None:
        self.calls += 1
        for n in gm.graph.nodes:
            if n.target is aten.sin.default:
                n.target = aten.cos.default

    def uuid(self) -> str:
        return "swap 1"


@pytest.mark.parametrize("place", [group.hooks for group in PIPELINE])
def test_hooks_run(place: str) -> None:
    hook = Swap()
    x = torch.randn(5)
    out = compiled(lambda x: x.sin() * 2, **{place: hook})(x)
    torch.testing.assert_close(out, x.cos() * 2)
    assert hook.calls == 1


def test_rewrites_are_a_hook_and_new_calls_get_values() -> None:
    rules = Rewrites("squares v1", (SQUARE,))

    def add_one(gm: GraphModule) -> None:
        (output,) = (n for n in gm.graph.nodes if n.op == "output")
        with gm.graph.inserting_before(output):
            new = gm.graph.call_function(aten.add.Tensor, (output.args[0][0], 1))
        output.args = ((new,),)

    add_one.uuid = lambda: "one more"  # type: ignore[attr-defined]
    x = torch.randn(5)
    out = compiled(lambda x: x * x, after_passes=[rules, add_one])(x)
    torch.testing.assert_close(out, x * x + 1)


def test_hooks_are_told_apart_in_the_key() -> None:
    keys = {
        make_options(given, environ={}).key()
        for given in (
            {},
            {"before_passes": Rewrites("a", ())},
            {"before_passes": Rewrites("b", ())},
            {"after_passes": Rewrites("a", ())},
            {"before_passes": [Rewrites("a", ()), Rewrites("b", ())]},
        )
    }
    assert len(keys) == 5
    again = make_options({"before_passes": Rewrites("a", ())}, environ={}).key()
    assert again in keys and "0x" not in again


def test_a_hook_without_a_name_is_refused() -> None:
    with pytest.raises(OptionError, match=r"needs a method uuid\(\)"):
        make_options({"before_passes": lambda gm: None}, environ={})
    with pytest.raises(OptionError, match="wants functions"):
        make_options({}, environ={"LITZ_AFTER_PASSES": "a string"})


class Broken(Swap):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def __call__(self, gm: GraphModule) -> None:
        nodes = list(gm.graph.nodes)
        if self.how == "raises":
            raise ZeroDivisionError("by hand")
        if self.how == "results":
            nodes[-1].args = ((nodes[-1].args[0][0],) * 2,)
        if self.how == "order":
            nodes[1].append(nodes[0])
            nodes[1].args = (nodes[-2],)

    def uuid(self) -> str:
        return f"broken ({self.how})"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "ZeroDivisionError: by hand"),
        ("results", "changed the graph's inputs"),
        ("order", "failed"),
    ],
)
def test_a_hook_that_breaks_the_graph_is_named(how: str, words: str) -> None:
    gm = graph_cases.traced('def f(x: "f32[4]"): return aten.neg.default(aten.sin.default(x))')
    with pytest.raises(Exception, match=rf"graph pass 'broken \({how}\)'.*{words}"):
        run_hook(gm, Broken(how))


# --- passes keep every bit ---


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x * 1).sin(),
        lambda x: (x / 1).cos() + (x - 0.0),
        lambda x: 1 / (x + 0.0),
        lambda x: 1 / (x - 0),
        lambda x: 1 / (x + -0.0),
        lambda x: 1 / (x - -0.0),
        lambda x: 1 / (x * torch.ones(8)),
        lambda x: 1 / (x + torch.zeros(8)),
        lambda x: x**1 + torch.tensor([1.0, 2.0]).exp().sum(),
        lambda x: x + torch.tensor(3.0).sqrt(),
        lambda x: torch.where(x > 0, torch.tensor(1.0), torch.tensor(-2.0)) * x,
    ],
)
def test_special_values(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor(SPECIAL)
    out, wanted = compiled(f)(x), f(x)
    torch.testing.assert_close(out, wanted, equal_nan=True)
    assert torch.equal(out.signbit() | out.isnan(), wanted.signbit() | wanted.isnan())


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.clone(),
        lambda x: (x * 1).view(-1),
        lambda x: x + 0,
        lambda x: torch.tensor([1.0, 2.0]).exp(),
        lambda x: torch.zeros(4).cos(),
        lambda x: torch.ones(2, 2).exp().view(-1),
    ],
)
def test_results_are_nobody_elses_memory(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(2, 2)
    kept = x.clone()
    call = compiled(f)
    first = call(x)
    wanted = first.clone()
    first.fill_(77)
    assert torch.equal(x, kept)
    assert torch.equal(call(x), wanted)


def test_copies_of_what_is_written_stay() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        x.mul_(2)
        return y.sin() + x

    x, again = torch.randn(4), torch.empty(4)
    again.copy_(x)
    torch.testing.assert_close(compiled(f)(x), f(again))
    assert torch.equal(x, again)


def test_dynamic_sizes_take_no_guard() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.view(x.shape[0], x.shape[1]) * 1).expand(x.shape[0], -1).sin()

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("litz")
    call = torch.compile(f, backend=counter, dynamic=True)
    for shape in ((3, 4), (5, 7), (2, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), f(x))
    assert counter.frame_count == 1
