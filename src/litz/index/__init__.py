"""Symbolic integer algebra for loop indices and sizes.

Expressions are immutable, interned and canonical on construction: ``a is b`` if and only if their
canonical forms are equal. Bounds are proven, never assumed; division floors, as Python's does.
"""

from litz.index.arith import add, mul, product, scale, sub, sum_
from litz.index.division import ceildiv, exact_quotient, floordiv, mod
from litz.index.expr import (
    ONE,
    ZERO,
    And,
    Cmp,
    Const,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Not,
    Or,
    Product,
    Rules,
    Sum,
    Symbol,
    Var,
    as_expr,
    const,
    symbol,
    var,
)
from litz.index.layout import MixedRadix, RadixTerm, contiguous_strides, invert, linear, mixed_radix
from litz.index.logic import and_, eq, ge, gt, le, lt, max_, min_, ne, not_, or_, truth, where
from litz.index.prove import provably_le, provably_lt
from litz.index.query import (
    Substitution,
    bounds,
    coefficient,
    divides,
    divisions,
    evaluate,
    size_hint,
    split_linear,
    substitute,
    substitution,
)
from litz.index.recombine import recombine
from litz.index.text import CPP, PYTHON, TRITON, Dialect, parse, render, to_text

Rules.add, Rules.sub, Rules.mul, Rules.scale = add, sub, mul, scale
Rules.floordiv, Rules.mod = floordiv, mod
Rules.recombine, Rules.to_text = recombine, to_text

__all__ =[
    "CPP", "ONE", "PYTHON", "TRITON", "ZERO", "And", "Cmp", "Const", "Dialect", "Expr", "FloorDiv",
    "Max", "Min", "MixedRadix", "Mod", "Not", "Or", "Product", "RadixTerm", "Substitution", "Sum",
    "Symbol", "Var", "and_", "as_expr", "bounds", "ceildiv", "coefficient", "const",
    "contiguous_strides", "divides", "divisions", "eq", "evaluate", "exact_quotient", "floordiv",
    "ge", "gt", "invert", "le", "linear", "lt", "max_", "min_", "mixed_radix", "mod", "ne", "not_",
    "or_", "parse", "product", "provably_le", "provably_lt", "render", "size_hint", "split_linear",
    "substitute", "substitution", "sum_", "symbol", "truth", "var", "where",
]  # fmt: skip
