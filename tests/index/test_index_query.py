"""Queries: substitution, strides, divisibility, ranges, hints, layouts and their inversion."""

from __future__ import annotations

import itertools

import pytest

from litz import index as ix

S0 = ix.symbol("s0", 0, None, 16)
S1 = ix.symbol("s1", 2, None, 24)
U0 = ix.symbol("u0", 0, 100)
X = ix.symbol("x", None)
I, J, K = ix.var("i", 32), ix.var("j", 768), ix.var("k", 8)  # noqa: E741
P, Q = ix.var("p", S0), ix.var("q", S1)


def test_substitution_is_simultaneous() -> None:
    a, b = ix.var("a", 8), ix.var("b", 8)
    e = 10 * a + b
    assert ix.substitute(e, {a: b, b: a}) is 10 * b + a


def test_substitution_simplifies() -> None:
    x = ix.var("x", 32 * 768)
    assert ix.substitute(768 * I + J, {I: x // 768, J: x % 768}) is x
    assert ix.substitute(ix.lt(I, K), {I: ix.const(40)}) is ix.ZERO


def test_substitution_of_inner_expressions() -> None:
    t = ix.symbol("t", None)
    e = (X // 8) * 3 + X % 5
    assert ix.substitute(e, {X // 8: t}) is 3 * t + X % 5
    assert ix.substitute(e, {X // 8: t, X: ix.const(12)}) is 3 * t + 2


def test_substitution_object_serves_many_expressions() -> None:
    sub = ix.Substitution({I: K + 1})
    assert sub(I) is K + 1
    assert sub(I * 4 + J) is 4 * K + J + 4
    assert sub(J // 5) is J // 5
    assert sub(ix.and_(ix.lt(I, 5), ix.lt(J, 5))) is ix.and_(ix.lt(K, 4), ix.lt(J, 5))
    assert sub(ix.max_(I, J)) is ix.max_(K + 1, J)


def test_coefficient() -> None:
    e = 768 * I + S1 * P * 2 + J + I * S0 + 5
    assert ix.coefficient(e, I) is S0 + 768
    assert ix.coefficient(e, P) is 2 * S1
    assert ix.coefficient(e, J) is ix.ONE
    assert ix.coefficient(e, K) is ix.ZERO
    assert ix.coefficient(e + I // 5, I) is None
    assert ix.coefficient(I * I, I) is None
    assert ix.coefficient(I * (I // 5), I) is None
    assert ix.coefficient(ix.min_(I, J), I) is None
    assert ix.coefficient(S0 * I, S0) is I


def test_split_linear() -> None:
    assert ix.split_linear(768 * I + 3 * J + K // 4 + S0, [I, J]) == (
        {I: 768 * ix.ONE, J: 3 * ix.ONE},
        K // 4 + S0,
    )
    assert ix.split_linear(I * J, [I, J]) is None
    assert ix.split_linear(I * J, [I]) == ({I: J}, ix.ZERO)
    assert ix.split_linear((I + J) // 3, [I]) is None
    assert ix.split_linear(ix.const(4), []) == ({}, ix.const(4))


def test_divides() -> None:
    assert ix.divides(4, 8 * X + 12)
    assert not ix.divides(4, 8 * X + 6)
    assert ix.divides(S0, S0 * X + 3 * S0 * S1)
    assert not ix.divides(S0, X)
    assert ix.divides(S0 + 1, X * (S0 + 1) * 2)
    assert ix.divides(4, 4 * (X // 4))
    assert ix.divides(4, (4 * X) % 8)
    assert ix.divides(7, 0)
    assert not ix.divides(0, 7)


def test_bounds() -> None:
    assert ix.bounds(3 * I - J) == (-767, 93)
    assert ix.bounds(S0 - P) == (1, None)
    assert ix.bounds(S0 - P - 1) == (0, None)
    assert ix.bounds(P - S0) == (None, -1)
    assert ix.bounds(S0 * S1 - S1 * P - Q - 1) == (0, None)
    assert ix.bounds(S0 // 2 * 2 - S0) == (-1, 0)
    assert ix.bounds(X % 7 - 3) == (-3, 3)
    assert ix.bounds(X * X) == (0, None)
    n = ix.symbol("n", -3, 2)
    assert ix.bounds(n * n) == (0, 9)
    assert ix.bounds((n - 3) * (n - 3)) == (0 - 12 + 9, 9 + 18 + 9)  # expanded: not a square
    assert ix.bounds(ix.symbol("n", -5, -2) * ix.symbol("n", -5, -2)) == (4, 25)
    assert ix.bounds(S0 - P // 2) == (1, None)
    assert ix.bounds(S0 - ix.min_(P, J)) == (1, None)
    assert ix.bounds(ix.max_(P, J) - P) == (0, None)


def test_proofs() -> None:
    assert ix.provably_lt(P, S0) and ix.provably_le(P, S0)
    assert not ix.provably_lt(P, S1) and not ix.provably_lt(S0, P)
    assert ix.provably_lt(P * S1 + Q, S0 * S1)
    assert not ix.provably_lt(P * S1 + Q + 1, S0 * S1)
    assert ix.provably_lt(X % S1, S1)
    assert ix.provably_le(P // 2, (S0 - 1) // 2)


def test_size_hint() -> None:
    assert ix.size_hint(S0 * S1 + I) == 16 * 24
    assert ix.size_hint(U0, default=64) == 64
    assert ix.size_hint(U0, default=6400) == 100
    assert ix.size_hint(7) == 7


def test_evaluate() -> None:
    assert ix.evaluate(X // 4 + X % 4, {X: -5}) == -2 + 3
    with pytest.raises(KeyError):
        ix.evaluate(X + I, {X: 1})


def test_mixed_radix() -> None:
    r = ix.mixed_radix(768 * I + J + 5, [J, I])
    assert r is not None
    assert [(str(t.var), str(t.stride), str(t.extent)) for t in r.terms] == [
        ("i", "768", "32"),
        ("j", "1", "768"),
    ]
    assert (r.offset, r.injective, r.dense) == (ix.const(5), True, True)
    assert r.size is ix.const(768 * 32)


@pytest.mark.parametrize(
    ("e", "vars", "injective", "dense"),
    [
        (S1 * P + Q, [P, Q], True, True),
        (800 * I + J, [I, J], True, False),
        (700 * I + J, [I, J], False, False),
        (2 * (768 * I + J), [I, J], True, False),
        (768 * I - J, [I, J], True, False),
        (I + 0 * K, [I, K], False, False),
        (I, [I], True, True),
        (I + 7 * ix.var("one", 1), [I, ix.var("one", 1)], True, True),
        (P * S1 + ix.var("w", S1 * 2), [P, ix.var("w", S1 * 2)], False, False),
        (ix.const(3), [], True, True),
    ],
)
def test_mixed_radix_flags(e: ix.Expr, vars: list[ix.Var], injective: bool, dense: bool) -> None:
    r = ix.mixed_radix(e, vars)
    assert r is not None
    assert (r.injective, r.dense) == (injective, dense)


def test_mixed_radix_flags_by_brute_force() -> None:
    a, b, c = ix.var("a", 2), ix.var("b", 3), ix.var("c", 2)
    for sa, sb, sc in itertools.product(range(-3, 8), repeat=3):
        r = ix.mixed_radix(sa * a + sb * b + sc * c, [a, b, c])
        assert r is not None
        seen = [
            sa * x + sb * y + sc * z for x, y, z in itertools.product(range(2), range(3), range(2))
        ]
        if r.injective:
            assert len(set(seen)) == len(seen)
        if r.dense:
            assert sorted(seen) == list(range(12))
        if sorted(seen) == list(range(12)):
            assert r.dense


def test_mixed_radix_orders_digits_whose_hints_tie() -> None:
    a, b = ix.symbol("a", 0, None, 1), ix.symbol("b", 0, None, 1)
    v, w, x = ix.var("v", a), ix.var("w", b), ix.var("x", 8)
    for order in itertools.permutations([v, w, x]):
        r = ix.mixed_radix(8 * b * v + 8 * w + x, order)
        assert r is not None and r.dense
        assert [t.var for t in r.terms] == [v, w, x]


def test_mixed_radix_of_what_is_not_linear() -> None:
    assert ix.mixed_radix(I // 2 + J, [I, J]) is None


def test_invert_dense() -> None:
    x = ix.var("x", 32 * 768)
    assert ix.invert(768 * I + J, [I, J], x) == {I: x // 768, J: x % 768}
    a, b = ix.var("a", 32), ix.var("b", 768)
    assert ix.invert(768 * I + J, [I, J], 768 * a + b) == {I: a, J: b}
    assert ix.invert(I + 32 * J, [I, J], I + 32 * J) == {I: I, J: J}


def test_invert_dense_trusts_the_target_to_be_in_range() -> None:
    assert ix.invert(768 * I + J, [I, J], X) == {I: X // 768, J: X % 768}


def test_invert_dense_over_sizes() -> None:
    a, b = ix.var("a", S0), ix.var("b", S1)
    assert ix.invert(S1 * P + Q, [P, Q], S1 * a + b) == {P: a, Q: b}
    x = ix.var("x", S0 * S1)
    solution = ix.invert(S1 * P + Q, [P, Q], x)
    assert solution == {P: x // S1, Q: x % S1}
    assert ix.substitute(S1 * P + Q, solution) is x


def test_invert_three_digits_with_an_offset() -> None:
    d, h, s = ix.var("d", 64), ix.var("h", 12), ix.var("s", 512)
    store = (h * 512 + s) * 64 + d + 7
    x = ix.var("x", 12 * 512 * 64)
    solution = ix.invert(store, [h, s, d], x + 7)
    assert solution == {h: x // 32768, s: x // 64 % 512, d: x % 64}
    assert ix.substitute(store, solution) is x + 7


def test_invert_with_gaps_must_prove_itself() -> None:
    a, b = ix.var("a", 32), ix.var("b", 768)
    assert ix.invert(800 * I + J, [I, J], 800 * a + b) == {I: a, J: b}
    assert ix.invert(800 * I + J, [I, J], ix.var("x", 32 * 800)) is None
    assert ix.invert(2 * I, [I], ix.var("x", 64)) is None
    assert ix.invert(2 * I, [I], 2 * a) == {I: a}


def test_invert_of_what_has_no_inverse() -> None:
    x = ix.var("x", 100)
    assert ix.invert(700 * I + J, [I, J], x) is None
    assert ix.invert(I // 2, [I], x) is None
    assert ix.invert(I + J - J, [I, J], x) is None
    assert ix.invert(768 * I - J, [I, J], x) is None


def test_invert_by_brute_force() -> None:
    extents = (2, 3, 4)
    vs = [ix.var(n, e) for n, e in zip("abc", extents, strict=True)]
    for order in itertools.permutations(range(3)):
        strides = [0, 0, 0]
        run = 1
        for at in order:
            strides[at] = run
            run *= extents[at]
        store = ix.sum_(s * v for s, v in zip(strides, vs, strict=True))
        x = ix.var("x", 24)
        solution = ix.invert(store, vs, x)
        assert solution is not None
        for n in range(24):
            digits = {v: ix.evaluate(solution[v], {x: n}) for v in vs}
            assert ix.evaluate(store, digits) == n
            assert all(0 <= digits[v] < e for v, e in zip(vs, extents, strict=True))
