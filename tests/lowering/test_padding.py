"""Matrices whose rows begin at no multiple of 16 bytes, where products on a GPU read them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from evaluate import check
from evaluate import lower_fn as lower
from torch import Tensor

from litz.ir.program import Extern, Program
from litz.lowering.context import Settings

GPU = Settings(interpreted=True)
MM = "aten.mm.out"


def half(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).half()


def rows(program: Program, name: str) -> list[str]:
    """The strides of the matrices that products called ``name`` read and write."""
    out = []
    for n in program.nodes:
        if isinstance(n, Extern) and n.target_name.startswith(f"aten.{name}."):
            refs = [a for a in n.args if hasattr(a, "strides")]
            out += [str(tuple(map(str, r.strides))) for r in refs]
            out += [str(tuple(map(str, program.buffers[o].strides))) for o in n.outputs if o]
    return out


def loss(x: Tensor, w: Tensor) -> Tensor:
    return F.log_softmax((x @ w.t()).view(4, 25, -1)[:, :-1], -1).sum()


def test_a_result_that_stays_inside_has_whole_rows() -> None:
    program = lower(loss, half(100, 264), half(301, 264), settings=GPU)
    assert rows(program, "mm") == ["('264', '1')", "('1', '264')", "('304', '1')"]
    assert "('301', '1')" in rows(lower(loss, half(100, 264), half(301, 264)), "mm")
    check(loss, half(100, 264), half(301, 264), settings=GPU, externs=(MM,))


def test_a_result_that_is_returned_is_as_eager_has_it() -> None:
    for fn in (
        lambda x, w: x @ w.t(),
        lambda x, w: (x @ w.t())[:, 3:],
        lambda x, w: (x @ w.t()).view(4, 25, -1)[1],
    ):
        program = lower(fn, half(100, 264), half(301, 264), settings=GPU)
        assert rows(program, "mm")[-1] == "('301', '1')"
        check(fn, half(100, 264), half(301, 264), settings=GPU, externs=(MM,))


def test_what_products_read_is_stored_with_whole_rows() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = torch.relu(x) * 2
        return (z @ y) + (z.t() @ z).sum()

    program = lower(fn, half(300, 515), half(515, 64), settings=GPU)
    assert "('515', '1')" not in rows(program, "mm")
    assert "('520', '1')" in rows(program, "mm") and "('1', '520')" in rows(program, "mm")
    check(fn, half(300, 515), half(515, 64), settings=GPU, externs=(MM,))


def test_arguments_are_copied_where_the_product_is_large() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x @ y)

    assert "('520', '1')" in rows(lower(fn, half(300, 515), half(515, 512), settings=GPU), "mm")
    assert "('520', '1')" not in rows(lower(fn, half(300, 515), half(515, 8), settings=GPU), "mm")
    check(fn, half(300, 515), half(515, 512), settings=GPU, externs=(MM,))
    single = half(300, 515).float(), half(515, 512).float()
    assert "('520', '1')" not in rows(lower(fn, *single, settings=GPU), "mm")


def test_other_calls_get_rows_as_in_eager() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(x) + 1
        return y @ w, torch.cumsum(y, 1)

    check(fn, half(300, 515), half(515, 320), settings=GPU, externs=(MM, "aten.cumsum.default"))
    program = lower(fn, half(300, 515), half(515, 320), settings=GPU)
    assert "('520', '1')" not in rows(program, "cumsum")


def test_batches() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(torch.bmm(x, y), -1)

    program = lower(fn, half(3, 64, 264), half(3, 264, 301), settings=GPU)
    assert rows(program, "bmm")[-1] == "('19456', '304', '1')"
    check(fn, half(3, 64, 264), half(3, 264, 301), settings=GPU, externs=("aten.bmm.out",))
