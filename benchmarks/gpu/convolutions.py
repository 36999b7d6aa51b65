"""Convolutions with what follows them in one call of cuDNN's, beside a call and a kernel.

``python -m benchmarks.gpu.convolutions`` (60 s): microseconds in replays of CUDA graphs, float16 in
channels-last, 64 images, the shapes of ResNet-50; and errors against float64.  Columns:

conv         the convolution alone
litz         with bias, relu and, where named, a residual, as Litz compiles them
fused        ``aten.cudnn_convolution_relu`` or ``cudnn_convolution_add_relu``
peer         as ``litz``, by PyTorch's own compiler (``--peer``)
err          of these, relative
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.arguments import described
from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.clock import clock_of, replay_us
from benchmarks.gpu.matmul import distance

aten = torch.ops.aten
Tensor = torch.Tensor
# Side of the images, channels in and out, side of the kernel, stride, and whether something is
# added before the relu.
Shape = tuple[int, int, int, int, int, bool]
SHAPES: tuple[Shape, ...] = (
    (224, 3, 64, 7, 2, False), (56, 64, 64, 1, 1, False), (56, 64, 64, 3, 1, False),
    (56, 64, 256, 1, 1, True), (28, 128, 128, 3, 1, False), (28, 128, 512, 1, 1, True),
    (14, 256, 256, 3, 1, False), (14, 256, 1024, 1, 1, True), (7, 512, 512, 3, 1, False),
    (7, 512, 2048, 1, 1, True),
)  # fmt: skip


def made(shape: Shape) -> tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]:
    """What eager mode computes of tensors, the one call, and the tensors."""
    side, inner, outer, kernel, stride, adds = shape
    pad = kernel // 2

    def images(*sizes: int, scale: float = 1.0) -> Tensor:
        x = torch.randn(sizes, device="cuda") * scale
        return x.half().contiguous(memory_format=torch.channels_last)

    x = images(64, inner, side, side)
    w = images(outer, inner, kernel, kernel, scale=(inner * kernel * kernel) ** -0.5)
    given = [x, w, torch.randn(outer, device="cuda").half()]
    if adds:
        given.append(images(64, outer, side // stride, side // stride))

    def plain(x: Tensor, w: Tensor, b: Tensor, r: Tensor | None = None) -> Tensor:
        y = F.conv2d(x, w, b, stride, pad)
        return F.relu(y if r is None else y + r)

    def fused(x: Tensor, w: Tensor, b: Tensor, r: Tensor | None = None) -> Tensor:
        how: Sequence[Any] = ([stride] * 2, [pad] * 2, [1, 1], 1)
        found: Tensor = (
            aten.cudnn_convolution_relu(x, w, b, *how)
            if r is None
            else aten.cudnn_convolution_add_relu(x, w, r, 1.0, b, *how)
        )
        return found

    return plain, fused, given


def main() -> None:
    parser = described("gpu.convolutions", __doc__)
    parser.add_argument("--peer", action="store_true", help="measure the peer too")
    peer = parser.parse_args().peer
    backend_called("litz")
    clock = clock_of("cuda")
    torch.backends.cudnn.benchmark = True
    columns = ("conv", "litz", "fused", *["peer"] * peer)
    print(f"{'side in out kernel stride':32}{''.join(f'{c:>9}' for c in columns)}   err")
    for shape in SHAPES:
        torch._dynamo.reset()
        plain, fused, given = made(shape)
        exact = plain(*(t.double() for t in given))
        ours, theirs = (
            torch.compile(plain, backend=name, dynamic=False) for name in ("litz", "inductor")
        )
        x, w, *_ = given
        alone = partial(F.conv2d, x, w, None, shape[4], shape[3] // 2)
        times, errors = "", ""
        calls = [alone, *(partial(f, *given) for f in (ours, fused, *[theirs] * peer))]
        for call in calls:
            try:
                times += f"{replay_us(call, clock, 0.2):9.1f}"
                errors += "" if call is alone else f" {distance(call(), exact):.1e}"
            except RuntimeError as e:
                times, errors = times + f"{'-':>9}", f"{errors} {e}"[:160]
        name = " ".join(map(str, shape[:5])) + (" residual" if shape[5] else "")
        print(f"{name:32}{times}  {errors}", flush=True)


if __name__ == "__main__":
    main()
