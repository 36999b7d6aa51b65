"""Random expressions as plain trees, with Python's own arithmetic as the reference."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from litz import index as ix

Tree = Any
"""An int, a leaf's name, or (op, operand, ...)."""

S = ix.symbol("s", 1, 4)
T = ix.symbol("t", 0, 3)
N = ix.symbol("n", -3, 3)
U = ix.symbol("u", None, None)
LEAVES: dict[str, ix.Expr] = {
    "s": S,
    "t": T,
    "n": N,
    "u": U,
    "i": ix.var("i", 4),
    "j": ix.var("j", 3),
    "k": ix.var("k", 6),
    "p": ix.var("p", S),
    "q": ix.var("q", T),
    "w": ix.var("w", S * T),
    "b": ix.symbol("b", 0, 1),
    "one": ix.var("one", 1),
}
CONST_LEAVES = ["i", "j", "k", "b", "one"]
SYMBOLIC_LEAVES = ["s", "t", "n", "u", "p", "q", "w", "i"]


def values(names: list[str]) -> Iterator[dict[str, int]]:
    """Every assignment of the leaves in their ranges (a sample for the unbounded one)."""
    sizes = [n for n in ("s", "t") if n in names]
    if {"p", "w"} & set(names) and "s" not in sizes:
        sizes.append("s")
    if {"q", "w"} & set(names) and "t" not in sizes:
        sizes.append("t")
    ranges = {"s": range(1, 5), "t": range(0, 4)}
    for sizes_values in itertools.product(*(ranges[n] for n in sizes)):
        env = dict(zip(sizes, sizes_values, strict=True))
        domains = {
            "n": range(-3, 4),
            "u": (-17, -4, -1, 0, 1, 2, 9, 24),
            "i": range(4),
            "j": range(3),
            "k": range(6),
            "p": range(env.get("s", 0)),
            "q": range(env.get("t", 0)),
            "w": range(env.get("s", 0) * env.get("t", 0)),
            "b": range(2),
            "one": range(1),
        }
        rest = [n for n in names if n not in env]
        for v in itertools.product(*(domains[n] for n in rest)):
            yield {**env, **dict(zip(rest, v, strict=True))}


def leaves(tree: Tree) -> list[str]:
    if isinstance(tree, str):
        return [tree]
    if isinstance(tree, int):
        return []
    return sorted({n for x in tree[1:] for n in leaves(x)})


BUILD = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": ix.floordiv,
    "%": ix.mod,
    "ceil": ix.ceildiv,
    "min": ix.min_,
    "max": ix.max_,
    "==": ix.eq,
    "!=": ix.ne,
    "<": ix.lt,
    "<=": ix.le,
    ">": ix.gt,
    ">=": ix.ge,
    "and": ix.and_,
    "or": ix.or_,
    "not": ix.not_,
}
REFERENCE = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "ceil": lambda a, b: -((-a) // b),
    "min": min,
    "max": max,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
    "not": lambda a: int(not a),
}


def build(tree: Tree) -> ix.Expr:
    """The tree through Litz's constructors; ZeroDivisionError for a constant zero divisor."""
    if isinstance(tree, str):
        return LEAVES[tree]
    if isinstance(tree, int):
        return ix.const(tree)
    return BUILD[tree[0]](*(build(x) for x in tree[1:]))


def reference(tree: Tree, env: dict[str, int]) -> int:
    """The tree's value by Python itself; ZeroDivisionError where some divisor is zero."""
    if isinstance(tree, str):
        return env[tree]
    if isinstance(tree, int):
        return tree
    return REFERENCE[tree[0]](*(reference(x, env) for x in tree[1:]))


def trees(names: list[str], ops: list[str], size: int = 8) -> st.SearchStrategy[Tree]:
    """Trees over the named leaves; divisors are mostly constants or sizes."""
    atom = st.one_of(st.sampled_from(names), st.integers(-9, 9))
    binary = [o for o in ops if o != "not"]

    def grow(sub: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        kinds = [st.tuples(st.sampled_from(binary), sub, sub)]
        divisions = [o for o in ops if o in ("//", "%", "ceil")]
        if divisions:
            by = st.one_of(st.integers(1, 12), st.integers(-6, 6), atom)
            kinds.append(st.tuples(st.sampled_from(divisions), sub, by))
        kinds.append(st.tuples(st.just("*"), st.integers(-8, 12), sub))
        if "not" in ops:
            kinds.append(st.tuples(st.just("not"), sub))
        return st.one_of(kinds)

    return st.recursive(atom, grow, max_leaves=size)
