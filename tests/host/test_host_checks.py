"""The check of what host programs hand to operators: it is silent, or names the first fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litz.errors import VerificationError
from litz.lowering import externs, storing
from litz.options import Options
from litz.runtime.checks import check_call

ON = {"check_calls": True}
OFF = {"check_calls": False}


def sliced(x: Tensor) -> Tensor:
    """What the operator takes has gaps between its rows."""
    return torch.mode((x * x)[:, 2:9], 1).values


def compiled(options: dict[str, bool]) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(sliced, backend="litz", options=options)


def test_off_by_default_and_on_under_verify() -> None:
    assert not Options().check_calls
    x = torch.randn(4, 13)
    for options in (ON, {"verify": True}):
        assert torch.equal(compiled(options)(x), sliced(x))


def test_the_first_fault_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be where lowering did not heed the metadata: values are right, strides not."""
    for module in (externs, storing):
        monkeypatch.setattr(module, "laid_out", lambda b, v, _: b.realize(v.without_memory()))
    monkeypatch.setattr(externs, "with_idle_strides", lambda ref, _: ref)
    x = torch.randn(4, 13)
    assert torch.equal(compiled(OFF)(x), sliced(x))
    with pytest.raises(VerificationError) as e:
        compiled(ON)(x)
    assert "aten.mode.default" in str(e.value)
    assert "has the strides [7, 1], not [13, 1]" in str(e.value)
    assert "torch.mode" in str(e.value)  # the user's line


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (torch.zeros(4, 3), ""),
        (torch.zeros(4, 3, dtype=torch.int32), "has the type torch.int32"),
        (torch.zeros(4, 3, device="meta"), "is on meta, not on cpu"),
        (torch.zeros(3, 4).t(), "has the strides [1, 4], not [3, 1]"),
        (torch.zeros(13)[1:].view(4, 3), "multiple of 16 bytes"),
        (torch.zeros(0, 3).as_strided((0, 3), (1, 7)), ""),
    ],
)
def test_what_is_compared(value: Tensor, fault: str) -> None:
    stated = ("x", value, torch.float32, torch.device("cpu"), (3, 1), 16)
    if not fault:
        check_call("aten.op", ("n",), "", stated)
        return
    with pytest.raises(VerificationError, match="its argument x") as e:
        check_call("aten.op", ("n",), "", stated)
    assert fault in str(e.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_models_pass(dynamic: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    conv = torch.nn.Conv2d(3, 4, 3)

    def fn(x: Tensor, image: Tensor) -> Tensor:
        return layer(x).sum() + F.interpolate(conv(image), scale_factor=2.0).square().sum()

    torch._dynamo.reset()
    call = torch.compile(fn, backend="litz", options=ON, dynamic=dynamic)
    for n in (2, 3):
        args = torch.randn(n, 5, 16), torch.randn(n, 3, 9, 9)
        torch.testing.assert_close(call(*args), fn(*args), rtol=1e-4, atol=1e-4)
        call(*args).backward()
