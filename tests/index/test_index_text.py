"""Text: parsing's refusals, dialects, and the C++ dialect through a compiler."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from litz import index as ix
from tests.index.index_trees import LEAVES, Tree, build, leaves, values

X = ix.symbol("x", None)
S = ix.symbol("s", 0)
I, J = ix.var("i", 32), ix.var("j", 8)  # noqa: E741
BIG = 1 << 40


@pytest.mark.parametrize(
    ("e", "python", "cpp", "triton"),
    [
        (I // 5, "i // 5", "i / 5", "i // 5"),
        ((I + J) % 5, "(i + j) % 5", "(i + j) % 5", "(i + j) % 5"),
        (X // 5, "x // 5", "litz::floordiv(x, 5)", "litz.floordiv_index(x, 5)"),
        (X % 5, "x % 5", "litz::floormod(x, 5)", "litz.floormod_index(x, 5)"),
        (
            2 * (X // 5) - 1,
            "2*(x // 5) - 1",
            "2*litz::floordiv(x, 5) - 1",
            "2*litz.floordiv_index(x, 5) - 1",
        ),
        (2 * (I // 5), "2*(i // 5)", "2*(i / 5)", "2*(i // 5)"),
        (-(I // 5), "-(i // 5)", "-(i / 5)", "-(i // 5)"),
        (S * (I // 5), "s*(i // 5)", "s*(i / 5)", "s*(i // 5)"),
        ((S * I) // 5, "(s*i) // 5", "(s*i) / 5", "(s*i) // 5"),
        (5 - I, "5 - i", "5 - i", "5 - i"),
        (
            ix.min_(I, J, S),
            "min(s, i, j)",
            "litz::imin(litz::imin(s, i), j)",
            "tl.minimum(tl.minimum(s, i), j)",
        ),
        (ix.max_(I, 3), "max(3, i)", "litz::imax(3, i)", "tl.maximum(3, i)"),
        (ix.lt(I, S), "(i < s)", "(i < s)", "(i < s)"),
        (ix.eq(I, S), "(s == i)", "(s == i)", "(s == i)"),
        (3 * ix.lt(I, S), "3*(i < s)", "3*int64_t(i < s)", "3*tl.where((i < s), 1, 0)"),
        (
            ix.and_(ix.lt(I, S), ix.lt(X, 3)),
            "((x < 3) and (i < s))",
            "((x < 3) && (i < s))",
            "((x < 3) & (i < s))",
        ),
        (
            ix.or_(ix.lt(I, S), ix.lt(X, 3)),
            "((x < 3) or (i < s))",
            "((x < 3) || (i < s))",
            "((x < 3) | (i < s))",
        ),
        (ix.not_(LEAVES["b"]), "(not b)", "(!b)", "(b == 0)"),
        (BIG * I + 7, f"{BIG}*i + 7", f"{BIG}LL*i + 7", f"{BIG}*i + 7"),
        (X - BIG, f"x - {BIG}", f"x - {BIG}LL", f"x - {BIG}"),
        (
            ix.const(-(1 << 63)),
            "-9223372036854775808",
            "(-9223372036854775807LL - 1)",
            "-9223372036854775808",
        ),
        (
            X - (1 << 63),
            "x - 9223372036854775808",
            "x + (-9223372036854775807LL - 1)",
            "x + -9223372036854775808",
        ),
    ],
)
def test_dialects(e: ix.Expr, python: str, cpp: str, triton: str) -> None:
    assert ix.render(e, ix.PYTHON) == python
    assert ix.render(e, ix.CPP) == cpp
    assert ix.render(e, ix.TRITON) == triton


def test_names() -> None:
    assert ix.render(I + J * S, ix.CPP, {"i": "i0", "s": "ks[0]"}) == "i0 + ks[0]*j"


def test_symbolic_proof_selects_the_plain_division() -> None:
    p = ix.var("p", S)
    assert ix.render((S - p - 1) // 2, ix.CPP) == "(s - p + 1) / 2 - 1"


def test_constants_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        ix.render(X + (1 << 63), ix.CPP)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "i +",
        "i / 2",
        "f(i)",
        "i < j < 3",
        "1.5",
        "i if j else 3",
        "~i",
        "min()",
        "min(i, key=3)",
        "True",
    ],
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="not an index expression"):
        ix.parse(text, {"i": I, "j": J})


def test_parse_unknown_name() -> None:
    with pytest.raises(KeyError):
        ix.parse("i + nobody", {"i": I})


def random_tree(rng: random.Random, depth: int) -> Tree:
    if depth == 0 or rng.random() < 0.1:
        names = ["s", "n", "u", "i", "k", "p", "b"]
        return rng.choice(names) if rng.random() < 0.8 else rng.randint(-9, 9)
    op = rng.choice(
        ["+", "-", "*", "//", "%", "min", "max", "<", "<=", "==", "!=", "and", "or", "not"]
    )
    left = random_tree(rng, depth - 1)
    if op == "not":
        return (op, left)
    right = rng.choice([-7, -2, 3, 4, 6, 8]) if op in ("//", "%") else random_tree(rng, depth - 1)
    return (op, left, right)


PRELUDE = """
#include <cstdint>
#include <cstdio>
namespace litz {
static int64_t floordiv(int64_t a, int64_t b) {
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}
static int64_t floormod(int64_t a, int64_t b) { return a - b * floordiv(a, b); }
static int64_t imin(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t imax(int64_t a, int64_t b) { return a > b ? a : b; }
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_cpp_computes_what_evaluate_does(tmp_path: Path) -> None:
    """Random expressions, one function each, printed for every assignment of their leaves."""
    rng = random.Random(7)
    cases = []
    for _ in range(250):
        tree = random_tree(rng, 3)
        e = build(tree)
        envs = list(values(leaves(tree)))
        cases.append((e, rng.sample(envs, min(len(envs), 12))))
    lines = [PRELUDE]
    calls = []
    want = []
    for at, (e, envs) in enumerate(cases):
        names = sorted({n for env in envs for n in env})
        params = ", ".join(f"int64_t {n}" for n in names)
        lines.append(f"static int64_t f{at}({params}) {{ return {ix.render(e, ix.CPP)}; }}")
        for env in envs:
            args = ", ".join(f"int64_t({env[n]})" for n in names)
            calls.append(f'  printf("%lld\\n", (long long)f{at}({args}));')
            want.append(ix.evaluate(e, {LEAVES[n]: v for n, v in env.items()}))
    source = "\n".join([*lines, "int main() {", *calls, "}"])
    (tmp_path / "t.cpp").write_text(source)
    # -O0 compiles fastest; signed overflow traps.
    subprocess.run(["g++", "-O0", "-ftrapv", "-o", "t", "t.cpp"], cwd=tmp_path, check=True)
    out = subprocess.run([tmp_path / "t"], capture_output=True, text=True, check=True).stdout
    got = [int(x) for x in out.split()]
    assert len(got) == len(want) > 1000
    wrong = [(c, g, w) for c, g, w in zip(calls, got, want, strict=True) if g != w]
    assert not wrong


def test_python_dialect_computes_what_evaluate_does() -> None:
    rng = random.Random(11)
    checked = 0
    for _ in range(250):
        tree = random_tree(rng, 4)
        e = build(tree)
        code = compile(ix.render(e, ix.PYTHON), "e", "eval")
        envs = list(values(leaves(tree)))
        for env in rng.sample(envs, min(len(envs), 8)):
            assert int(eval(code, {}, env)) == ix.evaluate(
                e, {LEAVES[n]: v for n, v in env.items()}
            )
            checked += 1
    assert checked > 1000


SCRIPT = """
import random, sys
from litz import index as ix
from tests.index.index_trees import LEAVES, build, leaves
from tests.index.test_index_text import random_tree
rng = random.Random(3)
trees = [random_tree(rng, 4) for _ in range(300)]
if sys.argv[1] == "reversed":
    trees.reverse()
texts = {}
for t in trees:
    e = build(t)
    texts[str(t)] = f"{e} | {ix.render(e, ix.CPP)} | {e.free} | {ix.bounds(e)}"
print("\\n".join(f"{k} -> {v}" for k, v in sorted(texts.items())))
"""


def test_text_depends_on_neither_hash_seed_nor_order_of_creation() -> None:
    root = Path(__file__).resolve().parents[2]
    outputs = set()
    for seed, order in (
        ("0", "forward"),
        ("1", "forward"),
        ("2", "reversed"),
        ("random", "reversed"),
    ):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{root / 'src'}:{root}"}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, order],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert outputs.pop().count("->") > 250
