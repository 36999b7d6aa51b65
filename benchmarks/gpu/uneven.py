"""Products of uneven sizes by the library: what has to be padded, sizes or only the rows' steps.

``python -m benchmarks.gpu.uneven`` (30 s): microseconds of ``torch.mm`` in replays of CUDA graphs,
bfloat16, for the three products of a vocabulary's layer in training.  Columns:

dense    sizes and rows as they are: rows begin at any 2 bytes
steps    sizes as they are, rows begin at whole 16 bytes
padded   sizes padded too, as ``litz.passes.pad`` has it
copy     what copying the weights for that takes

Where ``steps`` is as fast as ``padded``, no matrix has to be copied or computed larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.arguments import described
from benchmarks.gpu.clock import clock_of, replay_us
from litz.ir.matmul import padded_size

Tensor = torch.Tensor
SHAPES = ((4096, 50257, 768), (8192, 32003, 2048), (2048, 1003, 1024))


def laid(rows: int, columns: int, step: int) -> Tensor:
    """Random, the rows ``step`` elements apart, with zeros between them."""
    whole = torch.zeros(rows, step, dtype=torch.bfloat16, device="cuda")
    whole[:, :columns] = torch.randn(rows, columns, device="cuda")
    return whole[:, :columns]


def products(m: int, n: int, k: int) -> Iterator[tuple[str, list[Callable[[], Any]]]]:
    """For each product what the columns time.  n: the uneven size."""
    wide = padded_size(n)
    x, w = laid(m, k, k), laid(n, k, k)
    w_wide = laid(wide, k, k)
    dense, even, whole = laid(m, n, n), laid(m, n, wide), laid(m, wide, wide)
    copy = partial(w_wide[:n].copy_, w)
    pairs = (dense, w), (even, w), (whole, w_wide)
    yield "logits", [*(partial(torch.mm, x, b.t(), out=out) for out, b in pairs), copy]
    yield "inputs", [*(partial(torch.mm, g, b) for g, b in pairs), copy]
    yield "weights", [partial(torch.mm, g.t(), x) for g, _ in pairs]


def main() -> None:
    described("gpu.uneven", __doc__).parse_args()
    clock = clock_of("cuda")
    print(f"{'product':32}{'dense':>10}{'steps':>10}{'padded':>10}{'copy':>10}")
    for shape in SHAPES:
        for name, calls in products(*shape):
            times = "".join(f"{replay_us(call, clock, 0.3):10.1f}" for call in calls)
            print(f"{name + ' ' + 'x'.join(map(str, shape)):32}{times}", flush=True)


if __name__ == "__main__":
    main()
