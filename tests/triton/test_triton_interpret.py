"""Kernels under Triton's interpreter, by address."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import partial

import pytest
import torch
from threads import together
from triton_samples import ADD

pytest.importorskip("triton.language")

from litz.errors import ToolchainError  # noqa: E402
from litz.runtime.triton.interpret import TYPES, interpreted, require_interpreter  # noqa: E402

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
BLOCK = {"XBLOCK": 16}


def add(kind: str, n: int, *tensors: torch.Tensor) -> None:
    run = interpreted(ADD, "add", [kind] * 3, BLOCK)
    run(-(-n // 16), 1, 1, *(t.data_ptr() for t in tensors), n)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_of_pointer(kind: str) -> None:
    source = HEAD + (
        "def k(a, out, n, XBLOCK: tl.constexpr):\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
        "    tl.store(out + x, tl.load(a + x, x < n), x < n)\n"
    )
    a = torch.tensor([0, 1, 2, 60] * 10).to(TYPES[kind])
    out = torch.zeros(45).to(TYPES[kind])
    run = interpreted(source, "k", [kind, kind], BLOCK)
    run(3, 1, 1, a.data_ptr(), out.data_ptr(), 40)
    assert torch.equal(out[:40], a)
    # Nothing behind the end is written.
    assert not out[40:].to(torch.int64).any()


def test_truth_values() -> None:
    source = HEAD + (
        "def k(a, out, XBLOCK: tl.constexpr):\n"
        "    x = tl.arange(0, XBLOCK)\n"
        "    tl.store(out + x, tl.load(a + x) == 0)\n"
    )
    a, out = torch.rand(16) > 0.5, torch.zeros(16, dtype=torch.bool)
    interpreted(source, "k", ["*i1", "*i1"], BLOCK)(1, 1, 1, a.data_ptr(), out.data_ptr())
    assert torch.equal(out, ~a)


def test_addresses_within_a_tensor() -> None:
    a, b, out = torch.rand(50), torch.rand(50), torch.zeros(50)
    add("*fp32", 20, a[3:], b[7:], out[11:])
    assert torch.equal(out[11:31], a[3:23] + b[7:27])
    assert not out[:11].any() and not out[31:].any()


def test_an_address_of_nothing() -> None:
    run = interpreted(ADD, "add", ["*fp32"] * 3, BLOCK)
    out = torch.ones(4)
    run(1, 1, 1, 0, 0, out.data_ptr(), 0)
    assert torch.equal(out, torch.ones(4))


def test_grids_of_three_axes() -> None:
    source = HEAD + (
        "def k(out, n):\n"
        "    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)\n"
        "    tl.store(out + (z * 3 + y) * 4 + x, 100 * z + 10 * y + x + n)\n"
    )
    out = torch.zeros(2, 3, 4, dtype=torch.int64)
    interpreted(source, "k", ["*i64"], {})(4, 3, 2, out.data_ptr(), 5)
    want = torch.tensor(
        [[[100 * z + 10 * y + x + 5 for x in range(4)] for y in range(3)] for z in range(2)]
    )
    assert torch.equal(out, want)


CHECKS = (
    "from litz.runtime.triton import helpers as litz\n"
    + HEAD
    + ("def k(at, out, n):\n    i = tl.load(at)\n    litz.check(i < n)\n    tl.store(out, i)\n")
)


def test_a_failed_check_is_an_index_error() -> None:
    run = interpreted(CHECKS, "k", ["*i64", "*i64"], {})
    at, out = torch.tensor([3]), torch.zeros(1, dtype=torch.int64)
    run(1, 1, 1, at.data_ptr(), out.data_ptr(), 4)
    assert out.item() == 3
    with pytest.raises(IndexError, match="index out of range in a compiled kernel"):
        run(1, 1, 1, at.data_ptr(), out.data_ptr(), 3)
    # The interpreter is whole again afterwards.
    run(1, 1, 1, at.data_ptr(), out.data_ptr(), 4)


def test_other_failures_are_no_index_errors() -> None:
    # A fault of the kernel's text, whose words are much like the check's.
    source = HEAD + "def k(out):\n    tl.store(out, [1, 2][5])\n"
    out = torch.zeros(1)
    with pytest.raises(Exception) as caught:
        interpreted(source, "k", ["*fp32"], {})(1, 1, 1, out.data_ptr())
    assert "in a compiled kernel" not in str(caught.value)
    assert "list index out of range" in str(caught.value)


def test_warnings_of_numpy_are_silent() -> None:
    source = HEAD + (
        "def k(a, out, XBLOCK: tl.constexpr):\n"
        "    x = tl.arange(0, XBLOCK)\n    v = tl.load(a + x)\n"
        "    tl.store(out + x, v / (v - v) + tl.exp(v * 1e30))\n"
    )
    a, out = torch.full((16,), 2.0), torch.zeros(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interpreted(source, "k", ["*fp32"] * 2, BLOCK)(1, 1, 1, a.data_ptr(), out.data_ptr())
    assert torch.isinf(out).all()


def test_two_sources_of_one_name() -> None:
    a, b, out = torch.rand(16), torch.rand(16), torch.zeros(16)
    one = interpreted(ADD, "add", ["*fp32"] * 3, BLOCK)
    two = interpreted(ADD.replace(" + tl.load(b", " - tl.load(b"), "add", ["*fp32"] * 3, BLOCK)
    addresses = [t.data_ptr() for t in (a, b, out)]
    one(1, 1, 1, *addresses, 16)
    assert torch.equal(out, a + b)
    two(1, 1, 1, *addresses, 16)
    assert torch.equal(out, a - b)


def test_threads_take_turns() -> None:
    n = 320
    run = interpreted(ADD, "add", ["*fp32"] * 3, BLOCK)
    sets = [(torch.rand(n), torch.rand(n), torch.zeros(n)) for _ in range(4)]

    def work(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        run(n // 16, 1, 1, a.data_ptr(), b.data_ptr(), out.data_ptr(), n)

    together(partial(work, *s) for s in sets)
    for a, b, out in sets:
        assert torch.equal(out, a + b)


def run_without_interpreter(code: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_the_variable_is_asked_for() -> None:
    require_interpreter()
    done = run_without_interpreter(
        "from litz.runtime.triton.interpret import interpreted; interpreted('', 'k', [], {})"
    )
    assert ToolchainError.__name__ in done.stderr and "TRITON_INTERPRET=1" in done.stderr


def test_the_cpu_does_without_triton() -> None:
    done = run_without_interpreter(
        "import sys, torch, litz\n"
        "f = torch.compile(lambda x: torch.relu(x) + 1, backend='litz')\n"
        "mine = [m for m in sys.modules if m.startswith('litz.') and 'triton' in m]\n"
        "assert f(torch.ones(3)).tolist() == [2, 2, 2]\n"
        "mine += [m for m in sys.modules if m.startswith('litz.runtime.triton')]\n"
        "print('none' if not mine else mine)\n"
    )
    assert done.stdout.strip() == "none", done.stdout + done.stderr
