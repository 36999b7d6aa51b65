"""Matrix products as templates on a GPU: what the interpreter checks, compiled; larger ones too."""

from __future__ import annotations

import pytest
import torch
from test_matmul import CASES, check, int4, int8, ints, rand, several

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

LARGE = {
    "int8": (int8, (rand(16, 8192), ints(8192, 8192), rand(8192))),
    "int4": (int4, (rand(16, 4096), ints(4096, 2048, dtype=torch.uint8, least=0), rand(4096, 32))),
    "several": (several, (rand(1000, 1024), rand(4096, 1024), rand(4096))),
}


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("name", LARGE)
def test_large(name: str, mode: str) -> None:
    fn, args = LARGE[name]
    own = tuple(a.cuda() for a in args)
    check(torch.compile(fn, backend="litz", options={"mode": mode})(*own), fn, own)


@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str) -> None:
    fn, args = CASES[name]
    own = tuple(a.cuda() for a in args)
    check(torch.compile(fn, backend="litz")(*own), fn, own)
