"""What a 16-bit type holds needs no rounding: what ``litz.ir.exact`` says, for every number."""

from collections.abc import Callable

import pytest
import torch

from litz.index import symbol
from litz.ir.body import Node, cast, const, load, op
from litz.ir.dtype import BF16, BOOL, F16, F32, I16, U8, DType
from litz.ir.exact import holds, rounded

TYPES = ((BF16, torch.bfloat16), (F16, torch.float16))
Formula = Callable[[torch.Tensor], torch.Tensor]


def element(dtype: DType) -> Node:
    return cast(load(dtype, "x", symbol("i")), F32)


def sign(n: Node) -> Node:
    return op("sign", n)


def number(value: float) -> Node:
    return const(F32, value)


def picked(x: Node) -> Node:
    return op("where", op("gt", x, number(0.5)), op("mul", sign(x), number(0.75)), x)


HELD: dict[str, tuple[Callable[[Node], Node], Formula]] = {
    "itself": (lambda x: x, lambda x: x),
    "neg": (lambda x: op("neg", x), torch.neg),
    "abs": (lambda x: op("abs", x), torch.abs),
    "sign": (sign, torch.sign),
    "floor": (lambda x: op("floor", x), torch.floor),
    "ceil": (lambda x: op("ceil", x), torch.ceil),
    "round": (lambda x: op("round", x), torch.round),
    "relu": (lambda x: op("maximum", number(0), x), torch.relu),
    "signed": (
        lambda x: op("mul", sign(x), op("copysign", x, number(-1))),
        lambda x: x.sign() * -x.abs(),
    ),
    "nothing": (lambda x: op("mul", x, number(0)), lambda x: x * 0),
    "picked": (picked, lambda x: torch.where(x > 0.5, x.sign() * 0.75, x)),
}
OTHERS: dict[str, Callable[[Node], Node]] = {
    "sum": lambda x: op("add", x, x),
    "half": lambda x: op("mul", x, number(0.5)),
    "unlike": lambda x: op("maximum", x, number(0.1)),
    "root": lambda x: op("sqrt", x),
    "scaled sign": lambda x: op("mul", sign(x), number(0.1)),
}


@pytest.mark.parametrize(("dtype", "torch_dtype"), TYPES, ids=str)
@pytest.mark.parametrize("name", HELD)
def test_rounding_changes_no_number_that_is_held(
    name: str, dtype: DType, torch_dtype: torch.dtype
) -> None:
    node, formula = HELD[name]
    n = node(element(dtype))
    assert holds(n, dtype) and rounded(n, dtype) is n
    out = formula(torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch_dtype).float())
    torch.testing.assert_close(out.to(torch_dtype).float(), out, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OTHERS)
def test_what_may_have_more_digits_is_rounded(name: str) -> None:
    n = OTHERS[name](element(BF16))
    assert not holds(n, BF16)
    assert rounded(n, BF16) is op("round_to", n, to=BF16)
    assert holds(rounded(n, BF16), BF16) and not holds(rounded(n, BF16), F16)


def test_a_type_holds_the_whole_numbers_that_its_digits_write() -> None:
    held = {d: [holds(element(t), d) for t in (BOOL, U8, I16)] for d in (BF16, F16)}
    assert held == {BF16: [True, True, False], F16: [True, True, False]}
    assert not holds(element(BF16), F16) and not holds(element(F16), BF16)
