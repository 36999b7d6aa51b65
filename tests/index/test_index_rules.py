"""The printed form of every simplification, and of what must not be simplified."""

from __future__ import annotations

import copy

import pytest

from litz import index as ix

I = ix.var("i", 32)  # noqa: E741
J = ix.var("j", 768)
K = ix.var("k", 8)
S0 = ix.symbol("s0", 0, None, 16)
S1 = ix.symbol("s1", 2, None, 24)
X = ix.symbol("x", None)  # any integer
Y = ix.symbol("y", None)
M = ix.symbol("m", None)  # a divisor of unknown sign
P = ix.var("p", S0)
Q = ix.var("q", S1)
R = ix.var("r", S0 + 1)
F = ix.symbol("f", 0, 1)
Z = ix.symbol("z", 8, 15)

SCOPE: dict[str, ix.Expr] = {
    "i": I,
    "j": J,
    "k": K,
    "s0": S0,
    "s1": S1,
    "x": X,
    "y": Y,
    "m": M,
    "p": P,
    "q": Q,
    "r": R,
    "f": F,
    "z": Z,
}

RULES = [
    # polynomials
    ("i + j - i", "j"),
    ("x - x", "0"),
    ("(i + 2)*(j - 3)", "2*j + i*j - 3*i - 6"),
    ("(x + y)*(x - y)", "x*x - y*y"),
    ("7 - i", "7 - i"),
    ("-i", "-i"),
    ("-(x//4)", "-(x//4)"),
    # division by integers
    ("(768*i + j)//768", "i"),
    ("(768*i + j)%768", "j"),
    ("(5*i + 3*x)//5", "i + (3*x)//5"),
    ("(8*x + y)//8", "x + y//8"),
    ("(8*x + y)%8", "y%8"),
    ("k//8", "0"),
    ("k%8", "k"),
    ("k//-8", "(8 - k)//8 - 1"),
    ("k%-8", "-((8 - k)%8)"),
    ("(10*x)//8", "x + x//4"),
    ("(i + 8)%8", "i%8"),
    ("(i - 1)//8", "(i + 7)//8 - 1"),
    ("(i - 1)%8", "(i + 7)%8"),
    ("(7 - k)//8", "0"),
    ("(x//4)//6", "x//24"),
    ("(x//4 + 3)//2", "(x + 4)//8 + 1"),
    ("(x//-4)//3", "(-x)//12"),
    ("(x%24)//4", "(x//4)%6"),
    ("(x%24)%4", "x%4"),
    ("(x%6 + y)%3", "(x + y)%3"),
    ("(x%4)%24", "x%4"),
    ("(6*x)//15", "(2*x)//5"),
    ("(6*x)%15", "3*((2*x)%5)"),
    ("(64*x + 8*i + k)//8", "8*x + i"),
    ("(8*x + k)//64", "x//8"),
    ("(8*x + k)%64", "k + 8*(x%8)"),
    ("(64*x + 8*k + i//4)//128", "x//2"),
    ("(64*x + 8*k + i//4)%128", "8*k + i//4 + 64*(x%2)"),
    ("(8*x + k + 3)//64", "(8*x + k + 3)//64"),
    ("(8*x + z)//16", "(x + 1)//2"),
    ("(8*x + z)%16", "z + 8*((x + 1)%2) - 8"),
    ("z//8", "1"),
    ("z%8", "z - 8"),
    # division by sizes
    ("p//s0", "0"),
    ("p%s0", "p"),
    ("(p*s1 + q)//s1", "p"),
    ("(p*s1 + q)%s1", "q"),
    ("(p*s1 + q)//(s0*s1)", "0"),
    ("(p*s1 + q)%(s0*s1)", "q + s1*p"),
    ("p//(s0*s1)", "0"),
    ("(s0*x + p)//(s0*s1)", "x//s1"),
    ("(s0*x + p)%(s0*s1)", "p + s0*(x%s1)"),
    ("(s0*x)//(s0*y)", "x//y"),
    ("(s0*x)%(s0*y)", "s0*(x%y)"),
    ("(x*m)//m", "x"),
    ("(x*m + y)//m", "x + y//m"),
    ("(x*m + y)%m", "y%m"),
    ("(6*x*m)//(4*m)", "x + x//2"),
    ("(x//s0)//s1", "x//(s0*s1)"),
    ("(x%(s0*s1))//s0", "(x//s0)%s1"),
    ("(x%(s0*s1))%s0", "x%s0"),
    ("(p*(s0 + 1) + r)//(s0 + 1)", "p"),
    ("(p*(s0 + 1) + r)%(s0 + 1)", "r"),
    ("x//(-s1)", "(-x)//s1"),
    ("s0//s0", "1"),
    ("(s0 + p)//s0", "1"),
    ("(p - s0)//s0", "-1"),
    # not provable: stays
    ("x//8", "x//8"),
    ("(m*x + p)//(m*y)", "(p + m*x)//(m*y)"),
    ("x%m", "x%m"),
    ("(8*x + k)//(8*m)", "(8*x + k)//(8*m)"),
    ("(8*x + k)%(8*m)", "(8*x + k)%(8*m)"),
    ("(8*x)//(8*m)", "x//m"),
    ("(x%(4*m))//m", "(x%(4*m))//m"),
    ("(x//4)//m", "(x//4)//m"),
    ("p//s1", "p//s1"),
    # quotient and remainder meet again
    ("8*(x//8) + x%8", "x"),
    ("3*y*s0*(x//s0) + 3*y*(x%s0)", "3*x*y"),
    ("m*(x//m) + x%m", "x"),
    ("5*((x//4)%6) + 30*(x//24)", "5*(x//4)"),
    ("x%4 + 4*((x//4)%6) + 24*(x//24)", "x"),
    ("x - 8*(x//8)", "x%8"),
    ("x - 8*((x + 3)//8)", "(x + 3)%8 - 3"),
    ("2*x - 8*(x//8)", "2*x - 8*(x//8)"),
    ("2*x - 16*(x//8)", "2*(x%8)"),
    ("x//4 - 6*(x//24)", "(x//4)%6"),
    ("x//4 - 6*(x//24) + y", "y + (x//4)%6"),
    ("16*(x//8) + x%8", "16*(x//8) + x%8"),
    ("8*((x + 3)//8) + (x + 3)%8", "x + 3"),
    ("(s0 + 1)*(x//(s0 + 1)) + x%(s0 + 1)", "x"),
    # min and max
    ("min(i, 40)", "i"),
    ("max(i, 40)", "40"),
    ("min(i, 5, k, i)", "min(5, i, k)"),
    ("min(x, min(y, 3))", "min(3, x, y)"),
    ("max(x, x + 1)", "x + 1"),
    ("min(p, s0)", "p"),
    ("min(s0 - 1, p)", "p"),
    ("min(4*(x//4), x)", "4*(x//4)"),
    # comparisons
    ("i < 32", "1"),
    ("i >= 32", "0"),
    ("i > 5", "(6 <= i)"),
    ("i <= 5", "(i < 6)"),
    ("p < s0", "1"),
    ("p <= s0 - 1", "1"),
    ("s0 <= p", "0"),
    ("x < y", "(x < y)"),
    ("x + 1 <= y", "(x < y)"),
    ("2*x < 2*y + 1", "(x <= y)"),
    ("x + 3 < y + 5", "(x <= y + 1)"),
    ("3*x == 6", "(x == 2)"),
    ("3*x == 7", "0"),
    ("3*x != 7", "1"),
    ("y == x", "(x == y)"),
    ("i == 40", "0"),
    ("p*s1 + q < s0*s1", "1"),
    ("2*(s0//2) <= s0", "1"),
    ("4*(x//4) <= x", "1"),
    # truth values
    ("not x < y", "(y <= x)"),
    ("not (x < y and i < 3)", "((3 <= i) or (y <= x))"),
    ("x < y and i < 32", "(x < y)"),
    ("x < y and y <= x", "0"),
    ("x < y or y <= x", "1"),
    ("x < y and x < y", "(x < y)"),
    ("not f", "(not f)"),
    ("not not f", "f"),
    ("f == 0", "(not f)"),
    ("f != 0", "f"),
    ("(x < y) == 0", "(y <= x)"),
    ("not x", "(x == 0)"),
    ("x and y", "((x != 0) and (y != 0))"),
]


@pytest.mark.parametrize(("text", "want"), RULES, ids=[r[0] for r in RULES])
def test_printed_form(text: str, want: str) -> None:
    e = ix.parse(text, SCOPE)
    assert str(e) == want
    assert ix.parse(want, SCOPE) is e


def test_a_view_chain_comes_back() -> None:
    b, h, s, d = (ix.var(n, e) for n, e in (("b", 8), ("h", 12), ("s", 512), ("d", 64)))
    flat = ((b * 12 + h) * 512 + s) * 64 + d
    assert flat // (12 * 512 * 64) is b
    assert flat // (512 * 64) % 12 is h
    assert flat // 64 % 512 is s
    assert flat % 64 is d


def test_a_view_chain_over_sizes_comes_back() -> None:
    n = ix.symbol("n", 1)
    b, h, s, d = ix.var("b", n), ix.var("h", 12), ix.var("s", S0), ix.var("d", S1)
    flat = ((b * 12 + h) * S0 + s) * S1 + d
    assert flat // (12 * S0 * S1) is b
    assert flat // (S0 * S1) % 12 is h
    assert flat // S1 % S0 is s
    assert flat % S1 is d


def test_a_flat_loop_variable_decomposes_and_recombines() -> None:
    x = ix.var("x", S0 * 12 * 64)
    parts = x // (12 * 64), x // 64 % 12, x % 64
    assert parts[0] * (12 * 64) + parts[1] * 64 + parts[2] is x
    assert (parts[0] * 12 + parts[1]) is x // 64


def test_pooling_window_stays_inside() -> None:
    out = (S1 - 2) // 2 + 1
    o = ix.var("o", out)
    kw = ix.var("kw", 2)
    assert ix.provably_lt(2 * o + kw, S1)
    assert not ix.provably_lt(2 * o + kw, S1 - 1)


def test_identity_and_truth() -> None:
    a, b = I * 3 + J, J + 3 * I
    assert a is b
    assert a == b
    assert hash(a) == hash(b)
    assert copy.deepcopy(a) is a
    assert copy.copy(a) is a
    with pytest.raises(TypeError):
        bool(a)
    assert bool(ix.const(1)) and not bool(ix.const(0))
    assert ix.const(4).is_const and ix.const(4).value == 4 and not a.is_const


def test_leaves_differ_by_more_than_their_name() -> None:
    assert ix.symbol("s", 0, 9) is not ix.symbol("s", 1, 9)
    assert ix.var("i", 3) is not ix.var("i", 4)
    both = ix.var("i", 4) + 2 * ix.var("i", 3)
    assert both is 2 * ix.var("i", 3) + ix.var("i", 4)
    assert [str(v) for v in both.free] == ["i", "i"]


def test_free_leaves_are_ordered_by_name_in_natural_order() -> None:
    vs = [ix.var(n, 5) for n in ("i10", "i9", "a", "i1")]
    e = ix.sum_(vs) % 7 + ix.min_(S1, vs[0])
    assert [str(v) for v in e.free] == ["s1", "a", "i1", "i9", "i10"]
    assert ix.const(3).free == ()


def test_what_is_not_an_int_is_refused() -> None:
    for bad in (1.0, "i", None):
        with pytest.raises(TypeError):
            I + bad  # type: ignore[operator]
        with pytest.raises(TypeError):
            ix.as_expr(bad)  # type: ignore[arg-type]


def test_constant_zero_divisor() -> None:
    for divide in (ix.floordiv, ix.mod, ix.ceildiv):
        with pytest.raises(ZeroDivisionError):
            divide(I, 0)
    with pytest.raises(ZeroDivisionError):
        ix.const(0) // ix.const(0)


def test_empty_ranges() -> None:
    with pytest.raises(ValueError, match="empty range"):
        ix.symbol("s", 4, 3)
    assert (ix.var("i", 0).lo, ix.var("i", 0).hi) == (0, 0)
    assert ix.sum_([]) is ix.ZERO
    assert ix.product([]) is ix.ONE
    assert ix.and_() is ix.ONE
    assert ix.or_() is ix.ZERO
    with pytest.raises(TypeError):
        ix.min_()
