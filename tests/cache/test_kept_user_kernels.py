"""Programs that launch the user's own Triton kernels: found again, and never another's."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_kept_programs import Compile, Runs, runs
from torch import Tensor

pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[1] / "triton"))

import triton  # noqa: E402
from user_samples import add_kernel, captured  # noqa: E402

from litz.runtime.user_kernels import kernel_name  # noqa: E402

__all__ = ["runs"]

MODULE = """
import torch, triton
import triton.language as tl
from torch.library import triton_op, wrap_triton
from user_samples import InterpretedJit

SHIFT = tl.constexpr({shift})

@InterpretedJit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, TO: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, (x * {factor} + SHIFT).to(TO), mask=i < n)

def launch(jit, x):
    out = torch.empty_like(x)
    n = x.numel()
    jit[(triton.cdiv(n, {block}),)](x, out, n, BLOCK={block}, TO=tl.float32)
    return out

@triton_op("litz_programs::by_triton", mutates_args=())
def wrapped(x: torch.Tensor) -> torch.Tensor:
    return launch(wrap_triton(kernel), x)

def plain(x):
    return launch(kernel, x).exp()

def operator(x):
    return wrapped(x).exp()
"""
GIVEN = {"shift": 1.0, "factor": 2.0, "block": 16}


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    with captured():
        yield


def case(folder: Path, name: str, **given: float) -> Callable[[Compile], Tensor]:
    """A program whose kernels stand in a file of their own, as in another process."""
    text = MODULE.format(**{**GIVEN, **given})
    path = folder / "users_kernels.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    module = types.ModuleType("users_kernels")
    exec(compile(text, str(path), "exec"), module.__dict__)

    def run(compile: Compile) -> Tensor:
        with torch.no_grad():
            out: Tensor = compile(getattr(module, name))(torch.linspace(-1, 1, 50))
        return out

    return run


def expected(shift: float = 1.0, factor: float = 2.0, block: int = 16) -> Tensor:
    return (torch.linspace(-1, 1, 50) * factor + shift).exp()


@pytest.mark.parametrize("name", ["plain", "operator"])
def test_what_a_kernel_does_counts(name: str, runs: Runs, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {"factor": 3.0}, {"shift": 2.0}, {"block": 32}]
    for n, given in enumerate(changes):
        for again in (False, True):
            out = runs(case(tmp_path, name, **given))
            torch.testing.assert_close(out, expected(**given))
            assert runs.traced != again and len(runs.entries()) == n + 1, runs.told


def test_kernels_with_code_of_the_users_around_them_have_no_name() -> None:
    kernel: Any = add_kernel
    plain = triton.autotune([triton.Config({"BLOCK": 16})], key=["n"])(kernel)
    other = triton.autotune([triton.Config({"BLOCK": 32})], key=["n"])(kernel)
    assert len({kernel_name(k) for k in (kernel, plain, other)}) == 3
    for how, reason in (
        ({"pre_hook": lambda args, reset_only=False: None}, "hooks"),
        ({"prune_configs_by": {"early_config_prune": lambda c, a, **k: c}}, "pruned"),
    ):
        tuned = triton.autotune([triton.Config({"BLOCK": 16})], key=["n"], **how)(kernel)
        with pytest.raises(ValueError, match=reason):
            kernel_name(tuned)
