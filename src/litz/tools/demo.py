"""``python -m litz.tools.demo``: compile a small transformer and check it against eager.

Both Litz and eager are judged by the same model in float64, since neither is the truth.
The exit status is 0 when Litz is right and 1 when it is not.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

import litz

if TYPE_CHECKING:
    from torch import Tensor, nn

BATCH, LENGTH, VOCABULARY = 4, 128, 8192


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Say what goes on while it does, and how long it took."""
    print(f"{text:.<48s} ", end="", flush=True)
    start = time.perf_counter()
    try:
        yield
    except BaseException:
        print("failed", flush=True)
        raise
    print(f"{time.perf_counter() - start:6.2f} s", flush=True)


def build() -> tuple[nn.Module, Tensor]:
    """A BERT of 4 layers, hidden size 768, with random weights, and (BATCH, LENGTH) token ids."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=768,
        num_hidden_layers=4,
        num_attention_heads=12,
        intermediate_size=3072,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model: nn.Module = BertModel(config, add_pooling_layer=False).eval()
    generator = torch.Generator().manual_seed(1)
    return model, torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)


def relative_error(out: Tensor, reference: Tensor) -> float:
    """``|out - reference| / |reference|`` in the Euclidean norm; ``reference`` is float64."""
    return float((out.double() - reference).norm() / reference.norm())


def is_right(error: float, eager_error: float) -> bool:
    """Whether a result is as near to float64 as eager's, by their relative errors."""
    return error <= 2 * eager_error + 1e-7


def time_in_turn(first: Callable[[], Tensor], second: Callable[[], Tensor]) -> tuple[float, float]:
    """Median seconds of two callables, called in turn so that drift meets both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + 8
    while len(times[0]) < 3 or (len(times[0]) < 20 and time.perf_counter() < until):
        for call, into in zip((first, second), times, strict=True):
            start = time.perf_counter()
            call()
            into.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def count_kernels(model: nn.Module, ids: Tensor) -> str:
    """How many distinct kernels Litz made, their calls, and the calls left to ATen."""
    report = litz.explain(model, ids)
    launches = sum(len(kernel.groups) for kernel in report.kernels)
    externs = sum(extern.calls for extern in report.externs)
    return f"{len(report.kernels)} kernels, called {launches} times; {externs} calls left to ATen"


def parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog="litz demo", description=__doc__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status."""
    parser().parse_args(arguments)
    with progress("building BERT (4 layers, hidden size 768)"):
        model, ids = build()
    with torch.no_grad():
        return compare(model, ids)


def compare(model: nn.Module, ids: Tensor) -> int:
    """Compile ``model``, check and time it, print the outcome; the exit status."""
    compiled = torch.compile(model, backend="litz")

    def run_eager() -> Tensor:
        out: Tensor = model(input_ids=ids).last_hidden_state
        return out

    def run_litz() -> Tensor:
        out: Tensor = compiled(input_ids=ids).last_hidden_state
        return out

    with progress("eager"):
        expected = run_eager()
    with progress("the same in float64, the judge"):
        reference = copy.deepcopy(model).double()(input_ids=ids).last_hidden_state
    with progress('torch.compile(model, backend="litz"), first call'):
        start = time.perf_counter()
        out = run_litz()
        first = time.perf_counter() - start
    with progress("steady state, eager and Litz in turn"):
        eager_time, litz_time = time_in_turn(run_eager, run_litz)
    with progress("explain"):
        kernels = count_kernels(model, ids)

    error, eager_error = relative_error(out, reference), relative_error(expected, reference)
    right = out.shape == expected.shape and is_right(error, eager_error)
    print()
    print(f"first call           {first:.2f} s")
    print(f"steady state         {litz_time * 1e3:.2f} ms (eager {eager_time * 1e3:.2f} ms)")
    print(f"speed beside eager   {eager_time / litz_time:.2f}x")
    print(f"code                 {kernels}")
    print(f"relative error       {error:.2e} (eager {eager_error:.2e})")
    print("result               " + ("right" if right else "WRONG"))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
