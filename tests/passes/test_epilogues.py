"""Which nests are activations that libraries compute with a product."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.index import ZERO
from litz.ir.body import Node, cast, const, load, op
from litz.ir.dtype import BF16, F8E4, F16, F32, I32
from litz.ir.parse import parse
from litz.ir.program import Extern, Program
from litz.ir.verify import verify
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.passes.choose import ChooseContractions
from litz.passes.epilogues import TakeEpilogues, activation

LOADED = load(BF16, "x", ZERO)
X = cast(LOADED, F32)


def tanh(x: Node) -> Node:
    return op("tanh", x)


def rounded(x: Node) -> Node:
    return op("round_to", x, to=BF16)


ROOT, CUBE = 0.7978845608028654, 0.044715
FORMS: dict[str, tuple[Callable[[Node], Node], str]] = {
    "as lowered": (lambda x: 0.5 * x * (1 + tanh(ROOT * (x + CUBE * (x * x * x)))), "gelu"),
    "by hand": (lambda x: (1 + tanh((x * x * x * CUBE + x) * ROOT)) * (x * 0.5), "gelu"),
    "one more place": (lambda x: x * 0.5 * (1 + tanh(x * ROOT * (1 + CUBE * x * x))), ""),
    "rounded": (
        lambda x: rounded(0.5 * x) * rounded(1 + tanh(ROOT * rounded(x + CUBE * (x * x * x)))),
        "gelu",
    ),
    "rounded to 8 bits": (
        lambda x: op("maximum", op("round_to", x, to=F8E4), const(F32, 0.0)),
        "",
    ),
    "rounded to another range": (
        lambda x: op("maximum", op("round_to", x, to=F16), const(F32, 0.0)),
        "",
    ),
    "float32's root": (
        lambda x: 0.5 * x * (1 + tanh(0.79788458 * (x + CUBE * (x * x * x)))),
        "gelu",
    ),
    "another root": (lambda x: 0.5 * x * (1 + tanh(0.8 * (x + CUBE * (x * x * x)))), ""),
    "another cube": (lambda x: 0.5 * x * (1 + tanh(ROOT * (x + CUBE * (x * x)))), ""),
    "by erf": (lambda x: 0.5 * x * (1 + op("erf", x * 0.7071067811865476)), ""),
    "relu": (lambda x: op("maximum", const(F32, 0.0), x), "relu"),
    "relu turned": (lambda x: op("maximum", x, const(F32, 0.0)), "relu"),
    "relu of less": (lambda x: op("maximum", x, const(F32, -1.0)), ""),
    "min": (lambda x: op("minimum", x, const(F32, 0.0)), ""),
    "itself": (lambda x: x, ""),
    "of integers between": (
        lambda x: op("maximum", cast(cast(x, I32), F32), const(F32, 0.0)),
        "",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_activations_are_known_by_what_they_compute(name: str) -> None:
    make, wanted = FORMS[name]
    assert activation(cast(make(X), BF16), LOADED) == wanted


RELU = "%1: f32 = cast %0 to f32\n%2: f32 = maximum %1, f32(0.0)\n%3: bf16 = cast %2 to bf16"


def program(
    n: int = 64, bias: str = ", bias=b", at: str = "64*i0 + i1", to: str = "64*i0 + i1",
    shown: str = "buf2", kind: str = "temp", device: str = "cuda:0", rows: str = "{1}",
) -> Program:  # fmt: skip
    return parse(f"""\
program(x, w, b) {{
  x: bf16[64, {n}]{{{n}, 1}} @{device} input
  w: bf16[{n}, 64]{{64, 1}} @{device} input
  b: bf16[64]{rows} @{device} input
  buf1: bf16[64, 64]{{64, 1}} @{device} temp
  buf2: bf16[64, 64]{{64, 1}} @{device} {kind}
  product0 = contraction [m 64, n 64, k {n}] in f32 (x, w{bias}) -> (buf1) @{device}
  loops1 = loops [i0 < 64, i1 < 64] @{device} {{
%0: bf16 = load buf1[{at}]
{RELU}
store buf2[{to}] = %3
  }}
  return ({shown},)
}}""")


PLAIN = TakeEpilogues(plain=("relu",))


def taken(p: Program, by: TakeEpilogues = PLAIN) -> bool:
    made = by(p)
    return isinstance(made.nodes[0], Extern) and len(made.nodes) == 1


def test_a_product_and_its_activation_are_one_call() -> None:
    (call,) = PLAIN(program()).nodes
    assert isinstance(call, Extern) and call.outputs == ("buf2",) and call.out_variant
    assert call.target_name == "aten._addmm_activation.out"
    assert dict(call.kwargs)["use_gelu"] is False
    (call,) = TakeEpilogues(("cuda",))(program()).nodes
    assert isinstance(call, Extern) and call.target_name == "litz.runtime.products.product"
    assert dict(call.kwargs)["epilogue"] == "relu"


def test_only_what_is_known_to_keep_nan_is_taken_without_a_measurement() -> None:
    assert taken(program()) and not taken(program(), TakeEpilogues())
    assert not taken(program(), TakeEpilogues(plain=("gelu",)))


@pytest.mark.parametrize(
    "change",
    [
        {"n": 60},  # a size that libraries are slow on, and that is padded
        {"n": 0},  # a sum of nothing, which no library is made for
        {"bias": ""},
        {"bias": ", bias=b, beta=0.5"},
        {"to": "i0 + 64*i1"},  # turned
        {"shown": "buf2, buf1"},  # who calls the graph wants the product too
        {"device": "cpu"},
        {"rows": "{0}"},  # one number for all
    ],
)
def test_what_is_not_taken(change: dict[str, str]) -> None:
    assert taken(program()) and not taken(program(**change))  # type: ignore[arg-type]


SCALED = """\
program(x, w, a, b) {
  x: f8e4m3[64, 64]{64, 1} @cuda:0 input
  w: f8e4m3[64, 64]{64, 1} @cuda:0 input
  a: f32[64, 1]{1, 1} @cuda:0 input
  b: f32[1, 64]{64, 1} @cuda:0 input
  buf1: bf16[64, 64]{64, 1} @cuda:0 fresh
  extern0 = extern aten._scaled_mm.default(x, w: f8e4m3[64, 64]{1, 64}+0, a, b, \
out_dtype=torch.bfloat16, use_fast_accum=True) -> (buf1) @cuda:0 because "a product"
  return (buf1,)
}"""


def test_scaled_products_are_measured_too() -> None:
    def meant(name: str) -> object:
        head, _, rest = name.partition(".")
        return attrgetter(rest if head == "torch" else name)(
            torch if head == "torch" else torch.ops
        )

    given = parse(SCALED, resolve=meant)
    (call,) = ChooseContractions()(given).nodes
    assert isinstance(call, Extern) and call.target_name == "aten._scaled_mm.default"
    made = ChooseContractions(("cuda",))(given)
    (call,) = made.nodes
    assert isinstance(call, Extern) and call.target_name == "litz.runtime.products.product"
    named = dict(call.kwargs)
    assert len(named["scales"]) == 2 and named["fast"] is True  # type: ignore[arg-type]
    assert call.out_variant and made.buffers["buf1"].kind == "temp"
    verify(made, "a test")


# --- in training ----------------------------------------------------------------------------------

aten = torch.ops.aten


def lowered(fn: Callable[..., tuple[torch.Tensor, ...]]) -> Program:
    """A function of x, a weight, a row, and what lies as their product does."""
    with FakeTensorMode():
        shapes = (64, 32), (32, 128), (128,), (64, 128)
        given = [torch.empty(s, device="cuda", dtype=torch.bfloat16) for s in shapes]
        return lower_graph(make_fx(fn)(*given), Settings(inference=True))


def calls(fn: Callable[..., tuple[torch.Tensor, ...]]) -> list[tuple[object, ...]]:
    """The calls that are made of a function: their epilogues, whether they keep or are given, and
    how many results they have."""
    made = TakeEpilogues(("cuda",))(lowered(fn))
    verify(made, "take epilogues")
    found = [n for n in made.nodes if isinstance(n, Extern)]
    named = [dict(n.kwargs) for n in found]
    return [(k["epilogue"], "aux" in k, len(n.outputs)) for k, n in zip(named, found, strict=True)]


def gelu(x: torch.Tensor, how: str = "tanh") -> torch.Tensor:
    return aten.gelu.default(x, approximate=how)  # type: ignore[no-any-return]


def slope(g: torch.Tensor, x: torch.Tensor, how: str = "tanh") -> torch.Tensor:
    return aten.gelu_backward.default(g, x, approximate=how)  # type: ignore[no-any-return]


def test_what_is_saved_for_the_gradient_is_kept_by_the_call() -> None:
    assert calls(lambda x, w, b, h: (y := aten.addmm(b, x, w), gelu(y))) == [("gelu", True, 2)]
    assert calls(lambda x, w, b, h: (y := x @ w, gelu(y), y + 1)) == [("gelu", True, 2)]
    assert not calls(lambda x, w, b, h: (y := aten.addmm(b, x, w), gelu(y, "none")))
    assert not calls(lambda x, w, b, h: (y := aten.addmm(b, x, w), torch.relu(y)))
    assert not calls(lambda x, w, b, h: (gelu(x @ w),))  # a kernel behind it, or a row, as before


def test_gradients_of_activations_are_part_of_a_product() -> None:
    assert calls(lambda x, w, b, h: (slope(x @ w, h),)) == [("gelu_backward", True, 1)]
    found = calls(lambda x, w, b, h: (y := slope(x @ w, h), y.sum(0)))
    assert found == [("gelu_backward", True, 1)]
    assert not calls(lambda x, w, b, h: (slope(x @ w, h, "none"),))
    assert not calls(lambda x, w, b, h: (slope(aten.addmm(b, x, w), h),))
    assert not calls(lambda x, w, b, h: (y := x @ w, slope(y, h)))
    assert not calls(lambda x, w, b, h: (slope(h, x @ w),))
    assert not calls(lambda x, w, b, h: (slope(y := x @ w, y * 2),))  # it is made behind it
