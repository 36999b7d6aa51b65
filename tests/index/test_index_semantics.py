"""Brute force: whatever the canonical form does, its value is what Python computes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from litz import index as ix
from litz.index.query import rebuild
from tests.index.index_trees import (
    CONST_LEAVES,
    LEAVES,
    SYMBOLIC_LEAVES,
    S,
    T,
    Tree,
    build,
    leaves,
    reference,
    trees,
    values,
)

SETTINGS = settings(derandomize=True, deadline=None, max_examples=600, database=None)
ARITH = ["+", "-", "*", "//", "%", "ceil"]
ALL = [*ARITH, "min", "max", "==", "!=", "<", "<=", ">", ">=", "and", "or", "not"]


def nodes(e: ix.Expr) -> Iterator[ix.Expr]:
    yield e
    for child in e.children():
        yield from nodes(child)


def check(tree: Tree) -> None:
    try:
        e = build(tree)
    except ZeroDivisionError:
        return  # a divisor that is always zero
    lo, hi = ix.bounds(e)
    assert e.lo is None or (lo is not None and lo >= e.lo)
    assert e.hi is None or (hi is not None and hi <= e.hi)
    for env in values(leaves(tree)):
        try:
            want = reference(tree, env)
        except ZeroDivisionError:
            continue
        full = {LEAVES[n]: v for n, v in env.items()}
        got = ix.evaluate(e, full)
        assert got == want, f"{tree} -> {e} at {env}: {got}, not {want}"
        assert e.lo is None or e.lo <= got, f"{tree} -> {e} at {env}: {got} below {e.lo}"
        assert e.hi is None or got <= e.hi, f"{tree} -> {e} at {env}: {got} above {e.hi}"
        assert lo is None or lo <= got, f"{tree} -> {e} at {env}: {got} below {lo}"
        assert hi is None or got <= hi, f"{tree} -> {e} at {env}: {got} above {hi}"


SQUARE = ("*", "n", "n")
# Shapes that random trees seldom take: divisors of unknown sign, common factors, residues.
STRUCTURED: list[Tree] = [
    (op, ("+", ("*", k, a), b), ("*", k, n))
    for op in ("//", "%")
    for k in (4, 6)
    for a in ("u", "n", ("+", "u", 1))
    for b in ("i", "k", ("-", "i", 9), ("-", 0, "i"))
    for n in ("n", "s", "t", ("-", 0, "s"), ("+", "s", 1), ("*", "s", "t"))
] + [
    ("-", SQUARE, 1),
    ("*", SQUARE, ("-", "n", 4)),
    ("//", SQUARE, ("-", "s", 9)),
    ("-", "u", ("*", 8, ("//", ("+", "u", 3), 8))),
    ("//", ("%", "u", ("*", 4, "n")), "n"),
    ("%", ("%", "u", ("*", 4, "n")), "n"),
    ("//", ("//", "u", "n"), "s"),
    ("//", ("//", "u", "s"), "n"),
    ("+", ("*", "n", ("//", "u", "n")), ("%", "u", "n")),
]


@pytest.mark.parametrize("tree", STRUCTURED, ids=str)
def test_structured(tree: Tree) -> None:
    check(tree)


@SETTINGS
@given(trees(CONST_LEAVES, ARITH))
def test_arithmetic_over_constant_ranges(tree: Tree) -> None:
    check(tree)


@SETTINGS
@given(trees(SYMBOLIC_LEAVES, ARITH))
def test_arithmetic_over_symbolic_ranges(tree: Tree) -> None:
    check(tree)


@SETTINGS
@given(trees([*SYMBOLIC_LEAVES, "j", "b"], ALL))
def test_every_operation(tree: Tree) -> None:
    check(tree)


@SETTINGS
@given(trees(["i", "k", "s", "p"], ["//", "%", "+"], size=10))
def test_deep_division_chains(tree: Tree) -> None:
    check(tree)


@settings(SETTINGS, max_examples=300)
@given(trees([*SYMBOLIC_LEAVES, "j", "b"], ALL))
def test_text_parses_back_to_the_same_object(tree: Tree) -> None:
    try:
        e = build(tree)
    except ZeroDivisionError:
        return
    assert ix.parse(str(e), LEAVES) is e
    for node in nodes(e):
        assert rebuild(node, node.children()) is node
    assert pickle.loads(pickle.dumps(e)) is e


@settings(SETTINGS, max_examples=300)
@given(trees(SYMBOLIC_LEAVES, ALL))
def test_rebuilding_is_idempotent(tree: Tree) -> None:
    """Substituting leaves by others of equal range and back gives the same object."""
    try:
        e = build(tree)
    except ZeroDivisionError:
        return
    there: dict[ix.Expr, ix.Expr] = {}
    for leaf in e.free:
        if isinstance(leaf, ix.Var):
            there[leaf] = ix.var(leaf.name + "_", leaf.extent)
        elif isinstance(leaf, ix.Symbol) and leaf not in (S, T):
            there[leaf] = ix.symbol(leaf.name + "_", leaf.lo, leaf.hi, leaf.hint)
    moved = ix.substitute(e, there)
    back = ix.substitute(moved, {v: k for k, v in there.items()})
    assert back is e


@settings(SETTINGS, max_examples=300)
@given(trees(SYMBOLIC_LEAVES, ARITH), trees(SYMBOLIC_LEAVES, ARITH))
def test_substitution_of_an_expression(outer: Tree, inner: Tree) -> None:
    """A variable replaced by an expression that is forced into its range."""
    try:
        e = build(outer)
        into = ix.mod(build(inner), 4)
        out = ix.substitute(e, {LEAVES["i"]: into})
    except ZeroDivisionError:
        return
    names = sorted({*leaves(outer), *leaves(inner)})
    for env in values(names):
        try:
            want = reference(outer, {**env, "i": reference(("%", inner, 4), env)})
        except ZeroDivisionError:
            continue
        assert ix.evaluate(out, {LEAVES[n]: v for n, v in env.items()}) == want


@settings(SETTINGS, max_examples=300)
@given(trees(SYMBOLIC_LEAVES, ARITH))
def test_linear_split_is_exact(tree: Tree) -> None:
    try:
        e = build(tree)
    except ZeroDivisionError:
        return
    vs = [LEAVES["i"], LEAVES["p"]]
    split = ix.split_linear(e, vs)
    if split is None:
        return
    coefs, rest = split
    again = rest
    for v in vs:
        assert not any(v in x.free for x in [*coefs.values(), rest])
        again = again + coefs[v] * v
    assert again is e
