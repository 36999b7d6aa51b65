"""The border from sympy, with its own functions and PyTorch's."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import sympy
from hypothesis import given, settings

from litz import index as ix
from litz.index.border import NotRepresentable, from_sympy
from tests.index.index_trees import LEAVES, SYMBOLIC_LEAVES, Tree, leaves, reference, trees, values

fn = pytest.importorskip("torch.utils._sympy.functions")

x, y = sympy.symbols("x y", integer=True, nonnegative=True)
z = sympy.Symbol("z", integer=True)
X, Y, Z = ix.symbol("x"), ix.symbol("y", 0, 1000), ix.symbol("z", None)
SCOPE = {"x": X, "y": Y, "z": Z}


@pytest.mark.parametrize(
    ("given_", "want"),
    [
        (sympy.Integer(7), ix.const(7)),
        (3, ix.const(3)),
        (3 * x + y * x - 2, 3 * X + X * Y - 2),
        (x**3, X * X * X),
        (fn.FloorDiv(z, 4), Z // 4),
        (fn.FloorDiv(x, y), X // Y),
        (fn.CleanDiv(x * 3, y), X * 3 // Y),
        (fn.PythonMod(z, 5), Z % 5),
        (fn.Mod(x, 5), X % 5),
        (fn.ModularIndexing(x, 4, 6), X // 4 % 6),
        (fn.CeilDiv(x, 4), ix.ceildiv(X, 4)),
        (fn.CeilToInt(x / 4), ix.ceildiv(X, 4)),
        (fn.FloorToInt(z / 4 + sympy.Rational(1, 2)), (Z + 2) // 4),
        (fn.FloorToInt(fn.IntTrueDiv(y, 3)), Y // 3),
        (fn.TruncToInt(x / 4), X // 4),
        (sympy.floor(x / y), X // Y),
        (sympy.ceiling(x / 3 + y / 2), ix.ceildiv(2 * X + 3 * Y, 6)),
        (fn.Max(x, z), ix.max_(X, Z)),
        (fn.Min(x, z, 5), ix.min_(X, Z, 5)),
        (sympy.Max(x, z), ix.max_(X, Z)),
        (fn.Where(x < y, x, y), ix.where(ix.lt(X, Y), X, Y)),
        (fn.Identity(x), X),
        (fn.PowByNatural(x, 2), X * X),
        (fn.LShift(x, sympy.Integer(3)), 8 * X),
        (fn.RShift(z, sympy.Integer(3)), Z // 8),
        (sympy.Abs(z), ix.max_(Z, -Z)),
        (sympy.Eq(x, z), ix.eq(X, Z)),
        (sympy.Ne(x, z), ix.ne(X, Z)),
        (sympy.Gt(x, z), ix.lt(Z, X)),
        (sympy.Ge(x, z), ix.le(Z, X)),
        (sympy.And(x < y, z < 3), ix.and_(ix.lt(X, Y), ix.lt(Z, 3))),
        (sympy.Or(x < y, z < 3), ix.or_(ix.lt(X, Y), ix.lt(Z, 3))),
        (sympy.Not(sympy.Eq(x, z)), ix.ne(X, Z)),
        (sympy.true, ix.ONE),
        (sympy.false, ix.ZERO),
        (sympy.Mul(sympy.Rational(1, 2), 4 * x + 6, evaluate=False), 2 * X + 3),
        (sympy.Piecewise((x, x < y), (y, True)), ix.where(ix.lt(X, Y), X, Y)),
    ],
    ids=str,
)
def test_from_sympy(given_: Any, want: ix.Expr) -> None:
    assert from_sympy(given_, SCOPE) is want


@pytest.mark.parametrize(
    "given_",
    [
        fn.IntTrueDiv(x, y),
        fn.FloorToInt(fn.IntTrueDiv(x, 3)),  # x is unbounded: the float quotient may round
        fn.TruncToInt(z / 4),
        fn.ToFloat(x),
        fn.RoundToInt(fn.ToFloat(x)),
        fn.PowByNatural(x, y),
        fn.LShift(x, y),
        x / 2,
        sympy.Float(1.5),
        sympy.sqrt(x),
        sympy.oo,
        sympy.sin(x),
    ],
    ids=str,
)
def test_what_is_no_exact_integer_is_refused(given_: Any) -> None:
    with pytest.raises(NotRepresentable):
        from_sympy(given_, SCOPE)


def test_unknown_name() -> None:
    with pytest.raises(KeyError, match="nobody"):
        from_sympy(sympy.Symbol("nobody") + 1, SCOPE)


SYMPY: dict[str, Any] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": fn.FloorDiv,
    "%": fn.PythonMod,
    "min": fn.Min,
    "max": fn.Max,
}


def in_sympy(tree: Tree) -> Any:
    """The tree as PyTorch spells it."""
    if isinstance(tree, str):
        return sympy.Symbol(tree, integer=True)
    if isinstance(tree, int):
        return sympy.Integer(tree)
    return SYMPY[tree[0]](*map(in_sympy, tree[1:]))


@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(trees(SYMBOLIC_LEAVES, list(SYMPY), size=6))
def test_random_expressions_keep_their_value(tree: Tree) -> None:
    try:
        e = from_sympy(in_sympy(tree), LEAVES)
    except (NotRepresentable, ZeroDivisionError):
        return
    for n, env in enumerate(values(leaves(tree))):
        if n == 12:
            break
        try:
            want = reference(tree, env)
        except ZeroDivisionError:
            continue
        assert ix.evaluate(e, {LEAVES[k]: v for k, v in env.items()}) == want
